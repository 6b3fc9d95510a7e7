"""The states of segments: one record each, so that array operations serve many at once."""

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
    """A state of some segments, ready to be written without needing memory."""

    table: bytearray
    at: int
    records: bytes

    def write(self) -> None:
        """Write the state to the table."""
        self.table[self.at : self.at + len(self.records)] = self.records


class Marks(NamedTuple):
    """New states (n, words) of the segments `indices` (n,), not yet written to the table."""

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
        self.clear()  # writes to the memory, so that the system must provide it

    def is_uniform(self, start: int, stop: int) -> bool:
        """Return whether segments start..stop-1 are all in one state."""
        size = self.record.size
        held = self.bytes[size * start : size * stop]
        return held == held[:size] * (stop - start)

    def uniform(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of segments start..stop-1 in one state each."""
        if start >= stop:
            return []
        if self.is_uniform(start, stop):
            return [(start, stop)]
        return [(start + a, start + b) for a, b in index_ranges(self.words[start:stop], 0)]

    def get(self, index: int) -> tuple[int, ...]:
        """Read the state of one segment."""
        return self.record.unpack_from(self.bytes, self.record.size * index)

    def mark(self, start: int, stop: int, *state: int) -> Mark:
        """Prepare a mark whose `write` gives segments start..stop-1 one state."""
        return Mark(self.bytes, self.record.size * start, self.record.pack(*state) * (stop - start))

    def set(self, start: int, stop: int, *state: int) -> None:
        """Give segments start..stop-1 one state."""
        size = self.record.size
        self.bytes[size * start : size * stop] = self.record.pack(*state) * (stop - start)

    def clear(self) -> None:
        """Set all records to zero."""
        self.words[:] = 0


class RoundStates:
    """The states of a synchronous job's segments, in two sets chosen by round mod 2.

    (A round that has its memory for itself has one set.)

    A segment's state is its round, its progress (open, sent to the parent, complete, gone on to the
    parent in parts), and the bitmap of its contributors. An open one with an empty bitmap is empty,
    whatever its round.
    """

    OPEN, SENT, COMPLETE, PASSED = range(4)

    SETS = 2
    RECORD = struct.Struct("<IIQ")  # round, how far, bitmap

    def __init__(self, segments: int, sets: int = SETS) -> None:
        self.segments = segments
        self.sets = [Table(self.RECORD, segments) for _ in range(sets)]

    def bits(self) -> int:
        """Return the bitmap of the seats that have a contribution in some segment."""
        return int(np.bitwise_or.reduce([np.bitwise_or.reduce(t.words[:, 1]) for t in self.sets]))

    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """Yield the runs of segments start..stop-1, each with its state and contributor bitmap."""
        slot = round_ % len(self.sets)
        for a, b in self.sets[slot].uniform(start, stop):
            holds, how_far, bitmap = self.sets[slot].get(a)
            run = Run(slot, round_, a, b)
            if not (bitmap or how_far) or round_distance(holds, round_) < 0:
                yield run, Held.NOTHING, 0
            elif holds != round_:
                yield run, Held.GONE, 0
            else:
                yield run, (Held.OPEN, Held.SENT, Held.COMPLETE, Held.PASSED)[how_far], bitmap

    def begun(self) -> Iterator[tuple[Run, int, int]]:
        """Yield the nonempty runs of both sets, each with its progress and bitmap."""
        for slot, states in enumerate(self.sets):
            for start, stop in states.uniform(0, self.segments):
                round_, how_far, bitmap = states.get(start)
                if bitmap or how_far:
                    yield Run(slot, round_, start, stop), how_far, bitmap

    def clear(self) -> None:
        """Empty both sets."""
        for states in self.sets:
            states.clear()
