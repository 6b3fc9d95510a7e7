"""Trees that are packed into networks: they fit, they are few, and nearly the best there are."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from tests.support import ROOT
from tests.support.groups import add_up, bytes_on_links, group
from topologies import Topology
from worker_lib.strategies import base
from worker_lib.strategies.cost import Cost
from worker_lib.strategies.errors import RendezvousError, Unavailable
from worker_lib.strategies.packing import ENOUGH, Network, Packing, Tree, pack, packed, rooted
from worker_lib.strategies.tree import cost, shares

pytestmark = pytest.mark.unit


def network_of(text: str, **rates: float) -> Network:
    """A topology's, with other rates for some hosts."""
    topology = Topology.parse(text)
    links = [(k.a, k.b, rates.get(k.a, k.rate)) for k in topology.links if topology.active(k)]
    return Network([host.name for host in topology.hosts], links)


def best(rate: float, workers: int) -> float:
    """What a ring does with equal links at one switch; no trees can do more."""
    return rate * workers / (2 * (workers - 1))


@pytest.mark.parametrize("form", ["star:2", "star:3", "star:4", "star:6", "rack:2x2", "tree:2x2x2"])
def test_trees_fit_and_are_nearly_the_best(form: str) -> None:
    network = network_of(f"{form},rate=1Gbit")
    workers = len(network.hosts)
    found = Packing(network)
    trees = found.fractional()
    few = found.few(trees) if len(trees) > 1 else trees
    for rates in (trees, few):
        load = sum(rate * found.crossings(edges) for edges, rate in rates.items())
        assert (load <= 1e9 * (1 + 1e-6)).all()
        assert all(len(edges) == workers - 1 for edges in rates)
    # A host can be reached by its own link only, and the racks' links are no narrower.
    assert sum(trees.values()) >= 0.95 * best(1e9, workers)
    assert sum(few.values()) >= ENOUGH * 0.95 * best(1e9, workers)
    assert len(few) <= min(len(trees), workers)
    packed = pack(network)
    assert sum(tree.share for tree in packed) == pytest.approx(1)
    assert {frozenset(r for r in range(workers) if t.parents[r] is None) for t in packed} <= {
        frozenset([root]) for root in range(workers)
    }


@pytest.mark.slow
@pytest.mark.parametrize("form", ["star:32", "rack:8x4"])
def test_larger_networks_are_packed_in_time(form: str) -> None:
    """Before anybody who waits for rank 0 gives up, on a machine with much else to do."""
    network = network_of(f"{form},rate=1Gbit")
    began = time.process_time()
    trees = pack(network)
    assert time.process_time() - began < 15
    load = bytes_on_links(network, cost(1_000_000, trees))
    # The slowest link is not much busier than one of a ring's, from which no trees get away.
    assert max(load.values()) <= 2 * 4_000_000 * 31 / 32 / (ENOUGH * 0.9)


def no_network() -> str:
    from worker_lib.strategies import make

    with pytest.raises((ValueError, RendezvousError)) as caught:
        make("tree", 5, timeout=30)
    return str(caught.value)


@pytest.mark.slow
def test_all_are_told_that_rank_0_cannot_pack() -> None:
    first, second = group(no_network, 2, ISWITCH_NETWORK="[]")
    assert first.startswith("ISWITCH_NETWORK is no network")
    assert second == f"rank 0 could not pack trees: {first}"


def test_a_slow_host_is_a_leaf() -> None:
    """Its link carries every tree once, and sets the rate; others may pass on."""
    network = network_of("star:4,rate=1Gbit", h2=1e8)
    found = Packing(network)
    trees = found.fractional()
    assert sum(trees.values()) == pytest.approx(1e8, rel=0.05)
    for tree in pack(network):
        assert tree.children(1) == []


def test_a_narrow_link_is_crossed_once() -> None:
    """Between two racks; what goes over it is half of what a ring, or any flow between all, has."""
    network = network_of("rack:2x3,rate=1Gbit", tor1=1e8, tor2=1e8)
    trees = pack(network)
    load = bytes_on_links(network, cost(30_000, trees))
    assert load["tor1", "core1"] == load["core1", "tor1"] == 4 * 30_000
    found = Packing(network)
    assert sum(found.fractional().values()) == pytest.approx(1e8, rel=0.05)


