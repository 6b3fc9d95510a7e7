"""Keeps, in compiled code, the aggregates that come from the switch above."""

from __future__ import annotations

from numba import carray

from iswitch.core.sums.states import RoundStates

from . import tables as t
from .compiling import inlined
from .libc import as_i64, memmove
from .receiving import enqueue, fits
from .tables import Table, Tables

COMPLETE = RoundStates.COMPLETE


@inlined
def is_awaited(  # noqa: PLR0913 (as for `receiving.is_plain`)
    tables: Tables,
    flow: Table,
    body: int,
    round_: int,
    start: int,
    packets: int,
    step: int,
    tail: int,
) -> bool:
    """Return whether packets of the switch above are aggregates for which all members here wait.

    The arguments are those of `receiving.fits`.
    """
    job = tables.jobs[flow[t.JOB]]
    if job[t.DOWN] < 0 or round_ != job[t.HIGH]:
        return False
    if not fits(job, body, round_, start, packets, step, tail):
        return False
    states = carray(as_i64(job[t.STATE_EVEN + (round_ & 1)]), (job[t.SEGMENTS], 2))
    sent = job[t.FINISHED] << 32 | round_
    awaited = 0
    for s in range(start, start + packets):
        awaited += states[s, 0] == sent
    return bool(awaited == packets)


@inlined
def keep(  # noqa: PLR0913 (as for `receiving.is_plain`)
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
    """Keep aggregates that are awaited, and note that the members are to get them.

    The arguments are those of `receiving.fits`, and the time in nanoseconds.
    """
    job = tables.jobs[flow[t.JOB]]
    down, slot = job[t.DOWN], round_ & 1
    nbytes = (packets - 1) * step + tail
    states = carray(as_i64(job[t.STATE_EVEN + slot]), (job[t.SEGMENTS], 2))
    into = tables.jobs[down, t.ROWS] + (slot * job[t.SEGMENTS] + start) * job[t.SIZE]
    memmove(into, body, nbytes)
    for s in range(start, start + packets):
        states[s, 0] = COMPLETE << 32 | round_
    enqueue(tables, down, slot, start, start + packets)
    job[t.TOLD], job[t.TOLD_AT] = round_, now
    tables.counts[t.PACKETS] += packets
    tables.counts[t.NBYTES] += nbytes
    tables.counts[t.KEPT] += packets
