"""Requests from a switch to the switch above, which it joins as one contributor of each job.

A segment that is complete here goes up as one contribution; the aggregate comes down, is kept for
Help, and is broadcast. docs/hierarchy.md says what each action does in a tree, and why.
`parent.py` handles the packets that come from the parent.
"""

from __future__ import annotations

from dataclasses import replace

from iswitch.core.exchange.requests import Alarm
from iswitch.core.format.lines import line_of
from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_HEARTBEAT,
    FLAG_NEW,
    FLAG_PARTIAL,
    FLAG_PARTS,
    FLAG_REPRODUCIBLE,
    FLAG_STANDS_AT,
    FLAG_WHOLE,
    MAX_MEMBERS,
    PRIORITY_SHIFT,
    ROUND_MASK,
    Action,
    Control,
    Join,
    MemberType,
    Round,
    Segments,
    Status,
    TreeJoin,
    Who,
    later,
    slots_flags,
)
from iswitch.core.sums.runs import Run, merge

from .job import Job
from .phases import UplinkPhase
from .ranks import Ranks
from .record import Record
from .requests import Refusal
from .uplink import Uplink
from .upward import Upward
from .who import Awaiting, Neighbours


class Hierarchy:
    """Reports to the parent what happens in the jobs of a switch, and asks it for results.

    Args:
        record: the jobs.
        ranks: gives ranks to members.
        neighbours: the answers to questions about missing ranks.
        parent: address of the switch above.
        incarnation: larger in each new process, such as seconds since 1970.
    """

    def __init__(
        self, record: Record, ranks: Ranks, neighbours: Neighbours, parent: Address,
        incarnation: int,
    ) -> None:  # fmt: skip
        self.record = record
        self.ranks = ranks
        self.neighbours = neighbours
        self.parent = parent
        self._incarnation = incarnation
        self.uplinks: dict[int, Uplink] = {}
        self._by_line: dict[int, Uplink] = {}
        self.upward: dict[int, Upward] = {}
        self._alarm = Alarm()

    def is_parent(self, peer: Address) -> bool:
        """Return whether a packet comes from the switch above, whatever line it came to."""
        return peer[:3] == self.parent[:3]

    # Joining

    def admit(
        self, peer: Address, packet: Control, join: Join, now: float
    ) -> list[Outgoing] | None:
        """Let a contributor's Join wait, if needed, until the parent has taken this switch in.

        Args:
            peer: the contributor.
            packet: its request.
            join: the Join in it.
            now: the time, in seconds.

        Returns:
            The packets to send while the Join waits; None: it need not wait.

        Raises:
            Refusal: the job's line belongs to another job, or no job is left.
        """
        uplink = self.uplinks.get(packet.job)
        begins = uplink is None
        if uplink is None:
            line = line_of(packet.job) if self.record.data_plane.has_lines else 0
            if line in self._by_line:
                return self._refuse(self._by_line[line])
            if len(self.uplinks) >= self.record.limits.jobs:
                raise Refusal(Status.FULL)
            uplink = self._open(packet.job, line, now)
        elif uplink.is_member and not uplink.lacks(join.wanted):
            return None
        # Else our own Join is under way; a newcomer's Join cannot tell where the others stand.
        if len(uplink.waiting) < MAX_MEMBERS or peer in uplink.waiting:
            uplink.waiting[peer] = packet
        else:
            self.record.counters["busy_join"] += 1
        if begins:
            return self.first_join(uplink, join, now)
        job = self.record.jobs.get(packet.job)
        return self.restate(job, now) if job is not None and job.shape is not None else []

    def _open(self, number: int, line: int, now: float) -> Uplink:
        """Open a line for a job, before the parent is asked about it."""
        self._incarnation = (self._incarnation + 1) & ROUND_MASK
        uplink = Uplink(self.parent._replace(line=line), number, self._incarnation, self._alarm)
        self.uplinks[number] = self._by_line[line] = uplink
        self.record.enter(uplink.parent, MAX_MEMBERS, now)
        return uplink

    def _refuse(self, other: Uplink) -> list[Outgoing]:
        """Refuse a Join because another job has the line; drop it if that job is about to end.

        Raises:
            Refusal: that job is not about to end.
        """
        if not other.is_leaving:
            raise Refusal(Status.DENIED, contributors=1 + other.job)
        self.record.counters["busy_join"] += 1  # the Join is repeated
        return []

    def withdraw(self, peer: Address, leave: Control) -> None:
        """Forget a Join that waits for the parent: its sender leaves."""
        uplink = self.uplinks.get(leave.job)
        if uplink is not None:
            uplink.withdraw(peer, leave)

    def must_ask(self, number: int, join: Join) -> bool:
        """Return whether a newcomer must wait for the parent, in a job that has members here.

        It waits until the parent has taken this switch in again and confirmed the wanted rank.
        """
        uplink = self.uplinks.get(number)
        if uplink is None or uplink.is_leaving:
            return False
        return not uplink.is_member or uplink.lacks(join.wanted)

    def reserve(self, number: int, ranks: int) -> None:
        """State these ranks to the parent, too, while one process hands them over to the next."""
        uplink = self.uplinks.get(number)
        if uplink is not None:
            uplink.statement.reserved = ranks

    def first_join(self, uplink: Uplink, join: Join, now: float) -> list[Outgoing]:
        """Join the parent with the layout, the round and the slots that the first worker named."""
        shape = join.shape()
        assert shape is not None
        uplink.named = join.round if join.flags & FLAG_STANDS_AT else None
        uplink.sends_parts = self.record.passes_on(join)
        flags = join.flags & ~(FLAG_HEARTBEAT | FLAG_NEW) | FLAG_PARTS * uplink.sends_parts
        value = TreeJoin.for_shape(shape, MemberType.SWITCH, join.expected, flags)
        value = replace(value, round=join.round, listening=self.record.listening)
        value = self._stating(uplink, None, value, now)
        return uplink.join(value, False, now)

    def join_again(self, uplink: Uplink, now: float) -> list[Outgoing]:
        """Join a parent that no longer knows this switch, and name our round."""
        job = self.record.jobs.get(uplink.job)
        if job is None or job.shape is None or not uplink.is_member:
            return []
        upward = self.upward_of(job)
        if upward is not None:
            self._incarnation = later(self._incarnation, upward.cut_off())
        at = job.stands_at() if upward is None else job.high
        before = upward is not None or job.has_finished((at - 1) & ROUND_MASK)
        flags = FLAG_STANDS_AT if before else FLAG_STANDS_AT | FLAG_FIRST
        uplink.begin_anew()
        return uplink.join(replace(self._join_value(job, flags, now), round=at), False, now)

    def outdo(self, uplink: Uplink, last: int, join: Join, now: float) -> list[Outgoing]:
        """Join again with a Request number above those of the previous process.

        Our first number was too small, since the clock has stepped back.

        Args:
            uplink: the membership at the parent.
            last: the largest Request number of the previous process.
            join: the Join that was refused.
            now: the time, in seconds.
        """
        assert isinstance(join, TreeJoin)
        self.record.counters["joins_outdone"] += 1
        sends = uplink.outdo(last, join, now)
        self._incarnation = later(self._incarnation, uplink.incarnation)
        return sends

    def standing(self, uplink: Uplink) -> tuple[int, list[Run]] | None:
        """Return the round of a job and the runs it waits for; None: the parent knows the job."""
        job = self.record.jobs.get(uplink.job)
        if uplink.is_member or job is None or job.shape is None:
            return None
        return (job.stands_at(), job.waiting()) if job.synchronous else (job.high, [])

    def drop(self, uplink: Uplink) -> None:
        """Forget a membership at the parent, or the attempt to join it."""
        uplink.enter(UplinkPhase.ABSENT)
        del self.uplinks[uplink.job], self._by_line[uplink.parent.line]
        self.upward.pop(uplink.job, None)
        self.record.leave(uplink.parent)

    # Being a member

    def upward_of(self, job: Job) -> Upward | None:
        """Return the way up of a job's partial sums; None: it is not asynchronous."""
        upward = self.upward.get(job.number)
        return upward if upward is not None and upward.sums is job.accelerator else None

    def restate(self, job: Job, now: float) -> list[Outgoing]:
        """State to the parent the ranks of the workers here, if they have changed."""
        uplink = self.uplinks.get(job.number)
        if uplink is None or not uplink.is_member:
            return []
        return self.changed(job, now) if self.state(uplink, job, now) else []

    def state(self, uplink: Uplink, job: Job | None, now: float) -> bool:
        """Update the statement of ranks for the parent; return whether it has changed.

        Args:
            uplink: the membership at the parent, which keeps the statement.
            job: the job of the workers here; None: there are none yet.
            now: the time, in seconds.
        """
        statement = uplink.statement
        return statement.say(*self.ranks.claims(job, uplink.asked(), statement, now))

    def _stating(self, uplink: Uplink, job: Job | None, value: TreeJoin, now: float) -> TreeJoin:
        self.state(uplink, job, now)
        said = uplink.statement
        return replace(value, statement=said.number, unranked=said.unranked, ranks=said.ranks)

    def _join_value(self, job: Job, flags: int, now: float) -> TreeJoin:
        members = job.members
        assert job.shape is not None
        flags |= FLAG_REPRODUCIBLE * job.reproducible | FLAG_WHOLE * members.whole
        flags |= slots_flags(job.slots) | job.priority << PRIORITY_SHIFT
        flags |= FLAG_PARTS * job.passes_on
        # The root must know every version that somebody has seen before it makes others.
        flags |= FLAG_PARTIAL * job.partial | FLAG_STANDS_AT * (not job.synchronous)
        value = TreeJoin.for_shape(job.shape, MemberType.SWITCH, members.expected, flags)
        there = members.workers_there(now, self.record.limits.lease)
        at = job.left if job.synchronous else job.high
        value = replace(value, round=at, listening=self.record.listening, workers=there)
        return self._stating(self.uplinks[job.number], job, value, now)

    def changed(self, job: Job, now: float) -> list[Outgoing]:
        """Tell the parent how many workers there are: contributors have come or gone."""
        uplink = self.uplinks.get(job.number)
        if uplink is None or uplink.is_leaving:
            return []
        if job.shape is None:  # also while joining anew: the next worker joins for itself
            return self.give_up(uplink, now)
        if not uplink.is_member:
            return []
        value = self._join_value(job, FLAG_HEARTBEAT, now)
        if value.workers < uplink.told or value.expected < uplink.expected:
            # The answer to an earlier Join must not pass for the answer to this one: it would count
            # workers that are gone, and open the gate of a switch below that was restarted.
            uplink.be_called((self._incarnation + 1) & ROUND_MASK)
            self._incarnation = uplink.incarnation
        return uplink.join(value, job.members.gathered, now)

    def give_up(self, uplink: Uplink, now: float) -> list[Outgoing]:
        """Leave a job that has no contributors here any more."""
        uplink.enter(UplinkPhase.LEAVING)
        uplink.forget_join()
        return uplink.request(Action.LEAVE, None, now)[1]

    def left(self, uplink: Uplink, now: float) -> list[Outgoing]:
        """End a membership that was left, and handle the Joins that have waited for this."""
        # The next membership uses larger numbers than this one has used.
        self._incarnation = later(self._incarnation, uplink.last_request)
        self.drop(uplink)
        sends: list[Outgoing] = []
        for peer, packet in uplink.waiting.items():
            assert isinstance(packet.value, Join)
            sends += self.admit(peer, packet, packet.value, now) or []
        return sends

    # Requests

    def has_forwarded(self, peer: Address, packet: Control) -> bool:
        """Return whether the parent's answer to this command is still to come."""
        uplink = self.uplinks.get(packet.job)
        return uplink is not None and (peer, packet) in uplink.forwarded.values()

    def forward(self, peer: Address, packet: Control, now: float) -> list[Outgoing]:
        """Pass a command for the whole tree on to the parent, whose answer goes to the member.

        Args:
            peer: the member that sent the command.
            packet: the command.
            now: the time, in seconds.
        """
        uplink = self.uplinks.get(packet.job)
        if uplink is None or self.has_forwarded(peer, packet):
            return []
        request, sends = uplink.request(packet.action, packet.value, now)
        uplink.forwarded[request] = (peer, packet)
        return sends

    def help(self, job: Job, runs: list[Run], now: float) -> list[Outgoing]:
        """Ask the parent for missing aggregates.

        Args:
            job: the job that waits for them.
            runs: the segments whose aggregates are missing.
            now: the time, in seconds.
        """
        uplink = self.uplinks.get(job.number)
        if uplink is None or not uplink.is_member:
            return []
        merged = merge(run._replace(slot=0) for run in runs)
        named = [Segments(run.round, run.start, run.segments) for run in merged]
        return [out for one in named for out in uplink.help(one, now)]

    def ask_for_whom(self, job: Job, who: Who, now: float) -> tuple[Awaiting, list[Outgoing]]:
        """Return the workers that segments wait for in the other branches, as the parent tells.

        Args:
            job: the job that waits.
            who: the question about the segments.
            now: the time, in seconds.

        Returns:
            What is known so far, and the packets that ask the parent.
        """
        uplink = self.uplinks.get(job.number)

        def ask() -> list[Outgoing]:
            if uplink is None or not uplink.is_member:
                return []
            # Tell the number of workers, so that the parent does not wait for any that have left.
            return uplink.ask_for_whom(who) + self.changed(job, now)

        return self.neighbours.ask(self.parent[:2], job.number, who, ask)

    def tell(
        self, job: Job, action: Action, named: Segments | Round | None, now: float
    ) -> list[Outgoing]:
        """Send the parent a request whose answer nobody waits for.

        Args:
            job: the job that the request names.
            action: Reset or FBcast.
            named: the segments to force; or the round that a Reset must go beyond, if any.
            now: the time, in seconds.
        """
        uplink = self.uplinks.get(job.number)
        return [] if uplink is None else uplink.request(action, named, now)[1]

    def job_on(self, line: int) -> Job | None:
        """Return the job of a line if it has contributors here; None otherwise."""
        uplink = self._by_line.get(line)
        job = None if uplink is None else self.record.jobs.get(uplink.job)
        return job if job is not None and job.shape is not None else None

    def fed(self, line: int = 0) -> Job | None:
        """Return the job of the data that the parent sends to a line; None: there is none."""
        job = self.job_on(line)
        return job if job is not None and self.uplinks[job.number].is_member else None

    # Time

    def deadline(self) -> float | None:
        """Return the next time at which `handle_timer` has work, in seconds; None: it has none."""
        due = self._alarm.due(uplink.deadline() for uplink in self.uplinks.values())
        also = (upward.deadline() for upward in self.upward.values())
        return min((at for at in (due, *also) if at is not None), default=None)

    def handle_timer(self, now: float) -> list[Outgoing]:
        """Repeat unanswered requests, and renew the memberships at the parent that are due."""
        sends: list[Outgoing] = []
        for uplink in list(self.uplinks.values()):
            sends += uplink.requests.repeat(now)
            job = self.record.jobs.get(uplink.job)
            due = uplink.is_member and uplink.next_join is not None and uplink.next_join <= now
            if due and job is not None:
                sends += self.changed(job, now)
        return sends + [out for one in self.upward.values() for out in one.handle_timer(now)]
