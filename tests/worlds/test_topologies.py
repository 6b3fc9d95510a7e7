"""The description of networks: what it holds, how it is written, and what it refuses."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest

from topologies import Host, Link, Switch, Topology, TopologyError
from topologies.specs import KINDS

pytestmark = pytest.mark.unit

S1 = (Switch("s1"),)
H = tuple(Host(f"h{i}") for i in range(1, 5))


def topology(*links: str, switches: tuple[Switch, ...] = S1, hosts: int = 2) -> Topology:
    ends = [link.split("-") for link in links]
    return Topology(H[:hosts], switches, tuple(Link(a, b) for a, b in ends))


# Short forms


def test_star() -> None:
    star = Topology.parse("star:4,rate=1Gbit,delay=2ms,loss=0.1%")
    assert star.hosts == H
    assert star.switches == S1
    assert star.links == tuple(Link(f"h{i}", "s1", 10**9, 0.002, 0.001) for i in range(1, 5))
    assert star.root == Switch("s1")


def test_rack() -> None:
    rack = Topology.parse("rack:2x3")
    assert rack.tree == (Switch("core1"), Switch("tor1", "core1"), Switch("tor2", "core1"))
    assert [rack.switch_of(host.name) for host in rack.hosts] == ["tor1"] * 3 + ["tor2"] * 3
    assert rack.hosts_at("core1") == ()
    assert rack.hosts_at("tor2") == (Host("h4"), Host("h5"), Host("h6"))
    assert rack.children("core1") == rack.tree[1:]


def test_tree() -> None:
    """Fan-outs from the root down; the last number is of hosts."""
    tree = Topology.parse("tree:2x2x3")
    parents = {switch.name: switch.parent for switch in tree.switches}
    up = {"s2": "s1", "s3": "s1", "s4": "s2", "s5": "s2", "s6": "s3", "s7": "s3"}
    assert parents == {"s1": None, **up}
    assert [tree.switch_of(f"h{i}") for i in (1, 3, 4, 12)] == ["s4", "s4", "s5", "s7"]
    assert Topology.parse("tree:4") == Topology.parse("star:4")


def test_leafspine() -> None:
    """All cables are described, one spine's are plugged in."""
    fabric = Topology.parse("leafspine:2x4x4")
    assert len(fabric.hosts) == 16
    assert len(fabric.links) == 16 + 8
    assert fabric.root.name == "spine1"
    assert {s.name for s in fabric.tree} == {"spine1", "leaf1", "leaf2", "leaf3", "leaf4"}
    standing_by = [link for link in fabric.links if not fabric.active(link)]
    assert {(link.a, link.b) for link in standing_by} == {
        (f"leaf{i}", "spine2") for i in range(1, 5)
    }
    assert fabric.ports("spine2") == ()
    assert "spine2" not in fabric.nodes
    other = fabric.rooted_at("spine2")
    assert other == Topology.parse("leafspine:2x4x4,root=spine2")
    assert {s.parent for s in other.tree} == {None, "spine2"}
    assert other.links == fabric.links
    assert other.address("leaf1") == fabric.address("leaf1")
    assert other.rooted_at("spine1") == fabric


def test_fattree() -> None:
    """As many cables lead up from a switch as down; one tree of them is plugged in."""
    fabric = Topology.parse("fattree:k=4")
    assert len(fabric.hosts) == 16
    assert len(fabric.switches) == 4 + 8 + 8
    assert len(fabric.links) == 3 * 16
    ends = [name for link in fabric.links for name in (link.a, link.b)]
    assert {ends.count(switch.name) for switch in fabric.switches} == {4}
    assert [len(fabric.children(name)) for name in ("core1", "agg1", "agg7")] == [4, 2, 2]
    assert len(fabric.tree) == 1 + 4 + 8
    assert fabric.path("h1", "h4") == ["h1", "edge1", "agg1", "edge2", "h4"]
    assert len(fabric.path("h1", "h16")) == 7


