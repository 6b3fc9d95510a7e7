"""Broadcasts that the kernel copies: who gets what, what fails, and what is sent port by port."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import super_datagrams
from iswitch.ethernet.frame import HEADERS, RecurringFrames, Route, Transmission
from iswitch.ports.kernel import bpf, replication
from iswitch.ports.kernel.replication import WORTH
from iswitch.ports.raw import RawPorts
from topologies import Topology
from topologies.netns import Network

pytestmark = [pytest.mark.root(reason="raw ports need root"), pytest.mark.serial]

SWITCH_MAC = b"\2i\n\x1a\xff\xfe"
PATIENCE = 10.0
UDP_GRO = 104
TC_H_ROOT = 0xFFFFFFFF


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network(Topology.parse("star:3"), prefix="iswr") as built:
        yield built


class Hosts:
    """A switch's ports, and a UDP socket at each of its hosts."""

    def __init__(
        self,
        network: Network,
        stack: ExitStack,
        replicate: bool = True,
        step: type[list[Transmission]] = list,
    ) -> None:
        self.step = step
        self.counters = Counters()
        topology = network.topology
        with network.inside("s1"):
            names = [port.ifname for port in network.ports("s1")]
            self.ports = RawPorts(names, counters=self.counters, replicate=replicate)
            stack.callback(self.ports.close)
        self.sockets: list[socket.socket] = []
        self.routes: list[Route] = []
        source = socket.inet_aton(str(topology.address("s1")))
        for i, host in enumerate(node.name for node in topology.hosts):
            address = str(topology.address(host))
            with network.inside(host):
                sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                (ifname,) = [port.ifname for port in network.ports(host)]
                mac = hardware_address(ifname)
            sock.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
            sock.settimeout(PATIENCE)
            sock.bind((address, 40_000 + i))
            self.sockets.append(sock)
            to = socket.inet_aton(address)
            self.routes.append(Route(SWITCH_MAC, mac, source, to, 26963, 40_000 + i, 0x1C))

    def broadcast(self, rows: np.ndarray, tail: int) -> list[Transmission]:
        """The frames that carry some packets to all hosts."""
        return self.step(
            Transmission(port, route.head(some.lengths[0], rows.shape[1]), *some)
            for some in super_datagrams(rows, tail)
            for port, route in enumerate(self.routes)
        )

    def receive(self) -> list[bytes]:
        return [sock.recv(1 << 16) for sock in self.sockets]


def hardware_address(ifname: str) -> bytes:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        sock.bind((ifname, 0))
        mac: bytes = sock.getsockname()[4]
    return mac


def set_link(network: Network, port: int, state: str) -> None:
    from pyroute2 import IPRoute

    with network.inside("s1"), IPRoute() as netlink:
        (index,) = netlink.link_lookup(ifname=network.ports("s1")[port].ifname)
        netlink.link("set", index=index, state=state)


