"""The control plane: the actions and their Acks, over membership and accelerator.

One method per action; `docs/protocol.md` has the rules. A request is executed once: what was
answered to it is remembered and sent again when it is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from math import inf
from operator import or_

from iswitch.core.format.counters import Counters
from iswitch.core.format.keys import Keys
from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import (
    MAX_MEMBERS,
    ROUND_MASK,
    Ack,
    AckWho,
    Action,
    Control,
    Header,
    Join,
    MemberType,
    Round,
    Segments,
    Show,
    Status,
    Threshold,
    Who,
    WireError,
)
from iswitch.core.sums.buffers import REQUEST
from iswitch.core.sums.plane import DataPlane
from iswitch.core.sums.runs import Held, Run, merge

from .admission import Admission
from .answers import Former, FormerMembers
from .hierarchy import Hierarchy
from .job import Job
from .limits import Limits, Throttle
from .membership import Member
from .ranks import Ranks
from .relay import Relays
from .requests import Answer, Refusal, Request
from .showing import show
from .sources import Sources
from .table import Jobs
from .who import NOBODY, Awaiting, Neighbours, named, together

RETRY = 0.1  # seconds until what lacked memory is tried again
AWAKE = 1.0  # seconds by which a timer may be late in a switch that is awake


class ControlPlane:
    """Jobs and their members, and what may be asked of them.

    Args:
        deliver: sends completed runs of a job to whom they are due.
        reproducible: whether every synchronous job sums in rank order.
        parent: the switch above.
        incarnation: of this switch, as a member of jobs there.
        keys: of the keyed jobs.
        data_plane: adds up the vectors of the jobs.
    """

    def __init__(
        self,
        counters: Counters,
        deliver: Callable[[Job, list[Run]], list[Outgoing]],
        limits: Limits,
        reproducible: bool,
        parent: Address | None,
        incarnation: int,
        keys: Keys,
        data_plane: DataPlane,
    ) -> None:
        self.hierarchy = Hierarchy(self, parent, incarnation) if parent else None
        self.keys = keys
        self.sources = Sources()
        self.throttle = Throttle(limits.control_rate)
        if parent:
            self.enter(parent, MAX_MEMBERS, 0.0)
        self.counters = counters
        self.deliver = deliver
        self.limits = limits
        self.reproducible = reproducible
        self.data_plane = data_plane
        self.jobs = Jobs(keys)
        self.reserved = 0  # bytes of buffers, by members of all jobs
        self.by_source: dict[Address, tuple[Job, Member]] = {}
        self.relays = Relays(counters)
        self.neighbours = Neighbours()
        self._next_expiry = inf  # no lease runs out before
        self._retry_at = inf  # what was given up for want of memory is tried again
        self.former = FormerMembers()
        self.admission = Admission(self)
        self.ranks = Ranks(self)
        self._methods: dict[Action, Callable[[Request], Answer]] = {
            Action.LEAVE: self._leave,
            Action.RESET: self._reset,
            Action.SETH: self._set_threshold,
            Action.FBCAST: self._force_broadcast,
            Action.HELP: self._help,
            Action.HALT: self._halt,
        }

    def new_job(self, number: int) -> Job:
        """A job without members."""
        return Job(number, self.counters, self.data_plane)

    def handle(self, peer: Address, payload: bytes, now: float) -> list[Outgoing]:
        """Execute and answer a control packet of at least eight bytes.

        Raises:
            MemoryError: there is none to do it to its end; nothing has changed.
        """
        header = Header.parse(payload)
        key = self.keys.of(header.job)
        packet = key.opened(payload) if key else payload
        if packet is None:
            return self._deny(peer, header)
        # A Join may take the address over from another job.
        self._see_room(self.jobs.get(header.job), self.by_source.get(peer, (None, None))[0])
        if key is None:
            return self._handle(peer, header, packet, now)
        return self.keys.sealed(self._handle(peer, header, packet, now))

    def _see_room(self, *jobs: Job | None) -> None:
        """See, before anything is changed, that there is the memory to do it to its end.

        Raises:
            MemoryError: there is not.
        """
        shapes = (job.shape for job in jobs if job is not None)
        segments = max((shape.segments for shape in shapes if shape is not None), default=0)
        self.limits.buffers.leave_room(segments, REQUEST)

    def _deny(self, peer: Address, header: Header) -> list[Outgoing]:
        """Nobody who has the key wrote it; the answer has no MAC either."""
        self.counters["bad_mac"] += 1
        from_parent = self.hierarchy is not None and self.hierarchy.is_parent(peer)
        if header.action == Action.ACK or from_parent:
            return []
        return [self.bare_answer(peer, header, Status.DENIED)]

    def _handle(self, peer: Address, header: Header, payload: bytes, now: float) -> list[Outgoing]:
        if self.hierarchy and self.hierarchy.is_parent(peer):
            return self.hierarchy.handle(payload, now)
        try:
            packet = Control.parse(payload)
            if isinstance(packet.value, Round):
                raise WireError("only a switch names the round of a Reset")
        except WireError:
            if header.action == Action.ACK:
                self.counters["unmatched_ack"] += 1
                return []
            return [self.bare_answer(peer, header, Status.BAD_REQUEST)]
        if packet.action is Action.ACK:
            asked = self.relays.acked(peer, packet.request)
            if asked or not self.keys.of(packet.job):  # else it may be a replay
                self._renew(peer, packet.job, now)
            if asked:
                self.throttle.give_back(peer)
                if isinstance(asked.value, Who) and isinstance(packet.value, AckWho):
                    self.neighbours.answered(peer, asked.job, asked.value, packet.value)
            else:
                self.counters["unmatched_ack"] += 1
            return []
        if isinstance(packet.value, Join):
            return self.admission.join(peer, packet, packet.value, now)
        if isinstance(packet.value, Show):
            return [show(self, peer, packet, packet.value, now)]
        return self._execute_once(peer, packet, now)

    # Requests of members

    def _execute_once(self, peer: Address, packet: Control, now: float) -> list[Outgoing]:
        job = self.jobs.get(packet.job)
        member = job.members.by_address.get(peer) if job else None
        answers = member.answers if member else self.former.get(peer, packet.job).answers
        answered = answers.get(packet.request)
        if answered is not None:
            return [Outgoing.control(peer, answered)]
        if job is None or member is None:
            return [self.bare_answer(peer, packet, Status.NOT_MEMBER)]
        if self.keys.of(packet.job) and not answers.has_grown(packet.request):
            assert answers.last is not None
            return self._refuse_replay(peer, packet, answers.last)
        member.last_seen = now
        member.has_spoken = True
        request = Request(job, member, packet.action, packet.value, now)
        try:
            if job.halted and packet.action not in (Action.LEAVE, Action.RESET):
                raise Refusal(Status.HALTED)
            if self.hierarchy and packet.action in (Action.RESET, Action.HALT):
                return self.hierarchy.forward(peer, packet, now)
            answer = self._methods[packet.action](request)
        except Refusal as refusal:
            answer = Answer(request.ack(), [], refusal.status)
        return [self._answer(member, packet, answer), *answer.sends]

    def _refuse_replay(self, peer: Address, packet: Control, last: int) -> list[Outgoing]:
        """A number that does not grow; who asks in earnest is told from where to go on."""
        if self.hierarchy and self.hierarchy.has_forwarded(peer, packet):
            return []  # its answer is still to come
        self.counters["replayed"] += 1
        return [self.bare_answer(peer, packet, Status.DENIED, round=last)]

    def _answer(self, member: Member, packet: Control, answer: Answer) -> Outgoing:
        payload = Control(Action.ACK, packet.job, packet.request, answer.ack, answer.status).build()
        member.answers.put(packet.request, payload)
        return Outgoing.control(member.address, payload)

    def answer(self, peer: Address, packet: Control, status: Status, now: float) -> list[Outgoing]:
        """Answer a request that was forwarded to the parent, as the parent did."""
        job = self.jobs.get(packet.job)
        member = job.members.by_address.get(peer) if job else None
        if job is None or member is None:
            return []
        ack = Request(job, member, packet.action, packet.value, now).ack()
        return [self._answer(member, packet, Answer(ack, [], status))]

    def bare_answer(
        self, peer: Address, packet: Header | Control, status: Status, **told: int
    ) -> Outgoing:
        """An Ack that says the status, and of the job no more than the fields given."""
        ack = Ack(packet.action, **told)
        return Outgoing.control(
            peer, Control(Action.ACK, packet.job, packet.request, ack, status).build()
        )

    def workers(self, job: Job, now: float) -> int:
        """Workers that are there: with a parent, as that tells of the whole tree."""
        above = job.members.above
        return job.workers_there(now, self.limits.lease) if above is None else above

    def enter(self, peer: Address, workers: int, now: float) -> None:
        """From now on listen to this address, which stands for so many workers."""
        if self.sources.enter(peer):
            self.throttle.admit(peer, workers, now)

    # The actions of members

    def _leave(self, request: Request) -> Answer:
        ack = request.ack()
        return Answer(ack, self.remove(request.job, request.member, request.now, request.now))

    def remove(
        self, job: Job, member: Member, now: float, left: float | None = None
    ) -> list[Outgoing]:
        """Take a member out, which may have left by itself; what waited only for it completes."""
        job.members.remove(member)
        former = Former(member.answers, member.incarnation, left)
        keyed = self.keys.of(job.number) is not None
        self.former.put(member.address, job.number, former, keyed)
        if self.sources.leave(member.address):
            self.throttle.dismiss(member.address)
        if member.contributes:
            job.members.are_fewer(member.workers)
        self.relays.cancel(member.address, job.number)
        if member.contributes:
            del self.by_source[member.address]
            if not job.members.contributors():
                self.reserved -= sum(job.reserved.values())
                job.end()
        if not job.members:
            job.sleep(now)
            if not job.window.named:  # nobody has ever contributed: there is nothing to remember
                del self.jobs[job.number]
        sends: list[Outgoing] = []
        if self.hierarchy and member.contributes:
            sends += self.hierarchy.changed(job, now)
        return sends + self.reevaluate(job, now)

    def reevaluate(self, job: Job, now: float) -> list[Outgoing]:
        """Send what a change of members or threshold completes: if memory runs out, soon."""
        try:
            return self._complete(job)
        except MemoryError:  # the change itself is done, and need not be given up
            self.counters["given_up"] += 1
            self.lacks_memory(now)
            return []

    def _complete(self, job: Job) -> list[Outgoing]:
        if job.accelerator is None:
            return []
        return self.deliver(job, job.note(job.accelerator.reevaluate()))

    def _reset(self, request: Request) -> Answer:
        sends = self.reset(request.job, None, request.now)
        return Answer(request.ack(), sends)

    def _halt(self, request: Request) -> Answer:
        sends = self.halt(request.job, request.now)
        return Answer(request.ack(), sends)

    def reset(self, job: Job, round_: int | None, now: float) -> list[Outgoing]:
        """Clear a job, which goes on from the round given, and tell its members."""
        job.reset(round_)
        return self._relay(job, Action.RESET, Round(job.window.high), now)

    def halt(self, job: Job, now: float) -> list[Outgoing]:
        """Suspend a job, and tell its members."""
        job.halted = True
        return self._relay(job, Action.HALT, None, now)

    def _relay(self, job: Job, action: Action, value: Round | None, now: float) -> list[Outgoing]:
        """Pass a Halt or Reset on; whatever was under way before is void."""
        sends = []
        for member in job.members.contributors():
            self.relays.cancel(member.address, job.number)
            sends += self.relays.send(member.address, action, job.number, value, now)
        return sends

    def _set_threshold(self, request: Request) -> Answer:
        assert isinstance(request.value, Threshold)
        request.job.threshold = request.value.threshold
        sends = self.reevaluate(request.job, request.now)
        return Answer(request.ack(), sends)

    def _force_broadcast(self, request: Request) -> Answer:
        job = request.job
        round_, start, stop = request.segments()
        assert job.accelerator is not None
        held = job.accelerator.held(round_, start, stop)
        gone = any(self._is_gone(job, round_, what) for _, what, _ in held)
        completed, fewest = job.accelerator.force(round_, start, stop)
        sends = self.deliver(job, job.note(completed))
        if self.hierarchy:
            forced = Segments(round_, start, stop - start)
            sends += self.hierarchy.tell(job, Action.FBCAST, forced, request.now)
        return Answer(request.ack(fewest), sends, Status.GONE if gone else Status.OK)

    def _help(self, request: Request) -> Answer:
        """Send kept aggregates again; ask those for their contributions who have not sent them.

        If no segments are named, the answer says who is lost.
        """
        if isinstance(request.value, Who):
            return self._who(request, request.value)
        job = request.job
        round_, start, stop = request.segments()
        assert job.accelerator is not None
        kept: list[Run] = []
        status = Status.OK
        missing: list[tuple[int, Run]] = []  # contributors lacking, and where
        above: list[Run] = []  # what is due from the parent
        for run, what, bitmap in job.accelerator.held(round_, start, stop):
            if what is Held.COMPLETE:
                kept.append(run)
            elif self._is_gone(job, round_, what):
                status = Status.GONE
            elif what is Held.SENT:
                above.append(run)
            elif job.synchronous:
                missing.append((self._lacking(job, round_, bitmap, request.member), run))
        sends = self.retransmit(job, request.member, kept)
        sends += self.ask_members(job, missing, request.now)
        if self.hierarchy and above:
            sends += self.hierarchy.help(job, above, request.now)
        absent = reduce(or_, (bits for bits, _ in missing), 0)
        if start == stop:
            absent = job.lost(request.now, self.limits.lease)
        if status is Status.GONE:
            sends += self._move_up(job, request.member, request.now)
        own = start < stop and bool(absent & request.member.bit)
        ack = replace(request.ack(absent & 0xFFFFFFFF), threshold=absent >> 32, known=int(own))
        return Answer(ack, sends, status)

    def _lacking(self, job: Job, round_: int, bitmap: int, asker: Member) -> int:
        """Contributors whose contribution to an open segment is missing."""
        lacking = job.members.participants(round_) & ~bitmap
        if round_ not in job.window:  # a newcomer that is ahead of the others
            lacking &= asker.bit
        return lacking

    def _who(self, request: Request, who: Who) -> Answer:
        """Say for whom segments wait, or if none is named who is lost; nothing is sent again."""
        job = request.job
        round_, start, stop = request.segments()
        assert job.accelerator is not None
        absent, waits = 0, False
        for _, what, bitmap in job.accelerator.held(round_, start, stop) if job.synchronous else ():
            if what is not Held.COMPLETE and not self._is_gone(job, round_, what):
                waits = True
                if what is not Held.SENT:
                    absent |= self._lacking(job, round_, bitmap, request.member)
        asked = absent
        if start == stop:
            absent = job.lost(request.now, self.limits.lease)
            asked, waits = absent | job.members.switches(), True
        below, sends = self.ask_for_whom(job, who, asked, request.member, request.now)
        above = NOBODY
        if self.hierarchy and waits:
            above, more = self.hierarchy.ask_for_whom(job, who, request.now)
            sends += more
        answer = replace(request.ack(absent & 0xFFFFFFFF), threshold=absent >> 32)
        return Answer(answer.naming(*together([below, above])), sends)

    def ask_for_whom(
        self, job: Job, who: Who, absent: int, asker: Member | None, now: float
    ) -> tuple[Awaiting, list[Outgoing]]:
        """Name the workers among the members whose bits are set, and those the switches name."""
        parts: list[Awaiting] = []
        sends: list[Outgoing] = []
        for member in job.members.seated(absent):
            if member.type is MemberType.WORKER:
                parts.append(Awaiting(1, (named(member),)))
            elif member is not asker:
                ask = partial(self.relays.send, member.address, Action.HELP, job.number, who, now)
                told, asked = self.neighbours.ask(member.address, job.number, who, ask)
                parts.append(told)
                sends += asked
        return together(parts), sends

    def ask_members(self, job: Job, missing: list[tuple[int, Run]], now: float) -> list[Outgoing]:
        """Help for the members whose contribution is missing: their bits, and where."""
        sends: list[Outgoing] = []
        absent = reduce(or_, (bits for bits, _ in missing), 0)
        for member in job.members.seated(absent):
            for run in merge(run._replace(slot=0) for bits, run in missing if bits & member.bit):
                asked = Segments(run.round, run.start, run.segments)
                relayed = self.relays.send(member.address, Action.HELP, job.number, asked, now)
                self.counters["helps_relayed"] += len(relayed)
                sends += relayed
        return sends

    @staticmethod
    def _is_gone(job: Job, round_: int, what: Held) -> bool:
        """Whether a segment that is not complete can never become so in this round."""
        if what is Held.GONE:
            return True
        return job.synchronous and what is not Held.COMPLETE and job.window.is_past(round_)

    def _move_up(self, job: Job, member: Member, now: float) -> list[Outgoing]:
        """A member that lost its place is told to go on at `high`; nothing before waits for it."""
        before = (job.window.high - 1) & ROUND_MASK
        keeps_its_place = not member.contributes or member.stands_at(before)
        if keeps_its_place or job.threshold or not job.synchronous:
            return []
        job.members.begin_at(member, job.window.high)
        return self.reevaluate(job, now)

    def retransmit(self, job: Job, member: Member, kept: list[Run]) -> list[Outgoing]:
        """Kept aggregates, for one member."""
        assert job.accelerator is not None
        sends = job.accelerator.send(kept, (member.address,))
        self.counters["retransmitted"] += sum(len(out.rows) for out in sends)
        return sends

    # Time

    def deadline(self) -> float | None:
        """When `handle_timer` has something to do."""
        if self.is_unsettled:  # until then memory may run out as before
            return self._retry_at
        due = self._next_expiry
        for job in self.jobs.values():
            if job.dormant_since is not None:
                due = min(due, job.dormant_since + self.limits.lease)
        for other in (self.relays, self.hierarchy):
            at = other.deadline() if other is not None else None
            if at is not None and at < due:
                due = at
        return None if due == inf else due

    def handle_timer(self, now: float) -> list[Outgoing]:
        """Repeat relayed control, end leases, forget jobs a lease time after their last member.

        Raises:
            MemoryError: there is none to do it to its end; nothing has changed.
        """
        self._see_room(*self.jobs.values())
        sends = self.settle(now) if now >= self._retry_at else []
        sends += self._end_leases(now) if now >= self._next_expiry else []
        for number, job in list(self.jobs.items()):
            if job.dormant_since is not None and now >= job.dormant_since + self.limits.lease:
                del self.jobs[number]
        if self.hierarchy:
            sends += self.hierarchy.handle_timer(now)
        return self.keys.sealed(sends + self.relays.handle_timer(now))

    def lacks_memory(self, now: float) -> None:
        """Something was given up half way; what was to follow from it is made up for soon."""
        self._retry_at = now + RETRY

    @property
    def is_unsettled(self) -> bool:
        """Whether something was given up, and nothing may be added before `settle`."""
        return self._retry_at != inf

    def settle(self, now: float) -> list[Outgoing]:
        """Complete what is complete, in all jobs; what was not sent then will be asked for.

        Raises:
            MemoryError: it cannot be done yet.
        """
        self.expect_expiry(now)
        sends: list[Outgoing] = []
        for job in self.jobs.values():
            job.resume()
            sends += [out.copy() for out in self._complete(job)]
        self._retry_at = inf
        return sends

    def end_lease(self, job: Job, member: Member, now: float) -> list[Outgoing]:
        """Take out a member that has been silent too long."""
        self.counters["leases_run_out"] += 1
        return self.remove(job, member, now)

    def expect_expiry(self, at: float) -> None:
        """A lease may run out then."""
        self._next_expiry = min(self._next_expiry, at)

    def _renew(self, peer: Address, number: int, now: float) -> None:
        job = self.jobs.get(number)
        member = job.members.by_address.get(peer) if job else None
        if member is not None:
            member.last_seen = now

    def _end_leases(self, now: float) -> list[Outgoing]:
        """Take out the members that have been silent for a lease time."""
        if now > self._next_expiry + AWAKE:  # the switch itself slept: let it hear them first
            self._next_expiry = now + AWAKE
            return []
        sends: list[Outgoing] = []
        self._next_expiry = inf
        for job in list(self.jobs.values()):
            for member in job.silent(now, self.limits.lease):
                sends += [out.copy() for out in self.end_lease(job, member, now)]
            if self.hierarchy and job.keeps_places:  # who keeps its place is not counted now
                sends += self.hierarchy.changed(job, now)
            expiries = (m.last_seen + self.limits.lease for m in job.members.by_address.values())
            coming = (expiry for expiry in expiries if expiry > now)
            self._next_expiry = min(self._next_expiry, min(coming, default=inf))
        return sends
