"""The page of `iswitch analyze`: a round in detail, stragglers, losses, and the numbers."""

from __future__ import annotations

import json
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from iswitch.lab.reports.page import COLOURS, INK, Page, drawing
from iswitch.traces.observed import JobSeen
from iswitch.traces.report import lines
from iswitch.traces.rounds import AGGREGATE, CONTRIBUTION, RESENT, RoundEvent, RoundFigures
from iswitch.traces.timeline import meaning, part_names, parts

MOST_BARS = 2000  # of a figure; more only make the page large
FAINT = "#b8bfca"


def page(
    report: dict[str, Any], told: tuple[JobSeen, RoundFigures] | None, command: str, name: str
) -> Page:
    """Make the page of a trace; `told` is the round in detail, `name` the file its link saves."""
    made = Page("iswitch trace", f"{report['trace']['packets']:,} packets, {report['switch']}")
    made.code("\n".join(lines(report)))
    if told is not None:
        _round(made, *told)
    for job in report["jobs"]:
        if job["per_round"]:
            _rounds(made, job)
    made.section("Again")
    made.code(command)
    made.download(name, "application/json", json.dumps(report))
    return made


def _round(made: Page, job: JobSeen, told: RoundFigures) -> None:
    events = job.rounds.events.get(told.number, [])
    made.section(f"Round {told.number} of job {job.number}")
    if told.seconds is not None:
        made.text(
            f"From the first packet to the last aggregate {told.seconds * 1000:.3f} ms."
            + (
                ""
                if told.straggler is None
                else f" The last to send was {job.called(told.straggler)}, "
                f"{told.behind * 1000:.3f} ms behind the median of the others."
            )
        )
    with drawing():
        made.figure(who_sent(job, told, events), "Who sent when, and when aggregates were complete")
        made.figure(
            segments(job, told, events), "When each segment came from each, and was complete"
        )
        made.figure(where(job, told), f"Where the time of each worker went. {meaning(told)}")


def who_sent(job: JobSeen, told: RoundFigures, events: list[RoundEvent]) -> Figure:
    """Draw a bar for every run of packets: a row for every member, and one for aggregates."""
    figure, axes = _empty()
    ranks = sorted(told.spans)
    rows = {rank: i for i, rank in enumerate(ranks)}
    least = max(told.seconds or 0.0, 1e-6) / 300  # what can be seen
    kinds = (
        (CONTRIBUTION, "contribution", COLOURS[0]),
        (RESENT, "sent again", COLOURS[1]),
        (AGGREGATE, "aggregate", COLOURS[2]),
    )
    for kind, name, colour in kinds:
        of_kind = thinned([event for event in events if event.what == kind])
        for i, row in {**rows, -1: len(ranks)}.items():
            bars = [
                (1000 * (e.begin - told.start), 1000 * max(e.end - e.begin, least))
                for e in of_kind
                if e.rank == i
            ]
            if bars:
                axes.broken_barh(bars, (row - 0.35, 0.7), facecolors=colour)
        axes.barh(0, 0, color=colour, label=name)
    _legend_below(axes)
    axes.set_yticks([*rows.values(), len(ranks)], [*(job.called(rank) for rank in ranks), "switch"])
    axes.invert_yaxis()
    axes.set_xlabel("ms from the first packet")
    return figure


def segments(job: JobSeen, told: RoundFigures, events: list[RoundEvent]) -> Figure:
    """Draw segments over time: a line from the first to the last of every run."""
    figure, axes = _empty()

    def draw(some: list[RoundEvent], label: str, **style: Any) -> None:
        ends = [
            [
                (1000 * (each.begin - told.start), each.start),
                (1000 * (each.end - told.start), each.stop - 1),
            ]
            for each in thinned(some)
        ]
        axes.add_collection(LineCollection(ends, capstyle="round", label=label, **style))

    for i, rank in enumerate(sorted(told.spans)):
        own = [e for e in events if e.rank == rank]
        draw(own, job.called(rank), color=COLOURS[i % 8], linewidth=2.5)
    done = [e for e in events if e.what == AGGREGATE]
    draw(done, "complete", color=INK, linewidth=1)
    axes.autoscale_view()
    axes.set(xlabel="ms from the first packet", ylabel="segment")
    _whole(axes.yaxis)
    _legend_below(axes)
    return figure


