"""Times at which something is due, in seconds of any clock; None: nothing is."""

from __future__ import annotations


def earlier(one: float | None, other: float | None) -> float | None:
    """Return the earlier of two times; None if both are None."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
