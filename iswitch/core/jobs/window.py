"""The window of rounds in which a synchronous job takes contributions.

Why two sets of sums suffice: with H automatic a worker starts round R only when it has every
aggregate of R-1, so a contribution to R proves that everybody contributed to R-1 and so has R-2,
whose set R then takes over. A newcomer's first contribution proves no such thing, so it may not
raise `high` before the others have reached that round (`rounds.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from iswitch.core.format.wire import ROUND_MASK, round_distance

from .phases import NAMED, Named, follow


@dataclass(slots=True)
class Window:
    """The rounds that a synchronous job accepts: `high - 1` to `high + 1`, none before `lowest`.

    The first round that is named sets `high`, whatever its number: workers that come back to a
    switch which lost its state may be anywhere in the circle of numbers.

    Attributes:
        high: the highest round that any member has begun.
        base: the round in which the job began here; unused once a segment has completed.
        lowest: no earlier round is accepted, whatever `high` is; None: no such bound.
        named: evidence that has set `high`.
        contributed: whether a contribution to `high` was accepted.
    """

    high: int = 0
    base: int = 0
    lowest: int | None = None
    named: Named = Named.NOBODY
    contributed: bool = False

    def __contains__(self, round_: int) -> bool:
        return not self.is_past(round_) and round_distance(round_, self.high) <= 1

    @property
    def is_sure(self) -> bool:
        """Return whether anything other than a newcomer's first round has set `high`."""
        return self.named is Named.SURE

    def _know(self, named: Named) -> None:
        self.named = follow(NAMED, self.named, named)

    def is_past(self, round_: int) -> bool:
        """Return whether a round is before the window."""
        if self.lowest is not None and round_distance(round_, self.lowest) < 0:
            return True
        return round_distance(round_, self.high) < -1

    def name(self, round_: int, first: bool) -> None:
        """Move on to the round that a Join names.

        If the round is its sender's `first`, other members may be up to two rounds behind: the
        round holds only until a member names one that is not its first.
        """
        if first:
            lower = round_distance(round_, self.high) < 0
            if self.named is Named.NOBODY or (lower and self.named is Named.NEWCOMERS):
                self._know(Named.NEWCOMERS)
                self.base = self.high = round_
            return
        if not self.is_sure or round_distance(round_, self.high) > 0:
            before = round_ if self.named is Named.NOBODY else self.high
            self._raise(round_)
            self.base = before if before in self else round_
        elif round_distance(round_, self.base) < 0 and round_ in self:
            self.base = round_

    def contribute(self, round_: int) -> None:
        """Note that a contribution to this round, which is in the window, was accepted."""
        if round_distance(round_, self.high) > 0:
            self._raise(round_)
        self._know(Named.SURE)
        if round_ == self.high:
            self.contributed = True

    def skip(self, round_: int | None = None) -> None:
        """Move two rounds on, or to `round_`; late packets of earlier rounds are refused then."""
        self._raise((self.high + 2) & ROUND_MASK if round_ is None else round_)
        self.lowest = self.base = self.high

    def _raise(self, round_: int) -> None:
        self.high = round_
        self._know(Named.SURE)
        self.contributed = False
        if self.base not in self:
            self.base = round_
        # Numbers wrap: a bound kept for 2**31 rounds would look like a future round.
        if self.lowest is not None and round_distance(round_ - 1, self.lowest) >= 0:
            self.lowest = None

    @property
    def newcomers(self) -> int:
        """Return the first round of a member that joins now."""
        return (self.high + self.contributed) & ROUND_MASK
