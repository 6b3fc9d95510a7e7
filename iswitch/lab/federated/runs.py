"""Trains by FedAvg and FedProx in this process, and keeps how good the models are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from worker_lib.fedprox.data import Federation
from worker_lib.fedprox.measures import quality
from worker_lib.fedprox.models import model_of
from worker_lib.fedprox.rounds import Setting, train

CONVERGED, DIVERGED, AGO = 0.0001, 1.0, 10
LAST = 10  # the last tenth of the rounds makes a training's accuracy


class Way(NamedTuple):
    """An algorithm with its mu."""

    algorithm: str
    mu: float = 0.0

    @property
    def label(self) -> str:
        """Return its name for people."""
        return "FedAvg" if self.algorithm == "fedavg" else f"FedProx, mu = {self.mu:g}"

    def of(self, setting: Setting) -> Setting:
        """Return a setting with this algorithm."""
        return replace(setting, algorithm=self.algorithm, steps=setting.steps._replace(mu=self.mu))


FEDAVG, PLAIN = Way("fedavg"), Way("fedprox")  # PLAIN takes stragglers' work, and no more


def stop(losses: NDArray[np.float64]) -> int:
    """Return the round after which the paper reads an accuracy (appendix C.3.2).

    That is the first that changes the training loss by less than CONVERGED, or that is above the
    loss of AGO rounds before by more than DIVERGED; else the last.
    """
    for i in range(1, len(losses)):
        is_still = abs(losses[i] - losses[i - 1]) < CONVERGED
        if is_still or (i >= AGO and losses[i] - losses[i - AGO] > DIVERGED):
            return i
    return len(losses) - 1


@dataclass(frozen=True)
class Run:
    """A training: its qualities after 0, 1, 2 ... rounds.

    Attributes:
        setting: what was trained.
        rows: loss, accuracy and dissimilarity, float64 [rounds + 1, 3].
        contributions: devices in the sum of each round.
    """

    setting: Setting
    rows: NDArray[np.float64]
    contributions: Sequence[int]

    @property
    def way(self) -> Way:
        """Return its algorithm."""
        return Way(self.setting.algorithm, self.setting.steps.mu)

    @cached_property
    def accuracy(self) -> float:
        """Return the mean test accuracy of the last tenth of the rounds."""
        return float(self.rows[-max(1, len(self.rows) // LAST) :, 1].mean())

    @cached_property
    def stopped_accuracy(self) -> float:
        """Return the test accuracy where the paper would have read it, see `stop`."""
        return float(self.rows[stop(self.rows[:, 0]), 1])

    @cached_property
    def mean_accuracy(self) -> float:
        """Return the mean test accuracy of all rounds: where a curve is, all in all."""
        return float(self.rows[1:, 1].mean())

    def as_json(self) -> dict[str, Any]:
        """Return all of it."""
        setting = self.setting
        names = ("loss", "accuracy", "dissimilarity")
        return {
            "algorithm": setting.algorithm, "mu": setting.steps.mu, "data": setting.data,
            "model": setting.model, "stragglers": setting.stragglers, "seed": setting.seed,
            "rounds": setting.rounds, "devices": setting.devices, "picked": setting.picked,
            "epochs": setting.epochs, "final_accuracy": self.accuracy,
            "mean_accuracy": self.mean_accuracy, "stopped_accuracy": self.stopped_accuracy,
            "contributions": list(self.contributions),
            **{name: self.rows[:, i].tolist() for i, name in enumerate(names)},
        }  # fmt: skip


Tell = Callable[[int], None]  # told of rounds that are done


def settings_of(
    base: Setting,
    data: Sequence[str],
    stragglers: Sequence[float],
    ways: Sequence[Way],
    seeds: Sequence[int],
) -> list[Setting]:
    """List what is to be trained: all of one seed before the next seed.

    Without stragglers FedAvg is FedProx with mu = 0, so that is not trained again.
    """
    return [
        way.of(replace(base, seed=seed, data=name, stragglers=share))
        for seed, name, share, way in product(seeds, data, stragglers, ways)
        if share or way != PLAIN
    ]


def run(setting: Setting, federation: Federation, tell: Tell) -> Run:
    """Train a setting with its data."""
    model = model_of(setting.model, federation)
    rows, contributions = [], []
    for state in train(setting, federation, model):
        tell(state.rounds)
        rows.append(quality(model, state.weights, federation))
        if state.rounds:
            contributions.append(len(state.in_sum))
    return Run(setting, np.array(rows), contributions)


class Found:
    """The trainings that are complete, by what they are of."""

    def __init__(self, runs: Sequence[Run] = ()) -> None:
        self.runs = list(runs)

    def of(self, data: str, stragglers: float, way: Way) -> list[Run]:
        """Return the trainings of all seeds."""
        if not stragglers and way == PLAIN:
            way = FEDAVG
        return [
            one
            for one in self.runs
            if (one.setting.data, one.setting.stragglers, one.way) == (data, stragglers, way)
        ]

    def cells(self) -> Iterator[tuple[str, float]]:
        """Yield the data and shares of stragglers of which there are trainings."""
        yield from dict.fromkeys((one.setting.data, one.setting.stragglers) for one in self.runs)

    @property
    def data(self) -> list[str]:
        """Return the names of the data."""
        return list(dict.fromkeys(name for name, _ in self.cells()))

    @property
    def stragglers(self) -> list[float]:
        """Return the shares of stragglers."""
        return list(dict.fromkeys(share for _, share in self.cells()))

    @property
    def ways(self) -> list[Way]:
        """Return the algorithms, FedAvg first, then FedProx by mu."""
        ways = dict.fromkeys(one.way for one in self.runs)
        return sorted([*ways, *([PLAIN] * (PLAIN not in ways and bool(ways)))])

    def best(self, data: str, stragglers: float) -> Way | None:
        """Return the algorithm with mu > 0 whose mean final accuracy is best; None: there is none.

        The paper chooses mu for each data set, too.
        """
        ways = [way for way in self.ways if way.mu and self.of(data, stragglers, way)]
        means = {way: np.mean([r.accuracy for r in self.of(data, stragglers, way)]) for way in ways}
        return max(means, key=means.__getitem__, default=None)
