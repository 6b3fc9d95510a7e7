"""Which options belong to which kind of `iswitch bench`, and how their lists are read."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from iswitch.faults.units import QuantityError
from iswitch.outside import UsageError

T = TypeVar("T")
# Options with what they are without: of networks on which strategies are compared,
OF_NETWORKS: dict[str, object] = {
    "collective": None, "strategies": None, "workers": None, "topologies": None,
    "world": None, "loss": None, "seconds": None, "in_a_row": None, "iterations": None, "csv": None,
    "cable": None, "pin": False, "switch": [], "no_offload": False, "grain": None, "slow": [],
    "host_overhead": None, "jitter": None, "switch_latency": None, "switch_rate": None,
}  # fmt: skip
OF_FEDERATED: dict[str, object] = dict.fromkeys((  # of federations,
    "data", "model", "devices", "picked", "epochs", "mu", "stragglers", "seeds", "accuracy",
    "spread",
))  # fmt: skip
OF_SHARING: dict[str, object] = dict.fromkeys(("experiments", "policies", "trials"))  # and of jobs


def read(option: str, text: str, parse: Callable[[str], T]) -> list[T]:
    """Read a list with commas; what stands there twice counts once.

    Raises:
        UsageError: a value is wrong; the message names the option.
    """
    try:
        return list(dict.fromkeys(parse(word) for word in text.split(",")))
    except (argparse.ArgumentTypeError, QuantityError, UsageError) as error:
        raise UsageError(f"--{option} {text}: {error}") from None
