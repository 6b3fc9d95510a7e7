"""Draws the plots of `iswitch bench federated`, each with a caption and hints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from iswitch.lab.bench.figures import Picture, axes_of, number_text, plain
from iswitch.lab.reports.page import COLOURS, drawing
from worker_lib.fedprox.data import title

from .runs import Found, Way
from .timing import Timed

QUANTITIES = {  # columns of `Run.rows`
    "Training loss": "mean over all training samples",
    "Test accuracy": "share of all test samples",
    "Dissimilarity of gradients": "weighted variance of the devices' gradients",
}
AXES = {"seconds": "virtual seconds", "busiest": "MB on the coordinator's link"}  # of `Point`


def colours(ways: Sequence[Way]) -> dict[Way, str]:
    """Give each algorithm a colour of its own."""
    return {way: COLOURS[i % len(COLOURS)] for i, way in enumerate(ways)}


def over_rounds(found: Found, data: str) -> Iterator[Picture]:
    """Draw each quantity over the rounds: a picture with a plot for each share of stragglers."""
    shares = [share for name, share in found.cells() if name == data]
    tints = colours(found.ways)
    for column, (name, meaning) in enumerate(QUANTITIES.items()):
        with drawing():
            figure = Figure(figsize=(5, 0.8 + 2.1 * len(shares)))
            plots = figure.subplots(len(shares), 1, sharex=True, sharey=column == 1, squeeze=False)
            hints = {}
            for share, axes in zip(shares, plots[:, 0], strict=True):
                for way in found.ways:
                    runs = found.of(data, share, way)
                    if not runs or (not share and not way.mu and way.algorithm == "fedprox"):
                        continue
                    values = np.array([one.rows[:, column] for one in runs])
                    middle = np.median(values, axis=0)
                    gid = f"{share:g}-{way.label}"
                    axes.plot(middle, color=tints[way], linewidth=1.2, label=way.label, gid=gid)
                    if len(runs) > 1:
                        axes.fill_between(
                            range(len(middle)), values.min(axis=0), values.max(axis=0),
                            color=tints[way], alpha=0.15, linewidth=0,
                        )  # fmt: skip
                    hints[gid] = f"{way.label}, {100 * share:g} %: {middle[-1]:.3f} at the end"
                axes.set_title(f"{100 * share:g} % stragglers", loc="left")
                if column != 1:
                    axes.set_yscale("log")
                    plain(axes.yaxis, number_text)
            plots[-1, 0].set_xlabel("rounds")
            lines, _ = plots[-1, 0].get_legend_handles_labels()
            figure.legend(handles=lines, loc="outside upper center", ncols=3)
        seeds = len({one.setting.seed for one in found.runs})
        band = f" Medians of {seeds} seeds, in bands from least to most." if seeds > 1 else ""
        said = f"{name}, {title(data)}: {meaning}."
        if not shares[0]:
            said += " Without stragglers FedAvg is FedProx with mu = 0."
        yield Picture(figure, said + band, hints)


def over_time(timed: Sequence[Timed]) -> Iterator[Picture]:
    """Draw test accuracy over virtual time and over bytes, of each way to sum."""
    names = list(dict.fromkeys(one.name for one in timed))
    tints = dict(zip(names, COLOURS, strict=False))
    for elements in dict.fromkeys(one.elements for one in timed):
        some = [one for one in timed if one.elements == elements]
        for what, label in AXES.items():
            with axes_of(figsize=(5, 3.4)) as (figure, axes):
                hints = {}
                for one in some:
                    scale = 1e-6 if what == "busiest" else 1
                    at = [scale * getattr(point, what) for point in one.points]
                    style = "-" if one.way == some[0].way else "--"
                    axes.plot(
                        at, [point.accuracy for point in one.points], color=tints[one.name],
                        linestyle=style, linewidth=1.2, label=one.label, gid=one.label,
                    )  # fmt: skip
                    hints[one.label] = f"{one.label}: {at[-1]:.4g} {label} at the end"
                axes.set(xlabel=label, ylabel="test accuracy")
                axes.legend(fontsize=8, loc="lower right")
            size = f"{4 * elements / 1e3:,.1f} kB"
            yield Picture(figure, f"Test accuracy over {label}; a model of {size}.", hints)
