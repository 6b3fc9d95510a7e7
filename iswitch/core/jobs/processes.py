"""Processes that follow one another at an address and port, and Joins that come too late.

Rules of docs/protocol.md, "Joining".
"""

from __future__ import annotations

from dataclasses import dataclass

from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import (
    FLAG_HEARTBEAT,
    FLAG_NEW,
    FLAG_PARTIAL,
    FLAG_REPRODUCIBLE,
    FLAG_STANDS_AT,
    Control,
    Join,
    MemberType,
    Shape,
    Status,
    later,
    round_distance,
)

from .job import Job
from .lifecycle import Lifecycle
from .member import Member
from .record import Record
from .requests import Refusal


@dataclass(frozen=True, slots=True)
class Asked:
    """A Join that has come.

    Attributes:
        peer: its sender.
        packet: the whole request.
        join: the Join in it.
        type: the sender's member type.
        shape: the layout of a contributor's vectors; None for a controller.
        now: when it came, in seconds.
    """

    peer: Address
    packet: Control
    join: Join
    type: MemberType
    shape: Shape | None
    now: float

    @property
    def contributes(self) -> bool:
        """Return whether a worker or a switch sent this Join."""
        return self.type is not MemberType.CONTROLLER

    @property
    def is_heartbeat(self) -> bool:
        """Return whether its sender claims to be a member already."""
        return bool(self.join.flags & FLAG_HEARTBEAT)

    @property
    def is_partial(self) -> bool:
        """Return whether its sender's program numbers the rounds itself."""
        return bool(self.join.flags & FLAG_PARTIAL)

    def is_still(self, member: Member) -> bool:
        """Return whether the process of `member` sent this Join; True if both are switches."""
        same = self.packet.request == member.incarnation
        return same or self.type is member.type is MemberType.SWITCH

    def fits(self, job: Job, member: Member) -> bool:
        """Return whether `member` may go on in its job with this Join."""
        parts = self.join.sends_parts == member.sends_parts
        same_shape = job.shape is None or self.shape in (None, job.shape)
        return parts and same_shape and self.type is member.type

    def is_ahead_of(self, high: int) -> bool:
        """Return whether its sender has seen a newer round or version than the newest here."""
        return bool(self.join.flags & FLAG_STANDS_AT) and round_distance(self.join.round, high) > 0

    @property
    def wants_rank_order(self) -> bool:
        """Return whether its sender asks for sums in rank order."""
        return bool(self.join.flags & FLAG_REPRODUCIBLE)


def refuse_outdated(
    record: Record, asked: Asked, member: Member | None, waiting: Control | None
) -> None:
    """Refuse the Join of a process that is, or seems to be, older than the last one there.

    A new process joins again with a number above the one that the refusal names. If the Join was a
    late copy, its answer is ignored.

    Args:
        record: the jobs.
        asked: the Join.
        member: the member at its address in that job, if any.
        waiting: the Join from its address that waits for the parent, if any.

    Raises:
        Refusal: the Join's Request number is too small, or its sender has left.
    """
    packet, join = asked.packet, asked.join
    if waiting is not None and round_distance(packet.request, waiting.request) < 0:
        _refuse_as_outdated(record, asked, waiting.request, waiting.request)
    has_left = record.former.has_left(asked.peer, packet.job, packet.request, asked.now)
    if member is None and has_left:
        raise Refusal(Status.NOT_MEMBER)
    known = member or record.former.get(asked.peer, packet.job)
    if known.incarnation is None:
        return
    new = bool(join.flags & FLAG_NEW)
    outdated = new and not known.answers.has_grown(packet.request)
    if isinstance(known, Member):
        ahead = round_distance(packet.request, known.incarnation)
        outdated &= ahead != 0 or known.has_spoken  # else it is a repeat
        outdated |= ahead < 0 and not _joins_again(record, asked, known)
    else:
        keyed = record.is_keyed(packet.job)
        outdated |= known.outdates(packet.request, keyed, asked.now)
    if outdated:
        _refuse_as_outdated(record, asked, known.incarnation, known.answers.last)


def _joins_again(record: Record, asked: Asked, member: Member) -> bool:
    """Return whether the process that has joined does so again, though a heartbeat outdid its Join.

    That heartbeat was of a process before, and came late: one of the present process is refused for
    it, so that it joins again. In a keyed job such a Join may be a replay.
    """
    flags, keyed = asked.join.flags, record.is_keyed(asked.packet.job)
    ahead = round_distance(asked.packet.request, member.joined)
    return not (keyed or flags & (FLAG_HEARTBEAT | FLAG_NEW)) and ahead >= 0


def _refuse_as_outdated(record: Record, asked: Asked, incarnation: int, last: int | None) -> None:
    record.counters["stale_join"] += 1
    if asked.is_heartbeat:
        raise Refusal(Status.NOT_MEMBER)
    raise _outdone_by(incarnation, last)


def refuse_drained(record: Record, asked: Asked, job: Job | None) -> None:
    """Refuse a Join that would begin a job at a drained switch, or go on with one that was ended.

    Args:
        record: the jobs.
        asked: the Join of a contributor that is no member.
        job: the job; None: there is none.

    Raises:
        Refusal: the operator takes no such Joins.
    """
    told = record.former.get(asked.peer, asked.packet.job).evicted
    if told is not None and not asked.join.flags & FLAG_NEW:
        raise Refusal(Status.DRAINED, **told)
    if record.drained is not None and (job is None or job.shape is None):
        raise Refusal(Status.DRAINED, **record.drained.told())


def take_over(record: Record, lifecycle: Lifecycle, asked: Asked) -> list[Outgoing]:
    """End the membership that an earlier process at this address and port has in another job.

    Data packets name no job, so an address and port can contribute to one job only. A keyed
    membership can be ended only with the key of its job.

    Args:
        record: the jobs.
        lifecycle: changes the jobs.
        asked: the Join of the new process.

    Raises:
        Refusal: the other job's member is not older, or has a key that this Join lacks.
    """
    job, member = record.by_source.get(asked.peer, (None, None))
    if job is None or member is None:
        return []
    key = record.keys.of(job.number)
    if key is not None and key != record.keys.of(asked.packet.job):
        raise Refusal(Status.DENIED)
    if round_distance(asked.packet.request, member.incarnation) <= 0:
        raise _outdone_by(member.incarnation, member.answers.last)
    return lifecycle.remove(job, member, asked.now, asked.now)


def _outdone_by(incarnation: int, last: int | None) -> Refusal:
    """Make a refusal that names the largest number of the previous process, to be exceeded."""
    last = later(last, incarnation) or 1  # 0 would mean that no number helps
    return Refusal(Status.DENIED, round=last, threshold=incarnation)
