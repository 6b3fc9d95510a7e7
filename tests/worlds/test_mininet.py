"""Mininet with iSwitches: from its command line, from Python, and as a builder of topologies."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.machine import judged
from tests.support.networks import PREFIX, gone, left, links, mn
from topologies import NetworkError, Topology
from topologies.namespaces import NAMESPACES
from topologies.netns import clean

PATIENCE = 60.0

pytestmark = [
    pytest.mark.serial,
    pytest.mark.root(reason="Mininet needs root"),
    pytest.mark.usefixtures("nothing_is_left"),
]

ISWITCH = ["--custom", "topologies/mininet.py", "--switch", "iswitch", "--controller", "none"]


@pytest.mark.parametrize(  # stars and trees: tests/docs/test_listings.py
    ("words", "pairs"),
    [
        ("--topo single,3 --mac --arp", 6),
        ("--topo linear,3", 6),
        ("--topo rack,2,3", 30),
        ("--topo star,4 --link tc,bw=100", 12),
        ("--topo star,3,rate=100Mbit", 6),
        ("--topo topology,leafspine:2x2x1,rate=100Mbit", 2),
    ],
)
def test_pingall(words: str, pairs: int) -> None:
    said = mn(*shlex.split(words), *ISWITCH, "--test", "pingall")
    assert f"Results: 0% dropped ({pairs}/{pairs} received)" in said, said
    assert "*** Done" in said


def test_cli() -> None:
    ping = "h1 ping -c1 -W2 h2"
    lines = [ping, "py s1.address", "switch s1 stop", "switch s1 start", ping, "exit"]
    said = mn("--topo", "single,2", *ISWITCH, commands="\n".join(lines) + "\n")
    assert said.count("1 packets transmitted, 1 received") == 2, said
    assert "10.255.255.254" in said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--topo torus,3,3", "make a circle"),
        ("--topo single,2 --link tc,delay=5ms", "lacks netem"),
        ("--topo single,2 --link default,bw=10", "use a TCLink"),
        ("--topo star,2 --switch iswitch,opts=--nonsense", "--nonsense (opts=--nonsense)"),
        ("--topo star,2 --switch iswitch,adress=10.0.0.9", "no option adress; the options are"),
        ("--topo linear,3 --switch iswitch,parent=s3", "switch s1 has no link to its parent 's3'"),
        ("--topo linear,2 --switch iswitch,address=10.0.0.100", "s1 and s2 have the same address"),
        ("--topo single,2 --switch iswitch,address=10.0.0.1", "h1 and s1 have the same address"),
    ],
)
def test_what_mn_is_told(words: str, complaint: str) -> None:
    said = mn(*ISWITCH, *shlex.split(words), "--test", "pingall")
    assert complaint in said or has_qdisc(complaint), said


def has_qdisc(complaint: str) -> bool:
    """Whether a complaint that the kernel lacks one would be wrong."""
    kind = complaint.removeprefix("lacks ")
    if kind == complaint:
        return False
    words = "limit 1000" if kind == "netem" else ""
    command = f"ip link set lo up && tc qdisc add dev lo root handle 5: {kind} {words}"
    done = subprocess.run(["unshare", "-n", "sh", "-c", command], capture_output=True, timeout=20)
    return done.returncode == 0


def test_delay_of_a_topology() -> None:
    """In and out at the switch, there and back: no less than that, and little more."""

    def least() -> float:
        commands = "h1 ping -c10 -i0.1 h2\nexit\n"
        said = mn("--topo", "star,2,delay=5ms", *ISWITCH, commands=commands)
        (found,) = re.findall(r"rtt min/avg/max/mdev = ([0-9.]+)/", said)
        assert float(found) >= 20, said
        return float(found)

    judged(least, lambda milliseconds: milliseconds < 30)


PYTHON = """
import json, subprocess, sys
from mininet.link import TCLink
from mininet.net import Mininet
from mininet.topo import Topo
from topologies import NetworkError
from topologies.mininet import ISwitch

class Lab(Topo):
    def build(self, **link):
        self.addSwitch("s1")
        for name in ("h1", "h2", "h3"):
            self.addHost(name)
            self.addLink(name, "s1", **link)

def lab(**link):
    return Mininet(topo=Lab(**link), switch=ISwitch, link=TCLink, controller=None)
