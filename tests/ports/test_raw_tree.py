"""A tree of raw switches between real namespaces: exact sums, and pings across the racks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from iswitch.core.format import counters as c
from tests.support import ROOT
from topologies import Topology
from topologies.commands import switch_options
from topologies.netns import Network
from worker_lib import Worker

Counters = dict[str, int]
pytestmark = [pytest.mark.root(reason="raw ports need root"), pytest.mark.serial]
PATIENCE = 30.0
PORT = 26963


@contextmanager
def tree(spec: str) -> Iterator[tuple[Network, dict[str, Counters]]]:
    """A network whose switches run, each with its parent; in the end, their counters."""
    with Network(Topology.parse(spec), prefix="iswtree") as network:
        topology = network.topology
        processes = {}
        for switch in topology.tree:
            command = [sys.executable, "-m", "iswitch", "switch", "--json"]
            command += switch_options(topology, switch.name)
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
        counters: dict[str, Counters] = {}
        yield network, counters
        for process in processes.values():
            process.send_signal(signal.SIGINT)
        for name, process in processes.items():
            out, _ = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0
            n = counters[name] = json.loads(out)
            frames = n["rx_packets"] + n["forwarded"] + n["answered"]
            frames += sum(n[reason] for reason in c.FRAME_DROPS)
            assert n["rx_frames"] == frames
            frames = n["tx_frames"] + sum(n[reason] for reason in c.EGRESS_DROPS)
            assert n["tx_packets"] + n["copies"] + n["own_frames"] + n["duplicated_out"] == frames


def start_workers(network: Network, numel: int) -> list[Worker]:
    """One on each host, its socket in the host's namespace."""
    topology = network.topology
    hosts = [host.name for host in topology.hosts]

    def worker(name: str) -> Worker:
        switch = topology.address(topology.switch_of(name))
        with network.inside(name):
            return Worker((str(switch), PORT), 1, numel, len(hosts), timeout=PATIENCE)

    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(worker, hosts))


@pytest.mark.parametrize("spec", ["rack:2x3", "tree:2x2x2"])
def test_sums_through_a_tree(spec: str) -> None:
    """Sums and pings go at once."""
    numel = 200_000
    with tree(spec) as (network, _):
        topology = network.topology
        hosts = [host.name for host in topology.hosts]
        far = str(topology.address(hosts[-1]))
        ping = network.popen(hosts[0], ["ping", "-c", "20", "-i", "0.05", far])
        workers = start_workers(network, numel)
        with ThreadPoolExecutor(len(hosts)) as pool:
            vector = np.arange(numel, dtype=np.float32)
            want = len(hosts) * vector + sum(range(len(hosts)))
            for _ in range(5):
                sums = pool.map(lambda i: workers[i].allreduce(vector + i), range(len(hosts)))
                assert all((total == want).all() for total in sums)
            for each in workers:
                each.leave()
        assert ping.wait(PATIENCE) == 0
