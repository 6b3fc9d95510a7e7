"""Times of packets that lie far ahead of those around them: a clock was set, or a bit was flipped.

A switch's time never falls. A single packet stamped ten hours ahead would end every lease, and
have all that follows happen at that moment; so it gets the time of the packet before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .batch import Ints, PacketBatch

AROUND = 64  # packets before and after, whose medians say what time it is
JUMP = 1_000_000_000  # ns that a time has to be ahead of both


def settled(batches: Iterator[PacketBatch]) -> Iterator[tuple[PacketBatch, int]]:
    """Batches whose times have no such peaks, and how many each had."""
    before = np.zeros(0, np.int64)
    batch = next(batches, None)
    while batch is not None:
        following: PacketBatch | None = None
        after = np.zeros(0, np.int64)
        last = np.append(before[-1:], batch.times[-AROUND:])
        fetched = bool((np.diff(last) > JUMP).any())
        if fetched:  # whether that is a peak the next ones tell
            following = next(batches, None)
            after = after if following is None else following.times[:AROUND]
        falls = np.diff(np.concatenate((batch.times, after[:1]))) < -JUMP
        count = 0
        if falls.any():
            peaks = find_peaks(before, batch.times, after)
            count = int(peaks.sum())
            batch = batch._replace(times=cut_down(before, batch.times, peaks))
        before = np.concatenate((before, batch.times))[-AROUND:]
        yield batch, count
        batch = following if fetched else next(batches, None)


def find_peaks(before: Ints, times: Ints, after: Ints) -> npt.NDArray[np.bool_]:
    """Tell which times are ahead of the median before them and of that behind them."""
    n = len(times)
    low, high = np.iinfo(np.int64).min // 2, np.iinfo(np.int64).max // 2
    row = np.concatenate((before[-AROUND:], times, after[:AROUND])).astype(np.float64)
    row = np.concatenate((np.full(AROUND, np.nan), row, np.full(AROUND, np.nan)))
    windows = np.lib.stride_tricks.sliding_window_view(row, AROUND)
    first = AROUND + min(len(before), AROUND)
    past = _median(windows[first - AROUND :][:n], low)
    future = _median(windows[first + 1 :][:n], high)
    found: npt.NDArray[np.bool_] = (times > past + JUMP) & (times > future + JUMP)
    return found


def _median(windows: npt.NDArray[np.float64], lacking: int) -> npt.NDArray[np.float64]:
    """Of each window, without what is not there; `lacking` where there is nothing."""
    nobody = np.isnan(windows).all(axis=1, keepdims=True)
    filled = np.where(nobody, float(lacking), windows)
    medians: npt.NDArray[np.float64] = np.nanmedian(filled, axis=1)
    return medians


def cut_down(before: Ints, times: Ints, peaks: npt.NDArray[np.bool_]) -> Ints:
    """Give each peak the time of the last packet before it that is none."""
    places = np.where(peaks, -1, np.arange(len(times)))
    last = np.maximum.accumulate(places)
    first = before[-1] if len(before) else times[np.argmin(peaks)]
    found: Ints = np.where(last < 0, first, times[last])
    return found
