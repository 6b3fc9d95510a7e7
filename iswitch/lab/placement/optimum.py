"""The placement of the least total time, as a mixed-integer linear program (SciPy's HiGHS).

Hosts with equal links at one switch are one group. Of each job j there are

    y_jg  how many of its workers are in group g            (whole)
    z_jg  whether any is                                     (0 or 1)
    x_jl  whether it crosses link l between two switches     (0 or 1)
    t_j   the time that its bottleneck or its windows need, d_j the first segment's, in seconds

and the sum of priority_j (t_j + d_j) shall be least. A job that crosses a link shares it with all
others that do. That is linear if those that do not cross it are let off by a large number:

    t_j >= bits_j / rate_l (sum_k x_kl - (1 - x_jl) (jobs - 1))

Memory of switches and rates that jobs want for themselves are sums over x, too. A hair's breadth
(TIE) is added for each link in use: of placements equally fast, one with few switches is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from iswitch.outside import UsageError

from .jobs import Job
from .policies import keeps, one_by_one, pack, spread
from .prediction import Places, total
from .tree import Tree

TIE = 1e-4  # of the least conceivable total, for all links together
MARGIN = 1e-5  # more than what the solver lets pass
GAP = 1e-6  # of the total, within which a placement passes for the best

Group = tuple[str, list[str]]  # a switch, and hosts there with equal links


class Best(NamedTuple):
    """A placement, and by how much of its time a better one could be faster; 0: by nothing."""

    places: Places
    gap: float


def fastest(tree: Tree, jobs: Sequence[Job], seconds: float) -> Best:
    """Place jobs so that the sum of their predicted times, each times its priority, is least.

    Args:
        tree: the network.
        jobs: the jobs.
        seconds: how long to search.

    Raises:
        UsageError: no link has a rate; no placement keeps to memory and rates; or none was found.
    """
    if all(link.rate is None for link in tree.links.values()):
        raise UsageError(
            "--policy fastest: no link has a rate, so all places are equally fast; add rate=1Gbit "
            "to --topology, or take --policy pack"
        )
    found, bound = Program(tree, jobs).solve(seconds)
    if found is not None and not keeps(tree, jobs, found):  # by less than the solver notices
        found, _ = Program(tree, jobs, MARGIN).solve(seconds)
        found = found if found is not None and keeps(tree, jobs, found) else None
    others = [] if found is None else [found]
    for choose, policy in ((pack, "pack"), (spread, "spread")):
        try:
            others.append(one_by_one(tree, jobs, choose, policy))
        except UsageError:
            continue  # only the program can tell whether there is another placement
    if not others:
        raise UsageError(
            f"--policy fastest found no placement within {seconds:g} s; give it more --seconds"
        )
    best = min(others, key=lambda places: total(tree, jobs, places))
    least = max(bound, sum(job.priority * _alone(tree, job) for job in jobs))
    summed = total(tree, jobs, best)
    return Best(best, 1 - least / summed if summed * (1 - 2 * TIE) > least else 0.0)


def _alone(tree: Tree, job: Job) -> float:
    """Return the seconds of a round at the best host of an idle network."""
    ways = [
        max(job.bits / min(map(tree.rate, tree.way(host))), tree.windows(host, job))
        for host in tree.hosts
    ]
    return job.compute + min(ways) + min(tree.latency(host, job) for host in tree.hosts)


class Program:
    """The program for some jobs in a network.

    Args:
        tree: the network.
        jobs: the jobs.
        margin: part of memory and rates that is left free.
    """

    def __init__(self, tree: Tree, jobs: Sequence[Job], margin: float = 0.0) -> None:
        self.tree = tree
        self.room = 1 - margin
        self.jobs = jobs
        self.groups = _groups(tree)
        self.inner = tree.switches[1:]  # each stands for the link above it
        groups, inner = len(self.groups), len(self.inner)
        self._y, self._z, self._x = 0, groups, 2 * groups
        self._t, self._d = 2 * groups + inner, 2 * groups + inner + 1
        self._each = self._d + 1  # variables of a job
        self.size = self._each * len(jobs)
        # The solver's tolerances want numbers about 1.
        fastest_link = max(link.rate for link in tree.links.values() if link.rate)
        self.unit = sum(job.bits for job in jobs) / fastest_link  # seconds
        self.weight = max(job.priority for job in jobs) or 1.0
        self._rows: list[tuple[list[tuple[int, float]], float, float]] = []
        for at in range(len(jobs)):
            self._place(at)
            self._time(at)
        self._share()

    def _at(self, job: int, kind: int, one: int = 0) -> int:
        return job * self._each + kind + one

    def _row(self, terms: list[tuple[int, float]], least: float, most: float) -> None:
        self._rows.append((terms, least, most))

    def _crossing(self, job: int, node: str) -> int:
        return self._at(job, self._x, self.inner.index(node))

    def _place(self, at: int) -> None:
        """Give a job its hosts, and have it cross all links above them."""
        job, tree = self.jobs[at], self.tree
        every = [(self._at(at, self._y, g), 1.0) for g in range(len(self.groups))]
        self._row(every, job.workers, job.workers)
        for g, (switch, hosts) in enumerate(self.groups):
            z, most = self._at(at, self._z, g), min(len(hosts), job.workers)
            self._row([(self._at(at, self._y, g), 1.0), (z, -most)], -np.inf, 0)
            if switch != tree.root:
                self._row([(z, 1.0), (self._crossing(at, switch), -1.0)], -np.inf, 0)
        for node in self.inner:
            if (above := tree.up[node]) != tree.root:
                pair = [(self._crossing(at, node), 1.0), (self._crossing(at, above), -1.0)]
                self._row(pair, -np.inf, 0)

    def _time(self, at: int) -> None:
        """Bound the time of a job from below by each link, and by each way."""
        job, tree, t = self.jobs[at], self.tree, self._at(at, self._t)
        for g, (_, (host, *_)) in enumerate(self.groups):
            z = self._at(at, self._z, g)
            alone = max(job.bits / tree.rate(host), tree.windows(host, job))
            self._row([(t, 1.0), (z, -alone / self.unit)], 0, np.inf)
            latency = tree.latency(host, job) / self.unit
            self._row([(self._at(at, self._d), 1.0), (z, -latency)], 0, np.inf)
        others = len(self.jobs) - 1
        for node in self.inner:
            once = job.bits / tree.rate(node) / self.unit
            if not once:
                continue
            terms = [(t, 1.0), (self._crossing(at, node), -once * (1 + others))]
            terms += [(self._crossing(k, node), -once) for k in range(others + 1) if k != at]
            self._row(terms, -once * others, np.inf)

    def _share(self) -> None:
        """Keep all jobs together to the hosts, the memory and the rates that there are."""
        tree, jobs = self.tree, range(len(self.jobs))
        for g, (_, hosts) in enumerate(self.groups):
            self._row([(self._at(k, self._y, g), 1.0) for k in jobs], -np.inf, len(hosts))
        for node in self.inner:
            here = [self._crossing(k, node) for k in jobs]
            need = [tree.need(job, node) / tree.memory for job in self.jobs]
            self._row(list(zip(here, need, strict=True)), -np.inf, self.room)
            if np.isfinite(rate := tree.rate(node)):
                self._row(
                    [(x, self.jobs[k].rate / rate) for k, x in enumerate(here)], -np.inf, self.room
                )

    def _bounds(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return which variables are whole, and the most that each may be."""
        whole, most = np.ones(self.size), np.ones(self.size)
        for k, job in enumerate(self.jobs):
            for g, (_, hosts) in enumerate(self.groups):
                fits = job.rate <= self.tree.rate(hosts[0])
                most[self._at(k, self._y, g)] = min(len(hosts), job.workers) * fits
            for kind in (self._t, self._d):
                whole[self._at(k, kind)], most[self._at(k, kind)] = 0, np.inf
        return whole, most

    def solve(self, seconds: float) -> tuple[Places | None, float]:
        """Search for the best placement.

        Returns:
            The best that was found in that time, or None; and a total which none can be below.

        Raises:
            UsageError: there is no placement.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        cost = np.full(self.size, TIE / self.size)
        for k, job in enumerate(self.jobs):
            cost[self._at(k, self._y) : self._at(k, self._z)] = 0
            cost[[self._at(k, self._t), self._at(k, self._d)]] = job.priority / self.weight
        at = [(i, j, value) for i, (terms, _, _) in enumerate(self._rows) for j, value in terms]
        rows, columns, values = zip(*at, strict=True)
        matrix = coo_array((values, (rows, columns)), (len(self._rows), self.size)).tocsr()
        least, most = ([row[i] for row in self._rows] for i in (1, 2))
        whole, top = self._bounds()
        found = milp(
            cost,
            integrality=whole,
            bounds=Bounds(0, top),
            constraints=LinearConstraint(matrix, least, most),
            options={"time_limit": seconds, "mip_rel_gap": GAP},
        )
        if found.status == 2:
            raise UsageError(
                "no placement keeps to the memory of all switches and the rates that jobs want; "
                "raise --memory, let vectors go through --slots, or ask for less"
            )
        bound = (found.mip_dual_bound or 0.0) * self.unit * self.weight
        bound += sum(job.priority * job.compute for job in self.jobs)
        return None if found.x is None else self._read(found.x), bound

    def _read(self, solution: np.ndarray[Any, Any]) -> Places:
        """Give each job hosts of the groups in their order."""
        left = [iter(hosts) for _, hosts in self.groups]
        places = {}
        for k, job in enumerate(self.jobs):
            counts = [round(solution[self._at(k, self._y, g)]) for g in range(len(self.groups))]
            hosts = [next(left[g]) for g, many in enumerate(counts) for _ in range(many)]
            places[job.name] = sorted(hosts, key=self.tree.hosts.__getitem__)
        return places


def _groups(tree: Tree) -> list[Group]:
    """Put hosts together that have equal links to one switch."""
    found: dict[tuple[str, object, float], list[str]] = {}
    for host in tree.hosts:
        link = tree.links[host]
        found.setdefault((tree.up[host], link.rate, link.delay), []).append(host)
    return [(switch, hosts) for (switch, _, _), hosts in found.items()]
