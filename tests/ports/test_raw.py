"""The raw switch between real namespaces: sums, ordinary traffic, captures, what it refuses."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from iswitch.core.format import counters as c
from iswitch.core.format.counters import Counters
from iswitch.ports.raw import RawPorts
from tests.support import ROOT
from topologies import Topology
from topologies.netns import Network
from worker_lib import Worker

pytestmark = [pytest.mark.root(reason="raw ports need root"), pytest.mark.serial]
PATIENCE = 30.0


def tool(name: str) -> str:
    found = shutil.which(name)
    assert found, f"this test needs {name}: apt-get install tshark iputils-ping, or make test"
    return found


class Running:
    """A network whose one switch is ours."""

    def __init__(self, network: Network, options: Sequence[str]) -> None:
        self.network = network
        self.topology = network.topology
        ports = ",".join(port.ifname for port in network.ports("s1"))
        command = [sys.executable, "-m", "iswitch", "switch", "--json", "--ports", ports]
        self.address = str(self.topology.address("s1"))
        self.process = network.popen(
            "s1",
            [*command, "--address", self.address, *options],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        assert ready == {"listening": f"{self.address}:26963"}

    def run(self, node: str, *command: str) -> str:
        child = self.network.popen(node, command, stdout=subprocess.PIPE)
        out, _ = child.communicate(timeout=PATIENCE)
        assert child.returncode == 0, out
        return out.decode()

    def end(self, status: int = 0) -> dict[str, int]:
        """Stop the switch; its counters, which add up."""
        self.process.send_signal(signal.SIGINT)
        out, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == status
        n: dict[str, int] = json.loads(out)
        frames = n["rx_packets"] + n["forwarded"] + n["answered"]
        frames += sum(n[reason] for reason in c.FRAME_DROPS)
        assert n["rx_frames"] == frames
        frames = n["tx_frames"] + sum(n[reason] for reason in c.EGRESS_DROPS)
        assert n["tx_packets"] + n["copies"] + n["own_frames"] + n["duplicated_out"] == frames
        return n


@contextlib.contextmanager
def running(spec: str, *options: str, offload: bool = True) -> Iterator[Running]:
    with Network(Topology.parse(spec), prefix="iswtest", offload=offload) as network:
        yield Running(network, options)


def allreduce(world: Running, numel: int, rounds: int = 3, **options: object) -> None:
    """All hosts sum up vectors, exactly; each from a thread here, its socket in the namespace."""
    hosts = [host.name for host in world.topology.hosts]
    failed: list[BaseException] = []
    vectors = [np.random.default_rng(i).integers(-99, 99, numel) for i in range(len(hosts))]
    wanted = np.sum(vectors, axis=0).astype(np.float32)

    def work(rank: int) -> None:
        try:
            address = (world.address, 26963)
            with world.network.inside(hosts[rank]):
                worker = Worker(address, 7, numel, len(hosts), **options)  # type: ignore[arg-type]
            with worker:
                for _ in range(rounds):
                    found = worker.allreduce(vectors[rank].astype(np.float32))
                    assert np.array_equal(found, wanted)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failed, failed


@pytest.mark.parametrize("offload", [True, False])
@pytest.mark.parametrize(
    ("mtu", "elements"), [(1500, None), (9000, None), (9000, 2241)], ids=["1500", "9000", "jumbo"]
)
def test_sums_are_exact(mtu: int, elements: int | None, offload: bool) -> None:
    with running(f"star:4,mtu={mtu}", offload=offload) as world:
        for numel in (0, 1, 10_247, 300_001):
            allreduce(world, numel, elements_per_segment=elements)
        counters = world.end()
    assert counters["aggregates"] > 300_001 // (elements or 366)
    wrong = {"bad_frame", "bad_checksum", "too_large", "tx_failed", "unresolved", "rx_overflow"}
    assert not wrong & {name for name in c.DROPS if counters[name]}


def test_packets_one_by_one_from_the_switch() -> None:
    with running("star:3", "--no-offload") as world:
        allreduce(world, 50_000)
        assert ping(world, "h1", "h2")
        world.end()


def ping(world: Running, node: str, to: str, size: int = 56, *options: str) -> bool:
    address = str(world.topology.address(to))
    command = [tool("ping"), "-c1", "-W2", "-s", str(size), *options, address]
    return world.network.popen(node, command, stdout=subprocess.DEVNULL).wait(PATIENCE) == 0


def test_pings() -> None:
    with running("star:3") as world:
        assert ping(world, "h1", "h2")
        assert ping(world, "h3", "h2", 1472)
        assert ping(world, "h1", "h3", 9000)  # in fragments
        assert ping(world, "h1", "s1")
        assert ping(world, "h1", "s1", 1472)
        neighbours = world.run("h1", "cat", "/proc/net/arp")
        assert world.topology.mac("s1") in neighbours
        counters = world.end()
    assert counters["answered"] >= 3
    assert counters["forwarded"] >= 20


TCP_SINK = """
import socket, sys, hashlib
listener = socket.create_server((sys.argv[1], 5001))
print("ready", flush=True)
connection, _ = listener.accept()
digest = hashlib.sha256()
while data := connection.recv(1 << 20):
    digest.update(data)
print(digest.hexdigest())
"""
TCP_SOURCE = """
import socket, sys, hashlib, random
data = random.Random(1).randbytes(20_000_000)
with socket.create_connection((sys.argv[1], 5001)) as connection:
    connection.sendall(data)
