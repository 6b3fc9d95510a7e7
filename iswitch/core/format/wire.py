"""Formats of the iSwitch wire protocol, version 1: parse and build, nothing else.

docs/protocol.md is the specification. A packet is UDP over IPv4 and carries one of two ToS
values: control packets are an 8-byte header and a value by action (`Control`), data packets an
8-byte `Seg` and the raw elements of one segment (`Shape.packet`). Integers are big-endian,
elements little-endian, which is the order of every host this runs on.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

PORT = 26963  # 0x6953, "iS"
MAX_MEMBERS = 64  # of a job at one switch: one bit each in the bitmaps
TOS_CONTROL = 0x0C
TOS_DATA = 0x1C
TOS_MASK = 0xFC  # routers may rewrite the two ECN bits
SEG_SIZE = 8
MAX_PAYLOAD = 65507  # largest UDP payload over IPv4
IP_UDP_HEADERS = 28  # bytes
MTU_PAYLOAD = 1472  # UDP payload that fills a 1500-byte MTU
ROUND_MASK = 0xFFFFFFFF
COUNTED = 2  # `known`, in an Ack that tells a switch how many segments have counted its sum
SLOTS_TOLD = 3  # above it, in the answer to a Help that asks for slots, is their exponent
IN_TURNS = 4  # added to `known`, in the answer to a Join: rounds of this job wait for its turn
VERSIONS_KEPT = 8  # of every segment of an asynchronous job, for Help
VERSIONS_AHEAD = VERSIONS_KEPT // 2  # by which one of its segments may be ahead of another
MOST_WORKERS = 0xFFFF  # for which a Join has room
CLOSING_SIZE = 4  # bytes of the count in a closing segment
MOST_NAMED = 16  # workers or members, by one Ack
RANKS = 4096  # 0 to 4095, in the whole tree
NO_RANK = 0xFFFF  # in a Join: any; in an Ack: none so far, or none as of a switch
ELSEWHERE = 0xFFFFFFFF  # milliseconds since the owner of a rank was heard: it is behind a switch
UNRANKED = 0xFFFE  # of an awaited worker that has none so far
HERE = "0.0.0.0"  # with port 0: the switch that answers
KIB = 1024  # bytes: the unit of memory in an Ack
HEARTBEAT = 3.0  # seconds between a member's heartbeats; a lease is some times longer

Vector = npt.NDArray[Any]


class WireError(ValueError):
    """Bytes that are not a packet of this protocol; the message says in what way."""


class Action(IntEnum):
    """The eight control actions of the paper's section 3, and one to look at a switch."""

    JOIN = 1
    LEAVE = 2
    RESET = 3
    SETH = 4
    FBCAST = 5
    HELP = 6
    HALT = 7
    ACK = 8
    SHOW = 9


class Status(IntEnum):
    """The result of a request, as its Ack states it."""

    OK = 0
    NOT_MEMBER = 1
    MISMATCH = 2
    FULL = 3
    BAD_REQUEST = 4
    DENIED = 5
    HALTED = 6
    GONE = 7
    RANK_TAKEN = 8
    SLOTS = 9
    WAITING = 10
    DRAINED = 11
    QUOTA = 12

    @classmethod
    def of(cls, code: int) -> Status:
        """Return the status with this code; BAD_REQUEST if this version does not know the code."""
        try:
            return cls(code)
        except ValueError:
            return cls.BAD_REQUEST


class Shown(IntEnum):
    """The subject of a Show."""

    SWITCH = 0
    JOBS = 1
    MEMBERS = 2
    ROOM = 3
    QUEUE = 4
    MEMORY = 5


class JobState(IntEnum):
    """The state of a job."""

    DORMANT = 0
    GATHERING = 1
    RUNNING = 2
    AWAITING_RESET = 3
    HALTED = 4


class Turn(IntEnum):
    """How a job stands to its turn with the memory of its lane."""

    NONE = 0
    HAS = 1
    WAITS = 2


class MemberType(IntEnum):
    """The kinds of members: workers and child switches contribute, controllers only command."""

    WORKER = 0
    SWITCH = 1
    CONTROLLER = 2


