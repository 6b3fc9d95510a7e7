"""MPI, by mpi4py and Open MPI; an independent reference, like gloo.

The workers already run when they join. Rank 0 starts `mpirun`. No ssh is needed: on each host a
worker starts Open MPI's daemon and watches it. The daemons start stand-ins (`mpi_helper`) as ranks;
each stand-in passes its environment to a worker, which then is that rank for Open MPI. MPI can be
initialised only once in a process, so the group lasts until the process ends. If a rank dies,
mpirun ends the others, as usual with MPI.

Cost: Open MPI's "tuned" component chooses the algorithm by size. For large vectors of X bytes, each
of N workers sends and receives about 2X(N - 1)/N bytes, as in `ring`. Tests assert these bytes on
the links of hosts, to five per cent, and not the steps.
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
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Literal

from iswitch.outside import extra

from .base import TIMEOUT, Strategy, Vector, lacking
from .collectives import ROOT
from .errors import PeerLost, RendezvousError, Unavailable
from .messages import expected, hear, say
from .mpi_daemon import BTLS, PREFIX, Daemon, command, said
from .mpi_helper import AGENTS
from .rendezvous import ANSWERING, meet

PAUSE = 0.1  # seconds between checks whether mpirun has failed
PATIENCE = 5.0  # seconds for mpirun to end
FAILED = "failed"  # key of a message, either way, that says why its sender gives up
ADOPTED = "adopted"  # message of another worker to rank 0: it is a rank of Open MPI now
SILENT = (
    "it says nothing: look whether all hosts reach one another over TCP, and have the same Open "
    "MPI, or give more time: timeout=..."
)
ABORTED = 1  # exit status, when mpirun has ended the job


class Mpi(Strategy):
    """A member of an MPI communicator of all workers."""

    def __init__(self, communicator: Any, numel: int) -> None:
        super().__init__(communicator.rank, communicator.size, numel)
        self._communicator = communicator

    def allreduce(self, vector: Vector) -> Vector:
        """Sum in place, in an order chosen by Open MPI; wait for slow workers without limit."""
        from mpi4py import MPI

        self.check(vector)
        self.rounds += 1
        self._communicator.Allreduce(MPI.IN_PLACE, vector)
        return vector

    def exchange(self, collective: str, vector: Vector, out: Vector) -> None:
        """Call a collective, see `Exchange`."""
        from mpi4py import MPI

        self.rounds += 1
        mpi = self._communicator
        at_root = self.rank == ROOT
        match collective:
            case "reduce_scatter":
                mpi.Reduce_scatter_block(vector, out)
            case "all_gather":
                mpi.Allgather(vector, out)
            case "broadcast":
                mpi.Bcast(vector, ROOT)
            case "reduce" if at_root:
                mpi.Reduce(MPI.IN_PLACE, vector, root=ROOT)
            case "reduce":
                mpi.Reduce(vector, None, root=ROOT)
            case "gather":
                mpi.Gather(vector, out if at_root else None, ROOT)
            case "scatter":
                mpi.Scatter(vector if at_root else None, out, ROOT)
            case "all_to_all":
                mpi.Alltoall(vector, out)
            case _:
                mpi.Barrier()

    def close(self) -> None:
        """Free the communicator; MPI itself stays initialised until the process ends."""
        self._communicator.Free()

    def stats(self) -> dict[str, Any]:
        """Return the number of `rounds`, and the name and version of the MPI `library`."""
        from mpi4py import MPI

        return {"rounds": self.rounds, "library": MPI.Get_library_version().partition(",")[0]}


def lacks() -> str:
    """Say what this machine lacks for MPI, and how to get it; "" if nothing."""
    return lacking(
        "mpi",
        ["mpi4py"],
        ["mpirun", "orted"],
        f"{extra('mpi')} and, for Open MPI 4, apt-get install --no-install-recommends openmpi-bin",
    )


def join(numel: int, *, timeout: float = TIMEOUT, btl: Literal["tcp", "shm"] = "tcp") -> Mpi:
    """Join the group of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Args:
        numel: elements of every vector.
        timeout: seconds for all workers to come, and again for mpirun to connect them.
        btl: how messages travel: "tcp", or "shm" through shared memory, if all are on one host.

    Raises:
        ValueError: a variable is missing or wrong, the timeout is out of range, or there is no such
            way.
        RendezvousError: a worker did not come, or mpirun could not connect the workers.
        Unavailable: mpi4py or Open MPI is not installed.
    """
    if missing := lacks():
        raise Unavailable(missing)
    if btl not in BTLS:
        raise ValueError(f"btl={btl}: Open MPI's messages go through tcp or shm")
    found = meet(f"mpi of {numel} elements", lambda _: None, timeout)
    if "mpi4py.MPI" not in sys.modules:  # importing it initialises MPI, once per process
        _connect(timeout, btl)
    from mpi4py import MPI

    if MPI.COMM_WORLD.size != found.num_workers:
        raise RendezvousError(
            f"MPI has {MPI.COMM_WORLD.size} ranks here, and there are {found.num_workers} workers; "
            "import mpi4py.MPI after make, which connects them"
        )
    return Mpi(MPI.COMM_WORLD.Dup(), numel)


def join_exchange(_collective: str, numel: int, **options: Any) -> Mpi:
    """Join the group as `join` does; it serves all collectives."""
    return join(numel, **options)


def _connect(timeout: float, btl: str) -> None:
    """Make this process a rank of Open MPI."""
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
            wanted = {(rank, 0) for rank in range(1, found.num_workers)}
            came, missing = expected(doors[0], wanted, timeout)
            for sock in came.values():
                stack.enter_context(sock).settimeout(timeout)
            if missing:
                raise RendezvousError.missing(missing, f"{master}:{port}", timeout)
            followers = {rank: sock for (rank, _), sock in came.items()}
            with door(f"{folder}/{AGENTS}") as agents, _told(followers):
                life = _lead(command(hosts, folder, btl), hosts, own, agents, followers, deadline)
            for sock in followers.values():
                with suppress(OSError):  # that worker has failed, and mpirun will say so
                    hear(sock)  # ADOPTED: that worker no longer needs the folder
        else:
            try:
                leader = stack.enter_context(socket.create_connection((master, port), timeout))
                say(leader, [found.rank, 0])
            except OSError as error:
                raise RendezvousError(
                    f"rank 0 has failed or left ({error}); see what it says, and start all again"
                ) from None
            with _told({0: leader}):
                life, daemon = _follow(own, leader, deadline + ANSWERING)
            with suppress(OSError):  # rank 0 closes once no worker needs the folder
                say(leader, ADOPTED)
                hear(leader)
    threading.Thread(target=_end_with, args=(life, daemon), name="mpi", daemon=True).start()


@contextmanager
def _told(others: dict[int, socket.socket]) -> Iterator[None]:
    """Tell all others when the body of the `with` statement fails, and why."""
    try:
        yield
    except Exception as error:
        for sock in others.values():
            with suppress(OSError):  # that worker has failed, too
                say(sock, {FAILED: str(error)})
        raise


def _lead(
    mpirun_words: Sequence[str],
    hosts: Sequence[str],
    own: socket.socket,
    agents: socket.socket,
    followers: dict[int, socket.socket],
    deadline: float,
) -> socket.socket:
    """On rank 0: start mpirun, and tell the first worker of each host to start its daemon.

    Args:
        mpirun_words: the mpirun command.
        hosts: address of each rank's host.
        own: listening socket for this rank's stand-in.
        agents: listening socket for mpirun's agents.
        followers: connections of the other workers, by rank; those that become ranks are removed.
        deadline: time of time.monotonic().

    Returns:
        the connection to this rank's stand-in.

    Raises:
        RendezvousError: mpirun or another worker failed, or time ran out.
        PeerLost: the connection of another worker broke.
    """
    complaints = tempfile.TemporaryFile()  # noqa: SIM115  (mpirun has it)
    mpirun = subprocess.Popen(
        mpirun_words, stdin=subprocess.DEVNULL, stdout=complaints, stderr=complaints
    )
    atexit.register(_wait_for, mpirun)
    try:
        while time.monotonic() < deadline and mpirun.poll() is None:
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
            if own in ready:
                for sock in followers.values():
                    with suppress(OSError):  # that worker has given up
                        say(sock, None)
                return _adopt(own)
        says = f"it says: {text}" if (text := said(complaints)) else SILENT
        raise RendezvousError(f"mpirun has not connected the workers; {says}")
    except Exception:
        mpirun.kill()
        raise


def _hear_of(rank: int, followers: dict[int, socket.socket]) -> None:
    """On rank 0: hear that another worker has become a rank; remove it from the followers.

    Raises:
        RendezvousError: the worker says that it has failed.
        PeerLost: its connection broke.
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
    """On other ranks: start a daemon if rank 0 asks for it; wait for the stand-in of this rank.

    Args:
        own: listening socket for the stand-in.
        leader: connection to rank 0.
        deadline: time of time.monotonic().

    Returns:
        the connection to the stand-in, and the daemon if there is one.

    Raises:
        RendezvousError: rank 0 or the daemon failed, or time ran out.
    """
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
                    heard = [own]  # all daemons run
                else:
                    daemon = stack.enter_context(Daemon(command))
            if daemon is not None:
                daemon.check()
    raise RendezvousError("mpirun has not connected the workers in time; see what rank 0 says")


