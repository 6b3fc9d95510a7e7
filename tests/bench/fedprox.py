"""Test why FedProx gains less here than in its paper: `python -m tests.bench.fedprox --seeds 5`.

Trains synthetic(1,1) at 90 % stragglers, with sizes of devices as we draw them and as the authors'
data have them, and prints by how many points FedProx is more accurate than FedAvg: after some
rounds, at the end, where the paper reads accuracies, and if all devices weigh the same. Each
training takes some seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from unittest import mock

import numpy as np

from iswitch.lab.federated.report import spread, ways_of
from iswitch.lab.federated.runs import stop
from worker_lib.fedprox import data
from worker_lib.fedprox.measures import quality
from worker_lib.fedprox.models import model_of
from worker_lib.fedprox.rounds import Setting, train

AUTHORS = "authors"
# Ten times the test samples of each device in the authors' data/synthetic_1_1.
SIZES = (
    80,
    180,
    90,
    170,
    160,
    500,
    140,
    90,
    60,
    190,
    170,
    60,
    90,
    60,
    70,
    6620,
    60,
    130,
    70,
    120,
    80,
    50,
    60,
    440,
    60,
    140,
    310,
    450,
    80,
    60,
)
ROUNDS = 25, 50, 100
LAST = 20


def authors(seed: int, devices: int) -> data.Maker:  # noqa: ARG001
    """Make synthetic(1,1) with the authors' sizes."""

    def make(rank: int) -> data.Samples:
        random = np.random.default_rng([seed, data.SAMPLES, rank])
        u, middle = random.normal(0, 1), random.normal(0, 1)
        weights = random.normal(u, 1, (data.FEATURES, data.CLASSES))
        bias = random.normal(u, 1, data.CLASSES)
        around = random.normal(middle, 1, data.FEATURES)
        return data.labelled(random, SIZES[rank], around, weights, bias)

    return make


def run(setting: Setting) -> dict[str, float]:
    """Train; return accuracies, 0 .. 1, by where they are read."""
    federation = setting.federation()
    model = model_of(setting.model, federation)
    rows = []
    for state in train(setting, federation, model):
        found = quality(model, state.weights, federation)
        tests = [device.test for device in federation.devices]
        each = [model.measure(state.weights, one).correct / len(one.labels) for one in tests]
        rows.append((found.loss, found.accuracy, float(np.mean(each))))
    losses, accuracies, of_devices = np.array(rows).T
    return {
        **{f"after {number} rounds": accuracies[number] for number in ROUNDS},
        "at the end": accuracies[-LAST:].mean(),
        "where the paper reads it": accuracies[stop(losses)],
        "at the end, mean of devices": of_devices[-LAST:].mean(),
    }


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fedprox", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--mu", type=float, default=1.0)
    args = parser.parse_args(words)
    fedavg, *others = ways_of([args.mu])
    with mock.patch.dict(data.DATASETS, {AUTHORS: authors}):
        for name in ("synthetic_1_1", AUTHORS):
            gains: dict[tuple[str, str], list[float]] = {}
            for seed in range(1, args.seeds + 1):
                base = Setting(data=name, seed=seed, stragglers=0.9)
                least = run(fedavg.of(base))
                for way in others:
                    for where, accuracy in run(way.of(base)).items():
                        gains.setdefault((way.label, where), []).append(accuracy - least[where])
            for (label, where), some in gains.items():
                told = f"{spread(some, sign=True)}, mean {100 * np.mean(some):+.1f}"
                print(f"{name:14} {label:18} {where:28} {told}", flush=True)


if __name__ == "__main__":
    main()
