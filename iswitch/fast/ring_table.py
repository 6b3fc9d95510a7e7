"""The columns of the tables by which the kernels over rings are told where these are.

All hold int64. Places in memory are addresses; what has a name of `ports.rings` is meant as there.
"""

from __future__ import annotations

import struct
from enum import IntEnum, auto
from typing import NamedTuple

from .tables import Table

# A worker's rings, as its switch sees them
(
    UP,  # the worker's memory, which we read
    UP_SIZE,  # bytes of its ring
    UP_TAKEN,  # bytes that we have taken from it
    OURS,  # our memory for this worker
    SLEEPS,  # the number of our sleep, as our memory says; 0: awake
    NUMBER,  # of our last sleep
    BELL,  # descriptor of its bell
    RUNG,  # number of the worker's sleep for which we rang last
    KNOWN,  # whether its row of `flows` is that of a plain job
    INWARD,  # row of the lane that its packets come by
    COMING,  # its `Inlet`: address of the table; 0: no link has a rate here
    COMING_ENDS,  # and of its ends
    RING,
) = range(13)

# The ring into which a job's packets are written; rows are those of jobs
(
    OUT_MEMORY,  # 0: this job's packets go by sockets
    OUT_SIZE,
    OUT_WRITTEN,
    OUT_FIRST,  # the first of its readers
    OUT_STOP,
    OUT_GRAIN,  # bytes that the links to its readers bring in a grain
    OUT_HELD,  # its `HeldWriter`: address of the table; 0: no link has a rate here
    OUT_ENDS,  # and of its ends
    OUT_APART,  # nanoseconds from here to its readers, as `records.show` says
    OUT_NEAR,  # if they are fewer, packets are written through the caches
    OUT_RING,
) = range(11)

# A reader of sums
(
    READER,
    READER_GROUP,  # the number of its group's ring; -1: the ring is its own
    READER_TAKEN,
    READER_LANE,  # row of the lane that its sums go by
    READER_SHARES,  # readers of this ring at that lane
    READER_COLUMNS,
) = range(6)

# One direction of a link with a rate. Seconds are float64, of which the table holds the bits.
(
    EACH_BYTE,  # seconds
    DELAY,  # seconds
    BUSY,  # when its queue will be empty
    EARLIER_UNTIL,  # and when those will have left it that were there before the call
    PASSED,  # when the last packet left it that was sent in this call and is no more in SENT
    ROOM,  # packets that its queue holds
    EARLIER,  # packets that were there before the call
    WAITING,  # packets in SENT
    SENT_NEXT,  # as NEXT and STOP of `rings.due`
    SENT_STOP,
    SENT,  # what was sent in this call and is in the queue: MOST_SENT times SENT_COLUMNS
) = range(11)
SENT_AT, SENT_PACKETS, SENT_SIZE, SENT_TAIL, SENT_DONE, SENT_COLUMNS = range(6)
MOST_SENT = 256
LANE = SENT + MOST_SENT * SENT_COLUMNS

EVENTS = 64  # of bells, that one call takes
NEAR = 110  # nanoseconds that a store takes at most to caches that are near


class Rings(NamedTuple):
    """The rings of a switch, and memory for system calls; there may be none."""

    rings: Table  # (workers, RING)
    outs: Table  # (jobs, OUT_RING)
    readers: Table  # (n, READER_COLUMNS)
    lanes: Table  # (n, LANE)
    flows: Table  # (workers, FLOW): what they send
    kicks: Table  # (any,): by descriptor: 1 for a bell that a worker rings
    events: Table  # (2 * EVENTS,): room for struct epoll_event, of 12 or 16 bytes
    word: Table  # (4,): 1, room for what a bell says, and for a struct timespec


class Its(IntEnum):
    """Places in the table of a worker's rings."""

    UP = 0  # its own memory
    UP_SIZE = auto()
    DOWN = auto()  # what the switch writes for it alone
    DOWN_SIZE = auto()
    GROUP = auto()  # where sums of all come: what the switch writes for a group; in none, DOWN
    GROUP_SIZE = auto()
    # What changes from call to call, as LENT packs it
    UP_WRITTEN = auto()
    DOWN_TAKEN = auto()
    GROUP_TAKEN = auto()
    GROUP_NUMBER = auto()  # -1: it is in no group
    SLEEPS = auto()
    NUMBER = auto()  # of its last sleep
    RUNG = auto()  # number of the switch's sleep for which it rang last
    # The rest
    KICK = auto()  # descriptor of the switch's bell
    BELL = auto()  # descriptor of its own bell
    CONNECTION = auto()  # descriptor of the connection to the switch
    LOOK_AT = auto()  # when to look at the sockets, though the rings bring packets
    ONE = auto()  # what rings a bell
    HEARD = auto()  # room for what a bell says
    POLLED = auto()  # three struct pollfd
    POLLED_2 = auto()
    POLLED_3 = auto()
    FIRST_LINE = auto()  # address of room for a line of the caches
    APART = auto()  # nanoseconds from here to the switch, as `records.show` says
    NEAR = auto()  # if they are fewer, packets are written through the caches
    LENGTH = auto()  # of the table


LENT = struct.Struct("=7q")  # UP_WRITTEN to RUNG
