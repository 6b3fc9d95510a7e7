"""A UDP port whose kernel refuses: sizes, overflows, addresses, offloads, and its end."""

from __future__ import annotations

import ctypes
import errno
import struct
import time
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA
from iswitch.ports import reading, udp
from iswitch.ports.udp import UdpPort
from tests.ports.test_udp_port import (
    OFFLOAD,
    PATIENCE,
    Open,
    opened,
    packets,
    payloads,
    pull_bursts,
    received,
    wait,
)

__all__ = ["opened"]  # fixtures


@pytest.mark.parametrize("n", [1, 3])
@OFFLOAD
def test_empty_payload(opened: Open, offload: bool, n: int) -> None:
    sender, receiver = opened(offload=offload), opened(offload=offload)
    sender.push([Outgoing((receiver.address,), TOS_DATA, np.empty((n, 0), np.uint8), 0)])
    assert received(pull_bursts(receiver, n)) == [b""] * n
    assert sender.counters["tx_failed"] == 0


def test_too_large_a_packet_is_counted(opened: Open) -> None:
    sender, receiver = opened(), opened()
    rows, tail = packets(1, 65_508)
    sender.push([Outgoing((receiver.address,), TOS_DATA, rows, tail)])
    rows, tail = packets(2, 65_508)
    sender.push([Outgoing((receiver.address,) * 2, TOS_DATA, rows, tail)])
    assert sender.counters["tx_failed"] == 5
    assert receiver.pull() == []


@OFFLOAD
def test_overflow_is_counted(opened: Open, offload: bool) -> None:
    """What was not received was dropped by the kernel: it says so if asked, or with the next."""
    sender = opened(offload=False)
    receiver = opened(offload=offload, buffer=2048)
    sent = 200
    for _ in range(sent):
        sender.push([Outgoing((receiver.address,), TOS_DATA, *packets(1, 500))])
    came = 0
    while bursts := receiver.pull():
        came += sum(len(burst.rows) for burst in bursts)
    assert 0 < came < sent
    receiver.count_dropped()
    assert receiver.counters["rx_overflow"] == sent - came
    sender.push([Outgoing((receiver.address,), TOS_DATA, *packets(1, 500))])
    came += len(received(pull_bursts(receiver, 1)))
    assert receiver.counters["rx_overflow"] == sent + 1 - came
    sender.push([Outgoing((receiver.address,), TOS_DATA, *packets(1, 500))])
    pull_bursts(receiver, 1)
    assert receiver.counters["rx_overflow"] == sent + 1 - came  # not counted again


def test_overflow_of_super_datagrams(opened: Open) -> None:
    """They are counted as the datagrams they are; the last ones when the port is closed."""
    sender, receiver = opened(), opened(buffer=100_000)
    sent = 50
    for _ in range(sent):
        sender.push([Outgoing((receiver.address,), TOS_DATA, *packets(20, 1000))])
    time.sleep(0.05)
    came = 0
    while bursts := receiver.pull():
        came += sum(len(burst.rows) for burst in bursts)
    assert came < 20 * sent
    receiver.close()
    assert receiver.counters["rx_overflow"] == sent - came / 20
    receiver.close()
    assert receiver.counters["rx_overflow"] == sent - came / 20


def test_answers_come_from_the_address_that_was_spoken_to(opened: Open) -> None:
    """Whoever is connected to it hears no other."""
    switch = opened(("0.0.0.0", 0))
    peers = [opened(connect=(f"127.0.0.{i}", switch.address.port)) for i in (1, 2, 3, 2)]
    for peer in peers:
        peer.socket.send(b"from me")
    bursts = pull_bursts(switch, 4)
    rows, tail = packets(60, 1000, 30)
    switch.push([Outgoing(tuple(burst.peer for burst in bursts), TOS_DATA, rows, tail)])
    for peer in peers:
        assert received(pull_bursts(peer, 60)) == payloads(rows, tail)


