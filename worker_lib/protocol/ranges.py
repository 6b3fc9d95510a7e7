"""Ranges of segments, as (start, stop)."""

from __future__ import annotations

from itertools import pairwise

from iswitch.core.format.packets import Indices, index_ranges


def ranges(indices: Indices) -> list[tuple[int, int]]:
    """Convert ascending segments to ranges (start, stop)."""
    return [(int(indices[a]), int(indices[b - 1]) + 1) for a, b in index_ranges(indices, 1)]


def bridged(ranges: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Join ascending ranges over the smallest gaps until at most `most` are left."""
    if len(ranges) <= most:
        return ranges
    gaps = [after - stop for (_, stop), (after, _) in pairwise(ranges)]
    wide = sorted(range(len(gaps)), key=gaps.__getitem__)[len(gaps) + 1 - most :]
    firsts = [0, *(i + 1 for i in sorted(wide))]
    return [(ranges[a][0], ranges[b - 1][1]) for a, b in pairwise([*firsts, len(ranges)])]
