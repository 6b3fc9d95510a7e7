"""Contributions in parts, between a switch with few slots and the switch above, which merges them.

Rules of docs/protocol.md, "Parts".
"""

from __future__ import annotations

import numpy as np

from iswitch.core.format.packets import Outgoing, Rows, Stretch, index_ranges
from iswitch.core.format.wire import PART, SEG_SIZE, TOS_DATA

from .hierarchy import Hierarchy
from .job import Job
from .member import Member
from .record import Record

SHORTEST = PART.itemsize + SEG_SIZE  # bytes


def merge(job: Job, member: Member, rows: Rows, tail: int) -> list[Stretch]:
    """Merge parts of a switch below; return its contributions that are whole, and count the rest.

    Args:
        job: its job.
        member: the switch.
        rows: the parts, (n, bytes of each).
        tail: bytes of the last one.
    """
    n, size = rows.shape
    if tail < SHORTEST:
        short = 1 if size >= SHORTEST else n
        job.counters["malformed"] += short
        rows, tail = rows[: n - short], size
    if not len(rows):
        return []
    heads = np.ascontiguousarray(rows[:, SEG_SIZE:SHORTEST]).view(PART)[:, 0]
    packets = np.concatenate((rows[:, :SEG_SIZE], rows[:, SHORTEST:]), axis=1)
    whole: list[Stretch] = []
    for a, b in index_ranges(heads.view(np.uint8).reshape(-1, PART.itemsize), 0):
        last = tail - PART.itemsize if b == len(rows) else packets.shape[1]
        for stretch in job.stretches(packets[a:b], last):
            drop = _refuse(job, member, stretch, int(heads["join"][a]))
            if drop:
                job.counters[drop] += len(stretch.rows)
                continue
            bits, all_ = int(heads["bits"][a]), int(heads["whole"][a])
            whole += job.assemblies[member.seat].merge(stretch, bits, all_)
    return whole


def _refuse(job: Job, member: Member, stretch: Stretch, join: int) -> str | None:
    """Return the reason to drop parts; None: they are taken."""
    if job.halted:
        return "halted"
    if join != member.incarnation:
        return "before_join"  # of another process, whose seats are others
    if not member.takes_part_in(stretch.round):
        return "before_join"
    early = member.held_back and not (job.members.gathered or job.threshold)
    if early or (stretch.round not in job.window and stretch.round != member.first_round):
        return "out_of_window"
    return None


def stamped(record: Record, hierarchy: Hierarchy) -> list[Outgoing]:
    """Take the parts that are to go up, each with the Request of our Join."""
    assert record.pool is not None
    sends = []
    for number, rows, tail in record.pool.drain():
        uplink = hierarchy.uplinks.get(number)
        if uplink is None:  # the job has ended
            continue
        heads = np.frombuffer(uplink.incarnation.to_bytes(4, "big"), np.uint8)
        rows[:, SEG_SIZE : SEG_SIZE + len(heads)] = heads
        sends.append(Outgoing((uplink.parent,), TOS_DATA, rows, tail))
    return sends
