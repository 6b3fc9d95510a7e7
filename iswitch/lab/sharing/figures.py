"""Draws the plots of `iswitch bench sharing`, each with a caption and hints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from iswitch.lab.bench.figures import Picture, axes_of, number_text, plain
from iswitch.lab.reports.page import COLOURS, INK

from .played import Played

MOST_ROWS = 12  # jobs that a Gantt chart shows, and that have a colour of their own
FAINT = COLOURS[-1]
MS = 1e3  # in a second


def gantt(played: Played) -> Picture:
    """Draw who has the lane, who waits, and who is there, over time."""
    tasks = played.experiment.tasks
    record = played.record
    turns = [] if record is None else record.turns
    with axes_of(figsize=(5, 1.2 + 0.28 * len(tasks))) as (figure, axes):
        hints = {}
        for row, task in enumerate(tasks):
            ran = played.jobs[task.number]
            own = [(begin, end) for job, begin, end in turns if job == task.number] or ran.rounds
            came = played.let_in(task.number)
            colour = COLOURS[row % len(COLOURS)]
            axes.barh(
                row, MS * (ran.ends - came), left=MS * came, height=0.7, color=FAINT, alpha=0.25
            )
            if came > ran.comes:
                axes.barh(
                    row, MS * (came - ran.comes), left=MS * ran.comes, height=0.7, fill=False,
                    edgecolor=FAINT, linestyle=":",
                )  # fmt: skip
            bars = [(MS * begin, MS * (end - begin)) for begin, end in own]
            axes.broken_barh(bars, (row - 0.35, 0.7), color=colour, linewidth=0, gid=task.name)
            hints[task.name] = (
                f"{task.name}: waited {MS * (came - ran.comes):.3g} ms, over after "
                f"{MS * ran.seconds:.4g} ms; {len(own)} rounds"
            )
        axes.set_yticks(range(len(tasks)), [task.name for task in tasks])
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.set(xlabel="ms", xlim=(0, None))
    what = "has the lane" if turns else "has a round under way"
    return Picture(
        figure,
        f"{played.sharing.label}: coloured, the job {what}; grey, it computes or waits for its "
        "turn; dotted, it waits to be let in.",
        hints,
    )


def memory(played: Sequence[Played]) -> Picture:
    """Draw the bytes that are reserved over time."""
    with axes_of() as (figure, axes):
        hints = {}
        for i, one in enumerate(played):
            if one.record is None or not one.record.memory:
                continue
            at, reserved = np.transpose(one.record.memory)
            label = one.sharing.label
            axes.step(
                MS * at, reserved / 2**20, where="post", color=COLOURS[i % len(COLOURS)],
                linewidth=1.2, label=label, gid=label,
            )  # fmt: skip
            hints[label] = f"{label}: at most {reserved.max() / 2**20:.3f} MiB"
        limit = played[0].experiment.memory / 2**20
        axes.axhline(limit, color=INK, linewidth=0.8, linestyle=":")
        axes.set(xlabel="ms", ylabel="MiB reserved", ylim=(0, 1.35 * limit))
        axes.legend(ncols=2, fontsize=8, loc="upper right")
    return Picture(figure, "Memory reserved for jobs; dotted, all that there is.", hints)


def completions(played: Sequence[Played]) -> Picture:
    """Draw the distribution of the jobs' times."""
    with axes_of() as (figure, axes):
        hints = {}
        for i, one in enumerate(played):
            label = one.sharing.label
            axes.ecdf(MS * one.completions, color=COLOURS[i % len(COLOURS)], label=label, gid=label)
            hints[label] = f"{label}: {MS * one.completions.mean():.4g} ms on average"
        axes.set(xlabel="ms from coming to leaving", ylabel="part of the jobs", xscale="log")
        plain(axes.xaxis, number_text)
        axes.legend(fontsize=8)
    return Picture(figure, "Times of the jobs, waiting included.", hints)


def bars(played: Sequence[Played]) -> Picture:
    """Draw mean completion and makespan side by side."""
    with axes_of(figsize=(5, 1.0 + 0.42 * len(played))) as (figure, axes):
        hints = {}
        for i, one in enumerate(played):
            colour = COLOURS[i % len(COLOURS)]
            for k, (what, value) in enumerate(
                (("mean completion", one.completions.mean()), ("makespan", one.makespan))
            ):
                gid = f"{what}-{i}"
                axes.barh(
                    i - 0.2 + 0.4 * k, MS * value, 0.36, color=colour, alpha=0.55 if k else 1,
                    gid=gid,
                )  # fmt: skip
                axes.text(
                    MS * value, i - 0.2 + 0.4 * k, f" {MS * value:.4g}", va="center", fontsize=8
                )
                hints[gid] = f"{one.sharing.label}: {what} {MS * value:.4g} ms"
        axes.set_yticks(range(len(played)), [one.sharing.label for one in played])
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.grid(False, axis="y")
        axes.set(xlabel="ms: mean completion above, makespan below")
    return Picture(figure, "Mean completion of the jobs, and the time until all are over.", hints)


def pictures(played: Sequence[Played]) -> Iterator[Picture]:
    """Draw all that there is to see of one experiment."""
    if len(played[0].experiment.tasks) <= MOST_ROWS:
        yield from map(gantt, played)
    yield memory(played)
    yield completions(played)
    yield bars(played)
