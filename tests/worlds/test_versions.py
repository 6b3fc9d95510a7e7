"""Asynchronous workers in the model and in virtual time: versions as fast, and as old."""

from __future__ import annotations

import time

import numpy as np
import pytest

from iswitch.core.format.wire import Shape
from iswitch.sim.model.fabric import Fabric
from iswitch.sim.model.versions import Versions, play
from topologies import Topology
from topologies.virtual.notebook import Seat, simulate
from worker_lib import AsynchronousWorker

pytestmark = pytest.mark.unit

STALENESS = 3
MANY = 60  # versions


def modelled(network: str, numel: int, computes: list[float], threshold: int) -> Versions:
    fabric = Fabric.of(Topology.parse(network))
    each = [[seconds] for seconds in computes]
    return play(fabric, Shape.of(numel), each, MANY, threshold, STALENESS)


def pause(came: list[float]) -> float:
    """The mean time between two versions, without the first quarter."""
    first = len(came) // 4
    return (came[-1] - came[first]) / (len(came) - 1 - first)


def simulated(network: str, numel: int, computes: list[float], threshold: int) -> float:
    def work(seat: Seat) -> float:
        weights, came = np.zeros(numel, np.float32), []
        with AsynchronousWorker(
            seat.switch, job=1, numel=numel, num_workers=len(computes), threshold=threshold,
            update=lambda *_: came.append(time.monotonic()), state=[weights], staleness=STALENESS,
        ) as worker:  # fmt: skip
            mine = np.empty_like(weights)
            while worker.version < MANY:
                version = worker.read([mine])
                time.sleep(computes[seat.rank])
                worker.contribute(mine, version)
        return pause(came)

    return float(np.mean(simulate(network, work)))


@pytest.mark.parametrize(
    ("network", "numel", "computes", "threshold"),
    [
        ("star:3,rate=10Gbit,delay=1us", 36_600, [1e-3, 1e-3, 1e-3], 3),  # computing takes all
        ("star:3,rate=1Gbit,delay=10us", 36_600, [1e-4, 1e-4, 1e-4], 3),  # links do
        ("star:3,rate=1Gbit,delay=10us", 36_600, [1e-3, 2e-3, 8e-3], 2),  # one is slow
    ],
)
def test_versions_come_as_fast_as_in_virtual_time(
    network: str, numel: int, computes: list[float], threshold: int
) -> None:
    case = network, numel, computes, threshold
    found = modelled(*case)
    model = np.mean([pause(came) for came in found.came.T.tolist()])
    assert model == pytest.approx(simulated(*case), rel=0.03)


def test_a_straggler_is_stale() -> None:
    """Its contributions are too old while two others make versions of one contribution each."""
    found = modelled("star:3,rate=10Gbit", 1000, [1e-3, 1e-3, 20e-3], 1)
    assert found.stale > 0
    assert found.staleness[STALENESS] == 0
    even = modelled("star:3,rate=10Gbit", 1000, [1e-3, 1e-3, 1e-3], 3)
    assert even.stale == 0
    assert sum(even.staleness) == pytest.approx(3 * MANY, abs=3)
