"""Records the training of `iswitch demo`, and shows it."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
from rich.console import Console
from rich.table import Table

from iswitch.core.format.wire import Shape
from iswitch.lab.launch import shares
from iswitch.lab.launch.programs import WorkerProcess
from iswitch.lab.options import workers
from topologies import Topology

from . import ITERATIONS
from .record import PARTS, Learner, Record
from .screen import Check, Screen
from .sums import sum_is_exact

WINDOW = 20  # episodes in a mean return
LEARNED = 195.0  # the return at which CartPole used to count as solved
BEST = 500  # CartPole-v1 ends an episode there
RATE_AFTER = 0.2  # seconds that must be timed before they tell a rate
LONGEST_SILENCE = 60.0  # seconds without a word from any worker
LEAVING = 3.0  # seconds for workers to end when all are done
MOST_RESTARTS = 5  # of a worker, in a row
LINES = 10  # of progress, where there is no terminal
BAR = 24  # characters


@dataclass
class DemoLearner(Learner):
    """The record of one worker of the demo."""

    host: str = ""
    pid: int | None = None
    returns: list[tuple[int, float]] = field(default_factory=list)  # iteration, return
    seconds: dict[str, list[float]] = field(
        default_factory=lambda: {part: [] for part in PARTS}
    )  # of each iteration
    recorded: dict[int, dict[str, Any]] = field(default_factory=dict)  # by iteration

    @property
    def iterations(self) -> int:
        """Return the number of completed iterations."""
        return len(self.seconds["update"])


class DemoRecord(Record[DemoLearner]):
    """The record of a training by `iswitch demo`.

    Args:
        topology: has a worker on each host.
        iterations: updates until the end.
        seed: seed of environments, actions and weights.
        any_order: sums are made as contributions come, not in rank order.
    """

    def __init__(
        self, topology: Topology, iterations: int, seed: int, any_order: bool = False
    ) -> None:
        hosts = enumerate(topology.hosts)
        super().__init__([DemoLearner(rank, host=host.name) for rank, host in hosts])
        self.title, self.target = "CartPole-v1", LEARNED
        self.topology = topology
        self.iterations = iterations
        self.seed = seed
        self.any_order = any_order
        self.seconds = 0.0  # from `_started` until the newest iteration that all have done
        self._spent: Counter[str] = Counter()  # seconds of all workers, by part
        self._worker_restarts: dict[str, int] = {}  # by host
        self._started: float | None = None  # when all had done their first iteration
        self._untimed = 0  # iterations they had done by then
        self._timed = 0  # the newest iteration that all have done
        self._clock = 0.0  # the latest time that a worker told
        self._heard: float | None = None
        self._left = False  # the workers had time to end by themselves

    def hear(self, worker: WorkerProcess, line: str, is_error: bool) -> None:
        """Take a line that a worker prints."""
        self._heard = time.monotonic()
        if worker.restarts.count:
            self._worker_restarts[worker.host] = worker.restarts.count
        super().hear(worker, line, is_error)

    def take(self, learner: DemoLearner, message: dict[str, Any]) -> None:
        """Handle a worker's message, whose `event` names its kind."""
        match message["event"]:
            case "joined":
                learner.pid = message["pid"]
            case "iteration":
                at = message["iteration"]
                learner.returns += [(at, value) for value in message["returns"]]
                for part, values in learner.seconds.items():
                    # A restarted worker skips some iterations, or repeats some.
                    values[at:] = [0.0] * (at - len(values))
                    values.append(message[part])
                    self._spent[part] += message[part]
                self._clock = max(self._clock, message["at"])
                self._time()
            case "round":
                learner.recorded[message["iteration"]] = message

    def _time(self) -> None:
        """Time the iterations that all workers have done, by their own clocks."""
        if self.iteration > self._timed:
            self._timed = self.iteration
            if self._started is None:
                self._started, self._untimed = self._clock, self._timed
            self.seconds = self._clock - self._started

    def tick(self, now: float) -> None:
        """Fail if all workers are silent for too long."""
        self._heard = now if self._heard is None else self._heard
        silence = now - self._heard
        self._left = silence > LEAVING
        if silence > LONGEST_SILENCE:
            self.fail(f"no worker has said anything for {LONGEST_SILENCE:.0f} s")

    @property
    def over(self) -> bool:
        """Return whether the demo failed, or is done and its workers had time to exit."""
        return self.failure is not None or (self.done and self._left)

    @property
    def iteration(self) -> int:
        """Return the number of iterations that every worker has completed."""
        return min(learner.iterations for learner in self.learners)

    @property
    def rate(self) -> float | None:
        """Return the iterations per second; None: too little was timed to tell."""
        if self.seconds < RATE_AFTER:
            return None
        return (self._timed - self._untimed) / self.seconds

    def point(self) -> tuple[float, int, float]:
        """Return the newest point of the learning curve."""
        last = self.episodes(WINDOW)
        return self.seconds, self.iteration, sum(last) / len(last) if last else math.nan

    def episodes(self, last: int | None = None) -> list[float]:
        """List the `last` returns of all workers (None: all), in the order of their iterations."""
        first = 0 if last is None else -last  # only a worker's last can be among the last of all
        ended = [(i, k, r) for k, one in enumerate(self.learners) for i, r in one.returns[first:]]
        return [value for _, _, value in sorted(ended, key=lambda entry: entry[:2])][first:]

    def share(self) -> dict[str, float]:
        """Split the workers' time: the share, from 0 to 1, of each of PARTS."""
        total = self._spent.total()
        return {part: self._spent[part] / total if total else 0.0 for part in PARTS}

    def report(self) -> dict[str, Any]:
        """Collect all that was measured, and whether the checks hold."""
        returns = self.episodes()
        start = float(np.mean(returns[:WINDOW])) if returns else 0.0
        end = float(np.mean(returns[-WINDOW:])) if returns else 0.0
        done = [learner.done for learner in self.learners if learner.done is not None]
        weights = {message["weights"] for message in done}
        aggregation = np.concatenate([one.seconds["aggregate"] for one in self.learners])
        aggregation = aggregation[aggregation > 0]  # else the iteration was skipped
        shape = Shape.of(done[0]["elements"])
        counters: Counter[str] = Counter()
        for of_one in self.counters.values():
            counters.update(of_one)
        vectors = counters["accumulated"] / shape.segments
        drops = {name: counters[name] for name in ("duplicate", "late", "rx_overflow")}
        return {
            "workers": len(self.learners),
            "iterations": self.iterations,
            "seed": self.seed,
            "seconds": self.seconds,
            "iterations_per_second": self.rate,
            "episodes": len(returns),
            "mean_return_start": start,
            "mean_return_end": end,
            "elements": shape.numel,
            "weights_sha256": sorted(weights),
            "bytes_aggregated": round(vectors * shape.numel * shape.dtype.itemsize),
            "packets_aggregated": counters["accumulated"],
            "aggregates": counters["aggregates"],
            "share_added": shares.shares(self.counters),
            "drops": {name: count for name, count in drops.items() if count},
            "restarts": {"switches": self.restarts, "workers": self._worker_restarts},
            "allreduce_p50": float(np.percentile(aggregation, 50)) if len(aggregation) else 0.0,
            "allreduce_p99": float(np.percentile(aggregation, 99)) if len(aggregation) else 0.0,
            "share": self.share(),
            "per_worker": [
                {"rank": one.rank, "returns": one.returns, **one.seconds, "stats": last["stats"]}
                for one, last in zip(self.learners, done, strict=True)
            ],
            "checks": {
                "learned": end >= LEARNED,
                "weights equal": len(weights) == 1,
                "sum exact": sum_is_exact(self.topology, self.recorded(), self.any_order),
            },
        }

    def recorded(self) -> dict[str, dict[str, Any]]:
        """Find the newest round that every worker has recorded; {}: there is none."""
        rounds = set.intersection(*(set(learner.recorded) for learner in self.learners))
        return {one.host: one.recorded[max(rounds)] for one in self.learners if rounds}


