"""The columns of the tables that kernels and the Python way share; all hold int64."""

from __future__ import annotations

# What a call is told, and what it tells: one number each.
(
    DEADLINE,  # nanoseconds at which the call returns
    SPIN,  # nanoseconds to poll before sleeping
    SOCKETS,  # the first descriptors to poll are these; data comes from the others to Python
    DESCRIPTORS,  # to poll, in all
    FLOWS,  # rows of the table of flows
    IS_ETHERNET,  # frames with heads, not datagrams
    AT_ONCE,  # super-datagrams to receive in one call
    OUT,  # descriptor of the socket that sends
    SEND_FLAGS,
    BODIES,  # address of the payloads
    STRIDE,  # bytes from one payload to the next
    SOCKET,  # which one the rest came from
    CAME,  # datagrams that came with the rest
    REST,  # the first that is not plain
    QUEUED,  # runs to send
    UNSENT,  # the first run that was not sent whole; -1: all were
    UNSENT_FROM,  # its first segment that not all receivers have
    UNSENT_TO,  # stop of the packets that only some receivers have
    UNSENT_RECEIVER,  # the first that does not have them
    ERROR,  # errno of the call that failed
    PARAMETERS,
) = range(21)

# Results of a call
TIMER, NOT_PLAIN, INTERRUPTED, OTHERS, BROKEN, UNSENDABLE = range(6)

# Counts
(
    PACKETS,  # data that was added
    NBYTES,
    AGGREGATES,
    TX_PACKETS,
    TX_NBYTES,
    TX_FRAMES,
    COUNTS,
) = range(7)

# A flow: datagrams of one member, told apart by their heads or control messages
(
    FROM_SOCKET,
    JOB,  # row
    MEMBER,  # row
    STEP,  # bytes of a packet in a super-datagram; 0: a datagram is one packet
    FLOW_PACKETS,  # frames: packets in each
    FLOW_TAIL,  # frames: bytes of the last packet
    LEAST,  # frames: bytes of a whole one
    UNCHECKED,  # frames: the payload's checksum must be verified
    FLOW,
) = range(9)

# A job
(
    SIZE,  # bytes of a packet
    SEGMENTS,
    FULL_SEGMENTS,
    LAST_SIZE,
    COMBINE,  # how elements are added
    ROWS,  # address of the sums
    STATE_EVEN,  # addresses of the states of both sets
    STATE_ODD,
    FINISHED,  # progress of a complete segment
    HIGH,
    BASE,
    WHOLE,  # bitmap that makes a segment complete
    THRESHOLD,  # or the number of contributions that does; 0: the bitmap
    ORDER,  # rank order: address of pairs of seat and address of contributions; 0: arrival order
    ORDERED,  # number of these pairs
    RECEIVERS,  # messages for each super-datagram
    COPIES,  # receivers that each message reaches
    NAMES,  # address of the addresses of their sockaddr
    CONTROL,  # address of control messages
    CONTROL_SIZE,
    HEADS,  # address of heads of frames, by receiver, kind of last packet, and packets
    AT_MOST,  # packets in a super-datagram
    SEPARATE,  # frames without offload: checksums are finished here
    SUMS,  # address of the sums of heads without offload
    COMPLETED,  # segments that have completed during the call
    JOB_COLUMNS,
) = range(26)

# A member
SEAT, CONTRIBUTIONS, SEEN, CONTRIBUTED, MEMBER_COLUMNS = range(5)

# A run of aggregates to send
RUN_JOB, RUN_SLOT, RUN_START, RUN_STOP, RUN = range(5)
