"""Rounds in a simulated network: as long as the wire and its hops, whatever one event may hold."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from iswitch.core.format.wire import Shape
from iswitch.ethernet.frame import HEADERS
from iswitch.faults.impairment import LIMIT
from iswitch.faults.units import QuantityError
from iswitch.sim.grain import AUTO, SINGLE, WINDOW, Crossing, Grain, grain_of
from iswitch.sim.handling import Handling
from iswitch.sim.published import HOSTS, SWITCHES, host_handling, switch_handling
from tests.support.virtual import play
from topologies import Topology
from worker_lib.protocol.window import CEILING

pytestmark = pytest.mark.unit

DQN = 1_681_062  # elements of 6.41 MiB
EXACT = 1e-11  # seconds: a hundredth of a nanosecond


def bound(numel: int, rate: float, delay: float, levels: int) -> float:
    """Return the seconds of a round by the wire alone.

    All frames pass a worker's link; then the last but one passes the other links of its way.
    """
    shape = Shape.of(numel)
    last = shape.tail(shape.segments) + HEADERS
    whole = shape.packet_size + HEADERS
    frames = (shape.segments - 1) * whole + last
    return ((frames + (2 * levels - 1) * whole) * 8) / rate + 2 * levels * delay


@pytest.mark.parametrize(
    ("form", "rate", "delay", "levels"),
    [("star:16,rate=10Gbit", 1e10, 0.0, 1), ("rack:4x3,rate=100Gbit,delay=1us", 1e11, 1e-6, 2)],
)
def test_a_round_takes_the_wire_and_its_hops(
    form: str, rate: float, delay: float, levels: int
) -> None:
    took = play(Topology.parse(form), DQN, AUTO, rounds=1)
    assert took == pytest.approx([bound(DQN, rate, delay, levels)] * len(took), rel=1e-6)


def draw(seed: int) -> tuple[Topology, int, list[float], tuple[Handling, Handling]]:
    """Draw a network, a vector's length, when its workers begin, and the time that nodes take."""
    rng = Random(f"grain {seed}")
    form = rng.choice(["star:2", "star:4", "star:7", "rack:2x3", "tree:2x2x2"])
    rate = rng.choice(["100Mbit", "1Gbit", "10Gbit", "100Gbit"])
    delay = rng.choice(["0us", "1us", "100us", "5ms"])
    topology = Topology.parse(f"{form},rate={rate},delay={delay}")
    if rng.random() < 0.4:
        links = (replace(x, rate=int(x.rate * rng.uniform(0.3, 1))) for x in topology.links)  # type: ignore[operator]
        topology = replace(topology, links=tuple(links))
    numel = rng.choice([10_247, 10_247, 40_327])
    spread = rng.choice([0, 0.01, 0.3]) * numel * 32 / (topology.links[0].rate or 1)
    starts = [rng.uniform(0, spread) for _ in topology.hosts]
    if rng.random() < 0.6:
        return topology, numel, starts, (Handling(), Handling())
    hosts = Handling(rng.uniform(0, 1e-6), rng.uniform(0, 1e-10))
    return topology, numel, starts, (hosts, Handling(latency=rng.uniform(0, 1e-6)))


@pytest.mark.parametrize("seed", range(12))
def test_runs_take_as_long_as_their_packets(seed: int) -> None:
    """All lines carry one job, and nothing is left to chance: then runs cause no error at all."""
    topology, numel, starts, handlings = draw(seed)
    one = play(topology, numel, SINGLE, starts, handlings, rounds=1)
    for grain in (AUTO, Grain(44)):
        if grain.span < 1 or topology.links[0].rate != 10**8:  # at 100 Mbit/s 44 take 5 ms
            runs = play(topology, numel, grain, starts, handlings, rounds=1)
            assert np.abs(np.array(runs) - np.array(one)).max() < EXACT


@pytest.mark.parametrize("sizes", [(10_247, 40_327), (40_327, 40_327)])
@pytest.mark.parametrize("form", ["star:4,rate=1Gbit", "rack:2x2,rate=1Gbit"])
def test_jobs_on_one_line_take_as_long_as_with_single_packets(
    form: str, sizes: tuple[int, int]
) -> None:
    """Where lines are shared, runs are cut: the error is below 0.5 %, from the first round on."""
    topology, starts = Topology.parse(form), [0.0, 1e-4, 2e-4, 2e-5]
    one, runs = (np.array(play(topology, sizes, grain, starts)) for grain in (SINGLE, AUTO))
    assert np.abs(runs / one - 1).max() < 0.005
    coarse = np.array(play(topology, sizes, Grain(44), starts))
    assert ("rack" in form) == (np.abs(coarse / one - 1).max() > 0.005)  # so that is tested


