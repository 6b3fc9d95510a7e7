"""Rounds in turns (A B A B ...), so that whatever else the machine does hits all ways alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from .result import Results, Series

if TYPE_CHECKING:
    from .group import Group
    from .plan import Plan, Setting

Progress = Callable[[float, str], None]  # cells done, and what is being done


def measure(
    plan: Plan, setting: Setting, groups: Sequence[Group], results: Results, progress: Progress
) -> None:
    """Measure all sizes on one network; what has been measured so far is always in `results`.

    Args:
        plan: what to measure.
        setting: the network that the groups are on.
        groups: one for each way, in order.
        results: to which series are added.
        progress: told of every turn.

    Raises:
        WrongSum: sums are not exact.
        BenchFailed: a process has died.
    """
    for job, size in enumerate(plan.sizes, 1):
        before = len({(one.size, one.setting) for one in results.series})
        label = f"{size.label}, {setting.text}"

        def told(fraction: float, before: int = before, label: str = label) -> None:
            progress(before + fraction, label)

        told(0.0)
        for i, group in enumerate(groups):
            number = job * len(groups) + i  # of its own, where several share a switch
            group.order("join", group.joins, size.numel, number, group.options)
        series = [Series(group.way, size, setting, group.size) for group in groups]
        results.series += series
        check(groups, series)
        for _ in range(plan.warmup):
            for group in groups:
                group.round()
        computing = plan.computing(size)
        share = 1.0 if computing is None else 0.5  # of the cell
        for part in turns(plan, groups, series):
            told(share * part)
        if computing is not None:
            for i in range(plan.iterations):
                for group, one in zip(groups, series, strict=True):
                    one.iterations.append(group.round(computing, update=True))
                told(share + (1 - share) * (i + 1) / plan.iterations)
        check(groups, series)
        for group, one in zip(groups, series, strict=True):
            one.stats = group.order("leave")


def check(groups: Sequence[Group], series: Sequence[Series]) -> None:
    """A round of each, with a look at the sums."""
    for group, one in zip(groups, series, strict=True):
        group.round()
        if one.way.adds:
            one.exact = False
            group.check()
            one.exact = True


def turns(plan: Plan, groups: Sequence[Group], series: Sequence[Series]) -> Iterator[float]:
    """A round of each way in every turn: so many turns, or for so long but at least so many.

    Yields:
        which part of that is done.
    """
    began = time.monotonic()
    part, count = 0.0, 0
    while part < 1:
        for group, one in zip(groups, series, strict=True):
            one.rounds.append(group.round())
        count += 1
        if plan.rounds is not None:
            part = count / plan.rounds
        else:
            part = min((time.monotonic() - began) / plan.seconds, count / plan.least)
        yield min(part, 1.0)
