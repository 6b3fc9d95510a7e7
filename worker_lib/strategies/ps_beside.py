"""Parameter servers that workers start beside themselves, on their own hosts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from contextlib import suppress

from iswitch.virtual.process import current

from .errors import PeerLost
from .ps_server import LISTENING, Server


class Beside(ABC):
    """A server beside a worker; it ends when all workers have left.

    Attributes:
        address: HOST:PORT where it listens.
    """

    address: str

    @staticmethod
    def start(here: str) -> Beside:
        """Start a server at any free port of a local address."""
        return ServerProcess(here) if current() is None else ServerThread(here)

    @abstractmethod
    def kill(self) -> None:
        """End the server at once."""

    @abstractmethod
    def end(self, timeout: float) -> None:
        """Wait for its end, at most `timeout` seconds."""


class ServerProcess(Beside):
    """A server in a process of its own.

    Raises:
        PeerLost: the server has ended.
    """

    def __init__(self, here: str) -> None:
        self._process = start_server(here)
        self.address = listening(self._process)

    def kill(self) -> None:
        """End the server at once."""
        self._process.kill()
        self._process.communicate()

    def end(self, timeout: float) -> None:
        """Wait for its end, at most `timeout` seconds."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.stdout is not None
        self._process.stdout.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)


class ServerThread(Beside):
    """A server in a thread of the worker: in virtual time, where started processes have no part."""

    def __init__(self, here: str) -> None:
        self._listener = socket.create_server((here, 0), backlog=64)
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._thread = threading.Thread(target=self._serve, daemon=True, name="iswitch server")
        self._thread.start()

    def _serve(self) -> None:
        with self._listener:
            Server(self._listener, once=True).serve()

    def kill(self) -> None:
        """Take no more workers; the thread ends with the process."""
        self._listener.close()

    def end(self, timeout: float) -> None:
        """Wait for its end, at most `timeout` seconds."""
        self._thread.join(timeout)


def start_server(here: str) -> subprocess.Popen[str]:
    """Start a server process at any free port of a local address.

    It ends when its standard input is closed and all workers have left.
    """
    command = [sys.executable, "-P", "-m", "worker_lib.strategies.ps_server", "--listen"]
    return subprocess.Popen(
        [*command, f"{here}:0", "--until-eof"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def listening(process: subprocess.Popen[str]) -> str:
    """Return the address HOST:PORT at which a server that was just started listens.

    Raises:
        PeerLost: the server has ended.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith(LISTENING):
        raise PeerLost("the server beside this worker", f"it ended with {process.wait()}")
    return line.removeprefix(LISTENING).strip()
