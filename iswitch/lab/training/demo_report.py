"""What the demo shows: the screen while it runs, the checks, the summary and the plot."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from rich.console import Console, Group
from rich.table import Table

from iswitch.core.format.wire import Shape
from iswitch.lab.options import workers

from .demo_sums import sum_is_exact
from .demo_training import ITERATIONS, LEARNED, WINDOW
from .live_screen import LiveScreen

if TYPE_CHECKING:
    from .demo_training import Training

BEST = 500  # CartPole-v1 ends an episode there
BAR = 24  # characters


class Screen(LiveScreen):
    """Live progress on a terminal; a line now and then elsewhere."""

    command = "demo"

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.training = training
        self._next_line = 0

    def __enter__(self) -> Self:
        text = (
            f"{self.training.workers} workers train CartPole-v1; the switch adds up their gradients"
        )
        topology = self.training.topology
        if topology is not None and len(topology.tree) > 1:
            count = len(topology.tree)
            who = workers(self.training.workers)
            text = f"{who} train CartPole-v1; {count} switches add up their gradients"
        elif self.training.workers == 1:
            text = "1 worker trains CartPole-v1; the switch passes on its gradients"
        self.console.print(text, soft_wrap=True)
        return super().__enter__()

    def refresh(self) -> None:
        """Show how far it is."""
        training = self.training
        if self.console.is_terminal:
            if time.monotonic() - self._shown < 0.1:
                return
            self._shown = time.monotonic()
            self._progress.update(
                self._task, completed=training.iteration, total=training.iterations
            )
            shown = Group(self._state(), self._progress, self._members())
            self._live.update(shown, refresh=True)
        elif training.iteration >= self._next_line:
            self._next_line = training.iteration + max(1, training.iterations // 10)
            line = f"iteration {training.iteration:>4} of {training.iterations}  {self._state()}"
            self.console.print(line, soft_wrap=True)

    def _state(self) -> str:
        training = self.training
        recent = training.episodes(WINDOW)
        mean = f"{sum(recent) / len(recent):5.1f}" if recent else "    -"
        rate = "   -" if training.rate is None else f"{training.rate:4.1f}"
        part = f"{100 * share(training, 'aggregate'):2.0f}" if training.spent else " -"
        return f"mean return {mean}  {rate} iterations/s  {part} % of the time in aggregation"

    def _members(self) -> Table:
        table = Table(box=None)
        for name, justify in (("rank", "right"), ("process", "right"), ("episodes", "right")):
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        table.add_column(f"mean return of the last {WINDOW}")
        members = self.training.members
        room = max(1, self.console.height - 4)  # the lines beside the rows
        if len(members) > room:
            members = members[: room - 1]
        for member in members:
            mean = member.recent_return()
            known = mean == mean
            filled = round(BAR * mean / BEST) if known else 0
            table.add_row(
                "-" if member.rank is None else str(member.rank),
                str(member.child.process.pid),
                str(len(member.returns)),
                f"{'━' * filled:{BAR}} {mean:5.1f}" if known else "",
            )
        if len(members) < self.training.workers:
            table.add_row("...", "", "", f"and {self.training.workers - len(members)} more")
        return table


def share(training: Training, part: str) -> float:
    """The part of all workers' time that went into compute, aggregate or update."""
    total = training.spent.total()
    return training.spent[part] / total if total else 0.0


PARTS = ("compute", "aggregate", "update")


def check(training: Training) -> dict[str, Any]:
    """All that was measured, and whether the checks hold."""
    returns = training.episodes()
    start = float(np.mean(returns[:WINDOW])) if returns else 0.0
    end = float(np.mean(returns[-WINDOW:])) if returns else 0.0
    done = [member.done for member in training.members if member.done is not None]
    weights = {message["weights"] for message in done}
    aggregation = np.concatenate([member.seconds["aggregate"] for member in training.members])
    aggregation = aggregation[aggregation > 0]  # else the iteration was skipped
    shape = Shape.of(done[0]["elements"])
    counters: Counter[str] = Counter()
    for of_one in training.counters.values():
        counters.update(of_one)
    vectors = counters["accumulated"] / shape.segments
    drops = {name: counters[name] for name in ("duplicate", "late", "rx_overflow")}
    return {
        "workers": training.workers,
        "iterations": training.iterations,
        "seed": training.seed,
        "seconds": training.seconds,
        "iterations_per_second": training.rate,
        "episodes": len(returns),
        "mean_return_start": start,
        "mean_return_end": end,
        "elements": shape.numel,
        "weights_sha256": sorted(weights),
        "bytes_aggregated": round(vectors * shape.numel * shape.dtype.itemsize),
        "packets_aggregated": counters["accumulated"],
        "aggregates": counters["aggregates"],
        "drops": {name: count for name, count in drops.items() if count},
        "restarts": {
            "switches": training.restarts,
            "workers": {m.host: m.restarts.count for m in training.members if m.restarts.count},
        },
        "allreduce_p50": float(np.percentile(aggregation, 50)),
        "allreduce_p99": float(np.percentile(aggregation, 99)),
        "share": {part: share(training, part) for part in PARTS},
        "per_worker": [
            {"rank": m.rank, "returns": m.returns, **m.seconds, "stats": d["stats"]}
            for m, d in zip(training.members, done, strict=True)
        ],
        "checks": {
            "learned": end >= LEARNED,
            "weights equal": len(weights) == 1,
            "sum exact": sum_is_exact(training),
        },
    }


