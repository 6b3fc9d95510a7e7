"""What a switch says to the switch above, which it joins as one contributor of each job.

A segment that is complete here goes up as one contribution; the aggregate comes down, is kept for
Help, and is broadcast. docs/hierarchy.md says what each action does in a tree, and why. What the
parent says is for `parent.py`.
"""

from __future__ import annotations

from dataclasses import replace

from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_HEARTBEAT,
    FLAG_REPRODUCIBLE,
    FLAG_STANDS_AT,
    FLAG_WHOLE,
    MAX_MEMBERS,
    ROUND_MASK,
    Action,
    Control,
    Join,
    MemberType,
    Mode,
    Segments,
    Status,
    TreeJoin,
    Who,
    WireError,
    later,
)
from iswitch.core.sums.runs import Run, merge

from .job import Job
from .phases import UplinkPhase
from .ranks import Ranks
from .record import Record
from .requests import Refusal
from .uplink import Uplink
from .who import Awaiting, Neighbours


class Hierarchy:
    """Says to the parent what happens in the jobs of a switch.

    Args:
        record: the jobs.
        ranks: who has which.
        neighbours: what they have answered.
        parent: the switch above.
        incarnation: larger in a new process (seconds since 1970 serve).
    """

    def __init__(
        self,
        record: Record,
        ranks: Ranks,
        neighbours: Neighbours,
        parent: Address,
        incarnation: int,
    ) -> None:
        self.record = record
        self.ranks = ranks
        self.neighbours = neighbours
        self.parent = parent
        self._incarnation = incarnation
        self.uplinks: dict[int, Uplink] = {}

    def is_parent(self, peer: Address) -> bool:
        """Return whether a packet comes from the switch above."""
        return peer == self.parent

    # Joining

    def admit(
        self, peer: Address, packet: Control, join: Join, now: float
    ) -> list[Outgoing] | None:
        """Have a contributor wait until the parent has taken us into its job, if it has to.

        Args:
            peer: the contributor.
            packet: its Join.
            join: what that says.
            now: the time.

        Returns:
            What to send while its Join waits; None: it need not wait.

        Raises:
            WireError: such a job cannot go through a tree.
            Refusal: another job goes through this switch.
        """
        if join.mode != Mode.SYNCHRONOUS:
            raise WireError("asynchronous jobs do not go through a tree")
        uplink = self.uplinks.get(packet.job)
        begins = uplink is None
        if uplink is None:
            if self.uplinks:  # to the parent we are one address, which contributes to one job
                if all(other.is_leaving for other in self.uplinks.values()):
                    self.record.counters["busy_join"] += 1  # it is repeated
                    return []
                raise Refusal(Status.DENIED, contributors=1 + next(iter(self.uplinks)))
            self._incarnation = (self._incarnation + 1) & ROUND_MASK
            uplink = Uplink(self.parent, packet.job, self._incarnation)
        elif uplink.is_member and not uplink.lacks(join.wanted):
            return None
        # Else a Join of ours is under way: a newcomer's would not say where the others stand.
        self.uplinks[packet.job] = uplink
        if len(uplink.waiting) < MAX_MEMBERS or peer in uplink.waiting:
            uplink.waiting[peer] = packet
        else:
            self.record.counters["busy_join"] += 1
        if begins:
            return self.first_join(uplink, join, now)
        job = self.record.jobs.get(packet.job)
        return self.restate(job, now) if job is not None and job.shape is not None else []

    def must_ask(self, number: int, join: Join) -> bool:
        """Return whether a newcomer has to wait for the parent, in a job that has members here.

        It does if the parent is still to take us in again, or to confirm the newcomer's rank.
        """
        uplink = self.uplinks.get(number)
        if uplink is None or uplink.is_leaving:
            return False
        return not uplink.is_member or uplink.lacks(join.wanted)

    def reserve(self, number: int, ranks: int) -> None:
        """State these ranks, too, which one process hands over to the next."""
        uplink = self.uplinks.get(number)
        if uplink is not None:
            uplink.statement.reserved = ranks

    def first_join(self, uplink: Uplink, join: Join, now: float) -> list[Outgoing]:
        """Join the parent with the layout and the place that the first worker here named.

        Args:
            uplink: to the parent.
            join: of the worker.
            now: the time.
        """
        shape = join.shape()
        assert shape is not None
        uplink.named = join.round if join.flags & FLAG_STANDS_AT else None
        kept = FLAG_REPRODUCIBLE | FLAG_WHOLE | FLAG_STANDS_AT | FLAG_FIRST
        value = TreeJoin.for_shape(shape, MemberType.SWITCH, join.expected, join.flags & kept)
        value = replace(self._stating(uplink, None, value, now), round=join.round)
        return uplink.join(value, False, now)

    def join_again(self, uplink: Uplink, now: float) -> list[Outgoing]:
        """Join a parent that does not know us any more, and say where we stand."""
        job = self.record.jobs.get(uplink.job)
        if job is None or job.shape is None or not uplink.is_member:
            return []
        at = job.stands_at()
        before = job.has_finished((at - 1) & ROUND_MASK)
        flags = FLAG_STANDS_AT if before else FLAG_STANDS_AT | FLAG_FIRST
        uplink.begin_anew()
        return uplink.join(replace(self._join_value(job, flags, now), round=at), False, now)

    def outdo(self, uplink: Uplink, last: int, join: Join, now: float) -> list[Outgoing]:
        """Join with a number above all that the process before has used: the clock stepped back.

        Args:
            uplink: to the parent.
            last: the largest number of that process.
            join: the Join that was refused.
            now: the time.
        """
        assert isinstance(join, TreeJoin)
        self.record.counters["joins_outdone"] += 1
        sends = uplink.outdo(last, join, now)
        self._incarnation = uplink.incarnation
        return sends

    def standing(self, uplink: Uplink) -> tuple[int, list[Run]] | None:
        """Return at which round an unknown job stands, and what it waits for from the parent."""
        job = self.record.jobs.get(uplink.job)
        if uplink.is_member or job is None or job.shape is None:
            return None
        return job.stands_at(), job.waiting()

    def drop(self, uplink: Uplink) -> None:
        """End a membership at the parent, or the attempt to get one."""
        uplink.enter(UplinkPhase.ABSENT)
        del self.uplinks[uplink.job]

    # Being a member

    def restate(self, job: Job, now: float) -> list[Outgoing]:
        """State to the parent which ranks the workers here have, if that has changed."""
        uplink = self.uplinks.get(job.number)
        if uplink is None or not uplink.is_member:
            return []
        return self.changed(job, now) if self.state(uplink, job, now) else []

    def state(self, uplink: Uplink, job: Job | None, now: float) -> bool:
        """Take up what the workers here have and ask for; returns whether it has changed.

        Args:
            uplink: to the parent.
            job: of the workers; None: there are none yet.
            now: the time.
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
        value = TreeJoin.for_shape(job.shape, MemberType.SWITCH, members.expected, flags)
        value = replace(value, workers=members.workers_there(now, self.record.limits.lease))
        return self._stating(self.uplinks[job.number], job, value, now)

    def changed(self, job: Job, now: float) -> list[Outgoing]:
        """Tell the parent how many workers there are: contributors have come or gone."""
        uplink = self.uplinks.get(job.number)
        if uplink is None or uplink.is_leaving:
            return []
        if job.shape is None:  # also while joining anew: who comes next is no part of that
            return self.give_up(uplink, now)
        if not uplink.is_member:
            return []
        value = self._join_value(job, FLAG_HEARTBEAT, now)
        if value.workers < uplink.told:
            # An answer to an earlier Join must not be taken for one to this: it would count workers
            # that are gone, and open the gate of a switch below that was restarted.
            uplink.be_called((self._incarnation + 1) & ROUND_MASK)
            self._incarnation = uplink.incarnation
        return uplink.join(value, job.members.gathered, now)

    def give_up(self, uplink: Uplink, now: float) -> list[Outgoing]:
        """Leave a job in which nobody is left here."""
        uplink.enter(UplinkPhase.LEAVING)
        uplink.forget_join()
        return uplink.request(Action.LEAVE, None, now)[1]

    def left(self, uplink: Uplink, now: float) -> list[Outgoing]:
        """Take up the Joins that have waited until we had left."""
        # Whoever begins the job again is outdone by none of the numbers that we have used.
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
        """Pass a command for the whole tree on: the parent's answer is the answer.

        Args:
            peer: the member that sent it.
            packet: the command.
            now: the time.
        """
        uplink = self.uplinks.get(packet.job)
        if uplink is None or self.has_forwarded(peer, packet):
            return []
        request, sends = uplink.request(packet.action, packet.value, now)
        uplink.forwarded[request] = (peer, packet)
        return sends

    def help(self, job: Job, runs: list[Run], now: float) -> list[Outgoing]:
        """Ask for aggregates that are due from the parent.

        Args:
            job: that waits for them.
            runs: the segments that lack their aggregates.
            now: the time.
        """
        uplink = self.uplinks.get(job.number)
        if uplink is None or not uplink.is_member:
            return []
        sends = []
        for run in merge(run._replace(slot=0) for run in runs):
            sends += uplink.help(Segments(run.round, run.start, run.segments), now)
        return sends

    def ask_for_whom(self, job: Job, who: Who, now: float) -> tuple[Awaiting, list[Outgoing]]:
        """Return for whom segments wait by the parent's word: in all branches but ours.

        Args:
            job: that waits.
            who: the question.
            now: the time.
        """
        uplink = self.uplinks.get(job.number)

        def ask() -> list[Outgoing]:
            if uplink is None or not uplink.is_member:
                return []
            # Those that have left are not waited for: tell anew how many are there, too.
            return uplink.ask_for_whom(who) + self.changed(job, now)

        return self.neighbours.ask(self.parent, job.number, who, ask)

    def tell(self, job: Job, action: Action, named: Segments | None, now: float) -> list[Outgoing]:
        """Pass a request on without waiting for the answer.

        Args:
            job: that it is about.
            action: Reset or FBcast.
            named: the segments to force.
            now: the time.
        """
        uplink = self.uplinks.get(job.number)
        return [] if uplink is None else uplink.request(action, named, now)[1]

    def fed(self) -> Job | None:
        """Return the job to which data from the parent belongs.

        It names none; one address contributes to one, so only one of ours is a member.
        """
        jobs = [self.record.jobs.get(u.job) for u in self.uplinks.values() if u.is_member]
        return next((job for job in jobs if job is not None and job.shape is not None), None)

    # Time

    def deadline(self) -> float | None:
        """Return when `handle_timer` has something to do."""
        due = [uplink.deadline() for uplink in self.uplinks.values()]
        return min((when for when in due if when is not None), default=None)

    def handle_timer(self, now: float) -> list[Outgoing]:
        """Repeat requests; be a member still; ask whether all workers are there."""
        sends: list[Outgoing] = []
        for uplink in list(self.uplinks.values()):
            sends += uplink.requests.repeat(now)
            job = self.record.jobs.get(uplink.job)
            due = uplink.is_member and uplink.next_join is not None and uplink.next_join <= now
            if due and job is not None:
                sends += self.changed(job, now)
        return sends
