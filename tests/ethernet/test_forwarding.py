"""The learning bridge, and a switch with ports as a pure object."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from iswitch.core.format import counters as c
from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import Ack, Action, Control, Join, MemberType, Shape, Status
from iswitch.core.switch import Switch
from iswitch.ethernet.bridge import MOST, Bridge
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.frame import ARP_REPLY, ARP_REQUEST, BROADCAST, Frames, Transmission, arp
from iswitch.ethernet.issuing import Jack
from iswitch.ethernet.segmentation import wire_frames
from tests.support import frames as slow

pytestmark = pytest.mark.unit

A, B, C = slow.MACS[:3]
GROUP = bytes.fromhex("01005e000001")
DATA, CONTROL = 0x1C, 0x0C


def test_a_bridge_floods_until_it_knows() -> None:
    bridge = Bridge(3)
    assert bridge.egress(B, 0, 0.0) == (1, 2)
    bridge.learn(B, 2, 0.0)
    assert bridge.egress(B, 0, 1.0) == (2,)
    assert bridge.egress(B, 2, 1.0) == ()  # it is there already
    bridge.learn(B, 1, 2.0)  # it has moved
    assert bridge.egress(B, 0, 2.0) == (1,)
    assert bridge.egress(B, 0, 302.0) == (1,)
    assert bridge.egress(B, 0, 302.1) == (1, 2)  # forgotten


def test_groups_go_everywhere_but_those_of_the_link() -> None:
    bridge = Bridge(3)
    assert bridge.egress(BROADCAST, 1, 0.0) == bridge.egress(GROUP, 1, 0.0) == (0, 2)
    for last in range(256):
        group = bytes.fromhex("0180c20000") + bytes([last])
        assert bridge.egress(group, 1, 0.0) == (() if last < 16 else (0, 2))


def test_a_full_table_forgets_the_old_first_and_learns_nobody_else() -> None:
    bridge = Bridge(2)
    for i in range(MOST):
        bridge.learn(b"\2" + i.to_bytes(5, "big"), 0, float(i > 0))
    bridge.learn(A, 1, 300.0)
    assert len(bridge) == MOST
    assert bridge.where(A, 300.0) is None
    bridge.learn(A, 1, 300.5)  # the first of them is old now
    assert bridge.where(A, 300.5) == 1


class Bench:
    """A chassis with ports, and what it does, as whole frames on the wire."""

    def __init__(self, *jacks: Jack) -> None:
        self.switch = Switch()
        jacks = jacks or (Jack(), Jack(), Jack())
        self.chassis = Chassis(self.switch, slow.SWITCH_IP, slow.SWITCH_MAC, jacks)
        self.sent: list[Transmission] = []
        self.now = 0.0

    def put(self, ingress: int, *rows: bytes) -> list[tuple[int, bytes]]:
        """Frames with virtio_net_hdr come in together; (port, frame) that go out."""
        steps = self.chassis.receive(Frames.of(ingress, rows), self.now)
        return self.out([send.copy() for step in steps for send in step])

    def out(self, sends: Sequence[Transmission]) -> list[tuple[int, bytes]]:
        self.sent = list(sends)
        found = []
        for send in sends:
            assert len(send.lengths) == len(send.counts)
            self.switch.counters["tx_frames"] += sum(send.counts)
            for row, count in zip(send.whole(), send.counts, strict=True):
                frames = [x for some in wire_frames(np.frombuffer(row, np.uint8)) for x in some]
                assert len(frames) == count
                found += [(send.port, frame.tobytes()) for frame in frames]
        self.balance()
        return found

    def balance(self) -> None:
        """The accounts are without a rest."""
        n = self.switch.counters
        drops = sum(n[reason] for reason in c.FRAME_DROPS)
        assert n["rx_frames"] == n["rx_packets"] + n["forwarded"] + n["answered"] + drops
        drops = sum(n[reason] for reason in c.EGRESS_DROPS)
        assert n["tx_packets"] + n["copies"] + n["own_frames"] == n["tx_frames"] + drops

    def drops(self) -> dict[str, int]:
        return self.switch.counters.drops()

    def join(self, *hosts: int, numel: int = 1000) -> Shape:
        shape = Shape.of(numel)
        for host in hosts:
            join = Join.for_shape(shape, MemberType.WORKER, len(hosts), 0)
            request = Control(Action.JOIN, 7, 1, join).build()
            sent = self.put(host, slow.VNET + slow.tagged(host, request, CONTROL))
            acks = [frame for port, frame in sent if port == host]
            assert len(acks) == 1
            ack = Control.parse(acks[0][42:])
            assert isinstance(ack.value, Ack)
            assert ack.status == Status.OK
        return shape


def plain(to: bytes, source: bytes, size: int = 100, kind: int = 0x88B5) -> bytes:
    return slow.VNET + slow.ethernet(to, source, bytes(size - 14), kind)


def test_frames_between_others_pass_as_they_are() -> None:
    bench = Bench()
    assert bench.put(0, plain(B, A)) == [(1, plain(B, A)[10:]), (2, plain(B, A)[10:])]
    assert bench.put(2, plain(A, B)) == [(0, plain(A, B)[10:])]
    assert bench.put(0, plain(B, A)) == [(2, plain(B, A)[10:])]
    batch = [plain(B, A, size) for size in (60, 1514, 42, 14)] + [plain(C, A)]
    wanted = [(2, row[10:]) for row in batch[:4]]
    assert bench.put(0, *batch) == [*wanted, (1, plain(C, A)[10:]), (2, plain(C, A)[10:])]
    assert bench.drops() == {}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (plain(B, A)[: 10 + 13], "bad_frame"),
        (b"", "bad_frame"),
        (plain(B, GROUP), "bad_frame"),
        (plain(B, slow.SWITCH_MAC), "spoofed"),
        (plain(bytes.fromhex("0180c2000000"), A), "link_local"),
        (plain(A, B), "same_port"),
        (plain(slow.SWITCH_MAC, A), "unserved"),
        (slow.VNET + slow.tagged(0, b"x" * 20, 0), "unserved"),  # an ordinary ToS
        (slow.VNET + slow.tagged(0, b"x" * 20, DATA, ports=(5000, 1)), "unserved"),
        (slow.VNET + slow.tagged(0, b"x" * 20, DATA, fragment=0x2000), "unserved"),
        (slow.VNET + slow.tagged(0, b"x" * 20, DATA)[:-1], "bad_frame"),
        (slow.VNET + slow.tagged(0, b"x" * 20, DATA)[:-1] + b"y", "bad_checksum"),
        (slow.VNET + slow.tagged(0, b"x" * 20, DATA), "stranger"),
        (slow.VNET + slow.tagged(0, b"x" * 20, DATA, check=False), "stranger"),
        (slow.VNET + slow.tagged(0, b"x" * 20, DATA, options=bytes(8)), "stranger"),
        (slow.VNET + slow.tagged(0, b"x" * 7, DATA), "short"),
        (slow.VNET + slow.tagged(0, b"", DATA), "short"),
        (slow.VNET + slow.tagged(0, b"x" * 20, DATA) + bytes(9), "stranger"),  # padded
        (slow.super_vnet(1, 66, 9, 34, 16) + plain(B, A)[10:], "bad_frame"),
        (slow.super_vnet(1, 66, 9, 34, 16) + slow.tagged(0, b"x" * 20, DATA), "bad_frame"),
    ],
)  # fmt: skip
def test_every_drop_has_a_reason(row: bytes, reason: str) -> None:
    bench = Bench()
    bench.chassis.bridge.learn(A, 0, 0.0)
    assert bench.put(0, row) == []
    assert bench.drops() == {reason: 1}


def test_a_wrong_ip_checksum_is_seen() -> None:
    bench = Bench()
    good = slow.VNET + slow.tagged(0, b"x" * 20, DATA)
    bad = bytearray(good)
    bad[10 + 14 + 8] ^= 1  # the time to live
    assert bench.put(0, good, bytes(bad), good) == []
    assert bench.drops() == {"stranger": 2, "bad_checksum": 1}


def test_too_large_for_one_port_is_dropped_there() -> None:
    bench = Bench(Jack(9000), Jack(1500), Jack(9000))
    assert bench.put(0, plain(B, A, 1515)) == [(2, plain(B, A, 1515)[10:])]
    assert bench.drops() == {"too_large": 1}
    tag = plain(B, A, 1518, kind=0x8100)  # a tag does not count
    assert [port for port, _ in bench.put(0, tag)] == [1, 2]
    assert [port for port, _ in bench.put(0, plain(B, A, 1519, kind=0x8100))] == [2]


def super_datagram(host: int, packets: Sequence[bytes], size: int) -> bytes:
    frame = slow.tagged(host, b"".join(packets), DATA)
    return slow.super_vnet(5, 42, size, 34, 6) + slow.partial(frame, 17, 34, 6)


def test_a_super_frame_is_measured_by_its_packets() -> None:
    bench = Bench(Jack(9000), Jack(1500), Jack(9000))
    packets = [b"x" * 1472] * 5 + [b"y"]
    row = super_datagram(0, packets, 1472)
    row = row[:10] + B + row[16:]
    assert [port for port, _ in bench.put(0, row)] == [1] * 6 + [2] * 6
    row = super_datagram(0, [b"x" * 1473] * 5, 1473)
    row = row[:10] + B + row[16:]
    assert [port for port, _ in bench.put(0, row)] == [2] * 5
    assert bench.drops() == {"too_large": 5}


@pytest.mark.parametrize("tags", [b"", b"\x81\0\x20\5", b"\x88\xa8\0\7\x81\0\0\x08"], ids=len)
@pytest.mark.parametrize("offload", [True, False])
def test_super_frames_of_tcp_go_on_behind_tags(tags: bytes, offload: bool) -> None:
    """Each frame has the tags; who lies about where TCP is, is not taken for one that was right."""
    bench = Bench(*[Jack(1504, offload)] * 2)  # MTU with room for a second tag
    segment = struct.pack(">HHIIBBHHH", 1, 2, 7, 5, 0x50, 0x10, 9, 0, 0) + bytes(3 * 1448 + 1)
    frame = slow.ethernet(B, A, slow.ip((slow.IPS[0], slow.IPS[1]), 6, segment))
    frame = slow.partial(frame, 6, 34, 16)
    assert len(bench.put(0, slow.super_vnet(1, 54, 1448, 34, 16) + frame)) == 4
    start = 34 + len(tags)
    row = slow.super_vnet(1, start + 20, 1448, start, 16) + frame[:12] + tags + frame[12:]
    out = [sent for _, sent in bench.put(0, row)]
    assert [len(x) - start - 20 for x in out] == [1448, 1448, 1448, 1]
    assert all(x[12:].startswith(tags) for x in out)
    assert all(slow.checksums_right(x[:12] + x[12 + len(tags) :]) for x in out)
    assert bench.drops() == {}
    if len(tags) == 4:  # to be read at 34, where a frame of this length without a tag has its TCP
        twin = slow.super_vnet(1, 54, 1448, 34, 16) + frame[:12] + b"\x81\0\x45\0" + frame[16:]
        assert bench.put(0, twin) == []
        assert bench.drops() == {"bad_frame": 1}


def data(shape: Shape, round_: int, values: np.ndarray) -> list[bytes]:
    """The packets of a vector."""
    packets = np.zeros(shape.segments, shape.packet)
    packets["seg"] = shape.headers(round_)
    flat = np.zeros(shape.segments * shape.elements, np.float32)
    flat[: len(values)] = values
    packets["data"] = flat.reshape(shape.segments, -1)
    rows = [packet.tobytes() for packet in packets]
    return [*rows[:-1], rows[-1][: shape.last_size]]


@pytest.mark.parametrize("offload", [True, False])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("numel", [1, 366, 1000, 44 * 366, 100 * 366 + 5])
def test_sums_go_to_all_members(whole: bool, offload: bool, numel: int) -> None:
    bench = Bench(*[Jack(1500, offload)] * 3)
    shape = bench.join(0, 1, numel=numel)
    values = np.arange(numel) % 50
    for host in (0, 1):
        packets = data(shape, 0, values + host)
        if whole:
            runs = [packets[i : i + 44] for i in range(0, len(packets), 44)]
            rows = [super_datagram(host, run, 1472) for run in runs]
        else:
            rows = [slow.VNET + slow.tagged(host, packet, DATA) for packet in packets]
        sent = bench.put(host, *rows)
        if host == 0:
            assert sent == []
    wanted = data(shape, 0, 2 * values + 1)
    for host in (0, 1):
        mine = [frame for port, frame in sent if port == host]
        assert [frame[42:] for frame in mine] == wanted
        for frame in mine:
            assert slow.checksums_right(frame)
            assert frame[:12] == slow.MACS[host] + slow.SWITCH_MAC
            assert frame[26:34] == slow.SWITCH_IP + slow.IPS[host]
            assert frame[34:38] == struct.pack(">HH", 26963, 5000)
            assert frame[15] == DATA
    most = max(send.counts[0] for send in bench.sent)
    if not offload:
        assert most == 1
    elif whole:
        assert most == min(44, len(wanted))
    assert not bench.drops()


def test_super_frames_that_lie_one_after_the_other_are_one_run() -> None:
    bench = Bench()
    shape = bench.join(0, numel=16 * 366)
    runs = [super_datagram(0, data(shape, 0, np.ones(16 * 366))[i : i + 4], 1472) for i in (0, 4)]
    frames = Frames.of(0, runs)
    bodies = np.ascontiguousarray(frames.bodies)
    step = list(bench.chassis.receive(frames._replace(bodies=bodies), 0.0))
    assert [[send.counts for send in sends] for sends in step] == [[[8]]]


def test_what_is_too_large_for_a_member_is_dropped_there() -> None:
    bench = Bench(Jack(1500), Jack(1499), Jack())
    shape = bench.join(0, 1, numel=366)
    for host in (0, 1):
        (packet,) = data(shape, 0, np.ones(366))
        sent = bench.put(host, slow.VNET + slow.tagged(host, packet, DATA))
    assert [port for port, _ in sent] == [0]
    assert bench.drops() == {"too_large": 1}


def test_arp_for_the_switch_is_answered_and_not_flooded() -> None:
    bench = Bench()
    request = slow.VNET + arp(ARP_REQUEST, A, slow.IPS[0], bytes(6), slow.SWITCH_IP)
    reply = arp(ARP_REPLY, slow.SWITCH_MAC, slow.SWITCH_IP, A, slow.IPS[0])
    assert bench.put(0, request) == [(0, reply)]
    group = slow.VNET + BROADCAST + A + b"\x08\x00" + bytes(46)  # of the same host, with it
    for rows in ((group, request), (request, group)):
        assert (0, reply) in bench.put(0, *rows)
    other = arp(ARP_REQUEST, A, slow.IPS[0], bytes(6), slow.IPS[1])
    assert bench.put(0, slow.VNET + other, request) == [(1, other), (2, other), (0, reply)]
    unicast = slow.VNET + slow.SWITCH_MAC + request[16:]
    assert bench.put(0, unicast) == [(0, reply)]


def test_arp_finds_a_peer_that_was_never_heard() -> None:
    bench = Bench()
    out = Outgoing.control(Address("10.26.0.2", 26963, 1), b"12345678")

    def issue(now: float) -> list[tuple[int, bytes]]:
        bench.switch.counters["tx_packets"] += 1
        return bench.out(bench.chassis.issuer.issue([out], now))

    request = arp(ARP_REQUEST, slow.SWITCH_MAC, slow.SWITCH_IP, bytes(6), slow.IPS[1])
    assert issue(0.0) == [(1, request)]
    assert issue(0.5) == []  # asked just now
    answer = arp(ARP_REPLY, B, slow.IPS[1], slow.SWITCH_MAC, slow.SWITCH_IP)
    assert bench.put(1, slow.VNET + answer) == []
    ((port, frame),) = issue(0.6)
    assert (port, frame[:6], frame[42:]) == (1, B, b"12345678")
    assert bench.drops() == {"unresolved": 2}


rows = st.one_of(
    st.binary(max_size=120),
    st.builds(
        lambda vnet, to, source, rest: vnet + to + source + rest,
        st.one_of(st.just(slow.VNET), st.binary(min_size=10, max_size=10)),
        st.sampled_from([A, B, slow.SWITCH_MAC, BROADCAST, GROUP]),
        st.sampled_from([A, B, slow.SWITCH_MAC, GROUP]),
        st.binary(max_size=120),
    ),
    st.builds(
        lambda vnet, host, payload, tos, cut, flip: corrupt(
            vnet + slow.tagged(host, payload, tos), cut, flip
        ),
        st.sampled_from([slow.VNET, *(slow.super_vnet(k, 42, 9 * k, 34, 6) for k in (0, 5))]),
        st.integers(0, 2),
        st.binary(max_size=60),
        st.sampled_from([DATA, CONTROL, 0]),
        st.integers(0, 9),
        st.integers(0, 200),
    ),
)  # fmt: skip


def corrupt(row: bytes, cut: int, flip: int) -> bytes:
    row = row[: len(row) - cut]
    return row[:flip] + bytes([row[flip] ^ 1]) + row[flip + 1 :] if flip < len(row) else row


NO_PACKET = bytes.fromhex("0000000000000000000002690a1afffe0000000000000800")


@settings(max_examples=200, deadline=None)
@example([(0, [NO_PACKET])])
@given(st.lists(st.tuples(st.integers(0, 2), st.lists(rows, min_size=1, max_size=5)), max_size=5))
def test_any_bytes_go_somewhere_or_are_counted(batches: list[tuple[int, list[bytes]]]) -> None:
    bench = Bench(Jack(), Jack(80), Jack(1500))
    bench.join(0)
    for ingress, batch in batches:
        steps = bench.chassis.receive(Frames.of(ingress, batch), 0.0)
        for send in [send for step in steps for send in step]:
            bench.switch.counters["tx_frames"] += sum(send.counts)
            send.whole()
    bench.balance()


WRONG_HEADER = bytes.fromhex(  # all of its group have a wrong IP checksum
    "00000000000000000000"
    "02690a1afffe"
    "000000000000"
    "0800"
    "451c001c00000000001100000a1a00010a1afffe"
    "1388695300080000"
)


@settings(max_examples=200)
@given(st.integers(0, 2), st.lists(rows, min_size=1, max_size=5))
@example(0, [WRONG_HEADER])
def test_ports_without_offload_finish_what_they_send(ingress: int, batch: list[bytes]) -> None:
    bench = Bench(*[Jack(1500, offload=False)] * 3)
    bench.join(0)
    steps = bench.chassis.receive(Frames.of(ingress, batch), 0.0)
    for send in [send for step in steps for send in step]:
        bench.switch.counters["tx_frames"] += sum(send.counts)
        for row in send.whole():
            assert row[:10] == bytes(10)
    bench.balance()
