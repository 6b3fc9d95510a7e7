"""Real namespaces, links and queues; everything is gone after each test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from tests.support.networks import PREFIX, links
from topologies import (
    NetworkError,
    Topology,
)
from topologies.namespaces import NAMESPACES
from topologies.netns import Network, token_bucket

UDP_SEGMENT = 103  # linux/udp.h
ETH_P_IP = 0x0800
IFF_UP = 1  # linux/if.h

as_root = pytest.mark.root(reason="building namespaces needs root")
pytestmark = [pytest.mark.usefixtures("nothing_is_left"), pytest.mark.serial]

PING = """
import os, socket, struct, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
sock.settimeout(1)
request = struct.pack("!BBHHH", 8, 0, 0, 0x6953, 1)
request = request[:2] + struct.pack("!H", 0xFFFF - (0x0800 + 0x6953 + 1)) + request[4:]
for _ in range(5):
    sock.sendto(request, (sys.argv[1], 0))
    try:
        while sock.recv(1500)[20:21] != b"\\0":
            pass
    except TimeoutError:
        continue
    sys.exit(0)
sys.exit(1)
"""


def network(spec: str, **options: Any) -> Network:
    return Network(Topology.parse(spec), prefix=PREFIX, **options)


def output(net: Network, node: str, *code: str) -> str:
    child = net.popen(node, [sys.executable, "-c", *code], stdout=subprocess.PIPE)
    text, _ = child.communicate(timeout=20)
    assert child.returncode == 0
    return text.decode().strip()


def bridge(net: Network) -> None:
    """A bridge of the kernel's in place of each switch process."""
    from pyroute2 import IPRoute

    for switch in net.topology.tree:
        with net.inside(switch.name), IPRoute() as ip:
            ip.link("add", kind="bridge", ifname="br")
            (number,) = ip.link_lookup(ifname="br")
            for port in net.ports(switch.name):
                (end,) = ip.link_lookup(ifname=port.ifname)
                ip.link("set", index=end, master=number)
            ip.link("set", index=number, state="up")


def pings(net: Network, node: str, other: str) -> bool:
    command = [sys.executable, "-c", PING, str(net.topology.address(other))]
    return net.popen(node, command).wait(20) == 0


@as_root
def test_hosts_reach_each_other_through_all_switches() -> None:
    with network("rack:2x2") as net:
        bridge(net)
        assert pings(net, "h1", "h2")
        assert pings(net, "h1", "h4")


@as_root
def test_a_leafspine_is_plugged_in_without_loops() -> None:
    with network("leafspine:2x2x1") as net:
        bridge(net)
        assert pings(net, "h1", "h2")
        with pytest.raises(NetworkError, match="no node 'spine2' is built; built is spine1, leaf1"):
            net.inside("spine2")


@as_root
def test_interfaces() -> None:
    with network("rack:1x2,mtu=9000,queue=70") as net:
        topology = net.topology
        host, switch = links(net, "h2"), links(net, "tor1")
    assert list(host) == ["lo", "h2-eth0"]
    assert list(switch) == ["lo", *(port.ifname for port in topology.ports("tor1"))]
    assert host["h2-eth0"].get("address") == topology.mac("h2")
    macs = [topology.port_mac("tor1", number) for number in (1, 2, 3)]
    assert [link.get("address") for link in switch.values()][1:] == macs
    for name, link in (host | switch).items():
        assert link["flags"] & IFF_UP
        if name != "lo":
            assert link.get("mtu") == 9000
            assert link.get("txqlen") == 70


@as_root
def test_addresses() -> None:
    """A host has its own and that of loopback; a switch's namespace none; IPv6 nowhere."""
    from pyroute2 import IPRoute

    found = {}
    with network("star:2,subnet=10.99.0.0/24") as net:
        for node in net.topology.nodes:
            with net.inside(node), IPRoute() as ip:
                found[node] = [f"{a.get('address')}/{a['prefixlen']}" for a in ip.get_addr()]
    assert found == {
        "s1": ["127.0.0.1/8"],
        "h1": ["127.0.0.1/8", "10.99.0.1/24"],
        "h2": ["127.0.0.1/8", "10.99.0.2/24"],
    }


