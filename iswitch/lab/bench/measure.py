"""Measures strategies in turns (A B A B ...), so that other load affects all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from .plan import ASYNC, BARRIER, WARM, described
from .result import Results, Series

if TYPE_CHECKING:
    from .group import Group, Round
    from .plan import Plan, Setting

Progress = Callable[[float, str], None]  # cells done, and the present work in words


def measure(
    plan: Plan, setting: Setting, groups: Sequence[Group], results: Results, progress: Progress
) -> None:
    """Measure all sizes on one network; `results` holds each round as soon as it is measured.

    Args:
        plan: measurements to make.
        setting: the network that the groups are on.
        groups: one for each way, in order.
        results: the measured series are added to it.
        progress: told of every turn.

    Raises:
        WrongSum: a sum is not exact.
        BenchFailed: a process has died.
    """
    for job, (collective, size) in enumerate(plan.calls(groups[0].size), 1):
        before = len(results.all_cells())
        label = described(collective, size, setting)
        progress(before, label)
        for i, group in enumerate(groups):
            number = job * len(groups) + i  # of its own, where several share a switch
            group.join(collective, size.numel, number)
        series = [
            Series(group.way, size, setting, group.size, collective=collective) for group in groups
        ]
        results.series += series
        once = check(groups, series)
        computing = plan.computing(collective, size)
        most = once * (plan.rounds or plan.least) * (1 + WARM / plan.in_a_row)
        if computing is not None:
            most += plan.iterations * (once + len(groups) * computing)
        if most > plan.seconds:
            label += f", about {most:.0f} s"
        for _ in range(plan.warmup if plan.in_a_row == 1 else 0):  # those in a row have their own
            for group in groups:
                take(plan, group, computing)
        share = 0.5 if plan.iterations and computing is not None else 1.0  # of the cell
        for part in turns(plan, groups, series, computing):
            progress(before + share * part, label)
        if plan.iterations and computing is not None:
            for i in range(plan.iterations):
                for group, one in zip(groups, series, strict=True):
                    one.iterations.append(group.round(computing, update=True))
                progress(before + share + (1 - share) * (i + 1) / plan.iterations, label)
        check(groups, series)
        for group, one in zip(groups, series, strict=True):
            one.stats = group.order("leave")


def check(groups: Sequence[Group], series: Sequence[Series]) -> float:
    """Run a round of each strategy and check the sums; return the seconds of these rounds."""
    seconds = 0.0
    for group, one in zip(groups, series, strict=True):
        if one.way.name != ASYNC:
            seconds += group.round().iteration
        if one.way.adds and one.collective != BARRIER:
            one.exact = False
            group.check()
            one.exact = True
    return seconds


def take(plan: Plan, group: Group, computing: float | None, count: int = 1) -> list[Round]:
    """Run a turn of one strategy: rounds in a row, one round, or iterations.

    Args:
        plan: says which of these.
        group: the workers.
        computing: seconds of emulated computing in an iteration; None: none.
        count: rounds in a row.
    """
    if plan.in_a_row > 1:
        return group.row(count, WARM)
    if not plan.free:
        return [group.round()]
    compute = computing or 0.0
    if group.way.adds:
        return [group.round(compute, update=True)]
    return [group.free(plan.free, compute)]


def turns(
    plan: Plan, groups: Sequence[Group], series: Sequence[Series], computing: float | None
) -> Iterator[float]:
    """Run turns of all strategies alternately, for a number of rounds or of seconds.

    Args:
        plan: says how many rounds or seconds.
        groups: the workers of each strategy.
        series: gets the rounds of each strategy.
        computing: seconds of emulated computing in an iteration; None: none.

    Yields:
        the part that is done, from 0 to 1.
    """
    began = time.monotonic()
    part, count = 0.0, 0
    while part < 1:
        left = plan.in_a_row if plan.rounds is None else plan.rounds - count
        length = min(plan.in_a_row, left)
        for group, one in zip(groups, series, strict=True):
            taken = take(plan, group, computing, length)
            one.rounds += taken
            if plan.free:
                one.iterations += taken
        count += length
        if plan.rounds is not None:
            part = count / plan.rounds
        else:
            part = min((time.monotonic() - began) / plan.seconds, count / plan.least)
        yield min(part, 1.0)
