"""Devices and the coordinator of a training: the same program over any way to sum.

A device that is picked computes for `Setting.seconds`, which all devices take, stragglers too: they
get less done in it. It waits for what is left of that time after it has trained.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from .data import Floats, Samples
from .model import Model
from .rounds import Setting, check_finite, plan_round, train_device


class Task(Protocol):
    """A round for which a device was picked; `worker_lib.federated.Task` is one."""

    @property
    def round(self) -> int:
        """Return the round's number."""

    @property
    def model(self) -> Floats:
        """Return the model to begin with."""

    def contribute(self, weights: Floats, n: float) -> object:
        """Contribute n * weights and n."""


class Worker(Protocol):
    """A device's end of the way to sum; `FederatedWorker` is one."""

    def rounds(self) -> Iterable[Task]:
        """Yield the rounds for which the device is picked."""


class Outcome(Protocol):
    """What a round gave; `worker_lib.federated.Outcome` is one."""

    @property
    def model(self) -> Floats:
        """Return the new global model."""

    @property
    def ranks(self) -> Sequence[int]:
        """Return who is in the sum."""


class Coordinator(Protocol):
    """The coordinator's end; `FederatedCoordinator` is one."""

    def round(self, number: int, model: Floats, *, picked: Sequence[int], needed: int) -> Outcome:
        """Play a round with the devices that are picked, of which `needed` make a sum."""


class Padded:
    """Carries a model at the beginning of a vector that may be longer, as of a larger model.

    Args:
        numel: elements of the model.
        padded: elements of the vector; no fewer.
    """

    def __init__(self, numel: int, padded: int) -> None:
        self.numel = numel
        self._vector = np.zeros(padded, np.float32)

    def wrap(self, weights: Floats) -> Floats:
        """Return the vector with a model; it is the same one each time."""
        self._vector[: self.numel] = weights
        return self._vector


class Played(NamedTuple):
    """A round that was played: the model after it, who is in it, and seconds of rounds so far."""

    rounds: int
    weights: Floats
    in_sum: Sequence[int]
    seconds: float


def serve(worker: Worker, setting: Setting, rank: int, samples: Samples, model: Model) -> None:
    """Take part in all rounds as one device.

    Args:
        worker: the device's end; its vectors may be longer than the model.
        setting: what is trained.
        rank: number of the device.
        samples: its samples to train with.
        model: the model that is trained.
    """
    for task in worker.rounds():
        if rank not in plan_round(setting, task.round).in_sum:
            continue  # a straggler that is dropped
        begun = time.monotonic()
        whole = Padded(model.numel, task.model.size)
        found = train_device(setting, model, samples, task.model[: model.numel], task.round, rank)
        left = begun + setting.seconds - time.monotonic()
        if left > 0:
            time.sleep(left)
        task.contribute(whole.wrap(found), len(samples.labels))


def coordinate(
    coordinator: Coordinator,
    setting: Setting,
    model: Model,
    numel: int | None = None,
    is_tree: bool = False,
) -> Iterator[Played]:
    """Play all rounds; yield the first model, and the one after each round.

    Args:
        coordinator: the coordinator's end.
        setting: what is trained.
        model: the model that is trained.
        numel: elements of the vectors that travel; None: the model's.
        is_tree: whether racks count their own contributions. Then only those are picked who will
            contribute, since a rack waits for its share of all that are picked.

    Raises:
        Diverged: the models are no longer finite.
    """
    whole = Padded(model.numel, numel or model.numel)
    weights = model.start(setting.seed)
    seconds = 0.0
    yield Played(0, weights, (), seconds)
    for number in range(setting.rounds):
        plan = plan_round(setting, number)
        in_sum: Sequence[int] = ()
        begun = time.monotonic()
        if plan.in_sum:  # else the model stays
            picked = list(plan.in_sum if is_tree else plan.epochs)
            needed = len(plan.in_sum)
            outcome = coordinator.round(number, whole.wrap(weights), picked=picked, needed=needed)
            weights, in_sum = outcome.model[: model.numel].copy(), outcome.ranks
            check_finite(weights, number, setting)
        seconds += time.monotonic() - begun
        yield Played(number + 1, weights, in_sum, seconds)
