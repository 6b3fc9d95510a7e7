"""What a round of owned segments and the kernel that plays it tell each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .transfer import Progress


class Exchanged(NamedTuple):
    """Tells what a kernel has done for a round.

    Attributes:
        progress: how far it was after each step, in order; `came` counts aggregates of what this
            worker both gives and gets. Of a round that is done only the last step matters.
        filled: packets laid out, from the first on.
        taken: packets that the switch is known to have taken.
        remaining: aggregates that have not come.
        total: what the closing aggregate counts, if it has come.
        round_trip: seconds from sending the last packet that was answered to its aggregate.
        window: size of the window.
    """

    progress: list[Progress]
    filled: int
    taken: int
    remaining: int
    total: int
    round_trip: float
    window: float


class Lent(NamedTuple):
    """Tells how far a round is that a kernel continues.

    Attributes:
        has: 1 where an aggregate has come, by position; the kernel notes others there.
        sent: packets sent, from the first on.
        answered: aggregates that have come of what this worker both gives and gets.
        taken: packets that the switch is known to have taken.
        marked: packets of which a Help is to tell.
        marks: Helps that are not answered.
    """

    has: npt.NDArray[np.uint8]
    sent: int
    answered: int
    taken: int
    marked: int
    marks: int
