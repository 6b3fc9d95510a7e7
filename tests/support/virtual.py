"""Rounds of real sessions and switches in a simulated network, and how long they take there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from iswitch.core.format.wire import NO_RANK, Shape
from iswitch.core.jobs.limits import Limits
from iswitch.sim.grain import SINGLE, Grain
from iswitch.sim.handling import Handling
from iswitch.sim.trace import Trace
from topologies import Topology
from topologies.simulated import Simulation
from worker_lib.protocol.session import Session
from worker_lib.protocol.terms import RoundTerms

NONE = Handling()
PAUSE = 0.01  # virtual seconds before a round


class Worker:
    """A worker that notes when each of its rounds ends."""

    def __init__(self, simulation: Simulation, host: str, job: int, numel: int, many: int) -> None:
        self.network, self.address = simulation.network, simulation.address(host)
        shape = Shape.of(numel)
        # Only jobs whose sums wait for all have slots.
        whole = bool(simulation.limits and simulation.limits.slots)
        terms = RoundTerms(simulation.switch_of(host), job, shape, expected=many, whole=whole)
        self.session = Session(terms, 1000)
        self.session.join(self.network.now)
        self.vector = np.arange(numel, dtype=np.float32) % 7
        self.out = np.zeros_like(self.vector)
        self.total = self.vector * np.float32(many)
        self.ended = 0.0
        simulation.start_worker(host, self.session)
        simulation.node(host).heed = self.heed

    def begin(self) -> None:
        """Begin a round, in the way that `Worker` does."""
        session, now = self.session, self.network.now
        self.out[:: max(1, len(self.out) // 64)] = -1  # in hardly any time
        if not session.begin_express(self.vector, self.out, now):
            session.begin(self.vector, self.out, now)
        self.network.poke(self.address)

    def heed(self) -> None:
        """Note the end of a round, and check its sum."""
        session = self.session
        while session.next_event() is not None:
            pass
        exchange = session.transfer if session.express is None else session.express
        if exchange is not None and exchange.done:
            session.finish()
            assert np.array_equal(self.out, self.total)
            self.ended = self.network.now


def play(  # noqa: PLR0913 (what a network may have)
    topology: Topology,
    numel: int | Sequence[int],
    grain: Grain = SINGLE,
    starts: Sequence[float] = (),
    handlings: tuple[Handling, Handling] = (NONE, NONE),
    rounds: int = 2,
    trace: Trace | None = None,
    spent: list[float] | None = None,
    pause: float = PAUSE,
    limits: Limits | None = None,
) -> list[float]:
    """Play rounds of all hosts of a network, and check their sums.

    Args:
        topology: the network.
        numel: elements of the vectors; one number for each of several jobs, to which the hosts
            belong in turn.
        grain: how much may be one event.
        starts: when each host begins a round, in seconds; empty: all at once.
        handlings: the time that hosts and switches take for packets.
        rounds: how many.
        trace: records the packets.
        spent: gets the processor's seconds of each round.
        pause: seconds before each round; in a tree, switches tell each other of workers meanwhile.
        limits: of all switches.

    Returns:
        the seconds from the first beginning to each end, round by round, host by host.
    """
    hosts, switches = handlings
    simulation = Simulation(
        topology, limits, trace, latency=0.0, grain=grain, hosts=hosts, switches=switches
    )
    network = simulation.network
    sizes = [numel] if isinstance(numel, int) else list(numel)
    names = [host.name for host in topology.hosts]
    jobs = [i % len(sizes) for i in range(len(names))]
    workers = [
        Worker(simulation, name, 1 + job, sizes[job], jobs.count(job))
        for name, job in zip(names, jobs, strict=True)
    ]
    while not all(w.session.member and w.session.rank != NO_RANK for w in workers):
        assert network.step()
        assert network.now < 10
    took = []
    for _ in range(rounds):
        began = time.process_time()
        begins = network.now + pause
        for worker, start in zip(workers, starts or [0.0] * len(workers), strict=True):
            network.at(begins + start, partial(Worker.begin, worker))
        while any(worker.ended < begins for worker in workers):
            assert network.step()
        took += [worker.ended - begins for worker in workers]
        if spent is not None:
            spent.append(time.process_time() - began)
    return took
