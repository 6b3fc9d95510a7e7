"""The base of accelerators that keep the sums of each round apart: one accelerator for each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from iswitch.core.format.packets import Address, Indices, Outgoing, Stretch

from .plane import RoundAccelerator
from .runs import Run
from .slotted import SlottedAccelerator
from .states import Bitmaps, RoundStates
from .synchronous import SynchronousAccelerator


class OneRound(SynchronousAccelerator):
    """The sums of one round.

    Attributes:
        round: the round.
        left: segments that are not complete yet.
    """

    SLOTS = 1

    def begin(self, round_: int) -> None:
        """Take this round, instead of the one before."""
        self.round = round_
        self.left = self.shape.segments
        self.states.clear()


One = TypeVar("One", bound=OneRound | SlottedAccelerator)


class ByRound(RoundAccelerator, Generic[One]):
    """Sums of the last rounds, each with an accelerator of its own."""

    @abstractmethod
    def _rounds(self) -> list[tuple[int, One]]:
        """Return the rounds that are held, the oldest first, each with its sums."""

    def of(self, round_: int) -> One | None:
        """Return the sums of a round; None: they are not held."""
        return next((one for number, one in self._rounds() if number == round_), None)

    def take(self, stretch: Stretch) -> list[Run]:
        """Refuse aggregates from a parent: only a switch without one has such jobs."""
        raise AssertionError(f"aggregates of round {stretch.round} at a root")

    def begun(self) -> Iterator[tuple[Run, int, int]]:
        """Yield the nonempty runs of all rounds, each with its progress and bitmap."""
        for _, one in self._rounds():
            yield from one.begun()

    def bits_held(self) -> int:
        """Return the bitmap of the seats that have a contribution in some segment."""
        bits = 0
        for _, one in self._rounds():
            bits |= one.bits_held()
        return bits

    def words_of(self, round_: int, indices: Indices) -> Bitmaps:
        """Return the states of segments in a round, (n, words); zeros if it is not there."""
        one = self.of(round_)
        if one is None:
            return np.zeros((len(indices), RoundStates.RECORD.size // 8), np.uint64)
        return one.words_of(round_, indices)

    # Sending

    def deliver(self, completed: Sequence[Run], peers: tuple[Address, ...]) -> list[Outgoing]:
        """Send runs that have just completed."""
        return self._sent(completed, lambda one, runs: one.deliver(runs, peers))

    def send(
        self, runs: Sequence[Run], peers: tuple[Address, ...], partial: bool = False
    ) -> list[Outgoing]:
        """Send kept aggregates again."""
        return self._sent(runs, lambda one, some: one.send(some, peers, partial))

    def _sent(
        self, runs: Sequence[Run], send: Callable[[One, list[Run]], list[Outgoing]]
    ) -> list[Outgoing]:
        sends: list[Outgoing] = []
        for number, one in self._rounds():
            some = [run for run in runs if run.round == number]
            if some:
                sends += send(one, some)
        return sends
