"""Traces of live worlds, and of public tools' captures of them, replay; and drive live switches."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from iswitch.cli import main
from iswitch.traces.report import lines

from .test_raw import allreduce, running
from .test_replay import ROOT, all_equal, data_packets, generate, replayed, trace

__all__ = ["trace"]  # the fixture

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has ports")

TCPDUMP = ["tcpdump", "-i", "any", "-B", "32768", "-U", "-Z", "root"]
PORTS = ["-i", "s1-eth1", "-i", "s1-eth2", "-i", "s1-eth3"]
SUMS = """
    import numpy as np
    from worker_lib import Worker
    with Worker.from_env(numel=50_001) as worker:
        chance = np.random.default_rng(worker.rank)
        for _ in range(4):
            worker.allreduce(chance.standard_normal(50_001).astype(np.float32))
"""


@pytest.mark.parametrize("world", ["loopback", pytest.param("netns", marks=as_root)])
def test_recorded_runs_are_replayed_bit_for_bit(world: str, tmp_path: Path) -> None:
    """Random numbers, whose sums depend on the order of arrival to the last bit."""
    command = [sys.executable, "-m", "iswitch", "record", "--to", str(tmp_path / "traces")]
    command += ["--topology", "rack:2x2", "--world", world]
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", textwrap.dedent(SUMS)],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name in ("core1", "tor1", "tor2"):
        assert f"{name}.pcapng, " in done.stderr
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
    command = [sys.executable, "-m", "iswitch", "record", "--to", str(tmp_path)]
    command += ["--topology", "star:2", "--world", "loopback"]
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", textwrap.dedent(ASYNCHRONOUS)],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
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


@as_root
def test_simulated_and_raw_replay_alike(tmp_path: Path) -> None:
    """The same vectors in both: the same sums, and the same accounts of them."""
    raw = tmp_path / "raw.pcapng"
    with running("star:4", "--capture", str(raw)) as world:
        allreduce(world, 30_001)
        counters = world.end()
    report = replayed(raw)
    all_equal(report)
    for name in ("rx_packets", "data", "accumulated", "aggregates", "tx_packets", "rx_frames"):
        assert report["counters"][name] == counters[name]
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
            "dumpcap.pcapng": ["dumpcap", "-q", "-B", "32", *PORTS],
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
