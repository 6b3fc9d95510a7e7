"""Says which jobs are plain, so that a kernel can add up for them, and where their sums lie."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Address, Rows
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.phases import JobPhase
from iswitch.core.jobs.resizing import is_level
from iswitch.core.jobs.upward import Upward
from iswitch.core.jobs.window import Window
from iswitch.core.sums.asynchronous import AsynchronousAccelerator
from iswitch.core.sums.owned import OwnedAccelerator
from iswitch.core.sums.partial import PartialAccelerator
from iswitch.core.sums.plane import VersionAccelerator
from iswitch.core.sums.resized import ResizedAccelerator
from iswitch.core.sums.slotted import Positions, SlottedAccelerator
from iswitch.core.sums.synchronous import SynchronousAccelerator
from iswitch.core.sums.turns import TurnAccelerator
from iswitch.core.switch import Switch
from iswitch.ports.kernel.mmsg import address_of

from . import tables as t


class Set(NamedTuple):
    """Where the sums of a round are: a set of an accelerator's."""

    sums: SynchronousAccelerator
    slot: int

    def rows(self, from_above: bool = False) -> Rows:
        """Return the packets, of sums made here or of aggregates of the switch above."""
        rows: Rows = (self.sums.aggregates if from_above else self.sums.rows)[self.slot]
        return rows

    @property
    def laps(self) -> int:
        """Return the address of the laps that its positions hold; 0: all segments have room."""
        return address_of(self.sums.laps[self.slot]) if isinstance(self.sums, Positions) else 0


class Sets(NamedTuple):
    """Where the sums of the rounds under way are.

    Attributes:
        even: for rounds with even numbers.
        odd: for the others.
        begin: rounds may begin in them.
        clears: a round begins with an empty set.
        left: segments after which the round is over, and Python decides who is next; 0: it is not.
    """

    even: Set
    odd: Set
    begin: bool = True
    clears: bool = False
    left: int = 0

    @property
    def sums(self) -> SynchronousAccelerator:
        """Return the accelerator of the even rounds; what it says of seats holds for all."""
        return self.even.sums

    def places(self) -> dict[int, int]:
        """Return where the contributions of each seat lie that are added up in rank order."""
        return {seat: address_of(part) for seat, part in self.sums.in_order()}

    def packets(self, slot: int, start: int, stop: int, from_above: bool = False) -> Rows:
        """Return the packets of segments start..stop-1 in a set."""
        at = start % self.sums.shape.segments
        return (self.odd if slot else self.even).rows(from_above)[at : at + stop - start]

    def columns(self, job: Job, from_above: bool = False) -> dict[int, int]:
        """Return what they are in the row of a job, or in that of its way down."""
        shape, slots = job.sums.shape, self.sums.shape.segments
        wraps = slots < shape.segments  # and is a power of two
        return {
            t.SLOTS: slots,
            t.MASK: slots - 1 if wraps else -1,
            t.SHIFT: slots.bit_length() - 1 if wraps else 63,
            t.ROWS: (rows := address_of(self.even.rows(from_above))),
            t.APART: address_of(self.odd.rows(from_above)) - rows,
            t.STATE_EVEN: address_of(self.even.sums.state[self.even.slot].words),
            t.STATE_ODD: address_of(self.odd.sums.state[self.odd.slot].words),
            t.LAPS_EVEN: self.even.laps,
            t.LAPS_ODD: self.odd.laps,
            t.FINISHED: self.sums.finished,
            t.CLEARS: self.clears,
            t.AHEAD: self.begin,
        }