class DemoScreen(Screen):
    """Shows the progress of `iswitch demo`, with a row for each worker on a terminal."""

    command = "demo"
    digits = 4

    def __init__(self, record: DemoRecord, console: Console | None = None) -> None:
        super().__init__(console)
        self.record = record
        self._next_line = 0

    def __enter__(self) -> Self:
        count, switches = len(self.record.learners), len(self.record.topology.tree)
        text = f"{workers(count)} train CartPole-v1; the switch adds up their gradients"
        if switches > 1:
            text = f"{workers(count)} train CartPole-v1; {switches} switches add up their gradients"
        elif count == 1:
            text = "1 worker trains CartPole-v1; the switch passes on its gradients"
        self.console.print(text, soft_wrap=True)
        return super().__enter__()

    def refresh(self) -> None:
        """Show how far the training is; where there is no terminal, ten times in all."""
        done, total = self.record.iteration, self.record.iterations
        if self.console.is_terminal:
            self.draw(done, total, self._state(), self._table())
        elif done >= self._next_line:
            self._next_line = done + max(1, total // LINES)
            self.line(done, total, self._state())

    def _state(self) -> str:
        record = self.record
        recent = record.episodes(WINDOW)
        mean = f"{sum(recent) / len(recent):5.1f}" if recent else "    -"
        rate = "   -" if record.rate is None else f"{record.rate:4.1f}"
        aggregation = record.share()["aggregate"]
        part = f"{100 * aggregation:2.0f}" if aggregation else " -"
        return f"mean return {mean}  {rate} iterations/s  {part} % of the time in aggregation"

    def _table(self) -> Table:
        table = Table(box=None)
        for name in ("rank", "process", "episodes"):
            table.add_column(name, justify="right")
        table.add_column(f"mean return of the last {WINDOW}")
        every = self.record.learners
        room = max(1, self.console.height - 4)  # the lines beside the rows
        shown = every if len(every) <= room else every[: room - 1]
        for learner in shown:
            last = [value for _, value in learner.returns[-WINDOW:]]
            mean = sum(last) / max(1, len(last))
            table.add_row(
                str(learner.rank),
                str(learner.pid or "-"),
                str(len(learner.returns)),
                f"{'━' * round(BAR * mean / BEST):{BAR}} {mean:5.1f}" if last else "",
            )
        if len(shown) < len(every):
            table.add_row("...", "", "", f"and {len(every) - len(shown)} more")
        return table

    @cached_property
    def report(self) -> dict[str, Any]:
        """Return all measurements, once the training has ended."""
        return self.record.report()

    def summarise(self) -> int:
        """Print the summary; return the exit status."""
        checks = self.report["checks"]
        promises = self._promises()
        short = self.record.iterations < ITERATIONS and not checks["learned"]
        if short:
            promises["learned"] = f"learned: too few iterations to judge; {ITERATIONS} are enough"
        return self.tell(
            self._rows(self.report),
            [
                Check(holds, promises[name], short and name == "learned")
                for name, holds in checks.items()
            ],
        )

    def _rows(self, report: Mapping[str, Any]) -> list[tuple[str, str]]:
        record, ms, of = self.record, 1e3, report["restarts"]
        lost = " (what a killed switch had counted is lost)" if of["switches"] else ""
        rows = [
            ("mean return", f"{report['mean_return_start']:.1f} in the first {WINDOW} episodes, "
                f"{report['mean_return_end']:.1f} in the last {WINDOW}"),
            ("training", f"{record.iterations} iterations in {record.seconds:.1f} s, "
                f"{report['episodes']} episodes"),
            ("aggregated", f"{report['bytes_aggregated'] / 1e6:.1f} MB in "
                f"{report['packets_aggregated']:,} packets{lost}"),
            ("allreduce", f"p50 {ms * report['allreduce_p50']:.2f} ms, "
                f"p99 {ms * report['allreduce_p99']:.2f} ms, with the wait for the slowest"),
            ("time", ", ".join(f"{part} {100 * report['share'][part]:.0f} %" for part in PARTS)),
        ]  # fmt: skip
        if added := shares.told(record.counters):
            rows.append(("added", added))
        restarts = {**of["switches"], **of["workers"]}
        if restarts:
            said = [name + (f" ({n} times)" if n > 1 else "") for name, n in restarts.items()]
            rows.append(("restarted", ", ".join(said)))
        return rows

    def _promises(self) -> dict[str, str]:
        record = self.record
        equal = f"weights of all {len(record.learners)} workers equal to the last bit"
        if len(record.learners) == 1:
            equal = "weights: nothing to compare with one worker"
        exact = "recorded round equals the local sum in rank order, to the last bit"
        if record.any_order:
            exact = "recorded round equals, in every segment, the local sum in some order, "
            exact += "to the last bit"
        elif len(record.topology.tree) > 1:
            exact = "recorded round equals the local sum, as the switches of the tree add, "
            exact += "to the last bit"
        return {
            "learned": f"learned: mean return of at least {LEARNED:.0f}",
            "weights equal": equal,
            "sum exact": exact,
        }


def command(record: DemoRecord) -> list[str]:
    """Make the command of each worker; its environment says where it is."""
    options = [f"--seed={record.seed}", f"--iterations={record.iterations}"]
    options.append(f"--any-order={int(record.any_order)}")
    return [sys.executable, "-P", "-m", "worker_lib.rl.demo_worker", *options]
