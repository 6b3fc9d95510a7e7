"""Bytes as a program: each target reads what it does from the fuzzer's bytes, and asserts.

Targets and their invariants:

    control   Control.parse returns a packet that builds the very same bytes, or raises WireError;
              nothing else.
    switch    A Switch takes any packets of eight peers, and any time, without an exception, and
              invariants.py holds after each.
    child     The same of a switch with a parent, which is one of the peers.
    chassis   A Chassis takes any frames without an exception; the accounts of frames have no rest,
              and what it sends are whole frames.
    guard     A SourceGuard judges any frames, alone or together, as the oracle of claims.py does.
    session   A worker's Session takes any packets from the switch's side without an exception,
              writes nowhere but in `out`, and there only aggregates that came; it is done only when
              all have come. Its timer is not due again at once.
    trace     The bytes are a file: it is replayed without an exception, or refused.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from iswitch.core.format import counters as c
from iswitch.core.format.lines import line_of
from iswitch.core.format.packets import Address, Burst
from iswitch.core.format.wire import (
    SEG_SIZE,
    TOS_CONTROL,
    TOS_DATA,
    TOS_MASK,
    Control,
    DType,
    Shape,
    WireError,
    split_seg,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.frame import ETH_HEADER, NEEDS_CSUM, Frames
from iswitch.ethernet.issuing import Jack
from iswitch.ethernet.segmentation import wire_frames
from tests.fuzz.claims import target as guard
from tests.fuzz.invariants import check_sends, check_state, layouts
from tests.fuzz.traces import trace
from tests.support import frames as slow
from tests.support.parts import peer
from worker_lib.protocol.session import Session
from worker_lib.protocol.terms import RoundTerms

PEERS = 8
PARENT = peer(PEERS - 1)
SENDERS = [peer(number) for number in range(PEERS)]
# Of the two jobs in the corpus, the parent speaks to one line each.
BELOW = [*SENDERS[:-2], *(PARENT._replace(line=line_of(job)) for job in (8, 7))]
LIMITS = Limits(memory=1 << 20, jobs=16)
MOST_STEPS = 200  # of a program


class Reader:
    """The fuzzer's bytes; what is beyond their end is zero."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.steps = 0

    def more(self) -> bool:
        """Whether another step of the program begins."""
        self.steps += 1
        return self.at < len(self.data) and self.steps <= MOST_STEPS

    def take(self, n: int) -> bytes:
        found = self.data[self.at : self.at + n]
        self.at += n
        return found.ljust(n, b"\0")

    def byte(self) -> int:
        return self.take(1)[0]

    def short(self) -> int:
        return int.from_bytes(self.take(2), "big")


# Steps of the programs of `switch`, `child` and `session`: a byte `count - 1 << 5 | kind << 3 |
# peer`, then for packets a 16-bit length, a byte by which the last is shorter, and the bytes of
# them all; for TIME a 16-bit duration.
CONTROL, DATA, ORDINARY, TIME = range(4)
KINDS = {CONTROL: TOS_CONTROL, DATA: TOS_DATA, ORDINARY: 0x40}
TICK = 1 / 256  # seconds


def packets_step(who: int, kind: int, *payloads: bytes) -> bytes:
    """Packets of one length, as a step of a program."""
    first = payloads[0]
    head = (len(payloads) - 1) << 5 | kind << 3 | who
    return struct.pack(">BHB", head, len(first), 0) + b"".join(payloads)


def time_step(ticks: int) -> bytes:
    """Time that passes, as a step of a program."""
    return struct.pack(">BH", TIME << 3, ticks)


def read_burst(reader: Reader, head: int, source: Address) -> Burst:
    """The packets of a step."""
    count, kind = 1 + (head >> 5), head >> 3 & 3
    size, less = max(1, reader.short() & 0x7FF), reader.byte()
    rows = np.frombuffer(reader.take(count * size), np.uint8).reshape(count, size)
    return Burst(source, KINDS[kind], rows, max(1, size - less))


