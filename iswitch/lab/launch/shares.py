"""Tells which part of the contributions switches added that pass others on to a fallback."""

from __future__ import annotations

from collections.abc import Mapping

from iswitch.core.format.counters import share_added
from topologies.description import FALLBACK

Counted = Mapping[str, Mapping[str, int]]  # counters of each switch, by name


def shares(counters: Counted) -> dict[str, float]:
    """Return the part that each switch below a fallback added itself, 0 to 1; {}: none is."""
    below = [name for name in counters if name != FALLBACK]
    names = [name for name in below if counters[name].get("passed_on")]
    if not names and FALLBACK in counters:  # the root needed none
        names = below[:1]
    return {name: share_added(counters[name]) for name in names}


def told(counters: Counted) -> str:
    """Say in words what `shares` returns; "": there are none."""
    found = shares(counters)
    words = ", ".join(f"{share:.1%} in {name}" for name, share in found.items())
    return words + ", the rest in the fallback" * any(share < 1 for share in found.values())
