"""The standings of asynchronous workers, and how a worker that is behind resumes.

A worker is behind if it cannot get the version after its own: it has only started, was away for too
long, or the switch has lost its versions. Then it asks all others where they stand:

- If another worker is further, it takes the state of the furthest.
- If another worker is not behind, and no further, it waits until that worker advances or finds
  itself behind.
- If all are behind, the furthest worker resumes from its own state, at the version that is current
  at the switch; of several, the one with the lowest address. The others wait, then take its state.

Why this is correct: a worker that is behind changes its state only by taking one of a later
version. So if a worker has asked all others, and all were behind and no further than itself, this
still holds, and only the one with the lowest address resumes. A worker that does not answer may be
further, so the others wait for it. A worker whose process has ended (the connection is refused) has
no state that could conflict. A worker that leaves has: so it waits until all that answer have the
next versions at hand, or its state.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from functools import cmp_to_key
from typing import NamedTuple

from iswitch.core.format.wire import VERSIONS_AHEAD, round_distance


class Standing(NamedTuple):
    """The progress of a worker.

    Attributes:
        identity: its address as a number; unique while the process lives.
        version: the version of its state; None: it has only started, so its state has none yet.
        behind: whether it cannot get the next version.
    """

    identity: int
    version: int | None
    behind: bool


class Way(Enum):
    """The choices of a worker that is behind."""

    TAKE = "take the state of another"
    GO_ON = "go on from its own state at the version that is current"
    WAIT = "look again later"


def compare(a: Standing, b: Standing) -> int:
    """Return a positive number if a is further than b, a negative one if b is further.

    Of two workers at one version, the one with the lower identity counts as further.
    """
    if a.version is None or b.version is None:
        further = (a.version is not None) - (b.version is not None)
    else:
        further = round_distance(a.version, b.version)
    return further or b.identity - a.identity


def choose(own: Standing, others: Collection[Standing], all_asked: bool) -> tuple[Way, Standing]:
    """Choose how a worker that is behind resumes; return the way and the worker whose state to use.

    Args:
        own: standing of this worker.
        others: standings of the workers that answered.
        all_asked: whether all other workers that may have a state have answered or are gone.
    """
    furthest = max((own, *others), key=cmp_to_key(compare))
    at = furthest.version
    if at is not None and (own.version is None or round_distance(at, own.version) > 0):
        return Way.TAKE, furthest
    if not all_asked or any(not other.behind for other in others) or furthest != own:
        return Way.WAIT, own
    return Way.GO_ON, own


def is_needed(own: Standing, others: Collection[Standing], newest: int) -> bool:
    """Return whether another worker may lack, once this one has left, what this one has.

    Args:
        own: standing of the worker that would leave.
        others: standings of the workers that answered.
        newest: the newest version that it knows of. Those that are made while it leaves push
            others out of what the switch keeps: hence only half of that counts as at hand.
    """
    return any(
        round_distance(own.version, other.version) > 0
        and (other.behind or round_distance(newest, other.version) > VERSIONS_AHEAD)
        for other in others
        if own.version is not None and other.version is not None
    )
