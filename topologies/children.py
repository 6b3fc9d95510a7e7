"""Runs processes on the nodes of a network of namespaces, for all builders."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Self

from iswitch.ports.orphans import DiesWithParent

from .description import Topology
from .errors import NetworkError, PrivilegeError
from .namespaces import Claim, inside
from .parts import Port

TERM_GRACE = 3.0  # seconds from SIGTERM to SIGKILL

File = int | IO[Any] | None


class Nodes(ABC):
    """Named namespaces, and the processes that were started in them; use it as a context.

    A builder overrides `_build`, which fills `_namespaces`.
    """

    def __init__(self, topology: Topology, *, prefix: str = "isw", offload: bool = True) -> None:
        """Prepare to build a network.

        Args:
            topology: topology to build. Links and switches that stand by are left out.
            prefix: the beginning of the namespaces' names: 1 to 8 small letters.
            offload: let super-frames and unfinished checksums pass whole, as they do between
                namespaces; False: frames are as they would be on a wire.
        """
        self.topology = topology
        self.offload = offload
        self._prefix = prefix
        self._claim: Claim | None = None
        self._namespaces: dict[str, int] = {}
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Build the network, after removing what dead processes left.

        Raises:
            PrivilegeError: this process is not root, or is root without the capabilities.
            NetworkError: a program, a library or a kernel feature is missing, or a link has a
                setting that cannot be kept.
        """
        if self._claim is not None:
            raise NetworkError("the network is built already; close it, or make another one")
        with ExitStack() as undo, privileges():
            self._check()
            undo.callback(self.close)
            clean()
            self._claim = Claim.new(self._prefix)
            self._build(self._claim)
            undo.pop_all()

    def close(self) -> None:
        """End the children, then remove all that was built. Closing twice is harmless."""
        end(self._children)
        self._children.clear()
        try:
            self._stop()
        finally:
            self._release()

    def _check(self) -> None:  # noqa: B027  (most machines have it)
        """Refuse a machine that lacks what this builder needs."""

    @abstractmethod
    def _build(self, claim: Claim) -> None:
        """Build all nodes and links, namespaces by the names of `claim`."""

    def _stop(self) -> None:  # noqa: B027  (most builders stop nothing)
        """Stop parts of the network that need their namespaces until they have stopped."""

    def ports(self, switch: str) -> tuple[Port, ...]:
        """Return a switch's interfaces, each with its link (rate, delay, loss, queue) and peer."""
        return self.topology.ports(switch)

    def namespace(self, node: str) -> str:
        """Return a node's namespace, as `ip netns exec` takes it.

        Raises:
            NetworkError: the network is not built.
        """
        if self._claim is None:
            raise NetworkError("the network is not built; use it as a context, or call start()")
        return f"{self._claim.name}-{node}"

    def inside(self, node: str) -> AbstractContextManager[None]:
        """Move the calling thread into a node's namespace for a `with` block.

        Processes that it starts and sockets that it opens there stay in the namespace.

        Raises:
            NetworkError: no such node in this network, or it is not built, or stands by.
        """
        if node not in self._namespaces:
            built = ", ".join(self._namespaces) or "nothing: call start()"
            raise NetworkError(f"no node {node!r} is built; built is {built}")
        return inside(self._namespaces[node])

    def popen(
        self,
        node: str,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: File = subprocess.DEVNULL,
        stdout: File = None,
        stderr: File = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command on a node; `env` is added to this process's own.

        The process leads its own process group, which `close` ends. The kernel kills it when the
        thread that started it ends, so start it from a thread that lives as long.
        """
        with self.inside(node):
            child = subprocess.Popen(
                argv,
                env={**os.environ, **(env or {})},
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=DiesWithParent(),
            )
        self._children.append(child)
        return child

    def _release(self) -> None:
        """Remove the namespaces and release their names; end processes that still run there."""
        for namespace in self._namespaces.values():
            os.close(namespace)
        self._namespaces.clear()
        if self._claim is not None:
            self._claim.release()
            self._claim = None


def clean() -> list[str]:
    """Remove the networks of dead processes, and end the processes that still run there.

    Networks of living processes and namespaces that this package did not make stay.

    Returns:
        names of the removed namespaces.

    Raises:
        PrivilegeError: this process is not root, or is root without the capabilities.
    """
    with privileges():
        return [name for claim in Claim.left_over() for name in claim.release()]


@contextmanager
def privileges() -> Iterator[None]:
    """Name the missing privilege when the kernel refuses something in the `with` block."""
    try:
        yield
    except PrivilegeError:
        raise
    except PermissionError as error:
        raise PrivilegeError(
            f"building networks needs CAP_SYS_ADMIN and CAP_NET_ADMIN ({error}); run as root "
            "(sudo), in a container started with --privileged, or use the loopback world"
        ) from error


def end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End process groups: by SIGTERM, then by SIGKILL."""
    running = [child for child in children if child.poll() is None]
    for child in running:
        os.killpg(child.pid, signal.SIGTERM)
    limit = time.monotonic() + TERM_GRACE
    for child in running:
        try:
            child.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
