"""Traces of live worlds, and of public tools' captures of them, replay; and drive live switches."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import (
    PORT,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    Join,
    Segments,
    Shape,
)
from iswitch.core.switch import Switch
from iswitch.ports.capture import Capture
from iswitch.ports.recorded import RecordedDatagrams
from iswitch.traces.report import lines
from tests.ports.test_raw import allreduce, running
from tests.support import ROOT, python
from tests.support.captured import SWITCH, Sent, ack, data, request, worker
from tests.support.machine import judged
from tests.traces.test_replay import all_equal, data_packets, generate, replayed, trace
from tests.traces.test_traces import pcap

pytestmark = pytest.mark.serial

__all__ = ["trace"]  # the fixture

as_root = pytest.mark.root(reason="only root has ports")

VECTORS = Shape.of(1200, elements=300)
TCPDUMP = ["tcpdump", "-i", "any", "-B", "32768", "-U", "-Z", "root"]
# Of its own accord it keeps 1 MB for a thread that writes, and drops packets beyond.
DUMPCAP = ["dumpcap", "-q", "-B", "32", "-C", "100000000", "-N", "100000"]
PORTS = ["-i", "s1-eth1", "-i", "s1-eth2", "-i", "s1-eth3"]
SUMS = """
    import numpy as np
    from worker_lib import Worker
    with Worker.from_env(numel=50_001) as worker:
        chance = np.random.default_rng(worker.rank)
        for _ in range(4):
            worker.allreduce(chance.standard_normal(50_001).astype(np.float32))
"""


def recorded(code: str, folder: Path, topology: str, world: str = "loopback") -> str:
    """Record a run of workers' code; return what the command says."""
    words = ["-m", "iswitch", "record", "--to", str(folder), "--topology", topology]
    script = [sys.executable, "-c", textwrap.dedent(code)]
    done = python(*words, "--world", world, "--", *script)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("world", ["loopback", pytest.param("netns", marks=as_root)])
def test_recorded_runs_are_replayed_bit_for_bit(world: str, tmp_path: Path) -> None:
    """Random numbers, whose sums depend on the order of arrival to the last bit."""
    said = recorded(SUMS, tmp_path / "traces", "rack:2x2", world)
    for name in ("core1", "tor1", "tor2"):
        assert f"{name}.pcapng, " in said
        report = replayed(tmp_path / "traces" / f"{name}.pcapng")
        all_equal(report)
        assert report["arrival_order"] == "known"
        assert report["jobs"][0]["rounds"] == 4


ASYNCHRONOUS = """
    import numpy as np
    from worker_lib import AsynchronousWorker
    weights = np.zeros(5001, np.float32)
    def update(total, contributions, version):
        weights[:] -= total
    with AsynchronousWorker.from_env(5001, update=update, state=[weights]) as worker:
        for _ in range(20):
            version = worker.read([np.empty_like(weights)])
            worker.contribute(np.ones(5001, np.float32), version)
"""


def test_an_asynchronous_job_has_versions_and_no_stragglers(tmp_path: Path) -> None:
    recorded(ASYNCHRONOUS, tmp_path, "star:2")
    report = replayed(tmp_path / "s1.pcapng")
    all_equal(report)
    (job,) = report["jobs"]
    assert job["mode"] == "asynchronous"
    vectors = [member["vectors"] for member in job["members"]]
    assert len(vectors) == 2
    content = (tmp_path / "s1.pcapng").read_bytes()
    sent = {
        (int.from_bytes(place.head[34:36], "big"), content[place.payload : place.payload + 4])
        for place in data_packets(tmp_path / "s1.pcapng")
        if place.direction == 1
    }
    for member in job["members"]:
        port = int(member["address"].partition(":")[2])
        assert member["vectors"] == sum(source == port for source, _ in sent) > 1
    # By default as many contributions make a version as there are members.
    assert 0 < job["versions"] <= sum(vectors)
    assert (job["rounds"], job["per_round"], job["completion"]) == (0, [], {})
    assert {member["last_of_round"] for member in job["members"]} == {0}
    text = "\n".join(lines(report))
    assert f" versions  {job['versions']:,};" in text
    assert "last in" not in text
    assert main(["analyze", str(tmp_path / "s1.pcapng")]) == 0


def shares(round_: int, seed: int) -> list[bytes]:
    """A contribution to a round of `VECTORS`, a data packet for each segment."""
    elements = np.random.default_rng(seed).standard_normal(VECTORS.numel).astype("<f4")
    return [
        (round_ << 32 | i).to_bytes(8, "big") + elements[300 * i : 300 * (i + 1)].tobytes()
        for i in range(VECTORS.segments)
    ]


