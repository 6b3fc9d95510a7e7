"""What an interface says of super-datagrams, and that all who send keep to it."""

from __future__ import annotations

import errno
import socket
import time

import numpy as np
import pytest

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import MAX_SEGMENTS, Address, Outgoing, super_datagrams
from iswitch.core.format.wire import PORT, TOS_DATA, Shape
from iswitch.ethernet.frame import HEAD
from iswitch.ethernet.issuing import Issuer, Jack
from iswitch.ports.kernel.interfaces import interface_of, most_segments
from iswitch.ports.raw import RawPorts
from iswitch.ports.udp import UdpPort
from tests.support.networks import PREFIX
from tests.support.world import World
from topologies import Topology
from topologies.netns import Network, passes_whole, pyroute2
from worker_lib.protocol.session import Session

pytestmark = pytest.mark.serial

PATIENCE = 10.0

as_root = pytest.mark.root(reason="building namespaces needs root")


def test_an_interface_without_a_limit() -> None:
    loopback = interface_of("127.0.0.1")
    assert loopback == socket.if_nametoindex("lo")
    assert most_segments(loopback) == MAX_SEGMENTS
    assert interface_of("203.0.113.1") is None


def test_no_such_interface() -> None:
    with pytest.raises(OSError, match="ENODEV"):
        most_segments(1 << 20)


def test_a_sandbox_without_netlink(monkeypatch: pytest.MonkeyPatch) -> None:
    make = socket.socket

    def refuse(family: int = -1, *args: int, **kwargs: int) -> socket.socket:
        if family == socket.AF_NETLINK:
            raise PermissionError(errno.EPERM, "not permitted")
        return make(family, *args, **kwargs)

    monkeypatch.setattr(socket, "socket", refuse)
    port = UdpPort(("127.0.0.1", 0), connect=("127.0.0.1", PORT))
    assert port.most == MAX_SEGMENTS
    port.close()


@as_root
@pytest.mark.parametrize(
    ("form", "most"),
    [
        ("star:2,rate=1Mbit", 2),
        ("star:2,rate=100Mbit", 8),
        ("star:2,rate=1Gbit", 47),
        ("star:2,rate=10Gbit", MAX_SEGMENTS),
        ("star:2", MAX_SEGMENTS),
        ("star:2,rate=100Mbit,queue=1", 1),
    ],
)
def test_links_with_a_rate_have_a_limit(form: str, most: int) -> None:
    with Network(Topology.parse(form), prefix=PREFIX) as net:
        for node in ("h1", "s1"):
            with net.inside(node):
                found = [most_segments(socket.if_nametoindex(p.ifname)) for p in net.ports(node)]
            assert found == [most] * len(found)
        with net.inside("s1"):
            ports = RawPorts([port.ifname for port in net.ports("s1")])
        assert [jack.most for jack in ports.jacks] == [most, most]
        ports.close()


@as_root
def test_without_offload_there_is_none() -> None:
    with Network(Topology.parse("star:1,rate=100Mbit"), prefix=PREFIX, offload=False) as net:
        with net.inside("h1"), pyroute2().IPRoute() as netlink:
            (host,) = netlink.get_links(ifname=net.ports("h1")[0].ifname)
        assert host.get_attr("IFLA_GSO_MAX_SEGS") == 65535


@as_root
@pytest.mark.parametrize("rate", ["100Mbit", "300Mbit", "1Gbit"])
def test_what_a_worker_sends_comes_whole(rate: str) -> None:
    """tbf cuts nothing of what the port makes of one long run, the first of it at once."""
    with Network(Topology.parse(f"star:1,rate={rate}"), prefix=PREFIX) as net:
        (link,) = net.topology.links
        most = passes_whole(link)
        with net.inside("s1"):
            switch = RawPorts([net.ports("s1")[0].ifname])
        with net.inside("h1"), pyroute2().IPRoute() as netlink:
            (index,) = netlink.link_lookup(ifname=net.ports("h1")[0].ifname)
            to = str(net.topology.address("s1"))
            netlink.neigh("add", dst=to, lladdr="02:69:00:00:00:01", ifindex=index)
            port = UdpPort((str(net.topology.address("h1")), 0), connect=(to, PORT))
        rows = np.zeros((100, 1472), np.uint8)
        port.push([Outgoing((Address(to, PORT),), TOS_DATA, rows, 1472)])
        wanted = [count for some in super_datagrams(rows, 1472, most) for count in some.counts]
        assert max(wanted) == min(most, 44)
        came: list[int] = []
        limit = time.monotonic() + PATIENCE
        while len(came) < len(wanted) and time.monotonic() < limit:
            for frames in switch.pull():
                came += [(length - HEAD) // 1472 for length in frames.lengths]
        assert came == wanted
        port.close()
        switch.close()


@pytest.mark.parametrize(("most", "steps"), [(MAX_SEGMENTS, [176]), (8, [128, 48])])
def test_a_session_begins_with_as_much_under_way(most: int, steps: list[int]) -> None:
    """However small its super-datagrams are, of which it gives out so many at a time."""
    shape = Shape.of(366 * 300)
    world = World()
    session: Session = world.join(0, shape, most=most)
    world.run(lambda: session.member)
    vector = np.ones(shape.numel, np.float32)
    session.begin(vector, np.empty_like(vector), world.now)
    session.may_send = True
    sent = []
    while session.may_send:
        sent += [len(out.rows) for out in session.transmissions(world.now)]
    assert sent == steps


def test_a_switch_sends_each_port_what_it_takes_whole() -> None:
    jacks = [Jack(most=8), Jack(), Jack(most=8)]
    issuer = Issuer(jacks, bytes([10, 26, 255, 254]), bytes(6), PORT, Counters())
    peers = [Address(f"10.26.0.{i}", 40000 + i, i) for i in range(3)]
    for peer in peers:
        issuer.learn(peer.host, peer.ingress, bytes([2, 0, 0, 0, 0, peer.ingress]))
    rows = np.zeros((100, 1472), np.uint8)
    sends = issuer.issue([Outgoing(tuple(peers), TOS_DATA, rows, 100)], 0.0)
    counts = {
        i: [n for send in sends if send.port == i for n in send.counts] for i in range(len(jacks))
    }
    assert counts == {0: [8] * 12 + [4], 1: [44, 44, 12], 2: [8] * 12 + [4]}
    # What goes to several ports alike is one piece of memory, which the kernel can copy.
    alike = [send.bodies for send in sends if send.port != 1]
    assert [alike[0] is alike[1], alike[2] is alike[3]] == [True, True]
    assert sum(sum(send.lengths) for send in sends) == 3 * (99 * 1472 + 100)