class Op(IntEnum):
    """The operations that combine contributions, element by element."""

    SUM = 0
    MAX = 1
    MIN = 2
    PROD = 3
    LAND = 4
    LOR = 5
    LXOR = 6
    BAND = 7
    BOR = 8
    BXOR = 9
    MAXLOC = 10
    MINLOC = 11

    @property
    def label(self) -> str:
        """Return the name that users write, such as sum."""
        return self.name.lower()

    def takes(self, dtype: DType) -> bool:
        """Return whether the operation is defined for elements of a type."""
        if self in (Op.MAXLOC, Op.MINLOC) or dtype.is_pair:
            return self in (Op.MAXLOC, Op.MINLOC) and dtype.is_pair
        return self <= Op.PROD or not dtype.is_float

    @property
    def operands(self) -> str:
        """Return the names of the element types for which the operation is defined."""
        return ", ".join(dtype.label for dtype in DType if self.takes(dtype))


class Mode(IntEnum):
    """How a job advances, by rounds or by versions, and whose segments go to whom.

    In the last three, segments have owners: REDUCE_SCATTER sends each sum to its owner alone,
    ALL_GATHER sends each owner's segments to all, ALL_TO_ALL each owner's to one rank each.
    """

    SYNCHRONOUS = 0
    ASYNCHRONOUS = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    ALL_TO_ALL = 4

    @property
    def has_owners(self) -> bool:
        """Return whether segments have owners."""
        return self >= Mode.REDUCE_SCATTER


class DType(IntEnum):
    """Element types. A pair is a value and its index, for MAXLOC and MINLOC."""

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    INT32 = 3
    FLOAT64 = 4
    INT64 = 5
    UINT8 = 6
    BOOL = 7  # one byte: 0 is false, all else is true
    FLOAT32_INT32 = 8
    INT32_INT32 = 9
    FLOAT64_INT64 = 10
    INT64_INT64 = 11

    @property
    def is_pair(self) -> bool:
        """Return whether an element is a value and its index."""
        return self >= DType.FLOAT32_INT32

    @property
    def is_float(self) -> bool:
        """Return whether elements are floating-point numbers; those of pairs do not count."""
        return self in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64)

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """Return the little-endian dtype of elements; a pair has the fields `value` and `index`."""
        if self is DType.BFLOAT16:
            import ml_dtypes  # late: most jobs are float32

            bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return bfloat16
        if self.is_pair:
            value, index = (np.dtype(name).newbyteorder("<") for name in self.label.split("_"))
            return np.dtype([("value", value), ("index", index)])
        return np.dtype(self.label).newbyteorder("<")

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _ITEMSIZES[self]

    @property
    def label(self) -> str:
        """Return the name that users write, such as float32."""
        return self.name.lower()

    @classmethod
    def of(cls, dtype: npt.DTypeLike) -> DType:
        """Return the element type for a NumPy dtype, or for a `label`.

        Raises:
            WireError: the protocol has no such element type.
        """
        if isinstance(dtype, str) and dtype.upper() in cls.__members__:
            return cls[dtype.upper()]  # bfloat16 is known to NumPy by ml_dtypes only, pairs never
        wanted = np.dtype(dtype)
        if wanted.name == "bfloat16":
            return cls.BFLOAT16
        for candidate in cls:
            if candidate is not cls.BFLOAT16 and candidate.numpy == wanted:
                return candidate
        raise WireError(f"no element type for {wanted}; use {', '.join(cls.labels())}")

    @classmethod
    def labels(cls) -> list[str]:
        """Return the names of all element types."""
        return [dtype.label for dtype in cls]


_ITEMSIZES = (4, 2, 2, 4, 8, 8, 1, 1, 8, 8, 16, 16)


def slots_flags(slots: int) -> int:
    """Return the flags of a Join that names this many slots, a power of two; 0: it names none."""
    return (slots.bit_length() - 1) << SLOTS_SHIFT if slots else 0


