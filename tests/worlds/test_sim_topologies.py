"""Topologies in the simulated world."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from iswitch.core.format.wire import NO_RANK, Action, DType, Shape, Threshold
from iswitch.ethernet.frame import HEADERS
from iswitch.faults.impairment import Impairment
from iswitch.sim.trace import RECEIVED, SENT, Trace, TraceRecord
from tests.support import python
from tests.support.parts import assert_accounted
from tests.worlds.test_sim import conserved
from topologies import Topology
from topologies.simulated import Simulation
from worker_lib.protocol.session import Gone, Session
from worker_lib.protocol.terms import RoundTerms

pytestmark = pytest.mark.unit

SHAPE = Shape.of(23, DType.INT32, elements=4)  # six segments


BAD = "loss=5%,burst=2,delay=300us,jitter=200us,duplicate=5%,reorder=5%,corrupt=2%,rate=100Mbit"


def story(seed: int, links: str = BAD, form: str = "rack:2x2") -> Simulation:
    """Four workers in two racks, ten rounds, and everything happens."""
    topology = Topology.parse(f"{form},{links + ',' if links else ''}seed={seed}")
    simulation = Simulation(topology, trace=Trace())
    network = simulation.network
    sessions: dict[str, Session] = {}
    outs: dict[str, np.ndarray] = {}

    def go_on(host: str) -> None:
        session = sessions[host]
        while (event := session.next_event()) is not None:
            assert not isinstance(event, Gone)
        if session.transfer is not None and session.transfer.done:
            assert (outs[host] == 4 * np.arange(23) + 6 + 4 * session.round).all()
            session.finish()
        numbered = session.member and session.rank != NO_RANK
        if numbered and session.transfer is None and session.round < 10:
            outs[host] = np.zeros(23, np.int32)
            number = int(host[1:]) - 1
            vector = np.arange(23, dtype=np.int32) + number + session.round
            session.begin(vector, outs[host], network.now)

    def join(host: str) -> None:
        """Join until all are there, as a worker does."""
        sessions[host].join(network.now)
        network.poke(simulation.address(host))
        network.at(network.now + 0.02, lambda: join_again(host))

    def join_again(host: str) -> None:
        if sessions[host].rank == NO_RANK:
            join(host)

    for host in topology.hosts:
        session = Session(RoundTerms(simulation.switch_of(host.name), 7, SHAPE, expected=4), 1000)
        sessions[host.name] = session
        simulation.node(host.name).heed = lambda name=host.name: go_on(name)
        simulation.start_worker(host.name, session)
        join(host.name)
    schedule_faults(simulation)
    while min(session.round for session in sessions.values()) < 10:
        assert network.step()
        assert network.now < 60
    return simulation


def schedule_faults(simulation: Simulation) -> None:
    """Pause a worker, unplug the switches from one another, restart both."""
    network, topology = simulation.network, simulation.topology

    def restart(switch: str) -> None:
        simulation.start_switch(switch)

    root, child = topology.root.name, topology.tree[-1].name
    above = topology.tree[-1].parent or root
    a, b = simulation.address(above), simulation.address(child)
    network.at(0.010, lambda: network.pause(simulation.address("h1")))
    network.at(0.100, lambda: network.resume(simulation.address("h1")))
    if root != child:
        network.at(0.130, lambda: network.plug(a, b, up=False))
        network.at(0.200, lambda: network.plug(a, b, up=True))
    network.at(0.220, lambda: restart(child))
    network.at(0.300, lambda: restart(root))


def digest(seed: int) -> str:
    trace = story(seed).network.trace
    assert trace is not None
    return trace.digest()


@pytest.mark.parametrize("form", ["star:4", "rack:2x2", "tree:2x1x2", "leafspine:2x2x2"])
def test_the_very_switches_and_sessions_run_on_any_topology(form: str) -> None:
    simulation = story(1, form=form)
    conserved(simulation.network)
    for switch in simulation.topology.tree:
        found = simulation.switch(switch.name)
        assert found is not None
        assert_accounted(found.counters)
        hierarchy = found.control.hierarchy
        above = None if hierarchy is None else hierarchy.parent
        assert above == (None if switch.parent is None else simulation.address(switch.parent))
    counts = simulation.network.link_counts()
    assert min(counts.lost, counts.corrupted, counts.duplicated, counts.reordered) > 0


def test_rates_and_queues_are_those_of_the_topology() -> None:
    simulation = Simulation(Topology.parse("star:2,rate=10Mbit,queue=7,burst=3,loss=1%"))
    link = simulation.network.links[simulation.address("h1"), simulation.address("s1")]
    assert link.impairment == Impairment(0.01, rate=10**7, queue=7, burst=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "most", "hops"),
    [("star:2,rate=1Gbit", 64, 2), ("rack:2x1,rate=1Gbit", 64, 4), ("rack:2x1,rate=100Mbit", 8, 4)],
)
def test_switches_in_two_levels_take_no_longer_than_the_wire(
    form: str, most: int, hops: int
) -> None:
    """Where nobody has to wait for a processor: nothing stalls, nothing is sent again.

    Each further link on the way up and down takes what one packet takes there; the rest of the
    vector passes meanwhile.
    """
    simulation = Simulation(Topology.parse(form))
    network = simulation.network
    shape = Shape.of(366 * 500)
    sessions = []
    for host in simulation.topology.hosts:
        at = simulation.switch_of(host.name)
        terms = RoundTerms(at, 7, shape, expected=len(simulation.topology.hosts), most=most)
        session = Session(terms, 1000)
        session.join(network.now)
        simulation.start_worker(host.name, session)
        sessions.append(session)
    while not all(session.member for session in sessions):
        assert network.step()
    vector = np.ones(shape.numel, np.float32)
    rate = simulation.topology.links[0].rate
    assert rate is not None
    frame = 8 * (shape.packet_size + HEADERS) / rate
    took = []
    for _ in range(3):
        began = network.now
        outs = [np.zeros_like(vector) for _ in sessions]
        for host, session, out in zip(simulation.topology.hosts, sessions, outs, strict=True):
            session.begin(vector, out, began)
            network.poke(simulation.address(host.name))
        while not all(s.transfer is not None and s.transfer.done for s in sessions):
            assert network.step()
        took.append(network.now - began)
        for session, out in zip(sessions, outs, strict=True):
            assert (out == len(sessions)).all()
            session.finish()
    assert took[0] < 1.0  # all have to gather first
    for seconds in took[1:]:
        assert shape.segments <= seconds / frame <= shape.segments + 2 * hops
    assert sum(s.stats["sent_again"] + s.stats["probes"] + s.stats["helps"] for s in sessions) == 0


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trace() -> None:
    """To the last bit: again, and in a process that hashes differently."""
    first = digest(5)
    assert digest(5) == first
    assert digest(6) != first
    code = "from tests.worlds.test_sim_topologies import digest; print(digest(5))"
    for hash_seed in ("1", "2"):
        done = python("-c", code, PYTHONHASHSEED=hash_seed)
        assert done.stdout.strip() == first, done.stderr


def test_a_control_packet_on_the_timeline() -> None:
    simulation = Simulation(Topology.parse("star:1"), trace=Trace())
    session = Session(RoundTerms(simulation.address("s1"), 7, SHAPE), 1000)
    session.join(0.0)
    session.request(Action.SETH, Threshold(2), 0.0)
    simulation.start_worker("h1", session)
    simulation.network.step()
    trace = simulation.network.trace
    assert trace is not None
    names = simulation.network.names()
    lines = trace.lines(names)
    assert lines[0] == "     0.000 ms  s1 starts"
    assert lines[2] == (
        "     0.000 ms     h1 > s1    sent      JOIN #1000 flags 32 round 0 expected 0"
    )
    assert lines[3] == "     0.000 ms     h1 > s1    sent      SETH #1001 Threshold(threshold=2)"


@pytest.mark.slow
def test_wireshark_reads_the_capture(tmp_path: Path) -> None:
    """Every packet that was sent or came is there, with its ToS, times and sound checksums."""
    tshark = shutil.which("tshark")
    if tshark is None and os.geteuid() != 0:
        pytest.skip("tshark is not installed")
    assert tshark, "this test needs tshark: apt-get install tshark, or make test"
    simulation = story(2)
    trace, names = simulation.network.trace, simulation.network.names()
    assert trace is not None
    path = tmp_path / "simulated.pcapng"
    path.write_bytes(trace.pcapng(names))
    fields = ["frame.interface_name", "frame.packet_flags", "ip.dsfield", "udp.dstport"]
    fields += ["udp.length", "frame.time_epoch", "ip.checksum.status", "udp.checksum.status"]
    command = [tshark, "-r", str(path), "-T", "fields", "-E", "separator=,"]
    for name in ("ip", "udp"):
        command += ["-o", f"{name}.check_checksum:TRUE"]
    for name in fields:
        command += ["-e", name]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    found = [line.split(",") for line in out.stdout.splitlines()]

    def is_there(record: TraceRecord) -> bool:
        return record.target is not None and record.what in (SENT, RECEIVED, "corrupted", "dead")

    wanted = list(filter(is_there, trace.records))
    assert len(found) == len(wanted) > 1000
    bad = 0
    for row, record in zip(found, wanted, strict=True):
        assert record.target is not None
        name, flags, tos, port, length, when, *sums = row
        leaves = record.what == SENT
        assert name == names[record.source if leaves else record.target]
        assert int(flags, 16) & 3 == (2 if leaves else 1)
        assert abs(float(when.rstrip("0") or 0) - record.time) < 1e-8
        if record.what == "corrupted":
            bad += sums != ["1", "1"]
            continue
        assert sums == ["1", "1"], row
        assert (int(tos, 16), int(port)) == (record.tos, record.target.port)
        assert int(length) == 8 + len(record.payload)
    corrupted = sum(record.what == "corrupted" for record in wanted)
    assert 0.9 * corrupted < bad <= corrupted