"""


def python(code: str) -> str:
    """What a program prints that uses Mininet as its users do."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PYTHON + textwrap.dedent(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rates_of_tclink() -> None:
    def rate() -> float:
        said = python("""
            net = lab(bw=50)
            net.start()
            assert net.pingAll() == 0
            server = net["h1"].popen("iperf3 -s -1")
            net["s1"].cmd("sleep 0.5")
            print(net["h2"].cmd("iperf3 -J -t 2 -c", net["h1"].IP()))
            net.stop()
        """)
        (found,) = re.findall(r'"sum_received":.*?"bits_per_second":\s*([\d.e+]+)', said, re.DOTALL)
        assert float(found) < 55e6
        return float(found)

    judged(rate, lambda bits_per_second: bits_per_second > 40e6)


def test_workers_on_the_hosts_of_mininet() -> None:
    said = python("""
        net = lab()
        net.start()
        s1 = net["s1"]
        worker = '''
        import sys
        import numpy as np
        from worker_lib import Worker
        with Worker((sys.argv[1], 26963), job=1, numel=5000, num_workers=3) as worker:
            total = worker.allreduce(np.arange(5000, dtype=np.float32))
            assert (total == 3 * np.arange(5000, dtype=np.float32)).all()
            print("right")
        '''
        import textwrap
        command = [sys.executable, "-c", textwrap.dedent(worker), str(s1.address)]
        workers = [host.popen(command) for host in net.hosts]
        for one in workers:
            print(one.communicate(timeout=30)[0].decode())
        net.stop()
        print(json.dumps(s1.counters["data"] > 0))
    """)
    assert said.split() == ["right"] * 3 + ["true"]


def test_a_host_is_not_turned_away_from_the_switch_by_tagged_arp() -> None:
    """h3 says, behind a priority tag, that the switch is at h3; h1 does not hear it."""
    said = python("""
        net = lab()
        net.start()
        s1, (h1, _, h3) = net["s1"], net.hosts
        address = str(s1.address)
        h1.cmd("ping -c1 -W5", address)
        forger = '''
        import ipaddress, socket, sys
        own, to, here, there = sys.argv[1:]
        own, to = (bytes.fromhex(mac.replace(":", "")) for mac in (own, to))
        here, there = (ipaddress.ip_address(name).packed for name in (here, there))
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        sock.bind(("h3-eth0", 0))
        for operation in (1, 2) * 50:
            arp = bytes.fromhex("000108000604") + bytes([0, operation]) + own + here + to + there
            sock.send(to + own + bytes.fromhex("8100e0000806") + arp)
        '''
        import textwrap
        names = h3.MAC(), h1.MAC(), address, h1.IP()
        command = [sys.executable, "-c", textwrap.dedent(forger), *names]
        assert h3.popen(command).wait() == 0
        h1.cmd("ping -c1 -W5", h3.IP())
        known = h1.cmd("ip neighbour show", address)
        net.stop()
        print(json.dumps([names[0] in known, "lladdr" in known, s1.counters["spoofed"]]))
    """)
    assert json.loads(said) == [False, True, 100]


@pytest.mark.parametrize(
    ("link", "complaint"),
    [
        ({"delay": "5ms"}, "lacks netem"),
        ({"jitter": "1ms"}, "lacks netem"),
        ({"loss": 1}, "lacks netem"),
        ({"max_queue_size": 10}, "lacks netem"),
        ({"bw": 10, "use_hfsc": True}, "lacks hfsc"),
        ({"bw": 10, "enable_ecn": True}, "lacks red"),
        ({"bw": 5000}, "at most 1000 Mbit/s"),
    ],
)
def test_options_that_are_not_in_force_are_refused(link: dict[str, object], complaint: str) -> None:
    said = python(f"""
        net = lab(**{link})
        try:
            net.start()
        except NetworkError as error:
            print(error)
        finally:
            net.stop()
    """)
    assert complaint in said or has_qdisc(complaint), said
    if complaint == "lacks netem" and complaint in said:
        assert "give delay, loss and queue to the topology (--topo star,4,delay=5ms)" in said


@pytest.mark.parametrize(
    ("signum", "status", "words"),
    [
        (signal.SIGABRT, -signal.SIGABRT, "Fatal Python error: Aborted"),
        (signal.SIGKILL, -signal.SIGKILL, ""),
        (signal.SIGTERM, 0, ""),
    ],
)
@pytest.mark.parametrize("stop", ['net["s1"].stop()', ""])
def test_a_switch_that_dies_is_told_of(signum: int, status: int, words: str, stop: str) -> None:
    said = python(f"""
        import os
        os.dup2(1, 2)  # where Mininet complains
        os.environ["PYTHONFAULTHANDLER"] = "1"
        net = lab()
        net.start()
        os.kill(net["s1"].process.pid, {int(signum)})
        net["s1"].process.wait(20)
        {stop}
        net.stop()
    """)
    told = f"*** switch s1 ended before it was stopped with status {status}\n{words}"
    assert said.count(told) == 1, said


