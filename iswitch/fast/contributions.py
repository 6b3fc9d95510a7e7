"""Takes a member's packets, in compiled code, if they are plain: those of all kinds of jobs."""

from __future__ import annotations

from . import owned
from . import tables as t
from .compiling import inlined
from .places import ROUNDS
from .receiving import accumulate, fits, is_new, note
from .tables import Table, Tables
from .versions import count, counts


@inlined
def is_plain(  # noqa: PLR0913 (each number is read once: other processes may change packets)
    tables: Tables,
    flow: Table,
    body: int,
    round_: int,
    start: int,
    packets: int,
    step: int,
    tail: int,
) -> bool:
    """Return whether packets of a member's flow can be added; nothing has changed.

    The arguments are those of `fits`. Each was read once, as the packets may lie in memory to which
    another process writes.
    """
    job, member = tables.jobs[flow[t.JOB]], tables.members[flow[t.MEMBER]]
    if job[t.VERSIONS]:
        whole = fits(job, body, round_, start, packets, step, tail)
        return whole and counts(job, member, round_, start, start + packets)
    if (round_ - job[t.HIGH]) & ROUNDS > job[t.AHEAD]:
        return False
    if job[t.OWNERS]:
        return owned.is_plain(tables, flow, body, round_, start, packets, step, tail)
    if not fits(job, body, round_, start, packets, step, tail):
        return False
    return is_new(job, member[t.SEAT], round_, start, start + packets)


@inlined
def add(  # noqa: PLR0913 (as for `is_plain`)
    tables: Tables,
    flow: Table,
    body: int,
    round_: int,
    start: int,
    packets: int,
    step: int,
    tail: int,
    now: int,
) -> None:
    """Add packets that are plain, and note what that has changed.

    The arguments are those of `fits`, and the time in nanoseconds.
    """
    job, member = tables.jobs[flow[t.JOB]], tables.members[flow[t.MEMBER]]
    if job[t.VERSIONS]:
        count(tables, flow, body, round_, start, packets, step)
    else:
        if member[t.CONTRIBUTED] != round_:
            note(tables, flow, t.BEGINS, round_, 0, now)
        if job[t.OWNERS]:
            completed = owned.accumulate_pieces(tables, flow, body, round_, packets, step)
        else:
            completed = accumulate(tables, flow, body, round_, start, packets, step)
        if completed:
            note(tables, flow, t.COMPLETES, round_, completed, now)
        member[t.CONTRIBUTED] = round_
    member[t.SEEN] = now
    nbytes = (packets - 1) * step + tail
    member[t.MEMBER_PACKETS] += packets
    member[t.MEMBER_NBYTES] += nbytes
    tables.counts[t.PACKETS] += packets
    tables.counts[t.NBYTES] += nbytes
