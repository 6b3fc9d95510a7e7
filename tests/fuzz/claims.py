"""Who a frame claims to be, once more: read layer by layer, one frame at a time.

Nothing is shared with the guard of sources: docs/protocol.md, "Spoofed frames", said again. The
target `guard` holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from iswitch.core.format.packets import Address
from iswitch.core.jobs.sources import Sources
from iswitch.ethernet.frame import Frames
from iswitch.ethernet.guard import SourceGuard
from iswitch.ethernet.sorting import groups
from tests.support import frames as slow

Claim = tuple[str, bytes]
DEEPEST = 8
HIDDEN: Claim = ("hidden", b"")

# Behind which port each address is; the switch's is behind none.
MEMBERS = ((slow.IPS[0], slow.MACS[0], 0), (slow.IPS[1], slow.MACS[1], 1), (slow.IPS[3], None, 2))
STRANGER = slow.MACS[2]


def claims(frame: bytes) -> Iterator[Claim]:
    """All that a frame claims; HIDDEN: it has too many layers."""
    yield "mac", frame[6:12]
    yield from typed(frame[12:], DEEPEST)


def typed(data: bytes, layers: int) -> Iterator[Claim]:
    """What begins with an EtherType or a length."""
    kind, rest = int.from_bytes(data[:2], "big"), data[2:]
    if len(data) < 2:
        return
    wrapped = None
    if kind in (0x8100, 0x88A8, 0x9100, 0x9200, 0x9300):
        wrapped = rest[2:]
    elif kind < 0x600 and rest[:6].hex() in ("aaaa03000000", "aaaa030000f8"):
        wrapped = rest[6:]
    if wrapped is not None:
        yield from typed(wrapped, layers - 1) if layers else (HIDDEN,)
    elif kind == 0x0800 and len(rest) >= 20:
        yield "ip", rest[12:16]
    elif kind == 0x0806 and len(rest) >= 28:
        yield "mac", rest[8:14]
        yield "ip", rest[14:18]
    elif kind == 0x86DD and len(rest) >= 40:
        size = int.from_bytes(rest[4:6], "big")
        source = rest[8:24]
        yield "interface", source[8:]
        yield from extended(rest[6], rest[40 : 40 + size], source, DEEPEST)


def extended(kind: int, data: bytes, source: bytes, layers: int) -> Iterator[Claim]:
    """What follows an IPv6 header."""
    if kind == 58:
        yield from message(data, source)
    elif kind in (0, 43, 44, 51, 60, 135) and len(data) >= 8:
        if kind == 44:
            size = 8
            if data[2] or data[3] & 0xF8:
                return
        elif kind == 51:
            size = (data[1] + 2) * 4
        else:
            size = (data[1] + 1) * 8
        yield from extended(data[0], data[size:], source, layers - 1) if layers else (HIDDEN,)


def message(data: bytes, source: bytes) -> Iterator[Claim]:
    """ICMPv6."""
    layouts = {133: (8, ()), 134: (16, ()), 135: (24, (8,)), 136: (24, (8,)), 137: (40, (8, 24))}
    options, addresses = layouts.get(data[0] if data else 0, (len(data), ()))
    if data[:1] == b"\x87" and source != bytes(16):
        addresses = ()
    for at in addresses:
        if len(data) >= at + 16:
            yield "interface", data[at + 8 : at + 16]
    data = data[options:]
    while len(data) >= 8 and data[1]:
        if data[0] in (1, 2):
            yield "mac", data[2:8]
        data = data[8 * data[1] :]


def eui64(mac: bytes) -> bytes:
    return bytes([mac[0] ^ 2, mac[1], mac[2], 0xFF, 0xFE, *mac[3:]])


def owners() -> dict[Claim, set[int]]:
    """The ports that may claim what is somebody's."""
    found: dict[Claim, set[int]] = {HIDDEN: set(), ("ip", slow.SWITCH_IP): set()}
    found |= {("mac", slow.SWITCH_MAC): set(), ("interface", eui64(slow.SWITCH_MAC)): set()}
    for ip, mac, port in MEMBERS:
        found["ip", ip] = {port}
        if mac is not None:
            found["mac", mac] = found["interface", eui64(mac)] = {port}
    return found


OWNERS = owners()


