"""A worker's round in the table: how far it is, what may be sent, and the contribution laid out."""

from __future__ import annotations

from typing import Any

from numba import carray

from iswitch.core.format.wire import SEG_SIZE
from worker_lib.protocol import window

from .compiling import inlined
from .copying import copy
from .libc import as_f64, as_i64, as_u8, nanoseconds
from .worker_table import STEP, At

HEADER = SEG_SIZE  # bytes of round and segment
ROUNDS = 0xFFFFFFFF  # the mask of round numbers

bursts_allowed = inlined(window.bursts_allowed)  # a rule that the Python way follows, too


@inlined
def clock(table: Any) -> Any:
    """Return the time."""
    return nanoseconds(table.ctypes.data + 8 * At.SECONDS)


@inlined
def numbers(table: Any) -> Any:
    """View the table as float64."""
    return carray(as_f64(table.ctypes.data), table.shape)


@inlined
def elements_of(table: Any, segment: Any) -> tuple[Any, Any]:
    """Return where a segment's elements begin in the vector, and their size, in bytes."""
    if table[At.POSITIONS]:
        found = carray(as_i64(table[At.FROM]), (table[At.SEGMENTS] - 1, 2))
        return found[segment, 0], found[segment, 1]
    step = table[At.SIZE] - HEADER
    return segment * step, min(step, table[At.BYTES] - segment * step)


@inlined
def is_large(table: Any) -> Any:
    """Return whether this round's vectors are copied past the caches."""
    return table[At.BYTES] >= table[At.LARGE]


@inlined
def write_round(rows: Any, at: Any, round_: Any) -> None:
    """Write a round into the header that begins at byte `at`."""
    for i in range(4):
        rows[at + i] = (round_ >> (24 - 8 * i)) & 0xFF


@inlined
def note(table: Any, now: Any) -> None:
    """Record how far the round is."""
    done = table[At.STEPS_DONE]
    steps = carray(as_i64(table[At.STEPS]), (table[At.MOST_STEPS], STEP))
    steps[done, 0] = table[At.SENT]
    steps[done, 1] = table[At.CAME]
    steps[done, 2] = now
    table[At.STEPS_DONE] = done + 1


@inlined
def lay_out(table: Any, stop: Any) -> None:
    """Write the segments before `stop` that are not laid out yet into the contribution."""
    size, round_ = table[At.SIZE], table[At.ROUND]
    rows = carray(as_u8(table[At.ROWS]), (table[At.SEGMENTS] * size,))
    vector = carray(as_u8(table[At.VECTOR]), (table[At.BYTES],))
    last = table[At.SEGMENTS] - 1 if table[At.POSITIONS] else stop  # a closing one has no elements
    for segment in range(table[At.FILLED], min(stop, last)):
        at = segment * size
        write_round(rows, at, round_)
        start, length = elements_of(table, segment)
        copy(rows, at + HEADER, vector, start, length)
        for i in range(at + HEADER + length, at + size):  # of a vector shorter than the job's
            rows[i] = 0
    table[At.FILLED] = max(table[At.FILLED], stop)


@inlined
def room(table: Any) -> Any:
    """Return how many bursts may be sent now."""
    under_way = table[At.SENT] - table[At.TAKEN]
    allowed = bursts_allowed(numbers(table)[At.WINDOW], under_way, table[At.BURST])
    if allowed < 1 and under_way == 0:
        allowed = 1
    return allowed if table[At.SENT] < table[At.SEGMENTS] else 0
