"""Strategies in virtual time: exact, the bytes of their formulas on all links, the wire's time.

`tests/strategies/test_strategy_costs.py` finds the same bytes on the links of network namespaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from iswitch.ethernet.frame import HEADERS
from iswitch.lab.bench.plan import Setting, Size, Way
from iswitch.lab.bench.simulated import Start, Step, run
from iswitch.lab.launch.simulated import Virtual
from iswitch.sim.grain import AUTO, SINGLE, Grain
from iswitch.sim.segments import HEAD
from iswitch.virtual.computing import Plan
from tests.support.groups import bytes_on_links, sum_of, vector_of
from topologies import Topology
from topologies.simulated import Simulation
from topologies.virtual.notebook import Floor, Seat
from worker_lib.strategies import make
from worker_lib.strategies.cost import Cost
from worker_lib.strategies.iswitch import cost as iswitch_cost
from worker_lib.strategies.packing import Direction, Network, pack
from worker_lib.strategies.ps import cost as ps_cost
from worker_lib.strategies.ring import cost as ring_cost
from worker_lib.strategies.tree import cost as tree_cost

NUMEL, ROUNDS, WORKERS = 50_003, 3, 4
MSS = 1500 + 14 - HEAD
COSTS = ["ring", "ps", "ps:2", "tree", "iswitch"]


class Carried(NamedTuple):
    """What a direction of a link has carried."""

    size: int
    frames: int


def carried(name: str, form: str) -> dict[Direction, Carried]:
    """What the links carry in ROUNDS allreduces, whose sums are checked."""
    topology = Topology.parse(form)
    simulation = Simulation(topology, latency=0.0, grain=AUTO)
    start = Start(len(topology.hosts))
    links = {
        (a, b): simulation.network.links[simulation.address(a), simulation.address(b)]
        for link in topology.links
        for a, b in ((link.a, link.b), (link.b, link.a))
    }
    seen: list[dict[Direction, Carried]] = []

    def look(seat: Seat) -> None:
        start()
        if not seat.rank:
            seen.append({at: Carried(one.bytes, one.counts.sent) for at, one in links.items()})
        start()

    def work(seat: Seat) -> None:
        kind, _, count = name.partition(":")
        options: dict[str, Any] = {"servers": int(count)} if count else {}
        with make(kind, NUMEL, timeout=60, **options) as strategy:
            assert strategy.rank == seat.rank
            for call in range(1 + ROUNDS):
                if call == 1:
                    look(seat)
                total = strategy.allreduce(vector_of(seat.rank, NUMEL, call))
                assert (total == sum_of(seat.num_workers, NUMEL, call)).all()
            look(seat)

    Floor[None](simulation, Plan("zero")).run(work)
    before, after = seen
    return {at: Carried(*(np.subtract(after[at], before[at]).tolist())) for at in links}


def network(form: str) -> Network:
    topology = Topology.parse(form)
    return Network.from_json(topology.network_of([host.name for host in topology.hosts]))


@pytest.mark.parametrize("form", ["rack:2x2", "rack:2x2,rate=1Gbit,delay=50us"])
@pytest.mark.parametrize("name", COSTS)
def test_bytes_on_every_link_are_the_formulas(name: str, form: str) -> None:
    """To the byte; in as few frames as messages allow, and without acknowledgements."""
    costs: dict[str, Cost] = {
        "ring": ring_cost(NUMEL, WORKERS),
        "ps": ps_cost(NUMEL, WORKERS),
        "ps:2": ps_cost(NUMEL, WORKERS, servers=2),
        "tree": tree_cost(NUMEL, pack(network(form))),
    }
    found = carried(name, form)
    if name == "iswitch":
        size = ROUNDS * iswitch_cost(NUMEL, WORKERS, levels=2).sent(0)
        for at, (bytes_, frames) in found.items():
            assert size <= bytes_ - HEADERS * frames <= size + 64 * 10, at  # heartbeats
        return
    wanted = bytes_on_links(network(form), costs[name])
    assert found.keys() == wanted.keys()
    for at, (bytes_, frames) in found.items():
        assert bytes_ - HEAD * frames == ROUNDS * wanted[at], at
        assert frames <= ROUNDS * (wanted[at] / MSS + 40), at


def seconds(name: str, form: str, numel: int, grain: Grain = AUTO) -> float:
    """The seconds of a round."""
    one = Size("it", numel)
    virtual = Virtual(Plan("zero"), grain=grain)
    steps = [Step(1, "check"), Step(3)]
    reports = run(Way.parse(name), "allreduce", one, Setting(form), virtual, steps)
    assert [report.wrong for report in reports] == [[0]] * len(reports)
    ends = [max(each) for each in zip(*(r.steps[1][1].ends for r in reports), strict=True)]
    return float(ends[-1] - ends[-2])


def wire(payload: float, rate: float = 10e9) -> float:
    """The seconds of bytes in full frames of TCP on a line."""
    return payload / MSS * (MSS + HEAD) * 8 / rate


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_ring_takes_its_formula(workers: int) -> None:
    """2(N - 1)/N of the vector over each line, and a frame for each hop of each step."""
    numel = 200_000
    cost = ring_cost(numel, workers)
    bound = wire(cost.sent(0))
    frame = wire(MSS)
    found = seconds("ring", f"star:{workers},rate=10Gbit", numel)
    assert bound <= found <= bound + 3 * cost.steps * frame


def test_a_parameter_server_takes_what_its_line_takes() -> None:
    """N vectors into its line, while answers go out; those to the last whole block go out after it.

    Workers get these answers one after the other, and begin the next round so: another block.
    """
    numel, workers = 400_000, 4
    bound = wire(ps_cost(numel, workers, beside=False).received("server 0"))
    block = wire(4 * 65536 * workers)
    assert bound < seconds("ps", f"star:{workers},rate=10Gbit", numel) < bound + 2 * block


def depth(parents: Sequence[int | None]) -> int:
    """The most edges between a rank and the root of its tree."""
    found = 0
    for rank in range(len(parents)):
        at, edges = parents[rank], 0
        while at is not None:
            at, edges = parents[at], edges + 1
        found = max(found, edges)
    return found


def test_trees_take_their_lines_and_the_steps_of_one() -> None:
    """Each line carries what the formula says. A tree's steps wait for each other, up and down.

    So a part takes a line's time for each edge on its way, behind what the lines carry besides; and
    a frame for each line.
    """
    numel, form = 100_000, "star:4,rate=10Gbit"
    trees = pack(network(form))
    cost = tree_cost(numel, trees)
    bound = wire(max(cost.sent(rank) for rank in range(4)))
    deep = [2 * depth(tree.parents) for tree in trees]  # edges, up and down
    steps = max(
        wire(4 * numel * tree.share) * edges for tree, edges in zip(trees, deep, strict=True)
    )
    frames = 2 * max(deep) * wire(MSS)
    assert bound < seconds("tree", form, numel) < bound + steps + frames


@pytest.mark.parametrize("name", ["ring", "ps", "tree"])
@pytest.mark.parametrize("form", ["star:4,rate=10Gbit", "rack:2x2,rate=1Gbit,delay=20us"])
def test_runs_take_as_long_as_single_frames(name: str, form: str) -> None:
    exact = seconds(name, form, 30_000, SINGLE)
    assert seconds(name, form, 30_000) == pytest.approx(exact, rel=0.005)
