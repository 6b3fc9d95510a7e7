"""MPI, by mpi4py and Open MPI over TCP; an outside reference, like gloo.

The workers run already when they join: rank 0 starts an `mpirun`, whose daemons are started by the
workers themselves, each on its own host (no ssh) and watched there, and whose ranks are stand-ins
(`mpi_helper`) that hand their environment over. With it a worker is that rank for Open MPI. One
world is made for a process, and lasts until it ends: MPI can be begun once only. If a rank dies,
mpirun ends the others, as MPI has it.

Cost: what Open MPI's "tuned" chooses by size. Of large vectors, each of N workers sends and
receives about 2X(N - 1)/N bytes of X, as in `ring`. Asserted are these bytes on the links of hosts,
to five per cent; not the steps.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

from . import Vector
from .base import TIMEOUT, Base, lacking
from .errors import PeerLost, RendezvousError, Unavailable
from .guests import greeted
from .mpi_daemon import PREFIX, Daemon, command, said
from .mpi_helper import AGENTS
from .rendezvous import ANSWERING, HEAD, hear, meaning, meet, say, unsaid

PAUSE = 0.1  # seconds between two looks whether mpirun has failed
PATIENCE = 5.0  # seconds for mpirun to end
FAILED = "failed"  # rank 0 and the others tell one another why they give up
ADOPTED = "adopted"  # the others tell rank 0 that they are ranks
SILENT = (
    "it says nothing: look whether all hosts reach one another over TCP, and have the same Open "
    "MPI, or give more time: timeout=..."
)
ABORTED = 1  # exit status, when mpirun has ended the job


class Mpi(Base):
    """A member of a communicator of all workers."""

    def __init__(self, communicator: Any, numel: int) -> None:
        super().__init__(communicator.rank, communicator.size, numel)
        self._communicator = communicator

    def allreduce(self, vector: Vector) -> Vector:
        """Add up, in an order of Open MPI's; a worker that is missing is waited for."""
        from mpi4py import MPI

        self.check(vector)
        self.rounds += 1
        self._communicator.Allreduce(MPI.IN_PLACE, vector)
        return vector

    def close(self) -> None:
        """Give the communicator back; the world stays until the process ends."""
        self._communicator.Free()

    def stats(self) -> dict[str, Any]:
        """Rounds, and what adds."""
        from mpi4py import MPI

        return {"rounds": self.rounds, "library": MPI.Get_library_version().partition(",")[0]}


def lacks() -> str:
    """Say what this machine lacks for MPI, and how to get it; "" if nothing."""
    return lacking(
        "mpi",
        ["mpi4py"],
        ["mpirun", "orted"],
        "pip install -e '.[mpi]' (in a checkout of iswitch) and, for Open MPI 4, "
        "apt-get install --no-install-recommends openmpi-bin",
    )


def join(numel: int, *, timeout: float = TIMEOUT) -> Mpi:
    """Join the world of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Args:
        numel: elements of every vector.
        timeout: seconds for all to come, and for mpirun to connect them.

    Raises:
        ValueError: the environment lacks what it needs.
        RendezvousError: not all have come, or mpirun has not connected them.
        Unavailable: mpi4py or Open MPI is not installed.
    """
    if missing := lacks():
        raise Unavailable(missing)
    found = meet(f"mpi of {numel} elements", lambda _: None, timeout)
    if "mpi4py.MPI" not in sys.modules:  # which begins MPI, once in the life of a process
        _connect(timeout)
    from mpi4py import MPI

    if MPI.COMM_WORLD.size != found.num_workers:
        raise RendezvousError(
            f"MPI has {MPI.COMM_WORLD.size} ranks here, and there are {found.num_workers} workers; "
            "import mpi4py.MPI after make, which connects them"
        )
    return Mpi(MPI.COMM_WORLD.Dup(), numel)


