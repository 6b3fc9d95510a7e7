"""Tables, texts, page and JSON of `iswitch bench federated`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from iswitch.lab.options import foot
from iswitch.lab.reports.page import Page
from iswitch.system.files import json_text
from worker_lib.fedprox.data import title

from .runs import FEDAVG, PLAIN, Found, Run, Way
from .timing import NAMES, Timed

CLAIM = 22.0  # percentage points: the paper's abstract
CLAIMED_AT = 0.9  # share of stragglers
READING = (
    "Accuracies are test accuracies, means of the last tenth of the rounds; with several seeds "
    "medians, and the least and the most in brackets. `Of all rounds` is the gain of the mean over "
    "all rounds, not only the last tenth. FedAvg drops stragglers; FedProx with mu = 0 "
    "takes what they have done, and nothing else differs."
)
DEVIATION = (
    "The paper's 22 points are a mean over five data sets at 90 % stragglers. Four of them (MNIST, "
    "FEMNIST, Shakespeare, Sent140) come in no package, and are not trained here. The synthetic "
    "data are drawn afresh for each seed, and their sizes and classes differ from seed to seed. "
    "All accuracies are of the end; FedAvg is furthest behind in the first rounds, and the paper "
    "reads a method's accuracy as soon as its loss stands still, or rises by more than 1 in ten "
    "rounds. docs/fedprox.md has what was tested of this."
)
FREE = (
    "Nobody finished some rounds: all that were picked were stragglers that are dropped. Such "
    "rounds are counted, but as free, with no time and no bytes. Devices would compute in them."
)


@dataclass
class Report:
    """What was measured.

    Attributes:
        found: trainings in this process.
        timed: trainings over networks, in virtual time.
        command: the command line.
        target: accuracy at which those end.
        complete: whether everything was measured.
        machine: the machine's properties.
    """

    found: Found
    timed: list[Timed]
    command: str
    target: float
    machine: dict[str, str] = field(default_factory=dict)
    complete: bool = True


def spread(values: Sequence[float], scale: float = 100, sign: bool = False) -> str:
    """Write a median, and the least and the most of several values."""
    mark = "+" if sign else ""
    middle = f"{scale * np.median(values):{mark}.1f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({scale * min(values):{mark}.1f} to {scale * max(values):{mark}.1f})"


HEAD = [
    "data", "stragglers", "seeds", "FedAvg", "mu = 0", "best mu", "mu", "best - FedAvg",
    "of all rounds",
]  # fmt: skip


def gains(runs: Sequence[Run], base: Sequence[Run], what: str = "accuracy") -> list[float]:
    """Return how much more accurate trainings are than others of the same seeds."""
    by_seed = {one.setting.seed: getattr(one, what) for one in base}
    own = {one.setting.seed: getattr(one, what) for one in runs}
    return [value - by_seed[seed] for seed, value in own.items() if seed in by_seed]


def table(found: Found) -> list[list[str]]:
    """Make a line for each data set and share of stragglers: accuracies in per cent."""
    lines = []
    for data, share in found.cells():
        base, plain = found.of(data, share, FEDAVG), found.of(data, share, PLAIN)
        best = found.best(data, share)
        runs = found.of(data, share, best) if best else []
        each_gain = gains(runs, base), gains(runs, base, "mean_accuracy")
        each = [[one.accuracy for one in some] for some in (base, plain, runs)]
        texts = [spread(values) if values else "" for values in each]
        lines.append([
            title(data), f"{100 * share:g} %", str(len(base)), *texts,
            f"{best.mu:g}" if best else "",
            *(spread(more, sign=True) if more else "" for more in each_gain),
        ])  # fmt: skip
    return lines


def headline(found: Found) -> str:
    """Say the mean gain at 90 % stragglers beside the paper's; data that are alike do not count.

    If FedAvg had no contribution in a training, the gain is one over the first model: that is said.
    """
    means, stopped, untrained = [], [], 0
    for data, share in found.cells():
        best = found.best(data, share)
        if share == CLAIMED_AT and best and data != "iid":
            runs, base = found.of(data, share, best), found.of(data, share, FEDAVG)
            if more := gains(runs, base):
                means.append(100 * float(np.mean(more)))
                stopped.append(100 * float(np.mean(gains(runs, base, "stopped_accuracy"))))
                untrained += sum(not sum(one.contributions) for one in base)
    if not means:
        return (
            f"The paper's claim is of {100 * CLAIMED_AT:g} % stragglers on heterogeneous data (not "
            "iid), with mu > 0; none is measured here."
        )
    sets = f"{len(means)} heterogeneous data set{'s' * (len(means) != 1)}"
    gain = float(np.mean(means))
    much = (
        f"{gain:+.1f} percentage points more"
        if gain >= 0
        else f"{-gain:.1f} percentage points less"
    )
    said = (
        f"At 90 % stragglers FedProx with its best mu > 0 ends {much} accurate than FedAvg on "
        f"average of {sets}, and {np.mean(stopped):+.1f} where the paper reads accuracies (paper: "
        f"+{CLAIM:g} of five)."
    )
    if untrained:
        said += (
            f" In {untrained} training{'s' * (untrained != 1)} FedAvg had not one contribution: "
            "all that were picked were stragglers, so its model is the first one, and the gain "
            "says nothing of FedProx; pick more devices (--picked)."
        )
    return said


TIMED_HEAD = [
    "model", "algorithm", "who adds", "rounds", "accuracy", "seconds", "MB, all links",
    "MB, coordinator's link",
]  # fmt: skip


def timed_table(timed: Sequence[Timed], target: float) -> list[list[str]]:
    """Make a line for each training over a network; `>`: it ended below the accuracy."""
    lines = []
    for one in timed:
        last = one.points[-1]
        mark = "" if last.accuracy >= target else "> "
        lines.append([
            f"{4 * one.elements / 1e3:,.1f} kB", one.way.label, NAMES[one.name],
            f"{mark}{len(one.points) - 1}", f"{last.accuracy:.3f}", f"{last.seconds:.4g}",
            f"{last.bytes / 1e6:.4g}", f"{last.busiest / 1e6:.4g}",
        ])  # fmt: skip
    return lines


def conditions(timed: Sequence[Timed], target: float) -> str:
    """Say what the times are of."""
    said = (
        f"Virtual time until the test accuracy is {target:g}, over links of {timed[0].rate} each. "
        "Models are the same to the last bit wherever they are added on one level. A switch gives "
        "every model and sum to all devices, a server gives models to those that are picked only: "
        "so all links together carry more with a switch, and the link at which sums are made less."
    )
    if any(one.empty for one in timed):
        said += f" {FREE}"
    return said


def as_json(report: Report) -> dict[str, Any]:
    """Return all that was measured."""
    return {
        "command": report.command,
        "complete": report.complete,
        "machine": report.machine,
        "target": report.target,
        "paper_gain": CLAIM,
        "runs": [one.as_json() for one in report.found.runs],
        "timed": [one.as_json() for one in report.timed],
    }


def page(report: Report, name: str) -> Page:
    """Make the page of --html, whose JSON is saved under a name."""
    from .figures import over_rounds, over_time

    made = Page("Federated rounds", "FedAvg and FedProx with stragglers, and what sums cost")
    if not report.complete:
        made.text("The measurement was not finished: this is what there was until then.")
    found = report.found
    if found.runs:
        made.section("The paper's comparison")
        made.text(headline(found))
        made.text(DEVIATION)
        made.table(HEAD, table(found), "Test accuracy, %")
        made.text(READING)
        for data in found.data:
            made.section(title(data))
            for picture in over_rounds(found, data):
                made.figure(*picture)
    if report.timed:
        made.section("Time and bytes to an accuracy")
        made.text(conditions(report.timed, report.target))
        made.table(TIMED_HEAD, timed_table(report.timed, report.target))
        for picture in over_time(report.timed):
            made.figure(*picture)
    made.section("Machine and command")
    made.table(["property", "value"], list(report.machine.items()))
    made.code(report.command)
    made.download(name, "application/json", json_text(as_json(report)))
    return made


def saved_as(json_path: str | None, page_path: str) -> str:
    """Name the file that the page's link saves."""
    return foot(json_path, page_path, "json")


def ways_of(mus: Sequence[float]) -> list[Way]:
    """List the algorithms: FedAvg, FedProx with mu = 0, and with each of `mus`."""
    return [FEDAVG, PLAIN, *(Way("fedprox", mu) for mu in mus if mu)]
