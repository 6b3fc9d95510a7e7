"""A `Switch` that reports the packets it receives and the segments it completes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.packets import Address, Burst, Outgoing, Stretch
from iswitch.core.format.wire import (
    NO_RANK,
    RANKS,
    SEG_SIZE,
    Ack,
    Action,
    Control,
    MemberType,
    Mode,
    Segments,
    Shape,
    Who,
)
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member
from iswitch.core.sums.runs import Run

from .batch import Ints
from .passed import PassingSwitch
from .rounds import RoundsSeen, VersionsSeen
from .survey import parse

Floats = npt.NDArray[np.float64]
TAKEN = (
    "accumulated",
    "passed_on",
    "merged",
    "duplicate",
    "late",
)  # what shows that contributions were looked at


@dataclass
class Seen:
    """A member, as it was in the trace."""

    address: Address
    rank: int  # of a worker; for a switch below, its place among the members
    joined: float
    is_switch: bool = False
    packets: int = 0  # of data
    actions: Counter[str] = field(default_factory=Counter)


@dataclass
class JobSeen:
    """A job, as it was in the trace."""

    number: int
    shape: Shape
    rounds: RoundsSeen
    members: dict[Address, Seen] = field(default_factory=dict)
    most: int = 0  # members at once
    names: Mapping[str, str] = field(default_factory=dict)  # of switches, by address

    def called(self, rank: int) -> str:
        """Name a member: `rank 3`, or a switch below by its name, `child 3` if that is unknown."""
        for member in self.members.values():
            if member.is_switch and member.rank == rank:
                return self.names.get(member.address.host, f"child {rank}")
        return f"rank {rank}"


class Watch:
    """Records the reports of an observed switch.

    Args:
        detailed: (job, round) of the rounds whose every event is kept.
        names: names of switches by address.
    """

    def __init__(
        self,
        detailed: Collection[tuple[int, int]] = (),
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.names = names
        self.jobs: dict[int, JobSeen] = {}
        self.span = (0.0, 0.0)  # of the packets that are being handled
        self.window: int | None = None  # of those that are handled in another order
        self.came: tuple[Ints, Floats] | None = None  # their segments, ascending, and when
        self.actions: Counter[str] = Counter()  # to the switch
        self.answers: Counter[str] = Counter()  # from the switch that was captured
        self.ranks: dict[tuple[int, Address], int] = {}  # as that switch told them
        self.detailed = detailed

    def when(self, runs: Collection[Run]) -> float:
        """Return the time in seconds at which the last packet that completed these runs came."""
        if self.came is None:
            return self.span[1]
        indices, times = self.came
        last = max(run.stop for run in runs)
        return float(times[max(0, int(np.searchsorted(indices, last)) - 1)])

    def job(self, number: int, shape: Shape) -> JobSeen:
        """Return the record of a job; begin it if there is none."""
        found = self.jobs.get(number)
        if found is None:
            detailed = {round_ for job, round_ in self.detailed if job == number}
            asynchronous = shape.mode is Mode.ASYNCHRONOUS
            rounds = VersionsSeen() if asynchronous else RoundsSeen(detailed)
            found = self.jobs[number] = JobSeen(number, shape, rounds, names=self.names)
        return found

    def member(self, job: JobSeen, address: Address, rank: int, is_switch: bool = False) -> Seen:
        """Return the record of a member, with its rank updated; begin it if there is none.

        Args:
            job: the record of its job.
            address: its address.
            rank: its rank, or its place among the members.
            is_switch: whether it is a switch below.
        """
        found = job.members.get(address)
        if found is None:
            found = job.members[address] = Seen(address, rank, self.span[0], is_switch)
            job.most = max(job.most, len(job.members))
        found.rank = rank
        found.joined = min(found.joined, self.span[0])  # layers are not in the order of time
        return found

    def joined(self, job: JobSeen, member: Member) -> Seen:
        """Return the record of a member of the replaying switch; begin it if there is none."""
        is_switch = member.type is MemberType.SWITCH
        return self.member(job, member.address, self.rank(job.number, member), is_switch)

    def spoke(self, payload: bytes) -> Control | None:
        """Count a control packet to the switch, and return it; None: it is malformed."""
        return _counted(payload, self.actions)

    def answered(self, payload: bytes, peer: Address) -> Control | None:
        """Count a control packet to a member, note the rank it tells, and return the packet.

        None: it is malformed.
        """
        packet = _counted(payload, self.answers)
        ack = packet.value if packet else None
        if packet and isinstance(ack, Ack) and ack.action == Action.JOIN and ack.rank < RANKS:
            self.ranks[packet.job, peer] = ack.rank
        return packet

    def rank(self, job: int, member: Member) -> int:
        """Return a member's rank: in the capture if known, else here; without a rank its seat."""
        told = self.ranks.get((job, member.address), member.rank)
        return member.seat if told == NO_RANK else told

    def close(self) -> None:
        """End the records of all jobs."""
        for job in self.jobs.values():
            job.rounds.close()


