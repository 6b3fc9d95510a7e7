"""The packets of the protocol as this client knows them: numbers, packing, strict parsing.

Parsing is strict where the page is strict: whatever a switch sends that is not an Ack, a relayed
Help, Halt or Reset, or a data packet of the right form raises `ProtocolViolation`.
"""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial

import ml_dtypes
import numpy as np

TOS_CONTROL = 0x0C
TOS_DATA = 0x1C
TOS_MASK = 0xFC  # the two low bits are ECN and may be rewritten on the way

_HEADER = struct.Struct("!BBHI")
_JOIN = struct.Struct("!BBBBHHIHHI")
_RANK = struct.Struct("!H")
IN_TURNS = 4  # added to `known`, in the Ack to a Join
_ACK = struct.Struct("!BBHIII")
_SEG = struct.Struct("!II")
_RANGE = struct.Struct("!III")
_WORD = struct.Struct("!I")
_SHOW = struct.Struct("!HH211x")
_SHOWN = struct.Struct("!HIB")
_MEMBER = struct.Struct("!4sHHI")

SEG_SIZE = _SEG.size
MAC_SIZE = 16


class Action(IntEnum):
    """Section 3, the table of actions."""

    JOIN = 1
    LEAVE = 2
    RESET = 3
    SET_H = 4
    FBCAST = 5
    HELP = 6
    HALT = 7
    ACK = 8
    SHOW = 9


class Status(IntEnum):
    """Section 3, Status in an Ack."""

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


class MemberType(IntEnum):
    """Section 3, the `type` of a Join."""

    WORKER = 0
    SWITCH = 1
    CONTROLLER = 2


class DType(IntEnum):
    """Section 3, the `dtype` of a Join."""

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    INT32 = 3
    FLOAT64 = 4
    INT64 = 5
    UINT8 = 6
    BOOL = 7
    FLOAT32_INT32 = 8
    INT32_INT32 = 9
    FLOAT64_INT64 = 10
    INT64_INT64 = 11


class Op(IntEnum):
    """Section 3, the `op` of a Join."""

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


class Mode(IntEnum):
    """Section 3, the `mode` of a Join."""

    SYNCHRONOUS = 0
    ASYNCHRONOUS = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    ALL_TO_ALL = 4


NUMPY_DTYPES: dict[DType, np.dtype] = {
    DType.FLOAT32: np.dtype("<f4"),
    DType.FLOAT16: np.dtype("<f2"),
    DType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DType.INT32: np.dtype("<i4"),
    DType.FLOAT64: np.dtype("<f8"),
    DType.INT64: np.dtype("<i8"),
    DType.UINT8: np.dtype("u1"),
    DType.BOOL: np.dtype("?"),
    DType.FLOAT32_INT32: np.dtype([("value", "<f4"), ("index", "<i4")]),
    DType.INT32_INT32: np.dtype([("value", "<i4"), ("index", "<i4")]),
    DType.FLOAT64_INT64: np.dtype([("value", "<f8"), ("index", "<i8")]),
    DType.INT64_INT64: np.dtype([("value", "<i8"), ("index", "<i8")]),
}


