"""The UDP port: what is sent arrives, in bursts as large as the machine allows."""

from __future__ import annotations

import ctypes
import errno
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.packets import Address, Burst, Outgoing, Recurring
from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA
from iswitch.ports import reading, udp
from iswitch.ports.reading import SOL_UDP
from iswitch.ports.sending import UDP_SEGMENT
from iswitch.ports.udp import UdpPort

PATIENCE = 20.0  # seconds until a test is given up
SO_PEEK_OFF = 42  # linux/socket.h
HOME = ("127.0.0.1", 0)

Open = Callable[..., UdpPort]
OFFLOAD = pytest.mark.parametrize("offload", [True, False], ids=["offload", "singly"])


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens ports, and closes them at the end."""
    ports: list[UdpPort] = []

    def open_port(listen: tuple[str, int] = HOME, **kwargs: object) -> UdpPort:
        ports.append(UdpPort(listen, **kwargs))  # type: ignore[arg-type]
        return ports[-1]

    yield open_port
    for port in ports:
        port.close()


def packets(n: int, size: int, tail: int | None = None, seed: int = 0) -> tuple[np.ndarray, int]:
    rows = np.random.default_rng(seed).integers(0, 256, (n, size), np.uint8)
    return rows, size if tail is None else tail


def payloads(rows: np.ndarray, tail: int) -> list[bytes]:
    """What a burst or an Outgoing holds, packet by packet."""
    return [row.tobytes() for row in rows[:-1]] + [rows[-1, :tail].tobytes()]


def copy(burst: Burst) -> Burst:
    """A burst that outlasts the next call."""
    return burst._replace(rows=burst.rows.copy())


def wait(port: UdpPort) -> None:
    poller = select.poll()
    poller.register(port, select.POLLIN)
    assert poller.poll(PATIENCE * 1000), "nothing comes"


def pull_together(port: UdpPort, count: int) -> list[Burst]:
    """Pull once, when `count` datagrams are there: they are looked at, one after the other."""
    port.socket.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 0)
    for _ in range(count):
        wait(port)
        port.socket.recv(65536, socket.MSG_PEEK)
    port.socket.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, -1)
    return list(port.pull())


def pull_bursts(port: UdpPort, count: int) -> list[Burst]:
    """Pull until `count` packets have come."""
    bursts: list[Burst] = []
    while sum(len(burst.rows) for burst in bursts) < count:
        wait(port)
        bursts += map(copy, port.pull())
    assert sum(len(burst.rows) for burst in bursts) == count
    return bursts


def received(bursts: list[Burst]) -> list[bytes]:
    return [payload for burst in bursts for payload in payloads(burst.rows, burst.tail)]


def datagram_socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(HOME)
    return sock


def test_super_datagram_arrives_as_one_burst(opened: Open) -> None:
    sender, receiver = opened(), opened()
    assert sender.offload
    assert receiver.offload
    rows, tail = packets(44, 1472, 100)
    sender.push([Outgoing((receiver.address,), TOS_DATA, rows, tail)])
    (burst,) = pull_bursts(receiver, 44)
    assert burst.peer == sender.address
    assert burst.tos == TOS_DATA
    assert burst.rows.shape == (44, 1472)
    assert burst.tail == 100
    assert burst.nbytes == 43 * 1472 + 100
    assert payloads(burst.rows, burst.tail) == payloads(rows, tail)


@pytest.mark.parametrize("n", [1, 2, 64, 65, 129, 700])
@pytest.mark.parametrize(("size", "tail"), [(8, 8), (9, 1), (1000, 1), (1472, 1471), (1472, 1472)])
@pytest.mark.parametrize("receives_whole", [True, False])
@OFFLOAD
def test_everything_arrives_in_order(
    opened: Open, offload: bool, receives_whole: bool, size: int, tail: int, n: int
) -> None:
    sender, receiver = opened(offload=offload), opened(offload=receives_whole)
    rows, tail = packets(n, size, tail)
    sender.push([Outgoing((receiver.address,), TOS_DATA, rows, tail)])
    bursts = pull_bursts(receiver, n)
    assert received(bursts) == payloads(rows, tail)
    assert {(burst.peer, burst.tos) for burst in bursts} == {(sender.address, TOS_DATA)}
    if offload and receives_whole:
        at_once = min(65507 // size, 64)
        assert len(bursts) <= -(-n // at_once)
    assert not sender.counters.drops()
    assert not receiver.counters.drops()


@pytest.mark.parametrize(
    ("counts", "tail", "bursts"),
    [
        ([44, 30, 44], 1472, 1),
        ([44, 1, 7], 1000, 1),
        ([3, 44, 1], 100, 1),
        ([1, 1, 5], 1472, 1),
        ([2, 0, 2], 1472, 3),  # an empty one is none of them
    ],
)
def test_super_datagrams_of_any_lengths_are_one_burst(
    opened: Open, counts: list[int], tail: int, bursts: int
) -> None:
    """Where some are lost they are not all full; only the last packet of all may be shorter."""
    sender, receiver = opened(), opened()
    sent: list[bytes] = []
    for round_ in range(2):  # the second time it is expected
        for i, count in enumerate(counts):
            last = tail if i == len(counts) - 1 else 1472
            rows, last = packets(count, 1472, last) if count else (np.zeros((1, 1), np.uint8), 0)
            sender.push([Outgoing((receiver.address,), TOS_DATA, rows, last)])
            sent += payloads(rows, last)
        found = pull_together(receiver, len(counts))
        assert received(found) == sent, f"round {round_}"
        if round_:
            assert len(found) == bursts
        sent.clear()


def test_rows_that_are_not_contiguous(opened: Open) -> None:
    sender, receiver = opened(), opened()
    wide, _ = packets(30, 200)
    rows = wide[::3, :50]
    sender.push([Outgoing((receiver.address,), TOS_DATA, rows, 20)])
    assert received(pull_bursts(receiver, 10)) == payloads(rows, 20)
    plain = opened(offload=False)
    plain.push([Outgoing((receiver.address,), TOS_DATA, rows, 20)])
    assert received(pull_bursts(receiver, 10)) == payloads(rows, 20)


@OFFLOAD
def test_singles_are_batched_by_sender_and_length(opened: Open, offload: bool) -> None:
    receiver = opened(offload=offload)
    with datagram_socket() as one, datagram_socket() as two:
        sent = [
            (one, b"a" * 100),
            (one, b"b" * 100),
            (one, b"c" * 60),  # another length
            (two, b"d" * 60),  # another sender
            (two, b"e" * 60),
            (two, b"f" * 60),
            (one, b"g" * 60),
        ]
        for sock, payload in sent:
            sock.sendto(payload, receiver.address[:2])
        bursts = pull_together(receiver, 7)
        assert [payloads(burst.rows, burst.tail) for burst in bursts] == [
            [b"a" * 100, b"b" * 100],
            [b"c" * 60],
            [b"d" * 60, b"e" * 60, b"f" * 60],
            [b"g" * 60],
        ]
        peers = [Address(*sock.getsockname()) for sock in (one, one, two, one)]
        assert [burst.peer for burst in bursts] == peers
    assert receiver.pull() == []


def test_tos_tells_bursts_apart(opened: Open) -> None:
    receiver = opened()
    with datagram_socket() as sock:
        for tos in (0x0C, 0x0C, 0x1C, 0x1D, 0x00):
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
            sock.sendto(bytes([tos]) * 8, receiver.address[:2])
    bursts = pull_together(receiver, 5)
    assert [(burst.tos, len(burst.rows)) for burst in bursts] == [
        (0x0C, 2), (0x1C, 1), (0x1D, 1), (0x00, 1),
    ]  # fmt: skip
    assert all((burst.rows == burst.tos).all() for burst in bursts)


@pytest.mark.parametrize("tos", [TOS_CONTROL, TOS_DATA])
@pytest.mark.parametrize("n", [1, 5])
@OFFLOAD
def test_tos_is_sent(opened: Open, offload: bool, n: int, tos: int) -> None:
    sender, receiver = opened(offload=offload), opened()
    rows, tail = packets(n, 24)
    sender.push([Outgoing((receiver.address,), tos, rows, tail)])
    assert {burst.tos for burst in pull_bursts(receiver, n)} == {tos}


@OFFLOAD
def test_several_receivers(opened: Open, offload: bool) -> None:
    sender = opened(offload=offload)
    receivers = [opened() for _ in range(5)]
    peers = tuple(receiver.address for receiver in receivers)
    single, whole, large = packets(1, 24), packets(30, 1472, 8), packets(100, 1472)
    sends = [
        Outgoing(peers, tos, rows, tail)
        for tos, (rows, tail) in zip(
            (TOS_CONTROL, TOS_DATA, TOS_DATA), (single, whole, large), strict=True
        )
    ]
    sender.push(sends)
    sender.push(sends)  # by what is remembered of the first
    expected = [p for out in sends for p in payloads(out.rows, out.tail)] * 2
    for receiver in receivers:
        assert received(pull_bursts(receiver, 262)) == expected
    assert not sender.counters.drops()


@OFFLOAD
@pytest.mark.parametrize("n", [1, 10, 100])
def test_the_same_memory_is_sent_with_what_it_holds_then(
    opened: Open, offload: bool, n: int
) -> None:
    one, other = opened(offload=offload), opened()
    rows, tail = packets(n, 1000, 7)
    sends = Recurring((other.address,), TOS_DATA, rows, tail)
    for _ in range(3):
        rows += 1
        one.push([sends])
        assert received(pull_bursts(other, n)) == payloads(rows, tail)
    one._out._send_to_singly(int(one._out._group((other.address,))[0].names[0]))
    rows += 1
    one.push([sends])
    assert received(pull_bursts(other, n)) == payloads(rows, tail)
    assert one.counters["tx_failed"] == 0


@pytest.mark.parametrize("taken", [0, 1])
def test_what_the_kernel_leaves_of_it_is_sent_otherwise(opened: Open, taken: int) -> None:
    one, other = opened(), opened()
    rows, tail = packets(100, 1000, 7)
    sends = Recurring((other.address,), TOS_DATA, rows, tail)
    post = one._out._describe(sends)
    assert post is not None
    assert post._count == 2
    one._out._posts.keep(sends.rows, (one._out._described, post))
    post._count = 1
    if not taken:
        post.send = lambda _fd: 0  # type: ignore[method-assign, assignment]
    one.push([sends])
    assert received(pull_bursts(other, 100)) == payloads(rows, tail)


def test_receivers_of_whom_one_refuses(opened: Open) -> None:
    """One worker that is gone costs the others nothing."""
    sender = opened()
    alive, gone = opened(), opened()
    peers = (gone.address, alive.address)
    gone.close()
    rows, tail = packets(3, 24)
    for _ in range(5):
        sender.push([Outgoing(peers, TOS_DATA, rows, tail)])
    assert received(pull_bursts(alive, 15)) == payloads(rows, tail) * 5


@OFFLOAD
def test_more_packets_than_a_call_takes(opened: Open, offload: bool) -> None:
    """The kernel takes 1024 messages in one call; three bursts of more are all sent."""
    sender, receiver = opened(offload=offload), opened()
    rows, tail = packets(2500, 40, 17)
    sender.push([Outgoing((receiver.address,), TOS_DATA, rows, tail)])
    assert received(pull_bursts(receiver, 2500)) == payloads(rows, tail)
    assert sender.counters["tx_failed"] == 0


def test_more_receivers_than_a_call_takes(opened: Open) -> None:
    """The same address 1500 times stands for so many."""
    sender, receiver = opened(), opened()
    rows, tail = packets(1, 24)
    sender.push([Outgoing((receiver.address,) * 1500, TOS_CONTROL, rows, tail)])
    assert received(pull_bursts(receiver, 1500)) == payloads(rows, tail) * 1500


@pytest.mark.parametrize(
    ("n", "size", "tail"),
    [(5, 30_000, 7), (3, 32_754, 32_754), (1, 65_507, 65_507), (2, 65_507, 9)],
)
@OFFLOAD
def test_large_packets(opened: Open, offload: bool, n: int, size: int, tail: int) -> None:
    sender, receiver = opened(offload=offload), opened()
    rows, tail = packets(n, size, tail)
    sender.push([Outgoing((receiver.address,), TOS_DATA, rows, tail)])
    assert received(pull_bursts(receiver, n)) == payloads(rows, tail)
    assert sender.counters["tx_failed"] == 0


@pytest.mark.parametrize(
    ("segment", "total"), [(60_000, 65_400), (65_399, 65_400), (32_760, 65_400), (49_153, 49_154)]
)
def test_super_datagram_of_two_unequal_halves(opened: Open, segment: int, total: int) -> None:
    """Another program may cut a super-datagram where this one would not."""
    receiver = opened()
    payload = np.random.default_rng(1).bytes(total)
    with datagram_socket() as sock:
        cut = (SOL_UDP, UDP_SEGMENT, struct.pack("<H", segment))
        sock.sendmsg([payload], [cut], 0, receiver.address[:2])
    bursts = pull_bursts(receiver, 2)
    assert received(bursts) == [payload[:segment], payload[segment:]]


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
    send_to_all, send_rows = sender._out._sender.send_to_all, sender._out._sender.send_rows
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

    monkeypatch.setattr(sender._out._sender, "send_to_all", refuse)
    monkeypatch.setattr(sender._out._sender, "send_rows", refuse_the_second)
    rows, tail = packets(n, 1000, 30)
    peers = tuple(receiver.address for receiver in receivers)
    sender.push([Outgoing(peers, TOS_DATA, rows, tail)] * 2)
    assert set(sender._out._singly) == {receivers[1].address}
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
    assert len(port._out._groups) <= 4096
    assert len(port._out._names) <= 4096
    port.push([Outgoing((receiver.address,), TOS_DATA, rows, tail)])
    assert received(pull_bursts(receiver, 1)) == payloads(rows, tail)
    for i in range(5000):
        port._in._read_kind(struct.pack("<HHI", 2, i, i) + bytes(104))
    assert len(port._in._kinds) <= 4096
    receiver.push([Outgoing((port.address,), TOS_DATA, rows, tail)])
    assert received(pull_bursts(port, 1)) == payloads(rows, tail)
