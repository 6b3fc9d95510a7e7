"""Rounds whose packets are lost, in the model and in the simulated world: alike in the median.

`make model` compares medians of 100 seeds, `make test` those of a few.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from iswitch.core.format.wire import Shape
from iswitch.sim.model.aggregation import Window, aggregate
from iswitch.sim.model.fabric import Fabric
from iswitch.sim.model.lossy import Bools, Losses, aggregate_with_losses
from tests.support.virtual import play
from topologies import Topology

pytestmark = pytest.mark.unit

WHOLE = "ISWITCH_MODEL_SEEDS" in os.environ
SEEDS = 100 if WHOLE else 10  # of the simulated world
NEAR = 0.02 if WHOLE else 0.06  # by which medians differ at most
SEEDS_OF_MODEL = 400 if WHOLE else 100
SMALL = [("star:2,rate=1Gbit,delay=10us", 100, 0.01)]
LARGE = [
    ("star:4,rate=10Gbit,delay=1us", 400, 0.001),
    ("star:4,rate=1Gbit,delay=10us", 1000, 0.001),
    ("star:3,rate=10Gbit,delay=100us", 1000, 0.005),
    ("star:8,rate=10Gbit,delay=5us", 300, 0.01),
]


def modelled(network: str, numel: int, loss: float, seed: int) -> float:
    """Seconds of a round that is not the first."""
    fabric, shape = Fabric.of(Topology.parse(network)), Shape.of(numel)
    workers = len(fabric.hosts)
    part = np.full(len(fabric.parent), loss)
    losses = Losses(fabric, part, np.random.default_rng(seed).random)
    window = Window.of(shape, workers, 1)
    ends = aggregate_with_losses(fabric, shape, np.zeros(workers), window, losses)
    return float(ends.max())


def simulated(network: str, numel: int, loss: float, seed: int) -> float:
    """The same, of real sessions and a real switch."""
    topology = Topology.parse(f"{network},loss={100 * loss:g}%,seed={seed}")
    return max(play(topology, numel, rounds=2, pause=0.5)[len(topology.hosts) :])


@pytest.mark.parametrize(("network", "segments", "loss"), LARGE if WHOLE else SMALL)
def test_rounds_take_as_long_as_in_the_simulated_world(
    network: str, segments: int, loss: float
) -> None:
    case = network, 366 * segments, loss
    model = np.median([modelled(*case, seed) for seed in range(SEEDS_OF_MODEL)])
    sim = np.median([simulated(*case, seed) for seed in range(SEEDS)])
    assert model == pytest.approx(sim, rel=NEAR)


@pytest.mark.parametrize("workers", [1, 3])
def test_without_losses_it_is_the_lossless_round(workers: int) -> None:
    """With windows that narrow it, and workers that begin at different times."""
    fabric = Fabric.of(Topology.parse(f"star:{workers},rate=10Gbit,delay=100us"))
    shape = Shape.of(366 * 700 + 5)
    starts = np.linspace(0, 1e-4, workers)
    losses = Losses(fabric, np.zeros(len(fabric.parent)), np.random.default_rng(1).random)
    for window in (Window(176, 890, 44), Window(100, 100, 25), Window(890, 890, 44)):
        lossy = aggregate_with_losses(fabric, shape, starts, window, losses)
        assert np.abs(lossy - aggregate(fabric, shape, starts, window)).max() < 1e-9


def test_equal_seeds_lose_equal_packets() -> None:
    case = "star:3,rate=1Gbit,delay=10us", 36_600, 0.02
    took = [modelled(*case, seed) for seed in (1, 1, 2, 3)]
    assert took[0] == took[1]
    assert len(set(took)) > 1


def test_the_last_packet_is_repaired_after_a_silence() -> None:
    """Of 2 ms, if an aggregate has come before; what comes of nothing takes a worker's timer."""

    class Last(Losses):
        def of(self, up: bool, copy: int, segments: int) -> Bools:
            lost = np.zeros((2, segments), bool)
            lost[0, -1] = up and not copy
            return lost

    fabric = Fabric.of(Topology.parse("star:2,rate=1Gbit,delay=10us"))
    part, chance = np.zeros(3), np.random.default_rng(1).random
    for segments, least in ((5, 0.002), (1, 0.020)):
        shape = Shape.of(366 * segments)
        window = Window.of(shape, 2, 1)
        whole = aggregate(fabric, shape, np.zeros(2), window)
        ends = aggregate_with_losses(fabric, shape, np.zeros(2), window, Last(fabric, part, chance))
        assert least < ends.max() - whole.max() < least + 2e-4