def test_a_switch_that_ends_well_is_not_told_of() -> None:
    said = python("""
        import os
        os.dup2(1, 2)
        net = lab()
        net.start()
        net.stop()
    """)
    assert "ended" not in said


def crash(code: str) -> list[str]:
    """What a program says that builds a network and dies by SIGKILL."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        code + "\nos.kill(os.getpid(), signal.SIGKILL)",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.split()


BUILDER = f"""
import os, signal
from topologies import Topology
from topologies.mininet import Network
net = Network(Topology.parse("star:2,rate=1Gbit"), prefix="{PREFIX}")
net.start()
child = net.popen("h1", ["sleep", "1000"])
shells = [node.pid for node in net.mininet.hosts + net.mininet.switches]
print(*map(net.namespace, net.topology.nodes), child.pid, *shells, flush=True)
"""


def test_what_a_crash_leaves_is_cleaned() -> None:
    """Its processes die with it; the names of its namespaces are for the next to remove."""
    words = crash(BUILDER)
    names, processes = words[:3], [int(word) for word in words[3:]]
    assert set(names) <= left()
    assert all(map(gone, processes))
    assert set(clean()) >= set(names)


MININET = """
import os, signal
net = lab()
net.start()
print(net["s1"].process.pid, *(node.pid for node in net.hosts + net.switches), flush=True)
"""


def test_iswitches_die_with_a_mininet_that_crashes() -> None:
    assert all(gone(int(pid)) for pid in crash(PYTHON + MININET))


def test_interfaces_of_the_builder() -> None:
    """As `topologies.netns` makes them."""
    from topologies.mininet import Network

    spec = Topology.parse("rack:1x2,mtu=9000,queue=70,rate=100Mbit")
    with Network(spec, prefix=PREFIX, offload=False) as net:
        host, switch = links(net, "h2"), links(net, "tor1")
        assert (NAMESPACES / net.namespace("h1")).name.startswith(f"{PREFIX}-{os.getpid()}-")
    assert list(host) == ["lo", "h2-eth0"]
    ports = [port.ifname for port in spec.ports("tor1")]
    assert sorted(switch) == ["lo", *ports]
    assert host["h2-eth0"].get("address") == spec.mac("h2")
    macs = [spec.port_mac("tor1", number) for number in (1, 2, 3)]
    assert [switch[port].get("address") for port in ports] == macs
    for name, link in (host | switch).items():
        assert name == "lo" or (link.get("mtu"), link.get("txqlen")) == (9000, 70)


@pytest.mark.parametrize(
    ("tool", "refused", "complaint"),
    [
        ("tc", "qdisc add", r"bw=100.0 is not in force: tc refuses it; .* CONFIG_NET_SCH_HTB"),
        ("tc", "class add", r"bw=100.0 is not in force: tc refuses it"),
        ("ip", "mtu", "mtu of h1-eth0 is 1500 rather than 9000, .* or leave the mtu out"),
    ],
)
def test_links_that_are_not_as_described_are_refused(
    tool: str, refused: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the kernel lacks something: Mininet itself would go on."""
    from topologies.mininet import Network

    script = f"""#!/bin/sh
    case "$*" in *"{refused}"*) echo no such thing >&2; exit 2;; esac
    exec {shutil.which(tool)} "$@"
    """
    (tmp_path / tool).write_text(script)
    (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(NetworkError, match=complaint):
        Network(Topology.parse("star:1,rate=100Mbit,mtu=9000,queue=70"), prefix=PREFIX).start()


@pytest.mark.parametrize("lacking", ["mnexec", "ip"])
def test_without_the_tools(lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from topologies.mininet import Network
    from topologies.mn.network import TOOLS

    for tool in TOOLS.keys() - {lacking}:
        (tmp_path / tool).symlink_to(shutil.which(tool) or "/nowhere")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NetworkError, match=rf"Mininet needs {lacking}: apt-get install"):
        Network(Topology.parse("star:2"), prefix=PREFIX).start()


@pytest.mark.parametrize("lacking", ["mininet", "mnexec"])
def test_the_world_without_mininet(lacking: str) -> None:
    code = """
    import os, shutil, sys
    if sys.argv.pop(1) == "mininet":
        sys.modules["mininet"] = None
    else:
        os.environ["PATH"] = "/nowhere"
    from iswitch.cli import main
    sys.exit(main())
    """
    words = [lacking, "run", "--world", "mininet", "--topology", "star:2", "--", "true"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "apt-get install --no-install-recommends mininet" in done.stderr
