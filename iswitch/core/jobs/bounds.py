"""What a switch knows of the slots to which a member keeps: docs/protocol.md, "Pools"."""

from __future__ import annotations

from dataclasses import dataclass

from iswitch.core.format.wire import round_distance


@dataclass(slots=True)
class Bound:
    """The most slots that a member may take the rounds to have.

    Attributes:
        round: the newest round that it had begun when it last asked; None: it has not asked.
        upto: slots in the rounds up to that one.
        after: slots in later rounds.
        told: the number that it was told last.
        asked: the number of its last request for it, or of the Join that came before.
        again: when it may be told to ask again, in seconds.
    """

    round: int | None
    upto: int
    after: int
    told: int
    asked: int
    again: float = 0.0

    @classmethod
    def of_newcomer(cls, slots: int, join: int) -> Bound:
        """Make the bound of a member whose Join, of the number `join`, names so many slots."""
        return cls(None, slots, slots, slots, join)

    def of(self, round_: int) -> int:
        """Return the most slots that the member may take a round to have."""
        is_later = self.round is None or round_distance(round_, self.round) > 0
        return self.after if is_later else self.upto

    def most(self, high: int) -> int:
        """Return the most of all rounds that may still be begun here."""
        is_past = self.round is None or round_distance(self.round, high) < -1
        return self.after if is_past else max(self.upto, self.after)

    def is_level(self, high: int) -> bool:
        """Return whether all rounds after `high` have the same slots, and it needs no more."""
        is_ahead = self.round is not None and round_distance(self.round, high) > 0
        return not is_ahead and self.most(high) == self.after
