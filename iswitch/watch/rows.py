"""Puts jobs, members and links in the order in which every view shows them: the worst first."""

from __future__ import annotations

from .change import Job, Link, Member
from .judging import SILENT, Scene, is_lossy, sent_again, stragglers


def job_rows(scene: Scene) -> list[tuple[str, Job]]:
    """List each job once, as the topmost switch that has it sees it."""
    found: dict[int, tuple[str, Job]] = {}
    order = sorted(scene.changes, key=lambda name: depth(scene, name))
    for name in order:
        for job in scene.changes[name].jobs():
            found.setdefault(job.now["job"], (name, job))
    return [found[number] for number in sorted(found, key=lambda n: (n != 0, n))]


def depth(scene: Scene, name: str) -> int:
    """Return the number of switches above one."""
    depth, above = 0, scene.network.parents.get(name)
    while above is not None and depth < len(scene.network.parents):
        depth, above = depth + 1, scene.network.parents.get(above)
    return depth


def member_rows(scene: Scene) -> list[tuple[str, Member]]:
    """List the members of all jobs at all switches, the worst first, then by job and rank."""
    rows = [
        (name, member)
        for name, change in scene.changes.items()
        for job in change.jobs()
        for member in job.members()
    ]
    rows.sort(key=lambda row: (
        severity(row[1]), row[1].job.now["job"], row[1].now["rank"] is None,
        row[1].now["rank"] or 0, row[1].now["name"],
    ))  # fmt: skip
    return rows


def severity(member: Member) -> int:
    """Grade a member: 0 silent, 1 a straggler or lossy, 2 nothing is wrong."""
    if is_silent(member):
        return 0
    return 2 - (among(member, stragglers(member.job)) or among(member, sent_again(member.job)))


def is_silent(member: Member) -> bool:
    """Return whether nothing has come from a member for longer than a heartbeat takes."""
    return bool(member.now["silent"] > SILENT)


def among(member: Member, members: list[Member]) -> bool:
    """Return whether a member is one of these."""
    return any(one.now is member.now for one in members)


def link_rows(scene: Scene) -> list[tuple[str, Link]]:
    """List the links of all switches, lossy ones first, then by load."""
    rows = [(name, link) for name, change in scene.changes.items() for link in change.links()]
    rows.sort(key=lambda row: (
        not any(is_lossy(row[1], way) for way in ("in", "out")),
        -(row[1].load or 0), row[0], row[1].now["name"],
    ))  # fmt: skip
    return rows
