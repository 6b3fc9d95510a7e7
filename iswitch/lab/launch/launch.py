"""A command on every host of a world: its environment, its output, how it ended."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from iswitch.outside import UsageError, reason
from iswitch.system.interrupts import Stopped

from .processes import PAUSE, Child, ended
from .programs import Printer, Program, WorkerProcess
from .restarts import Restarts
from .worlds import group_variables

if TYPE_CHECKING:
    from .switches import Switches
    from .world import World

LOOK_PAUSE = 0.1  # seconds between two looks for ended processes
GRACE = 3.0  # seconds from SIGTERM to SIGKILL
END = 1.0  # seconds for a process to end that has left virtual time; one of a shell may stay
DRAIN = 0.5  # seconds for the last lines; a process may never stop writing
MASTER_PORT = 29500  # torchrun's


class Crew:
    """The processes of programs on the hosts of a world.

    When a process of the only program has failed for good, `run` returns. When there are several
    programs, the others go on.

    Args:
        switches: the switches, whose world and fleet the processes share.
        programs: what runs.
        restarts: makes the rule by which a failed process is restarted; it keeps its UDP port.
        say: tells the user of a restart.
        hear: takes each line that a process prints, and whether to stderr; None: lines are printed.
        spares: asked of a process of the only program that has failed for good; returns whether the
            others go on without it.
        ports: UDP ports of a process that is restarted, from that in ISWITCH_BIND on.
    """

    def __init__(
        self,
        switches: Switches,
        programs: Sequence[Program],
        restarts: Callable[[], Restarts] = Restarts,
        say: Callable[[str], None] = lambda _: None,
        hear: Callable[[WorkerProcess, str, bool], None] | None = None,
        spares: Callable[[WorkerProcess], bool] = lambda _: False,
        ports: int = 1,
    ) -> None:
        self._spares = spares
        self.ports = ports
        self.fleet = switches.fleet
        self.world = switches.world
        self.switches = switches
        self.programs = programs
        self.make_restarts = restarts
        self.say = say
        self.workers: list[WorkerProcess] = []
        self.failures: dict[str, WorkerProcess] = {}  # by program: the first one for good
        self._failed_at = 0.0  # when the only program was seen to have failed
        self._limits: dict[str, float] = {}  # by program: when its processes are killed
        self._ports: set[int | None] = set()  # at which processes of programs meet
        self._ending = False
        self._by_child: dict[Child, WorkerProcess] = {}
        self.hosts = [host for program in programs for host in program.hosts]
        switches.processes_to_come = len(self.hosts)
        switches.ranks = self.hosts if len(programs) == 1 else []
        self._take = hear or Printer(programs).print
        self._in_order = switches.in_order
        self._held: list[tuple[WorkerProcess, str, bool]] = []  # lines that wait for their turn

    @property
    def failed(self) -> WorkerProcess | None:
        """Return the first process that has failed for good; None: there is none."""
        return next(iter(self.failures.values()), None)

    def start(self) -> None:
        """Start all programs.

        Raises:
            UsageError: there is no such command.
        """
        binds: list[dict[str, str]] = [{} for _ in self.hosts]
        if self.make_restarts().most:  # a worker keeps its UDP address when it is restarted
            places = [(self.world, host) for host in self.hosts]
            found = self.world.reserve(self.hosts) or free_addresses(
                places, socket.SOCK_DGRAM, self.ports
            )
            binds = [{"ISWITCH_BIND": "{}:{}".format(*address)} for address in found]
        for program in self.programs:
            shared = self._shared_environment(program)
            for rank, host in enumerate(program.hosts):
                local, number = rank % program.per_host, len(self.workers)
                own = {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(local),
                    "ISWITCH_SWITCH": self.switches.at(host),
                    **defaults(self.world.environment(host)),
                    **self.world.necessary(host, number),
                    **binds[number],
                }
                name = program.called(rank)
                child = self._launch(program, name, host, shared | own)
                worker = WorkerProcess(
                    program, number, host, rank, local, name, shared | own, child,
                    self.make_restarts(),
                )  # fmt: skip
                worker.restarts.began(time.monotonic())
                self.workers.append(worker)
                self._by_child[child] = worker

    def _launch(
        self, program: Program, name: str, host: str, environment: Mapping[str, str]
    ) -> Child:
        place, command = self.world.place(host), program.command
        try:
            return self.fleet.launch(name, command, environment, place, heard=True)
        except OSError as error:
            raise UsageError(f"cannot run {command[0]}: {reason(error)}") from None

    def run(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Print the processes' lines until all have ended, or one or a switch has failed for good.

        Args:
            enough: called now and then; returns whether to end now.

        Raises:
            SwitchFailed: a switch has died too often.
        """
        while any(worker.status is None for worker in self.workers):
            if enough() or self._has_failed():
                break
            self.switches.shown()
            self._hear(LOOK_PAUSE)
            self._look()
            self._tend()
            self.switches.tend()
        self._drain()

    def _has_failed(self) -> bool:
        """Return whether the only program has, and the lines of that moment are shown."""
        if self.failed is None or len(self.programs) > 1:
            return False
        self._failed_at = self._failed_at or time.monotonic()
        is_late = time.monotonic() > self._failed_at + GRACE  # others compute for long
        if not self._in_order:
            return True
        name = self.failed.program.name
        self.failures[name] = next(worker for worker in self.workers if worker.status)
        return self.switches.stands or is_late

    def end(self, signum: int = signal.SIGTERM) -> None:
        """End the processes that run, and print their last lines."""
        self._ending = True
        for worker in self.workers:
            worker.child.signal(signum)
        if signum != signal.SIGKILL:
            self.switches.shown(for_good=True)
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
                self._keep(worker, line, is_error)
            elif switches and self.switches.has(child):
                self.switches.hear(child, line)
        self._show(*self.switches.printed())

    def _keep(self, worker: WorkerProcess, line: str, is_error: bool) -> None:
        if self._in_order:
            self._held.append((worker, line, is_error))
        else:
            self._take(worker, line, is_error)

    def _show(self, numbers: Collection[int], ends: Collection[int] = ()) -> None:
        """Show the lines of processes whose turn it is, in their order, once some have ended."""
        for number in numbers:
            worker = self.workers[number]
            limit = time.monotonic() + END
            while number in ends and worker.child.status() is None and time.monotonic() < limit:
                time.sleep(PAUSE)
            for _, line, is_error in self.fleet.drain(worker.child):
                if line is not None:
                    self._keep(worker, line, is_error)
        due = [one for one in self._held if one[0].number in numbers]
        self._held = [one for one in self._held if one[0].number not in numbers]
        for one in sorted(due, key=lambda one: (one[0].number, one[2])):
            self._take(*one)

    def _drain(self) -> None:
        """Print the lines that can be read at once, such as the last words of a failed process."""
        limit = time.monotonic() + DRAIN
        while self.fleet.pending() and time.monotonic() < limit:
            self._hear(0.0, switches=False)
        self._show([worker.number for worker in self.workers])

    def _look(self) -> None:
        for worker in self.workers:
            ending = self._ending or worker.program.name in self.failures
            waits = worker.restarts.due is not None and not ending
            if worker.status is not None or waits or (status := worker.child.status()) is None:
                continue
            if status and not ending and worker.restarts.plan(time.monotonic()):
                count = f"{worker.restarts.row} of {worker.restarts.most}"
                self.say(f"{worker.called} {ended(status)}; starting it again ({count})")
                continue
            worker.status = 128 - status if status < 0 else status
            self.switches.ended(worker.number)
            if status and (ending or not self._spares(worker)):
                self.failures.setdefault(worker.program.name, worker)
            if status and not ending and len(self.programs) > 1:
                self._end_others(worker)

    def _end_others(self, failed: WorkerProcess) -> None:
        """Have the other processes of a program end of which one has failed for good.

        `_tend` kills those that heed no SIGTERM.
        """
        own = [worker for worker in self.workers if worker.program is failed.program]
        others = [worker for worker in own if worker.status is None]
        more = f"; ending the others of {failed.program.name}" if others else ""
        self.say(f"{failed.called} {how(failed)}{more}")
        for worker in others:
            worker.child.signal(signal.SIGTERM)
        self._limits[failed.program.name] = time.monotonic() + GRACE

    def _tend(self) -> None:
        """Restart the processes that are due, after killing the processes that they had started."""
        now = time.monotonic()
        for name in [name for name, limit in self._limits.items() if limit <= now]:
            del self._limits[name]
            for worker in self.workers:
                if worker.program.name == name:
                    worker.child.signal(signal.SIGKILL)
        for worker in self.workers:
            if worker.program.name not in self.failures and worker.restarts.is_due(now):
                worker.child.signal(signal.SIGKILL)
                worker.child = self._launch(
                    worker.program, worker.name, worker.host, worker.environment
                )
                worker.restarts.began(time.monotonic())
                self._by_child[worker.child] = worker

    def _shared_environment(self, program: Program) -> dict[str, str]:
        """Make the environment that torchrun's scripts expect."""
        master = program.hosts[0]
        with self.world.place(master):
            found = free_port(self.world.meeting(master), self._ports)
        self._ports.add(found)
        chosen = os.environ.get("MASTER_PORT") if len(self.programs) == 1 else None
        port = chosen or found or MASTER_PORT
        switches = ",".join(self.switches.at(host) for host in program.hosts)
        return {
            **group_variables(self.world, program.hosts, program.job, port, program.per_host),
            **({"ISWITCH_SWITCHES": switches} if len(self.world.topology.tree) > 1 else {}),
            **defaults({"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **program.variables}),
        }

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Report where each program ran, and its status, by name.

        That is 0, or that of its first failure; None: not all of it has begun and ended.
        """
        found: dict[str, dict[str, Any]] = {}
        for one in self.programs:
            failed = self.failures.get(one.name)
            ends = [worker.status for worker in self.workers if worker.program is one]
            whole = len(ends) == len(one.hosts) and None not in ends
            status = failed.status if failed is not None else 0 if whole else None
            found[one.name] = {"job": one.job, "hosts": list(one.hosts), "status": status}
        return found

    def report(self) -> list[dict[str, Any]]:
        """Report how each process has ended."""
        keys = ("host", "rank", "local_rank", "status")
        return [
            {key: getattr(w, key) for key in keys}
            | {"restarts": w.restarts.count, "job": w.program.job}
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
    places: Sequence[tuple[World, str]], kind: socket.SocketKind, ports: int = 1
) -> list[tuple[str, int]]:
    """Choose an address for each place, with a free port that the kernel gives out.

    Args:
        places: a world and a host of it for each.
        kind: kind of the sockets.
        ports: how many ports from that one on are free.
    """

    def bound(host: str, port: int) -> int:
        sock = held.enter_context(socket.socket(socket.AF_INET, kind))
        sock.bind((host, port))
        return int(sock.getsockname()[1])

    def first(host: str) -> int:
        while True:
            port = bound(host, 0)
            with suppress(OSError, OverflowError):
                for more in range(1, ports):
                    bound(host, port + more)
                return port

    found = []
    with ExitStack() as held:  # all at once, so that no two get one address
        for world, host in places:
            with world.place(host):
                found.append((world.address(host), first(world.address(host))))
    return found


def free_port(address: str, taken: Container[int | None] = ()) -> int | None:
    """Choose a random free TCP port for programs; None: there is no address, or none is free.

    It is below the ports that the kernel chooses from, so that no other process gets it before a
    program listens there. It is none of those `taken`, which are given out and not yet in use.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.SystemRandom().sample(range(10_000, max(first, 10_100)), 100):
        with socket.socket() as sock, suppress(OSError):
            sock.bind((address, port))
            if port not in taken:
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
