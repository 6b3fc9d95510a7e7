"""Table entries of a job: passive data, computed from the job alone."""

from __future__ import annotations

from typing import NamedTuple

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import ROUND_MASK, Shape, round_distance
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member
from p4.generate import kind
from p4.sizes import SIZES

HALF = 1 << 31  # rounds before and after a given one, as serial numbers
NEVER = 255  # contributions: more than there can be


class Entry(NamedTuple):
    """A table entry."""

    table: str
    match: tuple[str, ...]
    action: str
    parameters: tuple[str, ...]
    priority: int | None = None  # of tables that match ranges

    @property
    def key(self) -> tuple[str, tuple[str, ...]]:
        """Return the key of the entry; a table has one entry of each key."""
        return self.table, self.match

    @property
    def line(self) -> str:
        """Return the command line that adds the entry."""
        priority = () if self.priority is None else (str(self.priority),)
        words = (self.table, self.action, *self.match, "=>", *self.parameters, *priority)
        return " ".join(("table_add", *words))


class JobPlace(NamedTuple):
    """The place of a job in the data plane.

    It has the job's number there, its first slot, the epoch that marks its sums, and their layout.
    """

    number: int
    base: int
    epoch: int
    shape: Shape


def job_entries(
    job: Job,
    place: JobPlace,
    macs: dict[tuple[str, int], bytes],
    parent: Address | None = None,
) -> list[Entry]:
    """Return all entries of a job; `macs` has the MACs of members and parent by host and port."""
    members = job.members.contributors()
    found = [_job(job, place, parent), *_rules(job, place, members)]
    found += [_member(place, member) for member in members]
    receivers = [(member.seat, member.address) for member in members]
    if parent is not None:
        receivers.append((SIZES["PARENT"], parent))
    for seat, peer in receivers:
        mac = macs.get((peer.host, peer.ingress))
        if mac is not None:
            found.append(_receiver(place, seat, peer, mac))
    return found


def parent_entry(place: JobPlace, parent: Address) -> Entry:
    """Make the entry that leads aggregates from the switch above to this job."""
    return Entry("members", _source(parent), "parent", (str(place.number),))


def _source(peer: Address) -> tuple[str, ...]:
    return str(peer.ingress), peer.host, str(peer.port)


def _job(job: Job, place: JobPlace, parent: Address | None) -> Entry:
    shape = place.shape
    lowest = job.window.lowest
    parameters = (
        kind(shape.dtype, shape.op),
        job.halted,
        job.members.gathered,
        parent is not None,
        parent.ingress if parent else 0,
        lowest is not None,
        lowest or 0,
        place.epoch,
        shape.segments,
        shape.elements * shape.dtype.itemsize,
        shape.last * shape.dtype.itemsize,
        place.base,
    )
    numbers = tuple(str(int(number)) for number in parameters)
    return Entry("jobs", (str(place.number),), "job", numbers)


def _member(place: JobPlace, member: Member) -> Entry:
    first = member.first_round
    parameters = (
        place.number,
        member.seat,
        member.bit,
        member.held_back,
        first is not None,
        first or 0,
    )
    numbers = tuple(str(int(number)) for number in parameters)
    return Entry("members", _source(member.address), "member", numbers)


def _receiver(place: JobPlace, seat: int, peer: Address, mac: bytes) -> Entry:
    match = (str(place.number), str(seat))
    return Entry("receivers", match, "receiver", (mac.hex(":"), peer.host, str(peer.port)))


def _rules(job: Job, place: JobPlace, members: list[Member]) -> list[Entry]:
    """Return the rules that complete sums; they differ between rounds while members join."""
    if not job.members.gathered or job.awaits_reset:
        return []
    high = job.window.high
    firsts = {m.first_round for m in members if m.first_round is not None}
    bounds = sorted({round_distance(first, high) for first in firsts})
    starts = [-HALF, *(bound for bound in bounds if bound > -HALF)]
    stops = [*(start - 1 for start in starts[1:]), HALF - 1]
    found = []
    for start, stop in zip(starts, stops, strict=True):
        if job.threshold:
            participants, needed = 0, min(job.threshold, NEVER)
        else:
            at = stop if start == -HALF else start  # next to a bound, where "before" is certain
            participants = job.members.participants((high + at) & ROUND_MASK)
            needed = min(max(job.members.least, 1), NEVER)
        for low, up in _unwrapped((high + start) & ROUND_MASK, (high + stop) & ROUND_MASK):
            match = (str(place.number), f"{low}->{up}")
            found.append(Entry("rules", match, "rule", (str(participants), str(needed)), 1))
    return found


def _unwrapped(low: int, up: int) -> list[tuple[int, int]]:
    """Return a range of rounds, which may wrap, as one or two ranges of numbers."""
    return [(low, up)] if low <= up else [(low, ROUND_MASK), (0, up)]
