"""The models that devices can train, by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from iswitch.outside import UsageError, extra

from .data import Federation
from .logistic import Logistic
from .model import Model


def _network(features: int, classes: int) -> Model:
    if find_spec("torch") is None:
        raise UsageError(f"the model network is of torch: {extra('torch')}")
    from .network import Network

    return Network(features, classes)


MODELS: dict[str, Callable[[int, int], Model]] = {"logistic": Logistic, "network": _network}


def model_of(name: str, federation: Federation) -> Model:
    """Make the model of a name in `MODELS` for some data.

    Raises:
        UsageError: it needs a library that is missing; the message says how to install it.
    """
    return MODELS[name](federation.features, federation.classes)
