"""The control plane: the actions and their Acks.

One method per action; `docs/protocol.md` has the rules. A request is executed once; its answer is
remembered, and sent again when the request is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from iswitch.core.format.packets import Address, Outgoing, Rows
from iswitch.core.format.wire import (
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

from .admission import Admission
from .hierarchy import Hierarchy
from .job import Job
from .leases import Leases
from .lifecycle import Lifecycle
from .member import Member
from .operating import Operating
from .parent import Parent
from .questions import Questions
from .ranks import Ranks
from .record import Record, bare_answer
from .relay import Relays
from .requests import Answer, Refusal, Request
from .showing import show
from .turns import Turns
from .who import Neighbours


class ControlPlane:
    """Executes the control packets for the jobs of a switch.

    Args:
        record: the jobs.
        incarnation: number of this switch process at the parent; larger in each new process.
    """

    def __init__(self, record: Record, incarnation: int = 0) -> None:
        self.record = record
        self.relays = Relays(record.counters)
        self.neighbours = Neighbours()
        ranks = Ranks(record)
        self.hierarchy: Hierarchy | None = None
        if record.parent:
            self.hierarchy = Hierarchy(record, ranks, self.neighbours, record.parent, incarnation)
        above = self.hierarchy
        self.lifecycle = Lifecycle(record, ranks, self.relays, above)
        self.leases = Leases(record, self.lifecycle, above)
        self.admission = Admission(record, self.lifecycle, above)
        self.questions = Questions(record, self.relays, self.neighbours, self.lifecycle, above)
        self.operating = Operating(record, self.lifecycle)
        self.turns: Turns | None = None
        if record.policy.takes_turns or record.policy.resizes:
            self.turns = Turns(record, self.relays, self.admission)
        self._parent: Parent | None = None
        if above:
            self._parent = Parent(record, above, self.lifecycle, self.admission, self.questions)
        self._methods: dict[Action, Callable[[Request], Answer]] = {
            Action.LEAVE: self._leave,
            Action.RESET: self._reset,
            Action.SETH: self._set_threshold,
            Action.FBCAST: self._force_broadcast,
            Action.HELP: self.questions.help,
            Action.HALT: self._halt,
        }

    def handle(self, peer: Address, payload: bytes, now: float) -> list[Outgoing]:
        """Execute and answer a control packet of at least eight bytes.

        Args:
            peer: the sender.
            payload: the packet, with its MAC if its job has a key.
            now: the time, in seconds.

        Raises:
            MemoryError: too little memory to finish the request; nothing has changed.
        """
        record = self.record
        header = Header.parse(payload)
        key = record.keys.of(header.job)
        packet = key.opened(payload) if key else payload
        if packet is None:
            return self._deny(peer, header)
        # A Join may take the address over from another job.
        jobs = record.jobs.get(header.job), record.by_source.get(peer, (None, None))[0]
        self._see_room(*jobs)
        sends = self._handle(peer, header, packet, now)
        if key is not None:
            sends = record.keys.sealed(sends)
        if self.turns is None:
            return sends
        return sends + self.turns.after(now, record.jobs.get(header.job), jobs[1])

    def is_parent(self, peer: Address) -> bool:
        """Return whether the switch above has this address."""
        return self.hierarchy is not None and self.hierarchy.is_parent(peer)

    def aggregates(self, line: int, rows: Rows, tail: int) -> list[Outgoing]:
        """Keep the aggregates that the parent sent to a line; broadcast those that are new."""
        assert self._parent is not None
        return self._parent.aggregates(line, rows, tail)

    def _see_room(self, *jobs: Job | None) -> None:
        """Check, before anything is changed, that there is enough memory to finish.

        Raises:
            MemoryError: there is too little.
        """
        shapes = (job.shape for job in jobs if job is not None)
        segments = max((shape.segments for shape in shapes if shape is not None), default=0)
        self.record.limits.buffers.leave_room(segments, REQUEST)

    def _deny(self, peer: Address, header: Header) -> list[Outgoing]:
        """Refuse a packet without a valid MAC; the answer has no MAC either."""
        self.record.counters["bad_mac"] += 1
        if header.action == Action.ACK or peer.line or self.is_parent(peer):
            return []
        return [bare_answer(peer, header, Status.DENIED)]

    def _handle(self, peer: Address, header: Header, payload: bytes, now: float) -> list[Outgoing]:
        if self._parent is not None and self.is_parent(peer):
            return self._parent.handle(peer.line, payload, now)
        if peer.line:  # only the parent knows our other UDP ports
            return self._unmatched()
        try:
            packet = Control.parse(payload)
            if isinstance(packet.value, Round) and self._is_no_switch(peer, packet.job):
                raise WireError("only a switch names a round in a Reset")
        except WireError:
            if header.action == Action.ACK:
                return self._unmatched()
            return [bare_answer(peer, header, Status.BAD_REQUEST)]
        if packet.action is Action.ACK:
            return self._acked(peer, packet, now)
        if isinstance(packet.value, Join):
            return self.admission.join(peer, packet, packet.value, now)
        if isinstance(packet.value, Show):
            return [show(self.record, peer, packet, packet.value, now)]
        return self._execute_once(peer, packet, now)

    def _is_no_switch(self, peer: Address, job: int) -> bool:
        """Return whether a member of the job that is not a switch has this address."""
        _, member = self.record.find(job, peer)
        return member is not None and member.type is not MemberType.SWITCH

    # Acks of members

    def _acked(self, peer: Address, packet: Control, now: float) -> list[Outgoing]:
        """Handle a member's Ack of a relayed command."""
        asked = self.relays.acked(peer, packet.request)
        if asked or not self.record.is_keyed(packet.job):  # else it may be a replay
            self.leases.renew(peer, packet.job, now)
        if not asked:
            return self._unmatched()
        self.record.throttle.give_back(peer)
        if isinstance(asked.value, Who) and isinstance(packet.value, AckWho):
            _, member = self.record.find(asked.job, peer)
            name = member.name if member is not None else peer[:2]
            self.neighbours.answered(name, asked.job, asked.value, packet.value)
        return []

    def _unmatched(self) -> list[Outgoing]:
        self.record.counters["unmatched_ack"] += 1
        return []

    # Requests of members

    def _execute_once(self, peer: Address, packet: Control, now: float) -> list[Outgoing]:
        """Execute a new request; answer a repeated one from memory, refuse a replayed one."""
        if packet.action is Action.LEAVE:
            if self.record.queue.drop(packet.job, peer):
                self.record.policy.forget(packet.job)
            if self.hierarchy:
                self.hierarchy.withdraw(peer, packet)
        job, member = self.record.find(packet.job, peer)
        former = self.record.former
        answers = member.answers if member else former.get(peer, packet.job).answers
        answered = answers.get(packet.request)
        if answered is not None:
            return [Outgoing.control(peer, answered)]
        keyed = self.record.is_keyed(packet.job)
        if job is None or member is None or (answers.is_of_former(packet.request) and not keyed):
            if packet.action is Action.LEAVE and member is None:
                former.note_leave(peer, packet.job, packet.request, now)
            return [bare_answer(peer, packet, Status.NOT_MEMBER)]
        if keyed and not answers.has_grown(packet.request):
            assert answers.last is not None
            return self._refuse_replay(peer, packet, answers.last)
        member.last_seen = now
        member.has_spoken = True
        return self._execute(job, member, packet, now)

    def _execute(self, job: Job, member: Member, packet: Control, now: float) -> list[Outgoing]:
        """Execute a new request of a member, or pass it on to the parent."""
        request = Request(job, member, packet.action, packet.value, now, packet.request)
        try:
            is_heeded = packet.action in (Action.LEAVE, Action.RESET)
            if job.halted and not (is_heeded or self._is_passed_on(member.address, packet)):
                raise Refusal(Status.HALTED)
            if self.hierarchy and packet.action in (Action.RESET, Action.HALT):
                return self.hierarchy.forward(member.address, packet, now)
            answer = self._methods[packet.action](request)
        except Refusal as refusal:
            answer = Answer(request.ack(), [], refusal.status)
        return [answer.to(member, packet), *answer.sends]

    def _is_passed_on(self, peer: Address, packet: Control) -> bool:
        """Return whether the parent has this request, and its answer is still to come."""
        return self.hierarchy is not None and self.hierarchy.has_forwarded(peer, packet)

    def _refuse_replay(self, peer: Address, packet: Control, last: int) -> list[Outgoing]:
        """Refuse a Request number that has not grown; the answer names the largest one so far."""
        if self._is_passed_on(peer, packet):
            return []
        self.record.counters["replayed"] += 1
        return [bare_answer(peer, packet, Status.DENIED, round=last)]

    def _leave(self, request: Request) -> Answer:
        ack = request.ack()
        now = request.now
        return Answer(ack, self.lifecycle.remove(request.job, request.member, now, now))

    def _reset(self, request: Request) -> Answer:
        if isinstance(request.value, Round):  # a worker below that switch has begun it
            request.member.named = request.value.round
        sends = self.lifecycle.reset(request.job, None, request.now)
        return Answer(request.ack(), sends)

    def _halt(self, request: Request) -> Answer:
        sends = self.lifecycle.halt(request.job, request.now)
        return Answer(request.ack(), sends)

    def _set_threshold(self, request: Request) -> Answer:
        assert isinstance(request.value, Threshold)
        self._refuse_partial(request.job)
        request.job.threshold = request.value.threshold
        sends = self.lifecycle.reevaluate(request.job, request.now)
        return Answer(request.ack(), sends)

    @staticmethod
    def _refuse_partial(job: Job) -> None:
        """Refuse a request that would leave out contributions, where none may be left out.

        Raises:
            Refusal: none may be.
        """
        if job.leaves_nobody_out:
            raise Refusal(Status.BAD_REQUEST)

    def _force_broadcast(self, request: Request) -> Answer:
        job = request.job
        self._refuse_partial(job)
        round_, start, stop = request.segments()
        gone = any(job.is_gone(round_, what) for _, what, _ in job.held(round_, start, stop))
        sends, fewest = job.force(round_, start, stop)
        if self.hierarchy:
            forced = Segments(round_, start, stop - start)
            sends += self.hierarchy.tell(job, Action.FBCAST, forced, request.now)
        return Answer(request.ack(fewest), sends, Status.GONE if gone else Status.OK)

    # Time

    def deadline(self) -> float | None:
        """Return the next time at which `handle_timer` has work, in seconds; None: it has none."""
        if self.record.retry_at != inf:  # until then memory may run out as before
            return self.record.retry_at
        due = min(self.leases.deadline(), self.operating.deadline())
        for other in (self.relays, self.hierarchy, self.turns):
            at = other.deadline() if other is not None else None
            if at is not None and at < due:
                due = at
        return None if due == inf else due

    def handle_timer(self, now: float) -> list[Outgoing]:
        """Repeat relayed commands, end leases, forget jobs a lease time after their last member.

        Raises:
            MemoryError: too little memory to finish; nothing has changed.
        """
        self._see_room(*self.record.jobs.values())
        sends = self.settle(now) if now >= self.record.retry_at else []
        sends += self.operating.carry_out(now)
        sends += self.leases.handle_timer(now)
        if self.hierarchy:
            sends += self.hierarchy.handle_timer(now)
        sends = self.record.keys.sealed(sends + self.relays.handle_timer(now))
        if self.turns is not None:
            sends += self.turns.after(now, *self.record.jobs.values())
        return sends

    # Lack of memory

    def lacks_memory(self, now: float) -> None:
        """Schedule a retry of the work that lacked memory."""
        self.lifecycle.lacks_memory(now)

    def settle(self, now: float) -> list[Outgoing]:
        """Send, in all jobs, the segments that became complete while memory was lacking.

        Workers ask with Help for the results that were lost meanwhile.

        Raises:
            MemoryError: there is still too little memory.
        """
        return self.lifecycle.settle(now)