def _place_of(largest: bool, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The larger, or smaller, of two pairs; of equal ones that of the smaller index."""
    sign = -1 if largest else 1
    by = np.stack([a, b])
    order = np.lexsort((by["index"], sign * by["value"].astype(float)), axis=0)
    first: np.ndarray = np.take_along_axis(by, order, axis=0)[0]
    return first


_OPS: dict[Op, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    Op.SUM: np.add,
    Op.MAX: np.maximum,
    Op.MIN: np.minimum,
    Op.PROD: np.multiply,
    Op.LAND: np.logical_and,
    Op.LOR: np.logical_or,
    Op.LXOR: np.logical_xor,
    Op.BAND: np.bitwise_and,
    Op.BOR: np.bitwise_or,
    Op.BXOR: np.bitwise_xor,
    Op.MAXLOC: partial(_place_of, True),
    Op.MINLOC: partial(_place_of, False),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What all members of a job agree on: element format, operation, mode and segmentation."""

    segments: int = 1
    per_segment: int = 4
    last: int = 4
    dtype: DType = DType.FLOAT32
    op: Op = Op.SUM
    mode: Mode = Mode.SYNCHRONOUS

    @property
    def numpy(self) -> np.dtype:
        """The elements' numpy type, little-endian as on the wire."""
        return NUMPY_DTYPES[self.dtype]

    @property
    def size(self) -> int:
        """Elements in the whole vector."""
        return (self.segments - 1) * self.per_segment + self.last

    def payload_size(self, index: int) -> int:
        """Bytes of elements that segment `index` holds (the last one may be short)."""
        count = self.last if index == self.segments - 1 else self.per_segment
        return count * self.numpy.itemsize

    def payload(self, vector: np.ndarray, index: int) -> bytes:
        """The bytes of segment `index`: elements `[index * E, (index + 1) * E)`."""
        start = index * self.per_segment
        count = self.payload_size(index) // self.numpy.itemsize
        return vector[start : start + count].astype(self.numpy).tobytes()

    def fold(self, *contributions: np.ndarray) -> np.ndarray:
        """The aggregate, rounded to the element format after every operation, in this order."""
        aggregate = contributions[0].astype(self.numpy)
        with np.errstate(over="ignore", invalid="ignore"):
            for contribution in contributions[1:]:
                combined = _OPS[self.op](aggregate, contribution.astype(self.numpy))
                aggregate = combined.astype(self.numpy)
        return aggregate


@dataclass(frozen=True, slots=True)
class Member:
    """A contributor that the Ack to a Show names."""

    host: str
    port: int
    rank: int
    silent: int  # milliseconds


@dataclass(frozen=True, slots=True)
class Shown:
    """What the Ack to a Show of a job tells besides."""

    expected: int
    lease: int  # milliseconds
    state: int
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Ack:
    """The switch's answer to a request."""

    action: int
    status: int
    job: int
    request: int
    rank: int
    threshold: int
    round: int
    contributors: int
    shown: Shown | None = None
    sealed: bool = False  # it had the right MAC of a keyed job
    in_turns: bool = False  # rounds of the job wait for its turn with the memory


@dataclass(frozen=True, slots=True)
class Relay:
    """A Help, Halt or Reset from the switch, to be Acked; fields it does not carry are 0."""

    action: Action
    job: int
    request: int
    round: int = 0
    index: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Data:
    """An aggregate from the switch."""

    round: int
    index: int
    payload: bytes


Packet = Ack | Relay | Data


class ProtocolViolation(Exception):
    """The switch sent something the page does not allow."""


def control(action: int, job: int, request: int, value: bytes = b"") -> bytes:
    """A control packet with Status 0, as every request has."""
    return _HEADER.pack(action, 0, job, request) + value


def mac(key: bytes, packet: bytes) -> bytes:
    """What a control packet of a keyed job ends in."""
    return hashlib.blake2b(packet, digest_size=MAC_SIZE, key=key).digest()


def data(round_: int, index: int, payload: bytes) -> bytes:
    """A data packet: Seg, then raw elements."""
    return _SEG.pack(round_, index) + payload


def join_value(
    shape: Shape | None,
    member_type: MemberType,
    expected: int = 0,
    round_: int | None = None,
    rank: int | None = None,
    new: bool = False,
    flags: int | None = None,
) -> bytes:
    """The Value of a Join; no shape leaves all of it zero, `round_` and `new` set a flag each.

    A job whose segments have owners is whole, unless `flags` say otherwise.
    """
    agreed = (0, 0, 0, 0, 0, 0)
    if shape is not None:
        sizes = (shape.per_segment, shape.last, shape.segments)
        agreed = (shape.dtype, shape.op, shape.mode, *sizes)
    if flags is None:
        flags = (round_ is not None) | new << 5
        flags |= (shape is not None and shape.mode >= Mode.REDUCE_SCATTER) << 3
    asked = b"" if rank is None else _RANK.pack(rank)
    return _JOIN.pack(member_type, *agreed, expected, flags, round_ or 0) + asked


def below_value(shape: Shape, workers: int) -> bytes:
    """The Value of a switch's Join: it tells of no port, and for how many workers it stands."""
    return join_value(shape, MemberType.SWITCH) + _RANK.pack(0) + _RANK.pack(workers)


def range_value(round_: int, index: int, count: int) -> bytes:
    """The Value of Help and FBcast: Seg of the first segment, how many."""
    return _RANGE.pack(round_, index, count)


def show_value(what: int, first: int = 0) -> bytes:
    """The Value of Show, padded to the length of the longest answer."""
    return _SHOW.pack(what, first)


def threshold_value(threshold: int) -> bytes:
    """The Value of SetH."""
    return _WORD.pack(threshold)


def ack_of(relay: Relay) -> bytes:
    """The Ack a worker answers a relayed control packet with."""
    return control(Action.ACK, relay.job, relay.request, _ACK.pack(relay.action, 0, 0, 0, 0, 0))


def parse(datagram: bytes, tos: int) -> Packet:
    """What the switch sent, by its ToS.

    Raises:
        ProtocolViolation: it is none of the packets a switch may send to a worker.
    """
    if tos & TOS_MASK == TOS_DATA:
        return _parse_data(datagram)
    if tos & TOS_MASK == TOS_CONTROL:
        return _parse_control(datagram)
    raise ProtocolViolation(f"ToS {tos:#04x} is neither control nor data: {datagram[:32].hex()}")


def _parse_data(datagram: bytes) -> Data:
    if len(datagram) < SEG_SIZE:
        raise ProtocolViolation(f"data packet of {len(datagram)} bytes has no whole Seg")
    round_, index = _SEG.unpack_from(datagram)
    return Data(round_, index, datagram[SEG_SIZE:])


def _parse_control(datagram: bytes) -> Ack | Relay:
    if len(datagram) < _HEADER.size:
        raise ProtocolViolation(f"control packet of {len(datagram)} bytes: {datagram.hex()}")
    action, status, job, request = _HEADER.unpack_from(datagram)
    value = datagram[_HEADER.size :]
    if action == Action.ACK and len(value) == _ACK.size:
        about, known, *rest = _ACK.unpack(value)
        in_turns = IN_TURNS * (about == Action.JOIN and status == Status.OK)
        most_known = {Action.HELP: 2, Action.JOIN: int(status == 0)}.get(about, 0)
        if known & ~in_turns <= most_known and status <= max(Status):
            ack = Ack(about, status, job, request, *rest)
            return replace(ack, in_turns=bool(known & in_turns))
    elif action == Action.ACK and (len(value) - _ACK.size - _SHOWN.size) % _MEMBER.size == 0:
        about, known, *rest = _ACK.unpack_from(value)
        if (about, known, status) == (Action.SHOW, 0, Status.OK):
            ack = Ack(about, status, job, request, *rest)
            return replace(ack, shown=_shown(value[_ACK.size :]))
    elif status == 0 and action == Action.HALT and not value:
        return Relay(Action.HALT, job, request)
    elif status == 0 and action == Action.RESET and len(value) == _WORD.size:
        return Relay(Action.RESET, job, request, *_WORD.unpack(value))
    elif status == 0 and action == Action.HELP and len(value) == _RANGE.size:
        return Relay(Action.HELP, job, request, *_RANGE.unpack(value))
    raise ProtocolViolation(f"not a control packet a switch may send: {datagram.hex()}")


def _shown(value: bytes) -> Shown:
    members = tuple(
        Member(".".join(map(str, host)), port, rank, silent)
        for host, port, rank, silent in _MEMBER.iter_unpack(value[_SHOWN.size :])
    )
    expected, lease, state = _SHOWN.unpack_from(value)
    return Shown(expected, lease, state, members)
