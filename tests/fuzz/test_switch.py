"""Random histories of whole switches: members come and go, of every type, and say anything.

Invariants, besides those of invariants.py:

- no exception, whatever the bytes;
- exactly once: no sum holds two contributions of one member, and each holds exactly what its
  members contributed to that segment of that round. Every member has an element of its own, to
  which it alone adds 1, and adds a number of its own, the round and the index to the last element.

That of a child is what it sends to its parent, which itself says anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from iswitch.core.format.lines import line_of
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import (
    FLAG_WHOLE,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    DType,
    Join,
    Mode,
    Op,
    Round,
    Segments,
    Shape,
    SwitchJoin,
    Threshold,
    Value,
    slots_flags,
    split_seg,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.jobs.member import Member
from iswitch.core.switch import Switch
from tests.fuzz.invariants import check_sends, check_state, layouts
from tests.fuzz.profile import FUZZ
from tests.support.parts import packets_of, peer

pytestmark = pytest.mark.unit

PARENT = peer(7)
IDENTITIES = 30  # members over a history that can be told apart
SEGMENTS = 3
TELLING = Shape.of(SEGMENTS * (IDENTITIES + 1), DType.INT32, elements=IDENTITIES + 1)
SHAPES = (
    TELLING,
    Shape.of(5, DType.FLOAT32, elements=2),
    Shape.of(0, DType.FLOAT16),
    Shape.of(7, DType.BFLOAT16, Op.MAX, elements=3),
    Shape.of(9, DType.INT32, Op.MIN, Mode.ASYNCHRONOUS, elements=4),
    Shape.of(5, DType.FLOAT32, Op.SUM, Mode.ASYNCHRONOUS, elements=2),
    Shape.of(1 << 17),  # more than the limit allows
)
ROUNDS = 1 << 32
TWO_SLOTS = FLAG_WHOLE | slots_flags(2)
FLAGS = (0, 0, 0, 0, 1, 2, 5, 8, 9, 13, 16, 17, 31, 32, TWO_SLOTS, TWO_SLOTS | 1)

peers = st.integers(0, 5)
jobs = st.sampled_from((7, 7, 7, 8, 9))
near = st.integers(-3, 3)
rounds = st.one_of(st.integers(0, 4), st.sampled_from((ROUNDS - 1, 1 << 31)))
indexes = st.one_of(st.integers(0, 4), st.just(ROUNDS - 1))
counts = st.one_of(st.integers(0, 4), st.just(ROUNDS - 1))


class Anything(RuleBasedStateMachine):
    """A switch without a parent."""

    parent: Address | None = None

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        limits = Limits(memory=1 << 18, jobs=2, lease=3.0)
        self.switch = Switch(limits, parent=self.parent, incarnation=1000)
        self.numbers = 5000
        self.members: list[Member] = []  # by identity; kept, so that none has the place of another
        self.relayed: list[tuple[Address, Control]] = []

    # What comes

    def put(self, who: Address, tos: int, payloads: list[bytes], tail: int | None = None) -> None:
        """A burst of packets of one length."""
        before = layouts(self.switch)
        rows = np.frombuffer(b"".join(payloads), np.uint8).reshape(len(payloads), -1)
        burst = Burst(who, tos, rows, rows.shape[1] if tail is None else tail)
        self.sent(self.switch.receive(burst, self.now), who, before)

    def sent(self, sends: list[Outgoing], who: Address | None, before: Iterable[Shape]) -> None:
        """Look at what is sent before anything else is done."""
        check_sends(self.switch, sends, who, before)
        for out in sends:
            if out.tos == TOS_CONTROL:
                for payload in packets_of(out):
                    self.relayed += [(to, Control.parse(payload)) for to in out.peers]
            elif self.parent is None or self.switch.control.is_parent(out.peers[0]):
                for payload in packets_of(out):
                    self.check_sum(payload)
        del self.relayed[:-20]

    def ask(self, who: int, job: int, action: Action, value: Value, request: int = 0) -> None:
        self.numbers += 1
        packet = Control(action, job, request or self.numbers, value)
        self.put(peer(who), TOS_CONTROL, [packet.build()])

    def identity(self, member: Member) -> int:
        for i, known in enumerate(self.members):
            if known is member:
                return i
        self.members.append(member)
        return len(self.members) - 1

    def telling(self, member: Member, round_: int, index: int) -> bytes:
        """The contribution of a member to a segment: it tells who and what it is."""
        seg = (round_ << 32 | index).to_bytes(8, "big")
        identity = self.identity(member)
        elements = np.zeros(IDENTITIES + 1, np.int32)
        if identity < IDENTITIES:
            elements[identity] = 1
            elements[-1] = number(identity, round_, index)
        return seg + elements.tobytes()

    def check_sum(self, payload: bytes) -> None:
        """Exactly once: of the jobs whose sums tell."""
        tells = [job for job in self.switch.jobs.values() if job.shape == TELLING]
        if len(payload) != TELLING.packet_size or not tells:
            return
        round_, index = split_seg(int.from_bytes(payload[:8], "big"))
        *counted, token = np.frombuffer(payload[8:], np.int32).tolist()
        assert set(counted) <= {0, 1}, f"counted twice in {round_}:{index}: {counted}"
        inside = [i for i, count in enumerate(counted) if count]
        wanted = sum(number(i, round_, index) for i in inside)
        assert token == (wanted + (1 << 31)) % (1 << 32) - (1 << 31)

    def at(self, job: int, further: int) -> int:
        found = self.switch.jobs.get(job)
        return ((found.window.high if found else 0) + further) % ROUNDS

    # Rules

    @rule(
        who=peers,
        job=jobs,
        type_=st.sampled_from((0, 0, 0, 0, 1, 2, 3)),
        shape=st.sampled_from((*[TELLING] * 12, *SHAPES, None)),
        ways=st.tuples(st.integers(0, 4), st.sampled_from(FLAGS), near),
        incarnation=st.integers(1, 4),
        workers=st.one_of(st.none(), st.integers(0, 3)),
    )
    def join(
        self, who: int, job: int, type_: int, shape: Shape | None, ways: tuple[int, int, int],
        incarnation: int, workers: int | None,
    ) -> None:  # fmt: skip
        expected, flags, further = ways
        fields: list[Any] = [type_, 0, 0, 0, 0, 0, 0]
        if shape is not None:
            layout = (shape.dtype, shape.op, shape.mode, shape.elements, shape.last)
            fields = [type_, *layout, shape.segments]
        fields += [expected, flags, self.at(job, further)]
        if workers is not None:
            fields += [0, workers]
        value = Join(*fields) if workers is None else SwitchJoin(*fields)
        self.ask(who, job, Action.JOIN, value, incarnation)

    @rule(
        n=st.integers(1, 4),
        flags=st.sampled_from((0, 0, 2, 8, TWO_SLOTS)),
        incarnation=st.integers(1, 4),
    )
    def gather(self, n: int, flags: int, incarnation: int) -> None:
        """Workers join as an application has them join."""
        for who in range(n):
            join = Join.for_shape(TELLING, expected=n, flags=flags)
            self.ask(who, 7, Action.JOIN, join, incarnation)

    @rule(order=st.lists(peers, max_size=8), further=st.integers(0, 1), to_the_end=st.booleans())
    def play(self, order: list[int], further: int, to_the_end: bool) -> None:
        """Whole vectors of the round under way, or the next; some twice, and perhaps of all."""
        job = self.switch.jobs.get(7)
        round_ = job.window.high + further if job else 0
        for who in [*order, *range(6 * to_the_end)]:
            self.contribute(who, round_ - (job.window.high if job else 0), 0, SEGMENTS)

    @rule(who=peers, further=near, start=st.integers(0, 2), count=st.integers(1, 6))
    def contribute(self, who: int, further: int, start: int, count: int) -> None:
        """Consecutive segments, perhaps on into the next round."""
        found = self.switch.record.by_source.get(peer(who))
        if found is None or found[0].shape != TELLING or len(self.members) >= IDENTITIES:
            return
        job, member = found
        named = [
            ((job.window.high + further + i // SEGMENTS) % ROUNDS, i % SEGMENTS)
            for i in range(start, start + count)
        ]
        payloads = [self.telling(member, round_, index) for round_, index in named]
        self.put(peer(who), TOS_DATA, payloads)

    @rule(
        who=peers,
        shape=st.sampled_from(SHAPES[:-1]),
        further=near,
        index=indexes,
        n=st.integers(1, 4),
        less=st.integers(0, 9),
        fill=st.binary(max_size=4),
    )
    def other_data(
        self, who: int, shape: Shape, further: int, index: int, n: int, less: int, fill: bytes
    ) -> None:  # fmt: skip
        """Data of some layout; of the job whose sums tell only what is malformed."""
        found = self.switch.record.by_source.get(peer(who))
        if found is not None and found[0].shape == TELLING and shape == TELLING:
            return
        at = self.at(found[0].number if found else 7, further)
        body = fill.ljust(shape.packet_size - 8, b"\1")[: shape.packet_size - 8]
        payloads = [(at << 32 | (index + i) % ROUNDS).to_bytes(8, "big") + body for i in range(n)]
        size = len(payloads[0])
        tells = found is not None and found[0].shape == TELLING
        self.put(peer(who), TOS_DATA, payloads, size if tells else max(1, size - less))

    @rule(
        who=peers,
        job=jobs,
        action=st.sampled_from(list(Action)),
        further=near,
        start=indexes,
        count=counts,
        threshold=st.integers(0, 4),
    )
    def request(
        self, who: int, job: int, action: Action, further: int, start: int, count: int,
        threshold: int,
    ) -> None:  # fmt: skip
        round_ = self.at(job, further)
        values: dict[Action, Value] = {
            Action.SETH: Threshold(threshold),
            Action.FBCAST: Segments(round_, start, count),
            Action.HELP: Segments(round_, start, count),
            Action.ACK: Ack(Action.HELP, round=round_),
        }
        if action is not Action.JOIN:
            self.ask(who, job, action, values.get(action))

    @rule(who=peers, job=jobs)
    def leave(self, who: int, job: int) -> None:
        self.ask(who, job, Action.LEAVE, None)

    @rule(which=st.integers(0, 19), back=st.booleans())
    def acknowledge(self, which: int, back: bool) -> None:
        """A relay is acked; or a request repeated as it was."""
        if self.relayed:
            to, packet = self.relayed[which % len(self.relayed)]
            answer = Ack(packet.action) if back else packet.value
            action = Action.ACK if back else packet.action
            rows = [Control(action, packet.job, packet.request, answer).build()]
            if not (isinstance(packet.value, Round) and not back):
                self.put(to, TOS_CONTROL, rows)

    @rule(
        who=peers,
        tos=st.sampled_from((TOS_CONTROL, TOS_CONTROL | 1, 0, 0xFC)),
        payload=st.binary(min_size=1, max_size=40),
    )
    def garbage(self, who: int, tos: int, payload: bytes) -> None:
        self.put(peer(who), tos, [payload])

    @rule(seconds=st.sampled_from((0.001, 0.03, 0.2, 1.0, 2.9)), on_time=st.booleans())
    def wait(self, seconds: float, on_time: bool) -> None:
        """Time passes; the timer is handled when it is due, or late."""
        end = self.now + seconds
        for _ in range(1000):
            deadline = self.switch.deadline()
            if deadline is None or deadline > end:
                break
            self.now = max(self.now, deadline) if on_time else end
            before = layouts(self.switch)
            self.sent(self.switch.handle_timer(self.now), None, before)
            check_state(self.switch, self.now, timer_handled=True)
        else:
            raise AssertionError("the timer is due again and again")
        self.now = end

    @invariant()
    def state(self) -> None:
        check_state(self.switch, self.now)


def line(job: int) -> Address:
    """The parent, as it speaks of a job."""
    return PARENT._replace(line=line_of(job))


class UnderAParent(Anything):
    """A child, whose parent answers as one does, or says anything."""

    parent = PARENT

    @rule(
        which=st.integers(0, 19),
        status=st.sampled_from((0, 0, 0, 0, 1, 3, 7)),
        further=near,
        workers=st.integers(0, 6),
    )
    def answer(self, which: int, status: int, further: int, workers: int) -> None:
        """The parent answers something that it was asked."""
        asked = [p for to, p in self.relayed if to.line and p.action is not Action.ACK]
        if asked:
            packet = asked[which % len(asked)]
            round_ = self.at(packet.job, further)
            ack = Ack(packet.action, rank=0, threshold=2, round=round_, contributors=workers)
            reply = Control(Action.ACK, packet.job, packet.request, ack, status)
            self.put(line(packet.job), TOS_CONTROL, [reply.build()])

    @rule(
        job=jobs,
        action=st.sampled_from((Action.HELP, Action.HALT, Action.RESET)),
        further=near,
        start=indexes,
        count=counts,
        number=st.integers(1, 9),
    )
    def command(
        self, job: int, action: Action, further: int, start: int, count: int, number: int
    ) -> None:  # fmt: skip
        round_ = self.at(job, further)
        values: dict[Action, Value] = {
            Action.HELP: Segments(round_, start, count),
            Action.RESET: Round(round_),
        }
        packet = Control(action, job, number, values.get(action))
        self.put(line(job), TOS_CONTROL, [packet.build()])

    @rule(
        shape=st.sampled_from(SHAPES[:-1]),
        further=near,
        start=indexes,
        n=st.integers(1, 4),
        less=st.sampled_from((0, 0, 0, 4)),
    )
    def aggregate(self, shape: Shape, further: int, start: int, n: int, less: int) -> None:
        """Aggregates from above."""
        round_ = self.at(7, further)
        seg = round_ << 32
        payloads = [
            (seg | (start + i) % ROUNDS).to_bytes(8, "big") + bytes(shape.packet_size - 8)
            for i in range(n)
        ]
        self.put(line(7), TOS_DATA, payloads, shape.packet_size - min(less, shape.packet_size - 1))

    @rule(payload=st.binary(min_size=1, max_size=40), source=st.sampled_from([0, 7, 8]))
    def nonsense(self, payload: bytes, source: int) -> None:
        self.put(line(source) if source else PARENT, TOS_CONTROL, [payload])


def number(identity: int, round_: int, index: int) -> int:
    """What a member adds to the last element of a segment of a round."""
    return (identity + 1) * 7919 + round_ % 9973 * 101 + index * 13


TestAnything = Anything.TestCase
TestAnything.settings = FUZZ
TestUnderAParent = UnderAParent.TestCase
TestUnderAParent.settings = FUZZ
