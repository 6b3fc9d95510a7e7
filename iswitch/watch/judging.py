"""Says in sentences what is wrong in a network: who is late, which link loses, what is gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from .change import Change, Job, Link, Member
from .places import Network

OFTEN = 0.6  # of the rounds; a straggler ends more than these
BEYOND = 0.3  # over its share if all were alike, since one of two ends half of the rounds
FEWEST = 3  # rounds, before anybody is called a straggler
BEHIND = 0.3  # of the time from first to last; a member that begins this late is a straggler
SHORT = 0.001  # seconds; no shorter wait is worth a word
NOTICED = 0.15  # of the time between rounds; a shorter wait is not worth a word
LOSSY = 0.002  # of a link's packets
SEEN_AGAIN = 0.01  # of a member's contributions; a busy processor alone can cause fewer
FEW = 3  # packets, before a link is called lossy
SILENT = 6.5  # seconds; a living worker sends a heartbeat every three
FLOOD = 1000.0  # packets a second that are none of a member's
FULL = 0.9  # of the memory, or of a link's rate
STRANGERS = ("stranger", "ordinary", "throttled", "rx_overflow", "bad_mac", "short")


class Finding(NamedTuple):
    """Something wrong: whether it stops work (else it costs time), what it is, and a sentence."""

    stops: bool
    what: str
    told: str


@dataclass
class Scene:
    """All that is known of a network at one moment.

    Attributes:
        network: the names in it.
        changes: what happened at each switch that answers, by name.
        gone: seconds for which each other switch has not answered, by name.
        others: folders of networks that run, too, if nobody has named this one.
    """

    network: Network
    changes: dict[str, Change] = field(default_factory=dict)
    gone: dict[str, float] = field(default_factory=dict)
    others: list[Path] = field(default_factory=list)

    @property
    def several(self) -> bool:
        """Return whether there is more than one job, so that a member's name needs its job's."""
        numbers = (job["job"] for change in self.changes.values() for job in change.now["jobs"])
        return len(set(numbers)) > 1

    @property
    def root(self) -> str | None:
        """Return the switch at the top that answers."""
        parents = self.network.parents
        tops = [name for name in self.changes if parents.get(name) not in self.changes]
        return tops[0] if tops else None


def findings(scene: Scene) -> list[Finding]:
    """List what is wrong, the worst first."""
    found = [*_gone(scene)]
    for name, change in scene.changes.items():
        of = f" at {name}" if len(scene.changes) + len(scene.gone) > 1 else ""
        found += _silent(change, of)
        found += _waits(change, of)
        found += _flood(change, of)
        found += _full(change, of)
        found += _operated(change, of)
        links = list(change.links())
        for link in links:
            found += _lossy(link, name)
        found += _lossy_members(change, links, of, scene.several)
    found += _stragglers(scene)
    found.sort(key=lambda one: not one.stops)
    return list(dict.fromkeys(found))


def _gone(scene: Scene) -> Iterator[Finding]:
    for name, seconds in scene.gone.items():
        below = hosts_below(scene.network, name)
        is_rack = scene.network.parents.get(name) is not None
        behind = f"; behind it: {listed(below)}" if below else ""
        what = "rack lost" if is_rack else "switch lost"
        yield Finding(True, what, f"{name} has not answered for {seconds:.0f} s{behind}")


def hosts_below(network: Network, switch: str) -> list[str]:
    """List the hosts of a switch and of all switches below it."""
    found = list(network.below.get(switch, ()))
    for child, parent in network.parents.items():
        if parent == switch:
            found += hosts_below(network, child)
    return found


def listed(names: list[str], most: int = 6) -> str:
    """List names, the first `most` of them."""
    return ", ".join(names[:most]) + f" and {len(names) - most} more" * (len(names) > most)


def _silent(change: Change, of: str) -> Iterator[Finding]:
    for job in change.jobs():
        for member in job.members():
            silent, lease = member.now["silent"], member.now["lease"]
            if silent > SILENT and member.now["type"] != "controller":
                left = f"lost in {lease:.0f} s" if lease else "its lease has run out"
                told = f"{called(member)}{of} (job {job.now['job']}) for {silent:.0f} s; {left}"
                yield Finding(True, "silent", told)


def _waits(change: Change, of: str) -> Iterator[Finding]:
    """Say for whom a job waits in which no round has begun or ended lately."""
    for job in change.jobs():
        number, state = job.now["job"], job.now["state"]
        if state == "halted":
            yield Finding(True, "halted", f"job {number}{of}: Reset (key r) resumes it")
        elif state == "gathering" and job.now["workers"] < job.now["expected"]:
            there = f"{job.now['workers']} of {job.now['expected']} workers have joined"
            yield Finding(False, "gathering", f"job {number}{of}: {there}")
        elif state == "awaiting_reset":
            yield Finding(True, "waits", f"job {number}{of}: for the switch above to name a round")
        elif 0 < (some := job.contributors) < job.least:
            told = f"nothing completes until {job.least} members are there; H is {job.least}, and"
            are = "is" if some == 1 else "are"
            yield Finding(True, "waits", f"job {number}{of}: {told} {some} of them {are} there")
        elif job.change.before and not job.rounds_per_second and not job.measured:
            late = [one for one in job.members() if one.now["missing"]]
            if late and len(late) < len(list(job.members())):
                names = listed([f"{called(one)} ({one.now['missing']:,})" for one in late])
                yield Finding(True, "waits", f"job {number}{of}: segments missing from {names}")


def called(member: Member, several: bool = False) -> str:
    """Name a member, with its rank and, if there are several jobs, its job."""
    kind = "switch " * (member.now["type"] == "switch")
    rank, known = member.now["rank"], []
    if rank is not None and not kind:
        known.append(f"rank {rank}")
    if several:
        known.append(f"job {member.job.now['job']}")
    return f"{kind}{member.now['name']}" + f" ({' of '.join(known)})" * bool(known)


def _stragglers(scene: Scene) -> Iterator[Finding]:
    """Name the members that others wait for; a switch only if none below it is one."""
    found = [
        (name, job, late)
        for name, change in scene.changes.items()
        for job in change.jobs()
        for late in stragglers(job)
    ]
    at = {(name, job.now["job"]) for name, job, _ in found}
    for name, job, late in found:
        if (late.now["name"], job.now["job"]) in at:
            continue
        of = f" at {name}" if len(scene.changes) + len(scene.gone) > 1 else ""
        begins = late.behind > (job.spread or 0) * BEHIND
        why = f"begins {ms(late.behind)} late" if begins else "begins in time, ends late"
        told = f"{called(late, scene.several)}{of}: {why}, last in {late.last:.0%}"
        told += f"; rounds {ms(job.spread or 0)}"
        yield Finding(False, "straggler", told)


def stragglers(job: Job) -> list[Member]:
    """List the members that begin rounds much later than others, or end most of them."""
    return job.once(_late)


def _late(job: Job) -> list[Member]:
    spread, members = job.spread, list(job.members())
    if spread is None or spread < SHORT or job.measured < FEWEST or len(members) < 2:
        return []
    if spread * job.rounds_per_second < NOTICED:
        return []
    usual = median(one.behind for one in members)
    late = max(SHORT, BEHIND * spread, 3 * usual)
    often = max(OFTEN, 1 / len(members) + BEYOND)
    return [
        one for one in members if one.behind >= late or (one.last >= often and not _is_local(one))
    ]


def _is_local(member: Member) -> bool:
    """Return whether its packets cross no link, which could lose some or make it end late."""
    host: str = member.now["host"]
    return host.startswith("127.")


def is_lossy(link: Link, way: str) -> bool:
    """Return whether an impaired port loses a share of packets worth a word."""
    return link.lost(way) > LOSSY and link.change.count(f"lost_{way}") >= FEW


def _lossy(link: Link, switch: str) -> Iterator[Finding]:
    peer = link.now["peer"]
    name = f"{peer} - {switch} ({link.now['name']})" if peer else f"{link.now['name']} at {switch}"
    ways = [(way, link.lost(way)) for way in ("in", "out") if is_lossy(link, way)]
    if ways:
        lost = " and ".join(f"{share:.1%} {way}" for way, share in ways)
        told = f"{name} loses {lost}; {link.again:,.0f} packets/s again"
        yield Finding(False, "lossy link", told)
    load = link.load
    if load is not None and load > FULL:
        yield Finding(False, "full link", f"{name}: {load:.0%} of its rate")


def sent_again(job: Job) -> list[Member]:
    """List the members whose packets are repeated so often that a link may lose some.

    If all are alike, nobody is listed: then the processors are busy, rather than links bad.
    """
    return job.once(_repeated)


def _repeated(job: Job) -> list[Member]:
    members = list(job.members())
    usual = median(one.loss for one in members) if len(members) > 2 else 0.0
    least = max(SEEN_AGAIN, 3 * usual)
    return [one for one in members if one.loss > least and one.again * one.change.seconds >= FEW]


def _lossy_members(change: Change, links: list[Link], of: str, several: bool) -> Iterator[Finding]:
    """Name the members whose packets are lost somewhere, unless a port here loses them."""
    for job in change.jobs():
        for member in sent_again(job):
            at = member.now["link"]
            known = at < len(links) and any(is_lossy(links[at], way) for way in ("in", "out"))
            if not known:
                who = called(member, several)
                told = f"the way to {who}{of}: {member.loss:.1%} of its packets again"
                if _is_local(member):
                    yield Finding(False, "busy machine", f"{told}, though loopback loses none")
                else:
                    yield Finding(False, "lossy link", told)


def _flood(change: Change, of: str) -> Iterator[Finding]:
    drops = change.drops()
    foreign = sum(drops.get(name, 0.0) for name in STRANGERS)
    if foreign > FLOOD:
        named = listed([name for name in STRANGERS if name in drops])
        told = f"{foreign:,.0f} packets/s that are no member's{of}, dropped ({named})"
        yield Finding(False, "flood", told)


def _full(change: Change, of: str) -> Iterator[Finding]:
    memory: Mapping[str, int] = change.now["memory"]
    if memory["reserved"] > FULL * memory["limit"]:
        share = memory["reserved"] / memory["limit"]
        told = f"{share:.0%} of --memory is reserved{of}; more Joins may be refused"
        yield Finding(False, "memory", told)


def _operated(change: Change, of: str) -> Iterator[Finding]:
    """Tell what the operator has ordered, and how many jobs wait."""
    if change.now["drained"]:
        yield Finding(False, "drained", f"no new jobs are taken{of}, as its operator ordered")
    if total := change.now["waiting"]:
        first = [str(one["job"]) for one in change.now["queue"][:4]]
        told = f"{total} for memory{of}, first {listed(first)}; `iswitch ctl queue` lists them"
        yield Finding(False, "jobs wait", told)


def ms(seconds: float) -> str:
    """Write a time in milliseconds."""
    return f"{1000 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"
