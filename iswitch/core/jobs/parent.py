"""Handles packets from the switch above: its Acks, commands and aggregates."""

from __future__ import annotations

from iswitch.core.format.packets import Outgoing, Rows
from iswitch.core.format.wire import (
    HEARTBEAT,
    IN_TURNS,
    Ack,
    AckRanks,
    AckWho,
    Action,
    Control,
    Join,
    Round,
    Segments,
    Status,
    Who,
    WireError,
    round_distance,
)
from iswitch.core.sums.runs import Run

from .admission import Admission
from .hierarchy import Hierarchy
from .job import Job
from .lifecycle import Lifecycle
from .phases import UplinkPhase
from .questions import Questions
from .ranks import taken
from .record import Elsewhere, Record, bare_answer
from .requests import Answer, Request
from .uplink import Uplink

Standing = tuple[int, list[Run]] | None  # the round of a job, and the runs it waits for
TOLD = {  # fields of the parent's refusal that are passed on to the waiting workers
    Status.FULL: ("rank", "threshold", "round", "contributors"),
    Status.SLOTS: ("threshold",),
    Status.WAITING: ("threshold", "round"),
    Status.DRAINED: ("threshold", "round", "contributors"),
    Status.QUOTA: ("rank", "threshold", "round", "contributors"),
    Status.DENIED: ("contributors",),  # a number to outdo is ours, not the worker's
}


