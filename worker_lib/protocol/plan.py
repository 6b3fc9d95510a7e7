"""Numbers the segments that a rank gives and gets in a round of owned segments.

- **Places**, in the order of sending, of what it gives: a chunk of every block in turn, that of its
  own block last, and at the very end the closing segment. Other ranks begin with other blocks, so
  that they do not all send to one receiver at a time. An aggregate of its own block shows that the
  switch has taken everything before.
- **Positions**, ascending, of what it gets; the last is the closing segment.

docs/protocol.md, "Owned segments", says whose segments go to whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.division import Division
from iswitch.core.format.packets import Indices, Stretch
from iswitch.core.format.wire import Mode, Shape, Vector


class Pieces(NamedTuple):
    """Which elements of several blocks each of some segments holds.

    Attributes:
        blocks: the block of each, (n,).
        within: the first byte of its elements in that block, and their bytes, (n, 2).
    """

    blocks: Indices
    within: Indices

    def placed(self, begins: Indices) -> Indices:
        """Return where the elements of each lie, and their bytes, (n, 2).

        Args:
            begins: where each block begins, in bytes.
        """
        found = self.within.copy()
        found[:, 0] += begins[self.blocks]
        return found


class Plan:
    """The segments that a rank gives and gets in rounds of one layout.

    Args:
        shape: layout of the job's vectors.
        rank: the rank.
        gives: elements that it gives, of each block that it may give.
        gets: elements that it gets, of each block that it may get.
        chunk: consecutive segments of a block that are sent in turn.
        memory: room for all elements that a rank can get.

    Attributes:
        sizes: elements of each block that it gives, and that it gets.
        given: the segment at each place.
        positions: the position of what is sent from each place; -1: this rank does not get it.
        gets: the segment at each position.
        places: the place from which what comes to each position was sent; -1: others give it.
        shape: layout of what it gets.
        buffer: holds what has come, by position.
        sources: what is sent from each place but the last, as elements of the blocks given.
        targets: likewise what comes to each position but the last, as those of the blocks got.
        answers: the positions of what this rank both gives and gets, by place.
        tells: the place behind the last of these among the first n, by n, (places + 1,).
    """

    def __init__(
        self,
        shape: Shape,
        rank: int,
        gives: Sequence[int],
        gets: Sequence[int],
        chunk: int,
        memory: Vector,
    ) -> None:
        self.sizes = tuple(gives), tuple(gets)
        division = Division(shape)
        first_given, first_got = {
            Mode.REDUCE_SCATTER: (0, rank),
            Mode.ALL_GATHER: (rank, 0),
            Mode.ALL_TO_ALL: (rank * division.owners, rank),
        }[shape.mode]
        ours = first_given + np.arange(len(gives))
        block, index = _filled(shape, gives)
        turn = (ours % division.owners - rank - 1) % division.owners
        order = np.lexsort((index, turn[block], index // chunk))
        ascending = ours[block] * division.per_block + index
        closing = division.closing
        self.given: Indices = np.append(ascending[order], closing)
        self._ascending: Indices = np.append(ascending, closing)
        self._place: Indices = np.full(len(self.given), len(order))
        self._place[order] = np.arange(len(order))
        self.sources = _pieces(shape, gives, block[order], index[order])
        self.sent_from = np.split(self._place[:-1], np.cumsum(_segments(shape, gives))[:-1])

        apart = division.owners if shape.mode is Mode.ALL_TO_ALL else 1
        block, index = _filled(shape, gets)
        segments = (first_got + apart * block) * division.per_block + index
        self.gets: Indices = np.append(segments, closing)
        self.targets = _pieces(shape, gets, block, index)
        self.shape = Shape(
            shape.dtype, shape.op, shape.mode, shape.elements, shape.last, len(self.gets)
        )
        self.is_first = np.append(index == 0, True)
        self._starts = np.flatnonzero(self.is_first[:-1])
        self._block = np.cumsum(self.is_first[:-1]) - 1
        found = np.searchsorted(self.gets, self.given)
        found[found == len(self.gets)] = 0
        self.positions: Indices = np.where(self.gets[found] == self.given, found, -1)
        self.places: Indices = np.full(len(self.gets), -1)
        both = np.flatnonzero(self.positions >= 0)
        self.places[self.positions[both]] = both
        self.answers: Indices = self.positions[both]
        self.tells: Indices = np.zeros(len(self.given) + 1, np.int64)
        self.tells[both + 1] = both + 1
        self.tells = np.maximum.accumulate(self.tells)
        self.buffer: Vector = memory[: self.shape.numel]

    def places_of(self, start: int, stop: int) -> Indices:
        """Return the places of segments start..stop-1, as far as they are given."""
        first, last = np.searchsorted(self._ascending, (start, stop))
        return self._place[first:last]

    def received(self, stretch: Stretch) -> Stretch | None:
        """Return those of some segments that this rank gets, by position; None: there are none."""
        gets, n = self.gets, len(stretch.rows)
        at = int(np.searchsorted(gets, stretch.start))
        in_a_row = stretch.indices is None and at + n <= len(gets) and gets[at] == stretch.start
        if in_a_row and gets[at + n - 1] == stretch.stop - 1:
            return stretch._replace(start=at)
        segments = stretch.indices
        if segments is None:
            segments = np.arange(stretch.start, stretch.stop)
        found = np.searchsorted(gets, segments)
        found[found == len(gets)] = 0
        wanted = gets[found] == segments
        found = found[wanted]
        if not len(found):
            return None
        first, last = int(found[0]), int(found[-1])
        rows = stretch.rows if wanted.all() else stretch.rows[wanted]
        in_a_row = last - first == len(found) - 1
        return Stretch(stretch.round, first, rows, stretch.tail, None if in_a_row else found)

    def overtaken(self, has: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Return which positions have not come, but later ones of their block or the closing one.

        Args:
            has: 1 at positions that have come.
        """
        missing: npt.NDArray[np.bool_] = has == 0
        if not missing[-1] or not len(self._starts):
            return missing
        index = np.where(missing[:-1], -1, np.arange(len(self._block)))
        last = np.maximum.reduceat(index, self._starts)
        missing[:-1] &= np.arange(len(self._block)) < last[self._block]
        missing[-1] = False
        return missing


def _segments(shape: Shape, elements: Sequence[int]) -> Indices:
    """Return how many segments hold some elements of each block."""
    return -(-np.asarray(elements, np.int64) // shape.elements)


def _filled(shape: Shape, elements: Sequence[int]) -> tuple[Indices, Indices]:
    """Return block and index in it of every segment with elements, in ascending order."""
    used = _segments(shape, elements)
    block = np.repeat(np.arange(len(used)), used)
    return block, np.arange(len(block)) - np.repeat(np.cumsum(used) - used, used)


def _pieces(shape: Shape, elements: Sequence[int], block: Indices, index: Indices) -> Pieces:
    """Return which elements some segments hold, which are given by block and index in it."""
    first = index * shape.elements
    count = np.minimum(np.asarray(elements, np.int64)[block] - first, shape.elements)
    return Pieces(block, np.stack((first, count), axis=1) * shape.dtype.itemsize)