def _connect(timeout: float) -> None:
    """Make this process a rank."""
    daemon: Daemon | None = None
    with ExitStack() as stack:
        doors: list[socket.socket] = []

        def tell(here: str) -> Any:
            if os.environ["RANK"] != "0":
                return here, None, None
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))
            doors.append(stack.enter_context(socket.create_server((here, 0))))
            return here, doors[0].getsockname()[1], folder

        found = meet("mpi's daemons", tell, timeout)
        deadline = time.monotonic() + timeout
        hosts = [told[0] for told in found.told]
        master, port, folder = found.told[0]
        stack.enter_context(here_too(folder))
        own = stack.enter_context(door(f"{folder}/{found.rank}"))
        if found.rank == 0:
            followers = _followers(doors[0], found.num_workers, timeout, stack)
            with door(f"{folder}/{AGENTS}") as agents, _told(followers):
                life = _lead(hosts, folder, own, agents, followers, deadline)
            for sock in followers.values():
                with suppress(OSError):  # it has failed, and mpirun will say so
                    hear(sock)  # it has no need of the folder any more
        else:
            try:
                leader = stack.enter_context(socket.create_connection((master, port), timeout))
                say(leader, found.rank)
            except OSError as error:
                raise RendezvousError(
                    f"rank 0 has failed or left ({error}); see what it says, and start all again"
                ) from None
            with _told({0: leader}):
                life, daemon = _follow(own, leader, deadline + ANSWERING)
            with suppress(OSError):  # rank 0 closes when nobody needs a folder any more
                say(leader, ADOPTED)
                hear(leader)
    threading.Thread(target=_end_with, args=(life, daemon), name="mpi", daemon=True).start()


@contextmanager
def _told(others: dict[int, socket.socket]) -> Iterator[None]:
    """A context whose error the others are told."""
    try:
        yield
    except Exception as error:
        for sock in others.values():
            with suppress(OSError):  # it has failed, too
                say(sock, {FAILED: str(error)})
        raise


def _followers(
    door: socket.socket, num_workers: int, timeout: float, stack: ExitStack
) -> dict[int, socket.socket]:
    """Rank 0: the connections of all others, by rank; strangers' are left alone.

    Raises:
        RendezvousError: some did not connect, though they had met.
    """
    found: dict[int, socket.socket] = {}
    coming = greeted(door, unsaid, time.monotonic() + timeout)
    with closing(coming):
        while missing := set(range(1, num_workers)) - found.keys():
            came = next(coming, None)
            if came is None:
                where = "{}:{}".format(*door.getsockname())
                raise RendezvousError.missing(missing, where, timeout)
            sock, said = came
            rank: object = None
            with suppress(ValueError):  # a stranger
                rank = meaning(said[HEAD.size :])
            if not isinstance(rank, int) or rank not in missing:
                sock.close()
                continue
            stack.enter_context(sock).settimeout(timeout)
            found[rank] = sock
    return found


def _lead(
    hosts: Sequence[str],
    folder: str,
    own: socket.socket,
    agents: socket.socket,
    followers: dict[int, socket.socket],
    deadline: float,
) -> socket.socket:
    """Rank 0: start mpirun, and have the first worker of each host start its daemon.

    Those who say that they are ranks are no longer among the followers then.
    """
    complaints = tempfile.TemporaryFile()  # noqa: SIM115  (mpirun has it)
    mpirun = subprocess.Popen(
        command(hosts, folder), stdin=subprocess.DEVNULL, stdout=complaints, stderr=complaints
    )
    atexit.register(_wait_for, mpirun)
    try:
        while time.monotonic() < deadline and mpirun.poll() is None:
            if (life := _heard(hosts, own, agents, followers)) is not None:
                return life
        says = f"it says: {text}" if (text := said(complaints)) else SILENT
        raise RendezvousError(f"mpirun has not connected the workers; {says}")
    except Exception:
        mpirun.kill()
        raise


