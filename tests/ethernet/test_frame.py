"""Headers and checksums, and what super-frames stand for."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iswitch.ethernet import frame as f
from iswitch.ethernet.segmentation import read_super, wire_frames
from tests.support import frames as slow

pytestmark = pytest.mark.unit

HOST = slow.MACS[0]


@given(st.binary(max_size=60))
def test_checksum(data: bytes) -> None:
    assert f.checksum(data) == 0xFFFF - slow.total(data)


def test_checksum_of_an_example() -> None:
    """RFC 1071, section 3."""
    assert f.checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0xFFFF - 0xDDF2


@given(st.lists(st.binary(min_size=9, max_size=9), min_size=1, max_size=5), st.integers(0, 9))
def test_sums_are_as_of_each_row(rows: list[bytes], size: int) -> None:
    table = np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 9)[:, :size]
    for row, found in zip(table, f.fold(f.sums(table)), strict=True):
        if row.any():
            assert int(found.byteswap()) == f.checksum(row.tobytes())


def route(tos: int = 0x1C) -> f.Route:
    return f.Route(
        slow.SWITCH_MAC, HOST, slow.SWITCH_IP, slow.IPS[0], 26963, 5000, tos
    )  # fmt: skip


@pytest.mark.parametrize("size", [1, 8, 9, 1472])
def test_heads_with_finished_checksums(size: int) -> None:
    rows = np.random.default_rng(size).integers(0, 256, (5, size)).astype(np.uint8)
    for head, row in zip(route().heads(rows.shape[1], f.sums(rows)), rows, strict=True):
        datagram = slow.udp(slow.SWITCH_IP, slow.IPS[0], (26963, 5000), row.tobytes())
        packet = slow.ip(
            (slow.SWITCH_IP, slow.IPS[0]), 17, datagram, 0x1C, identification=0
        )  # fmt: skip
        wanted = bytes(10) + slow.ethernet(HOST, slow.SWITCH_MAC, packet)
        assert head.tobytes() + row.tobytes() == wanted


def test_a_checksum_of_zero_is_sent_as_all_ones() -> None:
    rows = np.zeros((1, 2), np.uint8)
    (check,) = struct.unpack(">H", route().heads(rows.shape[1], f.sums(rows))[0, -2:].tobytes())
    rows[:] = np.frombuffer(check.to_bytes(2, "big"), np.uint8)
    assert route().heads(rows.shape[1], f.sums(rows))[0, -2:].tobytes() == b"\xff\xff"


@pytest.mark.parametrize(("payload", "size"), [(8, 8), (100, 100), (2944, 1472), (3000, 1472)])
def test_a_head_and_its_payload_become_frames(payload: int, size: int) -> None:
    body = bytes(range(256)) * 12
    row = route().head(payload, size).tobytes() + body[:payload]
    flags, gso_type, header, gso_size, start, offset = struct.unpack_from("<BBHHHH", row)
    assert (flags, start, offset) == (1, 34, 6)
    assert (gso_type, header, gso_size) == ((5, 42, size) if payload > size else (0, 0, 0))
    frames = [x.tobytes() for some in wire_frames(np.frombuffer(row, np.uint8)) for x in some]
    assert b"".join(x[42:] for x in frames) == body[:payload]
    assert [len(x) - 42 for x in frames[:-1]] == [size] * (len(frames) - 1)
    for i, x in enumerate(frames):
        assert slow.checksums_right(x)
        assert x[15] == 0x1C
        assert int.from_bytes(x[18:20], "big") == i
        assert x[42 - 8 + 6 : 42] != b"\0\0"


def tcp_frame(version: int, payload: int, flags: int) -> tuple[bytes, int]:
    segment = struct.pack(">HHIIBBHHH", 1, 2, 0xFFFFFF00, 5, 0x80, flags, 9, 0, 0)
    segment += bytes(range(12)) + bytes(i % 251 for i in range(payload))
    if version == 4:
        packet = slow.ip((slow.IPS[0], slow.IPS[1]), 6, segment, identification=0xFFFF)
        return slow.ethernet(slow.MACS[1], HOST, packet), 34
    head = struct.pack(">IHBB", 0x60000000, len(segment), 6, 64) + bytes(range(32))
    return slow.ethernet(slow.MACS[1], HOST, head + segment, 0x86DD), 54


ONE_TAG, TWO_TAGS = bytes.fromhex("8100 2005"), bytes.fromhex("88a8 0007 8100 0008")


@pytest.mark.parametrize("tags", [b"", ONE_TAG, TWO_TAGS], ids=len)
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("payload", [1449, 2896, 5000])
def test_segments_of_tcp(version: int, payload: int, tags: bytes) -> None:
    whole, start = tcp_frame(version, payload, flags=0x99)  # CWR, ACK, PSH, FIN
    whole = slow.partial(whole, 6, start, 16)
    whole, start = whole[:12] + tags + whole[12:], start + len(tags)
    vnet = slow.super_vnet(1 if version == 4 else 4, start + 32, 1448, start, 16)
    found = read_super((vnet + whole)[:200], len(vnet + whole))
    assert found is not None
    assert found.frames == -(-payload // 1448)
    assert found.packet(payload) == start - 14 + 32 + 1448
    pieces = wire_frames(np.frombuffer(vnet + whole, np.uint8))
    frames = [x.tobytes() for some in pieces for x in some]
    assert len(frames) == found.frames
    assert b"".join(x[start + 32 :] for x in frames) == whole[start + 32 :]
    for i, x in enumerate(frames):
        last = i == len(frames) - 1
        assert x[12:].startswith(tags)
        assert slow.checksums_right(x[:12] + x[12 + len(tags) :])
        sequence, _, _, flags = struct.unpack(">IIBB", x[start + 4 : start + 14])
        assert sequence == (0xFFFFFF00 + 1448 * i) & 0xFFFFFFFF
        assert flags == 0x10 | (0x80 if i == 0 else 0) | (0x09 if last else 0)


def test_headers_that_tags_leave_no_room_for() -> None:
    whole, start = tcp_frame(4, 5000, 0x10)
    whole = whole[:12] + ONE_TAG + whole[12:]
    assert read_super(slow.super_vnet(1, start + 32, 1448, start, 16) + whole, 5100) is None
    nothing_but_tags = slow.super_vnet(1, start + 32, 1448, start, 16) + whole[:12] + ONE_TAG * 90
    assert read_super(nothing_but_tags, 5100) is None


@pytest.mark.parametrize(("protocol", "offset", "zero"), [(6, 16, 0), (17, 6, 0xFFFF)])
def test_zero_is_written_as_each_protocol_wants(protocol: int, offset: int, zero: int) -> None:
    """RFC 1624: not as 0xFFFF; but RFC 768: not as 0, which says that there is none."""
    packet = slow.ip((slow.IPS[0], slow.IPS[1]), protocol, bytes(24))
    frame = slow.partial(slow.ethernet(slow.MACS[1], HOST, packet), protocol, 34, offset)
    rest = 0xFFFF - slow.total(frame[34:])
    frame = frame[:-2] + rest.to_bytes(2, "big")
    row = slow.super_vnet(0, 0, 0, 34, offset) + frame
    ((found,),) = wire_frames(np.frombuffer(row, np.uint8))
    assert int.from_bytes(found[34 + offset : 36 + offset].tobytes(), "big") == zero


def test_an_unfinished_checksum_is_finished() -> None:
    whole, start = tcp_frame(4, 100, 0x10)
    row = slow.super_vnet(0, 0, 0, start, 16) + slow.partial(whole, 6, start, 16)
    ((found,),) = wire_frames(np.frombuffer(row, np.uint8))
    assert slow.checksums_right(found.tobytes())


@pytest.mark.parametrize(
    "vnet",
    [
        slow.super_vnet(1, 66, 0, 34, 16),  # segments of nothing
        slow.super_vnet(1, 66, 1448, 34, 6),  # TCP with UDP's checksum
        slow.super_vnet(1, 66, 1448, 4, 16),  # in the Ethernet header
        slow.super_vnet(1, 66, 1448, 60000, 16),  # beyond the end
        slow.super_vnet(4, 66, 1448, 34, 16),  # IPv6, but it is IPv4
        slow.super_vnet(3, 66, 1448, 34, 16),  # UDP fragments
        slow.super_vnet(0, 0, 0, 2000, 16),  # unfinished beyond the end
        slow.super_vnet(0, 0, 0, 2, 16),
    ],
)
def test_headers_that_make_no_sense(vnet: bytes) -> None:
    whole, _ = tcp_frame(4, 500, 0x10)
    assert wire_frames(np.frombuffer(vnet + whole, np.uint8)) == []


@given(st.binary(min_size=10, max_size=10), st.binary(min_size=14, max_size=200))
def test_any_super_frame_is_cut_or_refused(vnet: bytes, frame: bytes) -> None:
    for some in wire_frames(np.frombuffer(vnet + frame, np.uint8)):
        assert some.ndim == 2


def test_arp_round_trip() -> None:
    request = f.arp(f.ARP_REQUEST, HOST, slow.IPS[0], bytes(6), slow.IPS[1])
    assert request[:6] == f.BROADCAST
    assert len(request) == 42
    assert f.parse_arp(request) == f.Arp(1, HOST, slow.IPS[0], bytes(6), slow.IPS[1])
    assert f.parse_arp(request[:41]) is None
    assert f.parse_arp(request[:14] + b"\0\6" + request[16:]) is None  # no Ethernet


def ping(payload: bytes = b"0123456", **ip: int) -> bytes:
    message = b"\x08\0\0\0\0\1\0\2" + payload
    message = message[:2] + f.checksum(message).to_bytes(2, "big") + message[4:]
    packet = slow.ip((slow.IPS[0], slow.SWITCH_IP), 1, message, **ip)  # type: ignore[arg-type]
    return slow.ethernet(slow.SWITCH_MAC, HOST, packet)


@pytest.mark.parametrize("padding", [b"", bytes(9)])
def test_a_ping_is_answered(padding: bytes) -> None:
    asked = ping() + padding
    packet = f.parse_ip(asked)
    assert packet is not None
    answer = f.echo_reply(asked, packet, slow.SWITCH_MAC)
    assert answer is not None
    assert answer[:12] == HOST + slow.SWITCH_MAC
    assert answer[26:34] == slow.SWITCH_IP + slow.IPS[0]
    assert answer[34] == 0
    assert answer[38:] == ping()[38:]
    assert slow.checksums_right(answer)


def test_no_answer_to_what_is_no_sound_ping() -> None:
    broken = bytearray(ping())
    broken[40] ^= 1
    for frame in (bytes(broken), ping(fragment=0x2000), ping()[:34] + ping()[35:]):
        packet = f.parse_ip(frame)
        assert packet is None or f.echo_reply(frame, packet, slow.SWITCH_MAC) is None
