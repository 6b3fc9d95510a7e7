"""The columns of the tables that kernels and the Python way share; all hold int64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.wire import DType, Op

SECOND = 1_000_000_000  # nanoseconds
NEVER = 1 << 62  # nanoseconds: later than any time
# A struct pollfd, read as one number: asks for POLLIN, and says from READABLE on what has happened
POLLIN, READABLE = 1 << 32, 48

Table = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# What a call is told, and what it tells: one number each.
(
    DEADLINE,  # nanoseconds at which the call returns
    SPIN,  # nanoseconds to poll before sleeping
    SOCKETS,  # the first descriptors to poll are these; data comes from the others to Python
    DESCRIPTORS,  # to poll, in all
    FLOWS,  # rows of the table of flows
    IS_ETHERNET,  # frames with heads, not datagrams
    AT_ONCE,  # super-datagrams to receive in one call
    SEND_FLAGS,
    BODIES,  # address of the payloads
    STRIDE,  # bytes from one payload to the next
    NAME_ROOM,  # bytes for a sender's address, for each datagram
    CONTROL_ROOM,  # bytes for its control messages
    SOCKET,  # which one the rest came from; the next turn begins behind it
    RING,  # the worker whose record is not plain; the next turn begins behind it
    OVER,  # a round is complete after which Python decides who is next
    BELLS,  # which descriptor tells of all bells of rings; -1: there are none
    CAME,  # datagrams that came with the rest
    REST,  # the first that is not plain
    QUEUED,  # runs to send
    NOTED,  # events
    UNSENT,  # the first run that was not sent whole; -1: all were
    UNSENT_FROM,  # its first segment that not all receivers have
    UNSENT_TO,  # stop of the packets that only some receivers have
    UNSENT_RECEIVER,  # the first that does not have them
    ERROR,  # errno of the call that failed
    LOOK_AT,  # rings: nanoseconds at which to look at the sockets, though packets come
    PIECES,  # stretches into which packets of a job with owners were cut
    JOBS,  # rows of the table of jobs
    UP_AT,  # nanoseconds at which to look at the partial sums of jobs
    PARAMETERS,
) = range(30)

# Results of a call; NOT_PLAIN is the next datagram of SOCKET, ODD the next record of RING; LANDED
# is a round for whose end OVER waits
TIMER, NOT_PLAIN, ODD, INTERRUPTED, OTHERS, BROKEN, UNSENDABLE, NOTHING, LANDED = range(9)

# Counts
(
    PACKETS,  # that were handled
    NBYTES,
    AGGREGATES,
    TX_PACKETS,
    TX_NBYTES,
    TX_FRAMES,
    KEPT,  # of the packets of data, those of the switch above
    MARKS,  # of all packets, marks that were answered, and answers
    COUNTS,
) = range(9)

# A flow: datagrams of one member, told apart by their heads or control messages
(
    FROM_SOCKET,
    JOB,  # row
    MEMBER,  # row; not used for aggregates of the switch above
    STEP,  # bytes of a packet in a super-datagram; 0: a datagram is one packet
    FLOW_PACKETS,  # frames: packets in each
    FLOW_TAIL,  # frames: bytes of the last packet
    LEAST,  # frames: bytes of a whole one
    UNCHECKED,  # frames: the payload's checksum must be verified
    FROM_ABOVE,  # aggregates of the switch above
    ASKS,  # control packets, of a member of an asynchronous job
    FLOW,
) = range(11)

# A job
(
    TOS,  # the ToS byte of packets that leave by this row
    SIZE,  # bytes of a packet
    SEGMENTS,
    FULL_SEGMENTS,
    LAST_SIZE,
    COMBINE,  # how elements are added
    SLOTS,  # segments that have room in a set at a time
    MASK,  # bits of a segment's number that say at which position it lies
    SHIFT,  # and how many of the other bits there are: these say which lap it is of
    ROWS,  # address of the sums of the first set, for rounds with even numbers
    APART,  # bytes from there to the next set: for rounds with odd numbers
    STATE_EVEN,  # addresses of their states
    STATE_ODD,
    LAPS_EVEN,  # and of the laps that positions hold; 0: all segments have room
    LAPS_ODD,
    CLEARS,  # a round begins with an empty set
    AHEAD,  # rounds after HIGH that may begin
    LEFT,  # segments after which its round is over, and Python decides who is next; 0: it is not
    FINISHED,  # progress of a complete segment
    HIGH,
    BASE,  # the round in which the job began; an asynchronous job: the version known before HIGH
    WHOLE,  # bitmap that makes a segment complete
    THRESHOLD,  # or the number of contributions that does; 0: the bitmap
    ORDER,  # rank order: address of pairs of seat and address of contributions; 0: arrival order
    ORDERED,  # number of these pairs
    RECEIVERS,  # messages for each super-datagram
    COPIES,  # receivers that each message reaches
    THROUGH,  # descriptor of the socket that sends
    NAMES,  # address of the addresses of their sockaddr
    CONTROL,  # address of control messages
    CONTROL_SIZE,
    HEADS,  # address of heads of frames, by receiver, kind of last packet, and packets
    AT_MOST,  # packets in a super-datagram
    SEPARATE,  # frames without offload: checksums are finished here
    SUMS,  # address of the sums of heads without offload
    COMPLETED,  # segments that have completed during the call
    DOWN,  # below another switch: row of the way by which its aggregates reach the members; or -1
    TOLD,  # the last round of which an aggregate has come from there during the call
    TOLD_AT,  # nanoseconds: when; 0: none has come
    ALSO,  # another row by which leaves what leaves by this one; 0: there is none
    OWNERS,  # ranks among whom the segments are divided; 0: all segments are of all, and for all
    PER_SOURCE,  # consecutive segments that one rank contributes; 0: all ranks contribute all
    PER_RECEIVER,  # those that go to one rank; 0: all go to all receivers
    WAYS,  # address of the rows by which those of each rank leave; -1: no receiver has the rank
    BIT_OF,  # address of the bits of the seats that have the ranks
    COUNTED,  # address of what the closing segment of each seat counts, in both sets
    DUE,  # and of the contributions that must come before the rounds of both sets can close
    VERSIONS,  # an asynchronous job: sets of its sums, of which each segment uses one at a time
    LOWEST,  # and a number that none of its segments' versions is below, where they are made
    MARK,  # the first 32 bits of a mark
    SEAL,  # keyed: address of what makes MACs (`seals`); 0: control has none
    ASKS_AT,  # nanoseconds from which on a mark makes the switch ask the one above
    NUMBER,  # below another switch: of the newest partial sum
    KEPT_AT,  # address of the addresses of what is known of each slot of kept versions
    OPENED,  # contributions came since the last look at what is open
    HOLD_AT,  # nanoseconds until which an open partial sum is held; 0: none is held so far
    HOLD,  # nanoseconds
    MARK_AT,  # nanoseconds from which on a mark may ask what has been counted above
    LEAST_PAUSE,  # nanoseconds from a mark to the next one
    PAUSE,  # nanoseconds after which an unanswered one counts as lost, at least
    TRIP,  # nanoseconds that the answer to one takes
    MARKED,  # nanoseconds: when the last one was sent
    LOST_AT,  # nanoseconds at which it counts as lost
    UP,  # row of the way of marks to the switch above; 0: Python asks
    UNASKED,  # partial sums have gone up since the last mark
    QUESTION,  # the request of a mark about all segments; -1: it is answered
    REQUEST,  # the last request to the switch above
    MAY_ANSWER,  # control packets that it may send at present
    MARKS_UP,  # marks sent during the call
    ANSWERS_DOWN,  # answers to them
    ANSWERED_AT,  # nanoseconds: when the last of these came; 0: none has
    JOB_COLUMNS,
) = range(72)

# A member
(
    SEAT,
    CONTRIBUTIONS,  # rank order: address of this member's
    LAST,  # an asynchronous job: address of the last number counted at each segment, and whose
    ANSWERS,  # row of the way of its marks' answers; 0: Python answers
    ASKED,  # the newest request that was answered
    ALLOWED,  # requests that it may send at present
    IS_SWITCH,  # whose marks ask what has been counted
    SEEN,  # nanoseconds: when it was heard during the call; 0: it was not
    CONTRIBUTED,  # the round
    MEMBER_PACKETS,  # that were added during the call
    MEMBER_NBYTES,
    ANSWERED,  # marks during the call
    MEMBER_COLUMNS,
) = range(13)

# A run of aggregates to send
RUN_JOB, RUN_SLOT, RUN_START, RUN_STOP, RUN = range(5)

# What the durations of rounds are made of: a member begins a round, or completes segments
BEGINS, COMPLETES = range(2)
EVENT_KIND, EVENT_JOB, EVENT_MEMBER, EVENT_ROUND, EVENT_SEGMENTS, EVENT_AT, EVENT = range(7)

# Consecutive segments of a datagram in a job with owners: the first, one past the last, and the
# packet in which the first lies
PIECE_START, PIECE_STOP, PIECE_AT, PIECE_COLUMNS = range(4)

MOST_PACKETS = 1024  # of a super-datagram
OPS = 16  # room for operations in the number of a way to combine elements


def way_of(op: Op, dtype: DType) -> int:
    """Return the number by which kernels know an operation on elements of a type."""
    return dtype * OPS + op


def signed(bitmap: int) -> int:
    """Return a bitmap of 64 bits as an int64."""
    return bitmap - (1 << 64) if bitmap >> 63 else bitmap


class Form(NamedTuple):
    """What packets are like that go the same way.

    Attributes:
        tos: the ToS byte.
        size: bytes of each.
        last: bytes of the last of a vector.
        most: packets in a super-datagram, at most.
    """

    tos: int
    size: int
    last: int
    most: int = MOST_PACKETS


class Tables(NamedTuple):
    """The tables that tell a kernel of the switch."""

    parameters: Table  # (PARAMETERS,)
    counts: Table  # (COUNTS,)
    keys: Table  # (flows, words): heads or control messages of each flow
    mask: Table  # (words,): the bits of a key that count
    flows: Table  # (flows, FLOW)
    jobs: Table  # (jobs, JOB_COLUMNS)
    members: Table  # (members, MEMBER_COLUMNS)
    queue: Table  # (MOST_RUNS, RUN)
    events: Table  # (MOST_EVENTS, EVENT)
    pieces: Table  # (MOST_PIECES, PIECE_COLUMNS)
    lacks: Table  # (MAX_MEMBERS,): room for a number of each seat


class Wires(NamedTuple):
    """The memory into which a kernel receives, and from which it sends."""

    descriptors: Table  # (n,): struct pollfd
    messages: Table  # (BATCH, 8): struct mmsghdr, of what comes
    keys: Table  # (BATCH, words): its heads, or its control messages
    status: Bytes  # (BATCH, any): control messages of frames
    out: Table  # (MOST_OUT, 8): struct mmsghdr, of what leaves
    parts: Table  # (MOST_OUT, 4): two struct iovec for each
    notes: Table  # (MOST_OUT, 4): the run, start, stop and receiver of each
    scratch: Bytes  # (MOST_OUT, HEAD_ROOM): heads that were finished here
    clock: Table  # (4,): two struct timespec


BATCH = 128  # datagrams to receive in one call, at most
MOST_EVENTS = 4096  # more are left out
FEW_EVENTS = 1024  # more make a call return
MOST_RUNS = 4096  # that wait to be sent
MOST_ADDED = 2 * (MOST_PACKETS + 1)  # runs that it makes, at most: by two ways, and a closing one
MOST_PIECES = 64  # stretches of a super-datagram
MOST_OUT = 512  # messages in one call
VLAN_AT = 16  # in a frame's control message: whether a tag was taken out
HEAD_ROOM = 64  # bytes from one head to the next
STRIDE_BYTES = 65536 + 128  # a super-frame with its headers
