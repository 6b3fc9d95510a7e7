"""How long a round of each job takes if all jobs send at once.

A link divides its rate equally among the jobs that cross it. So a job that crosses links l of rates
r_l, each with n_l - 1 others, needs max(bits n_l / r_l) for its vector, or longer if its windows
allow no more (`Tree.windows`); the aggregates come down at the same time. Its first segment's way
up and down and the time in which it computes come on top.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .jobs import Job
from .tree import Tree

Places = Mapping[str, Sequence[str]]  # by name of the job: the host of each rank


class Prediction(NamedTuple):
    """The time of a round of one job.

    Attributes:
        seconds: with all other jobs sending, too.
        alone: if the others were not there.
        slowest: the node below the link that is the bottleneck; "": no link has a rate.
        sharing: how many jobs cross that link.
        waits: whether its windows take longer than any link: for few slots, or long round trips.
    """

    seconds: float
    alone: float
    slowest: str
    sharing: int
    waits: bool


def predict(tree: Tree, jobs: Sequence[Job], places: Places) -> dict[str, Prediction]:
    """Predict the time of a round of each job, by name."""
    crossed = {job.name: {n for host in places[job.name] for n in tree.way(host)} for job in jobs}
    sharing = Counter(node for nodes in crossed.values() for node in nodes)
    found = {}
    for job in jobs:
        nodes = [node for node in tree.up if node in crossed[job.name]]
        slowest = max(nodes, key=lambda node: sharing[node] / tree.rate(node))
        first = job.compute + max(tree.latency(host, job) for host in places[job.name])
        windows = max(tree.windows(host, job) for host in places[job.name])
        shared = job.bits * sharing[slowest] / tree.rate(slowest)
        found[job.name] = Prediction(
            first + max(shared, windows),
            first + max(windows, *(job.bits / tree.rate(node) for node in nodes)),
            slowest if tree.links[slowest].rate else "",
            sharing[slowest],
            windows > shared,
        )
    return found


def total(tree: Tree, jobs: Sequence[Job], places: Places) -> float:
    """Add up the predicted seconds of all jobs, each times its priority."""
    predicted = predict(tree, jobs, places)
    return sum(job.priority * predicted[job.name].seconds for job in jobs)