def where(job: JobSeen, told: RoundFigures) -> Figure:
    """Draw a bar of the parts of the round for every member."""
    figure, axes = _empty()
    cut = parts(told)
    labels = [job.called(rank) for rank in cut]
    left = [0.0] * len(cut)
    colours = (FAINT, *COLOURS[:4])
    for i, (name, colour) in enumerate(zip(part_names(told), colours, strict=False)):
        width = [1000 * each[i] for each in cut.values()]
        axes.barh(labels, width, left=left, color=colour, label=name, height=0.7)
        left = [a + b for a, b in zip(left, width, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    _legend_below(axes)
    return figure


def _rounds(made: Page, job: dict[str, Any]) -> None:
    made.section(f"All rounds of job {job['job']}")
    with drawing():
        made.figure(times(job), "How long rounds took, and how far behind the last worker was")
        made.figure(stragglers(job), "How often each worker was the last, and by how much")
        made.figure(losses(job), "What came more than once, or was asked for")
    made.table(
        ["member", "address", "packets", "last in, rounds", "behind, ms on average"],
        [
            [
                member["name"],
                member["address"],
                f"{member['packets']:,}",
                member["last_of_round"],
                f"{1000 * member['behind'] / max(member['last_of_round'], 1):.3f}",
            ]
            for member in job["members"]
        ],
    )


def times(job: dict[str, Any]) -> Figure:
    """Draw the completion time of every round, and the straggler's part of it."""
    figure, axes = _empty()
    told = [each for each in job["per_round"] if each["seconds"] is not None]
    x = [each["number"] for each in told]
    axes.plot(x, [1000 * r["seconds"] for r in told], ".-", lw=1, ms=4, color=COLOURS[0],
              label="first packet to last aggregate")  # fmt: skip
    axes.plot(x, [1000 * r["behind"] for r in told], ".-", lw=1, ms=4, color=COLOURS[1],
              label="last worker behind the median of the others")  # fmt: skip
    axes.set(xlabel="round", ylabel="ms")
    axes.set_ylim(bottom=0)
    _whole(axes.xaxis)
    _legend_below(axes)
    return figure


def stragglers(job: dict[str, Any]) -> Figure:
    """Draw for every member in how many rounds it was the last."""
    figure, axes = _empty()
    names = [member["name"] for member in job["members"]]
    counts = [member["last_of_round"] for member in job["members"]]
    bars = axes.barh(names, counts, color=COLOURS[0], height=0.7)
    labels = [
        f"{1000 * m['behind'] / m['last_of_round']:.2f} ms" if m["last_of_round"] else ""
        for m in job["members"]
    ]
    axes.bar_label(bars, labels, padding=3, color=INK)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    _whole(axes.xaxis)
    axes.set_xlabel("rounds in which it was the last")
    return figure


def losses(job: dict[str, Any]) -> Figure:
    """Draw for every round how many packets came twice or late, and how many were asked for."""
    figure, axes = _empty()
    told = job["per_round"]
    x = [each["number"] for each in told]
    bottom = [0] * len(told)
    # What is sent again is counted once more as a duplicate or as late, if it was not lost.
    for name, key, colour in (
        ("lost, sent again", None, COLOURS[1]),
        ("duplicates", "duplicates", COLOURS[3]),
        ("late", "late", COLOURS[6]),
        ("Help", "helps", COLOURS[4]),
    ):
        height = [
            each[key] if key else max(0, each["resent"] - each["duplicates"] - each["late"])
            for each in told
        ]
        axes.bar(x, height, bottom=bottom, color=colour, label=name, width=0.8)
        bottom = [a + b for a, b in zip(bottom, height, strict=True)]
    axes.set(xlabel="round", ylabel="packets")
    _whole(axes.yaxis)
    if not any(bottom):
        axes.set_ylim(0, 1)
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color=INK)
    _whole(axes.xaxis)
    _legend_below(axes)
    return figure


def _empty() -> tuple[Figure, Axes]:
    figure = Figure()
    return figure, figure.subplots()


def _whole(axis: Axis) -> None:
    axis.set_major_locator(MaxNLocator(integer=True))


def _legend_below(axes: Axes) -> None:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)


def thinned(events: list[RoundEvent]) -> list[RoundEvent]:
    """Choose at most MOST_BARS events, evenly."""
    step = -(-len(events) // MOST_BARS) or 1
    return events[::step]