def _commanded(leader: socket.socket) -> str | None:
    """Return the command of the daemon that rank 0 wants started; None: all daemons run.

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
    """Make the folder for a `with` block, unless it exists, as it does on rank 0's machine."""
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
    """Listen at a Unix socket; its path is reachable from all namespaces of the machine."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen(64)
        yield sock
    with suppress(FileNotFoundError):
        os.unlink(path)


@contextmanager
def _taken(listener: socket.socket) -> Iterator[tuple[socket.socket, Any]]:
    """Accept the next connection and read its message; close it afterwards."""
    sock, _ = listener.accept()
    with sock, sock.makefile() as lines:
        yield sock, json.loads(lines.readline())


def _adopt(own: socket.socket) -> socket.socket:
    """Take over the environment of this rank's stand-in; return the connection to the stand-in.

    The connection must stay open, since the stand-in ends when it closes.
    """
    with _taken(own) as (sock, made):
        os.environ.update(made)
        return sock.dup()


def _end_with(life: socket.socket, daemon: Daemon | None) -> None:
    """End this process when mpirun ends its stand-in.

    Then another rank has failed, and MPI would wait for it forever.
    """
    with suppress(OSError):
        life.recv(1)
    if daemon is not None:
        daemon.remove()
    os.write(2, b"mpirun has ended the job: another rank has failed\n")
    os._exit(ABORTED)


def _wait_for(mpirun: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        mpirun.wait(PATIENCE)