@pytest.fixture(params=[list, RecurringFrames])
def hosts(network: Network, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(network, stack, step=request.param)


def payload(packets: int, size: int = 1472) -> np.ndarray:
    return np.arange(packets * size, dtype=np.uint32).astype(np.uint8).reshape(packets, size)


@pytest.mark.parametrize(("packets", "tail"), [(1, 1472), (1, 99), (44, 1472), (30, 8), (70, 9)])
def test_every_host_gets_the_same(hosts: Hosts, packets: int, tail: int) -> None:
    """Super-frames whole, with sound headers: the kernel drops others."""
    assert hosts.ports.replicates
    rows = payload(packets)
    sends = hosts.broadcast(rows, tail)
    for _ in range(WORTH + 3):
        rows += 1  # the same memory with other contents
        wanted = rows.tobytes()[: rows.size - 1472 + tail]
        hosts.ports.push([sends])
        came = [hosts.receive() for _ in super_datagrams(rows, tail)]
        for pieces in zip(*came, strict=True):  # another core's may overtake
            longest_first = sorted(map(bytes, pieces), key=len, reverse=True)
            assert b"".join(longest_first) == wanted
    assert hosts.counters["tx_frames"] == 3 * packets * (WORTH + 3)


def test_after_some_broadcasts_one_frame_is_written(hosts: Hosts) -> None:
    sends = hosts.broadcast(payload(10), 1472)
    replicator = hosts.ports.replicator
    assert replicator is not None
    assert [replicator.fan(sends) is None for _ in range(WORTH)] == [True] * (WORTH - 1) + [False]
    assert replicator.fan(sends) is replicator.fan(hosts.broadcast(payload(44), 1472))
    assert replicator.fan(sends[:2]) is None  # others


def test_what_is_not_the_same_for_all_is_not_copied(hosts: Hosts) -> None:
    hosts.routes[1] = hosts.routes[1]._replace(tos=0)
    sends = hosts.broadcast(payload(10), 1472)
    replicator = hosts.ports.replicator
    assert replicator is not None
    assert [replicator.fan(sends) for _ in range(2 * WORTH)] == [None] * 2 * WORTH
    finished = [Transmission(t.port, None, t.bodies, t.lengths, t.counts) for t in sends]
    assert replicator.fan(finished) is None


@pytest.mark.parametrize("down", [0, 1])
def test_a_port_that_is_down_loses_its_copies_only(
    network: Network, hosts: Hosts, down: int
) -> None:
    sends = hosts.broadcast(payload(10), 1472)
    for _ in range(WORTH):
        hosts.ports.push([sends])
        hosts.receive()
    set_link(network, down, "down")
    try:
        hosts.ports.push([sends])
        others = [sock for i, sock in enumerate(hosts.sockets) if i != down]
        assert [len(sock.recv(1 << 16)) for sock in others] == [14720] * 2
        hosts.ports._count_dropped()
        assert hosts.counters["tx_failed"] == 10
        assert hosts.counters["tx_frames"] == 10 * (3 * WORTH + 2)
    finally:
        set_link(network, down, "up")


def test_more_groups_than_there_are_programs(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then all are made anew."""
    monkeypatch.setattr(replication, "MOST", 1)
    groups = [hosts.broadcast(payload(2), 1472), hosts.broadcast(payload(2), 1472)[:2]]
    for _ in range(3):
        for sends in groups:
            for _ in range(WORTH):
                hosts.ports.push([sends])
                for sock in hosts.sockets[: len(sends)]:
                    assert len(sock.recv(1 << 16)) == 2944


def test_where_the_kernel_takes_no_programs_each_port_is_sent_to(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bpf, "SYSCALL", {})
    with ExitStack() as stack:
        hosts = Hosts(network, stack)
        assert not hosts.ports.replicates
        hosts.ports.push([hosts.broadcast(payload(5), 1472)])
        assert hosts.receive() == [payload(5).tobytes()] * 3


def test_it_can_be_left_out(network: Network) -> None:
    with ExitStack() as stack:
        assert not Hosts(network, stack, replicate=False).ports.replicates


def test_programs_are_as_long_as_they_have_to_be() -> None:
    """They count packets by what follows the headers; the first receiver is told at the end."""
    one = replication.Target(0, 1, bytes(6), bytes(4), bytes(2))
    lengths = [len(replication.replicate([one] * n, 0)) for n in (1, 2, 3)]
    assert lengths[1] - lengths[0] == lengths[2] - lengths[1]
    assert HEADERS == replication.UDP_CSUM_AT + 2


def test_a_full_queue_of_the_first_port_is_its_own_loss(network: Network, hosts: Hosts) -> None:
    """The copies have gone when it drops the frame, so nothing is sent again."""
    sends = hosts.broadcast(payload(10), 1472)
    for _ in range(WORTH + 1):
        hosts.ports.push([sends])
        hosts.receive()
    before = dict(hosts.counters)
    with slow(network, 0):
        for _ in range(20):
            hosts.ports.push([sends])
            assert [len(sock.recv(1 << 16)) for sock in hosts.sockets[1:]] == [14_720] * 2
    for sock in hosts.sockets[1:]:
        sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            sock.recv(1 << 16)
    lost = hosts.counters["tx_failed"] - before.get("tx_failed", 0)
    assert lost > 0
    assert hosts.counters["tx_frames"] - before["tx_frames"] == 20 * 3 * 10 - lost


@contextmanager
def slow(network: Network, port: int) -> Iterator[None]:
    """A port's queue takes two or three super-frames, and is slow to send them."""
    from pyroute2 import IPRoute

    with network.inside("s1"), IPRoute() as netlink:
        (index,) = netlink.link_lookup(ifname=network.ports("s1")[port].ifname)
        netlink.tc("add", "tbf", index=index, rate="10mbit", burst=20_000, limit=40_000)
        try:
            yield
        finally:
            netlink.tc("del", index=index, parent=TC_H_ROOT)


def test_a_kernel_that_takes_no_more_programs_leaves_each_port_to_itself(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: bytes) -> int:
        raise PermissionError

    monkeypatch.setattr(bpf, "load", refuse)
    rows = payload(3)
    for _ in range(WORTH + 3):
        hosts.ports.push([hosts.broadcast(rows, 1472)])
        assert hosts.receive() == [rows.tobytes()] * 3
