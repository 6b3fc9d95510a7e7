"""Draws the plots of a measurement for a page, each with a caption and hints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from iswitch.faults.units import RATE, count
from iswitch.lab.reports.page import COLOURS, INK, drawing

from .paper import CLAIMED
from .plan import ALLREDUCE
from .report import ms

if TYPE_CHECKING:
    from .paper import Comparison
    from .plan import Setting
    from .result import Results, Series

PARTS = {"compute": 0.35, "aggregate": 1.0, "update": 0.65}  # how opaque each is


class Picture(NamedTuple):
    """A figure, its caption and its hints, as `Page.figure` takes them."""

    figure: Figure
    caption: str
    hints: dict[str, str]


@contextmanager
def axes_of(**size: Any) -> Iterator[tuple[Figure, Any]]:
    """Make a figure and its axes, to be drawn in a `with` block."""
    with drawing():
        figure = Figure(**size)
        yield figure, figure.subplots()


class Pictures:
    """Draws all plots of a collective; every strategy has one colour in all of them.

    Args:
        results: everything that was measured.
        collective: the collective.
    """

    def __init__(self, results: Results, collective: str = ALLREDUCE) -> None:
        self.collective = collective
        self.cells = results.of(collective).cells()
        labels = dict.fromkeys(one.way.label for cell in results.cells() for one in cell)
        self.colours = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}

    @property
    def one(self) -> str:
        """Return the collective with its article."""
        return f"{'an' if self.collective.startswith('a') else 'a'} {self.collective}"

    def against_size(self) -> Iterator[Picture]:
        """Draw time against size, log-log: medians in a band of quartiles."""
        for setting, cells in self._by_setting().items():
            if len(cells) > 1:
                lines = across(cells, lambda one: one.size.bytes)
                what = f"Time of {self.one} against the vector's size; {named(cells[0])}"
                yield self._lines(lines, what, "bytes of the vector", setting)

    def against_workers(self) -> Iterator[Picture]:
        """Draw time against the number of workers: medians with quartiles."""
        found: dict[tuple[str, Any], list[list[Series]]] = {}
        for cell in self.cells:
            one = cell[0]
            kind = re.sub(r":\d+", ":N", one.setting.form, count=1)
            where_ = kind, one.setting.rate, one.setting.loss
            found.setdefault((one.size.label, where_), []).append(cell)
        for (label, (kind, *settings)), cells in found.items():
            if len({cell[0].workers for cell in cells}) > 1:
                lines = across(cells, lambda one: one.workers)
                where = ", ".join([kind, *(text for text in settings if text)])
                what = f"Time of {self.one} of {label} against the number of workers; {where}"
                yield self._lines(lines, what, "workers", None)

    def _lines(
        self, lines: dict[str, list[tuple[float, Series]]], what: str, x: str, log: Setting | None
    ) -> Picture:
        hints = {}
        with axes_of() as (figure, axes):
            for label, points in lines.items():
                points.sort(key=lambda point: point[0])
                xs = [at for at, _ in points]
                low, middle, high = np.transpose([one.quartiles for _, one in points]) * 1e3
                colour = self.colours[label]
                axes.plot(xs, middle, color=colour, label=label)
                axes.fill_between(xs, low, high, color=colour, alpha=0.2, linewidth=0)
                for i, (at, one) in enumerate(points):
                    gid = f"{label}-{i}"
                    axes.plot([at], [middle[i]], "o", color=colour, markersize=5, gid=gid)
                    hints[gid] = hint(one)
            if log is not None:
                axes.set_xscale("log")
                plain(axes.xaxis, size_text)
            else:
                axes.set_xticks(sorted({at for points in lines.values() for at, _ in points}))
            axes.set(yscale="log", xlabel=x, ylabel="ms")
            plain(axes.yaxis, number_text)
            axes.legend()
        return Picture(figure, f"{what}. Medians, bands of quartiles.", hints)

    def ecdf(self) -> Iterator[Picture]:
        """Draw the distribution of allreduce times, a picture for each size and network."""
        for cell in self.cells:
            with axes_of() as (figure, axes):
                hints = {}
                for one in cell:
                    label = one.way.label
                    axes.ecdf(
                        np.multiply(one.seconds, 1e3),
                        color=self.colours[label], label=label, gid=label,
                    )  # fmt: skip
                    hints[label] = hint(one)
                axes.set(
                    xscale="log", xlabel="ms", ylabel=f"part of the calls of {self.collective}"
                )
                plain(axes.xaxis, number_text)
                axes.legend(loc="lower right")
            what = f"ECDF of latencies, {self.collective}: {cell[0].size.label}, {named(cell)}."
            yield Picture(figure, what, hints)

    def split(self) -> Iterator[Picture]:
        """Draw where the time of an iteration goes, in per cent, a picture for each network."""
        for cells in self._by_setting().values():
            bars = [(cell, one) for cell in cells for one in cell if one.iterations]
            if not bars:
                continue
            with axes_of(figsize=(5, 1.2 + 0.26 * len(bars))) as (figure, axes):
                hints = {}
                names = []
                for i, (cell, one) in enumerate(bars):
                    parts = one.split()
                    assert parts is not None
                    total = sum(parts[part] for part in PARTS)
                    left = 0.0
                    for part, alpha in PARTS.items():
                        gid = f"{part}-{i}"
                        share = 100 * parts[part] / total
                        axes.barh(
                            i, share, left=left, color=self.colours[one.way.label], alpha=alpha,
                            height=0.75, label=part if not i else None,
                        )[0].set_gid(gid)  # fmt: skip
                        left += share
                        hints[gid] = (
                            f"{one.way.label}, {one.size.label}: {part} {ms(parts[part])} ms, "
                            f"{share:.0f} % of {ms(total)} ms"
                        )
                    axes.text(102, i, f"{ms(total)} ms", va="center", fontsize=8)
                    names.append(
                        f"{one.size.label}  {one.way.label}" if one is cell[0] else one.way.label
                    )
                axes.set_yticks(range(len(bars)), names)
                axes.invert_yaxis()
                axes.set(xlim=(0, 120), xlabel="% of an iteration")
                axes.set_xticks([0, 25, 50, 75, 100])
                axes.grid(False, axis="y")
                legend = figure.legend(loc="outside upper right", ncols=3)
                for handle in legend.legend_handles:
                    handle.set_facecolor(COLOURS[-1])  # type: ignore[union-attr]
            yield Picture(
                figure,
                f"Split of an iteration: computing (emulated: workers sleep), aggregating, "
                f"updating; medians; {named(cells[0])}.",
                hints,
            )

    def utilisation(self) -> Iterator[Picture]:
        """Draw how busy a worker's link is during an allreduce, a picture for each network."""
        for setting, cells in self._by_setting().items():
            if not any(sum(one.link()) for cell in cells for one in cell):
                continue  # the loopback world has no links
            scale = 100 / float(RATE.parse(setting.rate)) if setting.rate else 1e-9
            with axes_of() as (figure, axes):
                hints = {}
                labels = list(dict.fromkeys(one.way.label for cell in cells for one in cell))
                width = 0.8 / len(labels)
                for i, cell in enumerate(cells):
                    for one in cell:
                        k = labels.index(one.way.label)
                        for bits, sign, way in zip(one.link(), (-1, 1), ("in", "out"), strict=True):
                            gid = f"{way}-{i}-{k}"
                            axes.bar(
                                i - 0.4 + width * (k + 0.5), sign * bits * scale, width * 0.9,
                                color=self.colours[one.way.label], alpha=1 if sign > 0 else 0.6,
                                label=one.way.label if not i and sign > 0 else None,
                            )[0].set_gid(gid)  # fmt: skip
                            hints[gid] = (
                                f"{one.way.label}, {one.size.label}: {way} {bits / 1e6:.0f} Mbit/s"
                            )
                axes.set_xticks(range(len(cells)), [cell[0].size.label for cell in cells])
                unit = "% of the rate" if setting.rate else "Gbit/s"
                axes.set(ylabel=f"in   |   out, {unit}")
                axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{abs(y):g}"))
                axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
            yield Picture(
                figure,
                f"Utilisation of a worker's link while {self.one} lasts: above from the worker, "
                f"below to it; {named(cells[0])}.",
                hints,
            )

    def _by_setting(self) -> dict[Setting, list[list[Series]]]:
        found: dict[Setting, list[list[Series]]] = {}
        for cell in sorted(self.cells, key=lambda cell: cell[0].size.bytes):
            found.setdefault(cell[0].setting, []).append(cell)
        return found


