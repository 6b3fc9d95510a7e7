"""Processes that print lines, started, listened to and ended together."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO, Self

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PATIENCE = 3.0  # seconds to end in, before a process is killed


class Child:
    """A started process; what it prints to stderr is kept for when it fails."""

    def __init__(self, name: str, command: Sequence[str], env: dict[str, str] | None) -> None:
        self.name = name
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by Fleet.stop)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, **(env or {})},
            start_new_session=True,  # Ctrl-C in the terminal is for the parent alone
            preexec_fn=_die_with_parent,
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout
        self._partial = b""

    def lines(self) -> list[str] | None:
        """Whole lines that can be read now; None at the end of the output."""
        data = os.read(self.output.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def ending(self) -> str:
        """How it ended, in words, with the last line it complained in."""
        try:
            status = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return "closed its output"
        if status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        else:
            how = f"ended with status {status}"
        self.errors.seek(0)
        complaint = self.errors.read().decode(errors="replace").strip().splitlines()
        return how + (f": {complaint[-1]}" if complaint else "")


class Fleet:
    """Children that live and die together. Use it as a context: its end ends all of them.

    Ctrl-C makes the next `listen` raise KeyboardInterrupt. (Raised wherever Python happens to be it
    could be lost: in a destructor it is printed and forgotten.)
    """

    def __init__(self) -> None:
        self.children: list[Child] = []
        self._interrupted = False
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        self._former = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        signal.signal(signal.SIGINT, self._former)

    def _interrupt(self, *_: object) -> None:
        self._interrupted = True

    def start(
        self, name: str, arguments: Sequence[str], env: dict[str, str] | None = None
    ) -> Child:
        """Start `python ARGUMENTS`; what lies in the current folder is not imported."""
        child = Child(name, [sys.executable, "-P", *arguments], env)
        self.children.append(child)
        self._selector.register(child.output, selectors.EVENT_READ, child)
        return child

    def listen(self, seconds: float) -> Iterator[tuple[Child, str | None]]:
        """Lines as children print them, for at most `seconds`; None: no more from this one.

        Raises:
            KeyboardInterrupt: SIGINT came since the last call.
        """
        ready = self._selector.select(seconds)
        if self._interrupted:
            raise KeyboardInterrupt
        for key, _ in ready:
            child: Child = key.data
            lines = child.lines()
            if lines is None:
                self._selector.unregister(child.output)
                yield child, None
            for line in lines or ():
                yield child, line

    def stop(self) -> None:
        """End all that still run: politely, then for certain."""
        for child in self.children:
            if child.process.poll() is None:
                child.process.terminate()
        limit = time.monotonic() + PATIENCE
        for child in self.children:
            try:
                child.process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            child.output.close()
            child.errors.close()
        self._selector.close()


def _die_with_parent() -> None:
    """Runs in the child before exec: a parent that crashes leaves no orphans."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
