"""Workers of one switch in a tree that are replaced at once, in jobs that go on without them."""

from __future__ import annotations

import os
import random

import pytest

from iswitch.lab.soak.run import run
from iswitch.lab.soak.scenario import Event, Job, Scenario

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "25"))  # `make model` takes more
TREES = {  # workers, and how many of them have one switch above
    "rack:2x2": (4, 2), "rack:3x2": (6, 2), "rack:2x3": (6, 3), "tree:2x1x2": (4, 2),
    "tree:1x2x2": (4, 2), "tree:2x2x1": (4, 2),
}  # fmt: skip


def racks(seed: int) -> Scenario:
    """Draw a job in a tree, in which all workers of some switch are replaced within a round."""
    rng = random.Random(seed)
    topology = rng.choice(list(TREES))
    count, below = TREES[topology]
    hosts = tuple(f"h{1 + host}" for host in range(count))
    events = []
    for _ in range(rng.choice((1, 1, 2))):
        rack = rng.randrange(count // below) * below
        at = rng.uniform(0.001, 0.04)
        for host in hosts[rack : rack + below]:
            at += rng.choice((0.0, 3e-5, 1e-3, 5e-3))
            events.append(Event(at, "reborn", host, rng.choice((1e-5, 1e-3))))
    loss = rng.choice((0.0, 0.0, 0.05, 0.2))
    return Scenario(
        seed,
        topology,
        (Job(1, "elastic", hosts, "int32", 99, 33),),
        f"delay=50us,loss={loss}",
        tuple(sorted(events, key=lambda event: event.at)),
        0.06,
        rng.choice((0.0002, 0.0005, 0.003)),
        0.0005,
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_racks_replaced_at_once(seed: int) -> None:
    """The job goes on, after a Reset for which their switch asks: docs/hierarchy.md."""
    assert run(racks(seed)).violation == ""
