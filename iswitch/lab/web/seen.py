"""Turns a scene into what the page draws: numbers, and no words but names and findings.

Whatever the page shows is worked out here, with the functions that `iswitch top` calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from iswitch.watch.change import Change, Job, Link, Member
from iswitch.watch.judging import Scene, findings, is_lossy, sent_again, stragglers
from iswitch.watch.rows import among, depth, is_silent, job_rows, link_rows, member_rows, severity

Fields = dict[str, Any]


def seen(scene: Scene) -> Fields:
    """Describe a scene."""
    listening = [str(change.now["listening"]) for change in scene.changes.values()]
    return {
        "title": scene.network.title or next(iter(listening), "no switch"),
        "time": max((change.now["time"] for change in scene.changes.values()), default=None),
        "findings": [one._asdict() for one in findings(scene)],
        "nodes": list(nodes(scene)),
        "jobs": [job_fields(name, job) for name, job in job_rows(scene)],
        "rounds": list(rounds(scene)),
        "members": [member_fields(name, member) for name, member in member_rows(scene)],
        "links": [link_fields(name, link) for name, link in link_rows(scene)],
        "switches": [switch_fields(name, change) for name, change in scene.changes.items()],
        "gone": scene.gone,
    }


COPIED = (
    "job", "state", "keyed", "round", "threshold", "threshold_set", "workers", "expected",
    "reserved", "slots", "shape",
)  # fmt: skip


def job_fields(switch: str, job: Job) -> Fields:
    """Describe a job as the topmost switch that has it sees it."""
    rounds = job.now["rounds"]
    name_of = {one.now["seat"]: one.now["name"] for one in job.members()}
    return {
        **{name: job.now[name] for name in COPIED},
        "switch": switch,
        "rate": job.rounds_per_second,
        "spread": job.spread,
        "longest": rounds["longest"] if rounds["measured"] else None,
        "recent": [{**one, "last": name_of.get(one["last"])} for one in rounds["recent"] or ()],
    }


def rounds(scene: Scene) -> Iterator[Fields]:
    """Yield what has come of the present round of each job, at each switch, by member."""
    for name, change in scene.changes.items():
        for job in change.jobs():
            if job.now["parts"] is not None:
                members = [one.now for one in job.members() if one.now["type"] != "controller"]
                yield {
                    **{each: job.now[each] for each in ("job", "round", "parts")},
                    "switch": name,
                    "members": [
                        {each: one[each] for each in ("name", "rank", "came")} for one in members
                    ],
                }


def member_fields(switch: str, member: Member) -> Fields:
    """Describe a member."""
    now = member.now
    return {
        **{
            name: now[name] for name in ("type", "rank", "name", "host", "port", "missing", "lease")
        },
        "job": member.job.now["job"],
        "switch": switch,
        "bits": 8 * member.change.rate("bytes"),
        "last": member.last,
        "behind": member.behind,
        "again": member.again,
        "severity": severity(member),
        "late": among(member, stragglers(member.job)),
        "lossy": among(member, sent_again(member.job)),
        "silent": now["silent"] if is_silent(member) else None,
    }


def link_fields(switch: str, link: Link) -> Fields:
    """Describe a link."""
    return {
        "switch": switch,
        "name": link.now["name"],
        "peer": link.now["peer"],
        "rate": link.now["rate"],
        "load": link.load,
        "in": link.bits("rx"),
        "out": link.bits("tx"),
        "lost_in": link.lost("in"),
        "lost_out": link.lost("out"),
        "again": link.again,
        "lossy": [way for way in ("in", "out") if is_lossy(link, way)],
    }


def switch_fields(name: str, change: Change) -> Fields:
    """Describe a switch."""
    return {
        "name": name,
        "listening": change.now["listening"],
        "uptime": change.now["uptime"],
        "memory": change.now["memory"],
        "drops": dict(sorted(change.drops().items(), key=lambda one: -one[1])),
    }


def nodes(scene: Scene) -> Iterator[Fields]:
    """Yield the nodes of the network, each below one before it, and its link to that one."""
    network = scene.network
    names = [*network.switches, *(one for one in scene.changes if one not in network.switches)]
    place = {name: at for at, name in enumerate(network.parents)}
    order = sorted(names, key=lambda name: (depth(scene, name), place.get(name, len(place))))
    for name in order:
        above = network.parents.get(name)
        yield {
            **node(scene, name, above),
            "kind": "switch",
            "gone": scene.gone.get(name),
        }
    for name in order:
        change = scene.changes.get(name)
        members = [] if change is None else [one for job in change.jobs() for one in job.members()]
        own = (str(one.now["name"]) for one in members if one.now["type"] == "worker")
        for host in dict.fromkeys([*network.below.get(name, ()), *own]):
            yield {**node(scene, host, name), "kind": "host", "gone": scene.gone.get(name)}


def node(scene: Scene, name: str, above: str | None) -> Fields:
    """Describe a node and its link to the switch above."""
    change = None if above is None else scene.changes.get(above)
    members = [] if change is None else members_named(change, name)
    ranks = [one.now["rank"] for one in members if one.now["rank"] is not None]
    return {
        "name": name,
        "above": above,
        "ranks": sorted(set(ranks)),
        "late": any(among(one, stragglers(one.job)) for one in members),
        "silent": max((one.now["silent"] for one in members if is_silent(one)), default=None),
        "link": None if change is None or above is None else way(above, change, name, members),
    }


def members_named(change: Change, name: str) -> list[Member]:
    """List the members of all jobs at a switch that have a name."""
    return [one for job in change.jobs() for one in job.members() if one.now["name"] == name]


def way(switch: str, change: Change, peer: str, members: Iterable[Member]) -> Fields | None:
    """Describe the link to a node, or what its members send if its link is not known."""
    members = list(members)
    lossy = any(among(one, sent_again(one.job)) for one in members)
    for link in change.links():
        if link.now["peer"] == peer:
            found = link_fields(switch, link)
            return {**found, "lossy": found["lossy"] or (["way"] if lossy else [])}
    if not members:
        return None
    return {
        "switch": switch,
        "name": None,
        "peer": peer,
        "rate": None,
        "load": None,
        "in": sum(8 * one.change.rate("bytes") for one in members),
        "out": None,
        "lost_in": 0.0,
        "lost_out": 0.0,
        "again": sum(one.again for one in members),
        "lossy": ["way"] if lossy else [],
    }
