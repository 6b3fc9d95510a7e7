"""Keeps, in compiled code, the aggregates that come from the switch above."""

from __future__ import annotations

from numba import carray

from . import tables as t
from .compiling import inlined
from .libc import as_i64, memmove
from .places import ROUNDS, enqueue, holds, is_in_use, laps_of, packet_of, states_of
from .receiving import COMPLETE, fits
from .tables import Table, Tables
from .versions import is_news, keep_version, overwrites_version


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
    if job[t.DOWN] < 0:
        return False
    if job[t.VERSIONS]:
        whole = fits(job, body, round_, start, packets, step, tail)
        return whole and is_news(job, round_, start, start + packets)
    if round_ != job[t.HIGH]:
        return False
    if not fits(job, body, round_, start, packets, step, tail):
        return False
    states, laps = states_of(job, round_ & 1), laps_of(job, round_ & 1)
    sent = job[t.FINISHED] << 32 | round_
    awaited = 0
    for s in range(start, start + packets):
        was_sent = states[s & job[t.MASK], 0] == sent and holds(job, laps, s)
        awaited += was_sent or is_from_elsewhere(job, states, round_, s)
    return bool(awaited == packets)


@inlined
def is_from_elsewhere(job: Table, states: Table, round_: int, segment: int) -> bool:
    """Return whether a segment has come neither here nor from a rank below this switch.

    Args:
        job: the job's row.
        states: of the round's set.
        round_: the round.
        segment: the segment.
    """
    step = job[t.PER_SOURCE]
    if not step or segment == job[t.FULL_SEGMENTS] or states[segment, 0] & ROUNDS == round_:
        return False
    return bool(carray(as_i64(job[t.BIT_OF]), job[t.OWNERS])[segment // step] == 0)


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
    nbytes, stop = (packets - 1) * step + tail, start + packets
    if job[t.VERSIONS]:
        keep_version(tables, job, body, round_, start, stop, nbytes)
    else:
        keep_sums(tables, job, body, round_, start, stop, step, nbytes)
    job[t.TOLD], job[t.TOLD_AT] = round_, now
    tables.counts[t.PACKETS] += packets
    tables.counts[t.NBYTES] += nbytes
    tables.counts[t.KEPT] += packets


@inlined
def keep_sums(  # noqa: PLR0913 (as for `receiving.is_plain`)
    tables: Tables,
    job: Table,
    body: int,
    round_: int,
    start: int,
    stop: int,
    step: int,
    nbytes: int,
) -> None:
    """Keep the aggregates of a round, and note that the members are to get them.

    Args:
        tables: have the queue.
        job: the job's row.
        body: address of the first packet.
        round_: their round.
        start: first segment.
        stop: one past the last segment.
        step: bytes from one packet to the next.
        nbytes: bytes of all packets.
    """
    down, slot = job[t.DOWN], round_ & 1
    states, at = states_of(job, slot), start
    while at < stop:
        end = min(stop, at - (at & job[t.MASK]) + job[t.SLOTS])
        size = (end - at) * step if end < stop else nbytes - (at - start) * step
        memmove(packet_of(tables.jobs[down], slot, at), body + (at - start) * step, size)
        for s in range(at, end):
            state = states[s & job[t.MASK]]
            if state[0] & ROUNDS != round_:
                state[1] = 0
            state[0] = COMPLETE << 32 | round_
        enqueue(tables, down, slot, at, end)
        at = end
    if job[t.OWNERS]:
        carray(as_i64(job[t.DUE]), 2)[slot] = 0  # as contributions to these need not come


@inlined
def is_unsent(tables: Tables, flow: Table, round_: int, start: int, stop: int) -> bool:
    """Return whether aggregates that come go where some wait to be sent.

    Args:
        tables: have the queue.
        flow: the row of the packets' flow.
        round_: their round or version.
        start: first segment.
        stop: one past the last segment.
    """
    job = tables.jobs[flow[t.JOB]]
    if job[t.VERSIONS]:
        return overwrites_version(tables, job, round_, start, stop)
    return is_in_use(tables, job[t.DOWN], round_ & 1, stop)
