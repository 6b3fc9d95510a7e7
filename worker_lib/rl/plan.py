"""The plan of a training, which its workers get as JSON, and their reports. Imports no torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

WINDOW = 20  # episodes in a mean return, spread evenly over the workers


def window(workers: int) -> int:
    """Return how many episodes of each of `workers` workers enter a mean return."""
    return -(-WINDOW // workers)


@dataclass(frozen=True)
class Plan:
    """The settings of one training, equal for all its workers."""

    algorithm: str
    env: str
    seed: int = 1
    iterations: int | None = None  # updates; None: the workload's default
    target_return: float | None = None  # end when the workers' mean return reaches it
    settings: Mapping[str, str] = field(default_factory=dict)  # changes to the workload's

    mode: str = "sync"  # or "async"
    strategy: str = "iswitch"  # of synchronous ones
    reproducible: bool = False  # sums in rank order
    staleness: int = 3  # of asynchronous ones: updates that a gradient may be late
    threshold: int | None = None  # contributions in an aggregate; None: one per worker
    timeout: float = 120.0  # seconds for a round, including the slowest worker's computation

    checkpoint: str | None = None  # a file
    checkpoint_every: int = 0  # updates; 0: only at the end
    resume: bool = False  # start from the checkpoint
    slow: Mapping[str, float] = field(default_factory=dict)  # by RANK: factor of computing time
    record: bool = False  # report the computing of each iteration

    def to_json(self) -> str:
        """Return the plan as JSON text, for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse a plan from the text of `to_json`."""
        values: dict[str, Any] = json.loads(text)
        return cls(**values)


def report(event: str, **fields: Any) -> None:
    """Print a message for the parent process, as one line of JSON."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()