@as_root
def test_rates_are_queues_at_both_ends() -> None:
    from pyroute2 import IPRoute

    with network("star:2,rate=100Mbit,queue=40,delay=5ms,loss=1%") as net:
        for node in ("h1", "s1"):
            with net.inside(node), IPRoute() as ip:
                queues = [q for q in ip.get_qdiscs() if q.get_attr("TCA_KIND") == "tbf"]
            assert len(queues) == len(net.ports(node))
            for queue in queues:
                parameters = queue.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")
                assert parameters["rate"] == 100_000_000 // 8
                assert parameters["limit"] == 40 * 1514
        for port in net.ports("s1"):
            assert (port.link.delay, port.link.loss) == (0.005, 0.01)


@pytest.mark.parametrize(
    ("spec", "burst"),
    [
        ("star:1,rate=1Mbit", 2 * 1514),  # two frames
        ("star:1,rate=100Mbit", 12_500),  # a millisecond
        ("star:1,rate=1Gbit", 72_000),  # a super-datagram
        ("star:1,rate=10Gbit", 312_500),  # a quarter of a millisecond
        ("star:1,rate=1Gbit,queue=30", 30 * 1514),  # the queue
        ("star:1,rate=1Gbit,queue=1B", 1514),  # one frame, or nothing would pass
    ],
)
def test_bursts(spec: str, burst: int) -> None:
    (link,) = Topology.parse(spec).links
    parameters = token_bucket(link)
    assert parameters["burst"] - parameters["rate"] // 1_000_000 - 1 == burst
    assert parameters["limit"] >= parameters["burst"]


@as_root
@pytest.mark.parametrize("spec", ["star:1,rate=64kbit,mtu=65535", "star:1,rate=34Gbit,queue=1GiB"])
def test_rates_at_the_ends_of_what_tbf_knows(spec: str) -> None:
    with network(spec):
        pass


@as_root
@pytest.mark.parametrize("rate", ["63kbit", "40Gbit"])
def test_rates_beyond(rate: str) -> None:
    with pytest.raises(NetworkError, match="not in tbf's reach"):
        network(f"star:1,rate={rate}").start()


def sent(net: Network, packets: int) -> list[int]:
    """Have h1 send a super-datagram; the sizes of the frames that s1 sees of it."""
    with net.inside("s1"):
        port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP))
    with net.inside("h1"):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with port, sender:
        port.settimeout(0.2)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 1472)
        sender.sendto(bytes(packets * 1472), (str(net.topology.subnet.broadcast_address), 9))
        sizes: list[int] = []
        try:
            while sum(size - 42 for size in sizes) < packets * 1472:
                sizes.append(len(port.recv(1 << 16)))
        except TimeoutError:
            pass
    return sizes


@as_root
@pytest.mark.parametrize(("offload", "sizes"), [(True, [42 + 4 * 1472]), (False, [1514] * 4)])
@pytest.mark.parametrize("rate", ["", ",rate=1Gbit"])
def test_offload(offload: bool, sizes: list[int], rate: str) -> None:
    """Super-datagrams pass whole, also through tbf; without offload as packets of the MTU."""
    with network(f"star:1{rate}", offload=offload) as net:
        assert sent(net, 4) == sizes


@as_root
@pytest.mark.parametrize("rate", ["2Mbit", "10Mbit", "1Gbit", "34Gbit"])
@pytest.mark.parametrize("queue", [1, 2, 30])
def test_a_queue_smaller_than_a_super_datagram_passes_what_fits(rate: str, queue: int) -> None:
    """It is cut into packets, of which the queue takes as many as it has room for."""
    with network(f"star:1,rate={rate},queue={queue}") as net:
        sizes = sent(net, 40)
    assert max(sizes) == 1514
    assert 1 <= len(sizes) <= 40


@as_root
def test_commands_run_where_they_should() -> None:
    with network("star:2") as net:
        here = "import os; print(os.readlink('/proc/self/ns/net'))"
        found = {output(net, node, here) for node in net.topology.nodes}
        assert len(found) == 3
        assert os.readlink("/proc/thread-self/ns/net") not in found
        child = net.popen("h1", ["sh", "-c", "echo $RANK $HOME; exit 7"], env={"RANK": "3"},
                          stdout=subprocess.PIPE)  # fmt: skip
        assert child.communicate()[0].split()[0] == b"3"
        assert child.returncode == 7
        assert (NAMESPACES / net.namespace("h1")).exists()
