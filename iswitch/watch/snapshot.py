"""Builds the snapshot of a switch in small pieces, so that no packet waits for it.

docs/watch.md describes the fields, and `schema.json` says them to programs. Everything that counts
only grows; a reader gets rates as differences (`change.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from iswitch import __version__
from iswitch.core.format.counters import COUNTERS, DROPS
from iswitch.core.format.histogram import BOUNDS
from iswitch.core.format.wire import MAX_MEMBERS, RANKS, MemberType, Shape
from iswitch.core.jobs.holding import Holding, holding
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member
from iswitch.core.jobs.policy import Policy
from iswitch.core.jobs.record import Record
from iswitch.core.sums.numpy_plane import IN_ROUNDS
from iswitch.core.sums.runs import Held

from .filling import Filling

VERSION = 4
AT_ONCE = 16  # members in a piece
QUEUED = 16  # waiting jobs that are told one by one
SEGMENTS = 1024  # whose states are looked at in a piece

Fields = dict[str, Any]
NameOf = Callable[[Member], str]


@dataclass(frozen=True)
class Subject:
    """A switch that is watched.

    Attributes:
        name: its name in the network; "": it has none.
        listening: HOST:PORT at which it serves.
        record: its jobs.
        started: when it began to serve, in seconds.
        links: tells of its links: name, and counters.
    """

    name: str
    listening: str
    record: Record
    started: float
    links: Callable[[], list[Fields]]


@dataclass
class Missing:
    """Counts the contributions that the present round of a job lacks.

    Attributes:
        open: segments that lack a contribution.
        by_seat: the number of missing contributions, by seat.
        filling: what has come, by parts of the vector; None: nobody asks, or it is not known.
    """

    open: int = 0
    by_seat: dict[int, int] = field(default_factory=dict)
    filling: Filling | None = None


class Building:
    """A snapshot under way; `pieces` advances it.

    Args:
        subject: the switch.
        name_of: names a member.
        now: the time, by the clock of the switch.
        time: the time, in seconds since 1970.
        parts: whether to tell what has come by parts of the vector, and recent rounds one by one.
    """

    def __init__(
        self, subject: Subject, name_of: NameOf, now: float, time: float, parts: bool = False
    ) -> None:
        self.subject = subject
        self.name_of = name_of
        self.now = now
        self.time = time
        self.parts = parts
        self._jobs: list[str] = []
        self._head: Fields = {}
        self._needs: dict[int, Fields] = {}  # by link: what its members needed again

    def pieces(self) -> Iterator[None]:
        """Build; pause after each piece of at most AT_ONCE members or SEGMENTS segments."""
        self._head = head(self.subject, self.now, self.time)
        for number in list(self.subject.record.jobs):
            job = self.subject.record.jobs.get(number)
            if job is not None:
                yield from self._job(job)

    def _job(self, job: Job) -> Iterator[None]:
        """Build a job; its fields are of one moment, its members of at most a few turns."""
        missing: Missing | None = None
        for found in missing_of(job, self.parts):
            missing = found
            yield
        told = job_fields(self.subject.record, job, missing, self.now)
        told["rounds"]["recent"] = recent(job) if self.parts else None
        members: list[Fields] = []
        everybody = iter(list(job.members))
        while some := list(islice(everybody, AT_ONCE)):
            members += (self._member(one, missing) for one in some)
            yield
        members.sort(key=lambda one: (one["rank"] is None, one["rank"], one["seat"]))
        self._jobs.append(json.dumps({**told, "members": members}))

    def _member(self, member: Member, missing: Missing | None) -> Fields:
        told = member_fields(self.subject.record, member, self.now)
        told["name"] = self.name_of(member)
        told["missing"] = None if missing is None else missing.by_seat.get(member.seat, 0)
        filling = missing and missing.filling
        told["came"] = filling.of(member.seat) if filling else None
        needs = self._needs.setdefault(member.address.ingress, dict.fromkeys(NEEDS, 0))
        for name in NEEDS:
            needs[name] += told[name]
        return told

    def text(self) -> str:
        """Return the snapshot as a line of JSON; called once `pieces` has ended."""
        links = [
            {**link, **self._needs.get(at, dict.fromkeys(NEEDS, 0))}
            for at, link in enumerate(self.subject.links())
        ]
        rest = json.dumps({**self._head, "links": links})
        return f'{rest[:-1]}, "jobs": [{", ".join(self._jobs)}]}}\n'


NEEDS = ("late", "resent", "asked")  # of a member, also summed over those behind a link


def head(subject: Subject, now: float, time: float) -> Fields:
    """Describe the switch itself, all of one moment."""
    record = subject.record
    counters = record.counters.copy()
    return {
        "version": VERSION,
        "iswitch": __version__,
        "name": subject.name,
        "listening": subject.listening,
        "parent": None if record.parent is None else str(record.parent),
        "time": time,
        "clock": now,
        "uptime": now - subject.started,
        "memory": {"limit": record.limits.memory, "reserved": record.reserved},
        "policy": record.policy.name,
        "slots": shared_slots(record),
        "drained": record.drained is not None,
        **queue_fields(record.policy),
        "counters": {name: counters[name] for name in COUNTERS},
        "drops": {name: counters[name] for name in DROPS},
    }


def shared_slots(record: Record) -> Fields | None:
    """Describe the slots that all jobs share; None: they have their own memory."""
    pool = record.pool
    return None if pool is None else {"taken": pool.slots - pool.free, "limit": pool.slots}


def queue_fields(policy: Policy) -> Fields:
    """Describe the jobs that wait for memory, the first QUEUED of them one by one."""
    queue = policy.queue()
    first = [
        {"job": job, "needs": policy.waits_for(job), "priority": policy.priority_of(job)}
        for job in queue[:QUEUED]
    ]
    return {"waiting": len(queue), "queue": first}


def job_fields(record: Record, job: Job, missing: Missing | None, now: float) -> Fields:
    """Describe a job, without its members."""
    shape, pace, has = job.shape, job.rounds.pace, holding(record, job)
    layout: Fields | None = None
    if shape is not None:
        layout = {
            "elements": shape.numel,
            "dtype": shape.dtype.name.lower(),
            "op": shape.op.name.lower(),
            "mode": shape.mode.name.lower(),
            "segments": shape.segments,
        }
    return {
        "job": job.number,
        "state": "halted" if job.halted else job.phase.name.lower(),
        "keyed": record.is_keyed(job.number),
        "round": job.high,
        "threshold": job.members.threshold_in_force,
        "threshold_set": bool(job.threshold),
        "workers": record.workers(job, now),
        "expected": job.members.expected,
        "priority": job.priority,
        "reserved": has.reserved,
        "lane": has.standing.lane or None,
        "turn": has.standing.turn.name.lower() if has.standing.lane else None,
        "added": has.added,
        "passed_on": has.passed_on,
        "seats": {"taken": len(job.members), "limit": MAX_MEMBERS},
        "slots": None if missing is None or shape is None else slots(missing, has, shape, record),
        "shape": layout,
        "parts": missing.filling.fields() if missing and missing.filling else None,
        "rounds": {
            "measured": sum(pace.counts),
            "seconds": pace.seconds,
            "longest": pace.longest,
            "bounds": list(BOUNDS),
            "counts": list(pace.counts),
        },
    }


def slots(missing: Missing, has: Holding, shape: Shape, record: Record) -> Fields:
    """Describe the buffers of a synchronous job: two for each segment, or for each slot.

    Where jobs share slots, those that the job has, of all.
    """
    if has.added is not None and record.pool is not None:
        return {"open": has.slots, "limit": record.pool.slots}
    of_round = has.slots or shape.segments
    return {"open": min(missing.open, of_round), "limit": 2 * of_round}


def member_fields(record: Record, member: Member, now: float) -> Fields:
    """Describe a member."""
    host, port = member.name
    tally, silent = member.tally, max(0.0, now - member.last_seen)
    return {
        "type": member.type.name.lower(),
        "rank": member.rank if member.rank < RANKS else None,
        "seat": member.seat,
        "host": host,
        "port": port,
        "link": member.address.ingress,
        "workers": member.workers if member.type is not MemberType.CONTROLLER else 0,
        "silent": silent,
        "lease": max(0.0, record.limits.lease - silent),
        "packets": tally.packets,
        "bytes": tally.nbytes,
        "late": tally.late,
        "resent": tally.resent,
        "asked": tally.asked,
        "rounds": tally.rounds,
        "behind": tally.behind,
        "last": tally.last,
    }


def recent(job: Job) -> list[Fields]:
    """Describe the newest rounds, the oldest first."""
    seat_of = {id(member.tally): member.seat for member in job.members}
    return [
        {
            "round": one.round,
            "ended": one.ended,
            "seconds": one.seconds,
            "last": seat_of.get(id(one.last)),
        }
        for one in job.rounds.pace.recent
    ]


def missing_of(job: Job, parts: bool = False) -> Iterator[Missing | None]:
    """Count what the present round lacks, SEGMENTS at a time; the last item is the whole.

    If the round ends meanwhile, it lacks nothing, and its parts are not told. None: the data plane
    does not tell, or the job has no rounds.
    """
    sums, shape = job.accelerator, job.shape
    in_rounds = isinstance(sums, IN_ROUNDS)
    rounds = in_rounds and not job.data_plane.counts_packets
    if shape is None or not rounds:
        return
    missing, round_ = Missing(filling=Filling(shape.segments) if parts else None), job.high
    if not job.window.contributed:
        yield missing
        return
    for start in range(0, shape.segments, SEGMENTS):
        if job.accelerator is not sums or job.high != round_:
            yield Missing()
            return
        add_missing(missing, job, round_, start, min(start + SEGMENTS, shape.segments))
        yield missing


def add_missing(missing: Missing, job: Job, round_: int, start: int, stop: int) -> None:
    """Count what segments start..stop-1 lack."""
    held = list(job.sums.held(round_, start, stop))
    if missing.filling is not None:
        missing.filling.add(start, stop, held)
    for run, what, bitmap in held:
        if what not in (Held.OPEN, Held.NOTHING):
            continue
        missing.open += run.segments
        for bits, part in job.lacking(run, bitmap):
            for seat in seats(bits):
                missing.by_seat[seat] = missing.by_seat.get(seat, 0) + part.segments


def seats(bits: int) -> Iterable[int]:
    """Return the seats whose bits are set."""
    return (seat for seat in range(bits.bit_length()) if bits >> seat & 1)