@as_root
def test_answers_stand_behind_what_they_answer(tmp_path: Path) -> None:
    """A switch that was held up finds contributions that come late, and a Leave, at once."""
    path = tmp_path / "s1.pcapng"
    with running("star:2", "--capture", str(path)) as world:
        workers = []
        for host in ("h1", "h2"):
            with world.network.inside(host):
                workers.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            workers[-1].connect((world.address, PORT))
            workers[-1].settimeout(20)

        def send(number: int, tos: int, *payloads: bytes) -> None:
            workers[number].setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
            for payload in payloads:
                workers[number].send(payload)

        def receive(number: int, count: int) -> None:
            for _ in range(count):
                workers[number].recv(2048)

        join = Control(Action.JOIN, 7, 1000, Join.for_shape(VECTORS, expected=2)).build()
        for number in range(2):
            send(number, TOS_CONTROL, join)
            receive(number, 1)
        for number in range(2):
            send(number, TOS_DATA, *shares(0, number))
        for number in range(2):
            receive(number, VECTORS.segments)
        world.process.send_signal(signal.SIGSTOP)
        send(0, TOS_DATA, *shares(0, 0))
        send(0, TOS_CONTROL, Control(Action.LEAVE, 7, 1001).build())
        world.process.send_signal(signal.SIGCONT)
        receive(0, VECTORS.segments + 1)  # the aggregates once more, and the Ack
        for worker in workers:
            worker.close()
        assert world.end()["late"] == VECTORS.segments
    report = replayed(path)
    all_equal(report)
    assert report["compared"]["captured"] == 3 * VECTORS.segments