class Versions(NamedTuple):
    """Where the sums of an asynchronous job are.

    Attributes:
        sums: its accelerator.
        left: there is no round that ends.
        upward: the way of its partial sums, below another switch.
    """

    sums: AsynchronousAccelerator | PartialAccelerator
    left: int = 0
    upward: Upward | None = None

    def places(self) -> dict[int, int]:
        """Return where contributions of each seat lie: nowhere, as none is kept."""
        return {}

    def packets(self, slot: int, start: int, stop: int, from_above: bool = False) -> Rows:
        """Return the packets of segments start..stop-1 in a slot."""
        rows: Rows = self._vectors(from_above)[slot, start:stop]
        return rows

    def _vectors(self, from_above: bool) -> Rows:
        rows: Rows = self.sums.aggregates if from_above else self.sums.rows
        return rows

    def columns(self, job: Job, from_above: bool = False) -> dict[int, int]:  # noqa: ARG002
        """Return what they are in the row of a job, or in that of its way down."""
        rows = self._vectors(from_above)
        return {
            t.SLOTS: rows.shape[1],
            t.MASK: -1,
            t.ROWS: address_of(rows),
            t.APART: rows.strides[0],
            t.STATE_EVEN: address_of(self.sums.state.words),
            t.VERSIONS: len(rows),
        }

    def kept(self) -> npt.NDArray[np.int64]:
        """Return the addresses of what is known of each slot of versions from above."""
        tables = self.sums.kept if isinstance(self.sums, PartialAccelerator) else []
        return np.array([address_of(table.words) for table in tables], np.int64)

    def present(self, job: Job) -> dict[int, int]:
        """Return what is in force at present, as columns of the row of a job."""
        found = {t.THRESHOLD: job.members.threshold_in_force, t.BASE: job.high}
        if isinstance(self.sums, AsynchronousAccelerator):
            return found | {t.LOWEST: self.sums.lowest}
        assert self.sums.number is not None
        return found | {t.NUMBER: self.sums.number}

    def take_up(self, job: Job, columns: t.Table) -> None:
        """Take up what a call has done.

        Args:
            job: the job.
            columns: its row.
        """
        before, high = int(columns[t.BASE]), int(columns[t.HIGH])
        if isinstance(self.sums, PartialAccelerator):
            self.sums.number = int(columns[t.NUMBER])
        elif columns[t.COMPLETED]:
            self.sums.lowest = int(columns[t.LOWEST])
        if columns[t.COMPLETED] or columns[t.TOLD_AT] or columns[t.ANSWERED_AT]:
            self.sums.version = high
            if before != job.high:  # as they came, one after the other
                job.window.name(before, False)
            job.window.name(high, False)


def sets_of(switch: Switch, job: Job) -> Sets | Versions | None:
    """Return where a plain job's sums are; None: no kernel can add up there at present."""
    sums = job.accelerator
    if type(sums) is AsynchronousAccelerator:
        return Versions(sums)
    if type(sums) is PartialAccelerator:
        hierarchy = switch.control.hierarchy
        upward = None if hierarchy is None else hierarchy.upward_of(job)
        goes = upward is not None and sums.number is not None and not sums.cut_off
        return Versions(sums, upward=upward) if goes and fed(switch, job) else None
    if type(sums) in (SynchronousAccelerator, OwnedAccelerator):
        assert isinstance(sums, SynchronousAccelerator)
        return Sets(Set(sums, 0), Set(sums, 1))
    if type(sums) is SlottedAccelerator:
        return Sets(Set(sums.positions, 0), Set(sums.positions, 1))
    if isinstance(sums, ResizedAccelerator) and is_level(switch.record, job):
        steady = sums.steady(job.high)
        if steady is not None:
            even, odd = (Set(one.positions, 0) for one in steady)
            return Sets(even, odd, clears=True)
    if isinstance(sums, TurnAccelerator):
        flying = sums.in_flight(job.high)
        if flying is not None:
            return Sets(Set(flying, 0), Set(flying, 0), begin=False, left=flying.left)
    return None


def receivers(job: Job) -> tuple[Address, ...]:
    """Return who gets the sums that the members of a job make: these, or the parent."""
    return members_of(job) if job.parent is None else (job.parent,)


def members_of(job: Job) -> tuple[Address, ...]:
    """Return who gets the aggregates of a job."""
    return job.members.contributor_addresses()


def fed(switch: Switch, job: Job) -> bool:
    """Return whether aggregates of a job come from the switch above."""
    hierarchy = switch.control.hierarchy
    if hierarchy is None or job.parent is None:
        return False
    return hierarchy.fed(job.parent.line) is job


def is_plain(job: Job) -> bool:
    """Return whether contributions to this and the next round need no rule but the plain ones."""
    members = job.members
    if job.phase is not JobPhase.RUNNING or job.halted:
        return False
    if job.assemblies:  # contributions may come in parts
        return False
    contributors = members.contributors()
    if isinstance(job.accelerator, VersionAccelerator):
        known = job.accelerator.version == job.high and (job.parent is None or job.window.is_sure)
        return bool(contributors) and known
    if not _is_settled(job.window):
        return False
    if not contributors or (not job.threshold and len(contributors) < members.least):
        return False
    return all(m.first_round is None and not m.held_back for m in contributors)


def _is_settled(window: Window) -> bool:
    return window.is_sure and window.contributed and window.lowest is None
