"""The accelerator of a job that takes turns (docs/protocol.md, "Turns").

Between its rounds it keeps the aggregates of the last one, and nothing else. The memory of the
next round is there while the job has its turn. So each round has an accelerator of its own, with
one set.

The sums of a round that has begun can be given up as long as no segment is complete: nobody has an
aggregate of it, and all workers still hold their contributions. Once a segment is complete, all
have begun the round, so all have the one before: that can be given up instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Cutter, Stretch
from iswitch.core.format.wire import Shape, later, round_distance

from .buffers import PLAIN, Buffers
from .by_round import ByRound, OneRound
from .plane import Rule
from .runs import Held, Outcome, Run


class TurnAccelerator(ByRound[OneRound]):
    """Adds up the rounds of a job, one at a time, while the job has its turn.

    Args:
        shape: the layout of the job's vectors.
        complete: the rule that decides which segments are complete.
        counters: counts the contributions.
        buffers: allocates the memory.

    Attributes:
        kept: the last round that is complete; None: there is none.
        flying: the round under way; None: none is.
        open: the job has its turn.
        claimed: the round for which the turn was given, until it is over; None: there is none.
        asked: the newest round that each seat wants to begin, if it has to wait for that.

    Raises:
        MemoryError: too little memory.
    """

    def __init__(
        self, shape: Shape, complete: Rule, counters: Counters, buffers: Buffers = PLAIN
    ) -> None:
        self.shape = shape
        self.complete = complete
        self.counters = counters
        self._buffers = buffers
        self.cutter = Cutter(shape)
        self.cutter.prepare()
        # The first round needs no switch of lanes; then its memory is that of what is kept.
        self._spare: OneRound | None = self._make()
        self.kept: OneRound | None = None
        self.flying: OneRound | None = None
        self.open = False
        self.claimed: int | None = None
        self.asked: dict[int, int] = {}

    @classmethod
    def persistent(cls, shape: Shape) -> int:
        """Return the bytes that a job of this shape needs all the time."""
        return OneRound.memory(shape) + shape.segments * Cutter.MEMORY

    @classmethod
    def ephemeral(cls, shape: Shape) -> int:
        """Return the bytes that it needs on top while it has its turn."""
        return OneRound.memory(shape)

    def nbytes(self) -> int:
        """Return the size of all arrays and states in bytes, without the headers of rounds."""
        return sum(one.nbytes() for one in self._all())

    def headers(self) -> int:
        """Return the number of segments whose headers are kept."""
        return self.shape.segments * (1 + len(self._all()))

    def _all(self) -> list[OneRound]:
        return [one for one in (self.kept, self.flying, self._spare) if one is not None]

    def _make(self) -> OneRound:
        ways = self.shape, self.complete, self.counters
        one = OneRound(*ways, buffers=self._buffers)
        one.begin(0)
        return one

    def join(self, seat: int) -> None:  # noqa: ARG002  (all members share one sum)
        """Prepare for a new member on this seat."""
        self._buffers.leave_room(self.shape.segments)

    @property
    def _last(self) -> OneRound | None:
        """Return the last round of which a segment is complete."""
        flying = self.flying
        return flying if flying is not None and flying.left < self.shape.segments else self.kept

    # The turn

    def ask(self, seat: int, round_: int) -> None:
        """Note that the member on a seat wants to begin a round."""
        if self._last is None or round_distance(round_, self._last.round) > 0:
            self.asked[seat] = later(self.asked.get(seat), round_)

    def wanted(self, participants: int) -> int | None:
        """Return the round that all have asked to begin; None: some have not asked.

        After a restart of the switch some may be a round ahead, and help the others with theirs.

        Args:
            participants: bitmap of the seats that must ask.
        """
        rounds = [round_ for seat, round_ in self.asked.items() if participants >> seat & 1]
        if not rounds or len(rounds) < participants.bit_count():
            return None
        return reduce(lambda a, b: a if round_distance(a, b) < 0 else b, rounds)

    def waiting_for(self, round_: int) -> int:
        """Return the bitmap of the seats that wait for this round to begin, or a later one."""
        if self.is_open(round_):
            return 0
        asked = (seat for seat, one in self.asked.items() if round_distance(one, round_) >= 0)
        return sum(1 << seat for seat in asked)

    def missed(self) -> int:
        """Return the bitmap of the seats whose data came before the round under way had begun.

        They are no longer among those that ask.
        """
        if self.flying is None or not self.asked:
            return 0
        missed = [seat for seat, one in self.asked.items() if one == self.flying.round]
        self._answered(self.flying.round)
        return sum(1 << seat for seat in missed)

    def is_open(self, round_: int) -> bool:
        """Return whether contributions to a round are taken, or were: it is kept."""
        return self.of(round_) is not None or self._may_begin(round_)

    def _may_begin(self, round_: int) -> bool:
        if not self.open or self.flying is not None:
            return False
        if self.claimed is not None:
            return round_ == self.claimed
        return self.kept is None or round_distance(round_, self.kept.round) > 0

    @property
    def is_over(self) -> bool:
        """Return whether all segments of the round under way are complete."""
        return self.flying is not None and not self.flying.left

    def land(self) -> None:
        """Keep the round that is over, in place of the one before."""
        assert self.flying is not None
        self._spare, self.kept, self.flying = self.kept, self.flying, None
        self.claimed = None
        self._answered(self.kept.round)

    @property
    def under_way(self) -> int | None:
        """Return the round under way, if it cannot be given up; None: none is.

        One for which the turn was not asked can be, as long as nobody has an aggregate of it.
        """
        flying = self.flying
        return flying.round if flying is not None and flying is self._last else self.claimed

    def in_flight(self, high: int) -> OneRound | None:
        """Return the round under way, if it is `high` and all but data of it can wait; else None.

        It cannot be given up then, and nobody asks for another.
        """
        one = self.flying
        if one is None or one.round != high or not one.left:
            return None
        return one if self.open and self.under_way == high and not self.asked else None

    def grant(self, round_: int) -> None:
        """Have the turn for a round that all have asked to begin."""
        self.void()
        self.open, self.claimed = True, round_
        self._answered(round_)

    def _answered(self, round_: int) -> None:
        """Forget who has asked for a round, or an earlier one."""
        for seat, one in list(self.asked.items()):
            if round_distance(one, round_) <= 0:
                del self.asked[seat]

    def rest(self) -> None:
        """Lose the turn, and keep one round: the last one of which a segment is complete.

        If that is the round under way, it can still be completed. Else those that have contributed
        to it have asked for it.
        """
        flying, self.open = self.flying, False
        if flying is not None and flying is self._last:
            self.kept = self._spare = self.claimed = None
            return
        if flying is not None:
            bits = flying.bits_held()
            for seat in range(bits.bit_length()):
                if bits >> seat & 1:
                    self.ask(seat, flying.round)
        self.void()
        if self.kept is not None:
            self._spare = None

    def void(self) -> None:
        """Give up the sums of the round under way."""
        self._spare, self.flying = self._spare or self.flying, None
        self.claimed = None

    def reset(self, round_: int) -> None:  # noqa: ARG002  (rounds need no base)
        """Forget all rounds."""
        self._spare = self._spare or self.kept or self.flying
        self.kept = self.flying = self.claimed = None
        self.asked.clear()

    # Contributions

    def accumulate(self, seat: int, stretch: Stretch, outcome: Outcome) -> None:
        """Accumulate one member's contributions, if the round has its turn."""
        one = self.of(stretch.round)
        if one is None and self._may_begin(stretch.round):
            one = self._begin(stretch.round)
        if one is None:
            self.counters["no_turn"] += len(stretch.rows)
            self.ask(seat, stretch.round)
            return
        before = len(outcome.completed)
        one.accumulate(seat, stretch, outcome)
        one.left -= sum(run.segments for run in outcome.completed[before:])

    def _begin(self, round_: int) -> OneRound:
        one = self._spare or self._make()
        one.begin(round_)
        self.flying, self._spare = one, None
        return one

    def finish(self, run: Run, bitmap: int) -> Run:
        """Finish a run: turn its sums into aggregates."""
        one = self.of(run.round)
        assert one is not None
        one.left -= run.segments
        return one.finish(run, bitmap)

    # States

    def _rounds(self) -> list[tuple[int, OneRound]]:
        return [(one.round, one) for one in (self.kept, self.flying) if one is not None]

    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """Yield the runs of segments start..stop-1, each with its state and contributor bitmap."""
        one = self.of(round_)
        if one is not None:
            yield from one.held(round_, start, stop)
        elif start < stop:
            gone = self._last is not None and round_distance(round_, self._last.round) < 0
            yield Run(0, round_, start, stop), Held.GONE if gone else Held.NOTHING, 0
