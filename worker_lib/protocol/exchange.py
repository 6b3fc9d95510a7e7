"""What sessions need of a round under way, whoever gives and gets its segments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from iswitch.core.format.memo import Memo
from iswitch.core.format.packets import Address, Cutter, Indices, Recurring, Rows
from iswitch.core.format.wire import TOS_DATA, Shape

from .aggregates import Aggregates
from .ranges import ranges
from .recovery import Losses

LENGTHS = 64  # of vectors, whose packets are described once


class Packets(ABC):
    """What a worker contributes to one round, as packets; kept as long as the switch may ask.

    Within a round it never changes.

    Args:
        shape: layout of the job's vectors.
        count: number of packets.
    """

    def __init__(self, shape: Shape, count: int) -> None:
        self.shape = shape
        self.round: int | None = None
        self.packets = np.zeros(count, shape.packet)
        self._rows: Rows = self.packets.view(np.uint8).reshape(count, -1)
        self._data = self.packets["data"]
        self._first: Memo[int, Recurring] = Memo(LENGTHS)

    @abstractmethod
    def begin(self, round_: int) -> None:
        """Start over as the contribution to another round."""

    @abstractmethod
    def _tail(self, stop: int) -> int:
        """Return the size in bytes of the packet before `stop`."""

    @abstractmethod
    def again(self, start: int, stop: int, most: int, burst: int) -> Iterator[tuple[Rows, int]]:
        """Yield the packets of segments start..stop-1, at most `most`, in bursts."""

    def rows(self, start: int, stop: int) -> tuple[Rows, int]:
        """Return packets start..stop-1, and the size in bytes of the last."""
        return self._rows[start:stop], self._tail(stop)

    def first(self, count: int, switch: Address) -> Recurring:
        """Return the first packets, to send them to the switch."""
        found = self._first.get(count)
        if found is None:
            packets = Recurring((switch,), TOS_DATA, *self.rows(0, count))
            found = self._first.keep(count, packets)
        return found

    def pick(self, indices: Indices) -> tuple[Rows, int]:
        """Return copies of some packets, ascending, and the size in bytes of the last."""
        return self._rows[indices], self._tail(int(indices[-1]) + 1)


class Exchange(ABC):
    """A round under way: what is to be sent, and what has come.

    Args:
        contribution: holds the packets.
        aggregates: receives what comes.

    Attributes:
        shape: layout of what this worker gets.
        losses: which of these segments may be lost.
        doubted: ranges of segments that the switch asked for; they may only wait in a queue.
    """

    def __init__(self, contribution: Packets, aggregates: Aggregates) -> None:
        assert contribution.round is not None
        self.round: int = contribution.round
        self.contribution = contribution
        self.shape = aggregates.shape
        self._aggregates = aggregates
        self._has = aggregates.has
        self.losses = Losses(self.shape.segments)
        self.doubted: list[tuple[int, int]] = []

    @property
    def remaining(self) -> int:
        """Return the number of segments whose aggregate has not arrived."""
        return self._aggregates.remaining

    @property
    def done(self) -> bool:
        """Return whether every aggregate has come."""
        return not self.remaining

    # What is sent

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Return the number of packets sent, and not known to be taken or lost."""

    @property
    @abstractmethod
    def outstanding(self) -> int:
        """Return the number of packets sent, lost or not, that are not known to be taken."""

    @property
    @abstractmethod
    def has_more(self) -> bool:
        """Return whether any packets are still to be sent, for the first time or again."""

    @property
    @abstractmethod
    def must_resend(self) -> bool:
        """Return whether packets must be sent again because they were lost or asked for."""

    @abstractmethod
    def next_lost(self, most: int, now: float) -> Indices:
        """Return up to `most` packets, to send them again now."""

    @abstractmethod
    def next_run(self, burst: int, bursts: int, now: float, again: bool) -> tuple[int, int] | None:
        """Take the next range (start, stop) of packets to send; None: none of this kind is next.

        Bursts begin at multiples of their size, so that all workers' bursts are equal runs in the
        switch.

        Args:
            burst: packets of a burst.
            bursts: largest number of bursts to take.
            now: the time, in seconds.
            again: whether to take packets that were sent before, rather than new ones.
        """

    @abstractmethod
    def sent_among(self, start: int, stop: int) -> tuple[int, int]:
        """Return how many of segments start..stop-1 were sent, and the last one of them."""

    @abstractmethod
    def is_younger(self, start: int, stop: int, when: float) -> bool:
        """Return whether some of segments start..stop-1 were last sent at or after a time."""

    @abstractmethod
    def resend(self, start: int, stop: int) -> int:
        """Queue segments start..stop-1, as far as they were sent, for a repeat; return their
        number.
        """

    @abstractmethod
    def restart(self) -> None:
        """Send what the switch lacks again, since it has lost its state."""

    # What comes

    @abstractmethod
    def take(self, rows: Rows, tail: int, cutter: Cutter, now: float) -> tuple[int, int]:
        """Take aggregates, in packets as those of a `Burst`.

        Returns:
            how many were new, and how many useless (repeated, of another round, or malformed).
        """

    @abstractmethod
    def freed(self, fresh: int) -> int:
        """Return how many packets are newly known to be taken, with `fresh` new aggregates."""

    # What is missing

    @abstractmethod
    def lose(self, now: float) -> tuple[Indices, float | None]:
        """Find what is lost by now, to be sent again or asked for.

        Return those lost for the first time, and when to check next; None: not needed.
        """

    @abstractmethod
    def waited_for(self) -> tuple[Indices, Indices]:
        """Return the segments that may come and have not, and those of them that may be lost.

        Segments may be lost if they were sent again, or are followed by others whose aggregate has
        arrived; the rest may all wait in a queue. Segments already due to be sent again are left
        out.
        """

    def probed(self, waiting: Indices, suspect: Indices) -> Indices:  # noqa: ARG002
        """Return which of a few segments waited for are worth a probe after a short silence."""
        return waiting

    @abstractmethod
    def probe(self, segments: Indices) -> None:
        """Mark some of these to be sent again or asked for, as a probe."""

    @abstractmethod
    def missing(self, sent_only: bool = False) -> list[tuple[int, int]]:
        """Return ranges (start, stop) of the segments whose aggregate has not arrived."""

    def named(self, segments: Indices) -> list[tuple[int, int]]:
        """Return some of the segments waited for as ranges (start, stop), for Help."""
        return ranges(segments)

    def questions(self, most: int, now: float) -> list[tuple[int, int]]:  # noqa: ARG002
        """Take up to `most` ranges (start, stop) of segments to ask for now."""
        return []
