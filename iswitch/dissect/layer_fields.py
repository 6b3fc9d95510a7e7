"""Makes the fields of scapy's layers, and finds the job of the datagram that a layer is in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
from scapy.fields import (
    ByteEnumField,
    ByteField,
    Field,
    FlagsField,
    IntField,
    IPField,
    PacketListField,
    ShortField,
    XStrFixedLenField,
)
from scapy.layers.inet import IP, UDP
from scapy.packet import Packet
from scapy.volatile import RandBin, RandShort

from iswitch.core.format import wire
from iswitch.core.format.keys import MAC_SIZE
from iswitch.core.format.wire import PART, SEG_SIZE, DType, Vector

from . import faults, fields
from .jobs import JobKnown, JobsSeen, cut

UDP_HEADER = 8  # bytes
ELEMENTS_SHOWN = 8


@dataclass
class Settings:
    """Settings for reading data packets, which name neither their job nor their dtype."""

    dtype: DType = DType.FLOAT32  # of elements while no Join told
    jobs: JobsSeen = field(default_factory=JobsSeen)  # what the packets dissected so far told


settings = Settings()


@contextmanager
def capture() -> Iterator[JobsSeen]:
    """Read one capture in a `with` block, which begins without knowledge of jobs.

    In the block, ports stay bound. After it, the jobs known before are known again.
    """
    others, settings.jobs = settings.jobs, JobsSeen()
    settings.jobs.ports |= others.ports
    try:
        yield settings.jobs
    finally:
        settings.jobs = others


def field_of(field: fields.Field) -> Field[Any, Any]:
    """Make a field of scapy from a field of the table."""
    if field.codes == "flags":
        names = [fields.FLAGS.get(1 << bit, f"bit{bit}") for bit in range(8 * field.size)]
        return FlagsField(field.name, 0, 8 * field.size, names)
    if field.codes == "ipv4":
        return IPField(field.name, wire.HERE)
    if field.codes == "bytes":
        return XStrFixedLenField(field.name, bytes(field.size), field.size)
    if field.codes is not None:
        return ByteEnumField(field.name, 0, fields.CODES[field.codes])
    return {1: ByteField, 2: ShortField, 4: IntField}[field.size](field.name, 0)


def udp_of(layer: Packet) -> UDP | None:
    """Find the UDP layer that a layer is in."""
    below: Packet | None = layer
    while below is not None and not isinstance(below, UDP):
        below = below.underlayer or below.parent
    return below


def known_of(layer: Packet) -> JobKnown | None:
    """Return what is known about the job of the packet that holds a layer."""
    udp = udp_of(layer)
    ip = udp and udp.underlayer
    if udp is None or not isinstance(ip, IP):
        return None
    return settings.jobs.of((ip.src, udp.sport), (ip.dst, udp.dport))


def is_truncated(udp: Packet | None, payload: bytes) -> bool:
    """Return whether the capture holds less of a datagram than was sent."""
    return udp is not None and udp.len is not None and len(payload) < udp.len - UDP_HEADER


def packets_in(udp: Packet | None, payload: bytes) -> list[bytes]:
    """Cut a super-datagram into its packets; return any other payload as one packet."""
    if len(payload) < SEG_SIZE or is_truncated(udp, payload):
        return [payload]
    known = udp and known_of(udp)
    return cut(payload, known.shape, PART.itemsize * known.parts) if known else cut(payload, None)


def in_a_line(fault: str | None) -> str:
    """Word a fault for a packet's one-line summary."""
    return fault if fault == faults.TRUNCATED else f"malformed: {fault}"


class RanksField(Field[int, bytes]):
    """A bitmap of ranks, up to the end of the packet or to its MAC."""

    def addfield(self, pkt: Packet, s: bytes, val: int | None) -> bytes:
        """Append the bytes of the bitmap: its longest form if a Join has workers without a rank."""
        return s + wire.bitmap(val or 0, bool(pkt.fields.get("unranked")))

    def getfield(self, _: Packet, s: bytes) -> tuple[bytes, int]:
        """Split bytes into those that follow the bitmap, and the bitmap as an integer."""
        end = len(s) if len(s) in wire.BITMAPS else len(s) - MAC_SIZE
        return s[max(end, 0) :], int.from_bytes(s[: max(end, 0)], "little")

    def i2repr(self, _: Packet | None, x: int) -> str:
        """List the ranks as text."""
        return ", ".join(map(str, ranks_in(x))) or "none"

    def randval(self) -> Any:
        """Make a random value for scapy's `fuzz`."""
        return RandShort()