def speedups(found: Sequence[Comparison]) -> Iterator[Picture]:
    """Draw the switch's speedup by gradient and number of workers: one picture for each rate."""
    for rate in dict.fromkeys(one.setting.rate for one in found):
        some = [one for one in found if one.setting.rate == rate]
        sizes = list(dict.fromkeys(one.size.label for one in some))
        bars = list(dict.fromkeys((one.workers, label) for one in some for label in one.over))
        width = 0.86 / len(bars)
        with axes_of(figsize=(5, 4)) as (figure, axes):
            hints = {}
            kinds = {"ps": COLOURS[1], "ring": COLOURS[2], "ps async": COLOURS[4]}
            named: set[str] = set()
            for one in some:
                for label, ratio in one.over.items():
                    i, k = sizes.index(one.size.label), bars.index((one.workers, label))
                    gid = f"bar-{i}-{k}"
                    axes.bar(
                        i - 0.43 + width * (k + 0.5), ratio, width * 0.9, color=kinds[label],
                        alpha=0.55 + 0.45 * (one.workers == some[0].workers),
                        label=f"over {label}" if label not in named else None,
                    )[0].set_gid(gid)  # fmt: skip
                    named.add(label)
                    hints[gid] = (
                        f"{one.size.label}, {one.workers} workers: {ratio:.2f}x over {label}"
                    )
            axes.axhline(1, color=INK, linewidth=0.8)
            claim = max(CLAIMED.values())
            axes.axhline(claim, color=INK, linewidth=0.8, linestyle=":")
            axes.text(-0.5, claim, " the paper's largest", va="bottom", fontsize=8)
            axes.set_xticks(range(len(sizes)), sizes)
            axes.set(ylabel="times as fast", xlim=(-0.5, len(sizes) - 0.5))
            axes.grid(False, axis="x")
            axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
        workers = ", ".join(map(str, dict.fromkeys(one.workers for one in some)))
        yield Picture(
            figure,
            f"Speedup of an iteration with iSwitch at {rate}/s; in each group {workers} workers "
            "from left to right.",
            hints,
        )


