"""Tables, texts, page and JSON of `iswitch bench sharing`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from iswitch.lab.reports.page import Page

from .plan import ONE_AT_A_TIME, Experiment
from .played import Played

HEAD = (
    "sharing", "makespan, ms", "mean completion, ms", "p99 round, ms", "waited, ms",
    "added in switch", "Jain's index",
)  # fmt: skip
READING = (
    "Completion: from a job's coming to its last worker's leaving. Waited: the part of it before "
    "the job was let in, on average. p99 round: of all rounds but each job's first, from its first "
    "vector to its last sum, the wait for the turn included. Added in switch: the part of all "
    "contributions that the root added; a fallback adds the others. Jain's index: of the jobs' "
    "speeds, each beside the same job alone; 1 if all are slowed down alike."
)
SALUS = {"mean completion, SRTF over FIFO": 3.19, "makespan, PACK over FIFO": 2.38}
RATIO_HEAD = ("ratio", "Salus", "over one at a time", "over lanes:fifo")
WHY = {
    "search": (
        "Salus' FIFO gives the whole GPU to one job after the other: here that is `one at a time`, "
        "with memory for a single job. `lanes:fifo` is another thing: all jobs that fit are in, "
        "and only their rounds are in order, so the other schedulers gain less over it. Salus' "
        "ratios are of jobs that compute on one GPU in turns. Here workers have processors of "
        "their own, and share only the memory of the switch: jobs that are in compute at the same "
        "time. So what is gained over one at a time depends on the part of a round that is "
        "computing, and on how many jobs fit."
    ),
    "tree": (
        "ATP publishes 1.38 to 1.66 times the training throughput of existing systems in a "
        "cluster of several jobs, at most; ESA a mean completion that is up to 1.35 times shorter "
        "than ATP's. Both let a segment without a slot go on to a parameter server, as besteffort "
        "and preempt do here, so that a part of the sums is made there. With the other policies a "
        "job without memory waits, or has few slots. The systems that ATP compares with are not "
        "measured; `preempt` over `besteffort` is beside ESA's ratio."
    ),
}


@dataclass
class Report:
    """What was measured.

    Attributes:
        played: by experiment, in the order in which they were played.
        alone: by experiment, the seconds of each job by itself.
        world: the world.
        command: the command line.
        machine: the machine's properties.
        complete: whether everything was measured.
    """

    played: dict[str, list[Played]]
    alone: dict[str, dict[int, float]]
    world: str
    command: str
    machine: dict[str, str] = field(default_factory=dict)
    complete: bool = True


def table(report: Report, name: str) -> list[list[str]]:
    """Make a line for each way to share memory."""
    alone = report.alone[name]
    return [
        [
            one.sharing.label, f"{1e3 * one.makespan:.4g}", f"{1e3 * one.completions.mean():.4g}",
            f"{1e3 * one.p99:.3g}", waiting(one.waited), f"{100 * one.share:.0f} %",
            f"{one.jain(alone):.3f}",
        ]
        for one in report.played[name]
    ]  # fmt: skip


def waiting(seconds: float) -> str:
    """Write a time of waiting in ms, with no more digits than mean something."""
    return f"{1e3 * seconds:.3g}" if seconds >= 1e-4 else f"{1e3 * seconds:.2f}"


def is_short(experiment: Experiment) -> bool:
    """Return whether the memory is less than all jobs would need at once."""
    return experiment.memory < wanted(experiment)


def wanted(experiment: Experiment) -> int:
    """Return the bytes that all jobs would need at once."""
    return sum(sum(task.parts) for task in experiment.tasks)


def ratios(played: Sequence[Played]) -> list[list[str]]:
    """Compare schedulers as Salus does: with one job at a time, and with `lanes:fifo`.

    If memory is not short, nobody waits for it, and nothing is compared.
    """
    if not played or not is_short(played[0].experiment):
        return []
    found = {one.sharing.label: one for one in played}
    lines = []
    for (what, published), label in zip(SALUS.items(), ("lanes:srtf", "lanes:pack"), strict=True):
        if label not in found:
            continue
        line = [what, f"{published:g}"]
        for base in (ONE_AT_A_TIME, "lanes:fifo"):
            if base not in found:
                line.append("")
            elif what.startswith("mean"):
                ratio = found[base].completions.mean() / found[label].completions.mean()
                line.append(f"{ratio:.2f}")
            else:
                line.append(f"{found[base].makespan / found[label].makespan:.2f}")
        lines.append(line)
    return lines


def as_json(report: Report) -> dict[str, Any]:
    """Return all that was measured."""
    return {
        "command": report.command,
        "complete": report.complete,
        "world": report.world,
        "machine": report.machine,
        "alone": report.alone,
        "played": [
            one.as_json(report.alone[name]) for name, some in report.played.items() for one in some
        ],
    }


def page(report: Report, name: str) -> Page:
    """Make the page of --html, whose JSON is saved under a name."""
    from .figures import pictures

    made = Page("Shared memory", "Jobs that share the memory of a switch, by policy")
    if not report.complete:
        made.text("The measurement was not finished: this is what there was until then.")
    made.text(READING)
    for key, played in report.played.items():
        made.section(played[0].experiment.title)
        made.text(conditions(played[0], report.world))
        made.table(HEAD, table(report, key))
        if key in WHY and is_short(played[0].experiment):
            made.text(WHY[key])
        if key == "search" and ratios(played):
            made.table(RATIO_HEAD, ratios(played), "beside the published ratios")
        for picture in pictures(played):
            made.figure(*picture)
    made.section("Machine and command")
    made.table(["property", "value"], list(report.machine.items()))
    made.code(report.command)
    made.download(name, "application/json", json.dumps(as_json(report)))
    return made


def conditions(one: Played, world: str) -> str:
    """Say what was played."""
    tasks, experiment = one.experiment.tasks, one.experiment
    sizes = sorted({4 * task.numel for task in tasks})
    kilobytes = ", ".join(f"{size / 1e3:,.0f}" for size in sizes)
    where = f"{experiment.topology.name}, in the world {world}"
    if world == "sim":
        where = f"{experiment.topology.name}, in virtual time, each worker on a link of its own"
    short = "" if is_short(experiment) else " Memory is not short: nobody has to wait for it."
    return (
        f"{len(tasks)} jobs of {len(tasks[0].hosts)} workers, {experiment.rounds:,} rounds, "
        f"vectors of {kilobytes} kB; {experiment.memory / 2**20:.2f} MiB of the "
        f"{wanted(experiment) / 2**20:.2f} that all would need at once; {where}.{short}"
    )
