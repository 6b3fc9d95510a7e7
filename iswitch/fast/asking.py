"""Lends what a kernel needs to ask the switch above what it has counted of partial sums.

The kernel (`going_up`) sends marks behind partial sums, and takes the answers, as long as a mark is
about all segments of a job, and its answer says that all are counted. It looks by itself when it
has to, so that the timers of the way up (`core.jobs.upward`) end no call.
"""

from __future__ import annotations

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import Action, Control
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member
from iswitch.core.jobs.upward import Upward
from iswitch.core.sums.runs import Run
from iswitch.core.switch import Switch

from . import tables as t
from .answering import ANSWER, MARK, NOTHING, Answers, Singles, form_of_singles
from .tables import Form, Table


class Questions(Singles):
    """The marks behind the partial sums of a job.

    Args:
        job: the job, below another switch.
        form: what they are like.
    """

    def __init__(self, job: Job, form: Form) -> None:
        assert job.parent is not None
        super().__init__(job.parent, form)
        self.begin_as(Control(Action.HELP, job.number, 0, NOTHING).build())


def singles_of(job: Job, members: list[Member], keyed: bool) -> list[Singles]:
    """Make the answers to members' marks and, below another switch, marks.

    Args:
        job: an asynchronous job.
        members: its contributors.
        keyed: its control packets have a MAC.
    """
    form = form_of_singles(ANSWER, keyed)
    answers: list[Singles] = [Answers(job, member, form) for member in members]
    if job.parent is None:
        return answers
    return [*answers, Questions(job, form_of_singles(MARK, keyed))]


def lend(switch: Switch, upward: Upward, row: int, now: float) -> dict[int, int]:
    """Return the columns of a job that say when partial sums go up, and what is asked about them.

    Args:
        switch: the switch.
        upward: the way up; until `take_up` the kernel looks at its timers.
        row: row of the way of its marks; 0: Python asks.
        now: the time, in seconds.
    """
    sums, uplink = upward.sums, upward.uplink
    upward.watched = True
    asks = row and uplink.is_member and not upward.overdue and not upward.to_ask
    seconds = {
        t.HOLD_AT: upward.hold_at or 0.0,
        t.HOLD: upward.hold,
        t.MARK_AT: upward.asks_at,
        t.LEAST_PAUSE: upward.least_pause,
        t.PAUSE: upward.pause,
        t.TRIP: upward.trip,
        t.MARKED: upward.marked,
    }
    return {column: int(value * t.SECOND) for column, value in seconds.items()} | {
        t.LOST_AT: t.NEVER if upward.mark_at is None else int(upward.mark_at * t.SECOND),
        t.UP: row if asks else 0,
        t.OPENED: sums.opened,
        t.UNASKED: sums.unasked,
        t.QUESTION: question_of(upward) if sums.uncounted() else -1,  # else it is answered
        t.REQUEST: uplink.last_request,
        t.MAY_ANSWER: switch.record.throttle.left(uplink.parent, now),
        t.MARKS_UP: 0,
        t.ANSWERS_DOWN: 0,
        t.ANSWERED_AT: 0,
    }


def question_of(upward: Upward) -> int:
    """Return the number of the newest open question, if it is a mark about all segments; or -1."""
    request, asked = upward.uplink.newest_question
    whole = upward.sums.number, 0, upward.sums.shape.segments
    return request if isinstance(asked, Run) and asked[1:] == whole else -1


def take_up(switch: Switch, upward: Upward, columns: Table) -> list[tuple[Address, float]]:
    """Take up what a call has asked, and what it was answered; return who was heard, and when.

    Args:
        switch: the switch.
        upward: the way up.
        columns: the row of the job.
    """
    sums, uplink = upward.sums, upward.uplink
    upward.watched = False
    sums.opened = bool(columns[t.OPENED])
    sums.unasked = bool(columns[t.UNASKED])
    upward.hold_at = int(columns[t.HOLD_AT]) / t.SECOND or None
    heard = int(columns[t.ANSWERED_AT]) / t.SECOND
    marks, answers = int(columns[t.MARKS_UP]), int(columns[t.ANSWERS_DOWN])
    if not marks and not answers:
        return []
    if answers:
        uplink.was_asked(question_of(upward))  # later questions were answered in the call
        switch.counters["control"] += answers
        switch.record.throttle.take(uplink.parent, answers, heard)
    uplink.requests.numbers.exceed(int(columns[t.REQUEST]))
    question, sent = int(columns[t.QUESTION]), int(columns[t.MARKED]) / t.SECOND
    upward.trip = int(columns[t.TRIP]) / t.SECOND
    upward.note_marks(sent, None if question < 0 else question, bool(answers))
    return [(uplink.parent, heard)] if answers else []
