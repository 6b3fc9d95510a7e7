"""A member's request, its answer, and its refusal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import Ack, Action, Control, Segments, Status, Value, Who

from .job import Job
from .member import Member


@dataclass(frozen=True, slots=True)
class Request:
    """A member's request."""

    job: Job
    member: Member
    action: Action
    value: Value
    now: float
    number: int = 0

    def ack(self, contributors: int = 0) -> Ack:
        """Make the Ack, in which only `contributors` depends on the action."""
        return Ack(
            self.action,
            0,
            self.member.rank,
            self.job.members.threshold_in_force,
            self.job.rounds.first_round_of(self.member),
            contributors,
        )

    def segments(self) -> tuple[int, int, int]:
        """Return the round that the request names, its first segment, and one past its last.

        Raises:
            Refusal: the job has no such segments.
        """
        named = self.value
        assert isinstance(named, Segments | Who)
        if self.job.shape is None or named.index + named.count > self.job.shape.segments:
            raise Refusal(Status.BAD_REQUEST)
        return named.round, named.index, named.index + named.count


class Answer(NamedTuple):
    """An Ack, the other packets to send, and the status."""

    ack: Ack
    sends: list[Outgoing]
    status: Status = Status.OK

    def to(self, member: Member, packet: Control) -> Outgoing:
        """Return the Ack of a member's request, and remember it for a repeat of the request."""
        ack = Control(Action.ACK, packet.job, packet.request, self.ack, self.status)
        payload = ack.build()
        member.answers.put(packet.request, payload)
        return Outgoing.control(member.address, payload)


class Refusal(Exception):
    """Refuses a request, with a status other than OK."""

    def __init__(self, status: Status, **told: int) -> None:
        super().__init__(status.name)
        self.status = status
        self.told = told  # fields of the Ack that say why
