"""The picture of a placement: the tree of switches, with hosts in the colours of their jobs."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from iswitch.lab.reports.page import COLOURS

from .jobs import Job
from .prediction import Places, Prediction
from .tree import Tree

MARKERS = "oDs^vP"  # another one when the colours begin anew
IDLE = "#d5d9de"  # of hosts without a job
GREY = "#5b6470"
NAMED = 40  # hosts that have room for their names
INCHES = 0.32  # of width for a host
WIDEST = 30.0
THICKEST = 9.0  # points
BOX = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}


def draw(
    tree: Tree, jobs: Sequence[Job], places: Places, predicted: dict[str, Prediction], title: str
) -> Figure:
    """Draw a placement; a link is as thick as there are jobs that cross it.

    Args:
        tree: the network.
        jobs: the jobs.
        places: their hosts.
        predicted: the times of their rounds.
        title: what stands above.
    """
    at = _positions(tree)
    colours = {job.name: COLOURS[k % len(COLOURS)] for k, job in enumerate(jobs)}
    markers = {job.name: MARKERS[k // len(COLOURS) % len(MARKERS)] for k, job in enumerate(jobs)}
    job_of = {host: name for name, hosts in places.items() for host in hosts}
    crossing: dict[str, set[str]] = {}
    for host, name in job_of.items():
        for node in tree.way(host):
            crossing.setdefault(node, set()).add(name)
    depth = max(-y for _, y in at.values())
    width = min(WIDEST, max(6.0, 1.0 + INCHES * len(tree.hosts)))
    figure = Figure((width, 1.6 + 1.1 * depth + 0.25 * len(jobs)), layout="constrained")
    axes = figure.add_subplot()
    for node, above in tree.up.items():
        count = len(crossing.get(node, ()))
        colour = colours[job_of[node]] if node in job_of else GREY if count else IDLE
        thick = min(THICKEST, 0.8 + 1.2 * count)
        axes.plot(*zip(at[node], at[above], strict=True), color=colour, linewidth=thick, zorder=1)
        if count and node not in tree.hosts:
            _name(axes, f"{count} job{'s' * (count != 1)}", _middle(at[node], at[above]), GREY)
    for name in tree.switches:
        axes.plot(*at[name], "s", color="white", markeredgecolor=GREY, markersize=11, zorder=2)
        away = -1 if at[tree.up.get(name, name)][0] > at[name][0] else 1  # from the link above
        axes.annotate(
            name, at[name], (9 * away, 3), textcoords="offset points", color=GREY, fontsize=9,
            ha="left" if away > 0 else "right",
        )  # fmt: skip
    for host in tree.hosts:
        colour = colours[job_of[host]] if host in job_of else IDLE
        marker = markers[job_of[host]] if host in job_of else "o"
        axes.plot(*at[host], marker, color=colour, markersize=10, zorder=2)
        if len(tree.hosts) <= NAMED:
            axes.annotate(
                host, at[host], (0, -15), textcoords="offset points", ha="center", fontsize=8
            )
    for job in jobs:
        label = f"{job.name}: {1e3 * predicted[job.name].seconds:,.4g} ms"
        axes.plot([], [], markers[job.name], color=colours[job.name], label=label)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), frameon=False, ncols=2, fontsize=9)
    axes.set_title(title, fontsize=10)
    axes.set_axis_off()
    axes.margins(0.05, 0.16)
    return figure


def _positions(tree: Tree) -> dict[str, tuple[float, float]]:
    """Put hosts side by side below their switches, and each switch above the middle of these."""
    at: dict[str, tuple[float, float]] = {}
    columns = 0.0

    def put(switch: str, depth: int) -> None:
        nonlocal columns
        below = []
        for name in tree.below[switch]:
            put(name, depth + 1)
            below.append(at[name][0])
        for host in tree.at[switch]:
            at[host] = columns, -depth - 1.0
            below.append(columns)
            columns += 1.0
        if tree.at[switch]:
            columns += 0.6  # between racks
        elif not below:
            below.append(columns)
            columns += 1.0
        at[switch] = (below[0] + below[-1]) / 2, -float(depth)

    put(tree.root, 0)
    return at


def _middle(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return (a[0] + b[0]) / 2, (a[1] + b[1]) / 2


def _name(axes: Axes, text: str, at: tuple[float, float], colour: str) -> None:
    axes.annotate(text, at, ha="center", va="center", color=colour, fontsize=8, bbox=BOX)