def test_every_form_has_an_example_that_it_makes() -> None:
    for kind in KINDS.values():
        made = Topology.parse(kind.example)
        assert made.name == kind.example


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("ring:4", "is not a topology"),
        ("star", "is not written as star:4, or"),
        ("star:4x", "is not written as star:4, or"),
        ("star:-4", "is not written as star:4, or"),
        ("", "is not a topology"),
        ("star:2x3", "has 2 numbers, star takes 1"),
        ("rack:2", "has 1 number, rack takes 2"),
        ("star:4,", "is not written as star:4, or star:4,loss=1%,delay=5ms"),
        ("tree", "is not written as tree:2x2x3, or"),
        ("leafspine:2x3", "has 2 numbers, leafspine takes 3"),
        ("fattree:4", "is not written as fattree:k=4, or"),
        ("star:k=4", "is not written as star:4, or"),
        ("star:0", "has 0 hosts"),
        ("tree:99999x99999x99999", "hosts, not 1 to"),
        ("star:4,rate=1Gbit,rate=2Gbit", "says something twice"),
    ],
)
def test_a_wrong_form_is_told_the_right_ones(text: str, part: str) -> None:
    with pytest.raises(TopologyError) as caught:
        Topology.parse(text)
    assert part in str(caught.value)
    for kind in KINDS.values():
        assert kind.example in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("star:4,rate=0bit", "link h1-s1: rate 0 is not positive; leave it out for no limit"),
        ("star:4,rate=-5Mbit", "is not positive"),
        ("star:4,rate=9", "rate '9' is not a number and a unit"),
        ("star:4,rate=9MB", "write rate=100Mbit"),
        ("star:4,rate=0.5bit", "is not a whole number"),
        ("star:4,delay=2", "delay '2' is not a number and a unit (ns, us, ms, s); write delay=5ms"),
        ("star:4,delay=-1s", "is not a time"),
        ("star:4,loss=100%", "loss 1.0 is not in [0, 1)"),
        ("star:4,loss=-0.1", "is not in [0, 1)"),
        ("star:4,queue=0", "queue of 0packets is not in 1 B..1 GiB"),
        ("star:4,queue=2GiB", "is not in 1 B..1 GiB"),
        ("star:4,mtu=67", "mtu 67 is not in 68..65535"),
        ("star:4,speed=1ms", "a link has no 'speed'; it can have rate, queue, mtu, delay, loss"),
        ("star:4,jitter=1ms", "jitter 0.001 s is not in 0 s..delay (0.0 s)"),
        ("star:4,delay=1ms,duplicate=2", "link h1-s1: duplicate 2.0 is not in [0, 1]"),
        ("star:4,reorder=1%", "reorder lets a packet skip the delay, and there is none"),
        ("star:4,corrupt=-1%", "corrupt -0.01 is not in [0, 1]"),
        ("star:4,seed=x", "seed 'x' is not a whole number of 0 or more; write seed=1"),
        ("star:4,subnet=10.0.0.0/30", "10.0.0.0/30 has 2 addresses for 5 nodes; take a larger one"),
        ("star:4,subnet=10.0.0.1/24", "has host bits set"),
        ("fattree:k=5", "the number of ports is even, from 2 to 64; write k=4"),
        ("fattree:k=66", "the number of ports is even, from 2 to 64"),
        ("star:65", "'s1' has 65 hosts and child switches, 64 at most; put switches between"),
        ("star:300", "'s1' has 300 hosts"),  # more than a byte numbers
        ("rack:65x1", "'core1' has 65 hosts and child switches"),
        ("rack:2x3,root=h1", "no switch 'h1' to be the root; choose of core1, tor1, tor2"),
    ],
)
def test_values_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        Topology.parse(text)
    assert message in str(caught.value)


def test_the_limits_themselves_can_be() -> None:
    full = Topology.parse("star:64,subnet=10.0.0.0/25,loss=99.9%,mtu=65535,queue=1B")
    assert len(full.hosts) == 64
    Topology.parse("star:5,subnet=10.0.0.0/29")


