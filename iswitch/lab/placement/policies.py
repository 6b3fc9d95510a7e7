"""Places for jobs, one job after the other: close together (pack), or far apart (spread)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from iswitch.faults.units import RATE, count
from iswitch.outside import UsageError

from .jobs import Job, needed
from .tree import Tree

Free = Mapping[str, Sequence[str]]  # by switch: hosts that a job can have
Choice = Callable[[Tree, Free, int], list[str]]  # chooses that many of them


def check(tree: Tree, jobs: tuple[Job, ...]) -> None:
    """Refuse jobs that no placement can serve: too many workers, too high a rate, too much memory.

    Raises:
        UsageError: the message names the mend.
    """
    hosts = len(tree.hosts)
    name = tree.topology.name or "the network"
    wide = max(jobs, key=lambda job: job.workers)
    if wide.workers > hosts:
        raise UsageError(
            f"job {wide.name!r} has {count(wide.workers, 'worker')}, and {name} has "
            f"{count(hosts, 'host')}; take fewer workers, or a larger --topology"
        )
    if sum(job.workers for job in jobs) > hosts:
        raise UsageError(
            f"the jobs need {needed(jobs)}, one for each worker, and {name} has {hosts}; take "
            "fewer workers, or a larger --topology"
        )
    for job in jobs:
        rates = [min(tree.rate(node) for node in tree.way(host)) for host in tree.hosts]
        too_low = [rate for rate in rates if rate < job.rate]
        if (able := hosts - len(too_low)) < job.workers:
            raise UsageError(
                f"job {job.name!r} wants {RATE.format(job.rate)}/s of each link up to {tree.root}, "
                f"but the links of {count(len(too_low), 'host')} have at most "
                f"{RATE.format(max(too_low))}/s, so {able} are left for its "
                f"{count(job.workers, 'worker')}; ask for a lower rate"
            )
    memory = sum(tree.need(job, tree.root) for job in jobs)
    if memory > tree.memory:
        raise UsageError(
            f"the jobs reserve {amount(memory)} at {tree.root}, through which all sums go, and it "
            f"has {amount(tree.memory)}; raise --memory, or let vectors go through --slots"
        )


class Left:
    """What jobs leave of the memory of switches, and of the rates of links by the node below.

    Args:
        tree: the network, with no jobs yet.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.memory = dict.fromkeys(tree.switches, tree.memory)
        self.rate = {node: tree.rate(node) for node in tree.up}

    def has_room(self, job: Job, host: str) -> bool:
        """Return whether a worker of a job can have a host: there is enough on its way."""
        way = self._tree.way(host)
        switches = [name for name in (*way, self._tree.root) if name in self.memory]
        return all(self._tree.need(job, name) <= self.memory[name] for name in switches) and all(
            job.rate <= self.rate[name] for name in way
        )

    def take(self, job: Job, hosts: Sequence[str]) -> None:
        """Take what a job with these hosts needs."""
        for name in self._tree.switches_of(hosts):
            self.memory[name] -= self._tree.need(job, name)
        for node in {node for host in hosts for node in self._tree.way(host)}:
            self.rate[node] -= job.rate


def keeps(tree: Tree, jobs: Sequence[Job], places: Mapping[str, Sequence[str]]) -> bool:
    """Return whether places keep to the memory of switches and the rates of links."""
    left = Left(tree)
    for job in jobs:
        left.take(job, places[job.name])
    return min(left.memory.values()) >= 0 and min(left.rate.values()) >= 0


def one_by_one(
    tree: Tree, jobs: Sequence[Job], choose: Choice, policy: str
) -> dict[str, list[str]]:
    """Place the jobs in the order of their priority, then of their size.

    Args:
        tree: the network.
        jobs: the jobs.
        choose: chooses hosts for one job, of those that it can have.
        policy: its name, for messages.

    Raises:
        UsageError: there is no room left for a job.
    """
    left = Left(tree)
    free = {name: list(hosts) for name, hosts in tree.at.items()}
    places = {}
    for job in sorted(jobs, key=lambda job: (-job.priority, -job.workers)):
        room = {name: [h for h in free[name] if left.has_room(job, h)] for name in tree.switches}
        fit = sum(map(len, room.values()))
        if fit < job.workers:
            raise UsageError(
                f"{policy} finds no place for job {job.name!r}: of the free hosts {fit} have a "
                f"way to {tree.root} on which switches have memory for it{_wanted(job)}, and it "
                f"has {count(job.workers, 'worker')}; ask for less, or take --policy fastest, "
                "which moves other jobs"
            )
        hosts = sorted(choose(tree, room, job.workers), key=tree.hosts.__getitem__)
        places[job.name] = hosts
        for host in hosts:
            free[tree.up[host]].remove(host)
        left.take(job, hosts)
    return {job.name: places[job.name] for job in jobs}


def _wanted(job: Job) -> str:
    return f" and links have {RATE.format(job.rate)}/s" if job.rate else ""


def pack(tree: Tree, free: Free, workers: int) -> list[str]:
    """Choose hosts below as low a switch as has enough, of these the one with the least to spare.

    Below it, they come from as few switches as possible.
    """
    room = {name: len(free[name]) for name in tree.switches}
    for name in reversed(tree.switches[1:]):
        room[tree.up[name]] += room[name]

    def fill(switch: str, wanted: int) -> list[str]:
        found = list(free[switch][:wanted])
        below = [name for name in tree.below[switch] if room[name]]
        while len(found) < wanted:
            left = wanted - len(found)
            enough = [name for name in below if room[name] >= left]
            chosen = min(enough, key=room.__getitem__) if enough else max(below, key=room.get)  # type: ignore[arg-type]
            below.remove(chosen)
            found += fill(chosen, min(left, room[chosen]))
        return found

    fitting = [name for name in tree.switches if room[name] >= workers]
    depth = {name: len(tree.way(name)) for name in fitting}
    return fill(min(fitting, key=lambda name: (-depth[name], room[name])), workers)


def spread(_: Tree, free: Free, workers: int) -> list[str]:
    """Choose hosts in turn at the switch where the job has the fewest, of these the emptiest."""
    left = {name: list(hosts) for name, hosts in free.items() if hosts}
    own = dict.fromkeys(left, 0)
    found = []
    for _taken in range(workers):
        open_ = [name for name in left if left[name]]
        chosen = min(open_, key=lambda name: (own[name], -len(left[name])))
        own[chosen] += 1
        found.append(left[chosen].pop(0))
    return found


def amount(size: int) -> str:
    """Write bytes of memory with a unit in which a few of them are not 0."""
    if size < 1 << 10:
        return count(size, "byte")
    scale, unit = (1 << 20, "MiB") if size >= 1 << 17 else (1 << 10, "KiB")
    return f"{f'{size / scale:,.2f}'.rstrip('0').rstrip('.')} {unit}"
