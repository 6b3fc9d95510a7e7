"""What became of jobs that shared memory in one way, and the figures that are made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .plan import Experiment, Sharing
from .watched import Record

Span = tuple[float, float]  # seconds: begin, end
Tell = Callable[[int], None]  # told of rounds that are done


class Failed(Exception):
    """Jobs do not end, or a sum is wrong; the message says which."""


@dataclass
class Ran:
    """A job that is over.

    Attributes:
        comes: when it came, in seconds.
        ends: when its last worker had left.
        rounds: the span of each of its rounds: from its first worker's vector to its last sum.
    """

    comes: float
    ends: float = 0.0
    rounds: list[Span] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Return how long it took, the time before it was let in included."""
        return self.ends - self.comes


@dataclass
class Played:
    """An experiment, played with one way to share memory.

    Attributes:
        experiment: what was played.
        sharing: how memory was shared.
        jobs: what became of each job, by number.
        record: what the root's policy did; None: it was not watched.
        share: the part of the contributions to the switch that it added, 0 to 1; others went on.
    """

    experiment: Experiment
    sharing: Sharing
    jobs: dict[int, Ran]
    record: Record | None
    share: float

    @property
    def makespan(self) -> float:
        """Return the seconds until the last job was over."""
        return max(one.ends for one in self.jobs.values())

    @property
    def completions(self) -> NDArray[np.float64]:
        """Return the seconds that each job took, by number."""
        return np.array([self.jobs[number].seconds for number in sorted(self.jobs)])

    @property
    def rounds(self) -> NDArray[np.float64]:
        """Return the seconds that each round took, from the first vector to the last sum.

        The first round of each job is left out: in a tree it holds the job's beginning.
        """
        spans = [span for one in self.jobs.values() for span in one.rounds[1:]]
        return np.array([end - begin for begin, end in spans])

    @property
    def p99(self) -> float:
        """Return the 99th percentile of a round's seconds."""
        return float(np.percentile(self.rounds, 99))

    def let_in(self, job: int) -> float:
        """Return when a job was let in; if nobody has watched that, when its first round began."""
        begins = self.jobs[job].rounds[0][0]
        return begins if self.record is None else self.record.admitted.get(job, begins)

    @property
    def waited(self) -> float:
        """Return the mean seconds from a job's coming until it was let in."""
        return float(np.mean([self.let_in(n) - one.comes for n, one in self.jobs.items()]))

    def jain(self, alone: Mapping[int, float]) -> float:
        """Return Jain's index of the jobs' speeds: 1 if sharing slows all down alike, 1/n at worst.

        Args:
            alone: the seconds that each job takes by itself.
        """
        speeds = np.array([alone[n] / one.seconds for n, one in sorted(self.jobs.items())])
        return float(speeds.sum() ** 2 / (len(speeds) * (speeds**2).sum()))

    def as_json(self, alone: Mapping[int, float]) -> dict[str, Any]:
        """Return all of it."""
        record = self.record
        return {
            "experiment": self.experiment.name,
            "label": self.sharing.label,
            "policy": self.sharing.policy,
            "memory": self.sharing.memory,
            "slots": self.sharing.slots,
            "makespan": self.makespan,
            "mean_completion": float(self.completions.mean()),
            "p99_round": self.p99,
            "jain": self.jain(alone),
            "share": self.share,
            "jobs": [
                {
                    "job": n,
                    "comes": one.comes,
                    "let_in": self.let_in(n),
                    "ends": one.ends,
                    "rounds": one.rounds,
                }
                for n, one in sorted(self.jobs.items())
            ],
            "turns": [] if record is None else record.turns,
            "reserved": [] if record is None else record.memory,
        }
