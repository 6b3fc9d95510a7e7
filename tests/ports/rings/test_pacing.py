"""Rings behind links with a rate, and with faults: as frames that cross such links."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import TOS_DATA, DType, Shape
from iswitch.ethernet.frame import HEAD, HEADERS, Frames, Transmission, sums
from iswitch.ethernet.issuing import Jack
from iswitch.ethernet.made_up import route
from iswitch.faults.impairment import Impairment
from iswitch.faults.line import Line
from iswitch.ports.impaired import ImpairedPorts
from iswitch.ports.rings.due import GRAIN
from iswitch.ports.rings.memory import HEAD as PAGE
from iswitch.ports.rings.pacing import HeldWriter, Inlet, Lane, Lanes
from iswitch.ports.rings.ring import WRITTEN, Packets, Reader, Writer
from iswitch.ports.rings.serving import ImpairedRingPorts, RingIssuer, RingPort, RingPorts
from tests.support.parts import segments_of

from .bench import Bench, whole_group

SIZE = 1 << 14
HOST, SWITCH = Address("10.26.0.1", 5000), Address("10.26.255.254", 26963)


def drawn(chance: random.Random, number: int) -> Packets:
    """Packets with bytes of their own."""
    count, size = chance.randint(1, 12), chance.randint(1, 200)
    rows = np.random.default_rng(number).integers(0, 256, (count, size), np.uint8)
    return Packets(TOS_DATA, rows, chance.randint(1, size))


def singles(packets: Packets) -> list[bytes]:
    rows, tail = packets.rows, packets.tail
    return [row.tobytes() for row in rows[:-1]] + [rows[-1, :tail].tobytes()]


@pytest.mark.parametrize("queue", [1000, 7])
def test_packets_come_when_their_link_has_brought_them(queue: int) -> None:
    check_inlets(queue, Inlet)


def check_inlets(queue: int, kind: Callable[[Reader, Lane], Inlet]) -> None:
    """Packets come when a line alone, told of the same sizes and times, brings them."""
    for seed in range(30):
        chance, counters = random.Random(seed), Counters()
        given = Impairment(rate=chance.choice((10**6, 10**8, 10**10)), queue=queue)
        memory: Any = np.zeros(PAGE + SIZE, np.uint8)
        writer, reader = Writer(memory), Reader(memory)
        inlet, line = kind(reader, Lane(given, "in", counters)), Line(given, (0,))
        wanted: list[tuple[float, bytes]] = []
        came: list[bytes] = []
        now, offered = 0.0, 0
        for step in range(60):
            now += chance.choice((0.0, GRAIN / 3, GRAIN, 1e-3))
            packets = drawn(chance, step)
            if writer.put(packets, inlet.taken):
                sizes = np.array([len(one) for one in singles(packets)]) + HEADERS
                fates = line.fates(sizes, now)
                offered += len(sizes)
                sent = [singles(packets)[i] for i in fates.which]
                wanted += zip(fates.due.tolist(), sent, strict=True)
            assert not inlet.look(now)
            came += [one for some in inlet.read(now) for one in singles(some)]
            assert came == [one for _, one in wanted[: len(came)]]
            assert all(due <= now for due, _ in wanted[: len(came)])
            late = inlet.deadline()
            assert (late is None) == (len(came) == len(wanted))
        while (late := inlet.deadline()) is not None:
            waits = [due for due, _ in wanted[len(came) :]]
            assert late <= waits[0] + max(GRAIN, waits[-1] - now)
            now = max(now, late)
            more = [one for some in inlet.read(now) for one in singles(some)]
            assert more, "a deadline at which nothing comes"
            came += more
        assert came == [one for _, one in wanted]
        assert inlet.taken == writer.written
        assert counters["queue_in"] == offered - len(wanted)


def test_records_count_once_they_are_due() -> None:
    memory = bytearray(PAGE + SIZE)
    writer, reader = HeldWriter(memory), Reader(memory)  # type: ignore[arg-type]
    chance = random.Random(1)
    records = [drawn(chance, i) for i in range(4)]
    for i, packets in enumerate(records):
        assert writer.hold(packets, reader.taken, float(i))
    assert not reader.has_more()
    assert writer.deadline() == 0.0
    assert writer.under_way == sum(len(one.rows) for one in records)
    for i, packets in enumerate(records):
        assert writer.release(i + 0.5)
        assert not writer.release(i + 0.5)
        found = reader.next()
        assert found is not None
        assert singles(found) == singles(packets)
        reader.take()
        assert reader.next() is None
    assert writer.deadline() is None
    assert writer.words[WRITTEN] == writer.written


class Pipe:
    """A port under an impaired one: gives what it has, and notes what is sent."""

    def __init__(self, came: Iterable[Any] = ()) -> None:
        self.came, self.sent = came, []  # type: ignore[var-annotated]

    def pull(self) -> Iterator[Any]:
        yield from self.came

    def push(self, steps: Iterable[Any]) -> None:
        self.sent += [one for step in steps for one in step]

    def deadline(self) -> None:
        return None


def framed(rows: np.ndarray[Any, Any]) -> Frames:
    """The frames of packets."""
    n, size = rows.shape
    heads = route(HOST, SWITCH, TOS_DATA).heads(size, sums(rows))
    return Frames(0, heads, rows, [HEAD + size] * n)


@pytest.mark.parametrize(
    "spec",
    ["loss=10%", "loss=20%,burst=4", "loss=5%,duplicate=10%", "delay=1ms,jitter=1ms,reorder=10%",
     "loss=5%,rate=50Mbit,queue=40", "corrupt=10%,delay=1ms"],
)  # fmt: skip
def test_equal_links_have_equal_faults_for_frames_and_for_rings(spec: str) -> None:
    """In both directions: the same packets lost, at the same times, and the same counters."""
    for seed in range(5):
        found = []
        for kind in (ImpairedPorts, ImpairedRingPorts):
            chance, now = random.Random(seed), [0.0]
            counters, pipe = Counters(), Pipe()
            line = Impairment.parse(spec)
            faults = {(0, "in"): line, (0, "out"): line}
            port = kind(pipe, faults, seed, counters, lambda now=now: now[0])  # type: ignore[misc, arg-type]
            came: list[tuple[float, bytes]] = []
            for step in range(40):
                now[0] += chance.choice((0.0, 2e-4, 1e-3)) if step < 30 else 1.0
                rows = np.random.default_rng(step).integers(0, 256, (20, 60), np.uint8)
                sends = chance.randint(1, 20) * (step < 30)
                if kind is ImpairedPorts:
                    pipe.came = [framed(rows[:sends])] if sends else []
                    heads = framed(rows[:sends]).heads
                    step_ = [Transmission(0, heads, rows[:sends], [60] * sends, [1] * sends)]
                else:
                    pipe.came = [Burst(HOST, TOS_DATA, rows[:sends], 60)] if sends else []
                    step_ = [Outgoing((HOST,), TOS_DATA, rows[:sends], 60)]  # type: ignore[list-item]
                for some in port.pull():
                    packets = some.rows if isinstance(some, Burst) else some.bodies
                    came += [(now[0], row.tobytes()) for row in packets]
                if sends:
                    port.push([step_])
                for one in pipe.sent:
                    packets = one.rows if isinstance(one, Outgoing) else one.bodies
                    came += [(-now[0], row.tobytes()) for row in packets]
                pipe.sent = []
            counted = {name: n for name, n in counters.items() if n}
            found.append((sorted(came), counted))
        (frames_came, counted), (ring_came, others) = found
        assert counted == others
        assert counted
        if "corrupt" in spec:  # the damaged are dropped at once, not by the receiver's checksum
            damaged = counted["corrupted_in"] + counted["corrupted_out"]
            assert len(ring_came) == len(frames_came) - damaged
            assert {*ring_came} <= {*frames_came}
        else:
            assert ring_came == frames_came


SHAPE = Shape.of(4000, DType.INT32)


def test_a_job_at_links_with_a_rate(path: Path) -> None:
    """Sums are those of any job, and take the time that the links need, to the microsecond."""
    given = Impairment(rate=100_000_000)
    counters = Counters()
    made = Bench(path, links={0: Lanes(given, counters)}, counters=counters)
    try:
        made.plug(2)
        for number in range(2):
            made.join(number, SHAPE, 2)
            made.later(1.0)
        made.later(1.0)
        made.came.clear()
        for round_ in range(3):
            begun = made.now
            segments = segments_of(SHAPE, round_, np.ones(4000, np.int32))
            rows = np.zeros((len(segments), SHAPE.packet_size), np.uint8)
            for row, segment in zip(rows, segments, strict=True):
                row[: len(segment)] = np.frombuffer(segment, np.uint8)
            for number in range(2):
                made.say(number, Outgoing((), TOS_DATA, rows, len(segments[-1])))
            last = begun
            while len(made.came) < 2 * len(segments):
                due = made.port.deadline()
                assert due is not None
                assert due > made.now
                made.later(due - made.now)
                last = made.now
            wire = 2 * sum(len(one) + HEADERS for one in segments) * 8 / 100e6  # one port for both
            # The sums leave while the second worker's packets come, for both workers.
            assert wire <= last - begun <= wire * 1.5 + 3 * GRAIN
            assert whole_group(made)
            made.came.clear()
        assert made.port.deadline() is None
        assert not counters["queue_in"] + counters["queue_out"]
        made.say(0, Outgoing((), TOS_DATA, rows, len(segments[-1])))  # under way at the end
    finally:
        made.close()
    assert counters["lost_in"] == len(segments)


RATE = 100_000_000
PACKETS = np.zeros((20, 1000), np.uint8)
PACED = Impairment(rate=RATE)


def paced(path: Path, link: Impairment = PACED) -> tuple[Bench, Counters]:
    """A switch with rings behind one link for all workers."""
    counters = Counters()
    return Bench(path, links={0: Lanes(link, counters)}, counters=counters), counters


def send(made: Bench, *numbers: int) -> None:
    """Have the switch send packets to some workers."""
    peers = [worker.address for worker in made.workers]
    made.port.push([Outgoing(tuple(peers[n] for n in numbers), TOS_DATA, PACKETS, 1000)])


def drain(made: Bench) -> None:
    """Let time pass until nothing is under way; no packet comes before the link can bring it."""
    while True:
        made.settle()
        bits = len(made.came) * (1000 + HEADERS) * 8
        assert bits <= made.now * RATE * (1 + 1e-9)
        due = made.port.deadline()
        if due is None:
            return
        made.now = due


def test_what_is_under_way_to_a_group_is_not_early_when_a_member_joins(path: Path) -> None:
    made, _ = paced(path)
    try:
        made.plug(3)
        send(made, 0, 1)
        send(made, 0, 1, 2)
        send(made, 0, 1)
        assert not whole_group(made)  # a worker reads one group's ring at a time
        drain(made)
        assert len(made.came) == 20 * 7
        send(made, 0, 1)  # which takes nothing from the group of all
        send(made, 0, 1, 2)
        assert whole_group(made)
        drain(made)
        assert len(made.came) == 20 * 12
    finally:
        made.close()


def test_those_who_stay_get_a_group_when_a_member_leaves_with_packets_under_way(path: Path) -> None:
    made, _ = paced(path)
    try:
        made.plug(3)
        send(made, 0, 1, 2)
        assert whole_group(made)
        made.workers.pop().close()
        made.settle()
        send(made, 0, 1)
        drain(made)
        assert len(made.came) == 20 * 4
        send(made, 0, 1)
        assert whole_group(made)
        drain(made)
        assert len(made.came) == 20 * 6
    finally:
        made.close()


class Tape:
    """Records how many packets went to whom."""

    def __init__(self) -> None:
        self.sent: Counter[Address] = Counter()

    def datagrams(self, _: object, __: Address, peer: Address, *more: Any) -> None:
        (rows, tail), size = more[1], 1000
        assert tail == size
        self.sent[peer] += len(rows)


@pytest.mark.parametrize("numbers", [(0,), (0, 1)])
def test_a_capture_has_the_packets_that_links_took(path: Path, numbers: tuple[int, ...]) -> None:
    made, counters = paced(path, Impairment(rate=RATE, queue=5))
    try:
        made.plug(2)
        assert isinstance(made.port, RingPort)
        issuer, tape = RingIssuer([Jack()], bytes(4), bytes(6), 5, counters), Tape()
        pipe: Any = Pipe()
        ports = RingPorts(pipe, made.port.rings, issuer, tape)  # type: ignore[arg-type]
        peers = tuple(made.workers[number].address for number in numbers)
        ports.push([[Outgoing(peers, TOS_DATA, PACKETS, 1000)]])
        drain(made)
        got = Counter(made.workers[int(one.split()[0])].address for one in made.came)
        assert tape.sent == got
        assert 0 < len(made.came) == counters["tx_frames"] < 20 * len(numbers)
        assert counters["queue_out"] == 20 * len(numbers) - len(made.came)
        assert not pipe.sent
    finally:
        made.close()


def test_the_other_port_is_asked_when_it_is_due_by_the_clock_of_the_rings(path: Path) -> None:
    class Late(Pipe):
        pulls = 0

        def deadline(self) -> float:  # type: ignore[override]
            return 5.0

        def pull(self) -> Iterator[Any]:
            self.pulls += 1
            yield from ()

    made, _ = paced(path)
    assert isinstance(made.port, RingPort)
    own, made.port.port = made.port.port, (late := Late())  # type: ignore[assignment]
    try:
        for now, pulls in ((4.0, 0), (6.0, 1)):
            made.now = now
            assert not list(made.port.pull())
            assert late.pulls == pulls
    finally:
        made.port.port = own
        made.close()
