"""Switches above switches: a switch with a parent joins it as one contributor of each job.

A segment that is complete here goes up as one contribution; the aggregate comes down, is kept for
Help, and is broadcast. docs/hierarchy.md says what each action does in a tree, and why.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from iswitch.core.format.packets import Address, Outgoing, Rows
from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_HEARTBEAT,
    FLAG_REPRODUCIBLE,
    FLAG_STANDS_AT,
    FLAG_WHOLE,
    HEARTBEAT,
    MAX_MEMBERS,
    ROUND_MASK,
    Ack,
    AckRanks,
    AckWho,
    Action,
    Control,
    Join,
    MemberType,
    Mode,
    Round,
    Segments,
    Status,
    SwitchJoin,
    TreeJoin,
    Who,
    WireError,
    later,
    round_distance,
)
from iswitch.core.sums.plane import RoundAccelerator
from iswitch.core.sums.runs import Held, Run, merge

from .job import Job
from .ranks import taken
from .requests import Refusal
from .uplink import Uplink
from .who import Awaiting

if TYPE_CHECKING:
    from .control import ControlPlane


class Hierarchy:
    """What a switch says to its parent, and what it does on the parent's word.

    Args:
        plane: the control plane of this switch.
        parent: the switch above.
        incarnation: larger in a new process (seconds since 1970 serve).
    """

    def __init__(self, plane: ControlPlane, parent: Address, incarnation: int) -> None:
        self.plane = plane
        self.parent = parent
        self._incarnation = incarnation
        self.uplinks: dict[int, Uplink] = {}

    def is_parent(self, peer: Address) -> bool:
        """Whether a packet comes from the switch above."""
        return peer == self.parent

    # Joining

    def admit(
        self, peer: Address, packet: Control, join: Join, now: float
    ) -> list[Outgoing] | None:
        """A contributor wants to join; None: go on, else what to send while its Join waits.

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
                if all(other.leaving for other in self.uplinks.values()):
                    self.plane.counters["busy_join"] += 1  # it is repeated
                    return []
                raise Refusal(Status.DENIED, contributors=1 + next(iter(self.uplinks)))
            self._incarnation = (self._incarnation + 1) & ROUND_MASK
            uplink = Uplink(self.parent, packet.job, self._incarnation)
        elif uplink.member and not uplink.leaving and not uplink.lacks(join.wanted):
            return None
        # Else a Join of ours is under way: a newcomer's would not say where the others stand.
        self.uplinks[packet.job] = uplink
        if len(uplink.waiting) < MAX_MEMBERS or peer in uplink.waiting:
            uplink.waiting[peer] = packet
        else:
            self.plane.counters["busy_join"] += 1
        if begins:
            return self._first_join(uplink, join, now)
        job = self.plane.jobs.get(packet.job)
        return self.restate(job, now) if job is not None and job.shape is not None else []

    def must_ask(self, number: int, join: Join) -> bool:
        """Whether a newcomer has to wait for the parent, in a job that has members here.

        It does if the parent is still to take us in again, or to confirm the newcomer's rank.
        """
        uplink = self.uplinks.get(number)
        if uplink is None or uplink.leaving:
            return False
        return not uplink.member or uplink.lacks(join.wanted)

    def reserve(self, number: int, ranks: int) -> None:
        """Go on stating ranks that one process hands over to the next."""
        uplink = self.uplinks.get(number)
        if uplink is not None:
            uplink.statement.reserved = ranks

    def restate(self, job: Job, now: float) -> list[Outgoing]:
        """State to the parent which ranks the workers here have, if that has changed."""
        uplink = self.uplinks.get(job.number)
        if uplink is None or not uplink.member or uplink.leaving:
            return []
        return self.changed(job, now) if self._state(uplink, job, now) else []

    def _state(self, uplink: Uplink, job: Job | None, now: float) -> bool:
        statement = uplink.statement
        claims = self.plane.ranks.claims(job, uplink.asked(), statement, now)
        return statement.say(*claims)

    def _first_join(self, uplink: Uplink, join: Join, now: float) -> list[Outgoing]:
        """Join the parent with the layout and the place that the first worker here named."""
        shape = join.shape()
        assert shape is not None
        uplink.named = join.round if join.flags & FLAG_STANDS_AT else None
        kept = FLAG_REPRODUCIBLE | FLAG_WHOLE | FLAG_STANDS_AT | FLAG_FIRST
        value = TreeJoin.for_shape(shape, MemberType.SWITCH, join.expected, join.flags & kept)
        value = replace(self._stating(uplink, None, value, now), round=join.round)
        return uplink.join(value, False, now)

    def _stating(self, uplink: Uplink, job: Job | None, value: TreeJoin, now: float) -> TreeJoin:
        self._state(uplink, job, now)
        said = uplink.statement
        return replace(value, statement=said.number, unranked=said.unranked, ranks=said.ranks)

    def _join_value(self, job: Job, flags: int, now: float) -> TreeJoin:
        members = job.members
        assert job.shape is not None
        flags |= FLAG_REPRODUCIBLE * job.reproducible | FLAG_WHOLE * members.whole
        value = TreeJoin.for_shape(job.shape, MemberType.SWITCH, members.expected, flags)
        value = replace(value, workers=job.workers_there(now, self.plane.limits.lease))
        return self._stating(self.uplinks[job.number], job, value, now)

    def changed(self, job: Job, now: float) -> list[Outgoing]:
        """Contributors have come or gone: the parent has to know how many workers there are."""
        uplink = self.uplinks.get(job.number)
        if uplink is None or uplink.leaving:
            return []
        if job.shape is None:  # also while joining anew: who comes next is no part of that
            return self._give_up(uplink, now)
        if not uplink.member:
            return []
        value = self._join_value(job, FLAG_HEARTBEAT, now)
        if value.workers < uplink.told:
            # An answer to an earlier Join must not be taken for one to this: it would count workers
            # that are gone, and open the gate of a switch below that was restarted.
            uplink.be_called((self._incarnation + 1) & ROUND_MASK)
            self._incarnation = uplink.incarnation
        return uplink.join(value, job.members.gathered, now)

    def _rejoin(self, uplink: Uplink, now: float) -> list[Outgoing]:
        job = self.plane.jobs.get(uplink.job)
        if job is None or job.shape is None or not uplink.member:
            return []
        at = job.stands_at()
        assert isinstance(job.accelerator, RoundAccelerator)
        last = (at - 1) & ROUND_MASK
        before = job.accelerator.has_all(last) or any(
            # Those below may have had it from a former process of this switch.
            (m.named == at and not m.begins)
            or (m.contributed == at and last in job.window and m.takes_part_in(last))
            for m in job.members.contributors()
        )
        flags = FLAG_STANDS_AT if before else FLAG_STANDS_AT | FLAG_FIRST
        uplink.begin_anew()
        return uplink.join(replace(self._join_value(job, flags, now), round=at), False, now)

    def _standing(self, uplink: Uplink) -> tuple[int, list[Run]] | None:
        """Where a job stands that the parent did not know, and what it waits for from there."""
        job = self.plane.jobs.get(uplink.job)
        if uplink.member or job is None or job.shape is None:
            return None
        assert isinstance(job.accelerator, RoundAccelerator)
        return job.stands_at(), job.accelerator.waiting()

    def _joined(
        self, uplink: Uplink, ack: Ack, standing: tuple[int, list[Run]] | None, now: float
    ) -> list[Outgoing]:
        plane = self.plane
        sends: list[Outgoing] = []
        again = not uplink.member
        uplink.member = uplink.settled = True
        uplink.first_round = ack.round
        job = plane.jobs.get(uplink.job)
        ours: list[Run] = []
        if job is not None and standing is not None:
            at, waiting_for = standing
            if round_distance(ack.round, at) > 0:  # the others went on without us
                job.window.name(ack.round, False)
                job.members.move_on(job.window.high)
            else:
                ours = waiting_for
        sends += self._take_ranks(uplink, job, ack, now)
        job = plane.jobs.get(uplink.job)
        if job is None or job.shape is None:
            return sends + self._nobody_here(uplink, now)
        job.members.above = ack.contributors
        sends += self.restate(job, now)
        if job.members.count():
            sends += plane.admission.gate_opened(job, None, now)
        elif again and job.awaits_reset:  # the parent that was asked for it is no more
            sends += self.tell(job, Action.RESET, None, now)
        return sends + self.contribute(job, ours)

    def _take_ranks(self, uplink: Uplink, job: Job | None, ack: Ack, now: float) -> list[Outgoing]:
        """Do what the parent says of ranks, and take in who waited for that, or refuse it."""
        plane, said = self.plane, uplink.statement
        if not isinstance(ack, AckRanks):  # it knows nothing of ranks: they are those of a switch
            ack = ack.telling(said.number, 0, said.ranks | plane.ranks.own(job, said, now))
        asked = said.ranks if ack.statement == said.number else 0
        sends: list[Outgoing] = []
        if ack.statement == said.number:
            said.granted, said.decided = ack.ranks, True
            sends += plane.ranks.settle(job, said, now) if job else []
        waiting, uplink.waiting = uplink.waiting, {}
        for peer, packet in waiting.items():
            join = packet.value
            assert isinstance(join, Join)
            if not uplink.lacks(join.wanted):
                sends += plane.admission.join(peer, packet, join, now)
            elif asked >> join.wanted & 1:
                told = taken(join.wanted, self.parent)
                plane.counters["ranks_refused"] += 1
                sends.append(plane.bare_answer(peer, packet, told.status, **told.told))
            else:
                uplink.waiting[peer] = packet
        return sends

    def _nobody_here(self, uplink: Uplink, now: float) -> list[Outgoing]:
        """Nobody could be taken in: leave, unless somebody waits for a rank still."""
        join = next((packet.value for packet in uplink.waiting.values()), None)
        if uplink.leaving or not isinstance(join, Join):
            return [] if uplink.leaving else self._give_up(uplink, now)
        new = self._state(uplink, None, now)
        uplink.member = False
        sends = self._first_join(uplink, join, now)
        return sends if new else []  # else the repeat asks, soon

    def _give_up(self, uplink: Uplink, now: float) -> list[Outgoing]:
        uplink.leaving = True
        uplink.forget_join()
        return uplink.request(Action.LEAVE, None, now)[1]

    def _outdone(self, uplink: Uplink, join: Join, last: int, now: float) -> list[Outgoing]:
        """The process before had a larger number: the clock stepped back since.

        If we have been a member with ours, the larger one is of a process after us.
        """
        assert isinstance(join, SwitchJoin)
        if uplink.settled or round_distance(last, uplink.incarnation) < 0:
            sends = self._refused(uplink, Status.DENIED, Ack(Action.JOIN))
            uplink.next_join = now + HEARTBEAT
            return sends
        self.plane.counters["joins_outdone"] += 1
        sends = uplink.outdo(last, join, now)
        self._incarnation = uplink.incarnation
        return sends

    def _refused(self, uplink: Uplink, status: Status, ack: Ack) -> list[Outgoing]:
        """The parent does not take the job; so cannot we, and we say why as it does."""
        waiting, uplink.waiting = uplink.waiting, {}
        job = self.plane.jobs.get(uplink.job)
        if job is None or job.shape is None:
            del self.uplinks[uplink.job]
        else:
            uplink.member = True  # so that it is tried again
        names = {
            Status.FULL: ("rank", "threshold", "round", "contributors"),
            Status.DENIED: ("contributors",),  # a number to outdo is ours, not the worker's
        }
        told = {name: getattr(ack, name) for name in names.get(status, ())}
        bare_answer = self.plane.bare_answer
        return [bare_answer(peer, packet, status, **told) for peer, packet in waiting.items()]

    # Data

    def contribute(self, job: Job, completed: list[Run]) -> list[Outgoing]:
        """Send the parent once more what is complete here: our contribution."""
        assert job.accelerator is not None
        self.plane.counters["to_parent"] += sum(run.segments for run in completed)
        return job.accelerator.send(completed, (self.parent,), partial=True)

    def fed(self) -> Job | None:
        """The job that data from the parent is for.

        It names none; one address contributes to one, so only one of ours is a member.
        """
        jobs = [self.plane.jobs.get(u.job) for u in self.uplinks.values() if u.member]
        return next((job for job in jobs if job is not None and job.shape is not None), None)

    def aggregates(self, rows: Rows, tail: int) -> list[Outgoing]:
        """Keep what has come from the parent, and broadcast what is new."""
        counters = self.plane.counters
        job = self.fed()
        if job is None:
            counters["stranger"] += len(rows)
            return []
        assert job.accelerator is not None
        peers = job.members.contributor_addresses()
        stretches = job.stretches(rows, tail)
        several = len({stretch.round for stretch in stretches}) > 1
        sends: list[Outgoing] = []
        for stretch in stretches:
            outs = job.accelerator.send(job.take(stretch), peers)
            # The next round may take over the sets that are to be sent: copy them.
            sends += [out.copy() for out in outs] if several else outs
        return sends

    # Requests

    def has_forwarded(self, peer: Address, packet: Control) -> bool:
        """Whether the parent's answer to this command is still to come."""
        uplink = self.uplinks.get(packet.job)
        return uplink is not None and (peer, packet) in uplink.forwarded.values()

    def forward(self, peer: Address, packet: Control, now: float) -> list[Outgoing]:
        """A command for the whole tree: the parent's answer is the answer."""
        uplink = self.uplinks.get(packet.job)
        if uplink is None or self.has_forwarded(peer, packet):
            return []
        request, sends = uplink.request(packet.action, packet.value, now)
        uplink.forwarded[request] = (peer, packet)
        return sends

    def help(self, job: Job, runs: list[Run], now: float) -> list[Outgoing]:
        """Ask for aggregates that are due from the parent."""
        uplink = self.uplinks.get(job.number)
        if uplink is None or not uplink.member:
            return []
        sends = []
        for run in merge(run._replace(slot=0) for run in runs):
            sends += uplink.help(Segments(run.round, run.start, run.segments), now)
        return sends

    def ask_for_whom(self, job: Job, who: Who, now: float) -> tuple[Awaiting, list[Outgoing]]:
        """For whom segments wait by the parent's word: in all branches but ours."""
        uplink = self.uplinks.get(job.number)

        def ask() -> list[Outgoing]:
            if uplink is None or not uplink.member or uplink.leaving:
                return []
            # Who has left is not waited for: how many are there has to be told anew, too.
            return uplink.ask_for_whom(who) + self.changed(job, now)

        return self.plane.neighbours.ask(self.parent, job.number, who, ask)

    def tell(self, job: Job, action: Action, named: Segments | None, now: float) -> list[Outgoing]:
        """Pass a request on without waiting for the answer."""
        uplink = self.uplinks.get(job.number)
        return [] if uplink is None else uplink.request(action, named, now)[1]

    # The parent's word

    def handle(self, payload: bytes, now: float) -> list[Outgoing]:
        """A control packet from the parent."""
        counters = self.plane.counters
        try:
            packet = Control.parse(payload)
        except WireError:
            counters["unmatched_ack"] += 1
            return []
        uplink = self.uplinks.get(packet.job)
        if isinstance(packet.value, Ack):
            if uplink is None:
                counters["unmatched_ack"] += 1
                return []
            return self._answered(uplink, packet, packet.value, now)
        if uplink is None or packet.action not in (Action.HELP, Action.HALT, Action.RESET):
            counters["unmatched_ack"] += 1
            return []
        job = self.plane.jobs.get(packet.job)
        if isinstance(packet.value, Who):
            return self._tell_the_parent(uplink, packet, packet.value, now)
        ack, new = uplink.acknowledge(packet)
        if not new or job is None or job.shape is None:
            return [ack]
        if packet.action is Action.HALT:
            return [ack, *self.plane.halt(job, now)]
        if isinstance(packet.value, Round):
            return [ack, *self._reset(job, packet.value.round, now)]
        if isinstance(packet.value, Segments):
            return [ack, *self._help_the_parent(job, packet.value, now)]
        return [ack]

    def _answered(self, uplink: Uplink, packet: Control, ack: Ack, now: float) -> list[Outgoing]:
        plane = self.plane
        status = Status.of(packet.status)
        if isinstance(ack, AckWho) and ack.action != Action.HELP:
            plane.counters["unmatched_ack"] += 1
            return []
        job = plane.jobs.get(uplink.job)
        keyed = plane.keys.of(uplink.job) is not None
        if keyed and status is Status.DENIED and ack.action != Action.JOIN:
            return uplink.ask_anew(packet.request, ack.round, now)
        asked = uplink.was_asked(packet.request) if ack.action == Action.HELP else None
        if asked and isinstance(ack, AckWho) and status is Status.OK:
            plane.neighbours.answered(self.parent, uplink.job, asked, ack)
            return []
        if ack.action == Action.HELP:
            return self._help_answered(uplink, job, status, ack, now)
        if ack.action == Action.JOIN and status is Status.NOT_MEMBER and not uplink.member:
            return []  # a late answer to a heartbeat, joining anew is under way
        standing = self._standing(uplink)  # memory may run out: as long as the Ack can be repeated
        request = uplink.answered(packet)
        if request is None:
            plane.counters["unmatched_ack"] += 1
            return []
        if isinstance(request.value, Join):
            if status is Status.OK:
                return self._joined(uplink, ack, standing, now)
            if status is Status.NOT_MEMBER:
                return self._rejoin(uplink, now)
            if status is Status.DENIED and ack.round:
                return self._outdone(uplink, request.value, ack.round, now)
            return self._refused(uplink, status, ack)
        if request.action is Action.LEAVE:
            return self._left(uplink, now)
        sends: list[Outgoing] = []
        if status is Status.NOT_MEMBER:
            sends += self._rejoin(uplink, now)
        elif status is Status.OK and request.action is Action.RESET and job is not None:
            sends += self._reset(job, ack.round, now)
        asker = uplink.forwarded.pop(packet.request, None)
        if asker is not None:
            sends += plane.answer(*asker, status, now)
        return sends

    def _left(self, uplink: Uplink, now: float) -> list[Outgoing]:
        # Whoever begins the job again is outdone by none of the numbers that we have used.
        self._incarnation = later(self._incarnation, uplink.last_request)
        del self.uplinks[uplink.job]
        sends: list[Outgoing] = []
        for peer, packet in uplink.waiting.items():
            assert isinstance(packet.value, Join)
            sends += self.admit(peer, packet, packet.value, now) or []
        return sends

    def _help_answered(
        self, uplink: Uplink, job: Job | None, status: Status, ack: Ack, now: float
    ) -> list[Outgoing]:
        if status is Status.NOT_MEMBER:
            return self._rejoin(uplink, now)
        if status is Status.GONE and job is not None:
            # The tree is further than we: who asks us for that round is told the same.
            job.window.name(ack.round, False)
            job.members.move_on(job.window.high)
        return []

    def _help_the_parent(self, job: Job, named: Segments, now: float) -> list[Outgoing]:
        """The parent lacks our contribution: send it again, or ask who has not contributed here."""
        assert job.shape is not None
        assert job.accelerator is not None
        stop = named.index + named.count
        if stop > job.shape.segments:
            return []
        held = list(job.accelerator.held(named.round, named.index, stop))
        ours = [run for run, what, bitmap in held if what in (Held.SENT, Held.COMPLETE) and bitmap]
        missing = [
            (job.members.participants(named.round) & ~bitmap, run)
            for run, what, bitmap in held
            if what in (Held.OPEN, Held.NOTHING)
        ]
        return self.contribute(job, ours) + self.plane.ask_members(job, missing, now)

    def _tell_the_parent(
        self, uplink: Uplink, packet: Control, who: Who, now: float
    ) -> list[Outgoing]:
        """The parent lacks our contribution, and asks for whom it waits: our members, or nobody."""
        job = self.plane.jobs.get(packet.job)
        if job is None or job.accelerator is None or job.shape is None:
            return [uplink.acknowledge(packet)[0]]
        stop = who.index + who.count
        held = job.accelerator.held(who.round, who.index, min(stop, job.shape.segments))
        absent = 0
        for _, what, bitmap in held:
            if what in (Held.OPEN, Held.NOTHING):
                absent |= job.members.participants(who.round) & ~bitmap
        if not who.count:
            absent = job.lost(now, self.plane.limits.lease) | job.members.switches()
        awaiting, sends = self.plane.ask_for_whom(job, who, absent, None, now)
        return [uplink.acknowledge(packet, Ack(Action.HELP).naming(*awaiting))[0], *sends]

    def _reset(self, job: Job, round_: int, now: float) -> list[Outgoing]:
        keyed = self.plane.keys.of(job.number) is not None
        if keyed and round_distance(round_, job.window.high) <= 0:
            return []  # a replay: Resets lead on
        if job.reset_to is not None and 0 <= round_distance(job.reset_to, round_) < 1 << 30:
            return []  # the Ack, or the parent's own relay, has told us, maybe rounds ago
        return self.plane.reset(job, round_, now)

    # Time

    def deadline(self) -> float | None:
        """When `handle_timer` has something to do."""
        due = [uplink.deadline() for uplink in self.uplinks.values()]
        return min((when for when in due if when is not None), default=None)

    def handle_timer(self, now: float) -> list[Outgoing]:
        """Repeat requests; be a member still; ask whether all workers are there."""
        sends: list[Outgoing] = []
        for uplink in list(self.uplinks.values()):
            sends += uplink.requests.repeat(now)
            job = self.plane.jobs.get(uplink.job)
            due = uplink.member and uplink.next_join is not None and uplink.next_join <= now
            if due and job is not None:
                sends += self.changed(job, now)
        return sends