def is_spoofed(frame: bytes, port: int) -> bool:
    """Whether it claims anything of somebody elsewhere."""
    return any(port not in OWNERS.get(claim, {port}) for claim in claims(frame))


def guard() -> SourceGuard:
    """One that knows the members."""
    sources = Sources()
    known = {}
    for ip, mac, port in MEMBERS:
        host = ".".join(map(str, ip))
        sources.enter(Address(host, 5000, port))
        known[host, port] = mac
    found = SourceGuard(sources, lambda *where: known.get(where), slow.SWITCH_IP, slow.SWITCH_MAC)
    assert found.has_changed()
    return found


GUARD = guard()


def check(port: int, frames: list[bytes]) -> None:
    """The guard judges frames that came together as the oracle does each of them."""
    rows = [slow.VNET + frame for frame in frames]
    longest = max(rows, key=len)
    table = Frames.of(port, [row + longest[len(row) :] for row in rows])  # what was there before
    came = table._replace(lengths=[len(row) for row in rows])
    at = 0
    for group in groups(came, np.frombuffer(slow.SWITCH_MAC, np.uint8)):
        verdict = GUARD.spoofed(group)
        n = len(group.lengths)
        found = [False] * n if verdict is None else verdict.tolist()
        assert found == [is_spoofed(frame, port) for frame in frames[at : at + n]]
        at += n
    assert at == len(frames)


# A program of `guard`: batches of a byte `frames - 1 << 2 | port`, and the frames. A frame is a
# row of words up to END: a byte below LITERAL is a piece of PIECES, one from there on a number of
# bytes that follow and are taken as they are.

LITERAL, END = 0xC0, 0xFF
BOTH = (slow.MACS[0], slow.MACS[1], STRANGER, slow.SWITCH_MAC)
PIECES: tuple[bytes, ...] = (
    *(slow.tag(tci, kind) for kind in (0x8100, 0x88A8, 0x9100) for tci in (0, 0xE000, 5)),
    b"\0\x40" + slow.SNAP, b"\0\x40" + slow.SNAP_BRIDGED,
    b"\x08\x00", b"\x08\x06", b"\x86\xdd", b"\x88\xb5",
    *BOTH, *slow.IPS, slow.SWITCH_IP,
    *(b"\xfe\x80" + bytes(6) + eui64(mac) for mac in BOTH), bytes(16), b"\xff\x02" + bytes(14),
    bytes.fromhex("0001080006040001"), bytes.fromhex("0001080006040002"),  # ARP
    bytes.fromhex("450000280000400040110000"),  # IPv4 up to its addresses
    *(bytes([0x60, 0, 0, 0, 0, size, kind, 255]) for size in (24, 32, 48) for kind in (58, 0, 17)),
    *(bytes([kind, 0, 1, 4, 0, 0, 0, 0]) for kind in (58, 60, 44, 0)),  # extension headers
    *(bytes([kind, 0, 0, 0, 0, 0, 0, 0]) for kind in (133, 134, 135, 136, 137)),
    b"\1\1", b"\2\1", b"\4\0", bytes(8),
)  # fmt: skip


def words(*pieces: bytes) -> bytes:
    """A frame, as words of a program."""
    found = b""
    for piece in pieces:
        if piece in PIECES:
            found += bytes([PIECES.index(piece)])
            continue
        for at in range(0, len(piece), END - LITERAL - 1):
            part = piece[at : at + END - LITERAL - 1]
            found += bytes([LITERAL + len(part)]) + part
    return found + bytes([END])


def read_frame(data: bytes, at: int) -> tuple[bytes, int]:
    """A frame of a program, and where the next begins."""
    found = b""
    while at < len(data) and data[at] != END and len(found) < 400:
        word, at = data[at], at + 1
        if word < LITERAL:
            found += PIECES[word % len(PIECES)]
        else:
            found += data[at : at + word - LITERAL]
            at += word - LITERAL
    return found, at + 1


def target(data: bytes) -> None:
    at = 0
    while at < len(data):
        head, at = data[at], at + 1
        frames = []
        for _ in range(1 + (head >> 2 & 7)):
            frame, at = read_frame(data, at)
            if len(frame) >= 14:  # else the chassis drops it before
                frames.append(frame)
        if frames:
            check(head & 3, frames)
