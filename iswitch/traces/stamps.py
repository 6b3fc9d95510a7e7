"""Corrects packet times far ahead of those around them, where a clock was set or a bit flipped.

A switch's time never goes back. A single packet stamped ten hours ahead would end every lease, and
all later packets would happen at that time. So such a packet gets the time of the one before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .batch import Ints, PacketBatch

AROUND = 64  # packets before, and packets after, whose median times are compared
JUMP = 1_000_000_000  # ns by which a peak is ahead of both medians


def settled(batches: Iterator[PacketBatch]) -> Iterator[tuple[PacketBatch, int]]:
    """Yield the batches with peaks in their times removed, each with its number of peaks."""
    before = np.zeros(0, np.int64)
    batch = next(batches, None)
    while batch is not None:
        following: PacketBatch | None = None
        after = np.zeros(0, np.int64)
        last = np.append(before[-1:], batch.times[-AROUND:])
        fetched = bool((np.diff(last) > JUMP).any())
        if fetched:  # only the next packets show whether that jump is a peak
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
    """Tell which times are peaks: ahead of the medians of the times before and after them.

    Args:
        before: ns, up to AROUND times before `times`.
        times: ns, [n].
        after: ns, up to AROUND times after `times`.

    Returns:
        bool [n].
    """
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
    """Return each window's median, leaving NaN out, [n]; `lacking` where all are NaN."""
    nobody = np.isnan(windows).all(axis=1, keepdims=True)
    filled = np.where(nobody, float(lacking), windows)
    medians: npt.NDArray[np.float64] = np.nanmedian(filled, axis=1)
    return medians


def cut_down(before: Ints, times: Ints, peaks: npt.NDArray[np.bool_]) -> Ints:
    """Return the times, [n], with each peak replaced by the last time before it that is no peak.

    Args:
        before: ns, times before `times`.
        times: ns, [n].
        peaks: bool [n].
    """
    places = np.where(peaks, -1, np.arange(len(times)))
    last = np.maximum.accumulate(places)
    first = before[-1] if len(before) else times[np.argmin(peaks)]
    found: Ints = np.where(last < 0, first, times[last])
    return found