def control(data: bytes) -> None:
    try:
        packet = Control.parse(data)
    except WireError:
        return
    assert packet.build() == data


def switch(data: bytes) -> None:
    drive(Switch(LIMITS), data)


def child(data: bytes) -> None:
    drive(Switch(LIMITS, parent=PARENT, incarnation=1000), data, BELOW)


def drive(machine: Switch, data: bytes, senders: Sequence[Address] = SENDERS) -> None:
    reader = Reader(data)
    now = 0.0
    while reader.more():
        head = reader.byte()
        before = layouts(machine)
        handled = head >> 3 & 3 == TIME
        if handled:
            now += reader.short() * TICK
            source = None
            sends = machine.handle_timer(now)
        else:
            source = senders[head & 7]
            sends = machine.receive(read_burst(reader, head, source), now)
        check_sends(machine, sends, source, before)
        check_state(machine, now, handled)


# A program of `chassis`: steps of a byte `dressed << 7 | frames - 1 << 2 | ingress`, then frames.
# One as it is: a 16-bit length, and bytes, the virtio_net_hdr first. A dressed one: a byte `patches
# << 5 | kind << 3 | host`, a 16-bit length and the payload of a datagram that is right in all, then
# the patches: a byte, where it is put, and which.

JACKS = (Jack(), Jack(1500, offload=False), Jack(9000), Jack())
PATCHED = 80  # bytes, from the first on, in which patches are


def dressed_step(host: int, kind: int, payload: bytes) -> bytes:
    """A datagram for the switch, as a step of a program."""
    return struct.pack(">BBH", 0x80 | host, kind << 3 | host, len(payload)) + payload


def frame_step(ingress: int, row: bytes) -> bytes:
    """A frame with its virtio_net_hdr, as a step of a program."""
    return struct.pack(">BH", ingress, len(row)) + row


def chassis(data: bytes) -> None:
    machine = Chassis(Switch(LIMITS), slow.SWITCH_IP, slow.SWITCH_MAC, JACKS)
    counters = machine.counters
    reader = Reader(data)
    now = 0.0
    while reader.more():
        head = reader.byte()
        now += 0.01
        rows = [read_row(reader, head) for _ in range(1 + (head >> 2 & 7))]
        for step in machine.receive(Frames.of(head & 3, rows), now):
            for send in step:
                assert len(send.lengths) == len(send.counts)
                for row, count in zip(send.whole(), send.counts, strict=True):
                    frames = [f for some in wire_frames(np.frombuffer(row, np.uint8)) for f in some]
                    if not frames and row[0] & NEEDS_CSUM:  # beyond the end: the kernel refuses it
                        counters["tx_failed"] += count
                        continue
                    counters["tx_frames"] += count
                    assert len(frames) == count
                    assert min(map(len, frames)) >= ETH_HEADER
        drops = sum(counters[reason] for reason in c.FRAME_DROPS)
        came = counters["rx_packets"] + counters["forwarded"] + counters["answered"] + drops
        assert counters["rx_frames"] == came
        drops = sum(counters[reason] for reason in c.EGRESS_DROPS)
        left = counters["tx_packets"] + counters["copies"] + counters["own_frames"]
        assert left == counters["tx_frames"] + drops
        check_state(machine.switch, now)


def read_row(reader: Reader, head: int) -> bytes:
    """A frame of a step, with its virtio_net_hdr."""
    if not head & 0x80:
        return reader.take(reader.short() & 0x7FF)
    how = reader.byte()
    payload = reader.take(reader.short() & 0x7FF)
    tos = KINDS.get(how >> 3 & 3, TOS_DATA | 3)
    row = bytearray(slow.VNET + slow.tagged(how & 3, payload, tos))
    for _ in range(how >> 5):
        at, value = reader.byte(), reader.byte()
        row[at % min(len(row), PATCHED)] = value
    return bytes(row)


