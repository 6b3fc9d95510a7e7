"""The terms on which a worker is a member of a job: one value for workers, worlds and tests."""

from __future__ import annotations

from dataclasses import dataclass

from iswitch.core.format.packets import MAX_SEGMENTS, Address
from iswitch.core.format.wire import (
    FLAG_PARTIAL,
    FLAG_REPRODUCIBLE,
    FLAG_WHOLE,
    HEARTBEAT,
    NO_RANK,
    Join,
    Shape,
)

from .window import CEILING, TOGETHER


@dataclass(frozen=True)
class Terms:
    """The terms on which the members of any job agree.

    Attributes:
        switch: address to which packets go.
        job: the job's number.
        shape: layout of the vectors.
        expected: the number of workers that the job is known to have; 0: any number.
        rank: the rank to ask for; NO_RANK: any.
        heartbeat: seconds between heartbeats.
        key: key of a keyed job.
        ceiling: most bytes that this worker may have under way.
        room: most bytes that all workers of the job may have under way together, unless the switch
            tells how many its socket holds.
        most: packets that a super-datagram may hold on the way to the switch.
        rounds: that this worker is going to do; 0: it does not know.
        priority: to ask for the job, 0 to 7.
    """

    switch: Address
    job: int
    shape: Shape
    expected: int = 0
    rank: int = NO_RANK
    heartbeat: float = HEARTBEAT
    key: bytes | None = None
    ceiling: int = CEILING
    room: int = TOGETHER
    most: int = MAX_SEGMENTS
    rounds: int = 0
    priority: int = 0

    @property
    def flags(self) -> int:
        """Return the flags of every Join."""
        return 0

    @property
    def begins_at(self) -> int:
        """Return the round that the first Join of a process names; 0: none."""
        return 0

    @property
    def may_have_slots(self) -> bool:
        """Return whether the job's vectors can go through fewer slots than segments."""
        return Join.for_shape(self.shape, flags=self.flags).may_have_slots()


@dataclass(frozen=True)
class RoundTerms(Terms):
    """The terms of a synchronous job.

    Attributes:
        whole: ask that no sum hold fewer than `expected` contributions.
        reproducible: ask for sums in rank order.
        partial: the program says by `skip_to` which round a vector belongs to, and may leave rounds
            out.
        first_round: the first round that the program names, if it is `partial`.
        restart_safe: keep the last contribution until the next round is under way, so that it can
            be sent again to a switch that lost its state (one more copy of the vector).
        resends: send again as data what seems to be lost; if not, the worker only asks for Help, as
            the paper's does.
    """

    whole: bool = False
    reproducible: bool = False
    partial: bool = False
    first_round: int = 0
    restart_safe: bool = True
    resends: bool = True

    @property
    def flags(self) -> int:
        """Return the flags of every Join."""
        flags = FLAG_REPRODUCIBLE * self.reproducible | FLAG_WHOLE * self.whole
        return flags | FLAG_PARTIAL * self.partial

    @property
    def begins_at(self) -> int:
        """Return the round that the first Join of a process names; 0: none."""
        return self.first_round


@dataclass(frozen=True)
class VersionTerms(Terms):
    """The terms of an asynchronous job.

    Attributes:
        threshold: H to set after every Join; 0: leave it as it is at the switch.
        watch: for every version, a `Told` event reports the sums of the elements from this one on;
            None: no such events.
    """

    threshold: int = 0
    watch: int | None = None