# The whole


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Topology((), S1, ()), "there is no host or no switch"),
        (lambda: topology("h1-s1", hosts=1, switches=()), "there is no host or no switch"),
        (lambda: topology("h1-s1", switches=S1 * 2, hosts=1), "2 nodes are called 's1'; give each"),
        (
            lambda: topology("h1-s1", switches=(Switch("h1"), *S1), hosts=1),
            "2 nodes are called 'h1'",
        ),
        (lambda: topology("h1-s1"), "host 'h2' has no link; give it one, to its switch"),
        (lambda: topology("h1-s1", "h2-s1", "h1-s1"), "link h1-s1 is there twice"),
        (lambda: topology("h1-s1", "h2-s1", "s1-h1"), "link s1-h1 is there twice"),
        (lambda: topology("h1-s1", "h2-s3"), "link h2-s3: there is no node 's3'"),
        (lambda: topology("h1-s1", "h2-h1"), "link h2-h1 joins two hosts"),
        (lambda: topology("h1-s1", "h2-h2"), "link h2-h2 joins a node to itself"),
        (
            lambda: topology("h1-s1", "h1-s2", hosts=1, switches=(*S1, Switch("s2"))),
            "host 'h1' has 2 links",
        ),
        (
            lambda: topology("h1-s1", "h2-s2", switches=(*S1, Switch("s2"))),
            "the network is in 2 parts: 's1' and 's2' have no parent",
        ),
        (
            lambda: topology("h1-s1", "h2-s2", "s1-s2", switches=(*S1, Switch("s2"))),
            "the network is in 2 parts: 's1' and 's2' have no parent",
        ),
        (
            lambda: topology("h1-s1", "h2-s2", switches=(*S1, Switch("s2", "s1"))),
            "switch 's2': no link to its parent 's1'; add one, or name a neighbour",
        ),
        (
            lambda: topology("h1-s1", "h2-s1", switches=(Switch("s1", "h1"),)),
            "switch 's1': its parent 'h1' is no switch",
        ),
        (
            lambda: topology(
                "h1-s1", "h2-s2", "s1-s2", switches=(Switch("s1", "s2"), Switch("s2", "s1"))
            ),
            "the parents form a circle: s1 -> s2 -> s1",
        ),
        (
            lambda: topology("h1-s1", switches=(Switch("s1", "s1"),), hosts=1),
            "no link to its parent",
        ),
        (
            lambda: Topology((Host("h123456789"),), S1, (Link("h123456789", "s1"),)),
            "'h123456789' is too long for interfaces to be named after it; take at most 9",
        ),
        (lambda: Topology((Host("1"),), S1, (Link("1", "s1"),)), "'1' cannot be a name"),
        (lambda: Topology((Host("a/b"),), S1, (Link("a/b", "s1"),)), "'a/b' cannot be a name"),
    ],
)
def test_what_could_not_be_built(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(TopologyError) as caught:
        make()
    assert message in str(caught.value)


def test_a_ring_of_switches_has_a_link_that_stands_by() -> None:
    ring = topology(
        "h1-s1", "h2-s2", "s1-s2", "s2-s3", "s3-s1", "h3-s3",
        switches=(*S1, Switch("s2", "s1"), Switch("s3", "s1")), hosts=3,
    )  # fmt: skip
    assert [f"{x.a}-{x.b}" for x in ring.links if not ring.active(x)] == ["s2-s3"]
    assert [port.peer for port in ring.ports("s2")] == ["h2", "s1"]
    turned = ring.rooted_at("s2")
    assert [f"{x.a}-{x.b}" for x in turned.links if not turned.active(x)] == ["s3-s1"]


def test_ports_are_named_as_mininet_does() -> None:
    rack = Topology.parse("rack:2x2")
    assert [(port.ifname, port.peer) for port in rack.ports("tor2")] == [
        ("tor2-eth1", "core1"),
        ("tor2-eth2", "h3"),
        ("tor2-eth3", "h4"),
    ]
    assert [(port.ifname, port.peer) for port in rack.ports("h3")] == [("h3-eth0", "tor2")]


def test_addresses() -> None:
    rack = Topology.parse("rack:2x2")
    assert rack.subnet == IPv4Network("10.26.0.0/16")
    assert rack.address("h1") == IPv4Address("10.26.0.1")
    assert rack.address("core1") == IPv4Address("10.26.255.254")
    assert rack.mac("h1") == "02:69:0a:1a:00:01"
    assert rack.mac("core1") == "02:69:0a:1a:ff:fe"
    assert rack.port_mac("core1", 2) == "06:02:0a:1a:ff:fe"
    full = Topology.parse("rack:2x2,subnet=192.168.7.0/28")
    assert len({full.address(node) for node in full.nodes}) == len(full.nodes) == 7
    for ask in (rack.address, rack.ports, rack.mac):
        with pytest.raises(TopologyError, match="no node 'h9'; choose of h1, h2"):
            ask("h9")
