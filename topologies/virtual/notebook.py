"""Simulates Python functions as the workers of a network, in one call: for notebooks and tests."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Burst, Outgoing
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.paper import Counting
from iswitch.sim.grain import AUTO, Grain, grain_of
from iswitch.sim.handling import Handling
from iswitch.sim.published import host_handling, switch_handling
from iswitch.tables import Table
from iswitch.virtual.computing import Computing, ComputingError, Plan, read_plan
from iswitch.virtual.process import PATIENCE, Process, current
from iswitch.virtual.temporary import patched
from iswitch.virtual.world import MEETING, Idle, Place
from topologies.description import Topology
from topologies.simulated import Simulation

from .hub import Hub
from .member import Member

R = TypeVar("R")
JOB = 1
MEMORY = Limits().memory
FAREWELL = 2.0  # seconds of virtual time for the library's threads to end
LOOK = 0.2  # seconds of real time after which a Ctrl-C shows that came just before a wait


class Seat(NamedTuple):
    """Tells a worker function its place.

    Attributes:
        rank: number of the worker.
        num_workers: the number of workers.
        switch: (host, port) of its switch.
        host: name of its host.
    """

    rank: int
    num_workers: int
    switch: tuple[str, int]
    host: str

    @property
    def arguments(self) -> dict[str, Any]:
        """Return arguments by name for a `Worker`, which needs `numel` besides."""
        return {
            "switch": self.switch,
            "job": JOB,
            "num_workers": self.num_workers,
            "rank": self.rank,
        }


class Results(list[R], Generic[R]):
    """The values that the worker functions have returned, by rank.

    Attributes:
        seconds: virtual time at which the last one returned.
        counters: counters of each switch, by name.
    """

    seconds: float
    counters: dict[str, Counters]

    def table(self) -> Table:
        """Return the results and the virtual time, for notebooks and terminals."""
        caption = f"{self.seconds:.6g} s of virtual time"
        return Table(("rank", "returned"), [*enumerate(self)], caption)

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def __rich__(self) -> Table:
        return self.table()


def simulate(  # noqa: PLR0913 (options that users set by name)
    topology: Topology | str,
    worker: Callable[[Seat], R],
    *,
    compute: str = "zero",
    slow: Mapping[int, float] | None = None,
    seed: int = 1,
    grain: Grain | int | str = AUTO,
    counting: str = "exact",
    hosts: Handling | str = Handling(),  # noqa: B008  (immutable)
    switches: Handling | str = Handling(),  # noqa: B008
    slots: int = 0,
    policy: str = "static",
    memory: int = MEMORY,
) -> Results[R]:
    """Run a function on every host of a simulated network; return the results by rank.

    The functions run in threads of this process, one at a time, and in virtual time.

    Args:
        topology: network, or its short form, such as "star:4,rate=10Gbit".
        worker: called with its `Seat` on each host.
        compute: what computing takes: "zero", "measured", "fixed:3ms", "sample:20", "file:TIMES".
        slow: factor by which computing takes longer, by rank.
        seed: seed of random computing times.
        grain: packets that may be one event of the network: 1 (exact), "auto", or a `Grain`.
        counting: "exact", or "paper": count packets, as the paper does, whoever sent them.
        hosts, switches: the time that each takes for packets, or its name, such as "kernel-udp" and
            "fpga"; `iswitch.sim.published` has them.
        slots: as `iswitch switch --slots`; 0: each segment of a job has one.
        policy: as `iswitch switch --policy`.
        memory: bytes that members may reserve at the root; below it they have 1 GiB.

    Raises:
        ComputingError, QuantityError: an argument says no such time, rank or grain.
        Stuck: no worker can continue; the message names them and the virtual time.
        Exception: that of the worker that failed first; a note says which one, and when.
    """
    network = Topology.parse(topology) if isinstance(topology, str) else topology
    plan = read_plan(compute)
    ranks = range(len(network.hosts))
    for rank, factor in (slow or {}).items():
        if rank not in ranks or not factor > 0:
            raise ComputingError(
                f"slow={{{rank}: {factor}}}: write {{RANK: FACTOR}}, with a RANK of 0..{ranks[-1]} "
                "and a FACTOR above 0"
            )
    factors = {str(rank): factor for rank, factor in (slow or {}).items()}
    plan = Plan(**{**vars(plan), "slow": factors, "seed": seed})
    simulation = Simulation(
        network,
        Limits(memory, slots=slots, policy=policy),
        latency=0.0,
        grain=grain if isinstance(grain, Grain) else grain_of(str(grain)),
        hosts=host_handling(hosts) if isinstance(hosts, str) else hosts,
        switches=switch_handling(switches) if isinstance(switches, str) else switches,
        counting=Counting(counting),
        below=Limits(slots=slots),
    )
    return Floor[R](simulation, plan).run(worker)


class Floor(Generic[R]):
    """The workers of a run, of which one has the floor.

    Args:
        simulation: the network.
        plan: what computing takes.
        workers: how many of the hosts, from the first on, are workers; None: all. The worker
            function runs on the others, too, in ranks beyond.
    """

    def __init__(
        self,
        simulation: Simulation,
        plan: Plan,
        workers: int | None = None,
    ) -> None:
        self._simulation = simulation
        self._workers = len(simulation.topology.hosts) if workers is None else workers
        self._hub = Hub(self._simulation)
        self._plan = plan
        self._gates: dict[Member, threading.Lock] = {}  # held while a worker must not run
        self._threads: dict[Member, threading.Thread] = {}
        self._due: deque[Member] = deque()
        self._left = 0  # workers that have not returned
        self._over = threading.Event()
        self._is_over = False  # workers that have not returned have to end
        self._stuck: BaseException | None = None

    def run(self, worker: Callable[[Seat], R]) -> Results[R]:
        """Run the workers to their ends.

        Afterwards Python's modules are as before, and no thread is left that heeds a SystemExit.

        Raises:
            RuntimeError: a worker of another run calls this.
        """
        if current() is not None:
            raise RuntimeError(
                "a simulation runs in real time: call simulate() outside of worker functions, and "
                "in programs that are not under --world sim"
            )
        topology = self._simulation.topology
        count = self._left = len(topology.hosts)
        results: Results[Any] = Results([None] * count)
        errors: list[BaseException] = []
        with patched():
            try:
                for rank, host in enumerate(topology.hosts):
                    self._seat(rank, host.name, worker, results, errors)
                self._pass_on(None)
                while not self._over.wait(LOOK):
                    pass
            finally:
                self._end()
        if errors:
            if self._stuck is not None:
                errors[0].add_note(f"then came a {self._stuck}")
            raise errors[0]
        if self._stuck is not None:
            raise self._stuck
        results.seconds = self._hub.now
        names = [switch.name for switch in topology.tree]
        found = {name: self._simulation.switch(name) for name in names}
        results.counters = {name: s.counters for name, s in found.items() if s is not None}
        return results

    def _seat(
        self,
        rank: int,
        host: str,
        worker: Callable[[Seat], Any],
        results: list[Any],
        errors: list[BaseException],
    ) -> None:
        """Start a worker's thread, which waits for the floor."""
        member = self._hub.join(rank, host)
        member.idle = Idle(0.0, 0.0, {})
        self._gates[member] = threading.Lock()
        self._gates[member].acquire()
        at = self._simulation.switch_of(host)
        thread = threading.Thread(
            target=self._work,
            args=(
                member,
                worker,
                Seat(rank, self._workers, (at.host, at.port), host),
                results,
                errors,
            ),
            daemon=True,
            name=f"{host} (simulated)",
        )
        thread.start()
        self._threads[member] = thread

    def _end(self) -> None:
        """End the workers that have not returned, one after the other."""
        self._is_over = True
        limit = time.monotonic() + PATIENCE
        for member, thread in self._threads.items():
            self._let(member)
            thread.join(max(0.0, limit - time.monotonic()))

    def _let(self, member: Member) -> None:
        """Let a worker run."""
        with suppress(RuntimeError):  # after Ctrl-C two threads may want this at once
            self._gates[member].release()

    def _work(
        self,
        member: Member,
        worker: Callable[[Seat], Any],
        seat: Seat,
        results: list[Any],
        errors: list[BaseException],
    ) -> None:
        self._gates[member].acquire()
        if self._is_over:
            return
        member.idle = None
        process = Process(
            _Desk(self, member),
            Computing(self._plan, seat.rank),
            seat.rank,
            self._hub.home(member.host),
            environment=self._environment(seat),
        )
        process.adopt()
        try:
            results[seat.rank] = worker(seat)
        except BaseException as error:
            if not self._is_over:
                error.add_note(f"rank {seat.rank} failed at {self._hub.now:.6f} s of virtual time")
                errors.append(error)
        try:
            process.retire(FAREWELL)
        finally:
            self._hub.leave(member)
            self._left -= 1
            self._pass_on(None)

    def _environment(self, seat: Seat) -> dict[str, str]:
        """Return the variables of a worker, as `iswitch run` sets them."""
        topology = self._simulation.topology
        hosts = [host.name for host in topology.hosts[: self._workers]]
        return {
            **os.environ,
            "RANK": str(seat.rank),
            "WORLD_SIZE": str(seat.num_workers),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "ISWITCH_SWITCH": "{}:{}".format(*seat.switch),
            "ISWITCH_JOB": str(JOB),
            "ISWITCH_NETWORK": topology.network_of(hosts),
            "MASTER_ADDR": str(topology.address(hosts[0])),
            "MASTER_PORT": str(MEETING),
        }

    def _pass_on(self, member: Member | None) -> bool:
        """Give the floor to the next worker; return whether that is `member`."""
        if self._is_over:
            return False
        if not self._left:
            self._over.set()
            return False
        try:
            while not self._due:
                self._due.extend(self._hub.advance())
        except BaseException as error:
            self._stuck = error
            self._over.set()
            return False
        following = self._due.popleft()
        if following is member:
            return True
        self._let(following)
        return False

    def idle(self, member: Member, idle: Idle) -> tuple[float, list[tuple[int, Burst]]]:
        """Let others run until a worker wakes; return the time, and its packets.

        Raises:
            SystemExit: the run is over.
        """
        member.idle = idle
        if not self._pass_on(member):
            self._gates[member].acquire()
        if self._is_over:
            raise SystemExit
        return self._hub.now, self._hub.wake(member, sys.maxsize)

    @property
    def hub(self) -> Hub:
        """Return the clock."""
        return self._hub


