"""Finds the records of a file in which every record states its length.

Records of equal length lie at equal distances. One NumPy comparison checks that the next 32, 256,
2048 ... records all state this length. That is no guess, since each such record leads to the next.
Where lengths change from record to record, the records are stepped through one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .batch import Bytes, Ints

FIRST, FACTOR = 32, 8  # records compared at first, and the factor by which that grows
WORTH = 8  # records of the shortest run that was worth the comparison
STEPS = 64  # records to step through after a shorter run
SEARCHES = (1 << 12, 1 << 16, 1 << 20)  # bytes that are searched at once for a sound record


def search_windows(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut start..stop-1 into pieces, small ones first, since matches are nearly always near."""
    for at in start, start + SEARCHES[0]:
        if at < stop:
            yield at, min(SEARCHES[at > start], stop - at)
    for at in range(start + SEARCHES[0] + SEARCHES[1], stop, SEARCHES[2]):
        yield at, min(SEARCHES[2], stop - at)


def run_length(data: Bytes, at: int, stride: int, limit: int, key_at: int, key: int) -> int:
    """Count records at `at`, `at + stride`, ... before `limit` with one 64-bit word in common.

    Args:
        data: the file.
        at: offset of the first record.
        stride: bytes from one record to the next.
        limit: offset at which to stop.
        key_at: offset of the word in a record.
        key: the first record's word, in this machine's byte order.
    """
    most = min((limit - at - 1) // stride + 1, (len(data) - at - key_at - 8) // stride + 1)
    found, look = 1, FIRST
    while found < most:
        n = min(look, most - found)
        words = np.ndarray((n,), np.uint64, data, at + found * stride + key_at, (stride,))
        same = words == key
        if not same.all():
            return found + int(same.argmin())
        found += n
        look *= FACTOR
    return found


class Chain:
    """Collects the offsets of records.

    Args:
        data: the file.
        length: returns the whole length of the record at an offset; None: no valid record is there.
        key_at: offset, in a record, of a 64-bit word that determines its length.
    """

    def __init__(self, data: Bytes, length: Callable[[int], int | None], key_at: int) -> None:
        self._data = data
        self._length = length
        self._key_at = key_at
        self._steps = 0  # to take before a run is looked for again

    def follow(self, at: int, limit: int) -> tuple[Ints, int]:
        """Return the offsets of the records from `at` to `limit`, and the offset after them.

        The latter is below `limit` if no valid record is there.
        """
        pieces: list[Ints] = []
        singles: list[int] = []
        while at < limit:
            length = self._length(at)
            if length is None:
                break
            if self._steps:
                self._steps -= 1
                singles.append(at)
                at += length
                continue
            n = self._run(at, length, limit)
            if n < WORTH:
                self._steps = STEPS
            if singles:
                pieces.append(np.array(singles, np.int64))
                singles.clear()
            pieces.append(np.arange(at, at + n * length, length, dtype=np.int64))
            at += n * length
        if singles:
            pieces.append(np.array(singles, np.int64))
        return (np.concatenate(pieces) if pieces else np.empty(0, np.int64)), at

    def _run(self, at: int, length: int, limit: int) -> int:
        if at + self._key_at + 8 > len(self._data):
            return 1
        place = at + self._key_at
        key = int(self._data[place : place + 8].view(np.uint64)[0])
        n = run_length(self._data, at, length, limit, self._key_at, key)
        while n > 1 and self._length(at + (n - 1) * length) is None:  # the file ends inside it
            n -= 1
        return n