class Parent:
    """Handles packets from the switch above.

    Args:
        record: the jobs.
        hierarchy: speaks to the parent.
        lifecycle: changes the jobs.
        admission: lets in the newcomers that have waited for the parent.
        questions: answers the parent's Help.
    """

    def __init__(
        self,
        record: Record,
        hierarchy: Hierarchy,
        lifecycle: Lifecycle,
        admission: Admission,
        questions: Questions,
    ) -> None:
        self.record = record
        self.hierarchy = hierarchy
        self.lifecycle = lifecycle
        self.admission = admission
        self.questions = questions

    def aggregates(self, line: int, rows: Rows, tail: int) -> list[Outgoing]:
        """Keep the aggregates that the parent sent to a line; broadcast those that are new."""
        job = self.hierarchy.fed(line)
        if job is None:
            self.record.counters["stranger"] += len(rows)
            return []
        stretches = job.stretches(rows, tail)
        several = len({stretch.round for stretch in stretches}) > 1
        sends: list[Outgoing] = []
        for stretch in stretches:
            upward = self.hierarchy.upward_of(job)
            outs = job.take(stretch) if upward is None else upward.take(stretch)
            # The next round may take over the sets that are to be sent: copy them.
            sends += [out.copy() for out in outs] if several else outs
        return sends

    def handle(self, line: int, payload: bytes, now: float) -> list[Outgoing]:
        """Handle a control packet from the parent to a line."""
        try:
            packet = Control.parse(payload)
        except WireError:
            return self._unmatched()
        uplink = self.hierarchy.uplinks.get(packet.job)
        if uplink is None or uplink.parent.line != line:
            return self._unmatched()
        if isinstance(packet.value, Ack):
            return self._acked(uplink, packet, packet.value, now)
        if packet.action not in (Action.HELP, Action.HALT, Action.RESET):
            return self._unmatched()
        return self._commanded(uplink, packet, now)

    def _unmatched(self) -> list[Outgoing]:
        self.record.counters["unmatched_ack"] += 1
        return []

    # Commands

    def _commanded(self, uplink: Uplink, packet: Control, now: float) -> list[Outgoing]:
        """Execute a command from the parent once, and acknowledge each copy."""
        job = self.record.jobs.get(packet.job)
        value = packet.value
        if isinstance(value, Who):
            if job is None or job.shape is None:
                return [uplink.acknowledge(packet)[0]]
            awaiting, sends = self.questions.tell_the_parent(job, value, now)
            return [uplink.acknowledge(packet, Ack(Action.HELP).naming(*awaiting))[0], *sends]
        ack, new = uplink.acknowledge(packet)
        if not new or job is None or job.shape is None:
            return [ack]
        if packet.action is Action.HALT:
            return [ack, *self.lifecycle.halt(job, now)]
        if isinstance(value, Round):
            return [ack, *self._reset(job, value.round, now)]
        if isinstance(value, Segments):
            return [ack, *self.questions.help_the_parent(job, value, now)]
        return [ack]

    def _reset(self, job: Job, round_: int, now: float) -> list[Outgoing]:
        if job.rounds.knows_reset(round_):
            return []  # the Ack, or the parent's own relay, has told us; or it is a replay
        sends = self.lifecycle.reset(job, round_, now)
        if job.rounds.ahead() is None:
            return sends
        # A member has begun a later round, and cannot go back: all must go on beyond that.
        return sends + self.lifecycle.begin_anew(job, None, now)

    # Acks

    def _acked(self, uplink: Uplink, packet: Control, ack: Ack, now: float) -> list[Outgoing]:
        """Handle an Ack by the kind of request that it answers."""
        status = Status.of(packet.status)
        if ack.action == Action.HELP:
            return self._help_answered(uplink, packet, ack, now)
        if isinstance(ack, AckWho):
            return self._unmatched()
        if ack.action == Action.JOIN:
            return self._join_acked(uplink, packet, ack, now)
        if status is Status.DENIED and self.record.is_keyed(uplink.job):
            return uplink.ask_anew(packet.request, ack.round, now)
        request = uplink.answered(packet)
        if request is None:
            return self._unmatched()
        if request.action is Action.LEAVE:
            return self.hierarchy.left(uplink, now)
        return self._request_answered(uplink, packet.request, request, (status, ack), now)

    def _help_answered(
        self, uplink: Uplink, packet: Control, ack: Ack, now: float
    ) -> list[Outgoing]:
        """Handle an answer to Help, which may name the workers that segments wait for."""
        status = Status.of(packet.status)
        if status is Status.DENIED and self.record.is_keyed(uplink.job):
            return uplink.ask_anew(packet.request, ack.round, now)
        asked = uplink.was_asked(packet.request)
        if isinstance(asked, Who) and isinstance(ack, AckWho) and status is Status.OK:
            above = self.hierarchy.parent[:2]
            self.questions.neighbours.answered(above, uplink.job, asked, ack)
            return []
        if status is Status.NOT_MEMBER:
            return self.hierarchy.join_again(uplink, now)
        job = self.record.jobs.get(uplink.job)
        upward = None if job is None else self.hierarchy.upward_of(job)
        if upward is not None:
            return upward.answered(asked, (status, ack), now)
        if status is Status.GONE and job is not None:
            # The tree is ahead of us: move on, so that members who ask for that round hear so.
            job.rounds.catch_up(ack.round)
        return []

    def _request_answered(
        self,
        uplink: Uplink,
        number: int,
        request: Control,
        answer: tuple[Status, Ack],
        now: float,
    ) -> list[Outgoing]:
        """Apply the answer to a command that was passed on, and answer its member.

        Args:
            uplink: the membership at the parent.
            number: the Request number.
            request: the command.
            answer: the status and the Ack.
            now: the time, in seconds.
        """
        status, ack = answer
        job = self.record.jobs.get(uplink.job)
        sends: list[Outgoing] = []
        if status is Status.NOT_MEMBER:
            sends += self.hierarchy.join_again(uplink, now)
        elif status is Status.OK and request.action is Action.RESET and job is not None:
            sends += self._reset(job, ack.round, now)
        asker = uplink.forwarded.pop(number, None)
        if asker is None:
            return sends
        peer, packet = asker
        _, member = self.record.find(packet.job, peer)
        if job is None or member is None:
            return sends
        forwarded = Request(job, member, packet.action, packet.value, now)
        return [*sends, Answer(forwarded.ack(), [], status).to(member, packet)]

    # Joining

    def _join_acked(self, uplink: Uplink, packet: Control, ack: Ack, now: float) -> list[Outgoing]:
        """Handle the answer to our Join."""
        status = Status.of(packet.status)
        if status is Status.NOT_MEMBER and not uplink.is_member:
            return []  # a late answer to a heartbeat, joining anew is under way
        of_ours = ack.round and ack.threshold == uplink.incarnation
        if status is Status.DENIED and of_ours and uplink.phase is not UplinkPhase.JOINING:
            return []  # to a late copy of our first Join: no later process is there
        if status is Status.WAITING:  # the parent answers OK once it has room
            told = {name: getattr(ack, name) for name in TOLD[status]}
            waiting = uplink.waiting.items()
            return [bare_answer(peer, packet, status, **told) for peer, packet in waiting]
        # Memory may only run out before the request is closed: until then the Ack is repeated.
        standing = self.hierarchy.standing(uplink)
        request = uplink.answered(packet)
        if request is None:
            return self._unmatched()
        assert isinstance(request.value, Join)
        if status is Status.OK:
            return self._joined(uplink, ack, standing, now)
        if status is Status.NOT_MEMBER:
            return self.hierarchy.join_again(uplink, now)
        if status is Status.DENIED and ack.round:
            return self._outdone(uplink, request.value, ack.round, now)
        sends = self._refused(uplink, status, ack)
        job = self.record.jobs.get(uplink.job)
        if status is Status.DRAINED and job is not None and job.shape is not None:
            sends += self.lifecycle.evict(job, Elsewhere.of(ack), now)
        return sends

    def _joined(self, uplink: Uplink, ack: Ack, standing: Standing, now: float) -> list[Outgoing]:
        """Become a member of the parent's job, and take in the newcomers that have waited."""
        again = not uplink.is_member
        uplink.enter(UplinkPhase.MEMBER)
        uplink.first_round = ack.round
        job = self.record.jobs.get(uplink.job)
        ours: list[Run] = []
        if job is not None and standing is not None:
            at, waiting_for = standing
            if round_distance(ack.round, at) > 0:  # the others went on without us
                job.rounds.catch_up(ack.round)
            else:
                ours = waiting_for
            upward = self.hierarchy.upward_of(job)
            if upward is not None:
                upward.begin()
        sends = self._take_ranks(uplink, job, ack, now)
        job = self.record.jobs.get(uplink.job)
        if job is None or job.shape is None:
            return sends + self._nobody_here(uplink, now)
        job.members.above = ack.contributors
        if not job.turns_above and ack.known & IN_TURNS:
            job.turns_above = True
            job.threshold = 0  # which a controller may have set before
        sends += self.hierarchy.restate(job, now)
        if job.opens_gate():
            sends += self.lifecycle.gate_opened(job, None, now)
        elif again and job.awaits_reset:  # the parent that was asked for a Reset was restarted
            sends += self.lifecycle.begin_anew(job, None, now)
        elif again and not job.synchronous:  # nothing went up meanwhile
            sends += self.lifecycle.reevaluate(job, now)
        return sends + job.contribute_again(ours)

    def _take_ranks(self, uplink: Uplink, job: Job | None, ack: Ack, now: float) -> list[Outgoing]:
        """Apply the parent's decision on ranks, then take in or refuse the waiting newcomers."""
        ranks, said = self.lifecycle.ranks, uplink.statement
        if not isinstance(ack, AckRanks):  # the parent knows no ranks: this switch gives them
            ack = ack.telling(said.number, 0, said.ranks | ranks.own(job, said, now))
        asked = 0
        sends: list[Outgoing] = []
        if ack.statement == said.number:
            asked = said.ranks
            said.granted, said.decided = ack.ranks, True
            for member in ranks.settle(job, said, now) if job else []:
                assert job is not None
                self.record.counters["ranks_lost"] += 1
                sends += [out.copy() for out in self.lifecycle.remove(job, member, now)]
        return sends + self._let_in(uplink, asked, now)

    def _let_in(self, uplink: Uplink, asked: int, now: float) -> list[Outgoing]:
        """Take in or refuse the newcomers whose Joins have waited for the parent's decision.

        Args:
            uplink: the membership at the parent.
            asked: bitmap of the ranks about which the parent has decided.
            now: the time, in seconds.
        """
        sends: list[Outgoing] = []
        for peer, packet in list(uplink.waiting.items()):
            join = packet.value
            assert isinstance(join, Join)
            granted = not uplink.lacks(join.wanted)
            if not granted and not asked >> join.wanted & 1:
                continue
            # One at a time: each admission restates the ranks for which the others still wait.
            del uplink.waiting[peer]
            if granted:
                sends += self.admission.join(peer, packet, join, now)
            else:
                told = taken(join.wanted, self.hierarchy.parent[:2])
                self.record.counters["ranks_refused"] += 1
                sends.append(bare_answer(peer, packet, told.status, **told.told))
        return sends

    def _nobody_here(self, uplink: Uplink, now: float) -> list[Outgoing]:
        """Leave because no newcomer could be taken in, unless a worker still waits for a rank."""
        join = next((packet.value for packet in uplink.waiting.values()), None)
        if uplink.is_leaving:
            return []
        if not isinstance(join, Join):
            return self.hierarchy.give_up(uplink, now)
        new = self.hierarchy.state(uplink, None, now)
        uplink.enter(UplinkPhase.REJOINING)
        sends = self.hierarchy.first_join(uplink, join, now)
        return sends if new else []  # else the repeat asks, soon

    def _outdone(self, uplink: Uplink, join: Join, last: int, now: float) -> list[Outgoing]:
        """Join with a larger number: the clock has stepped back since the previous process.

        But if we became a member under our number, the larger number belongs to a later process:
        then refuse the newcomers that wait.
        """
        joining = uplink.phase is UplinkPhase.JOINING
        if joining and round_distance(last, uplink.incarnation) >= 0:
            return self.hierarchy.outdo(uplink, last, join, now)
        sends = self._refused(uplink, Status.DENIED, Ack(Action.JOIN))
        uplink.join_at(now + HEARTBEAT)
        return sends

    def _refused(self, uplink: Uplink, status: Status, ack: Ack) -> list[Outgoing]:
        """Refuse the newcomers that wait, with the parent's reason."""
        waiting, uplink.waiting = uplink.waiting, {}
        job = self.record.jobs.get(uplink.job)
        if job is None or job.shape is None:
            self.hierarchy.drop(uplink)
        else:
            uplink.enter(UplinkPhase.MEMBER)  # so that the Join is tried again
        told = {name: getattr(ack, name) for name in TOLD.get(status, ())}
        return [bare_answer(peer, packet, status, **told) for peer, packet in waiting.items()]