def test_strangers_do_not_make_it_forget_where_a_member_spoke_to(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(udp, "SOURCES", 4)
    monkeypatch.setattr(reading, "KINDS", 4)
    switch = opened(("0.0.0.0", 0))
    member = opened(connect=("127.0.0.3", switch.address.port))
    rows, tail = packets(5, 100)
    for _ in range(3):  # of a kind that has been seen
        member.socket.send(b"from me")
        (burst,) = pull_bursts(switch, 1)
    for _ in range(9):
        stranger = opened(connect=("127.0.0.2", switch.address.port))
        stranger.socket.send(b"and me")
        pull_bursts(switch, 1)
    member.socket.send(b"from me")
    pull_bursts(switch, 1)
    switch.push([Outgoing((burst.peer,), TOS_DATA, rows, tail)])
    assert received(pull_bursts(member, 5)) == payloads(rows, tail)


@pytest.mark.parametrize("n", [60, 100, 130], ids=["one", "two", "three"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL, errno.EMSGSIZE])
def test_who_cannot_be_sent_super_datagrams_is_sent_packets(
    opened: Open, monkeypatch: pytest.MonkeyPatch, code: int, n: int
) -> None:
    """A device that cannot segment answers EIO, a path whose MTU is too small EINVAL."""
    sender, receivers = opened(), [opened(), opened()]
    send_to_all, send_rows = sender.sender._sender.send_to_all, sender.sender._sender.send_rows
    refused_port = receivers[1].address.port

    def port_of(name: int) -> int:
        (port,) = struct.unpack(">H", ctypes.string_at(name + 2, 2))
        return int(port)

    def refuse(fd: int, payload: np.ndarray, names: np.ndarray, control: Any) -> int:
        if control.size > 24:  # with UDP_SEGMENT
            if port_of(int(names[0])) == refused_port:
                raise OSError(code, "no")
            return send_to_all(fd, payload, names[:1], control)
        return send_to_all(fd, payload, names, control)

    def refuse_the_second(fd: int, rows: np.ndarray, tail: int, name: int, control: Any) -> int:
        if control.size > 24 and port_of(name) == refused_port:
            if len(rows) < -(-n // 64):
                raise OSError(code, "no")
            return send_rows(fd, rows[:1], rows.shape[1], name, control)
        return send_rows(fd, rows, tail, name, control)

    monkeypatch.setattr(sender.sender._sender, "send_to_all", refuse)
    monkeypatch.setattr(sender.sender._sender, "send_rows", refuse_the_second)
    rows, tail = packets(n, 1000, 30)
    peers = tuple(receiver.address for receiver in receivers)
    sender.push([Outgoing(peers, TOS_DATA, rows, tail)] * 2)
    assert set(sender.sender._singly) == {receivers[1].address}
    for receiver in receivers:
        assert received(pull_bursts(receiver, 2 * n)) == payloads(rows, tail) * 2
    assert sender.counters["tx_failed"] == 0


def test_kernel_without_offload(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udp, "UDP_GRO", 9999)  # an option that no kernel has
    port = opened()
    assert port.offload is False
    rows, tail = packets(10, 100)
    port.push([Outgoing((port.address,), TOS_DATA, rows, tail)])
    assert received(pull_bursts(port, 10)) == payloads(rows, tail)


def test_connected_port_hears_its_peer_only(opened: Open) -> None:
    peer, stranger = opened(), opened()
    port = opened(connect=peer.address[:2])
    for source, byte in ((stranger, 1), (peer, 2), (stranger, 3)):
        rows = np.full((1, 8), byte, np.uint8)
        source.push([Outgoing((port.address,), TOS_DATA, rows, 8)])
    assert received(pull_bursts(port, 1)) == [bytes([2]) * 8]
    assert port.pull() == []
    rows, tail = packets(44, 1472, 3)
    port.push([Outgoing((peer.address,), TOS_DATA, rows, tail)])
    (burst,) = pull_bursts(peer, 44)
    assert burst.peer == port.address
    assert received([burst]) == payloads(rows, tail)


@pytest.mark.parametrize("n", [1, 10])
@OFFLOAD
def test_refusal_is_noted(opened: Open, offload: bool, n: int) -> None:
    gone = opened()
    gone.close()
    port = opened(connect=gone.address[:2], offload=offload)
    rows, tail = packets(n, 24)
    assert not port.refused
    port.push([Outgoing((gone.address,), TOS_CONTROL, rows, tail)])
    end = time.monotonic() + PATIENCE
    while not port.refused:
        assert port.pull() == []
        assert time.monotonic() < end
    back = opened(gone.address[:2])  # somebody listens there again
    while back.pull():  # what was sent just before
        pass
    port.push([Outgoing((back.address,), TOS_CONTROL, rows, tail)])
    assert received(pull_bursts(back, n)) == payloads(rows, tail)


def test_refusal_met_while_sending_loses_nothing(opened: Open) -> None:
    """The error belongs to an earlier datagram: the one at hand is sent all the same."""
    gone = opened()
    gone.close()
    port = opened(connect=gone.address[:2])
    first, second = packets(1, 24, seed=1), packets(1, 24, seed=2)
    port.push([Outgoing((gone.address,), TOS_CONTROL, *first)])
    wait(port)  # the refusal is there, unread
    back = opened(gone.address[:2])
    port.push([Outgoing((back.address,), TOS_CONTROL, *second)])
    assert port.refused
    assert received(pull_bursts(back, 1)) == payloads(*second)
    assert port.counters["tx_failed"] == 0


def test_close(opened: Open) -> None:
    port = opened()
    port.close()
    assert port.fileno() == -1
    again = opened(port.address[:2])
    assert again.address == port.address


def test_address_in_use(opened: Open) -> None:
    port = opened()
    with pytest.raises(OSError, match="in use") as raised:
        UdpPort(port.address[:2])
    assert raised.value.errno == errno.EADDRINUSE


def test_thousands_of_strangers(opened: Open) -> None:
    """What is remembered of senders and receivers stays bounded."""
    port, receiver = opened(), opened()
    rows, tail = packets(1, 8)
    for i in range(5000):
        port.push([Outgoing((Address(f"127.1.{i >> 8}.{i & 255}", 9),), TOS_DATA, rows, tail)])
    assert len(port.sender._groups) <= 4096
    assert len(port.sender._names) <= 4096
    port.push([Outgoing((receiver.address,), TOS_DATA, rows, tail)])
    assert received(pull_bursts(receiver, 1)) == payloads(rows, tail)
    for i in range(5000):
        port.reader._read_kind(struct.pack("<HHI", 2, i, i) + bytes(104))
    assert len(port.reader._kinds) <= 4096
    receiver.push([Outgoing((port.address,), TOS_DATA, rows, tail)])
    assert received(pull_bursts(port, 1)) == payloads(rows, tail)