def _heard(
    hosts: Sequence[str],
    own: socket.socket,
    agents: socket.socket,
    followers: dict[int, socket.socket],
) -> socket.socket | None:
    """Rank 0: take what comes next; the connection to the own stand-in, if that has come."""
    ready, _, _ = select.select([own, agents, *followers.values()], [], [], PAUSE)
    for rank in [rank for rank, sock in followers.items() if sock in ready]:
        _hear_of(rank, followers)
    if agents in ready:
        with _taken(agents) as (_, (host, daemon)):
            rank = hosts.index(host)
            try:
                say(followers[rank], daemon)
            except OSError as error:
                raise PeerLost(f"rank {rank}", str(error)) from None
    if own not in ready:
        return None
    for sock in followers.values():
        with suppress(OSError):  # it has given up
            say(sock, None)
    return _adopt(own)


def _hear_of(rank: int, followers: dict[int, socket.socket]) -> None:
    """Rank 0: another says that it is a rank; it is no follower any more.

    Raises:
        RendezvousError: it says that it has failed, or says nothing any more.
    """
    try:
        said = hear(followers[rank])
    except OSError as error:
        raise PeerLost(f"rank {rank}", str(error)) from None
    if isinstance(said, dict):
        raise RendezvousError(f"rank {rank} says: {said[FAILED]}")
    del followers[rank]


def _follow(
    own: socket.socket, leader: socket.socket, deadline: float
) -> tuple[socket.socket, Daemon | None]:
    """The others: start a daemon when rank 0 says so, and wait for what it makes."""
    with ExitStack() as stack:
        daemon: Daemon | None = None
        heard = [own, leader]
        while time.monotonic() < deadline:
            ready, _, _ = select.select(heard, [], [], PAUSE)
            if own in ready:
                stack.pop_all()
                return _adopt(own), daemon
            if leader in ready:
                command = _commanded(leader)
                if command is None:
                    heard = [own]  # the daemons are there
                else:
                    daemon = stack.enter_context(Daemon(command))
            if daemon is not None:
                daemon.check()
    raise RendezvousError("mpirun has not connected the workers in time; see what rank 0 says")


def _commanded(leader: socket.socket) -> str | None:
    """What daemon rank 0 says to start; None: all are there.

    Raises:
        RendezvousError: rank 0 has given up, or has ended.
    """
    try:
        said = hear(leader)
    except OSError:
        raise RendezvousError(
            "rank 0 has ended before mpirun had connected the workers, and did not say why"
        ) from None
    if isinstance(said, dict):
        raise RendezvousError(f"rank 0 has given up: {said[FAILED]}")
    return said  # type: ignore[no-any-return]


@contextmanager
def here_too(folder: str) -> Iterator[None]:
    """The folder exists while this lasts; on other machines than rank 0's it has to be made."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        yield
        return
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def door(path: str) -> Iterator[socket.socket]:
    """A listening socket in the file system, which namespaces of a machine share."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen(64)
        yield sock
    with suppress(FileNotFoundError):
        os.unlink(path)


@contextmanager
def _taken(listener: socket.socket) -> Iterator[tuple[socket.socket, Any]]:
    """The next connection, and what it says; it is closed at the end."""
    sock, _ = listener.accept()
    with sock, sock.makefile() as lines:
        yield sock, json.loads(lines.readline())


def _adopt(own: socket.socket) -> socket.socket:
    """Become the rank that a stand-in tells of; the connection to it, which lives as long."""
    with _taken(own) as (sock, made):
        os.environ.update(made)
        return sock.dup()


def _end_with(life: socket.socket, daemon: Daemon | None) -> None:
    """Mpirun has ended the stand-in: another rank has failed, and MPI would wait for ever."""
    with suppress(OSError):
        life.recv(1)
    if daemon is not None:
        daemon.remove()
    os.write(2, b"mpirun has ended the job: another rank has failed\n")
    os._exit(ABORTED)


def _wait_for(mpirun: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        mpirun.wait(PATIENCE)
