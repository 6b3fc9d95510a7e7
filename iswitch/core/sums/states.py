"""The states of segments: one record each, so that many are compared and written at once."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Indices, index_ranges
from iswitch.core.format.wire import round_distance

from .runs import Held, Run

Bitmaps = npt.NDArray[np.uint64]


class Mark(NamedTuple):
    """A state of some segments, made up and not written yet: to write it takes no memory."""

    table: bytearray
    at: int
    records: bytes

    def write(self) -> None:
        """Write the state to the table."""
        self.table[self.at : self.at + len(self.records)] = self.records


class Marks(NamedTuple):
    """States, (n, words), of the segments of these indices: made up and not written yet."""

    words: Bitmaps
    indices: Indices
    states: Bitmaps

    def write(self) -> None:
        """Write the states to the table."""
        self.words[self.indices] = self.states


class Table:
    """A 16-byte state record for every segment, seen as an array and as bytes."""

    def __init__(self, record: struct.Struct, segments: int) -> None:
        self.record = record
        self.bytes = bytearray(record.size * segments)
        self.words: npt.NDArray[np.uint64] = np.frombuffer(self.bytes, np.uint64).reshape(
            segments, -1
        )
        self.clear()  # so that the memory is there, not only promised

    def is_uniform(self, start: int, stop: int) -> bool:
        """Whether segments start..stop-1 are all in the same state."""
        size = self.record.size
        held = self.bytes[size * start : size * stop]
        return held == held[:size] * (stop - start)

    def uniform(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Cut segments start..stop-1 where the state changes."""
        if start >= stop:
            return []
        if self.is_uniform(start, stop):
            return [(start, stop)]
        return [(start + a, start + b) for a, b in index_ranges(self.words[start:stop], 0)]

    def get(self, index: int) -> tuple[int, ...]:
        """Read the state of one segment."""
        return self.record.unpack_from(self.bytes, self.record.size * index)

    def mark(self, start: int, stop: int, *state: int) -> Mark:
        """Prepare what `write` has to write to give segments start..stop-1 one state."""
        return Mark(self.bytes, self.record.size * start, self.record.pack(*state) * (stop - start))

    def set(self, start: int, stop: int, *state: int) -> None:
        """Give segments start..stop-1 one state."""
        size = self.record.size
        self.bytes[size * start : size * stop] = self.record.pack(*state) * (stop - start)

    def clear(self) -> None:
        """Set all records to zero."""
        self.words[:] = 0


class RoundStates:
    """What is held of the segments of a synchronous job, in two sets chosen by round mod 2.

    A segment's state is its round, how far it is (open, sent to the parent, complete), and the
    bitmap of its contributors; an open set with an empty bitmap is empty, whatever round it names.
    """

    OPEN, SENT, COMPLETE = 0, 1, 2

    SETS = 2
    RECORD = struct.Struct("<IIQ")  # round, how far, bitmap

    def __init__(self, segments: int) -> None:
        self.segments = segments
        self.sets = [Table(self.RECORD, segments) for _ in range(self.SETS)]

    def bits(self) -> int:
        """Bitmap of the seats whose contribution is held in some segment."""
        return int(np.bitwise_or.reduce([np.bitwise_or.reduce(t.words[:, 1]) for t in self.sets]))

    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """Say what is held of segments start..stop-1, run by run, with the contributors' bitmap."""
        slot = round_ & 1
        for a, b in self.sets[slot].uniform(start, stop):
            holds, how_far, bitmap = self.sets[slot].get(a)
            run = Run(slot, round_, a, b)
            if not (bitmap or how_far) or round_distance(holds, round_) < 0:
                yield run, Held.NOTHING, 0
            elif holds != round_:
                yield run, Held.GONE, 0
            else:
                yield run, (Held.OPEN, Held.SENT, Held.COMPLETE)[how_far], bitmap

    def begun(self) -> Iterator[tuple[Run, int, int]]:
        """Give the runs of both sets that are not empty: how far each is, and its bitmap."""
        for slot, states in enumerate(self.sets):
            for start, stop in states.uniform(0, self.segments):
                round_, how_far, bitmap = states.get(start)
                if bitmap or how_far:
                    yield Run(slot, round_, start, stop), how_far, bitmap

    def clear(self) -> None:
        """Empty both sets."""
        for states in self.sets:
            states.clear()
