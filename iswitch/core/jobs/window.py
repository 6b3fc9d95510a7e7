"""The window of rounds in which a synchronous job takes contributions.

Why two sets of sums suffice: with H automatic a worker starts round R only when it has every
aggregate of R-1, so a contribution to R proves that everybody contributed to R-1 and so has R-2,
whose set R then takes over. The first contribution of a newcomer proves nothing of the kind, so it
may not raise `high` before the others are that far (`rounds.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from iswitch.core.format.wire import ROUND_MASK, round_distance

from .phases import NAMED, Named, follow


@dataclass(slots=True)
class Window:
    """The rounds a synchronous job takes: `high - 1` to `high + 1`, none before `lowest`.

    The first to name a round sets `high`, whatever the number: workers that come back to a switch
    which lost its state may stand anywhere in the circle of numbers.

    Attributes:
        high: the highest round that anybody has begun.
        base: the round with which the job began here, of interest until something has completed.
        lowest: no earlier round is taken, whatever `high` is.
        named: who has set `high`.
        contributed: something was contributed to `high`.
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
        """Whether anything but a first round has set `high`."""
        return self.named is Named.SURE

    def _know(self, named: Named) -> None:
        self.named = follow(NAMED, self.named, named)

    def is_past(self, round_: int) -> bool:
        """Return whether a round is before the window."""
        if self.lowest is not None and round_distance(round_, self.lowest) < 0:
            return True
        return round_distance(round_, self.high) < -1

    def name(self, round_: int, first: bool) -> None:
        """Take from a Join the round at which its sender stands.

        If it is the sender's `first`, the others may be up to two rounds behind: it counts only
        until somebody names one that is not.
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
        """Go on two rounds further, so that no straggler from before can enter."""
        self._raise((self.high + 2) & ROUND_MASK if round_ is None else round_)
        self.lowest = self.base = self.high

    def _raise(self, round_: int) -> None:
        self.high = round_
        self._know(Named.SURE)
        self.contributed = False
        if self.base not in self:
            self.base = round_
        # Numbers wrap: a bound kept for 2**31 rounds would look like one to come.
        if self.lowest is not None and round_distance(round_ - 1, self.lowest) >= 0:
            self.lowest = None

    @property
    def newcomers(self) -> int:
        """The first round of a member that joins now."""
        return (self.high + self.contributed) & ROUND_MASK
