"""Quantities, TOML files and drawings of topologies."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies import Link, Queue, Topology, TopologyError
from topologies.commands import impair_options, switch_options
from topologies.toml import loads

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("settings", "link"),
    [
        ({"rate": "100 Mbit/s"}, Link("a", "b", rate=100_000_000)),
        ({"rate": "2.5Gbit"}, Link("a", "b", rate=2_500_000_000)),
        ({"rate": "1gbit"}, Link("a", "b", rate=10**9)),
        ({"rate": 64000}, Link("a", "b", rate=64000)),
        ({"delay": "5ms"}, Link("a", "b", delay=0.005)),
        ({"delay": "250us"}, Link("a", "b", delay=0.00025)),
        ({"delay": 0.1}, Link("a", "b", delay=0.1)),
        ({"loss": "1%"}, Link("a", "b", loss=0.01)),
        ({"loss": "0.25"}, Link("a", "b", loss=0.25)),
        ({"queue": "100 packets"}, Link("a", "b", queue=Queue(100))),
        ({"queue": 100}, Link("a", "b", queue=Queue(100))),
        ({"queue": "64KiB"}, Link("a", "b", queue=Queue(65536, "bytes"))),
        ({"queue": "1.5kB"}, Link("a", "b", queue=Queue(1500, "bytes"))),
        ({"mtu": "9000"}, Link("a", "b", mtu=9000)),
    ],
)
def test_quantities(settings: dict[str, str | float], link: Link) -> None:
    assert Link.of("a", "b", **settings) == link


@pytest.mark.parametrize("value", [True, None, [1], float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["rate", "delay", "loss", "queue", "mtu", "jitter", "corrupt"])
def test_what_is_no_quantity(name: str, value: object) -> None:
    with pytest.raises(TopologyError):
        Link.of("a", "b", **{name: value})  # type: ignore[arg-type]


def test_every_direction_of_a_link_is_impaired_once() -> None:
    """At its switch if it is a host's, by the sender if it is between switches."""
    net = Topology.parse("rack:2x1,rate=1Gbit,loss=1%,delay=2ms,seed=5")
    faults = "loss=1%,delay=2ms"
    core, tor = (impair_options(net, name) for name in ("core1", "tor1"))
    assert core[:-1] == ["--impair", f"core1-eth1:out:{faults}",
                         "--impair", f"core1-eth2:out:{faults}", "--seed"]  # fmt: skip
    assert tor[:-1] == ["--impair", f"tor1-eth1:out:{faults}",
                        "--impair", f"tor1-eth2:{faults}", "--seed"]  # fmt: skip
    assert core[-1] != tor[-1]
    options = switch_options(net, "tor1")
    assert options[-len(tor) :] == tor
    assert impair_options(Topology.parse("rack:2x1,rate=1Gbit,queue=5"), "tor1") == []
    other = Topology.parse("rack:2x1,loss=1%,delay=2ms,seed=6")
    assert impair_options(other, "tor1")[-1] != tor[-1]


def test_a_seed_is_kept_in_files() -> None:
    net = Topology.parse("star:2,loss=1%,seed=5")
    assert "seed = 5" in net.to_toml()
    assert loads(net.to_toml(), Topology) == net
    assert net.rooted_at("s1").seed == 5


def test_a_queue_counts_in_both() -> None:
    assert Queue(10).bytes(mtu=1500) == 15140
    assert Queue(15140, "bytes").packets(mtu=1500) == 10
    assert Queue(1, "bytes").packets(mtu=1500) == 1


LINKS = st.builds(
    Link,
    st.just("h1"),
    st.just("s1"),
    st.none() | st.integers(1, 10**15),
    st.floats(0, 1e6),
    st.floats(0, 1, exclude_max=True),
    st.builds(Queue, st.integers(1, 10**4), st.sampled_from(["packets", "bytes"])),
    st.integers(68, 65535),
    st.just(0.0),
    st.floats(0, 1),
    st.just(0.0),
    st.floats(0, 1),
)


