"""FedAvg and FedProx in one process: what the switch must give, too, bit for bit.

A round: some devices are picked; each trains from the global model; the new global model is the
mean of theirs, weighted by n_k, their numbers of samples. Some of those that are picked are
stragglers, which finish only a part of their epochs in time. FedAvg (McMahan et al. 2017) drops
them. FedProx (Li et al. 2020) takes what they have, and holds local models near the global one by
mu/2 |w - w_global|^2. So FedProx with mu = 0 differs from FedAvg only by the stragglers.

All chance is drawn from seeds of its own for each purpose, round and device. So all algorithms with
one seed see the same devices, stragglers, epochs and batches, wherever they run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from worker_lib.errors import WorkerError
from worker_lib.federated.membership import SILENCE
from worker_lib.federated.numbers import picks, weighted_mean

from .data import DEVICES, Federation, Floats, Samples
from .model import Model, Order, Steps
from .models import model_of

Racks: TypeAlias = Collection[Collection[int]]
ALGORITHMS = ("fedavg", "fedprox")
LATE, BATCHES, SPEEDS = 1, 2, 4  # purposes of seeds; data.py has others


@dataclass(frozen=True)
class Setting:
    """What is trained, and how; the defaults are the paper's.

    Attributes:
        algorithm: of `ALGORITHMS`.
        data: name in `DATASETS`.
        devices: the number of devices.
        model: name in `MODELS`.
        seed: of data, devices, stragglers and batches.
        rounds: the number of rounds.
        picked: devices in a round.
        epochs: epochs of a device that is no straggler.
        stragglers: share of the picked devices that are stragglers, 0 .. 1.
        steps: learning rate, mu and batch of a device.
        speeds: deviation of the logarithm of devices' speeds, which decide who is a straggler; 0:
            stragglers are drawn for each round.
        seconds: that devices compute in a round.
    """

    algorithm: str = "fedprox"
    data: str = "synthetic_1_1"
    devices: int = DEVICES
    model: str = "logistic"
    seed: int = 1
    rounds: int = 200
    picked: int = 10
    epochs: int = 20
    stragglers: float = 0.0
    steps: Steps = field(default_factory=Steps)
    speeds: float = 0.0
    seconds: float = 0.0

    @property
    def drops(self) -> bool:
        """Return whether stragglers are dropped."""
        return self.algorithm == "fedavg"

    @property
    def silence(self) -> float:
        """Return for how many seconds devices and their coordinator wait for each other."""
        return SILENCE + self.seconds

    def federation(self) -> Federation:
        """Make the data.

        Raises:
            UsageError: a library is missing.
        """
        return Federation.made(self.data, self.seed, self.devices)


class Diverged(WorkerError):
    """A global model is no longer finite."""


def check_finite(weights: Floats, number: int, setting: Setting) -> None:
    """Refuse a model that is not finite.

    Raises:
        Diverged: the message names the mend.
    """
    if not np.isfinite(weights).all():
        rate, mu = setting.steps.rate, setting.steps.mu
        less = f" or a smaller mu than {mu:g}" if mu else ""
        raise Diverged(
            f"the training diverges: after round {number + 1} the model is not finite; take a "
            f"smaller learning rate than {rate:g}{less}"
        )


class Round(NamedTuple):
    """A round's devices: the epochs in time of each that was picked, and who is in the sum."""

    epochs: Mapping[int, int]
    in_sum: Sequence[int]


class State(NamedTuple):
    """The global model after a number of rounds, and the devices in its sum (none at first)."""

    rounds: int
    weights: Floats
    in_sum: Sequence[int]


def plan_round(setting: Setting, number: int) -> Round:
    """Draw the devices of a round, and how much each does in time.

    As in the paper, a fixed share of those that are picked are stragglers, and each does 1 ..
    epochs - 1 epochs, all equally likely. With `speeds` each device has a speed for the whole
    training instead, and a round is so long that this share of all devices does not finish.
    """
    picked = picks(setting.seed, number, setting.devices, setting.picked)
    if setting.speeds:
        done = paces(setting)
        epochs = {device: int(done[device]) for device in picked}
    else:
        epochs = dict.fromkeys(picked, setting.epochs)
        random = np.random.default_rng([setting.seed, LATE, number])
        for device in random.permutation(picked)[: round(setting.stragglers * setting.picked)]:
            epochs[int(device)] = int(random.integers(1, setting.epochs))  # 1 .. epochs - 1
    least = setting.epochs if setting.drops else 1
    return Round(epochs, [device for device in picked if epochs[device] >= least])


def paces(setting: Setting) -> NDArray[np.int64]:
    """Draw the epochs that each device does in time, from log-normal speeds; int64 [devices]."""
    random = np.random.default_rng([setting.seed, SPEEDS])
    speeds = random.lognormal(0.0, setting.speeds, setting.devices)
    slowest = np.sort(speeds)[round(setting.stragglers * setting.devices) :]
    enough = slowest[0] if len(slowest) else np.inf  # the speed of the slowest that finishes
    parts = np.minimum(speeds / enough, 1)  # exactly 1 for that one
    return (setting.epochs * parts).astype(np.int64)


def orders(setting: Setting, number: int, device: int, size: int, epochs: int) -> Iterator[Order]:
    """Draw in which order a device goes through its samples, for each epoch of a round."""
    random = np.random.default_rng([setting.seed, BATCHES, number, device])
    for _ in range(epochs):
        yield random.permutation(size)


def train_device(
    setting: Setting, model: Model, samples: Samples, weights: Floats, number: int, device: int
) -> Floats:
    """Train a device from the global model in a round, for its epochs; return its model."""
    epochs = plan_round(setting, number).epochs[device]
    each = orders(setting, number, device, len(samples.labels), epochs)
    with np.errstate(over="ignore", invalid="ignore"):  # `check_finite` tells
        return model.solve(weights, samples, each, setting.steps)


def train(
    setting: Setting,
    federation: Federation | None = None,
    model: Model | None = None,
    racks: Racks = (),
    in_sums: Sequence[Sequence[int]] | None = None,
) -> Iterator[State]:
    """Train in this process; yield the first model, and the one after each round.

    Args:
        setting: what is trained.
        federation, model: those of the setting, if they are made already.
        racks: devices of each rack of a two-level tree; () if there is none.
        in_sums: of each round the devices in its sum, of those that finish; None: all of them.

    Raises:
        Diverged: the models are no longer finite.
    """
    federation = federation or setting.federation()
    model = model or model_of(setting.model, federation)
    weights = model.start(setting.seed)
    yield State(0, weights, ())
    for number in range(setting.rounds):
        in_sum = plan_round(setting, number).in_sum
        if in_sums is not None:
            in_sum = [k for k in in_sum if k in in_sums[number]]
        found = {}
        for k in in_sum:
            samples = federation.devices[k].train
            own = train_device(setting, model, samples, weights, number, k)
            found[k] = own, len(samples.labels)
        if found:  # else the model stays
            weights, _ = weighted_mean(found, racks)
            check_finite(weights, number, setting)
        yield State(number + 1, weights, in_sum)
