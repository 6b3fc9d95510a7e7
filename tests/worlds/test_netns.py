"""Real namespaces, links and queues; everything is gone after each test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.networks import PREFIX, gone, left, links
from topologies import (
    NetworkError,
    PrivilegeError,
    Topology,
    TopologyError,
    children,
    namespaces,
    netns,
)
from topologies.namespaces import CLAIMS, NAMESPACES, Claim
from topologies.netns import Network, clean, token_bucket

PATIENCE = 20.0  # seconds
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


@as_root
def test_closing_ends_the_children_and_theirs() -> None:
    with network("star:1") as net:
        child = net.popen("h1", ["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE)
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        child.stdout.close()
    assert child.returncode == -signal.SIGTERM
    assert gone(grandchild)


@as_root
def test_a_child_that_will_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "TERM_GRACE", 0.1)
    with network("star:1") as net:
        deaf = "trap '' TERM; echo; while :; do sleep 1; done"
        child = net.popen("h1", ["sh", "-c", deaf], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        child.stdout.close()
    assert child.returncode == -signal.SIGKILL


def living(net: Network, node: str, command: str) -> int:
    """A process on a node that its parent leaves alone, in a session of its own."""
    code = f"setsid sh -c 'echo $$; exec >&-; {command}' & wait"
    child = net.popen(node, ["sh", "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        return int(child.stdout.readline())


@as_root
@pytest.mark.parametrize("command", ["sleep 1000", "trap : TERM; while :; do sleep 1; done"])
def test_closing_ends_what_has_left_its_group(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "TERM_GRACE", 0.2)
    with network("star:1") as other, subprocess.Popen(["sleep", "1000"]) as stranger:
        neighbour = living(other, "h1", "sleep 1000")
        try:
            with network("star:1") as net:
                process = living(net, "h1", command)
            assert gone(process)
            assert not gone(neighbour, tries=1)
            assert stranger.poll() is None
        finally:
            stranger.kill()


@as_root
def test_a_network_that_is_closed_from_within_does_not_end_its_owner() -> None:
    net = network("star:1")
    net.start()
    with net.inside("h1"):
        net.close()


CRASH = f"""
import os, signal, subprocess
from topologies import Topology
from topologies.netns import Network
net = Network(Topology.parse("star:2,rate=1Gbit"), prefix="{PREFIX}")
net.start()
command = "sleep 1000 >&- 2>&- & echo $!; wait"
child = net.popen("h1", ["sh", "-c", command], stdout=subprocess.PIPE)
print(child.pid, int(child.stdout.readline()), *map(net.namespace, net.topology.nodes), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def crash() -> tuple[int, int, list[str]]:
    """A process that builds a network and dies: its child, the child's, and its namespaces."""
    done = subprocess.run([sys.executable, "-c", CRASH], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    child, grandchild, *names = done.stdout.split()
    return int(child), int(grandchild), names


@as_root
def test_what_a_crash_leaves_is_cleaned() -> None:
    with network("star:1") as alive:
        neighbour = living(alive, "h1", "sleep 1000")
        child, grandchild, names = crash()
        assert gone(child)
        assert not gone(grandchild, tries=1)
        assert set(names) <= left()
        assert set(clean()) >= set(names)
        assert gone(grandchild)
        assert not gone(neighbour, tries=1)
        assert not set(names) & left()
        assert (NAMESPACES / alive.namespace("h1")).exists()
        assert output(alive, "h1", "print(1)") == "1"


@as_root
def test_the_next_network_cleans_up() -> None:
    _, grandchild, names = crash()
    with network("star:1"):
        assert not set(names) & left()
        assert gone(grandchild)


@as_root
def test_what_another_process_is_cleaning_is_waited_for() -> None:
    """Else a network could be built beside the rest of one that has its name, and its hosts."""
    _, _, names = crash()
    claims = {claim.name: claim for claim in Claim.left_over()}
    with ThreadPoolExecutor(1) as pool:
        cleaning = pool.submit(clean)
        with pytest.raises(FutureTimeout):
            cleaning.result(0.5)
        for claim in claims.values():
            claim.release()
        assert not set(names) & set(cleaning.result(PATIENCE))
    assert any(name.startswith(f"{claim}-") for claim in claims for name in names)
    assert not set(names) & left()


@as_root
def test_who_dies_while_cleaning_is_followed() -> None:
    _, _, names = crash()
    for claim in list(Claim.left_over()):
        claim._lock.close()
    assert set(clean()) >= set(names)
    assert not set(names) & left()


@as_root
def test_a_maker_that_died_between_two_steps() -> None:
    """A claim without namespaces, and a name without a namespace behind it."""
    claim = Claim.new(PREFIX)
    (NAMESPACES / f"{claim.name}-h1").touch()
    assert f"{claim.name}-h1" not in clean()
    claim._lock.close()
    assert f"{claim.name}-h1" in clean()


@as_root
def test_what_is_not_ours_stays() -> None:
    """No claim, no cleaning, whatever the name; and another claim's name is not a prefix."""
    claim = Claim.new(PREFIX)
    strangers = [NAMESPACES / f"{PREFIX}-0-0-h1", NAMESPACES / f"{claim.name}0-h1"]
    strangers += [CLAIMS / PREFIX]
    for path in strangers:
        path.touch()
    try:
        clean()
        assert claim.release() == []
        assert all(path.exists() for path in strangers)
    finally:
        for path in strangers:
            path.unlink()


@as_root
def test_two_networks_at_once() -> None:
    with network("star:2") as one, network("star:2") as two:
        assert one.namespace("h1") != two.namespace("h1")
        bridge(one)
        assert pings(one, "h1", "h2")
        two.close()
        assert pings(one, "h2", "h1")


@as_root
def test_a_network_can_be_built_again() -> None:
    net = network("star:1")
    for _ in range(2):
        with net:
            with pytest.raises(NetworkError, match="is built already"):
                net.start()
            assert output(net, "h1", "print(1)") == "1"
        net.close()
    with pytest.raises(NetworkError, match="is not built"):
        net.namespace("h1")
    with pytest.raises(NetworkError, match="built is nothing"):
        net.popen("h1", ["true"])


@as_root
def test_a_failure_half_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netns, "token_bucket", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        network("star:2,rate=1Gbit").start()


@as_root
def test_a_kernel_that_lacks_something(monkeypatch: pytest.MonkeyPatch) -> None:
    nonsense = {"rate": 1000, "burst": 0, "limit": 1}
    monkeypatch.setattr(netns, "token_bucket", lambda _: nonsense)
    with pytest.raises(NetworkError, match=r"the kernel refuses tbf .* CONFIG_NET_SCH_TBF"):
        network("star:2,rate=1Gbit").start()


NO_ROOT = """
import os, sys
os.setgid(65534); os.setuid(65534)
from topologies import Topology
from topologies.netns import Network, clean
from topologies.errors import PrivilegeError
for act in (Network(Topology.parse("star:2")).start, clean):
    try:
        act()
    except PermissionError as error:
        print(type(error).__name__, error)
"""


@as_root
def test_without_root() -> None:
    CLAIMS.mkdir(parents=True, exist_ok=True)
    code = "import topologies.netns, pyroute2\n" + NO_ROOT  # before losing sight of the files
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("PrivilegeError building networks needs CAP_SYS_ADMIN"), done
    assert "run as root" in done.stdout


def test_the_privilege_error_is_a_permission_error() -> None:
    assert issubclass(PrivilegeError, PermissionError)
    assert issubclass(PrivilegeError, NetworkError)


@as_root
def test_without_pyroute2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    with pytest.raises(NetworkError, match="pip install -e"):
        network("star:1").start()


def test_misuse() -> None:
    with pytest.raises(ValueError, match="prefix 'Isw-1' is not 1 to 8 small letters"):
        Network(Topology.parse("star:1"), prefix="Isw-1").start()
    with pytest.raises(TopologyError, match="no node 'h2'"):
        network("star:1").ports("h2")
