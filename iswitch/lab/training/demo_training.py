"""What is known of a demo's training, as its workers tell it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from iswitch.lab.launch.processes import Child
from iswitch.lab.launch.restarts import Restarts

if TYPE_CHECKING:
    from topologies import Topology

JOB = 1
WINDOW = 20  # episodes in a mean return
LEARNED = 195.0  # the return at which CartPole used to count as solved
ITERATIONS = 300  # enough to learn
RATE_AFTER = 0.2  # seconds that must be timed before they tell a rate


class DemoFailed(Exception):
    """Something died or was refused; the message names it."""


@dataclass
class WorkerProcess:
    """What is known of one worker process."""

    child: Child
    host: str = ""
    rank: int | None = None
    returns: list[tuple[int, float]] = field(default_factory=list)  # iteration, return
    seconds: dict[str, list[float]] = field(
        default_factory=lambda: {"compute": [], "aggregate": [], "update": []}
    )
    recorded: dict[int, dict[str, Any]] = field(default_factory=dict)  # by iteration
    done: dict[str, Any] | None = None
    restarts: Restarts = field(default_factory=lambda: Restarts(0))

    @property
    def iterations(self) -> int:
        """Iterations completed."""
        return len(self.seconds["update"])

    @property
    def called(self) -> str:
        """What it is called."""
        rank = "that has not joined yet" if self.rank is None else f"of rank {self.rank}"
        return f"{rank} (process {self.child.process.pid})"

    def recent_return(self) -> float:
        """Mean return of its last episodes; NaN before the first has ended."""
        last = [value for _, value in self.returns[-WINDOW:]]
        return sum(last) / len(last) if last else float("nan")


@dataclass
class Training:
    """A training run as the parent sees it."""

    workers: int
    iterations: int
    seed: int
    members: list[WorkerProcess] = field(default_factory=list)
    counters: dict[str, dict[str, int]] = field(default_factory=dict)  # by switch
    restarts: dict[str, int] = field(default_factory=dict)  # by switch
    spent: Counter[str] = field(default_factory=Counter)  # all workers' seconds, by part
    topology: Topology | None = None
    any_order: bool = False  # sums are made as contributions come, not in rank order
    started: float | None = None  # when all workers had done their first iteration
    untimed: int = 0  # iterations they had done by then
    timed: int = 0  # the newest iteration they all have done
    seconds: float = 0.0  # from the start until then

    def hear(self, member: WorkerProcess, message: dict[str, Any]) -> None:
        """Take what a worker says."""
        match message["event"]:
            case "joined":
                member.rank = message["rank"]
                self.members.sort(key=lambda m: self.workers if m.rank is None else m.rank)
            case "iteration":
                member.returns += [(message["iteration"], r) for r in message["returns"]]
                for name, values in member.seconds.items():
                    # One that caught up skips some, or does again what nobody knows of.
                    at = message["iteration"]
                    values[at:] = [0.0] * (at - len(values))
                    values.append(message[name])
                    self.spent[name] += message[name]
            case "round":
                member.recorded[message["iteration"]] = message
            case "done":
                member.done = message
            case "error":
                raise DemoFailed(f"worker {member.called}: {message['message']}")

    @property
    def done(self) -> bool:
        """Whether all workers are."""
        return all(member.done is not None for member in self.members)

    @property
    def iteration(self) -> int:
        """Iterations that all workers have completed."""
        return min((member.iterations for member in self.members), default=0)

    def keep_time(self, now: float) -> None:
        """Take the time when there is a new iteration that all workers have completed."""
        if self.iteration > self.timed:
            self.timed = self.iteration
            if self.started is None:
                self.started, self.untimed = now, self.timed
            self.seconds = now - self.started

    @property
    def rate(self) -> float | None:
        """Iterations per second; None while too little was timed to tell."""
        if self.seconds < RATE_AFTER:
            return None
        return (self.timed - self.untimed) / self.seconds

    def episodes(self, last: int | None = None) -> list[float]:
        """Returns of all workers' episodes, by the iteration they ended in; the `last` of them."""
        first = 0 if last is None else -last  # none but a worker's last can be among all's last
        ended = [(i, k, r) for k, m in enumerate(self.members) for i, r in m.returns[first:]]
        return [value for _, _, value in sorted(ended, key=lambda entry: entry[:2])][first:]
