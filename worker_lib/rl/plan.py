"""What a training is to be: all that its workers are told. Knows no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

WINDOW = 20  # episodes of all workers in a mean return, as many of each


def window(workers: int) -> int:
    """Episodes of each of so many workers in a mean return."""
    return -(-WINDOW // workers)


@dataclass(frozen=True)
class Plan:
    """A training, the same for all workers."""

    algorithm: str
    env: str
    seed: int = 1
    iterations: int | None = None  # updates; None: as many as the workload has
    target_return: float | None = None  # end when all play as well as that
    settings: Mapping[str, str] = field(default_factory=dict)  # other than the workload's

    mode: str = "sync"  # or "async"
    strategy: str = "iswitch"  # of synchronous ones
    reproducible: bool = False  # sums in rank order
    staleness: int = 3  # of asynchronous ones: updates that a gradient may be late
    threshold: int | None = None  # contributions in an aggregate; None: as many as workers
    timeout: float = 120.0  # seconds for a round; the slowest has to have computed by then

    checkpoint: str | None = None  # a file
    checkpoint_every: int = 0  # updates; 0: only at the end
    resume: bool = False  # go on from the checkpoint
    slow: Mapping[str, float] = field(default_factory=dict)  # by RANK: so much slower

    def to_json(self) -> str:
        """As text, for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The plan that a text is of."""
        values: dict[str, Any] = json.loads(text)
        return cls(**values)
