"""The table of numbers by which `worker_kernel.play` is told what to do, and tells what it did.

Times are nanoseconds of CLOCK_MONOTONIC, and places in memory are addresses.
"""

from __future__ import annotations

import struct
from enum import IntEnum, auto

SLOTS = 64  # datagrams that one system call receives at most
LONGEST = 65536 + 128  # bytes of room for each: no datagram is longer
KINDS = 8  # kinds of datagrams that bring aggregates
META = 128  # bytes of a datagram's sender and control messages
KIND = META // 8 + 1  # words of a kind: what `meta` holds, and the size of its packets
LARGE = 1 << 21  # bytes of a vector from which on its copies go past the caches (`copying`)
MOST_REPEATED = 1024  # rounds in a row
LOOK_AGAIN = 1_000_000  # nanoseconds since something came after which to look before a round
LOOK_PAUSE = 50_000_000  # after which Python looks for signals and for what is due
STEP = 3  # words of a step: segments sent, aggregates come, time


class At(IntEnum):
    """Places in the table."""

    # Of the socket and the layout of the vectors
    FD = 0
    SIZE = auto()  # bytes of a packet
    SLOT_HEADERS = auto()  # (SLOTS,) of MMSGHDR
    BODIES = auto()  # (SLOTS, LONGEST) bytes
    METAS = auto()  # (SLOTS, META) bytes
    KNOWN = auto()  # (KINDS, KIND) words
    KINDS_KNOWN = auto()
    SUPER = auto()  # super-datagrams that one system call receives at most
    LARGE = auto()  # bytes of a vector from which on copies go past the caches
    LOOKS = auto()  # nanoseconds to look for packets before sleeping
    SENT_AT = auto()  # (bursts,) times
    STEPS = auto()  # (MOST_STEPS, STEP) words: how far the round was after each step
    MOST_STEPS = auto()
    # Of rounds in a row, as STREAK_STRUCT packs it
    OTHER_ROWS = auto()  # the contribution to the next round
    OTHER_HEADERS = auto()
    STOP_AT = auto()  # the time from which on none begins
    DUE = auto()  # the time at which Python has something else to do
    TOOK = auto()  # (MOST_REPEATED,): how long each round has taken
    REPEATED = auto()  # rounds begun
    COMPLETED = auto()  # rounds done
    RETURNED = auto()  # rounds whose results the program has, or that the session has counted
    SMOOTHED = auto()  # round trip, a float64 as the next three, in seconds
    DEVIATION = auto()  # of round trips
    FLOOR = auto()  # of the patience
    PATIENCE_CEILING = auto()
    # Of a round whose segments have owners, as OWNED_STRUCT packs it
    POSITIONS = auto()  # aggregates that this worker gets; 0: those of what it sends, in order
    GETS = auto()  # (POSITIONS,): the segment at each position (`worker_lib.protocol.plan`)
    PLACES = auto()  # (POSITIONS,): where among those sent it is; -1: others send it
    FIRST = auto()  # (POSITIONS,) bytes: whether it is the first of its block
    HAS = auto()  # (POSITIONS,) bytes: whether it has come
    FOUND = auto()  # (POSITIONS,): room for the positions of a datagram's packets
    FROM = auto()  # (SEGMENTS - 1, 2): place in VECTOR of what is sent, and its bytes
    TO = auto()  # (POSITIONS - 1, 2): place in OUT of what comes, and its bytes
    OUT_BYTES = auto()
    TELLS = auto()  # (SEGMENTS + 1,): of so many sent, those of which an aggregate is to tell
    MARKED = auto()  # those of which a Help is to tell
    MARKS = auto()  # Helps that are not answered
    # Of the round, as ROUND_STRUCT packs it
    SEGMENTS = auto()  # packets that this worker sends
    LAST = auto()  # bytes of the last packet
    BYTES = auto()  # of the vector, or from the first to the last block that is given
    ROUND = auto()
    ROWS = auto()  # (SEGMENTS, SIZE) bytes: the contribution
    VECTOR = auto()  # (BYTES,)
    OUT = auto()  # (BYTES,); where segments have owners, (OUT_BYTES,)
    HEADERS = auto()  # of MMSGHDR: the datagrams that the contribution is sent in
    PACKETS = auto()  # of each of these but the last
    BURST = auto()  # packets of a burst that this worker sends
    WHOLE_BURST = auto()  # packets of a burst by which the window grows
    CEILING = auto()  # of the window
    FILLED = auto()  # segments laid out, from the first on
    SENT = auto()  # segments sent
    CAME = auto()  # aggregates of these that have come
    TAKEN = auto()  # segments that the switch is known to have taken
    REMAINING = auto()  # aggregates that have not come
    UNTIL = auto()  # the time to return at
    SILENT_AT = auto()  # the time at which nothing has come for too long
    THRESHOLD = auto()  # of the window, a float64
    WINDOW = auto()  # its size, a float64
    # What the kernel did
    STEPS_DONE = auto()
    ROUND_TRIP = auto()  # of the last aggregate
    CAME_AT = auto()  # when it came
    TOTAL = auto()  # the number in the closing aggregate, where segments have owners
    BEGAN_AT = auto()  # when the round began
    GOT = auto()  # datagrams of the last system call
    NEXT = auto()  # the first of them that was not handled
    IS_SUPER = auto()  # whether they were super-datagrams
    ERRNO = auto()
    # For system calls
    SECONDS = auto()  # a timespec: the time when it was read last
    NANOSECONDS = auto()
    WAIT_SECONDS = auto()  # a timespec
    WAIT_NANOSECONDS = auto()
    POLLED = auto()  # a pollfd
    LENGTH = auto()  # of the table


ROUND_STRUCT = struct.Struct("=19q2d")  # SEGMENTS to WINDOW
OWNED_STRUCT = struct.Struct("=12q")  # POSITIONS to MARKS
STREAK_STRUCT = struct.Struct("=8q4d")  # OTHER_ROWS to PATIENCE_CEILING
PLAYED_STRUCT = struct.Struct("=d2q")  # WINDOW to ROUND_TRIP


class End(IntEnum):
    """Why `play` has returned."""

    DONE = 0
    UNUSUAL = 1  # a datagram is not the next in order: NEXT of GOT
    SILENT = 2  # nothing has come for too long
    PAUSED = 3  # a signal has come, or it is the time of UNTIL
    NOT_SENT = 4  # the kernel refused to send, with ERRNO
    NOT_RECEIVED = 5  # the kernel refused to receive, with ERRNO
    NOT_BEGUN = 6  # of rounds in a row: Python has something else to do first
    ASKS = 7  # a Help has to ask what the switch has taken: no aggregate will tell
