"""Where the workers of an asynchronous job stand, and how one that is behind goes on.

A worker is behind if it cannot have the version after its own: it has only started, was away for
too long, or the switch has lost what it kept. Then it looks where all others stand:

- If one is further, it takes the state of the furthest.
- If another, no further, is not behind, it waits for that to go on, or to find that it is behind.
- If all are behind, of the furthest the one with the lowest address goes on from its own state with
  the version that is current at the switch. All others are less far, or wait, until they see it.

Why that is sound: who is behind changes its state only by taking one of a later version. So when
one has asked all, and all were behind and no further than it, they are so still, and the one with
the lowest address is the only one of them that goes on. A worker that cannot be asked may be
anywhere, so it is waited for; one whose process is no more (the connection is refused) has no state
to contradict anybody's.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from functools import cmp_to_key
from typing import NamedTuple

from iswitch.core.format.wire import round_distance


class Standing(NamedTuple):
    """Where a worker stands.

    Attributes:
        identity: its address as a number: for as long as the process lives no other has it.
        version: of its state; None: it has only started, its state counts for no version.
        behind: it cannot have the next version.
    """

    identity: int
    version: int | None
    behind: bool


class Way(Enum):
    """What a worker that is behind does."""

    TAKE = "take the state of another"
    GO_ON = "go on from its own state at the version that is current"
    WAIT = "look again later"


def compare(a: Standing, b: Standing) -> int:
    """Positive: a is further than b; in the same version, by the lower identity."""
    if a.version is None or b.version is None:
        further = (a.version is not None) - (b.version is not None)
    else:
        further = round_distance(a.version, b.version)
    return further or b.identity - a.identity


def choose(own: Standing, others: Collection[Standing], all_asked: bool) -> tuple[Way, Standing]:
    """How to go on, and from whose state.

    Args:
        own: this worker, which is behind.
        others: those that have answered.
        all_asked: all that may have a state have answered, or are no more.
    """
    furthest = max((own, *others), key=cmp_to_key(compare))
    at = furthest.version
    if at is not None and (own.version is None or round_distance(at, own.version) > 0):
        return Way.TAKE, furthest
    if not all_asked or any(not other.behind for other in others) or furthest != own:
        return Way.WAIT, own
    return Way.GO_ON, own