print(hashlib.sha256(data).hexdigest())
"""


def tcp(world: Running, source: str, sink: str) -> None:
    """Twenty megabytes arrive as they were sent."""
    address = str(world.topology.address(sink))
    command = [sys.executable, "-c", TCP_SINK, address]
    receiver = world.network.popen(sink, command, stdout=subprocess.PIPE)
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == b"ready\n"
    sent = world.run(source, sys.executable, "-c", TCP_SOURCE, address)
    received, _ = receiver.communicate(timeout=PATIENCE)
    assert received.decode() == sent


@pytest.mark.parametrize(
    ("options", "offload"), [((), True), ((), False), (("--no-offload",), True)]
)
def test_tcp_passes(options: tuple[str, ...], offload: bool) -> None:
    with running("star:2", *options, offload=offload) as world:
        tcp(world, "h1", "h2")
        counters = world.end()
    assert counters["forwarded"] > 13_000  # frames on the wire, though super-frames passed


def test_frames_beyond_the_mtu_are_dropped_and_counted() -> None:
    topology = Topology.parse("star:2,mtu=9000")
    with Network(topology, prefix="iswtest") as network:
        from pyroute2 import IPRoute

        with network.inside("s1"), IPRoute() as netlink:
            (index,) = netlink.link_lookup(ifname="s1-eth2")
            netlink.link("set", index=index, mtu=1500)
        world = Running(network, ())
        assert ping(world, "h1", "h2", 1472)
        assert not ping(world, "h1", "h2", 1473, "-Mdo")
        assert not ping(world, "h1", "h2", 8000, "-Mdo")
        assert world.end()["too_large"] == 2


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    """What a switch with two hosts saw of sums, pings and TCP."""
    path = tmp_path / "all.pcapng"
    with running("star:2", "--capture", str(path)) as world:
        assert ping(world, "h1", "h2")
        assert ping(world, "h1", "s1")
        tcp(world, "h1", "h2")
        allreduce(world, 100_003)
        counters = world.end()
    assert not counters["capture_full"]
    (path.with_suffix(".json")).write_text(json.dumps(counters))
    return path


def test_a_full_disk_ends_the_capture_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], check=True)
    try:
        with running("star:2", "--capture", str(tmp_path / "all.pcapng")) as world:
            allreduce(world, 100_003)
            assert ping(world, "h1", "h2")
            assert world.end(status=1)["capture_full"] > 0
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    missing = r"all.pcapng is not complete, [1-9][\d,]* frames missing: No space left on device; "
    assert re.search(missing, capfd.readouterr().err)


def test_a_capture_holds_every_frame_with_right_checksums(captured: Path) -> None:
    counters = json.loads(captured.with_suffix(".json").read_text())
    fields = ["frame.interface_name", "frame.packet_flags_direction", "frame.len"]
    checks = ["ip", "tcp", "udp", "icmp"]
    names = [*fields, *(f"{name}.checksum.status" for name in checks)]
    command = [tool("tshark"), "-r", str(captured), "-T", "fields", "-E", "separator=,"]
    for name in checks[:3]:
        command += ["-o", f"{name}.check_checksum:TRUE"]
    for name in names:
        command += ["-e", name]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    frames = [line.split(",") for line in out.stdout.splitlines()]
    incoming = [frame for frame in frames if frame[1] == "0x00000001"]
    assert len(incoming) == counters["rx_frames"]
    assert len(frames) - len(incoming) == counters["tx_frames"]
    assert {frame[0] for frame in frames} == {"s1-eth1", "s1-eth2"}
    assert max(int(frame[2]) for frame in frames) == 1514
    good = "1"
    for frame in frames:
        assert set(frame[3:]) <= {good, ""}, frame
    for i in range(len(checks)):
        assert sum(frame[3 + i] == good for frame in frames) >= 4


def test_tshark_finds_every_checksum_right_on_the_wire(tmp_path: Path) -> None:
    """Seen by the hosts' own kernel, without offload: frames as they leave the switch."""
    path = tmp_path / "host.pcapng"
    with running("star:2", offload=False) as world:
        command = [tool("tshark"), "-i", "h2-eth0", "-w", str(path), "-q", "-B", "64"]
        watcher = world.network.popen("h2", command, stderr=subprocess.PIPE)
        assert watcher.stderr is not None
        while b"Capturing on" not in watcher.stderr.readline():
            pass
        time.sleep(1)  # it says so before it does
        assert ping(world, "h1", "h2")
        assert ping(world, "h2", "s1")
        tcp(world, "h1", "h2")
        allreduce(world, 100_003)
        world.end()
        time.sleep(0.5)
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=PATIENCE)
    command = [tool("tshark"), "-r", str(path), "-T", "fields", "-E", "separator=,"]
    for name in ("ip", "tcp", "udp"):
        command += ["-o", f"{name}.check_checksum:TRUE"]
    names = [f"{name}.checksum.status" for name in ("ip", "tcp", "udp", "icmp")]
    for name in ["eth.src", "frame.len", *names]:
        command += ["-e", name]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    own = world.topology.mac("h2")
    frames = [line.split(",") for line in out.stdout.splitlines()]
    from_switch = [frame for frame in frames if frame[0] != own]
    assert len(from_switch) > 13_000
    for frame in from_switch:
        assert set(frame[2:]) <= {"1", ""}, frame
        assert int(frame[1]) <= 1514


# One end of a veth in this process, the other at the switch's ports


@contextlib.contextmanager
def ports(counters: Counters | None = None) -> Iterator[tuple[RawPorts, list[socket.socket]]]:
    with Network(Topology.parse("star:2"), prefix="iswtest") as network:
        hosts = []
        for name in ("h1", "h2"):
            with network.inside(name):
                host = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
                host.bind((f"{name}-eth0", 0x88B5))
                host.settimeout(2)
                hosts.append(host)
        with network.inside("s1"):
            opened = RawPorts(["s1-eth1", "s1-eth2"], counters=counters)
        try:
            yield opened, hosts
        finally:
            opened.close()
            for host in hosts:
                host.close()
