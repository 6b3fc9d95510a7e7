"""What a switch tells whoever asks: of itself, of its jobs, of the members of one.

Nothing changes by it, nobody has to be a member for it, and no answer is kept. Rules of
docs/protocol.md, "Show".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .packets import Address, Outgoing
from .who import named
from .wire import (
    MOST_AWAITED,
    Ack,
    Action,
    Control,
    Show,
    Shown,
    Status,
    kib,
)

if TYPE_CHECKING:
    from .control import ControlPlane


def show(plane: ControlPlane, peer: Address, packet: Control, asked: Show, now: float) -> Outgoing:
    """The answer to a Show."""
    ack: Ack | None
    if asked.what == Shown.SWITCH:
        ack = _switch(plane)
    elif asked.what == Shown.JOBS:
        ack = _next_job(plane, packet.job, asked.first, now)
    elif asked.what == Shown.MEMBERS:
        ack = _members(plane, packet.job, asked.first, now)
    else:
        return plane.bare_answer(peer, packet, Status.BAD_REQUEST)
    if ack is None:
        return plane.bare_answer(peer, packet, Status.NOT_MEMBER)
    answer = Control(Action.ACK, packet.job, packet.request, ack)
    return Outgoing.control(peer, answer.build())


def _switch(plane: ControlPlane) -> Ack:
    reserved = plane.reserved
    free = max(0, plane.limits.memory - reserved)
    above = int(plane.hierarchy is not None)
    return Ack(Action.SHOW, 0, len(plane.jobs), kib(free, whole=True), kib(reserved), above)


def _next_job(plane: ControlPlane, named: int, first: int, now: float) -> Ack | None:
    """The first job from a number on; of those that are keyed, with the key of the one named."""
    key = plane.keys.of(named)
    numbers = (n for n in sorted(plane.jobs) if n >= first and plane.keys.of(n) == key)
    number = next(numbers, None)
    return None if number is None else _job(plane, number, number, now)


def _members(plane: ControlPlane, number: int, first: int, now: float) -> Ack | None:
    ack = _job(plane, number, 0, now)
    if ack is None:
        return None
    members = plane.jobs[number].members.contributors()
    all_ = sorted((named(member) for member in members), key=lambda one: one.rank)
    return ack.naming(len(members), tuple(all_[first : first + MOST_AWAITED]))


def _job(plane: ControlPlane, number: int, rank: int, now: float) -> Ack | None:
    job = plane.jobs.get(number)
    if job is None:
        return None
    workers = plane.workers(job, now)
    return Ack(Action.SHOW, 0, rank, job.threshold_in_force, job.window.high, workers)
