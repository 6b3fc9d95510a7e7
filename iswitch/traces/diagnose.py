"""Names the packet behind a difference, and the flipped bit if it is only one.

A second pass over the trace collects all packets of the few segments in question. It also collects
packets to or from the switch whose UDP checksum is wrong, control packets included. Copies of an
aggregate outvote one that was changed. A contribution that was changed after the switch had added
it is found by flipping each bit of the element in question in each contribution, until the sum is
the one that was captured.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.wire import SEG_SIZE, Shape, split_seg
from iswitch.core.sums.combining import reduced

from .batch import gather
from .bits import differing, flipped, octets, text
from .compare import Difference
from .groups import FROM_SWITCH, TO_SWITCH
from .links import IP
from .observed import JobSeen
from .walk import Walk

MOST_SEGMENTS = 16  # that are looked into
MOST_PACKETS = 4096  # of these
MOST_DAMAGED = 100  # packets with wrong checksums, that are told one by one

Key = tuple[int, int]  # round and segment
Jobs = Mapping[int, JobSeen]  # by number


class PacketFound(NamedTuple):
    """A packet to or from the switch; a data packet unless `control`."""

    packet: int
    offset: int  # of its payload in the file
    to_switch: bool
    contribution: bool  # of a member, or of this switch to its parent; else an aggregate
    peer: str
    payload: bytes
    sound: bool  # its checksum is right, or there is none to check
    control: bool = False


class TraceFinding(NamedTuple):
    """A cause, and its evidence. Control packets have no round and segment.

    `packet` and `offset` are None for a packet that is not in the trace.
    """

    packet: int | None
    offset: int | None
    what: str
    round: int | None
    segment: int | None
    element: int | None
    bit: int | None
    captured: str
    should_be: str
    evidence: str


def diagnose(walk: Walk, differences: Sequence[Difference], jobs: Jobs) -> list[TraceFinding]:
    """Find the causes of the differences that a replay found.

    Args:
        walk: reads the replayed trace once more.
        differences: the differences.
        jobs: the jobs, by number; none: only checksums are checked.
    """
    shapes = [job.shape for job in jobs.values()]
    wanted = list(dict.fromkeys((each.round, each.segment) for each in differences))
    wanted = wanted[:MOST_SEGMENTS]
    packets, damaged = collect(walk, set(wanted), shapes)
    numbers = {found.packet for found in damaged}
    lacking: dict[Key, set[tuple[int, str]]] = defaultdict(set)
    for each in differences:
        if each.packet not in numbers:  # else its segment may be another
            lacking[each.round, each.segment].update((each.job, who) for who in each.lacking)
    others = {key_of(found) for found in damaged if not found.control}
    more = sorted(others - set(wanted))[: MOST_SEGMENTS - len(wanted)]
    if more:
        packets.update(collect(walk, set(more), shapes)[0])
    wanted += more
    findings: list[TraceFinding] = []
    named: set[int] = set()
    members = [found for found in damaged if found.to_switch and found.contribution]
    lost = {found.peer for found in members if not found.control}
    all_seen = not walk.passed["cut_off"] and sum(map(len, packets.values())) < MOST_PACKETS
    for key in wanted:
        found_here = packets.get(key, [])
        there = lost | {found.peer for found in found_here if found.to_switch}
        absent = {who for who in lacking[key] if who[1] not in there}
        if all_seen:
            findings += not_there(key, absent, jobs)
        shape = shape_for(shapes, [p for p in found_here if p.sound] or found_here)
        if shape is None:
            continue
        gone = lost | {address for _, address in absent}
        for finding in explain(key, found_here, shape, walk.setting.parent is not None, gone):
            if finding.packet is not None and finding.packet not in named:
                named.add(finding.packet)
                findings.append(finding)
    for found in damaged:
        if found.packet not in named:
            named.add(found.packet)
            round_, segment = (None, None) if found.control else key_of(found)
            findings.append(
                TraceFinding(
                    found.packet, found.offset, whose(found), round_, segment, None, None, "", "",
                    "its UDP checksum is wrong",
                )
            )  # fmt: skip
    return findings


def collect(
    walk: Walk, wanted: set[Key], shapes: Sequence[Shape]
) -> tuple[dict[Key, list[PacketFound]], list[PacketFound]]:
    """Collect all packets of some segments, and the packets with a wrong checksum."""
    segs = np.array([round_ << 32 | index for round_, index in wanted], np.uint64)
    sizes = {shape.packet_size for shape in shapes}
    found: dict[Key, list[PacketFound]] = defaultdict(list)
    damaged: list[PacketFound] = []
    count = 0
    for group in walk.groups():
        if group.what not in (TO_SWITCH, FROM_SWITCH):
            continue
        size, kind = group.size, classify(group.head[IP + 1])
        at, numbers = group.at, group.packets.numbers[group.which]
        to_switch = group.what == TO_SWITCH
        peer = str(group.peer(to_switch))
        contribution = to_switch != (peer == str(walk.setting.parent))
        if kind is not Traffic.DATA or size < SEG_SIZE:
            for i in np.flatnonzero(~walk.sound(group)).tolist():
                ways = to_switch, contribution, peer
                if len(damaged) < MOST_DAMAGED:
                    damaged.append(
                        PacketFound(int(numbers[i]), int(at[i]), *ways, b"", False, True)
                    )
            continue
        step = max((each for each in sizes if each < size), default=size)
        step = step if size > max(sizes, default=size) else size
        rows = gather(walk.reader.data, at, size)
        sound = walk.sound(group, rows)
        for start in range(0, size, step):
            part = rows[:, start : start + step]
            if part.shape[1] < SEG_SIZE:
                continue
            heads = np.ascontiguousarray(part[:, :SEG_SIZE]).view(">u8")[:, 0].astype(np.uint64)
            here = np.isin(heads, segs)
            for i in np.flatnonzero(here | ~sound).tolist():
                one = PacketFound(
                    int(numbers[i]),
                    int(at[i]) + start,
                    to_switch,
                    contribution,
                    peer,
                    part[i].tobytes(),
                    bool(sound[i]),
                )
                if not one.sound and not start and len(damaged) < MOST_DAMAGED:
                    damaged.append(one)
                if here[i] and count < MOST_PACKETS:
                    found[split_seg(int(heads[i]))].append(one)
                    count += 1
    return found, damaged


def unexplained(
    differences: Sequence[Difference], known: Collection[tuple[int | None, int | None]]
) -> list[TraceFinding]:
    """List the aggregates that differ without a known cause in the trace."""
    return [
        TraceFinding(
            each.packet, each.offset, f"aggregate to {each.to}", each.round, each.segment,
            each.element, each.bit, each.captured, each.recomputed,
            "all packets of the segment are sound: was that switch started with other options?",
        )
        for each in differences
        if each.kind == "differs" and (each.round, each.segment) not in known
    ]  # fmt: skip


def not_there(key: Key, absent: Collection[tuple[int, str]], jobs: Jobs) -> list[TraceFinding]:
    """Name the contributions to a segment that are not in the trace.

    Args:
        key: round and segment.
        absent: job and address of the members without one.
        jobs: the jobs of the trace, by number.
    """
    names = []
    for number, address in sorted(absent):
        members = jobs[number].members.values() if number in jobs else ()
        ranks = [each.rank for each in members if str(each.address) == address]
        names += [f"{jobs[number].called(rank)} at {address}" for rank in ranks] or [address]
    what = [f"contribution of {name}" for name in names]
    more = "is not in the trace"
    return [TraceFinding(None, None, w, *key, None, None, "", "", more) for w in what]


def key_of(packet: PacketFound) -> Key:
    """Read the round and segment that a data packet names."""
    return split_seg(int.from_bytes(packet.payload[:SEG_SIZE], "big"))


def explain(
    key: Key,
    packets: Sequence[PacketFound],
    shape: Shape,
    has_parent: bool,
    lost: Collection[str] = (),
) -> list[TraceFinding]:
    """Find the cause of one segment's difference.

    The members' sum is the aggregate, or goes to the parent, which sends the aggregate.

    Args:
        key: round and segment.
        packets: all packets of the segment.
        shape: shape of its job.
        has_parent: whether this switch has one.
        lost: members with a damaged or missing packet. If one of them has no contribution, that is
            the cause, and no other contribution is suspected.
    """
    size = shape.tail(key[1] + 1)
    of_size = [p for p in packets if len(p.payload) == size]
    first: dict[str, PacketFound] = {}
    for each in sorted(of_size, key=lambda packet: not packet.sound):
        if each.to_switch and each.contribution:
            first.setdefault(each.peer, each)
    contributions = [each for each in of_size if first.get(each.peer) is each]
    aggregates = [p for p in of_size if not p.contribution]
    sums = [p for p in of_size if p.contribution and not p.to_switch] if has_parent else aggregates
    total = add_up(contributions, shape)
    findings, right = compare_copies(key, sums, total, shape)
    if right is not None and total is not None and not set(lost) - set(first):
        suspected: list[TraceFinding] = []
        if len(sums) == 1 and all(each.sound for each in contributions):
            made, more = sums[0].payload[:SEG_SIZE] + total.tobytes(), "contributions say otherwise"
            suspected = [difference(key, sums[0], made, shape, more)]
        if any(each.sound for each in sums):
            suspected = culprits(key, contributions, (total, right), shape, suspected)
        findings += suspected
    if has_parent:
        findings += compare_copies(key, aggregates, None, shape)[0]
    return findings


def compare_copies(
    key: Key, copies: Sequence[PacketFound], total: npt.NDArray[Any] | None, shape: Shape
) -> tuple[list[TraceFinding], npt.NDArray[Any] | None]:
    """Find the copies of a sum that differ from the others.

    Args:
        key: round and segment.
        copies: packets with the sum.
        total: sum of the contributions in the trace, which decides between copies; None: unknown.
        shape: shape of its job.

    Returns:
        The findings, and the elements of the right copy if they are not the total.
    """
    if not copies:
        return [], None
    votes = Counter(p.payload for p in copies if p.sound) or Counter(p.payload for p in copies)
    chosen = votes.most_common(1)[0][0]
    if total is not None:
        chosen = next((v for v in votes if v[SEG_SIZE:] == total.tobytes()), chosen)
    findings = [
        difference(key, each, chosen, shape, "other copies of it say otherwise")
        for each in copies
        if each.payload != chosen
    ]
    agrees = total is None or total.tobytes() == chosen[SEG_SIZE:]
    return findings, None if agrees else elements(chosen, shape)


def difference(
    key: Key, packet: PacketFound, right: bytes, shape: Shape, more: str
) -> TraceFinding:
    """Report the place where a packet differs from what it should be.

    Args:
        key: round and segment of the packet.
        packet: the packet.
        right: the payload that it should have.
        shape: shape of its job.
        more: evidence beside the checksum.
    """
    its, should = elements(packet.payload, shape), elements(right, shape)
    places = np.flatnonzero(differing(its, should))
    at = int(places[0])
    bit = flipped(its[at], should[at]) if len(places) == 1 else None
    offset = packet.offset + SEG_SIZE + at * shape.dtype.itemsize + (bit or 0) // 8
    return TraceFinding(
        packet.packet, offset, whose(packet), *key, at, bit,
        text(its[at]), text(should[at]), evidence_of(packet, more),
    )  # fmt: skip


def culprits(
    key: Key,
    contributions: Sequence[PacketFound],
    sums: tuple[npt.NDArray[Any], npt.NDArray[Any]],
    shape: Shape,
    others: list[TraceFinding],
) -> list[TraceFinding]:
    """List the packets in which one flipped bit explains the captured sum; if none, all suspects.

    Args:
        key: round and segment of the sum.
        contributions: those to the segment; suspects are the damaged ones, or else all.
        sums: the sum of the contributions, and the captured sum.
        shape: shape of the job.
        others: findings about the captured sum itself.
    """
    width = shape.dtype.itemsize
    total, right = sums
    captured = octets(right)
    places = np.flatnonzero(differing(right, total))
    suspects = [c for c in contributions if not c.sound] or list(contributions)
    found = [each for each in others if each.bit is not None]
    if len(places) == 1:
        at = int(places[0])
        column = np.array([elements(c.payload, shape)[at] for c in contributions])
        flips = np.packbits(np.eye(8 * width, dtype=np.uint8), axis=1, bitorder="little")
        for suspect in suspects:
            which = contributions.index(suspect)
            tries = np.repeat(column[:, None], 8 * width, axis=1)
            tries[which] = (octets(tries[which]) ^ flips).reshape(-1).view(column.dtype)
            tried = octets(reduced(tries, shape.op, shape.dtype))
            hits = np.flatnonzero((tried == captured[at]).all(axis=1))
            found += [
                TraceFinding(
                    suspect.packet,
                    suspect.offset + SEG_SIZE + at * width + bit // 8,
                    whose(suspect),
                    *key,
                    at,
                    bit,
                    text(column[which]),
                    text(tries[which, bit]),
                    evidence_of(suspect, "with this bit flipped the sum is the captured one"),
                )
                for bit in hits.tolist()
            ]
    if found:
        return found
    at = int(places[0])
    return others + [
        TraceFinding(
            c.packet, c.offset, whose(c), *key, at, None, "", "",
            evidence_of(c, f"{len(places)} elements of the sum are not those captured"),
        )
        for c in suspects
    ]  # fmt: skip


def evidence_of(packet: PacketFound, more: str) -> str:
    """Write the evidence: first a wrong checksum, if there is one, then `more`."""
    return more if packet.sound else f"its UDP checksum is wrong, and {more}"


def whose(packet: PacketFound) -> str:
    """Describe a packet and its sender."""
    if packet.control:
        return f"control packet {'of' if packet.to_switch else 'to'} {packet.peer}"
    what = "contribution" if packet.contribution else "aggregate"
    return f"{what} {'of' if packet.to_switch else 'to'} {packet.peer}"


def elements(payload: bytes, shape: Shape) -> npt.NDArray[Any]:
    """Read the elements in a data packet."""
    return np.frombuffer(payload[SEG_SIZE:], np.uint8).copy().view(shape.dtype.numpy)


def add_up(contributions: Sequence[PacketFound], shape: Shape) -> npt.NDArray[Any] | None:
    """Sum contributions in this order; None: there are none."""
    if not contributions:
        return None
    rows = np.array([elements(c.payload, shape) for c in contributions])
    return reduced(rows, shape.op, shape.dtype)


def shape_for(shapes: Sequence[Shape], packets: Sequence[PacketFound]) -> Shape | None:
    """Find the layout of the job that packets belong to, by their size."""
    sizes = {len(p.payload) for p in packets}
    for shape in shapes:
        if sizes & {shape.packet_size, shape.last_size}:
            return shape
    return None