FAULTS = [
    "queue=20packets", "queue=60packets", "queue=150packets", "loss=1%", "loss=0.1%,burst=4",
    "jitter=50us,delay=100us", "duplicate=1%", "reorder=1%,delay=50us", "corrupt=0.5%",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(18))
def test_chance_and_full_queues_are_as_with_single_packets(seed: int) -> None:
    """Where a queue could overflow, or chance decides, `auto` moves every packet by itself."""
    rng = Random(f"faults {seed}")
    form = rng.choice(["star:2", "star:4", "rack:2x2"])
    rate = rng.choice(["100Mbit", "1Gbit", "10Gbit"])
    topology = Topology.parse(f"{form},rate={rate},{FAULTS[seed % len(FAULTS)]},seed={seed}")
    if rng.random() < 0.5:
        links = list(topology.links)
        i = rng.randrange(len(links))
        links[i] = replace(links[i], rate=int(0.4 * (links[i].rate or 1)))
        topology = replace(topology, links=tuple(links))
    sizes = rng.choice([(40_327,), (10_247, 40_327), (40_327, 40_327), (100_000, 40_327)])
    starts = [rng.uniform(0, 1e-4) for _ in topology.hosts]
    one, runs = (np.array(play(topology, sizes, grain, starts)) for grain in (SINGLE, AUTO))
    assert np.abs(runs / one - 1).max() < 1e-9


def test_a_queue_that_may_overflow_is_noticed_in_time() -> None:
    """A window of one flow fits a queue of 1000 packets, those of two large vectors do not."""
    crossing, line = Crossing(AUTO), object()
    assert crossing.leaves(line, (1, 2), 0, 100) == 0  # a Join
    assert crossing.leaves(line, (1, 2), 28, 1472) == 28
    assert crossing.leaves(line, (1, 2), 4594, 1472) == WINDOW // 1472 + 1 < LIMIT
    assert crossing.grain == AUTO
    assert crossing.leaves(line, (3, 4), 28, 1472) == WINDOW // 1472 + 1 + 28 < LIMIT
    assert crossing.leaves(line, (3, 4), 4594, 1472) == 2 * (WINDOW // 1472 + 1) > LIMIT
    assert crossing.leaves(object(), (5, 6), 28, 1472) == 28
    assert WINDOW == CEILING


def test_the_option() -> None:
    assert grain_of("auto") == AUTO
    assert grain_of("1") == SINGLE
    for text in ("0", "-1", "many", "1.5", ""):
        with pytest.raises(QuantityError, match="neither auto nor a number"):
            grain_of(text)


def test_times_of_nodes_by_name_and_by_number() -> None:
    assert host_handling("dpdk") == HOSTS["dpdk"].handling
    assert host_handling("2us") == Handling(2e-6)
    assert host_handling("2us+0.1ns/B") == Handling(2e-6, 1e-10)
    assert switch_handling("tofino") == SWITCHES["tofino"].handling
    assert switch_handling("1us", "8Gbit") == Handling(per_byte=1e-9, latency=1e-6)
    assert switch_handling("fpga", "8Gbit") == Handling(per_byte=1e-9, latency=1e-6)
    assert not switch_handling(None)
    for text in ("fast", "2us+1ns", "2us+1us/packet"):
        with pytest.raises(QuantityError):
            host_handling(text)
    with pytest.raises(QuantityError, match="fpga, tofino"):
        switch_handling("fast")


def test_hosts_and_switches_take_their_time() -> None:
    """One packet, up and down."""
    topology = Topology.parse("star:2,rate=1Gbit")
    frame = Shape.of(1).tail(1) + HEADERS
    plain, slow = (
        play(topology, 1, AUTO, handlings=handlings, rounds=1)
        for handlings in (
            (Handling(), Handling()),
            (Handling(1e-6, 1e-9), Handling(0.0, 2e-9, 3e-6)),
        )
    )
    # Both workers' packets pass the switch's pipeline, one after the other.
    more = 2 * (1e-6 + frame * 1e-9) + 2 * frame * 2e-9 + 3e-6
    assert slow == pytest.approx([each + more for each in plain], abs=1e-12)
