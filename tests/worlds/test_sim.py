"""The simulated network: time, links, faults of nodes; the same trace from the same seed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import NO_RANK, TOS_DATA, Action, DType, Shape, Threshold
from iswitch.ethernet.frame import HEADERS
from iswitch.faults.impairment import Impairment
from iswitch.sim.events import EventQueue
from iswitch.sim.network import VirtualNetwork
from iswitch.sim.node import OVERHEAD
from iswitch.sim.trace import RECEIVED, SENT, Trace, TraceRecord
from tests.support import ROOT
from tests.support.parts import assert_accounted, packets_of
from topologies import Topology
from topologies.simulated import Simulation
from worker_lib.protocol.session import Gone, Session
from worker_lib.protocol.terms import RoundTerms

pytestmark = pytest.mark.unit

A, B = Address("10.0.0.1", 1000), Address("10.0.0.2", 2000)
SHAPE = Shape.of(23, DType.INT32, elements=4)  # six segments
BAD = "loss=5%,burst=2,delay=300us,jitter=200us,duplicate=5%,reorder=5%,corrupt=2%,rate=100Mbit"


class Recorder:
    """A machine that notes what comes, and has timers and words as it is told."""

    def __init__(self) -> None:
        self.came: list[tuple[float, bytes]] = []
        self.woken: list[float] = []
        self.timers: list[float] = []
        self.words: list[Outgoing] = []

    def receive(self, burst: Burst, now: float) -> None:
        self.came += [(now, data) for data in packets_of(Outgoing((), *burst[1:]))]

    def deadline(self) -> float | None:
        return min(self.timers, default=None)

    def handle_timer(self, now: float) -> None:
        self.woken.append(now)
        self.timers = [timer for timer in self.timers if timer > now]

    def transmissions(self, now: float) -> list[Outgoing]:  # noqa: ARG002
        words, self.words = self.words, []
        return words


def pair(impairment: Impairment | None = None, trace: Trace | None = None) -> VirtualNetwork:
    network = VirtualNetwork(1, 1.0, trace)
    for name, address in (("a", A), ("b", B)):
        network.add(name, address, Recorder())
    network.connect(A, B, impairment)
    return network


def machine(network: VirtualNetwork, address: Address) -> Recorder:
    found = network.nodes[address].machine
    assert isinstance(found, Recorder)
    return found


def say(
    network: VirtualNetwork, *payloads: bytes, source: Address = A, target: Address = B
) -> None:
    """Payloads of one length but for the last, which may be shorter."""
    size = len(payloads[0])
    rows = np.frombuffer(b"".join(p.ljust(size, b"\0") for p in payloads), np.uint8)
    rows = rows.reshape(len(payloads), size).copy()
    machine(network, source).words.append(Outgoing((target,), TOS_DATA, rows, len(payloads[-1])))
    network.poke(source)
    rows[:] = 0xFF  # the sender's buffer is used again


def settle(network: VirtualNetwork) -> None:
    while network.step():
        pass


def conserved(network: VirtualNetwork) -> None:
    """Every packet is somewhere."""
    links = network.link_counts()
    nodes = network.nodes.values()
    unreachable = sum(node.unreachable for node in nodes)
    assert sum(node.given for node in nodes) == links.sent + network.lost + unreachable
    taken = sum(node.taken + node.overflow + node.dead + node.unread for node in nodes)
    assert links.delivered == taken + sum(node.waiting_packets() for node in nodes)
    assert links.under_way() >= 0


def test_what_is_due_together_happens_in_the_order_it_was_put_in() -> None:
    events = EventQueue()
    done: list[int] = []
    for number, when in enumerate((2.0, 1.0, 2.0, 1.0)):
        events.put(when, lambda number=number: done.append(number))  # type: ignore[misc]
    times = []
    while events.next_time() is not None:
        when, action = events.pop()
        times.append(when)
        action()
    assert times == [1.0, 1.0, 2.0, 2.0]
    assert done == [1, 3, 0, 2]


def test_packets_arrive_after_the_latency_as_they_were_sent() -> None:
    network = pair()
    say(network, b"12345678", b"123")
    settle(network)
    assert machine(network, B).came == [(1.0, b"12345678"), (1.0, b"123")]
    conserved(network)


def test_a_link_does_what_its_line_decides() -> None:
    network = pair(Impairment(rate=8 * 50, queue=2, duplicate=1.0))  # 50 B/s of frames
    say(network, b"12345678", b"abcdefgh", b"too many")
    settle(network)
    assert [when for when, _ in machine(network, B).came] == [2.0, 2.0, 3.0, 3.0]
    counts = network.link_counts()
    assert (counts.sent, counts.full, counts.duplicated, counts.delivered) == (3, 1, 2, 4)
    conserved(network)


def test_impairments_change_without_overtaking() -> None:
    network = pair(Impairment(delay=5.0, jitter=1.0))
    say(network, b"12345678")
    network.links[A, B].impairment = Impairment()
    say(network, b"abcdefgh")
    settle(network)
    assert [data for _, data in machine(network, B).came] == [b"12345678", b"abcdefgh"]


def test_timers_ring_when_they_are_due_and_are_moved() -> None:
    network = pair()
    machine(network, A).timers = [3.0, 7.0]
    network.poke(A)
    network.at(1.0, lambda: machine(network, A).timers.append(2.0))
    network.at(1.0, lambda: network.poke(A))
    network.at(2.5, lambda: machine(network, A).timers.remove(3.0))
    network.at(2.5, lambda: network.poke(A))
    settle(network)
    assert machine(network, A).woken == [2.0, 7.0]


def test_a_cut_link_loses_in_both_directions_what_is_sent() -> None:
    network = pair(trace=Trace())
    say(network, b"under way")
    network.plug(A, B, up=False)
    say(network, b"12345678")
    say(network, b"12345678", source=B, target=A)
    network.plug(A, B, up=True)
    say(network, b"abcdefgh")
    settle(network)
    assert [data for _, data in machine(network, B).came] == [b"under way", b"abcdefgh"]
    assert machine(network, A).came == []
    assert network.link_counts().cut == 2
    assert Counter(r.what for r in network.trace.records)["cut"] == 2  # type: ignore[union-attr]
    conserved(network)


def test_a_stopped_process_reads_later_what_its_socket_had_room_for() -> None:
    network = pair()
    node = network.nodes[B]
    node.room = 2 * (8 + OVERHEAD)
    machine(network, B).timers = [2.0]
    network.poke(B)
    network.pause(B)
    say(network, b"12345678", b"abcdefgh", b"too many")
    settle(network)
    assert (machine(network, B).came, machine(network, B).woken) == ([], [])
    assert (node.overflow, node.waiting_packets()) == (1, 2)
    conserved(network)
    network.at(9.0, lambda: network.resume(B))
    settle(network)
    assert machine(network, B).came == [(9.0, b"12345678"), (9.0, b"abcdefgh")]
    assert machine(network, B).woken == [9.0]
    say(network, b"12345678")
    settle(network)
    assert len(machine(network, B).came) == 3
    conserved(network)


def test_a_crashed_process_gets_nothing_and_a_new_one_only_what_comes_then() -> None:
    network = pair()
    network.pause(B)
    say(network, b"12345678")
    settle(network)
    network.crash(B)
    say(network, b"abcdefgh")
    settle(network)
    node = network.nodes[B]
    assert (node.unread, node.dead, node.machine) == (1, 1, None)
    network.start(B, Recorder())
    say(network, b"the next")
    settle(network)
    assert [data for _, data in machine(network, B).came] == [b"the next"]
    conserved(network)


def test_packets_that_a_test_loses() -> None:
    network = pair()
    network.lose = lambda _a, _b, _tos, payload: payload.startswith(b"x")
    say(network, b"12345678", b"x2345678", b"123")
    say(network, b"x2345678")
    settle(network)
    assert [data for _, data in machine(network, B).came] == [b"12345678", b"123"]
    assert network.lost == 2
    conserved(network)


def test_nobody_is_reached_without_a_link() -> None:
    network = VirtualNetwork()
    network.add("a", A, Recorder())
    say(network, b"12345678")
    assert network.nodes[A].unreachable == 1
    conserved(network)


# Topologies


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
    code = "from tests.worlds.test_sim import digest; print(digest(5))"
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )  # fmt: skip
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
    assert trace.lines(names, 1) == lines[-1:]


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
