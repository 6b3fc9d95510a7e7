"""`iswitch simulate` on links that lose packets, or carry those of others, too."""

from __future__ import annotations

import pytest

from iswitch.lab.simulate.predicting import predict
from tests.lab.test_simulate import scenario

pytestmark = pytest.mark.unit


def test_background_traffic_takes_its_rate() -> None:
    network = "--topology rack:2x2,delay=1us --size 400kB --rate"
    with_others = predict(scenario(f"{network} 1Gbit --background 400Mbit"), "iswitch")
    alone = predict(scenario(f"{network} 600Mbit"), "iswitch")
    assert with_others.seconds == pytest.approx(alone.seconds)


def test_losses_cost_time_and_are_of_the_seed() -> None:
    network = "--topology star:4,rate=10Gbit,delay=1us --size 600kB --iterations 30"
    plain = predict(scenario(network), "iswitch")
    lossy = [
        predict(scenario(f"{network} --loss 0.5% --seed {seed}"), "iswitch", changes=False)
        for seed in (1, 1, 2)
    ]
    assert lossy[0] == lossy[1] != lossy[2]
    assert lossy[0].seconds > 1.2 * plain.seconds
    assert not lossy[0].exact
    ring = predict(scenario(f"{network} --loss 0.5%"), "ring", changes=False)
    assert ring.seconds == predict(scenario(network), "ring", changes=False).seconds
