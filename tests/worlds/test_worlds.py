"""Worlds of real networks, whoever builds them: alongside other traffic, and of full size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iswitch.lab.launch.processes import Fleet
from iswitch.lab.launch.switches import Switches
from iswitch.lab.launch.worlds import make_world
from tests.support import ROOT
from tests.support.machine import judged
from topologies import Topology
from topologies.namespaces import NAMESPACES

PORT = "5201"  # iperf3's
START, STOP = 20.0, 10.0  # seconds; what 64 hosts may take

pytestmark = [pytest.mark.root(reason="networks need root"), pytest.mark.serial]
worlds = pytest.mark.parametrize("world", ["netns", "mininet"])


@worlds
@pytest.mark.parametrize("form", ["star:64", "rack:4x16,rate=1Gbit"])
def test_64_hosts(world: str, form: str) -> None:
    """Up with the switches listening, and gone, well within the time there is."""

    def up_and_gone() -> tuple[float, float]:
        before = set(NAMESPACES.glob(f"isw-{os.getpid()}-*"))
        began = time.monotonic()
        with make_world(world, Topology.parse(form)) as built, Fleet() as fleet:
            switches = Switches(fleet, built)
            switches.start()
            up = time.monotonic()
            assert len(set(NAMESPACES.glob(f"isw-{os.getpid()}-*")) - before) >= 65
            switches.stop()
        gone = time.monotonic()
        assert set(NAMESPACES.glob(f"isw-{os.getpid()}-*")) == before
        return up - began, gone - up

    found = judged(up_and_gone, lambda seconds: seconds[0] < START and seconds[1] < STOP)
    print(f"{world} {form}: up in {found[0]:.2f} s, gone in {found[1]:.2f} s")


def on(pid: int, host: str, *command: str) -> subprocess.Popen[str]:
    """A command on a host of the network that a process has built."""
    enter = ["ip", "netns", "exec", f"isw-{pid}-0-{host}"]
    return subprocess.Popen(
        [*enter, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@worlds
def test_ping_and_iperf_are_undisturbed_by_training(world: str, tmp_path: Path) -> None:
    """And training by them: it learns, to the same weights everywhere, by exact sums."""
    form, pinging, pinged, sending, receiving = "rack:2x3", 2, 5, 1, 6
    topology = Topology.parse(form)
    report = tmp_path / "report.json"
    words = ["--world", world, "--topology", form, "--json", str(report), "--iterations", "180"]
    demo = subprocess.Popen(
        [sys.executable, "-m", "iswitch", "demo", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    others: list[subprocess.Popen[str]] = []
    try:
        assert demo.stdout is not None
        assert any(line.startswith("iteration  ") for line in iter(demo.stdout.readline, ""))
        server = on(demo.pid, f"h{receiving}", "iperf3", "-s", "-1", "-p", PORT)
        others.append(server)
        target = str(topology.address(f"h{pinged}"))
        ping = on(demo.pid, f"h{pinging}", "ping", "-i", "0.05", "-c", "40", "-W", "3", target)
        others.append(ping)
        time.sleep(0.3)  # for the server to listen
        server_address = str(topology.address(f"h{receiving}"))
        rate = ["-b", "100M", "-t", "2", "-J"]
        iperf = on(demo.pid, f"h{sending}", "iperf3", "-c", server_address, "-p", PORT, *rate)
        others.append(iperf)
        said = ping.communicate(timeout=60)[0]
        measured = json.loads(iperf.communicate(timeout=60)[0])
        assert demo.poll() is None, "they have to be at the same time"
        told = demo.communicate(timeout=100)[0]
    finally:
        for process in (*others, demo):
            if process.poll() is None:
                process.terminate()
            process.communicate()
    assert "40 packets transmitted, 40 received, 0% packet loss" in said, said
    assert "error" not in measured
    assert measured["end"]["sum_received"]["bytes"] > 5e6
    assert demo.returncode == 0, told
    checks = json.loads(report.read_text())["checks"]
    assert checks == {"learned": True, "weights equal": True, "sum exact": True}