class _Desk:
    """The `World` of one worker."""

    keeps = True

    def __init__(self, floor: Floor[Any], member: Member) -> None:
        self._floor = floor
        self._member = member

    def open(self, host: str, port: int, peer: Place) -> tuple[int, Place]:
        """Open a port for packets to and from a peer; return its number and address."""
        return self._floor.hub.open(self._member, host, port, peer)

    def listen(self, host: str, port: int) -> tuple[int, Place]:
        """Open a port at which connections come; return its number and address."""
        return self._floor.hub.listen(self._member, host, port)

    def connect(self, host: str, port: int, peer: Place) -> tuple[int, Place]:
        """Prepare a connection; return its number and address."""
        return self._floor.hub.connect(self._member, host, port, peer)

    def close(self, port: int) -> None:
        """Close a port, or an end of a connection."""
        self._floor.hub.close(self._member, port)

    def put(self, port: int, out: Outgoing) -> None:
        """Send packets, which are copied, at the current time; or do something to a stream."""
        ports = self._member.ports
        peers = (ports[port].peer,) if port in ports else ()
        self._member.sends.append((port, Outgoing(peers, out.tos, out.rows.copy(), out.tail)))

    def idle(self, idle: Idle) -> tuple[float, list[tuple[int, Burst]]]:
        """Wait in virtual time; return the time, and the packets that have come, by port."""
        return self._floor.idle(self._member, idle)
