"""Records a training: the messages of its workers, and how it ends."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from iswitch.system.boundary import OUTSIDE

if TYPE_CHECKING:
    from iswitch.lab.launch.programs import WorkerProcess

PARTS = ("compute", "aggregate", "update")  # of an iteration
LAST_WORDS = 5  # lines of stderr that are kept


@dataclass
class Learner:
    """The record of one worker."""

    rank: int
    words: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_WORDS))  # not for machines
    done: dict[str, Any] | None = None  # its last message


L = TypeVar("L", bound=Learner)


class Record(ABC, Generic[L]):
    """The record of a training; a context, so that files are closed at its end.

    Attributes:
        learners: the workers, by rank.
        failure: why the training ended early; None: it did not.
        status: the exit status of a failed training.
        counters: counters of each switch, at the end.
        restarts: number of restarts, by name, of each switch that was restarted.
        lost: ranks of the workers without which the others go on.
        title: what learns, in a few words.
        target: the mean return at which it is done; None: there is none.
    """

    title = ""
    target: float | None = None

    def __init__(self, learners: Sequence[L]) -> None:
        self.learners = learners
        self.failure: str | None = None
        self.status = 0
        self.counters: dict[str, dict[str, int]] = {}
        self.restarts: dict[str, int] = {}
        self.lost: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def hear(self, worker: WorkerProcess, line: str, is_error: bool) -> None:
        """Take a line that a worker prints."""
        learner = self.learners[worker.rank]
        try:
            message = None if is_error else json.loads(line)
        except json.JSONDecodeError:  # a word of a library's, or half a line of one that was killed
            message = None
        if message is None:
            learner.words.append(line)
        elif message["event"] == "error" and self.can_spare(worker.rank):
            learner.words.append(message["message"])
        elif message["event"] == "error":
            self.fail(f"{worker.called}: {message['message']}", message.get("outside", False))
        else:
            if message["event"] == "done":
                learner.done = message
            self.take(learner, message)

    @abstractmethod
    def take(self, learner: L, message: dict[str, Any]) -> None:
        """Handle a worker's message, whose `event` names its kind."""

    @abstractmethod
    def point(self) -> tuple[float, int, float]:
        """Return a point of the learning curve: seconds, iteration, mean return or NaN."""

    def tick(self, now: float) -> None:
        """Note the time; called some times a second."""

    def fail(self, why: str, is_outside: bool = False) -> None:
        """End the training as failed; later calls change nothing.

        Args:
            why: reason of the failure, in words.
            is_outside: whether the cause is outside the program, such as a full disk.
        """
        if self.failure is None:
            self.failure, self.status = why, OUTSIDE if is_outside else 1

    def can_spare(self, rank: int) -> bool:  # noqa: ARG002
        """Return whether the others can go on without a worker, if it fails for good."""
        return False

    def complaint(self, worker: WorkerProcess) -> str:
        """Quote the last words of a worker that failed, unless a signal killed it."""
        words = self.learners[worker.rank].words
        return f": {words[-1]}" if words and (worker.status or 0) < 128 else ""

    def resumable(self) -> str:
        """Say how to resume a training that ended early; "": it cannot be resumed."""
        return ""

    @property
    def done(self) -> bool:
        """Return whether every worker has finished its iterations."""
        return all(learner.done is not None for learner in self.learners)

    @property
    def over(self) -> bool:
        """Return whether there is nothing to wait for."""
        return self.done or self.failure is not None

    @property
    @abstractmethod
    def iteration(self) -> int:
        """Return the number of updates that every worker has made."""

    @property
    @abstractmethod
    def rate(self) -> float | None:
        """Return the updates per second; None while too few are timed."""

    @abstractmethod
    def share(self) -> dict[str, float]:
        """Split the workers' time: the share, from 0 to 1, of each of PARTS."""

    @abstractmethod
    def report(self) -> dict[str, Any]:
        """Collect all that was measured."""
