"""Random histories of one synchronous job against the oracle.

Invariant: to every packet the switch answers exactly as the rules say, be it on its own or in a
burst: the same aggregates to the same workers, the same Ack, the same counters. And that of
invariants.py.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import (
    FLAG_STANDS_AT,
    NO_RANK,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    DType,
    Join,
    Segments,
    Shape,
    Status,
    Threshold,
    Value,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.fuzz.invariants import check_sends, check_state
from tests.fuzz.oracle import Answer, Elements, Oracle, Sends
from tests.fuzz.profile import FUZZ
from tests.support.parts import JOB, packets_of, peer

pytestmark = pytest.mark.unit

COMPARED = (
    "accumulated", "late", "duplicate", "out_of_window", "before_join", "halted", "malformed",
    "aggregates", "partial_aggregates",
)  # fmt: skip
STRANGER = 20
ROUNDS = 1 << 32

rounds = st.integers(-3, 3)  # from `high` on
indexes = st.integers(0, 4)
ranks = st.integers(0, 3)


class Rounds(RuleBasedStateMachine):
    """A switch and the oracle side by side."""

    @initialize(
        workers=st.integers(1, 4),
        segments=st.integers(1, 4),
        last=st.integers(1, 2),
        start=st.sampled_from((None, None, 0, 5, ROUNDS - 2, 1 << 31)),
    )
    def begin(self, workers: int, segments: int, last: int, start: int | None) -> None:
        self.now = 0.0
        self.shape = Shape.of(2 * segments - 2 + last, DType.INT32, elements=2)
        self.oracle = Oracle(workers, [2] * (segments - 1) + [last], start)
        self.switch = Switch(Limits(lease=float("inf")))
        self.numbers = 5000
        self.tokens = 0
        for rank in range(workers):
            flags = 0 if start is None else FLAG_STANDS_AT
            join = Join.for_shape(self.shape, expected=workers, flags=flags)
            fields = [getattr(join, name) for name in Join.__match_args__[:-1]]
            fields.append(start or 0)
            join = Join(*fields)
            ack, _ = self.ask(rank, Action.JOIN, join, 1000)
            assert ack.status == Status.OK
            value: Any = ack.value
            assert value.rank == (rank if rank == workers - 1 else NO_RANK)
            assert value.round == (start or 0)

    def put(self, who: int, tos: int, rows: np.ndarray, tail: int) -> list[Outgoing]:
        sends = self.switch.receive(Burst(peer(who), tos, rows, tail), self.now)
        sends = [out.copy() for out in sends]
        check_sends(self.switch, sends, peer(who))
        return sends

    def ask(
        self, who: int, action: Action, value: Value = None, request: int = 0
    ) -> tuple[Control, list[Outgoing]]:
        self.numbers += 1
        packet = Control(action, JOB, request or self.numbers, value)
        rows = np.frombuffer(packet.build(), np.uint8).reshape(1, -1)
        first, *more = self.put(who, TOS_CONTROL, rows, rows.size)
        ack = Control.parse(packets_of(first)[0])
        assert isinstance(ack.value, Ack)
        assert first.peers == (peer(who),)
        assert (ack.action, ack.request, ack.value.action) == (Action.ACK, packet.request, action)
        return ack, more

    def who(self, rank: int) -> int:
        """One of those that are still there."""
        here = list(self.oracle.places)
        return here[rank % len(here)]

    def at(self, further: int) -> int:
        return (self.oracle.high + further) % ROUNDS

    def same(self, sends: list[Outgoing], wanted: Sends) -> None:
        """The aggregates that are sent are those of the oracle.

        Late packets that come together are answered once.
        """
        found: Counter[tuple[Address, bytes]] = Counter()
        for out in sends:
            if out.tos == TOS_DATA:
                found.update((to, payload) for to in out.peers for payload in packets_of(out))
        expected = Counter(
            {(peer(r), packed(at, i, held)): n for (r, at, i, held), n in wanted.items()}
        )
        assert found.keys() == expected.keys()
        assert found <= expected

    def answered(self, reply: tuple[Control, list[Outgoing]], wanted: Answer) -> None:
        ack, sends = reply
        assert isinstance(ack.value, Ack)
        assert Status(ack.status).name == wanted.status
        told = (ack.value.threshold, ack.value.round, ack.value.contributors)
        assert told == (wanted.threshold, wanted.round, wanted.contributors)
        self.same(sends, wanted.sends)

    @rule(
        rank=ranks,
        named=st.lists(st.tuples(rounds, indexes), min_size=1, max_size=6),
        tail=st.sampled_from((0, 4, 8, 8, 8)),
    )
    def contribute(self, rank: int, named: list[tuple[int, int]], tail: int) -> None:
        """A burst of packets, of which the last may be shorter."""
        self.send(rank, [(self.at(further), index) for further, index in named], tail)

    @rule(rank=ranks, further=st.integers(-1, 1), again=st.booleans())
    def contribute_all(self, rank: int, further: int, again: bool) -> None:
        """A vector, as workers send it; perhaps once more in the same burst."""
        n = self.shape.segments
        named = [(self.at(further), index) for index in range(n)]
        if again and self.shape.last == 2:
            named += named
        self.send(rank, named, 4 * self.shape.last)

    def send(self, rank: int, named: list[tuple[int, int]], tail: int) -> None:
        who = self.who(rank)
        wanted: Sends = Counter()
        rows = np.zeros((len(named), 16), np.uint8)
        for i, (round_, index) in enumerate(named):
            size = tail if i == len(named) - 1 else 8
            elements = self.elements(size // 4)
            payload = packed(round_, index, elements)
            rows[i, : len(payload)] = np.frombuffer(payload, np.uint8)
            wanted += self.oracle.contribute(who, round_, index, elements)
        self.same(self.put(who, TOS_DATA, rows, 8 + tail), wanted)

    def elements(self, n: int) -> Elements:
        """Ones that no other packet has, and whose sums tell which are in them, near enough."""
        self.tokens += 1
        return tuple((self.tokens * 0x9E3779B1 + i * 0x85EBCA77) % ROUNDS for i in range(n))

    @rule(rank=ranks, threshold=st.integers(0, 5))
    def set_threshold(self, rank: int, threshold: int) -> None:
        who = self.who(rank)
        reply = self.ask(who, Action.SETH, Threshold(threshold))
        self.answered(reply, self.oracle.set_threshold(who, threshold))

    @rule(rank=ranks, further=rounds, start=indexes, count=st.integers(0, 5))
    def force(self, rank: int, further: int, start: int, count: int) -> None:
        who, round_ = self.who(rank), self.at(further)
        reply = self.ask(who, Action.FBCAST, Segments(round_, start, count))
        self.answered(reply, self.oracle.force(who, round_, start, start + count))

    @rule(rank=ranks, further=rounds, start=indexes, count=st.integers(0, 5))
    def ask_for_help(self, rank: int, further: int, start: int, count: int) -> None:
        who, round_ = self.who(rank), self.at(further)
        reply = self.ask(who, Action.HELP, Segments(round_, start, count))
        self.answered(reply, self.oracle.help(who, round_, start, start + count))

    @rule(rank=ranks)
    def halt(self, rank: int) -> None:
        who = self.who(rank)
        self.answered(self.ask(who, Action.HALT), self.oracle.halt(who))

    @rule(rank=ranks)
    def reset(self, rank: int) -> None:
        who = self.who(rank)
        self.answered(self.ask(who, Action.RESET), self.oracle.reset(who))

    @precondition(lambda self: len(self.oracle.places) > 1)
    @rule(rank=ranks)
    def leave(self, rank: int) -> None:
        who = self.who(rank)
        self.answered(self.ask(who, Action.LEAVE), self.oracle.leave(who))

    @rule(further=rounds, index=indexes)
    def stranger(self, further: int, index: int) -> None:
        """Whoever is no member changes nothing and gets nothing."""
        payload = packed(self.at(further), index, (1, 1))
        rows = np.frombuffer(payload, np.uint8).reshape(1, -1)
        assert self.put(STRANGER, TOS_DATA, rows, rows.size) == []
        ack, more = self.ask(STRANGER, Action.RESET)
        assert (ack.status, more) == (Status.NOT_MEMBER, [])

    @rule(seconds=st.sampled_from((0.01, 0.1, 20.0)))
    def wait(self, seconds: float) -> None:
        """Relays are repeated, nothing else."""
        self.now += seconds
        for out in self.switch.handle_timer(self.now):
            assert out.tos == TOS_CONTROL
        check_state(self.switch, self.now, timer_handled=True)

    @invariant()
    def counters(self) -> None:
        if hasattr(self, "oracle"):
            found = {name: self.switch.counters[name] for name in COMPARED}
            assert found == {name: self.oracle.counts[name] for name in COMPARED}
            check_state(self.switch, self.now)


def packed(round_: int, index: int, elements: Elements) -> bytes:
    seg = round_ << 32 | index
    return seg.to_bytes(8, "big") + np.array(elements, np.uint32).astype("<u4").tobytes()


TestRounds = Rounds.TestCase
TestRounds.settings = FUZZ
