"""The UDP port: what is sent arrives, in bursts as large as the machine allows."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from iswitch.core.format.packets import Address, Burst, Outgoing, Recurring
from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA
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
    one.sender._send_to_singly(int(one.sender._group((other.address,))[0].names[0]))
    rows += 1
    one.push([sends])
    assert received(pull_bursts(other, n)) == payloads(rows, tail)
    assert one.counters["tx_failed"] == 0


@pytest.mark.parametrize("taken", [0, 1])
def test_what_the_kernel_leaves_of_it_is_sent_otherwise(opened: Open, taken: int) -> None:
    one, other = opened(), opened()
    rows, tail = packets(100, 1000, 7)
    sends = Recurring((other.address,), TOS_DATA, rows, tail)
    post = one.sender._describe(sends)
    assert post is not None
    assert post.count == 2
    one.sender._posts.keep(sends.rows, (one.sender.version, post))
    post.count = 1
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