def summarise(training: Training, report: dict[str, Any], console: Console) -> None:
    """Print the summary."""
    ms = 1e3
    split = ", ".join(f"{part} {100 * report['share'][part]:.0f} %" for part in PARTS)
    rows = [
        ("mean return", f"{report['mean_return_start']:.1f} in the first {WINDOW} episodes, "
            f"{report['mean_return_end']:.1f} in the last {WINDOW}"),
        ("training", f"{training.iterations} iterations in {training.seconds:.1f} s, "
            f"{report['episodes']} episodes"),
        ("aggregated", f"{report['bytes_aggregated'] / 1e6:.1f} MB in "
            f"{report['packets_aggregated']:,} packets"),
        ("allreduce", f"p50 {ms * report['allreduce_p50']:.2f} ms, "
            f"p99 {ms * report['allreduce_p99']:.2f} ms, with the wait for the slowest"),
        ("time", split),
    ]  # fmt: skip
    restarts = {**report["restarts"]["switches"], **report["restarts"]["workers"]}
    if report["restarts"]["switches"]:
        name, value = rows[2]
        rows[2] = name, f"{value} (what a killed switch had counted is lost)"
    if restarts:
        said = ", ".join(name + (f" ({n} times)" if n > 1 else "") for name, n in restarts.items())
        rows.append(("restarted", said))
    for name, value in rows:
        console.print(f" {name:12} {value}", soft_wrap=True)
    meaning = {
        "learned": f"learned: mean return of at least {LEARNED:.0f}",
        "weights equal": f"weights of all {training.workers} workers equal to the last bit",
        "sum exact": "recorded round equals the local sum in rank order, to the last bit",
    }
    if training.topology is not None and len(training.topology.tree) > 1:
        order = "as the switches of the tree add"
        meaning["sum exact"] = f"recorded round equals the local sum, {order}, to the last bit"
    if training.any_order:
        meaning["sum exact"] = (
            "recorded round equals, in every segment, the local sum in some order, to the last bit"
        )
    if training.workers == 1:
        meaning["weights equal"] = "weights: nothing to compare with one worker"
    for name, holds in report["checks"].items():
        mark = "[green]ok[/]    " if holds else "[red]FAILED[/]"
        if name == "learned" and not holds and training.iterations < ITERATIONS:
            mark = "[yellow]short[/] "
            meaning[name] = f"learned: too few iterations to judge; {ITERATIONS} are enough"
        console.print(f" {mark} {meaning[name]}", soft_wrap=True)


def plot(training: Training, path: str) -> None:
    """Draw the learning curve, and where the time of each iteration went."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, (learning, split) = pyplot.subplots(2, 1, figsize=(9, 7), layout="constrained")
    curves = [curve(member.returns, training.iterations) for member in training.members]
    for rank, values in enumerate(curves):
        label = f"rank {rank}" if training.workers <= 8 else "a worker" if rank == 0 else None
        learning.plot(values, linewidth=1, alpha=0.6, label=label)
    if training.workers > 1:
        learning.plot(np.mean(curves, axis=0), color="black", linewidth=1.8, label="mean")
    label = f"learned: {LEARNED:.0f}"
    learning.axhline(LEARNED, color="0.4", linestyle=":", linewidth=1, label=label)
    learning.set(
        title=f"CartPole-v1, {workers(training.workers)}", ylabel="return", ylim=(0, BEST * 1.04)
    )
    learning.set_xlim(0, training.iterations)
    beside: dict[str, Any] = {
        "loc": "upper left", "bbox_to_anchor": (1.01, 1), "borderaxespad": 0, "alignment": "left",
        "frameon": False, "fontsize": 8, "title_fontsize": 8,
    }  # fmt: skip
    learning.legend(title=f"mean of the\nlast {WINDOW} episodes", **beside)
    parts = [
        rolling(np.mean([m.seconds[part] for m in training.members], axis=0)) for part in PARTS
    ]
    split.stackplot(
        range(training.iterations), [1e3 * part for part in parts], labels=PARTS, alpha=0.85,
        colors=("tab:blue", "tab:orange", "tab:green"),
    )  # fmt: skip
    split.set(xlabel="iteration", ylabel="ms", title="time of an iteration, mean of the workers")
    split.set_xlim(0, training.iterations)
    for axes in (learning, split):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    split.set_ylim(0, 1.05e3 * float(np.sum(parts, axis=0).max()))
    split.legend(reverse=True, **beside)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def curve(returns: list[tuple[int, float]], iterations: int) -> np.ndarray[Any, Any]:
    """Mean return of a worker's last WINDOW episodes after each iteration; NaN before the first."""
    if not returns:
        return np.full(iterations, np.nan)
    at, values = np.array(returns).T
    ended = np.searchsorted(at, np.arange(iterations), side="right")
    means: np.ndarray[Any, Any] = np.where(ended, rolling(values)[ended - 1], np.nan)
    return means


def rolling(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Mean of the last WINDOW values at each place, shape as given."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    end = np.arange(1, len(values) + 1)
    begin = np.maximum(0, end - WINDOW)
    means: np.ndarray[Any, Any] = (sums[end] - sums[begin]) / (end - begin)
    return means
