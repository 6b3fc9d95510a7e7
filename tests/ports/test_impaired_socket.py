"""Impairments at a UDP socket."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.ethernet.frame import Frames, Transmission
from iswitch.faults.impairment import Impairment
from iswitch.ports.impaired import ImpairedDatagrams
from tests.ports.test_impaired import SIZE, World, datagram, numbers, payloads, wire
from tests.support.frames import (
    VNET,
    partial,
    super_vnet,
)


class FakeSocket:
    """Hands out bursts, keeps what is pushed: each receiver's payloads."""

    def __init__(self) -> None:
        self.come: list[Burst] = []
        self.sent: list[tuple[Address, bytes]] = []

    def fileno(self) -> int:
        return 0

    def deadline(self) -> None:
        return None

    def pull(self) -> list[Burst]:
        come, self.come = self.come, []
        return come

    def push(self, sends: Iterable[Outgoing]) -> None:
        for out in sends:
            for peer in out.peers:
                self.sent += [(peer, p) for p in split(out)]

    def close(self) -> None:
        pass


def split(packets: Burst | Outgoing) -> list[bytes]:
    return [row.tobytes() for rows in Burst(PEER, 0, *packets[2:]).by_size() for row in rows]


PEER = Address("10.0.0.1", 5000)


def burst(count: int, tail: int = SIZE) -> Burst:
    packed = b"".join(payloads(count, tail)).ljust(count * SIZE, b"\0")
    return Burst(PEER, 0, np.frombuffer(packed, np.uint8).reshape(count, SIZE), tail)


@pytest.mark.parametrize("tail", [SIZE, 10])
def test_datagrams(tail: int) -> None:
    bad = Impairment(loss=0.2, delay=1.0, duplicate=0.2, reorder=0.2, corrupt=0.2)
    inner, counters, now = FakeSocket(), Counters(), [0.0]
    port = ImpairedDatagrams(inner, {(0, "in"): bad, (0, "out"): bad}, 1, counters, lambda: now[0])
    known = payloads(44, tail)
    peers = (PEER, Address("10.0.0.2", 5000))
    inner.come.append(burst(44, tail))
    came = [payload for packets in port.pull() for payload in split(packets)]
    port.push([Outgoing(peers, 4, *burst(44, tail)[2:])])
    assert port.deadline() == 1.0
    now[0] = 1.0
    came += [payload for packets in port.pull() for payload in split(packets)]
    assert port.deadline() is None
    assert set(came) < set(known)
    for way, total, passed in (("in", 44, len(came)), ("out", 88, len(inner.sent))):
        lost = counters[f"lost_{way}"] + counters[f"corrupted_{way}"]
        assert passed == total + counters[f"duplicated_{way}"] - lost
        assert counters[f"reordered_{way}"]
    for peer in peers:
        found = [payload for to, payload in inner.sent if to == peer]
        assert set(found) < set(known)
        assert len(found) != len(set(found))
    assert counters["rx_frames"] == 0


def test_sound_datagrams_pass_untouched() -> None:
    inner = FakeSocket()
    port = ImpairedDatagrams(inner, {(0, "in"): Impairment(loss=1e-12)}, 1, Counters())
    came = burst(5)
    inner.come.append(came)
    (found,) = port.pull()
    assert found is came
    port.push([Outgoing((PEER,), 4, *came[2:])])
    assert len(inner.sent) == 5


@given(
    counts=st.lists(st.integers(1, 44), min_size=1, max_size=5),
    tail=st.sampled_from([SIZE, 40]),
    loss=st.sampled_from([0.02, 0.1, 0.9]),
    seed=st.integers(0, 99),
    direction=st.sampled_from(["in", "out"]),
)
def test_what_is_left_of_a_batch_is_as_of_single_frames(
    counts: list[int], tail: int, loss: float, seed: int, direction: str
) -> None:
    """Super-datagrams of one flow, of any lengths: the same packets, in order, are lost."""
    rows, numbered = [], 0
    for i, count in enumerate(counts):
        body = payloads(numbered + count, tail if i == len(counts) - 1 else SIZE)[numbered:]
        numbered += count
        vnet = super_vnet(5, 42, SIZE, 34, 6) if len(b"".join(body)) > SIZE else None
        whole = partial(datagram(b"".join(body)), 17, 34, 6)
        rows.append((vnet or super_vnet(0, 0, 0, 34, 6)) + whole)
    width = -(-(max(map(len, rows)) - 52) // SIZE) * SIZE  # as ports receive them
    packed = np.zeros((len(rows), 52 + width), np.uint8)
    for i, row in enumerate(rows):
        packed[i, : len(row)] = np.frombuffer(row, np.uint8)
    bodies = np.ascontiguousarray(packed[:, 52:])
    together = Frames(0, packed[:, :52], bodies, [len(row) for row in rows])
    batch, single = (World({(0, direction): Impairment(loss=loss)}, seed) for _ in range(2))
    ones = [VNET + frame for row in rows for frame in wire(row)]
    if direction == "in":
        found = batch.receive(together)
        expected = single.receive(*(Frames.of(0, [one]) for one in ones))
    else:
        lengths = [length - 52 for length in together.lengths]
        found = batch.send(Transmission(0, together.heads, bodies, lengths, counts))
        expected = single.send(*(Transmission.single(0, one[10:]) for one in ones))
    assert numbers(found) == numbers(expected)
    assert batch.counters == single.counters
