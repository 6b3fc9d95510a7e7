"""What both sides of a federated round tell the program."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from iswitch.core.format.wire import Vector


class Said(Enum):
    """What became of a contribution; `IN` alone is true.

    Attributes:
        IN: it is in the sum, with every element.
        LATE: it counts for nothing: the round was closed without it.
        UNTOLD: this member lost the sum, and the switch keeps it no longer, or was restarted; the
            next task's `before` tells.
    """

    IN = "in the sum"
    LATE = "late"
    UNTOLD = "not known"

    def __bool__(self) -> bool:
        return self is Said.IN


@dataclass(frozen=True)
class Outcome:
    """A round that is over.

    Attributes:
        round: its number.
        model: float32 [numel]: the weighted mean of the contributions; the round's own model if
            there are none.
        n: sum of the weights n_k, as a float32 can tell it; 0: nobody contributed.
        ranks: ranks of the members that are in the sum, ascending, as the switch's aggregate says
            in every packet.
        picked: ranks that were picked, ascending.
        in_time: whether as many contributed as were needed; else the deadline closed the round.
        attempts: how often members were asked for their vectors: once, unless one failed meanwhile.
    """

    round: int
    model: Vector
    n: float
    ranks: tuple[int, ...]
    picked: tuple[int, ...]
    in_time: bool
    attempts: int

    @property
    def bitmap(self) -> int:
        """Return the ranks in the sum as a bitmap: bit r is rank r."""
        return sum(1 << rank for rank in self.ranks)
