"""Blocks of a capture that a kernel makes are those that Python makes, to the bit."""

from __future__ import annotations

import struct
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address
from iswitch.core.format.pcapng import Direction, packets
from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA
from iswitch.ethernet.frame import ETH, GSO_TCPV4, HEADERS, IP, VLAN_TYPES, Frames, Route
from iswitch.fast import loading
from iswitch.fast.capturing import cutter
from iswitch.ports.capture import Capture, Cut, Made, on_the_wire

pytestmark = pytest.mark.skipif(not loading.installed(), reason="Numba is not installed")

TIME = 1_790_000_000_123_456_789  # both of its halves are larger than 31 bits
ADDRESSES = Address("10.26.0.1", 5000), Address("10.26.0.2", 26963)


@pytest.fixture(scope="module")
def cut(checked: None) -> Cut:  # noqa: ARG001 (the kernel is made while it holds)
    made = cutter()
    assert made is not None
    return made


def drawn(rng: np.random.Generator, size: int, payload: int) -> bytes:
    """A super-datagram of a random flow, with `payload` bytes in packets of `size`."""
    macs = rng.integers(0, 256, 12, np.uint8).tobytes()
    ips = rng.integers(0, 256, 8, np.uint8).tobytes()
    source, target = (int(n) for n in rng.integers(1, 1 << 16, 2))
    tos = int(rng.integers(0, 256))
    route = Route(macs[:6], macs[6:], ips[:4], ips[4:], source, target, tos)
    head = bytearray(route.head(payload, size).tobytes())
    if rng.random() < 0.5:  # near the end of the numbers, or not zero at least
        struct.pack_into(">H", head, IP + 4, int(rng.choice([1, 0xFFF0, 0xFFFF])))
    body = rng.integers(0, 256, payload, np.uint8)
    if rng.random() < 0.2:
        body[:] = rng.choice([0, 0xFF])
    return bytes(head) + body.tobytes()


def in_python(row: bytes, direction: Direction) -> tuple[bytes, int]:
    pieces = list(on_the_wire(row))
    return b"".join(packets(3, TIME, direction, some) for some in pieces), sum(map(len, pieces))


def test_rows_give_the_same_blocks(cut: Cut) -> None:
    rng = np.random.default_rng(26)
    for _ in range(300):
        size = int(rng.choice([1, 2, 7, 40, 365, 1472, 4001]))
        payload = int(rng.integers(size + 1, min(60 * size, 60_000) + 2))
        row = drawn(rng, size, payload)
        direction = Direction(int(rng.integers(1, 3)))
        assert cut(3, TIME, direction, row) == in_python(row, direction), (size, payload)


def test_one_packet_in_a_super_datagram(cut: Cut) -> None:
    row = bytearray(drawn(np.random.default_rng(27), 100, 101)[:-1])
    struct.pack_into(">H", row, IP + 2, HEADERS - 14 + 100)
    assert cut(3, TIME, Direction.IN, bytes(row)) == in_python(bytes(row), Direction.IN)


def changed(row: bytes, at: int, to: bytes) -> bytes:
    return row[:at] + to + row[at + len(to) :]


def test_other_rows_are_left_to_python(cut: Cut) -> None:
    row = drawn(np.random.default_rng(28), 100, 450)
    assert cut(3, TIME, Direction.IN, row) is not None
    for what, other in {
        "no super-datagram": changed(row, 1, b"\0"),
        "TCP": changed(row, 1, bytes([GSO_TCPV4])),
        "no size": changed(row, 4, b"\0\0"),
        "another header": changed(row, 6, b"\x26\0"),
        "another checksum": changed(row, 8, b"\x10\0"),
        "a VLAN": changed(row, IP - 2, next(iter(VLAN_TYPES))),
        "options": changed(row, IP, b"\x46"),
        "IPv6": changed(row, IP - 2, b"\x86\xdd"),
        "no payload": row[: ETH + HEADERS],
        "nothing": row[:ETH],
    }.items():
        assert cut(3, TIME, Direction.IN, other) is None, what


def recorded(path: Path, cut: Cut | None, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Capture control, data and frames, with times that are the same each time."""
    rng, ticks = np.random.default_rng(29), count(TIME)
    monkeypatch.setattr(Capture, "_now", lambda _: next(ticks))
    capture = Capture(path, ["a", "b"], Counters(), cut=cut)
    for i in range(30):
        n, tos = (int(rng.integers(2, 100)), TOS_DATA) if i % 3 else (1, TOS_CONTROL)
        rows = rng.integers(0, 256, (n, 404), np.uint8)
        capture.datagrams(Direction.OUT, *ADDRESSES, tos, (rows, int(rng.integers(9, 405))))
        capture.received(Frames.of(1, [drawn(rng, 200, 3000), drawn(rng, 200, 150)]))
    capture.close()
    return path.read_bytes()


def test_files_are_equal(tmp_path: Path, cut: Cut, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def noted(number: int, time_ns: int, direction: Direction, row: bytes) -> Made | None:
        found = cut(number, time_ns, direction, row)
        made.append(found is not None)
        return found

    compiled = recorded(tmp_path / "compiled", noted, monkeypatch)
    assert compiled == recorded(tmp_path / "python", None, monkeypatch)
    assert 40 < sum(made) < len(made)
