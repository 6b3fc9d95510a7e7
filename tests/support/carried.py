"""What the interfaces of a network of namespaces have counted, while a command runs in it."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from topologies import Topology
from topologies.namespaces import NAMESPACES, inside
from worker_lib.strategies.packing import Direction

PATIENCE = 120.0
SETTLED = 0.3  # seconds without a packet, after which the last acknowledgement has gone

Popen = subprocess.Popen[str]


class Carried(NamedTuple):
    """What a direction of a link has carried, and what TCP of the node at its begin has sent."""

    size: int
    packets: int
    again: int  # segments sent more than once
    resets: int


class Counts(dict[Direction, Carried]):
    """What each direction of each link has carried."""

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            {
                at: Carried(*(a - b for a, b in zip(now, other[at], strict=True)))
                for at, now in self.items()
            }
        )

    def of_hosts(self) -> Carried:
        """What hosts have sent, all together; each has one link."""
        sent = [count for (source, _), count in self.items() if source.startswith("h")]
        return Carried(*map(sum, zip(*sent, strict=True)))


def read(topology: Topology, pid: int) -> Counts:
    """The counters of all interfaces, as who sends counts."""
    found = Counts()
    for node in topology.nodes:
        (namespace,) = NAMESPACES.glob(f"isw-{pid}-*-{node}")
        descriptor = os.open(namespace, os.O_RDONLY)
        with inside(descriptor):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
            tcp = Path("/proc/thread-self/net/snmp").read_text().split("Tcp:")[2].split()
        os.close(descriptor)
        rows = {line.split(":")[0].strip(): line.split(":")[1].split() for line in lines[2:]}
        for port in topology.ports(node):
            row = rows[port.ifname]
            found[node, port.peer] = Carried(
                int(row[8]), int(row[9]), again=int(tcp[11]), resets=int(tcp[13])
            )
    return found


def settled(topology: Topology, pid: int, name: str) -> Counts:
    """What the links have carried, once nothing is under way any more.

    What a strategy sends when it ends, and the next when it begins, comes late on a busy machine: a
    TCP reset, say, which has no time stamps. Members of `iswitch` are never silent for long, but
    say little.
    """
    limit = time.monotonic() + PATIENCE
    found = read(topology, pid)
    while True:
        time.sleep(SETTLED)
        before, found = found, read(topology, pid)
        if found == before or name.startswith("iswitch"):
            return found
        assert time.monotonic() < limit, f"{name} does not fall silent: {found - before}"


def until(process: Popen, folder: Path, what: str, workers: int = 4) -> None:
    """All are there."""
    limit = time.monotonic() + PATIENCE
    while not all((folder / f"{what}.{rank}").exists() for rank in range(workers)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit, what
        time.sleep(0.02)
