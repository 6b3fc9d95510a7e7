"""Jobs whose slots change from round to round: docs/protocol.md, "Pools".

The policy decides with numbers how many slots each job may have. What is here tells the members,
and knows which number each of them keeps to.
"""

from __future__ import annotations

from dataclasses import replace

from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import (
    SLOTS_TOLD,
    Action,
    Join,
    MemberType,
    Segments,
    Status,
    round_distance,
)
from iswitch.core.sums.resized import ResizedAccelerator

from .bounds import Bound
from .job import Job
from .member import Member
from .phases import JobPhase
from .record import Record
from .relay import Relays
from .requests import Answer, Refusal, Request

PAUSE = 0.2  # seconds before a member that has not asked for its slots is told again to do so


def note_named(job: Job, member: Member, join: Join) -> None:
    """Note the slots that a Join names: a member may come back from a switch that gave it more.

    They reserve nothing. Rounds under way go through as many slots as the job has by its share.
    """
    sums, bound = job.accelerator, member.bound
    if not isinstance(sums, ResizedAccelerator):
        return
    named = max(slots_named(join), job.slots)
    before = 0 if bound is None else max(bound.upto, bound.after)
    if named > before:
        member.bound = Bound.of_newcomer(named, member.incarnation)
        sums.note_need(named)


def pin(record: Record, job: Job, join: Join) -> None:
    """Let a job have its fewest slots from now on if a switch joins it.

    Raises:
        Refusal: the job still has more.
    """
    if join.type == MemberType.SWITCH:
        record.policy.pin(job.number)
        if slots_used(job) > job.slots:
            raise Refusal(Status.WAITING, threshold=1, round=1)


def slots_named(join: Join) -> int:
    """Return the slots that a Join names, which are no more than there are segments."""
    return min(join.slots, join.segments)


def slots_used(job: Job) -> int:
    """Return the most slots that a round has, or that a member may take one to have."""
    bounds = (member.bound for member in job.contributors())
    sums = job.accelerator
    held = sums.most_held() if isinstance(sums, ResizedAccelerator) else 0
    return max([held, *(bound.most(job.high) for bound in bounds if bound is not None)])


def is_level(record: Record, job: Job) -> bool:
    """Return whether rounds may go on for ever without a change of the job's slots.

    All its members know how many these are, and none may take a round to have more.
    """
    slots = record.policy.slots_of(job.number)
    bounds = [member.bound for member in job.contributors() if member.bound is not None]
    return bool(bounds) and all(
        bound.told == slots >= bound.after and bound.is_level(job.high) for bound in bounds
    )


def answer(record: Record, request: Request) -> Answer | None:
    """Answer a member that asks how many slots it may use; None: this is another question.

    Raises:
        Refusal: it keeps to more than it was ever told.
    """
    job, member, asked = request.job, request.member, request.value
    bound = member.bound
    if bound is None or not isinstance(asked, Segments) or asked.count or not asked.index:
        return None
    if asked.index > max(bound.upto, bound.after):
        raise Refusal(Status.BAD_REQUEST)
    ack = replace(request.ack(), threshold=0, contributors=0, round=job.high)
    if round_distance(request.number, bound.asked) <= 0:
        return Answer(ack, [])  # late: the member heeds no answer to it
    slots = max(job.slots, record.policy.slots_of(job.number))
    after = max(asked.index, slots)
    member.bound = Bound(asked.round, bound.of(asked.round), after, slots, request.number)
    exponent = (slots - 1).bit_length()
    return Answer(replace(ack, known=exponent << SLOTS_TOLD), [])


class Resizing:
    """Carries out what the policy of a switch decides about slots.

    Args:
        record: the jobs.
        relays: repeats the commands that are under way to members.
    """

    def __init__(self, record: Record, relays: Relays) -> None:
        self.record = record
        self.relays = relays

    def after(self, now: float, *jobs: Job | None) -> list[Outgoing]:
        """Do what follows from a packet, or from the time: note what is used, and tell members.

        Args:
            now: the time, in seconds.
            jobs: the jobs in which something may have happened.
        """
        policy, sends = self.record.policy, []
        if not policy.resizes:
            return []
        for job in jobs:
            if job is not None and job.resizes:
                policy.uses(job.number, slots_used(job))
        numbers = [job.number for job in jobs if job is not None]
        for number in dict.fromkeys([*numbers, *policy.share()]):
            job = self.record.jobs.get(number)
            if job is not None and isinstance(job.accelerator, ResizedAccelerator):
                job.accelerator.room = policy.room_of(number)
                job.reserved = {0: policy.reserved_by(number)}
                sends += self._tell(job, now)
        return sends

    def _tell(self, job: Job, now: float) -> list[Outgoing]:
        """Tell the members to ask that do not know how many slots they may use."""
        sends: list[Outgoing] = []
        if job.phase is not JobPhase.RUNNING or job.halted:  # those that come back may need more
            return sends
        slots = self.record.policy.slots_of(job.number)
        for member in job.contributors():
            bound = member.bound
            if bound is None or member.type is MemberType.SWITCH:
                continue
            if (bound.told != slots or bound.after > slots) and bound.again <= now:
                bound.again = now + PAUSE
                nothing = Segments(job.high, 0, 0)
                sends += self.relays.send(member.address, Action.HELP, job.number, nothing, now)
        return sends
