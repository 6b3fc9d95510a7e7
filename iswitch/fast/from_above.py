"""Keeps, in compiled code, the aggregates that come from the switch above."""

from __future__ import annotations

from . import tables as t
from .compiling import inlined
from .libc import memmove
from .places import enqueue, holds, laps_of, packet_of, states_of
from .receiving import COMPLETE, fits
from .tables import Table, Tables


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
    states, laps = states_of(job, round_ & 1), laps_of(job, round_ & 1)
    sent = job[t.FINISHED] << 32 | round_
    awaited = 0
    for s in range(start, start + packets):
        awaited += states[s & job[t.MASK], 0] == sent and holds(job, laps, s)
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
    states = states_of(job, slot)
    at, stop = start, start + packets
    while at < stop:
        end = min(stop, at - (at & job[t.MASK]) + job[t.SLOTS])
        size = (end - at) * step if end < stop else nbytes - (at - start) * step
        memmove(packet_of(tables.jobs[down], slot, at), body + (at - start) * step, size)
        for s in range(at, end):
            states[s & job[t.MASK], 0] = COMPLETE << 32 | round_
        enqueue(tables, down, slot, at, end)
        at = end
    job[t.TOLD], job[t.TOLD_AT] = round_, now
    tables.counts[t.PACKETS] += packets
    tables.counts[t.NBYTES] += nbytes
    tables.counts[t.KEPT] += packets