# `session`: the switch's packets, of steps as above (whoever sends them, they are the switch's).
# A step TIME lets time pass; of an odd duration it also begins an allreduce, or the next one.

SHAPE = Shape.of(7, DType.INT32, elements=2)  # three segments of two elements, and one of one
GUARD = 16  # elements on each side of `out`
CANARY = -0x5EED


def session(data: bytes) -> None:
    world = SessionWorld()
    reader = Reader(data)
    while reader.more():
        head = reader.byte()
        if head >> 3 & 3 == TIME:
            ticks = reader.short()
            world.pass_time(ticks * TICK, begin=bool(ticks & 1))
        else:
            world.receive(read_burst(reader, head, Address("10.0.0.254", 26963)))


class SessionWorld:
    """A session, guards around its `out`, and what has come for the round under way."""

    def __init__(self) -> None:
        self.now = 0.0
        terms = RoundTerms(Address("10.0.0.254", 26963), 7, SHAPE, expected=2)
        self.session = Session(terms, 1000)
        self.memory = np.full(SHAPE.numel + 2 * GUARD, CANARY, np.int32)
        self.out = self.memory[GUARD:-GUARD]
        self.came: dict[int, set[bytes]] = defaultdict(set)
        self.session.join(self.now)
        self.check()

    def receive(self, burst: Burst) -> None:
        """Packets from the switch's side."""
        transfer = self.session.transfer
        if transfer is not None and burst.tos & TOS_MASK == TOS_DATA:
            for rows in burst.by_size():
                for row in rows:
                    self.note(transfer.round, row.tobytes())
        self.session.receive(burst, self.now)
        self.check()

    def note(self, round_: int, payload: bytes) -> None:
        """Remember the aggregates of the round under way."""
        if len(payload) < SEG_SIZE:
            return
        named, index = split_seg(int.from_bytes(payload[:SEG_SIZE], "big"))
        if named == round_ and index < SHAPE.segments and len(payload) == SHAPE.tail(index + 1):
            self.came[index].add(payload[SEG_SIZE:])

    def pass_time(self, seconds: float, begin: bool) -> None:
        """Let time pass; if told to, go on with the next allreduce."""
        self.now += seconds
        session = self.session
        session.handle_timer(self.now)
        deadline = session.deadline()
        assert deadline is None or deadline > self.now, "the world would spin"
        transfer = session.transfer
        if begin and transfer is not None and transfer.done:
            session.finish()
        if begin and session.transfer is None and session.member:
            self.came.clear()
            self.out[:] = CANARY
            session.begin(np.arange(SHAPE.numel, dtype=np.int32), self.out, self.now)
        self.check()

    def check(self) -> None:
        """What must hold."""
        for _ in range(100):
            sends = self.session.transmissions(self.now)
            if not sends:
                break
            for out in sends:
                assert out.peers == (self.session.switch,)
                n, size = out.rows.shape
                assert n >= 1
                assert SEG_SIZE <= out.tail <= size
                if out.tos == TOS_CONTROL:
                    Control.parse(out.rows[0].tobytes())
        else:
            raise AssertionError("it sends without end")
        while self.session.next_event() is not None:
            pass
        assert (self.memory[:GUARD] == CANARY).all()
        assert (self.memory[-GUARD:] == CANARY).all()
        transfer = self.session.transfer
        if transfer is None:
            return
        lacking = {index for start, stop in transfer.missing() for index in range(start, stop)}
        has = [index not in lacking for index in range(SHAPE.segments)]
        assert transfer.remaining == has.count(False)
        assert transfer.done == all(has)
        for index in range(SHAPE.segments):
            mine = self.out[index * SHAPE.elements : (index + 1) * SHAPE.elements]
            if has[index]:
                assert mine.tobytes() in self.came[index]
            else:
                assert (mine == CANARY).all()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "control": control,
    "switch": switch,
    "child": child,
    "chassis": chassis,
    "guard": guard,
    "session": session,
    "trace": trace,
}
