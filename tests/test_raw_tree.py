"""A tree of raw switches between real namespaces: exact sums, and pings across the racks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from topologies import Topology
from topologies.netns import Network
from worker_lib import Worker

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="raw ports need root")
PATIENCE = 30.0
PORT = 26963


@contextmanager
def tree(spec: str) -> Iterator[tuple[Network, dict[str, subprocess.Popen[bytes]]]]:
    """A network whose switches run, each with its parent."""
    with Network(Topology.parse(spec), prefix="iswtree") as network:
        topology = network.topology
        processes = {}
        for switch in topology.tree:
            ports = network.ports(switch.name)
            command = [sys.executable, "-m", "iswitch", "switch", "--json", "--ports"]
            command += [",".join(port.ifname for port in ports)]
            command += ["--address", str(topology.address(switch.name))]
            if switch.parent:
                uplink = next(port.ifname for port in ports if port.peer == switch.parent)
                command += ["--parent", f"{topology.address(switch.parent)}:{PORT}"]
                command += ["--uplink", uplink]
            processes[switch.name] = network.popen(
                switch.name,
                command,
                cwd=ROOT,
                env={"PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
            )
        for process in processes.values():
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())
        yield network, processes
        for process in processes.values():
            process.send_signal(signal.SIGINT)
        for process in processes.values():
            process.communicate(timeout=PATIENCE)
            assert process.returncode == 0


@pytest.mark.parametrize("spec", ["rack:2x3", "tree:2x2x2"])
def test_sums_through_a_tree(spec: str) -> None:
    """The workers' sockets stand in the hosts' namespaces; sums and pings go at once."""
    numel = 200_000
    with tree(spec) as (network, _):
        topology = network.topology
        hosts = [host.name for host in topology.hosts]

        def worker(name: str) -> Worker:
            switch = topology.address(topology.switch_of(name))
            with network.inside(name):
                return Worker((str(switch), PORT), 1, numel, len(hosts), timeout=PATIENCE)

        far = str(topology.address(hosts[-1]))
        ping = network.popen(hosts[0], ["ping", "-c", "20", "-i", "0.05", far])
        with ThreadPoolExecutor(len(hosts)) as pool:
            workers = list(pool.map(worker, hosts))
            vector = np.arange(numel, dtype=np.float32)
            want = len(hosts) * vector + sum(range(len(hosts)))
            for _ in range(5):
                sums = pool.map(lambda i: workers[i].allreduce(vector + i), range(len(hosts)))
                assert all((total == want).all() for total in sums)
            for each in workers:
                each.leave()
        assert ping.wait(PATIENCE) == 0
