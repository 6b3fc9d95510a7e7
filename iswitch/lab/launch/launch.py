"""A command on every host of a world: its environment, its output, how it ended."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from iswitch.outside import UsageError, reason
from iswitch.system.interrupts import Stopped

from .processes import Child, ended
from .restarts import Restarts
from .worlds import group_variables

if TYPE_CHECKING:
    from .switches import Switches
    from .world import World

LOOK_PAUSE = 0.1  # seconds between two looks for ended processes
GRACE = 3.0  # seconds from SIGTERM to SIGKILL
DRAIN = 0.5  # seconds for the last lines; a process may never stop writing
MASTER_PORT = 29500  # torchrun's
COLOURS = (36, 33, 32, 35, 34, 31)  # of terminals (ECMA-48): cyan first, red last


@dataclass
class WorkerProcess:
    """One process of the command."""

    host: str
    rank: int
    local_rank: int
    name: str  # what its lines begin with
    environment: Mapping[str, str]
    child: Child
    restarts: Restarts = field(default_factory=Restarts)
    status: int | None = None  # as a shell has it: 128 + n for a signal

    @property
    def called(self) -> str:
        """Return its name, rank and process, for messages."""
        return f"{self.name} (rank {self.rank}, process {self.child.process.pid})"


class Printer:
    """Prints lines after the name of the process that wrote them, in colour on a terminal."""

    def __init__(self, names: Sequence[str]) -> None:
        width = max(map(len, names))
        plain = {name: f"{name:{width}} | " for name in names}
        coloured = {
            name: f"\x1b[{COLOURS[i % len(COLOURS)]}m{text}\x1b[0m"
            for i, (name, text) in enumerate(plain.items())
        }
        self._prefixes = {
            file: coloured if file.isatty() and not os.environ.get("NO_COLOR") else plain
            for file in (sys.stdout, sys.stderr)
        }

    def print(self, name: str, line: str, is_error: bool) -> None:
        """Print a line, to stderr if it came from stderr."""
        file = sys.stderr if is_error else sys.stdout
        file.write(f"{self._prefixes[file][name]}{line}\n")
        file.flush()


class Crew:
    """The processes of a command: a number of them on each host of a world.

    Args:
        switches: the switches, whose world and fleet the processes share.
        per_host: processes on each host.
        restarts: makes the rule by which a failed process is restarted; it keeps its UDP port.
        say: tells the user of a restart.
        hear: takes each line that a process prints, and whether to stderr; None: lines are printed.
    """

    def __init__(
        self,
        switches: Switches,
        per_host: int,
        restarts: Callable[[], Restarts] = Restarts,
        say: Callable[[str], None] = lambda _: None,
        hear: Callable[[WorkerProcess, str, bool], None] | None = None,
    ) -> None:
        self.fleet = switches.fleet
        self.world = switches.world
        self.switches = switches
        self.per_host = per_host
        self.make_restarts = restarts
        self.say = say
        self.workers: list[WorkerProcess] = []
        self.failed: WorkerProcess | None = None  # the first one for good
        self._ending = False
        self._by_child: dict[Child, WorkerProcess] = {}
        nodes = [host.name for host in self.world.topology.hosts]
        self.hosts = [host for host in nodes for _ in range(per_host)]  # of each rank
        switches.ranks = self.hosts
        printer = Printer([self._name(host, i) for host in nodes for i in range(per_host)])
        self._take = hear or (lambda worker, *line: printer.print(worker.name, *line))

    def start(self, command: Sequence[str], job: int) -> None:
        """Start the command everywhere.

        Raises:
            UsageError: there is no such command.
        """
        self._command = command
        shared = self._shared_environment(job)
        binds: list[dict[str, str]] = [{} for _ in self.hosts]
        if self.make_restarts().most:  # a worker keeps its UDP address when it is restarted
            places = [(self.world, host) for host in self.hosts]
            found = self.world.reserve(self.hosts) or free_addresses(places, socket.SOCK_DGRAM)
            binds = [{"ISWITCH_BIND": "{}:{}".format(*address)} for address in found]
        for rank, (host, bind) in enumerate(zip(self.hosts, binds, strict=True)):
            local = rank % self.per_host
            own = {
                "RANK": str(rank),
                "LOCAL_RANK": str(local),
                "ISWITCH_SWITCH": self.switches.at(host),
                **defaults(self.world.environment(host)),
                **self.world.necessary(host),
                **bind,
            }
            name = self._name(host, local)
            child = self._launch(name, host, shared | own)
            worker = WorkerProcess(
                host, rank, local, name, shared | own, child, self.make_restarts()
            )
            worker.restarts.began(time.monotonic())
            self.workers.append(worker)
            self._by_child[child] = worker

    def _launch(self, name: str, host: str, environment: Mapping[str, str]) -> Child:
        place = self.world.place(host)
        try:
            return self.fleet.launch(name, self._command, environment, place, heard=True)
        except OSError as error:
            raise UsageError(f"cannot run {self._command[0]}: {reason(error)}") from None

    def run(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Print the processes' lines until all have ended, or one or a switch has failed for good.

        Args:
            enough: called now and then; returns whether to end now.

        Raises:
            SwitchFailed: a switch has died too often.
        """
        while any(worker.status is None for worker in self.workers):
            if self.failed or enough():
                break
            self._hear(LOOK_PAUSE)
            self._look()
            self._tend()
            self.switches.tend()
        self._drain()

    def end(self, signum: int = signal.SIGTERM) -> None:
        """End the processes that run, and print their last lines."""
        self._ending = True
        for worker in self.workers:
            worker.child.signal(signum)
        for _ in range(round(GRACE / LOOK_PAUSE)):
            self._look()
            if all(worker.status is not None for worker in self.workers):
                break
            self._hear(LOOK_PAUSE, switches=False)
        self.fleet.end([worker.child for worker in self.workers], patience=0.0)
        self._look()
        self._drain()

    def _hear(self, seconds: float, switches: bool = True) -> None:
        for child, line, is_error in self.fleet.hear(seconds):
            worker = self._by_child.get(child)
            if worker is not None and line is not None:
                self._take(worker, line, is_error)
            elif switches and self.switches.has(child):
                self.switches.hear(child, line)

    def _drain(self) -> None:
        """Print the lines that can be read at once, such as the last words of a failed process."""
        limit = time.monotonic() + DRAIN
        while self.fleet.pending() and time.monotonic() < limit:
            self._hear(0.0, switches=False)

    def _look(self) -> None:
        for worker in self.workers:
            waits = worker.restarts.due is not None and not self._ending
            if worker.status is not None or waits or (status := worker.child.status()) is None:
                continue
            if status and not self._ending and worker.restarts.plan(time.monotonic()):
                count = f"{worker.restarts.row} of {worker.restarts.most}"
                self.say(f"{worker.called} {ended(status)}; starting it again ({count})")
                continue
            worker.status = 128 - status if status < 0 else status
            self.switches.ended(worker.rank)
            if status and self.failed is None:
                self.failed = worker

    def _tend(self) -> None:
        """Restart the processes that are due, after killing the processes that they had started."""
        for worker in self.workers:
            if worker.restarts.is_due(time.monotonic()):
                worker.child.signal(signal.SIGKILL)
                worker.child = self._launch(worker.name, worker.host, worker.environment)
                worker.restarts.began(time.monotonic())
                self._by_child[worker.child] = worker

    def _name(self, host: str, local_rank: int) -> str:
        return host if self.per_host == 1 else f"{host}.{local_rank}"

    def _shared_environment(self, job: int) -> dict[str, str]:
        """Make the environment that torchrun's scripts expect."""
        master = self.hosts[0]
        with self.world.place(master):
            found = free_port(self.world.address(master))
        port = os.environ.get("MASTER_PORT") or found or MASTER_PORT
        return {
            **group_variables(self.world, self.hosts, job, port, self.per_host),
            **defaults({"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}),
        }

    def report(self) -> list[dict[str, Any]]:
        """Report how each process has ended."""
        keys = ("host", "rank", "local_rank", "status")
        return [
            {key: getattr(w, key) for key in keys} | {"restarts": w.restarts.count}
            for w in self.workers
        ]


def how(worker: WorkerProcess) -> str:
    """Say how a worker has ended."""
    status = worker.child.status()
    assert status is not None
    return ended(status)


def defaults(variables: Mapping[str, str]) -> dict[str, str]:
    """Keep the variables that the user has not set."""
    return {name: value for name, value in variables.items() if name not in os.environ}


def free_addresses(
    places: Sequence[tuple[World, str]], kind: socket.SocketKind
) -> list[tuple[str, int]]:
    """Choose an address for each place, with a free port that the kernel gives out.

    Args:
        places: a world and a host of it for each.
        kind: kind of the sockets.
    """
    found = []
    with ExitStack() as held:  # all at once, so that no two get one address
        for world, host in places:
            with world.place(host):
                sock = held.enter_context(socket.socket(socket.AF_INET, kind))
                sock.bind((world.address(host), 0))
            found.append(sock.getsockname())
    return found


def free_port(address: str) -> int | None:
    """Choose a random free TCP port for programs; None: there is no address, or none is free.

    It is below the ports that the kernel chooses from, so that no other process gets it before a
    program listens there.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.SystemRandom().sample(range(10_000, max(first, 10_100)), 100):
        with socket.socket() as sock, suppress(OSError):
            sock.bind((address, port))
            return port
    return None


@contextmanager
def broken_pipe_is_an_end() -> Iterator[None]:
    """End this process on a broken pipe in the `with` block, as SIGPIPE would."""
    try:
        yield
    except BrokenPipeError:
        null: IO[str] = open(os.devnull, "w")  # noqa: SIM115  (what is left is flushed into it)
        os.dup2(null.fileno(), sys.stdout.fileno())
        raise Stopped(signal.SIGPIPE) from None
