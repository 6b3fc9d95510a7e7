"""A round in which a worker takes no part: it sends nothing, and receives the aggregates."""

from __future__ import annotations

import numpy as np

from iswitch.core.format.packets import Cutter, Indices, Rows
from iswitch.core.format.wire import Vector

from .aggregates import Aggregates
from .exchange import Exchange
from .transfer import NONE, Contribution


class Reception(Exchange):
    """The aggregates of a round to which this worker contributes nothing.

    It asks the switch for missing ones only when the round has `begun`: a Help with what nobody has
    contributed to would have the switch ask all members for it.

    Args:
        contribution: the round's (its `begin` has been called), of which nothing is sent.
        out: receives the aggregate, `numel` elements or fewer.

    Attributes:
        begun: some aggregate of this round has been made.
    """

    def __init__(self, contribution: Contribution, out: Vector) -> None:
        self._sent_as = sent_as = contribution.shape
        shorter = len(out) < sent_as.numel
        shape = sent_as.shortened(len(out)) if shorter else sent_as
        super().__init__(contribution, Aggregates(shape, out))
        self.begun = False

    @property
    def in_flight(self) -> int:
        """Return 0: nothing is sent."""
        return 0

    @property
    def outstanding(self) -> int:
        """Return 0: nothing is sent."""
        return 0

    @property
    def has_more(self) -> bool:
        """Return False: nothing is to be sent."""
        return False

    @property
    def must_resend(self) -> bool:
        """Return False: nothing is to be sent."""
        return False

    def next_lost(self, most: int, now: float) -> Indices:  # noqa: ARG002
        """Return no segments."""
        return NONE

    def next_run(self, burst: int, bursts: int, now: float, again: bool) -> None:  # noqa: ARG002
        """Return None: nothing is to be sent."""
        return

    def sent_among(self, start: int, stop: int) -> tuple[int, int]:  # noqa: ARG002
        """Return that none of these segments was sent."""
        return 0, -1

    def is_younger(self, start: int, stop: int, when: float) -> bool:  # noqa: ARG002
        """Return False: nothing was sent."""
        return False

    def resend(self, start: int, stop: int) -> int:  # noqa: ARG002
        """Return 0: nothing was sent, so nothing is repeated."""
        return 0

    def restart(self) -> None:
        """Ask for nothing until the round has begun at the switch that lost its state."""
        self.begun = False

    def take(self, rows: Rows, tail: int, cutter: Cutter, now: float) -> tuple[int, int]:  # noqa: ARG002
        """Take aggregates; return how many were new, and how many useless."""
        before = self.remaining
        for stretch in cutter.cut(rows, tail):
            of_round = stretch.round == self.round and stretch.fits(self._sent_as)
            if of_round and stretch.stop <= self.shape.segments:
                self.begun = True
                self._aggregates.take(stretch)
        fresh = before - self.remaining
        return fresh, len(rows) - fresh

    def freed(self, fresh: int) -> int:  # noqa: ARG002
        """Return 0: no packets of this worker were taken."""
        return 0

    def lose(self, now: float) -> tuple[Indices, float | None]:  # noqa: ARG002
        """Return that nothing of this worker's is lost."""
        return NONE, None

    def waited_for(self) -> tuple[Indices, Indices]:
        """Return the missing segments, and those of them that later ones have overtaken."""
        if not self.begun:
            return NONE, NONE
        waiting = np.flatnonzero(self._has == 0)
        return waiting, waiting[waiting < self._aggregates.last]

    def probed(self, waiting: Indices, suspect: Indices) -> Indices:  # noqa: ARG002
        """Return none: there is nothing to send again, so Help is asked for."""
        return NONE

    def probe(self, segments: Indices) -> None:
        """Do nothing: there is nothing to send again."""

    def missing(self, sent_only: bool = False) -> list[tuple[int, int]]:
        """Return the missing ranges (start, stop); none of them can come before it has begun."""
        if sent_only and not self.begun:
            return []
        return list(self._aggregates.lacking(0, self.shape.segments))