def test_a_fast_network_beside_a_slow_one() -> None:
    """A triangle of direct links of 3, 2 and 1: two trees, of 2 and 1."""
    network = Network(["a", "b", "c"], [("a", "b", 3.0), ("b", "c", 2.0), ("a", "c", 1.0)])
    found = Packing(network)
    trees = found.fractional()
    assert sum(trees.values()) == pytest.approx(3.0, rel=0.05)
    chosen = {edges: round(rate, 3) for edges, rate in found.few(trees).items()}
    assert chosen == {((0, 1), (1, 2)): 2.0, ((0, 1), (0, 2)): 1.0}


def test_workers_on_one_host() -> None:
    """Cost no links between each other."""
    network = Network(["h1", "h1", "h2", "h2"], [("h1", "s1", 1e9), ("h2", "s1", 1e9)])
    trees = pack(network)
    load = bytes_on_links(network, cost(1000, trees))
    assert load == dict.fromkeys((("h1", "s1"), ("s1", "h2"), ("h2", "s1"), ("s1", "h1")), 4000)
    assert [tree.share for tree in pack(Network(["h1"] * 3, []))] == [1.0]
    assert pack(Network(["h1"], [])) == []


def test_roots_are_in_the_middle() -> None:
    tree = rooted(((0, 1), (1, 2), (2, 3), (3, 4)), 5, 0.5)
    assert tree == Tree((1, 2, None, 2, 3), 0.5)
    assert tree.depth == 2
    assert tree.children(2) == [1, 3]


def test_shares_of_a_vector() -> None:
    trees = [Tree((None, 0), 0.25), Tree((1, None), 0.5), Tree((None, 0), 0.25)]
    assert shares(10, trees) == [slice(0, 2), slice(2, 8), slice(8, 10)]
    assert shares(0, trees) == [slice(0, 0)] * 3
    assert shares(3, []) == []
    assert cost(8, trees) == Cost(2, {(1, 0): 32, (0, 1): 32})


def test_networks_that_are_none() -> None:
    with pytest.raises(ValueError, match="no links lead from a to b; mend the network's links"):
        pack(Network(["a", "b"], [("a", "s1", None)]))
    with pytest.raises(ValueError, match="no links lead from a to b"):
        packed('{"hosts": ["a", "b"], "links": []}')
    for text in ("", "[]", '{"hosts": ["a"]}', '{"hosts": ["a"], "links": [["a"]]}'):
        with pytest.raises(ValueError, match="ISWITCH_NETWORK is no network"):
            packed(text)


def test_what_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "find_spec", lambda _: None)
    with pytest.raises(Unavailable, match="needs networkx and scipy: pip install -e"):
        packed('{"hosts": ["a"], "links": []}')


def sums_over(numel: int) -> dict[str, object]:
    from worker_lib.strategies import make

    with make("tree", numel, timeout=30, piece=4000) as strategy:
        add_up(strategy, numel, 2)
        return strategy.stats()


@pytest.mark.slow
def test_trees_of_a_given_network_carry_their_shares() -> None:
    """Three workers with links of unequal rate; what goes is as the cost says."""
    numel = 100_003
    said = {"hosts": ["a", "b", "c"], "links": [["a", "b", 3], ["b", "c", 2], ["a", "c", 1]]}
    told = group(sums_over, 3, numel, ISWITCH_NETWORK=json.dumps(said))
    trees = [Tree(**tree) for tree in told[0]["trees"]]
    assert sorted(round(tree.share, 3) for tree in trees) == [0.333, 0.667]
    wanted = cost(numel, trees)
    for rank, stats in enumerate(told):
        assert stats["bytes_sent"] == 2 * wanted.sent(rank)
        assert stats["bytes_received"] == 2 * wanted.received(rank)
        assert stats["steps"] == 2 * wanted.steps == 4


def too_few() -> str:
    from worker_lib.strategies import make

    with pytest.raises(ValueError, match="name a host for each") as caught:
        make("tree", 5, timeout=1)
    return str(caught.value)


@pytest.mark.slow
def test_a_network_of_other_workers() -> None:
    (said,) = group(too_few, 1, ISWITCH_NETWORK='{"hosts": ["a", "b"], "links": []}')
    assert said.startswith("the network has hosts for 2 workers, and WORLD_SIZE is 1")


@pytest.mark.slow
def test_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "worker_lib.strategies.packing"], cwd=ROOT, text=True,
        input='{"hosts": ["h1", "h2"], "links": [["h1", "s1", 1e9], ["h2", "s1", null]]}',
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == [[[None, 0], 1.0]]
    assert done.returncode == 0
