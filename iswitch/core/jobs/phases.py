"""The phases of a job, of a contributor's rounds, of a window and of an uplink.

Each enum has one table, which names the phases that may follow each phase. Every change goes
through `follow`, which raises on any other step: a defect of the switch, never of a packet.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar


class JobPhase(Enum):
    """The event that a job waits for before its sums can complete.

    A Halt is no phase: it can come in any of them, and holds until the next Reset.
    """

    DORMANT = "has no contributors: it keeps its place in the rounds, and nothing else"
    GATHERING = "fewer workers have come than are expected"
    RUNNING = "sums complete"
    AWAITING_RESET = "the switch above is to say from which round all go on"


class Standing(Enum):
    """The rounds in which a contributor takes part."""

    HELD_BACK = "came back in its first round: its contributions wait until the others have come"
    NEWCOMER = "from its first round on"
    SETTLED = "in every round of the window"


class Named(Enum):
    """The evidence for a job's current round number."""

    NOBODY = "nobody"
    NEWCOMERS = "only members in their first round, behind which others may be by up to two"
    SURE = "a contribution, a Reset, or a member in a later round"


class UplinkPhase(Enum):
    """The state of a switch's membership in a job at the switch above."""

    ABSENT = "nothing: it has left, or was refused"
    JOINING = "its first Join is under way"
    MEMBER = "a member"
    REJOINING = "no member any more, and the next Join is under way"
    LEAVING = "a member whose Leave is under way"


JOB: Mapping[JobPhase, set[JobPhase]] = {
    JobPhase.DORMANT: {JobPhase.GATHERING},
    JobPhase.GATHERING: {JobPhase.RUNNING, JobPhase.AWAITING_RESET, JobPhase.DORMANT},
    JobPhase.RUNNING: {JobPhase.GATHERING, JobPhase.AWAITING_RESET, JobPhase.DORMANT},
    JobPhase.AWAITING_RESET: {JobPhase.GATHERING, JobPhase.RUNNING, JobPhase.DORMANT},
}
STANDING: Mapping[Standing, set[Standing]] = {
    Standing.HELD_BACK: {Standing.NEWCOMER, Standing.SETTLED},
    Standing.NEWCOMER: {Standing.SETTLED},
    Standing.SETTLED: {Standing.NEWCOMER, Standing.HELD_BACK},
}
NAMED: Mapping[Named, set[Named]] = {
    Named.NOBODY: {Named.NEWCOMERS, Named.SURE},
    Named.NEWCOMERS: {Named.SURE},
    Named.SURE: set(),
}
UPLINK: Mapping[UplinkPhase, set[UplinkPhase]] = {
    UplinkPhase.ABSENT: set(),
    UplinkPhase.JOINING: {UplinkPhase.MEMBER, UplinkPhase.ABSENT},
    UplinkPhase.MEMBER: {UplinkPhase.REJOINING, UplinkPhase.LEAVING},
    UplinkPhase.REJOINING: {UplinkPhase.MEMBER, UplinkPhase.LEAVING, UplinkPhase.ABSENT},
    UplinkPhase.LEAVING: {UplinkPhase.ABSENT},
}

Phase = TypeVar("Phase", bound=Enum)


class WrongStep(RuntimeError):
    """Raised when a phase would follow one that it cannot follow."""


def follow(table: Mapping[Phase, set[Phase]], before: Phase, after: Phase) -> Phase:
    """Return the phase `after` if it equals `before` or may follow it.

    Args:
        table: the table of the phases' enum.
        before: the phase that ends.
        after: the phase that begins.

    Raises:
        WrongStep: `after` cannot follow `before`.
    """
    if after is not before and after not in table[before]:
        raise WrongStep(f"{after} cannot follow {before}")
    return after