@given(LINKS)
def test_settings_read_back_equal(link: Link) -> None:
    assert Link.of("h1", "s1", **link.settings()) == link


SPECS = st.sampled_from(
    ["star:1", "star:5", "rack:2x3", "tree:2x2x3", "leafspine:2x3x2", "leafspine:3x2x2,root=spine2"]
)


@given(SPECS, st.lists(LINKS, min_size=1), st.sampled_from(["10.26.0.0/16", "192.168.1.0/24"]))
def test_toml_reads_back_equal(spec: str, links: list[Link], subnet: str) -> None:
    plain = Topology.parse(f"{spec},subnet={subnet}")
    varied = [
        Link(
            x.a,
            x.b,
            y.rate,
            y.delay,
            y.loss,
            y.queue,
            y.mtu,
            y.jitter,
            y.duplicate,
            y.reorder,
            y.corrupt,
        )
        for x, y in zip(plain.links, links * len(plain.links), strict=False)
    ]
    written = Topology(plain.hosts, plain.switches, tuple(varied), plain.subnet)
    assert loads(written.to_toml(), Topology) == written


@given(SPECS)
def test_a_topology_has_one_root_and_no_loop(spec: str) -> None:
    made = Topology.parse(spec)
    active = [link for link in made.links if made.active(link)]
    assert len(active) == len(made.nodes) - 1
    seen = {made.root.name}
    for switch in made.tree[1:]:
        assert switch.parent in seen
        seen.add(switch.name)
    drawing = made.describe()
    for node in made.nodes:
        assert f" {made.address(node)}" in drawing
        assert len({port.ifname for port in made.ports(node)}) == len(made.ports(node))


def test_toml_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(
        'hosts = ["h1", "h2"]\nswitches = [{name = "s1"}]\nlink = {rate = "1Gbit", delay = 0.001}\n'
        'links = [{a = "h1", b = "s1"}, {a = "h2", b = "s1", delay = "5ms"}]\n'
    )
    lab = Topology.parse(str(path))
    assert lab.links == (Link("h1", "s1", 10**9, 0.001), Link("h2", "s1", 10**9, 0.005))
    assert lab.name == str(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hosts = [", "Invalid value"),
        ("host = []", "the file has a 'host'; it can have subnet, hosts, switches, link, links"),
        ("hosts = 3", "hosts is 3; give a list"),
        ("hosts = [3]", 'host 3 is not a name; write hosts = ["h1", "h2"]'),
        ('switches = ["s1"]', "a switch is 's1'; write a table with name, parent"),
        ("switches = [{}]", "a switch has no 'name'"),
        ('switches = [{name = "s1", up = "s2"}]', "a switch has a 'up'; it can have name, parent"),
        ('switches = [{name = "s1", parent = 3}]', "parent is 3; give a text in quotes"),
        ('links = [{a = "h1"}]', "a link has no 'b'; it needs a and b"),
        ('links = [{a = "h1", b = "s1", speed = 3}]', "a link has no 'speed'; it can have rate"),
        ('links = [{a = "h1", b = "s1", rate = true}]', "rate True is neither text nor a number"),
        ("subnet = 'ten'", "subnet 'ten'"),
        ("", "there is no host or no switch"),
    ],
)
def test_files_that_are_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(TopologyError) as caught:
        Topology.from_toml(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_drawing() -> None:
    drawing = Topology.parse("leafspine:2x2x1,rate=1Gbit,loss=1%").describe()
    assert drawing.splitlines() == [
        "leafspine:2x2x1,rate=1Gbit,loss=1%: 2 hosts, 3 switches, 4 links; subnet 10.26.0.0/16",
        "spine1 10.26.255.254",
        "├─ leaf1 10.26.255.253 rate=1Gbit loss=1%",
        "│  └─ h1 10.26.0.1 rate=1Gbit loss=1%",
        "└─ leaf2 10.26.255.252 rate=1Gbit loss=1%",
        "   └─ h2 10.26.0.2 rate=1Gbit loss=1%",
        "standing by: spine2, leaf1-spine2, leaf2-spine2",
    ]
