"""Federated rounds: a coordinator picks K of N members, the sum fires at H of them or a deadline.

`rounds.py` has the values that both sides deal with, `numbers.py` the arithmetic, `layout.py` the
layout by which every packet of a sum tells who is in it. docs/federated.md explains the rounds.
"""

from .coordinator import FederatedCoordinator
from .numbers import picks, weighted_mean
from .rounds import Outcome, Said
from .worker import FederatedWorker, Task

__all__ = [
    "FederatedCoordinator",
    "FederatedWorker",
    "Outcome",
    "Said",
    "Task",
    "picks",
    "weighted_mean",
]