def ranks_in(bits: int) -> list[int]:
    """List the ranks of a bitmap."""
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


def fields_of(kind: fields.Kind) -> list[Any]:
    """Make the fields of a value."""
    return [field_of(field) for field in fields.VALUES[kind]]


class ElementsField(Field[Vector, bytes]):
    """All remaining bytes, as a read-only array in the dtype of the job.

    If they are not a whole number of elements, the array is uint8. To change elements, assign
    others: an array of an element type of the protocol, numbers (of `settings.dtype`), or bytes as
    they are.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, np.empty(0, np.float32))

    def any2i(self, _: Packet | None, x: Any) -> Vector:
        """Check and keep elements.

        Raises:
            WireError: the protocol does not have their dtype.
        """
        if isinstance(x, bytes):
            return np.frombuffer(x, np.uint8)
        elements = np.array(x, None if isinstance(x, np.ndarray) else settings.dtype.numpy)
        if elements.dtype != np.uint8:
            DType.of(elements.dtype)
        elements.flags.writeable = False
        return elements.reshape(-1)

    def addfield(self, _: Packet, s: bytes, val: Vector | None) -> bytes:
        """Append the bytes of the elements."""
        return s + (b"" if val is None else self.any2i(None, val).tobytes())

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, Vector]:
        """Read all remaining bytes."""
        known = known_of(pkt)
        dtype = known.shape.dtype if known and known.shape else settings.dtype
        # A part has a header of its own before its elements.
        whole = len(s) % dtype.itemsize == 0 and not (known and known.parts)
        return b"", np.frombuffer(s, dtype.numpy if whole else np.uint8)

    def i2repr(self, _: Packet | None, x: Vector) -> str:
        """Write the number of elements, their dtype, and the first of them."""
        shown = ", ".join(str(element) for element in x[:ELEMENTS_SHOWN])
        more = ", ..." if len(x) > ELEMENTS_SHOWN else ""
        return f"{len(x)} {DType.of(x.dtype).label}: {shown}{more}" if len(x) else "none"

    def do_copy(self, x: Vector) -> Vector:
        """Return the array itself: it is read-only."""
        return x

    def randval(self) -> Any:
        """Make a random value for scapy's `fuzz`."""
        return RandBin()


class _Entry(Packet):
    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        """Leave all bytes behind this entry to the next one."""
        return b"", s


class ISwitchAwaited(_Entry):
    """A worker that is waited for, named in an Ack; rank 65535: a switch."""

    name = "iSwitch awaited"
    fields_desc: ClassVar[list[Any]] = [*map(field_of, fields.entry(wire.AckWho))]


class ISwitchPresent(_Entry):
    """A contributor of a switch, named in an Ack; rank 65535: a switch."""

    name = "iSwitch member"
    fields_desc: ClassVar[list[Any]] = [*map(field_of, fields.entry(wire.AckJob))]


class EntriesField(PacketListField):
    """A list of entries up to the end of the packet, or to its MAC."""

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, Any]:
        """Split bytes into those that follow the entries, and the entries."""
        entry = cast(Callable[..., Packet], self.cls)
        size = len(entry())
        keyed = len(s) % size == MAC_SIZE % size  # 12 or 14 bytes each: no length can be both
        end = len(s) - MAC_SIZE * keyed
        whole = s[:end] if end >= 0 and not end % size else b""
        return s[len(whole) :], [
            entry(whole[at : at + size], _parent=pkt) for at in range(0, len(whole), size)
        ]


class PacketsField(PacketListField):
    """The rest of a datagram, cut into packets."""

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, Any]:
        """Read all remaining bytes."""
        packet = cast(Callable[..., Packet], self.cls)
        return b"", [packet(part, _parent=pkt) for part in packets_in(udp_of(pkt), s)]
