"""What tests of the core build by hand: addresses, data packets, requests, a bare switch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from iswitch.core.format.counters import COUNTED, DATA_DROPS, Counters
from iswitch.core.format.packets import Address, Burst, Cutter, Outgoing, Rows, Stretch
from iswitch.core.format.wire import (
    FLAG_HEARTBEAT,
    FLAG_NEW,
    FLAG_WHOLE,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    Join,
    MemberType,
    Shape,
    Status,
    Value,
    Vector,
)
from iswitch.core.switch import Switch

JOB = 7


def peer(number: int) -> Address:
    return Address(f"10.0.0.{number + 1}", 40000 + number)


def seg(round_: int, index: int) -> bytes:
    return (round_ << 32 | index).to_bytes(8, "big")


def rows_of(payloads: Sequence[bytes]) -> Rows:
    """Packets of one length as rows."""
    return np.frombuffer(b"".join(payloads), np.uint8).reshape(len(payloads), -1)


def stretch_of(payloads: Sequence[bytes]) -> Stretch:
    """Data packets of one length, of ascending segments of one round."""
    rows = rows_of(payloads)
    (stretch,) = Cutter(Shape.of(0)).cut(rows, rows.shape[1])
    return stretch


def segments_of(shape: Shape, round_: int, vector: Vector) -> list[bytes]:
    """A contribution to every segment, as packets."""
    e = shape.elements
    parts = [vector[i * e : (i + 1) * e] for i in range(shape.segments)]
    return [seg(round_, i) + part.tobytes() for i, part in enumerate(parts)]


def packets_of(out: Outgoing) -> list[bytes]:
    sizes = [out.rows.shape[1]] * (len(out.rows) - 1) + [out.tail]
    return [row[:size].tobytes() for row, size in zip(out.rows, sizes, strict=True)]


def assert_accounted(counters: Counters) -> None:
    """The two equations of iswitch/core/format/counters.py, and nothing negative."""
    door = counters["ordinary"] + counters["short"]
    assert counters["rx_packets"] == counters["control"] + counters["data"] + door
    assert counters["data"] == sum(counters[name] for name in (*COUNTED, *DATA_DROPS))
    assert min(counters.values()) >= 0


@dataclass
class Bench:
    """A switch, and what was sent so far to whom; every request gets a new number."""

    switch: Switch = field(default_factory=Switch)
    now: float = 0.0
    numbers: int = 5000

    @property
    def counters(self) -> Counters:
        return self.switch.counters

    def send(self, who: int, tos: int, payload: bytes) -> list[Outgoing]:
        return self.switch.receive(Burst.single(peer(who), tos, payload), self.now)

    def control(
        self, who: int, action: Action, value: Value = None, job: int = JOB, request: int = 0
    ) -> tuple[Status, Ack, list[Outgoing]]:
        """Send a request that is answered to its sender; the status, the Ack and what else goes."""
        self.numbers += not request
        packet = Control(action, job, request or self.numbers, value)
        first, *more = self.send(who, TOS_CONTROL, packet.build())
        answer = Control.parse(packets_of(first)[0])
        assert first.peers == (peer(who),)
        assert first.tos == TOS_CONTROL
        assert answer.action is Action.ACK
        assert (answer.job, answer.request) == (packet.job, packet.request)
        assert isinstance(answer.value, Ack)
        assert answer.value.action == action
        return Status(answer.status), answer.value, more

    def join(
        self,
        who: int,
        shape: Shape | None,
        type_: MemberType = MemberType.WORKER,
        expected: int = 0,
        flags: int = 0,
        job: int = JOB,
        request: int = 1000,
    ) -> tuple[Status, Ack, list[Outgoing]]:
        join = Join(type_) if shape is None else Join.for_shape(shape, type_, expected, flags)
        return self.control(who, Action.JOIN, join, job, request)

    def heartbeat(self, who: int, shape: Shape, job: int = JOB, request: int = 1000) -> None:
        status, _, more = self.join(who, shape, flags=FLAG_HEARTBEAT, job=job, request=request)
        assert (status, more) == (Status.OK, [])

    def gather(self, shape: Shape, workers: int, flags: int = 0, job: int = JOB) -> None:
        """Let workers 0.. join, expecting one another."""
        for who in range(workers):
            status, _, more = self.join(who, shape, expected=workers, flags=flags, job=job)
            assert (status, more) == (Status.OK, [])

    def contribute(
        self, who: int, shape: Shape, round_: int, vector: Vector
    ) -> dict[bytes, set[Address]]:
        """Send a whole vector, packet by packet; who gets which aggregates."""
        sent: dict[bytes, set[Address]] = {}
        for payload in segments_of(shape, round_, vector):
            for out in self.send(who, TOS_DATA, payload):
                for packet in packets_of(out):
                    sent.setdefault(packet, set()).update(out.peers)
        return sent


PARENT = Address("10.0.1.254", 26963)


@dataclass
class Below(Bench):
    """A switch with a parent, whose answers the test makes up."""

    switch: Switch = field(default_factory=lambda: Switch(parent=PARENT, incarnation=1000))

    def comes(self, who: int, shape: Shape, request: int = 1000) -> list[Control]:
        """A worker of a whole job of three asks to join; what it and the parent are sent."""
        join = Join.for_shape(shape, MemberType.WORKER, 3, FLAG_WHOLE | FLAG_NEW)
        return controls(
            self.send(who, TOS_CONTROL, Control(Action.JOIN, JOB, request, join).build())
        )

    def answers(self, to: Control, status: Status = Status.OK) -> list[Control]:
        """The parent's answer to a request, in round 0 and with nobody there; what follows."""
        packet = Control(Action.ACK, JOB, to.request, Ack(to.action), status)
        return controls(self.hears(TOS_CONTROL, [packet.build()]))

    def hears(self, tos: int, payloads: list[bytes]) -> list[Outgoing]:
        """A burst from the parent, to the line of the only job."""
        assert self.switch.control.hierarchy is not None
        (uplink,) = self.switch.control.hierarchy.uplinks.values()
        rows = rows_of(payloads)
        return self.switch.receive(Burst(uplink.parent, tos, rows, rows.shape[1]), self.now)


def controls(sends: list[Outgoing]) -> list[Control]:
    """The control packets among them."""
    return [Control.parse(packets_of(out)[0]) for out in sends if out.tos == TOS_CONTROL]
