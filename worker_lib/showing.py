"""Read the list of a job's members, which a switch shows page by page."""

from __future__ import annotations

from collections.abc import Callable

from iswitch.core.format.wire import MAX_MEMBERS, Ack, AckJob, Present, Show, Shown


def members(ask: Callable[[Show], Ack]) -> list[Present]:
    """List the contributors to a job: workers by rank, workers without a rank, then switches.

    Args:
        ask: has the switch answer a Show.
    """
    found: dict[tuple[str, int], Present] = {}  # a member that rejoins meanwhile may come twice
    seat = 0
    while seat < MAX_MEMBERS:
        ack = ask(Show(Shown.MEMBERS, seat))
        assert isinstance(ack, AckJob)
        found |= {one[:2]: one for one in ack.members}
        seat = max(ack.rank, seat + 1)
    return sorted(found.values(), key=lambda one: one.rank)
