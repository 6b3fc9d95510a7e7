"""Sorts out segments that do not match the layout of their job."""

from __future__ import annotations

from collections.abc import Iterator

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Stretch
from iswitch.core.format.wire import Shape


def well_formed(shape: Shape, stretch: Stretch, counters: Counters) -> Iterator[Stretch]:
    """Yield the segments that have the length and the indices of a job's vectors; count the rest.

    Args:
        shape: the layout of the vectors.
        stretch: segments of one round.
        counters: counts the malformed segments.
    """
    for piece in stretch.by_size():
        round_, index, rows, size, _ = piece
        n = len(rows)
        first = end = index  # the segments that have this length
        if size == shape.packet_size:
            first, end = 0, shape.full_segments
        elif size == shape.last_size:
            first, end = shape.full_segments, shape.segments
        rows = rows[max(0, first - index) : max(0, end - index)]
        counters["malformed"] += n - len(rows)
        if len(rows):
            yield Stretch(round_, max(index, first), rows, size)


def fitting(shape: Shape, cut: list[Stretch], counters: Counters) -> list[Stretch]:
    """Return the well-formed segments of some stretches; count the others."""
    good: list[Stretch] = []
    for stretch in cut:
        good += (stretch,) if stretch.fits(shape) else well_formed(shape, stretch, counters)
    return good
