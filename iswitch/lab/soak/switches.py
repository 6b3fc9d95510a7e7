"""Judges what a switch does at every packet; conduct.py says by which rules."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence

import numpy as np

from iswitch.core.exchange.relayed import REMEMBERED
from iswitch.core.format.packets import Burst, Outgoing
from iswitch.core.format.wire import (
    ROUND_MASK,
    SEG_SIZE,
    TOS_DATA,
    Ack,
    Action,
    Control,
    Round,
    Segments,
    Status,
    later,
    round_distance,
)
from iswitch.core.jobs.answers import PER_MEMBER, Answers
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member
from iswitch.core.jobs.uplink import Uplink
from iswitch.core.sums.numpy_plane import IN_ROUNDS
from iswitch.core.sums.plane import RoundAccelerator
from iswitch.core.sums.resized import ResizedAccelerator
from iswitch.core.sums.slotted import SlottedAccelerator
from iswitch.core.sums.states import RoundStates
from iswitch.core.switch import Switch
from iswitch.sim.plugged import SPARE

from .blocks import owners_of
from .delivery import Delivery
from .gathering import ToldOfAll
from .said import Endpoint, endpoint, packets_to, parsed
from .turns import is_out_of_turn, is_past
from .violation import Violation


class SwitchConduct:
    """Judges what a switch process does.

    Args:
        name: name of its node.
        switch: the process.
        halts: the number of Halts in the history.
        made: by job, receives the newest version, if the switch has no parent.
    """

    def __init__(self, name: str, switch: Switch, halts: int, made: dict[int, int]) -> None:
        self.name = name
        self.machine = switch
        self.halts = halts
        self._delivery = Delivery(name, switch, made)
        self._answers: dict[tuple[Endpoint, int], tuple[Answers, OrderedDict[int, bytes]]] = {}
        self._relayed: dict[tuple[Endpoint, bytes], int] = {}  # Request of each Reset
        self._halted: dict[Endpoint, set[int]] = {}  # Requests of Halts
        self._seen = defaultdict[int, deque[int]](lambda: deque(maxlen=REMEMBERED))  # by line
        self._early = defaultdict[int, deque[int]](lambda: deque(maxlen=REMEMBERED))
        self._halt: dict[int, int] = {}  # by line, Request of the parent's newest Halt
        self._line = -1  # to which a packet has come from the parent; -1: none has
        self._members: dict[Endpoint, Member] = {}
        self._told = ToldOfAll(name)
        self._beginning: dict[int, int] = {}  # where newcomers would begin, by job
        self._counts: tuple[int, ...] = ()
        self._due: Callable[[Sequence[Outgoing]], None] | None = None
        self._joining = False
        self._stood: int | None = None  # the round that was missing when it joined

    # Before

    def comes(self, burst: Burst | None, now: float) -> None:  # noqa: ARG002
        """Note the machine's state before it takes packets."""
        self._members = self._contributors()
        self._delivery.comes()
        self._beginning = self._begin_at()
        self._counts = self._count()
        self._due = None
        self._line = -1
        if burst is None or burst.peer.ingress == SPARE:
            return
        from_parent = endpoint(burst.peer) == self._parent()
        self._line = burst.peer.line if from_parent else -1
        uplink = self._uplink()
        self._joining = uplink is not None and uplink.is_joining
        if self._joining:
            self._seen.pop(self._line, None)
            self._halt.pop(self._line, None)
            job = self._job()
            self._stood = None if job is None or not job.synchronous else job.stands_at()
        if from_parent:
            due_to = self._due_to_aggregates if burst.tos == TOS_DATA else self._due_to_parent
            self._due = due_to(burst)
        elif burst.tos == TOS_DATA:
            self._due = self._due_to_sender(burst)

    def _due_to_sender(self, burst: Burst) -> Callable[[Sequence[Outgoing]], None] | None:
        """Judge the answer to a member's contributions, and whether they count."""
        member = self._members.get(endpoint(burst.peer))
        rounds = np.unique(burst.rows[:, :4].copy().view(">u4"))
        if member is None or len(rounds) != 1 or burst.tail < SEG_SIZE:
            return None
        job = self.machine.record.by_source[member.address][0]
        accelerator = job.accelerator
        if not isinstance(accelerator, IN_ROUNDS) or job.halted:
            return None
        shape = accelerator.shape
        round_ = int(rounds[0])
        if is_out_of_turn(job, member, round_):
            return self._nothing_counts
        # Of parts, the last one decides; and aggregates that are not kept are not sent.
        if member.sends_parts or not accelerator.keeps_aggregates:
            return None
        if member.held_back:  # until the others are that far; Help brings it kept aggregates
            return None
        indices = np.unique(burst.rows[:, 4:SEG_SIZE].copy().view(">u4")).astype(np.int64)
        indices = indices[indices < shape.segments]
        if owners := owners_of(shape):
            indices = indices[owners.reach(member.ranks)[indices]]
        if slots := slots_in(accelerator, round_):  # the last in a slot is the one that stays
            if is_short(accelerator, round_):  # or one before it
                indices = indices[np.bincount(indices % slots)[indices % slots] == 1]
            last = {i % slots: i for i in indices.tolist()}
            indices = np.array(list(last.values()), np.int64)
        state = accelerator.words_of(round_, indices)[:, 0]
        complete = RoundStates.COMPLETE << 32 | round_
        late = int((state == np.uint64(complete)).sum())
        size = {shape.packet_size, shape.last_size}
        if not late or not {burst.rows.shape[1], burst.tail} <= size:
            return None

        def answered(sends: Sequence[Outgoing]) -> None:
            if packets_to(sends, endpoint(burst.peer)) < late:
                raise Violation(
                    "not answered",
                    f"{self.name} keeps {late} aggregates of round {round_}, for which "
                    f"{burst.peer} has contributed once more, and does not send them",
                )

        return answered

    def _nothing_counts(self, sends: Sequence[Outgoing]) -> None:  # noqa: ARG002
        if self._count()[2] != self._counts[2]:
            raise Violation("out of turn", f"{self.name} has counted what is of no round of its")

    def _due_to_aggregates(self, burst: Burst) -> Callable[[Sequence[Outgoing]], None] | None:
        """Check that the switch takes no parent's aggregate older than the window."""
        job = self._job()
        if job is None or not job.synchronous or burst.tail < SEG_SIZE:
            return None
        rounds = burst.rows[:, :4].copy().view(">u4")[:, 0].tolist()
        most = sum(not is_past(job, round_) for round_ in rounds)

        def taken(sends: Sequence[Outgoing]) -> None:  # noqa: ARG001
            if self._count()[1] - self._counts[1] > most:
                raise Violation("out of turn", f"{self.name} takes a sum from before its window")

        return taken

    def _due_to_parent(self, burst: Burst) -> Callable[[Sequence[Outgoing]], None] | None:
        """Judge the answer to a parent's new Help."""
        uplink, job = self._uplink(), self._job()
        packet = parsed(burst.rows[0, : burst.tail].tobytes(), self.machine)
        if uplink is None or packet is None:
            return None
        if job is None or uplink.is_joining:
            self._early[self._line].append(packet.request)  # a copy may count as seen
            return None
        if packet.action is Action.HALT:
            return self._due_to_a_halt(packet.request, job)
        if packet.action is not Action.HELP or packet.request in self._early[self._line]:
            return None
        if packet.request in self._seen[self._line]:
            return self._nothing_again
        self._seen[self._line].append(packet.request)
        named, sums = packet.value, job.accelerator
        if not isinstance(named, Segments) or not isinstance(sums, IN_ROUNDS):
            return None
        indices = np.arange(named.index, min(named.index + named.count, sums.shape.segments))
        words = sums.words_of(named.round, indices)[:, 0]
        ours = int((words == np.uint64(RoundStates.SENT << 32 | named.round)).sum())

        def helped(sends: Sequence[Outgoing]) -> None:
            if packets_to(sends, self._parent()) < ours:
                raise Violation("not helped", f"{self.name} has heard Help, and does nothing")

        return helped

    def _due_to_a_halt(self, request: int, job: Job) -> Callable[[Sequence[Outgoing]], None] | None:
        """Check that a parent's new Halt suspends the job."""
        newest = self._halt.get(self._line)
        if newest is not None and round_distance(request, newest) <= 0:
            return None
        self._halt[self._line] = request

        def halted(sends: Sequence[Outgoing]) -> None:  # noqa: ARG001
            if not job.halted:
                raise Violation("not halted", f"{self.name} has heard Halt, and does nothing")

        return halted

    def _nothing_again(self, sends: Sequence[Outgoing]) -> None:
        if packets_to(sends, self._parent()):
            raise Violation("executed again", f"{self.name} helps twice, asked with one number")

    # After

    def says(self, burst: Burst | None, sends: Sequence[Outgoing], now: float) -> None:  # noqa: ARG002
        """Judge the packets sent."""
        if self._due is not None and not self._drops():
            self._due(sends)
        self._due = None
        members = self._contributors()
        self._look_at_receivers(sends, members)
        self._look_at_newcomers(members)
        if self._parent() is None:
            self._told.look(self.machine.jobs.values())
            self._delivery.note_versions()
        if not self._drops():
            self._look_for_the_new(sends, members)
            self._look_for_the_joined(sends)
            self._delivery.look_for_the_new(sends, self._stay(members), self._parent())
        for out in sends:
            if out.tos == TOS_DATA:
                self._delivery.look_at(out, members)
            else:
                self._look_at_control(out)

    def _drops(self) -> bool:
        """Tell whether a packet could not be sent: a MAC is unknown, or room is lacking."""
        return self._count()[-1] != self._counts[-1]

    def _look_at_receivers(
        self, sends: Sequence[Outgoing], members: dict[Endpoint, Member]
    ) -> None:
        """Check that data goes to contributors and the parent only."""
        may = {*self._members, *members, self._parent()}
        for out in sends:
            if out.tos == TOS_DATA and not may.issuperset(map(endpoint, out.peers)):
                raise Violation("astray", f"{self.name} sends data to {out.peers}, not members")

    def _look_at_newcomers(self, members: dict[Endpoint, Member]) -> None:
        """Check that a replacement begins beyond all rounds that its predecessor may have sent."""
        for peer, member in members.items():
            before, first = self._members.get(peer), member.first_round
            job = self.machine.record.by_source[member.address][0]
            begin = self._beginning.get(job.number)
            if before in (None, member) or first is None or begin is None:
                continue
            assert before is not None
            latest = begin if before.first_round is None else later(begin, before.first_round)
            if round_distance(first, latest) <= 0:
                raise Violation(
                    "out of turn",
                    f"{self.name} lets {peer} begin at {first}, where the process before it may "
                    f"have sent {latest}",
                )

    def _look_for_the_new(self, sends: Sequence[Outgoing], members: dict[Endpoint, Member]) -> None:
        """Check that aggregates go to all contributors that are still there, or to the parent."""
        made, came = (now - was for now, was in zip(self._count()[:2], self._counts, strict=False))
        jobs = [job for job in self.machine.jobs.values() if job.shape is not None]
        if not made + came or len(jobs) != 1 or owners_of(jobs[0].shape):
            return
        above = self._parent()
        if above and packets_to(sends, above) < made:
            raise Violation("not sent", f"{self.name} sends not all of {made} sums to its parent")
        new = came if above else made
        lacks = [p for p in self._stay(members) if packets_to(sends, p) < new]
        if lacks:
            raise Violation("not sent", f"{self.name} does not send {new} aggregates to {lacks}")

    def _look_for_the_joined(self, sends: Sequence[Outgoing]) -> None:
        """Check that a switch that joins a restarted parent sends all sums without an aggregate."""
        uplink, job = self._uplink(), self._job()
        if not self._joining or uplink is None or job is None or uplink.is_joining:
            return
        self._joining = False
        if not isinstance(job.accelerator, IN_ROUNDS):
            return
        stood = job.stands_at() if self._stood is None else self._stood
        if job.halted or round_distance(uplink.first_round, stood) > 0:
            return
        waits = sum(run.segments for run in job.accelerator.waiting())
        if packets_to(sends, self._parent()) < waits:
            raise Violation("not sent", f"{self.name} joins anew and does not send {waits} sums")

    def _look_at_control(self, out: Outgoing) -> None:
        """Check that a repeated request gets its former answer, and commands are relayed once."""
        payload = out.rows[0, : out.tail].tobytes()
        packet = parsed(payload, self.machine)
        peer = endpoint(out.peers[0])
        if packet is None or peer == self._parent():
            return
        if packet.action is Action.ACK:
            self._look_at_answer(packet, peer, payload)
        elif packet.action is Action.HALT:
            halts = self._halted.setdefault(peer, set())
            halts.add(packet.request)
            if len(halts) > self.halts:
                raise Violation("executed again", f"{self.name} relays {len(halts)} Halts")
        elif isinstance(packet.value, Round):
            key = peer, packet.job.to_bytes(2, "big") + packet.value.round.to_bytes(4, "big")
            if self._relayed.setdefault(key, packet.request) != packet.request:
                raise Violation(
                    "executed again", f"{self.name} relays Reset to {packet.value.round} twice"
                )

    def _look_at_answer(self, packet: Control, peer: Endpoint, payload: bytes) -> None:
        action = payload[8]
        if action == Action.JOIN and packet.status == Status.OK and isinstance(packet.value, Ack):
            self._told.answered(peer, packet.job, packet.value)
        fleeting = (Status.NOT_MEMBER, Status.DENIED, Status.BAD_REQUEST)
        if action == Action.JOIN or packet.status in fleeting:
            return
        job = self.machine.jobs.get(packet.job)
        everybody = job.members.by_address if job is not None else {}
        found = next((m for a, m in everybody.items() if endpoint(a) == peer), None)
        answers, kept = self._answers.get((peer, packet.job), (None, OrderedDict()))
        if answers is None or (found is not None and found.answers is not answers):
            answers, kept = found.answers if found is not None else Answers(), OrderedDict()
            self._answers[peer, packet.job] = answers, kept
        if packet.request not in kept:
            self._look_at_the_overtaken(packet, peer)
        if kept.setdefault(packet.request, payload) != payload:
            raise Violation(
                "executed again",
                f"{self.name} answers request {packet.request} of {peer} ({Action(action).name}) "
                "otherwise than before",
            )
        if len(kept) > PER_MEMBER:
            kept.popitem(last=False)

    def _look_at_the_overtaken(self, packet: Control, peer: Endpoint) -> None:
        """Check that no old round waits for a member that was told that it lost its place."""
        value = packet.value
        if packet.status != Status.GONE or not isinstance(value, Ack):
            return
        job = self.machine.jobs.get(packet.job)
        found = self._contributors().get(peer)
        is_help = value.action == Action.HELP
        if not is_help or job is None or found is None or job.threshold or not job.synchronous:
            return
        before = (job.window.high - 1) & ROUND_MASK
        if job.members.participants(before) & found.bit and not found.stands_at(before):
            raise Violation(
                "waits in vain", f"{self.name} tells {peer} that it is too late, and waits for it"
            )

    # Reading its state

    def _stay(self, members: dict[Endpoint, Member]) -> dict[Endpoint, Member]:
        """Return those members that were there before."""
        return {p: member for p, member in members.items() if member is self._members.get(p)}

    def _begin_at(self) -> dict[int, int]:
        """Compute the round in which the next newcomer to each job takes part."""
        jobs = self.machine.jobs.values()
        return {j.number: j.window.newcomers for j in jobs if j.synchronous and j.window.is_sure}

    def _contributors(self) -> dict[Endpoint, Member]:
        return {endpoint(a): m for a, (_, m) in self.machine.record.by_source.items()}

    def _count(self) -> tuple[int, ...]:
        n = self.machine.counters
        lost = n["unresolved"] + n["too_large"] + n["tx_failed"]
        counted = n["accumulated"] + n["merged"] + n["passed_on"]
        return n["aggregates"], n["from_parent"], counted, lost

    def _parent(self) -> Endpoint | None:
        hierarchy = self.machine.control.hierarchy
        return None if hierarchy is None else endpoint(hierarchy.parent)

    def _uplink(self) -> Uplink | None:
        """Return the membership above to whose line the packet has come."""
        hierarchy = self.machine.control.hierarchy
        uplinks = hierarchy.uplinks.values() if hierarchy is not None else ()
        return next((one for one in uplinks if one.parent.line == self._line), None)

    def _job(self) -> Job | None:
        """Return the job to whose line the packet has come, if it has contributors."""
        hierarchy = self.machine.control.hierarchy
        return hierarchy.job_on(self._line) if hierarchy is not None else None


def slots_in(sums: RoundAccelerator, round_: int) -> int:
    """Return the slots through which the segments of a round go; 0: each has its own."""
    one = sums.of(round_) if isinstance(sums, ResizedAccelerator) else sums
    return one.slots if isinstance(one, SlottedAccelerator) else 0


def is_short(sums: RoundAccelerator, round_: int) -> bool:
    """Return whether a round has fewer slots than its workers may take it to have."""
    one = sums.of(round_) if isinstance(sums, ResizedAccelerator) else None
    return one is not None and one.positions.short
