"""Help: sends missing results, asks for missing contributions, and names whom segments wait for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce
from operator import or_

from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import COUNTED, Ack, Action, MemberType, Segments, Status, Who
from iswitch.core.sums.numbered import NumberedAccelerator
from iswitch.core.sums.runs import Held, Run, merge

from . import resizing
from .hierarchy import Hierarchy
from .job import Job
from .lifecycle import Lifecycle
from .member import Member
from .record import Record
from .relay import Relays
from .requests import Answer, Request
from .turns import ask_for_turn
from .who import NOBODY, Awaiting, Neighbours, named, together


class Questions:
    """Answers Help and questions from members and the parent, and asks others for what is missing.

    Args:
        record: the jobs.
        relays: repeats the commands that are under way to members.
        neighbours: keeps the answers of the switches above and below.
        lifecycle: changes the jobs.
        hierarchy: speaks to the parent; None: this switch has no parent.
    """

    def __init__(
        self,
        record: Record,
        relays: Relays,
        neighbours: Neighbours,
        lifecycle: Lifecycle,
        hierarchy: Hierarchy | None,
    ) -> None:
        self.record = record
        self.relays = relays
        self.neighbours = neighbours
        self.lifecycle = lifecycle
        self.hierarchy = hierarchy

    # Of members

    def help(self, request: Request) -> Answer:
        """Send kept aggregates again, and ask contributors for their missing contributions.

        If no segments are named, the answer names the contributors whose lease has run out.
        """
        if isinstance(request.value, Who):
            return self._who(request, request.value)
        return resizing.answer(self.record, request) or self._help(request)

    def _help(self, request: Request) -> Answer:
        job, now = request.job, request.now
        round_, start, stop = request.segments()
        if start < stop and request.member.contributes:
            ask_for_turn(job, request.member, round_)
        kept: list[Run] = []
        status = Status.OK
        missing: list[tuple[int, Run]] = []  # bits of contributors, and the run that lacks them
        above: list[Run] = []  # aggregates that the parent has yet to send
        again: list[Run] = []  # those that have come, but are not kept
        for run, what, bitmap in job.held(round_, start, stop):
            if what is Held.COMPLETE:
                (kept if job.sums.keeps_aggregates else again).append(run)
            elif job.is_gone(round_, what):
                status = Status.GONE
            elif what is Held.SENT:
                above.append(run)
            elif job.synchronous:
                missing += job.lacking(run, bitmap, request.member)
                above += job.sent.elsewhere(run)
        job.sums.want(again)
        above = [*job.sent.meant_for(request.member, above + again)]
        sends = job.sent.answer(request.member, kept)
        sends += self.ask_members(job, missing, now)
        absent = bits_of(missing)
        if start == stop:
            absent = self.record.lost(job, now)
            above += [] if job.synchronous else [Run(0, 0, 0, 0)]  # which version is the newest
        if self.hierarchy and above:
            sends += self.hierarchy.help(job, above, now)
        # With slots a segment can be gone from a round that is not over.
        over = status is Status.GONE and (not job.slots or job.window.is_past(round_))
        if over and job.move_up(request.member):
            sends += self.lifecycle.reevaluate(job, now)
        own = start < stop and bool(absent & request.member.bit)
        ack = replace(request.ack(absent & 0xFFFFFFFF), threshold=absent >> 32, known=int(own))
        if start == stop and request.member.type is MemberType.SWITCH:
            ack = self._counted(request, ack)
        return Answer(ack, sends, status)

    @staticmethod
    def _counted(request: Request, ack: Ack) -> Ack:
        """Tell a switch below how many segments have counted its sums, and how many then lack them.

        Only in asynchronous jobs: the Help is the mark behind its partial sums.
        """
        sums = request.job.accelerator
        if not isinstance(sums, NumberedAccelerator):
            return ack
        number, start, _ = request.segments()
        counted, lacking = sums.counted(request.member.seat, number, start)
        return replace(ack, known=COUNTED, threshold=lacking, contributors=counted)

    def _who(self, request: Request, who: Who) -> Answer:
        """Name the workers that segments wait for; without segments, those whose lease ran out."""
        job, now = request.job, request.now
        round_, start, stop = request.segments()
        absent, waits = 0, False
        for run, what, bitmap in job.held(round_, start, stop) if job.synchronous else ():
            if what is not Held.COMPLETE and not job.is_gone(round_, what):
                waits = True
                if what is not Held.SENT:
                    absent |= bits_of(job.lacking(run, bitmap, request.member))
        asked = absent
        if start == stop:
            absent = self.record.lost(job, now)
            asked, waits = absent | job.members.switches(), True
        below, sends = self.ask_for_whom(job, who, asked, request.member, now)
        above = NOBODY
        if self.hierarchy and waits:
            above, more = self.hierarchy.ask_for_whom(job, who, now)
            sends += more
        answer = replace(request.ack(absent & 0xFFFFFFFF), threshold=absent >> 32)
        return Answer(answer.naming(*together([below, above])), sends)

    # To members

    def ask_for_whom(
        self, job: Job, who: Who, absent: int, asker: Member | None, now: float
    ) -> tuple[Awaiting, list[Outgoing]]:
        """Name absent workers; ask absent switches for which of their workers they wait.

        Args:
            job: the job of the members.
            who: the question.
            absent: bitmap of the absent members.
            asker: the member that asks, and is not asked itself; None: the parent asks.
            now: the time, in seconds.

        Returns:
            The workers known so far, and the packets that ask the switches.
        """
        parts: list[Awaiting] = []
        sends: list[Outgoing] = []
        for member in job.members.seated(absent):
            if member.type is MemberType.WORKER:
                parts.append(Awaiting(1, (named(member),)))
            elif member is not asker:
                ask = partial(self.relays.send, member.address, Action.HELP, job.number, who, now)
                told, asked = self.neighbours.ask(member.name, job.number, who, ask)
                parts.append(told)
                sends += asked
        return together(parts), sends

    def ask_members(self, job: Job, missing: list[tuple[int, Run]], now: float) -> list[Outgoing]:
        """Ask members for missing contributions, by Help.

        Args:
            job: the job of the members.
            missing: pairs of a bitmap of members and the run that lacks their contributions.
            now: the time, in seconds.
        """
        sends: list[Outgoing] = []
        for member in job.members.seated(bits_of(missing)):
            for run in merge(run._replace(slot=0) for bits, run in missing if bits & member.bit):
                asked = Segments(run.round, run.start, run.segments)
                relayed = self.relays.send(member.address, Action.HELP, job.number, asked, now)
                self.record.counters["helps_relayed"] += len(relayed)
                member.tally.asked += asked.count * bool(relayed)
                sends += relayed
        return sends

    # Of the parent

    def help_the_parent(self, job: Job, asked: Segments, now: float) -> list[Outgoing]:
        """Send the parent completed segments again, and ask members for missing contributions.

        Args:
            job: the job that the parent asks about.
            asked: the segments.
            now: the time, in seconds.
        """
        assert job.shape is not None
        stop = asked.index + asked.count
        if stop > job.shape.segments:
            return []
        # Of what has gone on in parts, nobody here knows which of them have come.
        job.sums.forget(asked.round, asked.index, stop)
        held = job.held(asked.round, asked.index, stop)
        ours = [run for run, what, bitmap in held if what in (Held.SENT, Held.COMPLETE) and bitmap]
        missing = [
            lack
            for run, what, bitmap in held
            if what in (Held.OPEN, Held.NOTHING)
            for lack in job.lacking(run, bitmap)
        ]
        return job.contribute_again(ours) + self.ask_members(job, missing, now)

    def tell_the_parent(self, job: Job, who: Who, now: float) -> tuple[Awaiting, list[Outgoing]]:
        """Name our members that the parent asks about; ask switches among them for their workers.

        A question with segments is about the members that these segments wait for. A question
        without segments is about members whose leases ran out, and all switches below.

        Args:
            job: the job that the parent asks about.
            who: the parent's question.
            now: the time, in seconds.
        """
        assert job.shape is not None
        absent = 0
        stop = min(who.index + who.count, job.shape.segments)
        for run, what, bitmap in job.held(who.round, who.index, stop):
            if what in (Held.OPEN, Held.NOTHING):
                absent |= bits_of(job.lacking(run, bitmap))
        if not who.count:
            absent = self.record.lost(job, now) | job.members.switches()
        return self.ask_for_whom(job, who, absent, None, now)


def bits_of(missing: list[tuple[int, Run]]) -> int:
    """Return the bitmap of all members in pairs of a bitmap and what these members lack."""
    return reduce(or_, (bits for bits, _ in missing), 0)
