"""Plays rounds the express way, as far as that goes."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque

from iswitch.core.format.memo import Memo
from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import ROUND_MASK, Shape, Vector, round_distance

from .exchange import LENGTHS, Packets
from .express import Express, Play, Streak
from .repairing import Repairing
from .terms import RoundTerms
from .transfer import Contribution, Transfer
from .window import probe_pause

BURSTS_IN_EXPRESS = 4  # as many as a window has at first


class Expressing(Repairing):
    """A member of a synchronous job that begins rounds as an `Express`.

    Args:
        terms: terms of the membership.
        incarnation: Request of the Join.
    """

    def __init__(self, terms: RoundTerms, incarnation: int) -> None:
        super().__init__(terms, incarnation)
        self.round = 0  # of the allreduce under way, or the next
        self.finished: int | None = None  # the last round that was
        self.ended = 0  # rounds
        self.express: Express | None = None  # in place of a transfer, as long as all goes well
        self._whole: Outgoing | None = None  # its contribution, to be sent
        self._contributions = deque(self._packets() for _ in range(1 + terms.restart_safe))
        self._own = False  # nothing else writes to the transfer's `out`
        self._given_up: Transfer | None = None
        self._shapes: Memo[int, Shape] = Memo(LENGTHS)  # of shorter vectors, by their length

    @abstractmethod
    def _packets(self) -> Packets:
        """Return an empty contribution."""

    @property
    def _contribution(self) -> Contribution:
        """Return the contribution to the round under way."""
        contribution = self._contributions[0]
        assert isinstance(contribution, Contribution)
        return contribution

    @property
    def burst(self) -> int:
        """Return the segments of a burst that this worker sends."""
        return self._burst

    def _begin_round(self) -> None:
        """Have a contribution for the round, which is empty if the round is new."""
        if self._contributions[0].round != self.round:
            self._contributions[-1].begin(self.round)
            self._contributions.rotate(1)

    def begin_express(
        self, vector: Vector, out: Vector, now: float, own: bool = False, played: bool = False
    ) -> bool:
        """Begin the allreduce of a vector the express way; False: `begin` it.

        `express` says when it is done. If anything but the aggregates in order arrives, or nothing
        until `deadline`, it continues as after `begin`.

        Args:
            vector: flat, of `numel` elements or fewer.
            out: receives the aggregate, as long as the vector.
            now: the time, in seconds.
            own: whether nothing else writes to `out`.
            played: whether a kernel will play it, so that it may have any size; if not,
                `transmissions` has all of it.
        """
        shape = self._shape_of(len(vector))
        n = shape.segments
        most = min(BURSTS_IN_EXPRESS * self.window.burst, self.window.size)
        if (not played and n > most) or not self.may_express(n):
            return False
        self._begin_round()
        self._own = own
        self.forget_who_is_missing()
        self.express = express = Express(self._contribution, shape, vector, out, now)
        self._moved, self._timer = now, now + self.round_trip.timeout
        if not played:
            express.send_all(now)
            self.stats["sent"] += n
            self._whole = express.contribution.first(n, self.switch)
        return True

    def may_express(self, segments: int) -> bool:
        """Return whether a kernel may play a round of so many segments the express way."""
        return not (
            self.slots
            or (self.in_turns and segments > self._burst)
            or not (self.member and self.resends)
            or self.halted
            or self._given_up is not None
            or self._out
        )

    def _shape_of(self, numel: int) -> Shape:
        """Return the layout of a vector, which may be shorter than the job's longest."""
        if numel == self.shape.numel:
            return self.shape
        return self._shapes.get(numel) or self._shapes.keep(numel, self.shape.shortened(numel))

    def played(self, play: Play) -> None:
        """Note what a kernel has done for the express round."""
        express = self.express
        assert express is not None
        sent, came = express.sent, express.came
        express.played(play)
        self.stats["sent"] += express.sent - sent
        self.window.size = play.window
        if express.came > came:
            self.heard = express.came_at
            self._progress(express, express.came - came, play.round_trip)

    def contributions(self) -> list[Contribution]:
        """Return the contribution to the last round, and those to the rounds before it."""
        return [one for one in self._contributions if isinstance(one, Contribution)]

    def played_streak(self, streak: Streak) -> None:
        """Note rounds that a kernel has played.

        It leaves what `begin_express`, `played` and `finish` of each of them would leave, behind a
        round that has ended so, too. If an error of a signal's handler ends this, do it again.
        """
        before, last = self.round, (streak.until - 1) & ROUND_MASK
        rounds = round_distance(streak.until, before)
        if rounds <= 0:  # they are noted
            return
        contributions = self._contributions.copy()
        contributions.rotate(rounds)
        for back, contribution in zip(range(rounds), contributions, strict=False):
            assert isinstance(contribution, Contribution)
            contribution.begin((last - back) & ROUND_MASK)
            contribution.filled = self.shape.segments
        self.window.size = streak.window
        self.round_trip.smoothed, self.round_trip.deviation = streak.smoothed, streak.deviation
        self.heard = self._moved = streak.came_at
        n, stats = rounds * self.shape.segments, self.stats
        if self.round != before:  # a handler has had it done
            return
        # No signal is heeded from here on: nothing is called.
        self._contributions, self.round, self.finished = contributions, streak.until, last
        self.ended += rounds
        stats["sent"] += n
        stats["received"] += n

    def _progress(self, express: Express, segments: int, round_trip: float) -> None:
        """Note that the next aggregates of an express round have arrived.

        Args:
            express: the round.
            segments: how many of them.
            round_trip: seconds from sending the last of them to now.
        """
        self.stats["received"] += segments
        self._moved = express.came_at
        self._timer = express.came_at + probe_pause(round_trip)
        if express.done:
            self.round_trip.sample(round_trip)
            self.round_trip.backoff = 1.0

    def go_slow(self) -> None:
        """Finish the express round as an ordinary transfer: the next aggregates did not come."""
        express = self.express
        if express is None or express.done:
            return
        self.express = None
        self.transfer = express.transfer()
        self._moves(express.came_at)