class Bursts:
    """A port of datagrams that come as one burst, where control packets may come together."""

    def __init__(self, *bursts: Burst) -> None:
        self.bursts = bursts

    def pull(self) -> Iterator[Burst]:
        yield from self.bursts

    def push(self, sends: Iterable[Outgoing]) -> None:
        pass

    def fileno(self) -> int:
        return -1

    def deadline(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_on_a_socket_control_packets_are_recorded_one_by_one(tmp_path: Path) -> None:
    """A Help and a Leave in one burst: what is sent because of the Help is before the Leave."""
    peers = [Address("127.0.0.1", 40000 + number) for number in range(2)]
    join = Control(Action.JOIN, 7, 1000, Join.for_shape(VECTORS, expected=2)).build()
    rows = [np.frombuffer(b"".join(shares(0, i)), np.uint8).reshape(4, -1) for i in range(2)]
    asking = Control(Action.HELP, 7, 1001, Segments(0, 0, 4)).build()
    leaving = Control(Action.LEAVE, 7, 1002).build()
    both = np.frombuffer(asking + leaving.ljust(len(asking), b"\0"), np.uint8).reshape(2, -1)
    bursts = [
        *(Burst.single(peer, TOS_CONTROL, join) for peer in peers),
        *(Burst(peer, TOS_DATA, rows[i], rows[i].shape[1]) for i, peer in enumerate(peers)),
        Burst(peers[0], TOS_CONTROL, both, len(leaving)),
    ]
    path, switch = tmp_path / "s1.pcapng", Switch()
    capture = Capture(path, ["lo"], switch.counters)
    port = RecordedDatagrams(Bursts(*bursts), Address("127.0.0.1", PORT), capture)
    for number, burst in enumerate(port.pull()):
        port.push(switch.receive(burst, number * 1e-3))
    port.close()
    report = replayed(path)
    all_equal(report)
    assert report["compared"]["captured"] == 3 * VECTORS.segments
    assert report["control"]["to_switch"] == {"JOIN": 2, "HELP": 1, "LEAVE": 1}


@pytest.mark.parametrize("acknowledged", [True, False])
def test_aggregates_behind_a_leave_in_a_public_tools_capture(
    tmp_path: Path, acknowledged: bool
) -> None:
    """The switch sent them before it came to the Leave, as it does when it is held up."""
    segments = range(VECTORS.segments)
    total = np.zeros(VECTORS.numel, "<f4")
    for number in range(2):
        total += np.frombuffer(b"".join(each[8:] for each in shares(0, number)), "<f4")
    sums = [total[300 * i : 300 * (i + 1)].tobytes() for i in segments]
    members = worker(1), worker(2)
    sent = []
    for member in members:
        joining = Join.for_shape(VECTORS, expected=2)
        sent += [request(member, Action.JOIN, 7, 1000, joining)]
        sent += [ack(member, 7, 1000, Ack(Action.JOIN))]
    for number, member in enumerate(members):
        sent += [Sent(member, SWITCH, TOS_DATA, each) for each in shares(0, number)]
    sent += [data(member, 0, i, sums[i], relayed=True) for member in members for i in segments]
    for number, member in enumerate(members):
        late = [Sent(member, SWITCH, TOS_DATA, each) for each in shares(0, number)]
        answers = [data(member, 0, i, sums[i], relayed=True) for i in segments]
        leaving = [request(member, Action.LEAVE, 7, 1001)] * 2
        sent += [*late, *leaving, *answers]
        sent += [ack(member, 7, 1001, Ack(Action.LEAVE))] * (2 * acknowledged)
    path = tmp_path / "tool.pcap"
    path.write_bytes(pcap([each.frame() for each in sent], step=1_000_000))
    report = replayed(path)
    assert report["arrival_order"] == "unknown"
    all_equal(report)
    assert report["compared"]["captured"] == 4 * VECTORS.segments
    assert report["control"]["to_switch"] == {"JOIN": 2, "LEAVE": 4}
    assert report["drops"]["late"] == 2 * VECTORS.segments


@as_root
def test_simulated_and_raw_replay_alike(tmp_path: Path) -> None:
    """The same vectors in both: the same sums, and the same accounts of them."""
    raw = tmp_path / "raw.pcapng"
    reports: list[dict[str, Any]] = []

    def repeats() -> int:
        """How many packets more the replay sends: requests that a held-up switch repeats late."""
        with running("star:4", "--capture", str(raw)) as world:
            allreduce(world, 30_001)
            counters = world.end()
        report = replayed(raw)
        all_equal(report)
        for name in ("rx_packets", "data", "accumulated", "aggregates", "rx_frames"):
            assert report["counters"][name] == counters[name]
        reports.append(report)
        return int(report["counters"]["tx_packets"] - counters["tx_packets"])

    judged(repeats, lambda more: more == 0)
    report = reports[-1]
    simulated = replayed(generate(tmp_path / "sim", "star:4", numel=30_001, rounds=3))
    all_equal(simulated)
    for name in ("segments", "numel", "rounds", "dtype"):
        assert simulated["jobs"][0][name] == report["jobs"][0][name]
    assert simulated["counters"]["aggregates"] == report["counters"]["aggregates"]


@as_root
def test_captures_of_public_tools(tmp_path: Path) -> None:
    """As super-datagrams with unfinished checksums, cooked, and of several interfaces."""
    with running("star:3") as world:
        commands = {
            "sll2.pcap": [*TCPDUMP, "-y", "LINUX_SLL2"],
            "sll.pcap": [*TCPDUMP, "-y", "LINUX_SLL"],
            "dumpcap.pcapng": [*DUMPCAP, *PORTS],
        }
        running_ones = [
            world.network.popen(
                "s1", [*command, "-w", str(tmp_path / name)], stderr=subprocess.PIPE
            )
            for name, command in commands.items()
        ]
        for process in running_ones:
            assert process.stderr is not None
            while not re.search(rb"^(File:|tcpdump: listening)", process.stderr.readline()):
                assert process.poll() is None
        allreduce(world, 100_003)
        time.sleep(1.0)  # until they have fetched it all
        for process in running_ones:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=20)
        world.end()
    for name in commands:
        report = replayed(tmp_path / name)
        assert report["trace"]["dropped_by_capture"] == 0, name
        assert report["arrival_order"] == "unknown", name
        all_equal(report)  # the vectors are of small whole numbers: every order gives the same
        assert report["jobs"][0]["rounds"] == 3
        assert report["trace"]["packets"] < report["compared"]["captured"]  # super-datagrams


@as_root
def test_injected_traces_drive_a_switch(trace: Path, tmp_path: Path) -> None:
    """A live switch that is sent what the simulated one was makes the same sums."""
    made = tmp_path / "made.pcapng"
    with running("star:1", "--capture", str(made)) as world:
        found = world.run(
            "h1", "env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "iswitch", "replay",
            str(trace), "--inject", "h1-eth0", "--json",
        )  # fmt: skip
        time.sleep(1.0)  # until the switch has taken the last of it
        counters = world.end()
    report = replayed(trace)
    sent = json.loads(found)
    assert sent["refused"] == 0
    assert sent["packets"] == report["trace"]["to_switch"] == counters["rx_packets"]
    assert counters["aggregates"] == report["counters"]["aggregates"]
    assert counters["accumulated"] == report["counters"]["accumulated"]
    all_equal(replayed(made))
