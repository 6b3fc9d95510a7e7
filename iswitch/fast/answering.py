"""Lends what a kernel needs to answer the marks of an asynchronous job's members.

A mark is a Help without segments, which workers send behind every few bursts, and switches behind
partial sums. Its answer tells the current version, and to a switch how many segments have counted
its sum. Python makes it but for these fields, and decides whether the kernel may answer; the kernel
(`marks`) puts answers one after the other, to be sent like the sums of a job.

Below another switch a mark also asks that one for the newest version, but not if it was asked just
before: then the kernel answers, too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from iswitch.core.format.keys import MAC_SIZE
from iswitch.core.format.packets import Address, Outgoing, Rows
from iswitch.core.format.wire import (
    COUNTED,
    TOS_CONTROL,
    Ack,
    Action,
    Control,
    MemberType,
    Segments,
    Status,
)
from iswitch.core.jobs.answers import PER_MEMBER
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member
from iswitch.core.jobs.requests import Request
from iswitch.core.switch import Switch
from iswitch.ports.kernel.mmsg import address_of

from . import tables as t
from .tables import Form

REQUEST_AT = 4  # bytes
VALUE_AT = 8
THRESHOLD_AT = VALUE_AT + 4
ROUND_AT = VALUE_AT + 8
CONTRIBUTORS_AT = VALUE_AT + 12
MARK = VALUE_AT + Segments.FORMAT.size
ANSWER = VALUE_AT + Ack.FORMAT.size
NOTHING = Segments(0, 0, 0)  # named by a mark of a worker
PLACES = PER_MEMBER  # answers of a member, of which the next takes the place of the oldest


def form_of_singles(size: int, keyed: bool) -> Form:
    """Return what packets of control are like that have this many bytes without a MAC."""
    size += MAC_SIZE if keyed else 0
    return Form(TOS_CONTROL, size, size, 1)


def marks_of(switch: Switch, job: Job) -> dict[int, int]:
    """Return what the row of a job says of marks: how they begin, and until when all are alike."""
    mark = Control(Action.HELP, job.number, 0, NOTHING)
    hierarchy, until = switch.control.hierarchy, t.NEVER
    if hierarchy is not None:
        until = int(hierarchy.uplinks[job.number].asked_until(NOTHING) * t.SECOND)
    return {t.MARK: int.from_bytes(mark.build()[:REQUEST_AT], "big"), t.ASKS_AT: until}


def may_answer(switch: Switch, job: Job, member: Member, now: float) -> bool:
    """Return whether a kernel may answer a member's marks: all answers are alike until a timer.

    Args:
        switch: the switch.
        job: an asynchronous job.
        member: a contributor.
        now: the time, in seconds.
    """
    if switch.control.turns is not None or member.answers.last is None:
        return False
    begun = member.first_round is None or job.window.is_past(member.first_round)
    return begun and not switch.record.lost(job, now)


class Singles:
    """Packets of control that a kernel makes, one after the other.

    Args:
        peer: gets them.
        form: what they are like.
    """

    def __init__(self, peer: Address, form: Form) -> None:
        self.peer, self.form, self._size = peer, form, form.size
        # The last two: how they begin, and a packet that came.
        self._rows: Rows = np.zeros((PLACES + 2, self._size), np.uint8)

    def begin_as(self, packet: bytes) -> None:
        """Let all be like this packet without a MAC, but for the fields that the kernel sets."""
        self._rows[PLACES, : len(packet)] = np.frombuffer(packet, np.uint8)

    def packets(self, start: int, stop: int) -> Outgoing:
        """Return packets start..stop-1 of a call; all are there still."""
        rows = self._rows[np.arange(start, stop) % PLACES]
        return Outgoing((self.peer,), TOS_CONTROL, rows, self._size)

    def columns(self) -> dict[int, int]:
        """Return what they are in the row of their way."""
        return {
            t.TOS: TOS_CONTROL,
            t.SIZE: self._size,
            t.LAST_SIZE: self._size,
            t.FULL_SEGMENTS: 1 << 62,
            t.SLOTS: PLACES,
            t.MASK: PLACES - 1,
            t.ROWS: address_of(self._rows),
            t.APART: PLACES * self._size,
            t.DOWN: -1,
        }


class Answers(Singles):
    """The answers to a member's marks.

    Args:
        job: the job.
        member: the member.
        form: what they are like.
    """

    def __init__(self, job: Job, member: Member, form: Form) -> None:
        super().__init__(member.address, form)
        self.job, self.member = job, member

    def lend(self, switch: Switch, now: float) -> tuple[int, int]:
        """Return the newest request that was answered, and how many may be answered now."""
        answers, address = self.member.answers, self.member.address
        request = Request(self.job, self.member, Action.HELP, None, now)
        known = COUNTED if self.member.type is MemberType.SWITCH else 0
        ack = replace(request.ack(), threshold=0, known=known)
        self.begin_as(Control(Action.ACK, self.job.number, 0, ack, Status.OK).build())
        assert answers.last is not None
        return answers.last, switch.record.throttle.left(address, now)

    def take_up(self, switch: Switch, answered: int) -> None:
        """Remember the newest answers of a call, which has made this many."""
        member = self.member
        for n in range(max(0, answered - PLACES), answered):
            row = self._rows[n % PLACES, :ANSWER].tobytes()  # a repeat gets a MAC of its own
            member.answers.put(int.from_bytes(row[REQUEST_AT:VALUE_AT], "big"), row)
        switch.counters["control"] += answered
        switch.record.throttle.take(member.address, answered, member.last_seen)