@dataclass
class ObservedJob(Job):
    """A job that reports completed segments to a `Watch`."""

    switch: ObservedSwitch | None = None

    def deliver(self, completed: list[Run]) -> list[Outgoing]:
        """Report completed runs, then send them to their receivers."""
        if completed and self.shape is not None and self.switch is not None:
            watch = self.switch.watch
            rounds = watch.job(self.number, self.shape).rounds
            by_round: dict[int, list[Run]] = {}
            for run in completed:
                by_round.setdefault(run.round, []).append(run)
            for number, runs in by_round.items():
                rounds.completed(number, runs, watch.when(runs))
        return super().deliver(completed)

    def take(self, stretch: Stretch) -> list[Outgoing]:
        """Broadcast aggregates from the parent, and report the arrival time of new ones."""
        sends = super().take(stretch)
        if sends and self.shape is not None and self.switch is not None:
            watch = self.switch.watch
            watch.job(self.number, self.shape).rounds.returned(stretch.round, watch.span[1])
        return sends


class ObservedSwitch(PassingSwitch):
    """A switch that reports to a `Watch`."""

    watch: Watch

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.record.make_job = partial(ObservedJob, switch=self)

    def receive(self, burst: Burst, now: float) -> list[Outgoing]:
        """Handle packets as a switch does, and report them to the watch."""
        kind = classify(burst.tos)
        if kind is Traffic.DATA:
            return self._observe(burst, now)
        sends = super().receive(burst, now)
        if kind is Traffic.CONTROL:
            self._note_control(burst)
        return sends

    def _observe(self, burst: Burst, now: float) -> list[Outgoing]:
        found = self.record.by_source.get(burst.peer)
        counters = self.counters
        if found is None or found[0].shape is None or burst.rows.shape[1] < SEG_SIZE:
            return super().receive(burst, now)
        job, member = found
        assert job.shape is not None
        before = [counters[name] for name in TAKEN]
        heads = np.ascontiguousarray(burst.rows[:, :SEG_SIZE]).view(">u4").astype(np.int64)
        seen = self.watch.job(job.number, job.shape)
        who = self.watch.joined(seen, member)
        who.packets += len(heads)
        last = job.shape.segments - 1
        sends = super().receive(burst, now)
        *taken, duplicates, late = (
            counters[name] - was for name, was in zip(TAKEN, before, strict=True)
        )
        if any(taken) or duplicates or late:
            watch, indices = self.watch, np.minimum(heads[:, 1], last)
            share = seen.rounds.contributed(
                who.rank, int(heads[0, 0]), indices, watch.span, watch.window
            )
            share.duplicates += duplicates
            share.late += late
        return sends

    def _note_control(self, burst: Burst) -> None:
        for i in range(len(burst.rows)):
            payload = burst.rows[i, : burst.tail if i == len(burst.rows) - 1 else None].tobytes()
            packet = self.watch.spoke(payload)
            job = self.jobs.get(packet.job) if packet else None
            member = job.members.by_address.get(burst.peer) if job else None
            if packet is None or job is None or member is None or job.shape is None:
                continue
            seen = self.watch.job(job.number, job.shape)
            self.watch.joined(seen, member).actions[packet.action.name] += 1
            if packet.action is Action.HELP and isinstance(packet.value, Segments | Who):
                seen.rounds.helped(packet.value.round)


def _counted(payload: bytes, counts: Counter[str]) -> Control | None:
    parsed = parse(payload)
    packet = parsed[0] if parsed else None
    counts[packet.action.name if packet else "UNKNOWN"] += 1
    return packet


def describe(shape: Shape) -> dict[str, Any]:
    """Return a job's layout as names and numbers, for reports."""
    return {
        "dtype": shape.dtype.label,
        "op": shape.op.label,
        "mode": Mode(shape.mode).name.lower(),
        "segments": shape.segments,
        "elements_per_segment": shape.elements,
        "numel": shape.numel,
    }