def across(cells: Sequence[Sequence[Series]], at: Any) -> dict[str, list[tuple[float, Series]]]:
    """Group series by strategy; pair each with its value on the axis, which `at` returns."""
    found: dict[str, list[tuple[float, Series]]] = {}
    for cell in cells:
        for one in cell:
            found.setdefault(one.way.label, []).append((at(one), one))
    return found


def plain(axis: Any, text: Callable[[float, object], str]) -> None:
    """Label a logarithmic axis at 1, 2, 5, 10 and so on, without powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(text))
    axis.set_minor_formatter(NullFormatter())


def named(cell: Sequence[Series]) -> str:
    """Name the network of a cell."""
    one = cell[0]
    return f"{count(one.workers, 'worker')}, {one.setting.text}"


def hint(one: Series) -> str:
    """Describe a series in a few words."""
    low, middle, high = one.quartiles
    return (
        f"{one.way.label}, {one.size.label}, {count(one.workers, 'worker')}: {ms(middle)} ms "
        f"({ms(low)}..{ms(high)}), p99 {ms(one.p99)} ms, n = {len(one.seconds)}"
    )


def size_text(value: float, _: object = None) -> str:
    """Write bytes with a unit."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= scale:
            return f"{value / scale:g} {unit}"
    return f"{value:g} B"


def number_text(value: float, _: object = None) -> str:
    """Write a number without powers of ten."""
    return f"{value:g}"