def kib(nbytes: int, whole: bool = False) -> int:
    """Convert bytes to KiB: rounded up, or down if `whole`; no more than an Ack has room for."""
    return min(nbytes // KIB if whole else -(-nbytes // KIB), 0xFFFFFFFF)


def round_distance(a: int, b: int) -> int:
    """Return by how many rounds `a` is ahead of `b` (negative: behind), modulo 2**32 (RFC 1982)."""
    return ((a - b + 0x80000000) & ROUND_MASK) - 0x80000000


@dataclass(frozen=True)
class Shape:
    """The layout of a vector in segments; all members of a job agree on it at Join.

    Segment i holds elements [i*E, (i+1)*E); the last one holds `last` of them (1..E, or 0 in the
    one segment of an empty vector).
    """

    dtype: DType
    op: Op
    mode: Mode
    elements: int  # E, elements per segment
    last: int
    segments: int
    owners: int = 0  # ranks among which the segments are divided; 0: they have no owners

    @classmethod
    def of(
        cls,
        numel: int,
        dtype: DType = DType.FLOAT32,
        op: Op = Op.SUM,
        mode: Mode = Mode.SYNCHRONOUS,
        elements: int | None = None,
        payload: int = MTU_PAYLOAD,
    ) -> Shape:
        """Return the shape of a vector of `numel` elements; E by default fills the UDP payload."""
        if elements is None:
            elements = (payload - SEG_SIZE) // dtype.itemsize
        if elements < 1 or numel < 0:
            raise WireError(
                f"{numel} elements in segments of {elements}: use 0 or more, of 1 or more"
            )
        segments = max(1, -(-numel // elements))
        return cls(dtype, op, mode, elements, numel - (segments - 1) * elements, segments)

    def shortened(self, numel: int) -> Shape:
        """Return the shape of a shorter vector in segments of the same size."""
        return Shape.of(numel, self.dtype, self.op, self.mode, self.elements)

    @cached_property
    def numel(self) -> int:
        """Elements of the whole vector."""
        return (self.segments - 1) * self.elements + self.last

    @cached_property
    def packet_size(self) -> int:
        """Bytes of the UDP payload of a full data packet."""
        return SEG_SIZE + self.elements * self.dtype.itemsize

    @cached_property
    def last_size(self) -> int:
        """Bytes of the UDP payload of the last segment's data packet."""
        return SEG_SIZE + self.last * self.dtype.itemsize

    @cached_property
    def packet(self) -> np.dtype[np.void]:
        """Return the record dtype of a data packet: fields `seg` and `data` (E elements)."""
        return np.dtype([("seg", ">u8"), ("data", self.dtype.numpy, (self.elements,))])

    @cached_property
    def full_segments(self) -> int:
        """Return how many segments, from the first on, travel as packets of `packet_size`."""
        return self.segments if self.last == self.elements else self.segments - 1

    def tail(self, stop: int) -> int:
        """Bytes of the last packet of a run that ends before segment `stop`."""
        return self.last_size if stop > self.full_segments else self.packet_size

    def check(self) -> None:
        """Raise WireError if no vector can have this shape."""
        if not self.segments >= 1 or self.last > self.elements:
            raise WireError("a vector has at least one segment, and the last is not above E")
        if self.last == 0 and self.segments > 1:
            raise WireError("only the single segment of an empty vector may be empty")
        if not self.op.takes(self.dtype):
            raise WireError(f"{self.op.label} is of {self.op.operands}, not of {self.dtype.label}")
        self._check_owners()
        if self.packet_size > MAX_PAYLOAD:
            most = (MAX_PAYLOAD - SEG_SIZE) // self.dtype.itemsize
            raise WireError(f"E = {self.elements} does not fit a UDP datagram; use {most} at most")

    def _check_owners(self) -> None:
        if not self.mode.has_owners:
            return
        if not 1 <= self.owners <= RANKS:
            raise WireError(f"segments that have owners are divided among 1 to {RANKS} workers")
        if self.segments < 2 or (self.segments - 1) % self.blocks:
            raise WireError(f"{self.segments} segments are not equal blocks and a closing segment")
        if self.last * self.dtype.itemsize < CLOSING_SIZE:
            raise WireError(f"a closing segment has {CLOSING_SIZE} bytes at least")

    @property
    def blocks(self) -> int:
        """Return the number of equal blocks into which the segments before the last are divided."""
        return self.owners**2 if self.mode is Mode.ALL_TO_ALL else self.owners

    def headers(self, round_: int) -> npt.NDArray[np.uint64]:
        """Return the `Seg` of every segment in a round, shape (segments,), big-endian uint64."""
        segs = np.arange(self.segments, dtype=np.uint64) | np.uint64(round_ << 32)
        return segs.astype(">u8")


class _Value:
    """The value of a control packet: its fields in order, packed by FORMAT."""

    __slots__ = ()
    FORMAT: ClassVar[struct.Struct]

    def pack(self) -> bytes:
        """Return the bytes that follow the header."""
        return self.FORMAT.pack(*_fields(self))

    @classmethod
    def takes(cls, length: int) -> bool:
        """Return whether a value of this kind can have `length` bytes."""
        return length == cls.FORMAT.size

    @classmethod
    def unpack(cls, value: bytes) -> Self:
        """Read the bytes that follow the header; `takes` accepts their length."""
        return cls(*cls.FORMAT.unpack(value))


@dataclass(frozen=True, slots=True)
class Segments(_Value):
    """Consecutive segments of one round: the value of FBcast and Help."""

    round: int
    index: int
    count: int

    FORMAT: ClassVar[struct.Struct] = struct.Struct(">III")


@dataclass(frozen=True, slots=True)
class Who(_Value):
    """The value of a Help that asks for whom these segments wait, and for nothing else.

    `question` is the asker's number for the question. All Helps that ask for one answer carry it,
    and all switches pass it on.
    """

    round: int
    index: int
    count: int
    question: int

    FORMAT: ClassVar[struct.Struct] = struct.Struct(">IIII")


@dataclass(frozen=True, slots=True)
class Threshold(_Value):
    """The value of SetH: H, or 0 for every current member."""

    threshold: int

    FORMAT: ClassVar[struct.Struct] = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Round(_Value):
    """The value of a Reset: the round to resume from; from a switch below, a round to go beyond."""

    round: int

    FORMAT: ClassVar[struct.Struct] = struct.Struct(">I")


MILLION = 1_000_000  # of how many contributions an Ack to Show tells the part that was added
SHOW_PADDING = 211  # bytes that make a Show as long as the longest answer to it


@dataclass(frozen=True, slots=True)
class Show(_Value):
    """The value of Show: the subject (`Shown`), and the first job number or seat to tell of.

    It is padded: so a forged source is sent no more bytes than its forger has sent.
    """

    what: int
    first: int = 0
    padding: bytes = bytes(SHOW_PADDING)

    FORMAT: ClassVar[struct.Struct] = struct.Struct(f">HH{SHOW_PADDING}s")


FLAG_STANDS_AT = 1  # Join: `round` is where the sender stands
FLAG_REPRODUCIBLE = 2  # Join: the job sums in rank order
FLAG_FIRST = 4  # Join: that round is the first of the sender, who took no part in the one before
FLAG_WHOLE = 8  # Join: no sum of fewer than `expected` contributions
FLAG_HEARTBEAT = 16  # Join: only if the sender is a member already
FLAG_NEW = 32  # Join: no Join of the sender's process has been answered OK yet
FLAG_PARTIAL = 64  # Join: programs number the rounds of the job, and may leave some out
FLAG_PARTS = 128  # Join of a switch: what it sends are parts of its contributions
PART = np.dtype([("join", ">u4"), ("bits", ">u8"), ("whole", ">u8")])  # after a part's `Seg`
MOST_SLOTS = 1 << 31  # that a Join can name
LEAST_SLOTS = 2  # of a job: one for what is added up, one for what is kept
SLOTS_SHIFT = 8  # Join: above it in the flags is the exponent of the slots; 0: there are none
SLOTS_BITS = 0x1F << SLOTS_SHIFT
PRIORITY_SHIFT = 13  # Join: above it in the flags is the priority of the job
MOST_PRIORITY = 7


@dataclass(frozen=True, slots=True)
class Join(_Value):
    """The value of Join."""

    type: int
    dtype: int = 0
    op: int = 0
    mode: int = 0
    elements: int = 0
    last: int = 0
    segments: int = 0
    expected: int = 0
    flags: int = 0
    round: int = 0

    FORMAT: ClassVar[struct.Struct] = struct.Struct(">BBBBHHIHHI")

    @property
    def wanted(self) -> int:
        """Return the rank that a worker asks for; NO_RANK: any."""
        return NO_RANK

    def asking(self, rank: int) -> Join:
        """Return the Join of a worker that asks for a rank; with NO_RANK, return this Join."""
        if rank == NO_RANK:
            return self
        fields: tuple[int, ...] = _fields(self)
        return RankJoin(*(*fields, rank))

    @property
    def left(self) -> int:
        """Return how many rounds the sender has still to do, as it tells; 0: it does not tell."""
        return 0 if self.flags & FLAG_STANDS_AT else self.round

    @property
    def priority(self) -> int:
        """Return the priority that the sender asks for its job; 0: the least."""
        return self.flags >> PRIORITY_SHIFT & MOST_PRIORITY

    @property
    def slots(self) -> int:
        """Return the slots through which the sender can send its vectors; 0: it names none."""
        exponent = (self.flags & SLOTS_BITS) >> SLOTS_SHIFT
        return 1 << exponent if exponent else 0

    @classmethod
    def for_shape(
        cls, shape: Shape, type_: MemberType = MemberType.WORKER, expected: int = 0, flags: int = 0
    ) -> Self:
        """Return a Join of a member that contributes vectors of this shape."""
        return cls(
            type_,
            shape.dtype,
            shape.op,
            shape.mode,
            shape.elements,
            shape.last,
            shape.segments,
            expected,
            flags,
        )

    def shape(self) -> Shape | None:
        """Return the shape named, checked; None if all its fields are zero, as of a controller.

        Raises:
            WireError: a field is out of its range.
        """
        if not any((self.dtype, self.op, self.mode, self.elements, self.last, self.segments)):
            return None
        try:
            shape = Shape(
                DType(self.dtype),
                Op(self.op),
                Mode(self.mode),
                self.elements,
                self.last,
                self.segments,
                self.expected if Mode(self.mode).has_owners else 0,
            )
        except ValueError as error:
            raise WireError(f"Join: {error}") from None
        shape.check()
        return shape

    def may_have_slots(self) -> bool:
        """Return whether vectors of the sender's job can go through fewer slots than segments."""
        whole = self.flags & (FLAG_WHOLE | FLAG_PARTIAL) == FLAG_WHOLE
        return whole and self.mode == Mode.SYNCHRONOUS and self.type != MemberType.CONTROLLER

    @property
    def sends_parts(self) -> bool:
        """Return whether the sender's contributions come in parts."""
        return bool(self.flags & FLAG_PARTS)

    def may_send_parts(self, type_: MemberType) -> bool:
        """Return whether contributions of a sender of this type may come in parts."""
        others = self.slots or self.flags & FLAG_REPRODUCIBLE or type_ is not MemberType.SWITCH
        return self.may_have_slots() and not others

    def checked(self) -> tuple[MemberType, Shape | None]:
        """Check the fields; return the sender's type, and the shape that it names.

        Raises:
            ValueError: a field is out of its range, or the type does not go with the fields.
        """
        type_, shape = MemberType(self.type), self.shape()
        if isinstance(self, SwitchJoin) and type_ is not MemberType.SWITCH:
            raise WireError("only a switch stands for several workers")
        if shape is None and type_ is not MemberType.CONTROLLER:
            raise WireError("only a controller may leave the shape open")
        has_owners = shape is not None and shape.mode.has_owners
        if has_owners and self.flags & (FLAG_WHOLE | FLAG_PARTIAL) != FLAG_WHOLE:
            raise WireError("a job whose segments have owners is whole")
        if self.slots and not self.may_have_slots():
            raise WireError("only a whole synchronous job can have slots")
        if self.sends_parts and not self.may_send_parts(type_):
            raise WireError("only a switch sends parts, of a whole job without slots or order")
        if isinstance(self, TreeJoin) and self.unranked > RANKS:
            raise WireError(f"there are no {self.unranked} ranks")
        if self.wanted != NO_RANK:
            if type_ is not MemberType.WORKER:
                raise WireError("only a worker has a rank")
            # A returning worker keeps its rank, which may be higher if more came than expected.
            known = self.expected if self.flags & FLAG_NEW else 0
            if self.wanted >= min(RANKS, known or RANKS):
                raise WireError(f"no such rank: {self.wanted}")
        return type_, shape


@dataclass(frozen=True, slots=True)
class SwitchJoin(Join):
    """The value of a switch's Join: it says for how many workers the switch stands.

    Attributes:
        listening: UDP port at which the switch listens, by which people know it; 0: not told.
        workers: the number of workers below it.
    """

    listening: int = 0
    workers: int = 0

    FORMAT: ClassVar[struct.Struct] = struct.Struct(">BBBBHHIHHIHH")


@dataclass(frozen=True, slots=True)
class RankJoin(Join):
    """The value of the Join of a worker that asks for a rank."""

    rank: int = NO_RANK

    FORMAT: ClassVar[struct.Struct] = struct.Struct(">BBBBHHIHHIH")

    @property
    def wanted(self) -> int:
        """Return the rank that a worker asks for; NO_RANK: any."""
        return self.rank


BITMAPS = (0, 32, 512)  # bytes that a bitmap of ranks may have


def bitmap(ranks: int, longest: bool = False) -> bytes:
    """Return a bitmap of ranks in the fewest bytes that hold it, or in the longest form."""
    sizes = BITMAPS[-1:] if longest else BITMAPS
    return ranks.to_bytes(next(n for n in sizes if ranks < 1 << 8 * n), "little")


def lowest(bits: int) -> int:
    """Return the number of the lowest bit that is set, the lowest of ranks; NO_RANK if none is."""
    return (bits & -bits).bit_length() - 1 if bits else NO_RANK


class _WithRanks(_Value):
    """A value whose last field is a bitmap of ranks: rank r is bit r % 8 of byte r // 8."""

    __slots__ = ()

    def pack(self) -> bytes:
        """Return the bytes that follow the header."""
        *fixed, ranks = _fields(self)
        return self.FORMAT.pack(*fixed) + bitmap(ranks, self.is_longest)

    @property
    def is_longest(self) -> bool:
        """Return whether the bitmap takes the longest form, whatever ranks it names."""
        return False

    @classmethod
    def takes(cls, length: int) -> bool:
        """Return whether a value of this kind can have `length` bytes."""
        return length - cls.FORMAT.size in BITMAPS

    @classmethod
    def unpack(cls, value: bytes) -> Self:
        """Read the bytes that follow the header; `takes` accepts their length."""
        fixed, ranks = value[: cls.FORMAT.size], value[cls.FORMAT.size :]
        found = cls(*(*cls.FORMAT.unpack(fixed), int.from_bytes(ranks, "little")))
        if len(found.pack()) != len(value):
            raise WireError("a bitmap of ranks has another length than it has to have")
        return found


@dataclass(frozen=True, slots=True)
class TreeJoin(_WithRanks, SwitchJoin):
    """The value of a switch's Join that states also which ranks the workers below it have.

    Attributes:
        statement: a number that grows with every change of the other two fields.
        unranked: how many of these workers still need a rank, whichever it is.
        ranks: bitmap of the ranks that these workers have or ask for.
    """

    statement: int = 0
    unranked: int = 0
    ranks: int = 0

    FORMAT: ClassVar[struct.Struct] = struct.Struct(">BBBBHHIHHIHHIH")

    @property
    def is_longest(self) -> bool:
        """Return whether the bitmap has its longest form, so that the answer can name any rank."""
        return self.unranked > 0

    def takes_answer(self, ranks: int) -> bool:
        """Return whether an answer that tells these ranks is no longer than this value."""
        return len(bitmap(ranks)) <= len(bitmap(self.ranks, self.is_longest))


@dataclass(frozen=True, slots=True)
class Ack(_Value):
    """The value of Ack.

    In answer to Join and Help, `contributors` says more than the request asked for: see
    docs/protocol.md, "What an Ack tells".
    """

    action: int
    # 1: to a Join: its sender was a member; to a Help: its contribution is missing; or COUNTED
    known: int = 0
    rank: int = 0
    threshold: int = 0
    round: int = 0
    contributors: int = 0

    FORMAT: ClassVar[struct.Struct] = struct.Struct(">BBHIII")

    @property
    def missing(self) -> int:
        """Return the bitmap of seats without a contribution, which answers Help."""
        return 0 if self.known == COUNTED else self.threshold << 32 | self.contributors

    def naming(self, total: int, awaited: tuple[Awaited, ...]) -> AckWho:
        """Return the answer to a `Who`, with the status and fields of this Ack."""
        return AckWho(*self._common(), total, awaited)

    def telling(self, statement: int, given: int, ranks: int) -> AckRanks:
        """Return the answer to a `TreeJoin`, with the status and fields of this Ack."""
        return AckRanks(*self._common(), statement, given, ranks)

    def _common(self) -> tuple[int, int, int, int, int, int]:
        """Return the fields that every Ack has, whatever its length."""
        return (
            self.action, self.known, self.rank, self.threshold, self.round, self.contributors
        )  # fmt: skip


class Awaited(NamedTuple):
    """A worker whose contribution is missing; or, with NO_RANK, a switch that has not answered."""

    host: str  # IPv4
    port: int
    rank: int  # of a worker, in the whole tree; UNRANKED: it has none so far
    switch_host: str = HERE  # where it is a member
    switch_port: int = 0


class Present(NamedTuple):
    """A contributor of the switch that answers; with NO_RANK, a switch below."""

    host: str  # IPv4
    port: int
    rank: int  # of a worker, in the whole tree; UNRANKED: it has none so far
    silent: int  # milliseconds since the switch last heard of it


ENTRIES = {Awaited: struct.Struct(">4sHH4sH"), Present: struct.Struct(">4sHHI")}


class _WithEntries(_Value):
    """A value that ends in up to MOST_NAMED entries, each with IPv4 addresses and numbers."""

    __slots__ = ()
    ENTRY: ClassVar[type[Awaited] | type[Present]]

    def pack(self) -> bytes:
        """Return the bytes that follow the header."""
        *fixed, entries = _fields(self)
        packed = (ENTRIES[self.ENTRY].pack(*map(_undotted, entry)) for entry in entries)
        return self.FORMAT.pack(*fixed) + b"".join(packed)

    @classmethod
    def takes(cls, length: int) -> bool:
        """Return whether a value of this kind can have `length` bytes."""
        named, odd = divmod(length - cls.FORMAT.size, ENTRIES[cls.ENTRY].size)
        return not odd and 0 <= named <= MOST_NAMED

    @classmethod
    def unpack(cls, value: bytes) -> Self:
        """Read the bytes that follow the header; `takes` accepts their length."""
        size = cls.FORMAT.size
        rows = ENTRIES[cls.ENTRY].iter_unpack(value[size:])
        entries = (cls.ENTRY._make(map(_dotted, row)) for row in rows)
        return cls(*(*cls.FORMAT.unpack(value[:size]), tuple(entries)))


def _undotted(value: int | str) -> int | bytes:
    return bytes(map(int, value.split("."))) if isinstance(value, str) else value


def _dotted(value: int | bytes) -> int | str:
    return ".".join(map(str, value)) if isinstance(value, bytes) else value


@dataclass(frozen=True, slots=True)
class AckWho(_WithEntries, Ack):
    """The value of the Ack to a `Who`: whose contributions are missing, in the whole tree."""

    total: int = 0
    awaited: tuple[Awaited, ...] = ()  # the first of them

    FORMAT: ClassVar[struct.Struct] = struct.Struct(">BBHIIII")
    ENTRY = Awaited


@dataclass(frozen=True, slots=True)
class AckJob(_WithEntries, Ack):
    """The value of the Ack to a `Show` of jobs or members.

    Attributes:
        expected: the number of workers that the job is known to have, in the whole tree; 0: any.
        lease: milliseconds of silence after which a member is lost.
        state: a `JobState`.
        members: the next contributors of the switch that answers, if the Show is of members.
    """

    expected: int = 0
    lease: int = 0
    state: int = 0
    members: tuple[Present, ...] = ()

    # Only this Ack has an odd length: so lengths tell the kinds of Ack apart.
    FORMAT: ClassVar[struct.Struct] = struct.Struct(">BBHIIIHIB")
    ENTRY = Present


@dataclass(frozen=True, slots=True)
class AckRanks(_WithRanks, Ack):
    """The value of the Ack to a `TreeJoin`: which ranks the workers below that switch have.

    Attributes:
        statement: number of the newest statement that is decided; 0: none is.
        given: number of ranks given to workers that had asked for none.
        ranks: bitmap of the ranks of all workers below.
    """

    statement: int = 0
    given: int = 0
    ranks: int = 0

    FORMAT: ClassVar[struct.Struct] = struct.Struct(">BBHIIIIH")


def _fields(value: _Value) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in value.__match_args__)  # type: ignore[attr-defined]


Value = Join | Segments | Who | Threshold | Round | Show | Ack | None

# The values each action may carry. A Reset from a worker has none.
Kind = type[Join | Segments | Who | Threshold | Round | Show | Ack]
VALUES: dict[Action, tuple[Kind | None, ...]] = {
    Action.JOIN: (Join, SwitchJoin, RankJoin, TreeJoin),
    Action.LEAVE: (None,),
    Action.RESET: (None, Round),
    Action.SETH: (Threshold,),
    Action.FBCAST: (Segments,),
    Action.HELP: (Segments, Who),
    Action.HALT: (None,),
    Action.ACK: (Ack, AckWho, AckRanks, AckJob),
    Action.SHOW: (Show,),
}

_HEADER = struct.Struct(">BBHI")


class Header(NamedTuple):
    """The first eight bytes of a control packet, before its value is read."""

    action: int
    status: int
    job: int
    request: int

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Read the header.

        Raises:
            WireError: fewer than eight bytes.
        """
        if len(payload) < _HEADER.size:
            raise WireError(f"a control packet has at least {_HEADER.size} bytes")
        return cls._make(_HEADER.unpack_from(payload))


class Control(NamedTuple):
    """A control packet: a request, an Ack, or a command that the switch relays to its workers."""

    action: Action
    job: int
    request: int
    value: Value = None
    status: int = Status.OK

    def build(self) -> bytes:
        """Return the UDP payload."""
        header = _HEADER.pack(self.action, self.status, self.job, self.request)
        return header if self.value is None else header + self.value.pack()

    @classmethod
    def parse(cls, payload: bytes) -> Control:
        """Read a control packet.

        Raises:
            WireError: an unknown action, a length that does not fit the action, or a request
                with a status.
        """
        header = Header.parse(payload)
        try:
            action = Action(header.action)
        except ValueError:
            raise WireError(f"unknown action {header.action}") from None
        if header.status and action is not Action.ACK:
            raise WireError("only an Ack has a status")
        length = len(payload) - _HEADER.size
        for kind in VALUES[action]:
            if kind.takes(length) if kind else length == 0:
                value = kind.unpack(payload[_HEADER.size :]) if kind else None
                return cls(action, header.job, header.request, value, header.status)
        raise WireError(f"{action.name} does not carry {length} bytes")


def later(a: int | None, b: int) -> int:
    """Return the later of two numbers that wrap as rounds do; None is before all others."""
    return b if a is None or round_distance(b, a) > 0 else a


def split_seg(seg: int) -> tuple[int, int]:
    """Split a `Seg` into its round and its index."""
    return seg >> 32, seg & 0xFFFFFFFF
