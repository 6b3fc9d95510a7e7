"""Writes predictions as one page that answers: when does in-network aggregation pay?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from iswitch.lab.bench.figures import Picture, axes_of, number_text, plain
from iswitch.lab.bench.report import ms
from iswitch.lab.reports.page import COLOURS, INK, Page

from . import sweeping, telling
from .predicting import Point

PAYS = 1.05  # times as fast from which on it pays
MOST_LINES = 8  # of one plot


def page(points: Sequence[Point], command: str, complete: bool, csv: str) -> Page:
    """Make the page of `iswitch simulate --html`.

    Args:
        points: what was predicted, in the order of the sweep.
        command: the command line.
        complete: whether all points are there.
        csv: file name of the page's CSV download.
    """
    first = points[0]
    names = [found["strategy"] for found in first.predictions]
    found = Page("When does in-network aggregation pay?", f"Predicted: {', '.join(names)}")
    if not complete:
        found.text("The sweep was not finished: this is what there was until then.")
    for text in answers(points):
        found.text(text)
    swept = list(first.options)
    if swept and len(points) > 1:
        found.section("Speedup and time")
        for picture in (*_against(points, True), *_against(points, False)):
            found.figure(*picture)
    found.section("Use of links")
    for picture in _uses(points):
        found.figure(*picture)
    found.section("Table")
    if swept:
        found.table(telling.sweep_head(points), telling.sweep_rows(points))
    else:
        found.table(telling.head(first), telling.rows(first), telling.title(first))
        found.table(telling.link_head(first), telling.link_rows(first), "Busiest link, up / down")
        if changes := telling.change_rows(first):
            found.section("What would move it")
            found.table(("what if", *names), changes, "How much longer an iteration would take")
    if not swept and (memory := telling.memory_text(first)):
        found.text(f"{memory[:1].upper()}{memory[1:]}.")
    for line in telling.notes(points):
        found.text(line)
    found.section("Command")
    found.code(command)
    found.download(csv, "text/csv", telling.as_csv(points))
    told = json.dumps(sweeping.as_json(points, command, complete))
    found.download(f"{csv.rpartition('.')[0]}.json", "application/json", told)
    return found


def answers(points: Sequence[Point]) -> Iterator[str]:
    """Say in sentences where the first strategy is faster than each of the others."""
    first = points[0].predictions[0]["strategy"]
    for at, other in enumerate(points[0].predictions[1:], 1):
        ratios = [(one.speedup(at) or 1.0, one) for one in points]
        wins = [one for ratio, one in ratios if ratio >= PAYS]
        least, most = (pick(ratios, key=lambda pair: pair[0]) for pick in (min, max))
        if len(points) == 1:
            yield f"{first} is {least[0]:.2f} times as fast as {other['strategy']}."
            continue
        yield (
            f"{first} is at least {PAYS} times as fast as {other['strategy']} at {len(wins)} of "
            f"{len(points)} points: from {least[0]:.2f} times ({_words(least[1])}) to "
            f"{most[0]:.2f} times ({_words(most[1])})."
        )
    if len(points) > 1 and points[0].predictions[0]["changes"]:
        counts: dict[str, int] = {}
        for one in points:
            what = one.predictions[0]["bottleneck"] or "nothing that was tried"
            counts[what] = counts.get(what, 0) + 1
        told = ", ".join(f"{what} at {many}" for what, many in counts.items())
        yield f"What limits {first}: {told} of {len(points)} points."


def _words(one: Point) -> str:
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in one.options.items())


def _against(points: Sequence[Point], ratio: bool) -> Iterator[Picture]:
    """Draw speedups, or times, against the first swept option: a line for each of the others."""
    swept = list(points[0].options)
    x, rest = swept[0], swept[1:]
    values = list(dict.fromkeys(one.options[x] for one in points))
    names = [found["strategy"] for found in points[0].predictions]
    groups = list(dict.fromkeys(tuple(one.options[name] for name in rest) for one in points))
    for group in groups[:MOST_LINES]:
        some = [one for one in points if tuple(one.options[name] for name in rest) == group]
        at = [values.index(one.options[x]) for one in some]
        where = ", ".join(
            f"{name.replace('_', '-')} {value}" for name, value in zip(rest, group, strict=True)
        )
        hints = {}
        with axes_of() as (figure, axes):
            for k, name in enumerate(names):
                if ratio and not k:
                    continue
                ys = [
                    one.speedup(k) if ratio else 1e3 * one.predictions[k]["seconds"] for one in some
                ]
                label = f"over {name}" if ratio else name
                axes.plot(at, ys, "o-", color=COLOURS[k], markersize=5, label=label)
                for i, y in zip(at, ys, strict=True):
                    gid = f"point-{k}-{i}"
                    axes.plot([i], [y], "o", color=COLOURS[k], markersize=5, gid=gid)
                    unit = "times as fast" if ratio else "ms"
                    hints[gid] = f"{x.replace('_', '-')} {values[i]}: {label}, {y:.4g} {unit}"
            if ratio:
                axes.axhline(1, color=INK, linewidth=0.8)
            axes.set_xticks(range(len(values)), values, rotation=30 if len(values) > 5 else 0)
            axes.margins(y=0.2)
            axes.set(
                yscale="log", xlabel=x.replace("_", "-"),
                ylabel=f"{names[0]}: times as fast" if ratio else "iteration, ms",
            )  # fmt: skip
            plain(axes.yaxis, number_text)
            if len(names) > 1 or not ratio:
                axes.legend()
        what = f"Speedup of {names[0]}" if ratio else "Time of an iteration"
        if ratio and len(names) == 1:
            continue
        yield Picture(figure, f"{what}{f'; {where}' * bool(where)}.", hints)


def _uses(points: Sequence[Point]) -> Iterator[Picture]:
    """Draw how busy the links of each class are, for the first point and the last."""
    for one in dict.fromkeys(map(id, (points[0], points[-1]))):
        chosen = next(each for each in points if id(each) == one)
        yield _use(chosen)


def _use(one: Point) -> Picture:
    classes = [link["name"] for link in one.predictions[0]["links"]]
    width = 0.8 / len(one.predictions)
    hints = {}
    with axes_of() as (figure, axes):
        for k, found in enumerate(one.predictions):
            for i, link in enumerate(found["links"]):
                gid = f"use-{k}-{i}"
                most = 100 * max(link["up"], link["down"])
                axes.bar(
                    i - 0.4 + width * (k + 0.5), most, width * 0.9, color=COLOURS[k],
                    label=found["strategy"] if not i else None,
                )[0].set_gid(gid)  # fmt: skip
                hints[gid] = (
                    f"{found['strategy']}, {link['name']}: up {link['up']:.1%}, down "
                    f"{link['down']:.1%} of {ms(found['seconds'])} ms"
                )
        axes.set_xticks(range(len(classes)), classes)
        axes.set(ylabel="% of an iteration", ylim=(0, 105))
        axes.grid(False, axis="x")
        axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    where = f"; {_words(one)}" if one.options else ""
    return Picture(figure, f"How long the busiest link of each class sends{where}.", hints)
