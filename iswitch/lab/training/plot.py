"""The picture of `iswitch demo --plot`: how the workers learned, and where their time went."""

from __future__ import annotations

from typing import Any

import numpy as np

from iswitch.lab.options import workers

from .demo import BEST, LEARNED, WINDOW, DemoRecord
from .record import PARTS


def plot(record: DemoRecord, path: str) -> None:
    """Draw the learning curve, and where the time of each iteration went."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, (learning, split) = pyplot.subplots(2, 1, figsize=(9, 7), layout="constrained")
    curves = [curve(learner.returns, record.iterations) for learner in record.learners]
    for rank, values in enumerate(curves):
        label = f"rank {rank}" if len(record.learners) <= 8 else "a worker" if rank == 0 else None
        learning.plot(values, linewidth=1, alpha=0.6, label=label)
    if len(record.learners) > 1:
        learning.plot(np.mean(curves, axis=0), color="black", linewidth=1.8, label="mean")
    label = f"learned: {LEARNED:.0f}"
    learning.axhline(LEARNED, color="0.4", linestyle=":", linewidth=1, label=label)
    learning.set(
        title=f"CartPole-v1, {workers(len(record.learners))}",
        ylabel="return",
        ylim=(0, BEST * 1.04),
    )
    learning.set_xlim(0, record.iterations)
    beside: dict[str, Any] = {
        "loc": "upper left", "bbox_to_anchor": (1.01, 1), "borderaxespad": 0, "alignment": "left",
        "frameon": False, "fontsize": 8, "title_fontsize": 8,
    }  # fmt: skip
    learning.legend(title=f"mean of the\nlast {WINDOW} episodes", **beside)
    parts = [
        rolling(np.mean([learner.seconds[part] for learner in record.learners], axis=0))
        for part in PARTS
    ]
    split.stackplot(
        range(record.iterations), [1e3 * part for part in parts], labels=PARTS, alpha=0.85,
        colors=("tab:blue", "tab:orange", "tab:green"),
    )  # fmt: skip
    split.set(xlabel="iteration", ylabel="ms", title="time of an iteration, mean of the workers")
    split.set_xlim(0, record.iterations)
    for axes in (learning, split):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    split.set_ylim(0, 1.05e3 * float(np.sum(parts, axis=0).max()))
    split.legend(reverse=True, **beside)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def curve(returns: list[tuple[int, float]], iterations: int) -> np.ndarray[Any, Any]:
    """Compute a worker's mean return over WINDOW episodes after each iteration; NaN: none yet."""
    if not returns:
        return np.full(iterations, np.nan)
    at, values = np.array(returns).T
    ended = np.searchsorted(at, np.arange(iterations), side="right")
    means: np.ndarray[Any, Any] = np.where(ended, rolling(values)[ended - 1], np.nan)
    return means


def rolling(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Average the last WINDOW values at each index; the shape stays."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    end = np.arange(1, len(values) + 1)
    begin = np.maximum(0, end - WINDOW)
    means: np.ndarray[Any, Any] = (sums[end] - sums[begin]) / (end - begin)
    return means
