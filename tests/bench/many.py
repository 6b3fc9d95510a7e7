"""512 workers below one root, simulated: how long they take to join and to sum up 40 kB.

Run `python -m tests.bench.many [TOPOLOGY]`; the default has three levels of switches. Every packet
of every worker goes through the real sessions and switches, in one process, in virtual time. Sums
are checked element by element. The seconds are the machine's, not those of virtual time.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import NO_RANK, RANKS, Shape
from iswitch.core.jobs.limits import Limits
from topologies import Topology
from topologies.simulated import Simulation
from worker_lib.protocol.session import Session
from worker_lib.protocol.terms import RoundTerms

FORM = "tree:4x8x16"
SHAPE = Shape.of(10_000)  # 40 kB
LEASE = 5.0  # virtual seconds until somebody silent is no member any more
STEPS = ["joined", "one round", "a worker lost, one round", "a rack lost, one round"]


class Node:
    """A worker of many, which plays one round after the other."""

    def __init__(self, simulation: Simulation, host: str, number: int, many: int) -> None:
        self.network, self.address = simulation.network, simulation.address(host)
        self.switch = simulation.switch_of(host)
        rank = number if number % 2 else NO_RANK  # every other one asks for its rank
        terms = RoundTerms(self.switch, 1, SHAPE, expected=many, rank=rank)
        self.session = Session(terms, 1000 + number)
        self.vector = np.arange(SHAPE.numel, dtype=np.float32) % 7 + number
        self.out = np.zeros_like(self.vector)
        self.rounds = self.goal = 0
        self.session.join(self.network.now)
        simulation.start_worker(host, self.session)
        simulation.node(host).heed = self.heed

    @property
    def has_rank(self) -> bool:
        """Return whether it is a member and knows its rank."""
        return self.session.member and self.session.rank < RANKS

    def heed(self) -> None:
        """Finish a round that is done, and begin the next."""
        session = self.session
        while session.next_event() is not None:
            pass
        if session.transfer is not None and session.transfer.done:
            session.finish()
            self.rounds += 1
        if session.transfer is None and self.rounds < self.goal and self.has_rank:
            session.begin(self.vector, self.out, self.network.now)

    def aim(self) -> None:
        """Play one more round."""
        self.goal += 1
        self.heed()
        self.network.poke(self.address)

    def ask(self) -> None:
        """Join again as long as no rank is known, as `Worker` does."""
        if self.session.rank == NO_RANK:
            self.session.join(self.network.now)
            self.network.poke(self.address)


class Many:
    """All workers of a topology, in one simulated network."""

    def __init__(self, form: str) -> None:
        topology = Topology.parse(form)
        simulation = Simulation(topology, Limits(lease=LEASE))
        self.network = simulation.network
        hosts = [host.name for host in topology.hosts]
        self.nodes = [Node(simulation, host, i, len(hosts)) for i, host in enumerate(hosts)]

    def run(self, limit: float) -> None:
        """Let time pass until all have their ranks and have played their rounds."""
        end, look = self.network.now + limit, 0.0
        while not all(node.rounds == node.goal and node.has_rank for node in self.nodes):
            if self.network.now >= look:
                look = self.network.now + 0.1
                for node in self.nodes:
                    node.ask()
            assert self.network.step()
            assert self.network.now < end

    def check_ranks(self) -> None:
        """Check that ranks are dense, and those that were asked for."""
        assert sorted(node.session.rank for node in self.nodes) == list(range(len(self.nodes)))
        for node in self.nodes[1::2]:
            assert self.nodes[node.session.rank] is node

    def round(self) -> None:
        """Play a round of all that are left, and check its sum."""
        for node in self.nodes:
            node.aim()
        self.run(20.0)
        total = np.sum([node.vector for node in self.nodes], 0)
        assert all((node.out == total).all() for node in self.nodes)

    def lose(self, gone: list[Node], *switches: Address) -> None:
        """Crash some workers and their switches."""
        for address in (*switches, *(node.address for node in gone)):
            self.network.crash(address)
        self.nodes = [node for node in self.nodes if node not in gone]


def play(form: str = FORM) -> dict[str, float]:
    """Join, and play a round of all, one without a worker, and one without a rack.

    Returns:
        the machine's seconds of each of STEPS.
    """
    found = {}
    began = time.monotonic()

    def took(step: str) -> None:
        nonlocal began
        now = time.monotonic()
        found[step], began = now - began, now

    many = Many(form)
    many.run(10.0)
    many.check_ranks()
    took("joined")
    many.round()
    took("one round")
    many.lose([many.nodes[-1]])
    many.round()
    took("a worker lost, one round")
    rack = many.nodes[0].switch
    many.lose([node for node in many.nodes if node.switch == rack], rack)
    many.round()
    took("a rack lost, one round")
    return found


if __name__ == "__main__":
    for step, seconds in play(*sys.argv[1:]).items():
        print(f"{step}: {seconds:.1f} s")
