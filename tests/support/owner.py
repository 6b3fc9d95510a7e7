"""A worker of a job whose segments have owners, as plain as docs/protocol.md lets it be.

It looks at every packet by itself, sends without a window and repairs by Help alone. So it shares
with the library's worker the membership only, and its results can be held against those.
"""

from __future__ import annotations

import numpy as np

from iswitch.core.format.division import Division
from iswitch.core.format.packets import Outgoing, Rows
from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_STANDS_AT,
    ROUND_MASK,
    SEG_SIZE,
    TOS_DATA,
    Ack,
    Action,
    Segments,
    Status,
    round_distance,
)
from worker_lib.protocol.events import Dropped, Gone, WasReset
from worker_lib.protocol.member import Member
from worker_lib.protocol.ranges import ranges
from worker_lib.protocol.terms import RoundTerms

PATIENCE = 0.02  # seconds


class Owner(Member[object]):
    """Contributes some segments of each round, and waits for others."""

    def __init__(self, terms: RoundTerms, incarnation: int) -> None:
        super().__init__(terms, incarnation)
        self.stats = {"rejoins": 0}
        self.division = Division(self.shape)
        self.round = 0
        self.finished: int | None = None
        self.given: dict[int, dict[int, bytes]] = {}  # payloads of the last two rounds, by segment
        self.wanted: set[int] = set()
        self.got: dict[int, bytes] = {}
        self.under_way = False
        self._asks_at: float | None = None
        self._moved_to: int | None = None

    def begin(self, gives: dict[int, bytes], wants: set[int], now: float) -> None:
        """Begin a round with these payloads, to wait for these segments."""
        size = self.shape.last * self.shape.dtype.itemsize
        closing = len(gives).to_bytes(4, "little") + bytes(size - 4)
        self.given = {r: g for r, g in self.given.items() if r == (self.round - 1) & ROUND_MASK}
        self.given[self.round] = {**gives, self.division.closing: closing}
        self.wanted = wants | {self.division.closing}
        self.got = {}
        self.under_way = True
        self._send(self.given[self.round])
        self._asks_at = now + PATIENCE

    @property
    def done(self) -> bool:
        return self.under_way and not self.wanted - self.got.keys()

    def finish(self) -> None:
        self.under_way = False
        self._asks_at = None
        self.finished = self.round
        self.round = (self.round + 1) & ROUND_MASK

    def _send(self, payloads: dict[int, bytes], round_: int | None = None) -> None:
        round_ = self.round if round_ is None else round_
        for index in sorted(payloads):
            packet = (round_ << 32 | index).to_bytes(SEG_SIZE, "big") + payloads[index]
            out = Outgoing.control(self.switch, packet)
            self._out.append(out._replace(tos=TOS_DATA))

    def abandon(self) -> None:
        self.under_way = False
        self._asks_at = None

    def transmissions(self, now: float) -> list[Outgoing]:  # noqa: ARG002
        return self._given_out()

    def deadline(self) -> float | None:
        due = [when for when in (super().deadline(), self._asks_at) if when is not None]
        return min(due, default=None)

    def _do_what_is_due(self, now: float) -> None:
        if self._asks_at is None or self._asks_at > now:
            return
        self._asks_at = now + PATIENCE
        if self.member:
            missing = np.array(sorted(self.wanted - self.got.keys()))
            for start, stop in ranges(missing):
                self._help(Segments(self.round, start, stop - start), now)

    def _take(self, rows: Rows, tail: int, now: float) -> None:  # noqa: ARG002
        if not self.under_way:
            return
        for i, row in enumerate(rows):
            packet = row[: tail if i == len(rows) - 1 else None].tobytes()
            seg = int.from_bytes(packet[:SEG_SIZE], "big")
            if seg >> 32 == self.round and seg & ROUND_MASK in self.wanted:
                kept = self.got.setdefault(seg & ROUND_MASK, packet[SEG_SIZE:])
                assert kept == packet[SEG_SIZE:], "two aggregates of one segment"

    def _help_the_switch(self, named: Segments, now: float) -> None:  # noqa: ARG002
        given = self.given.get(named.round, {})
        asked = range(named.index, named.index + named.count)
        self._send({index: given[index] for index in asked if index in given}, named.round)

    def _help_answered(
        self,
        named: Segments,
        asked: float,  # noqa: ARG002
        status: Status,
        ack: Ack,
        now: float,  # noqa: ARG002
    ) -> None:
        if status is Status.GONE and self.under_way and named.round == self.round:
            self._events.append(Gone(self.round, ack.round))
            self.abandon()
            self.round = self._moved_to = ack.round

    def _standing(self) -> tuple[int, int]:
        before = self.finished == (self.round - 1) & ROUND_MASK
        return FLAG_STANDS_AT if before else FLAG_STANDS_AT | FLAG_FIRST, self.round

    def _take_place(self, ack: Ack, now: float) -> None:  # noqa: ARG002
        if self._moved_to is None or round_distance(ack.round, self._moved_to) > 0:
            self.round = ack.round

    def _take_place_again(self, ack: Ack, now: float) -> None:  # noqa: ARG002
        if round_distance(ack.round, self.round) > 0:
            self._events.append(Dropped(self.round, ack.round))
            self.abandon()
            self.round = self._moved_to = ack.round
        elif self.under_way:
            self._send(self.given[self.round])

    def _lost_place(self) -> None:
        self._moved_to = None

    def _was_halted(self, now: float) -> None:  # noqa: ARG002
        raise AssertionError("nobody halts such a job")

    def _was_reset(self, round_: int) -> None:
        if round_ == self._moved_to or round_distance(round_, self.round) <= 0:
            return
        ours = self.asks(Action.RESET)
        self._has_reset(round_)
        if not ours:
            self._events.append(WasReset(round_))

    def _has_reset(self, round_: int) -> None:
        if round_ != self._moved_to and round_distance(round_, self.round) >= 0:
            self._moved_to = self.round = round_
            self.abandon()
            self.given.clear()
