"""Makes the data of a federation: the samples of each device, to train with and to test with.

The synthetic data are those of the FedProx paper (Li et al., MLSys 2020, section 5.1 and appendix
C.1): 30 devices, 60 features, 10 classes, and sizes that follow a power law. synthetic(a, b) has a
model for each device, drawn around a mean u_k ~ N(0, a), and inputs around a mean B_k ~ N(0, b): so
a says how much local models differ, and b how much local inputs do. N(m, s) names the variance s
here, as it does in the paper. (The authors' code hands a and b to NumPy as standard deviations.
That is the same for 0 and 1, so only synthetic(0.5, 0.5) differs.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from iswitch.outside import UsageError, extra

Floats: TypeAlias = NDArray[np.float32]
Labels: TypeAlias = NDArray[np.int64]

DEVICES = 30
FEATURES = 60
CLASSES = 10
TRAIN = 0.9  # of each device's samples; the others test
LOG_SIZE = 4.0, 2.0  # mean and deviation of the logarithm of a device's size, beyond LEAST
LEAST = 50  # samples
SHARDS = 2  # of a device of `digits`: it sees about as many digits
SAMPLES, DIVISION = 0, 3  # purposes of seeds


class Samples(NamedTuple):
    """Samples of one device: inputs float32 [n, features], labels int64 [n]."""

    inputs: Floats
    labels: Labels


class Device(NamedTuple):
    """The samples of a device, to train with and to test with."""

    train: Samples
    test: Samples


Maker: TypeAlias = Callable[[int], Samples]  # makes a device's samples, by its rank


@dataclass(frozen=True)
class Federation:
    """The data of all devices.

    Attributes:
        name: name of the data, as in `DATASETS`.
        devices: each device's samples.
        classes: labels are 0 .. classes - 1.
    """

    name: str
    devices: Sequence[Device]
    classes: int = CLASSES

    @classmethod
    def made(cls, name: str, seed: int, devices: int = DEVICES) -> Self:
        """Make the data that have a name in `DATASETS`.

        Raises:
            UsageError: a library is missing.
        """
        make = DATASETS[name](seed, devices)
        return cls(name, [divided(make, seed, rank) for rank in range(devices)])

    @property
    def features(self) -> int:
        """Return the number of features."""
        return int(self.devices[0].train.inputs.shape[1])

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Return n_k, the number of each device's samples to train with, int64 [devices]."""
        return np.array([len(device.train.labels) for device in self.devices])


def title(name: str) -> str:
    """Write a name of `DATASETS` as the paper does: synthetic(1,1) for synthetic_1_1."""
    kind, *values = name.split("_")
    return f"{kind}({','.join(values)})" if values else kind


def divided(make: Maker, seed: int, rank: int) -> Device:
    """Make one device's samples, and set a tenth of them apart by chance."""
    inputs, labels = make(rank)
    order = np.random.default_rng([seed, DIVISION, rank]).permutation(len(labels))
    cut = int(TRAIN * len(labels))
    train, test = (Samples(inputs[rows], labels[rows]) for rows in (order[:cut], order[cut:]))
    return Device(train, test)


def synthetic(a: float, b: float, seed: int, devices: int) -> Maker:  # noqa: ARG001
    """Make synthetic(a, b).

    Args:
        a: variance of the means of local models.
        b: variance of the means of local inputs.
        seed: equal seeds give equal data.
        devices: the number of devices.
    """

    def make(rank: int) -> Samples:
        random = np.random.default_rng([seed, SAMPLES, rank])
        u, middle = random.normal(0, np.sqrt(a)), random.normal(0, np.sqrt(b))
        weights, bias = random.normal(u, 1, (FEATURES, CLASSES)), random.normal(u, 1, CLASSES)
        return _labelled(random, random.normal(middle, 1, FEATURES), weights, bias)

    return make


def iid(seed: int, devices: int) -> Maker:  # noqa: ARG001
    """Make data whose model and inputs are the same on all devices, which only differ in size."""
    shared = np.random.default_rng([seed, SAMPLES])
    weights, bias = shared.normal(0, 1, (FEATURES, CLASSES)), shared.normal(0, 1, CLASSES)

    def make(rank: int) -> Samples:
        random = np.random.default_rng([seed, SAMPLES, rank])
        return _labelled(random, np.zeros(FEATURES), weights, bias)

    return make


def _labelled(random: np.random.Generator, middle: Any, weights: Any, bias: Any) -> Samples:
    size = int(random.lognormal(*LOG_SIZE)) + LEAST
    return labelled(random, size, middle, weights, bias)


def labelled(
    random: np.random.Generator, size: int, middle: Any, weights: Any, bias: Any
) -> Samples:
    """Draw a device's inputs around `middle`, with variances j^-1.2; label them by a model."""
    deviations = np.arange(1, FEATURES + 1) ** -0.6
    inputs = random.normal(middle, deviations, (size, FEATURES))
    labels = np.argmax(inputs @ weights + bias, axis=1)
    return Samples(inputs.astype(np.float32), labels)


def digits(seed: int, devices: int) -> Maker:
    """Divide scikit-learn's handwritten digits, so that a device sees about two of the ten.

    The 1,797 images of 8 x 8 are sorted by their digit and cut into two pieces of equal size for
    each device, which gets two of them by chance (McMahan et al. 2017).

    Raises:
        UsageError: scikit-learn is missing, or there are more devices than pairs of images.
    """
    if find_spec("sklearn") is None:
        raise UsageError(f"the data digits are of scikit-learn: {extra('federated')}")
    from sklearn.datasets import load_digits

    inputs, labels = load_digits(return_X_y=True)
    most = len(labels) // SHARDS  # each has an image to train with and one to test with
    if devices > most:
        raise UsageError(f"--data digits has images for {most} devices; take as many or fewer")
    random = np.random.default_rng([seed, SAMPLES])
    order = random.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    shards = np.array_split(order, SHARDS * devices)
    dealt = random.permutation(SHARDS * devices).reshape(devices, SHARDS)

    def make(rank: int) -> Samples:
        chosen = np.concatenate([shards[i] for i in dealt[rank]])
        return Samples((inputs[chosen] / 16).astype(np.float32), labels[chosen])

    return make


DATASETS: dict[str, Callable[[int, int], Maker]] = {  # of a seed and a number of devices
    "iid": iid,
    "synthetic_0_0": partial(synthetic, 0.0, 0.0),
    "synthetic_0.5_0.5": partial(synthetic, 0.5, 0.5),
    "synthetic_1_1": partial(synthetic, 1.0, 1.0),
    "digits": digits,
}
