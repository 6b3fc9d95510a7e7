"""Ranks in random trees whose workers and switches die and come back, and in one of 512 workers."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import (
    NO_RANK,
    RANKS,
    Shape,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.core.rank_histories import History
from tests.support.joined import SHAPE
from tests.support.world import SWITCH, World
from topologies import Topology
from topologies.simulated import Simulation
from worker_lib.protocol.session import Session
from worker_lib.protocol.terms import RoundTerms

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "60"))  # `make model` takes more


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_histories(seed: int) -> None:
    History(seed).play()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_switch_restarts_again_and_again(seed: int) -> None:
    """Whoever comes elsewhere has no rank of those below it who are not back yet."""
    history = History(seed)
    draw = history.draw
    history.plan.restarts = True
    for i in range(history.n):
        history.start(history.wants[i], history.leaves[i % len(history.leaves)])
    history.run(2.0)
    at = draw.choice(list(history.above) or [SWITCH])
    for _ in range(draw.randint(2, 3)):
        history.restart(at)
        history.run(draw.choice([0.3, 0.6]))
    history.expects = False  # so that nobody waits for the others
    for process in [p for p in history.running.values() if not history.is_confirmed(p)][:3]:
        history.start(process.wants, draw.choice(list(history.world.switches)))
        history.run(0.3)
    history.run(3.0)


class Node:
    """A worker of many, which does one round after the other."""

    def __init__(self, simulation: Simulation, host: str, number: int, many: int) -> None:
        self.network, self.address = simulation.network, simulation.address(host)
        self.switch = simulation.switch_of(host)
        rank = number if number % 2 else NO_RANK
        terms = RoundTerms(self.switch, 1, MANY, expected=many, rank=rank)
        self.session = Session(terms, 1000 + number)
        self.vector = np.arange(MANY.numel, dtype=np.float32) % 7 + number
        self.out = np.zeros_like(self.vector)
        self.rounds, self.goal = 0, 1
        self.session.join(self.network.now)
        simulation.start_worker(host, self.session)
        simulation.node(host).heed = self.heed

    def heed(self) -> None:
        session = self.session
        while session.next_event() is not None:
            pass
        if session.transfer is not None and session.transfer.done:
            session.finish()
            self.rounds += 1
        idle = session.transfer is None and self.rounds < self.goal
        if idle and session.member and session.rank < RANKS:
            session.begin(self.vector, self.out, self.network.now)

    def ask(self) -> None:
        """Join again as long as no rank is known, as `Worker` does."""
        if self.session.rank == NO_RANK:
            self.session.join(self.network.now)
            self.network.poke(self.address)


MANY = Shape.of(10_000)


@pytest.mark.slow
def test_many_workers_below_one_root() -> None:
    """512 in three levels join, have 40 kB summed up, lose a rack, and go on."""
    topology = Topology.parse("tree:4x8x16")
    simulation = Simulation(topology, Limits(lease=5.0))
    network = simulation.network
    hosts = [host.name for host in topology.hosts]
    nodes = [Node(simulation, host, i, len(hosts)) for i, host in enumerate(hosts)]

    def run(nodes: list[Node], limit: float) -> None:
        end, look = network.now + limit, 0.0
        while not all(node.rounds == node.goal for node in nodes):
            if network.now >= look:
                look = network.now + 0.1
                for node in nodes:
                    node.ask()
            assert network.step()
            assert network.now < end

    run(nodes, 10.0)
    assert sorted(node.session.rank for node in nodes) == list(range(512))
    for node in nodes[1::2]:
        assert nodes[node.session.rank] is node
    total = np.sum([node.vector for node in nodes], 0)
    assert all((node.out == total).all() for node in nodes)
    lost = nodes[0].switch
    gone = [node for node in nodes if node.switch == lost]
    for address in (lost, *(node.address for node in gone)):
        network.crash(address)
    left = [node for node in nodes if node not in gone]
    for node in left:
        node.goal = 2
        node.heed()
        network.poke(node.address)
    run(left, 20.0)
    total = np.sum([node.vector for node in left], 0)
    assert all((node.out == total).all() for node in left)


def test_a_reproducible_sum_in_a_tree_is_by_rack_then_rank() -> None:
    """Whoever joins first: the values tell the order."""
    values = np.array([1e8, 1.0, -1e8, 3.0], np.float32)
    in_order = (values[0] + values[1]) + (values[2] + values[3])
    assert in_order != ((values[0] + values[2]) + values[1]) + values[3]  # as in a star
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        world = World(Switch())
        racks = [Address(f"10.0.1.{n}", 26963) for n in (1, 2)]
        for rack in racks:
            world.switches[rack] = Switch(Limits(), False, SWITCH, 1000)
        ways: dict[str, Any] = {"expected": 4, "reproducible": True}
        sessions: dict[int, Session] = {}
        for rank in order:
            sessions[rank] = world.join(rank, SHAPE, at=racks[rank // 2], rank=rank, **ways)
            world.run(lambda session=sessions[rank]: session.member)  # type: ignore[misc]
        vectors = [np.full(3, value) for value in values]
        outs = world.allreduce([sessions[rank] for rank in range(4)], vectors)
        assert all((out == in_order).all() for out in outs)
