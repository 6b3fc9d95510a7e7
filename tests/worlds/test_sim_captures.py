"""Connections of programs in captures of virtual time: TCP as Wireshark reads it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from iswitch.sim.grain import AUTO, SINGLE, Grain
from iswitch.sim.link import VirtualLink
from iswitch.sim.segments import HEAD, OFFERS
from iswitch.sim.tape import Tape
from iswitch.virtual.computing import Plan
from tests.support.captured import tshark
from topologies import Topology
from topologies.simulated import Simulation
from topologies.virtual.notebook import Floor, Seat

PORT = 7654
FIRST = "10.26.0.1"  # h1
TOLD = np.random.default_rng(1).bytes(100_001)
FIELDS = ["ip.src", "ip.dst", "tcp.seq_raw", "tcp.ack_raw", "tcp.flags", "frame.len"]
FIELDS += ["tcp.checksum.status", "ip.checksum.status", "tcp.payload"]
CHECKS = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]
GOOD = 1  # of the fields of checksums
FIN, SYN, ACK = 0x01, 0x02, 0x10


def talk(seat: Seat) -> None:
    """Ranks 1 to 3 send rank 0 bytes, and get them back; then nobody listens any more."""
    if not seat.rank:
        with socket.create_server(("", PORT)) as door:
            for _ in range(3):
                with door.accept()[0] as sock:
                    sock.sendall(sock.recv(len(TOLD), socket.MSG_WAITALL))
                    assert not sock.recv(1)
        return
    with socket.create_connection(("h1", PORT)) as sock:
        sock.sendall(TOLD)
        assert sock.recv(len(TOLD), socket.MSG_WAITALL) == TOLD
    if seat.rank == 3:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("h2", PORT))


def captured(path: Path, form: str, grain: Grain) -> VirtualLink:
    """Capture at the switch of h1 what `talk` makes pass; return the line to h1."""
    topology = Topology.parse(form)
    simulation = Simulation(topology, latency=0.0, grain=grain)
    (link,) = topology.ports("h1")
    switch = simulation.address(link.peer)
    neighbours = {port.peer: simulation.address(port.peer) for port in topology.ports(link.peer)}
    with path.open("wb") as file:
        Tape(simulation.network, switch, neighbours, file)
        Floor[None](simulation, Plan("zero")).run(talk)
    return simulation.network.links[switch, simulation.address("h1")]


@pytest.mark.parametrize(
    ("form", "grain"),
    [
        ("star:4,rate=1Gbit,delay=1ms", AUTO),
        ("rack:2x2,rate=1Gbit,mtu=9000", SINGLE),
        ("rack:2x2,rate=1Gbit,loss=1%", AUTO),
    ],
)
def test_frames_of_connections_are_tcp_without_a_fault(
    form: str, grain: Grain, tmp_path: Path
) -> None:
    """At the port of h1: every byte once and in order, none acknowledged before it has come."""
    path, port = tmp_path / "all.pcapng", tmp_path / "port.pcapng"
    line = captured(path, form, grain)
    only = ["tshark", "-r", str(path), "-Y", 'frame.interface_name == "h1"', "-w", str(port)]
    subprocess.run(only, check=True, capture_output=True)
    assert not tshark(port, tmp_path, *CHECKS, "-q", "-z", "expert,warn", twice=False).strip()

    options = [word for field in FIELDS for word in ("-e", field)]
    table = tshark(port, tmp_path, *CHECKS, "-T", "fields", *options, twice=False)
    expected: dict[tuple[str, str], int] = {}  # number of the next byte, by source and target
    told: dict[tuple[str, str], bytes] = defaultdict(bytes)
    bytes_down = 0
    for row in table.splitlines():
        source, target, *fields, payload = row.split("\t")
        number, acknowledged, flags, size, *sums = (int(field, 0) for field in fields)
        way, data = (source, target), bytes.fromhex(payload)
        assert sums == [GOOD, GOOD]
        assert (way not in expected) == bool(flags & SYN)
        assert number == expected.get(way, number)
        assert acknowledged == expected.get(way[::-1], 0) or not flags & FIN
        assert acknowledged <= expected.get(way[::-1], 0)
        assert bool(flags & ACK) == (way[::-1] in expected)
        assert size == HEAD + len(data) + OFFERS * bool(flags & SYN)
        expected[way] = number + len(data) + bool(flags & (SYN | FIN))
        told[way] += data
        bytes_down += size * (source != FIRST)
    assert len(told) == 6
    assert set(told.values()) == {TOLD}
    assert bytes_down == line.bytes


def test_a_connection_that_nobody_takes_is_refused_in_a_capture(tmp_path: Path) -> None:
    path = tmp_path / "all.pcapng"
    captured(path, "star:4,rate=1Gbit", AUTO)
    shown = tshark(path, tmp_path, "-Y", "tcp.flags.reset == 1", twice=False)
    assert len(shown.splitlines()) == 2  # as it comes, and as it leaves
    assert shown.count("[RST, ACK] Seq=1 Ack=1 ") == 2


ASYNCHRONOUS = """
import hashlib, io, time
import numpy as np
from iswitch.sim.grain import AUTO
from iswitch.sim.tape import Tape
from iswitch.virtual.computing import Plan
from topologies import Topology
from topologies.simulated import Simulation
from topologies.virtual.notebook import Floor
from worker_lib import AsynchronousWorker

topology, numel = Topology.parse("star:4,rate=1Gbit"), 500
simulation = Simulation(topology, latency=0.0, grain=AUTO)
neighbours = {port.peer: simulation.address(port.peer) for port in topology.ports("s1")}
file = io.BytesIO()
Tape(simulation.network, simulation.address("s1"), neighbours, file)

def work(seat):
    weights = np.zeros(numel, np.float32)
    def update(total, contributions, version):
        weights[:] += total / contributions
    with AsynchronousWorker(
        numel=numel, update=update, state=[weights], **seat.arguments
    ) as worker:
        for _ in range(3):
            version = worker.read([np.zeros(numel, np.float32)])
            time.sleep(0.002 * (1 + seat.rank))
            worker.contribute(np.full(numel, seat.rank, np.float32), version)

Floor(simulation, Plan("zero")).run(work)
print(len(file.getvalue()), hashlib.sha256(file.getvalue()).hexdigest())
"""


@pytest.mark.slow
def test_captures_of_workers_that_hand_over_states_repeat_to_the_last_byte() -> None:
    """However Python orders what it hashes; with the question that asks for a state inside."""
    seen = set()
    for seed in ("0", "1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", ASYNCHRONOUS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        )
        seen.add(done.stdout)
    assert len(seen) == 1
    assert int(seen.pop().split()[0]) > 100_000
