"""Switches below another one, as `sides` has them, and that other one."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from contextlib import closing
from unittest.mock import patch

import numpy as np

from iswitch.core.format.lines import line_at, port_of
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import TOS_CONTROL
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.issuing import Jack
from iswitch.fast import loading
from iswitch.fast.datagrams import DatagramLane
from iswitch.fast.frames import FrameLane
from iswitch.faults.impairment import Impairment
from iswitch.ports.lines import LinedPort
from iswitch.ports.udp import UdpPort

from .sides import (
    FRAME_PACKETS,
    HOME,
    MTU,
    NOBODY,
    OWN_IP,
    OWN_MAC,
    OWN_PORT,
    TURN,
    CabledPorts,
    FrameSide,
    HostSide,
    RingSide,
    Sent,
    Side,
    UdpSide,
)

INCARNATION = 1000
PAST, NEVER = 1.0, 1e6  # seconds
FIRST = 1000  # ports that stand for the lines, at the switch above
Said = tuple[int, int, bytes]  # line, ToS byte and payload


class Above:
    """The switch above, whose only member is the switch below it, so that all rounds complete.

    Args:
        who: the number of its process.
        limits: of both.
        keys: of the jobs, by number.
    """

    def __init__(self, who: int, limits: Limits | None, keys: Mapping[int, bytes]) -> None:
        self.who = who
        self._switch = Switch(limits, keys=keys)
        self.pending: list[Sent] = []  # aggregates

    def hear(self, said: list[Said]) -> list[Sent]:
        """Take what the switch below has sent; return the control packets for it."""
        control: list[Sent] = []
        for line, tos, payload in sorted(said):
            row = np.frombuffer(payload, np.uint8).reshape(1, -1)
            peer = Address("10.26.0.1", FIRST + line)
            for out in self._switch.receive(Burst(peer, tos, row, len(payload)), 0.0):
                sent = Sent(self.who, out.tos, out.rows.copy(), out.tail, line)
                (control if out.tos == TOS_CONTROL else self.pending).append(sent)
        return control

    def draw(self, rng: np.random.Generator, wild: float) -> list[Sent]:
        """Draw some of the aggregates of one job, most of them to be sent for the last time."""
        if not self.pending or rng.random() < 0.2:
            return []
        line = self.pending[int(rng.integers(len(self.pending)))].line
        ours = [sent for sent in self.pending if sent.line == line]
        ours.sort(key=lambda sent: sent.rows[0, :8].tobytes())
        some = ours[: int(rng.integers(1, len(ours) + 1))]
        if rng.random() >= wild:
            self.pending = [sent for sent in self.pending if not any(sent is one for one in some)]
        elif rng.random() < 0.5:
            some = some[::-1]
        else:
            one = some[0]
            rows = one.rows.copy()
            rows[0, int(rng.integers(8))] ^= 1 << int(rng.integers(8))
            some[0] = Sent(self.who, one.tos, rows, one.tail, line)
        return joined(some)


def joined(sends: list[Sent]) -> list[Sent]:
    """Put packets of one size together, as many as a super-datagram takes."""
    found: list[Sent] = []
    for sent in sends:
        last = found[-1] if found else None
        size = sent.rows.shape[1]
        if last and len(last.rows) < FRAME_PACKETS and last.tail == last.rows.shape[1] >= size:
            row = np.zeros((1, last.tail), np.uint8)
            row[0, :size] = sent.rows[0]
            rows = np.concatenate((last.rows, row))
            found[-1] = Sent(sent.who, sent.tos, rows, size, sent.line)
        else:
            found.append(sent)
    return found


class Marks:
    """Says whether marks may be sent now: while a switch looks, also one that adds all the time."""

    due = False
    once = True  # else repeated at each look, of which a kernel's would be one more
    asks_at = property(lambda _: 0.0 if Marks.due else NEVER)


def look(side: Side) -> list[Outgoing]:
    """Look at the partial sums of asynchronous jobs that have to go up, or be asked about.

    A kernel looks first. An open sum goes up if the number of the one before it is odd: a kernel
    has looked, too, since the last time, so that it is not known how long the sum has been held.
    """
    hierarchy = side.switch.control.hierarchy
    assert hierarchy is not None
    for way in hierarchy.upward.values():
        assert way.hold_at or way.sums.opened or not way.sums.is_open(), "it is held for ever"
        if way.sums.number and way.sums.number % 2:
            way.hold_at = PAST
    with patch.object(Marks, "due", True):
        if Marks.once and side.lane is not None and side.lane.ready():
            now = time.monotonic()
            side.lane.run(now + TURN, now, 0.0, NOBODY)
        ways, keys = list(hierarchy.upward.values()), side.switch.record.keys

        def work(now: float) -> list[Outgoing]:
            return keys.sealed([out for way in ways for out in way.handle_timer(now)])

        return side.switch._due(work, time.monotonic())


class UdpBelow(UdpSide):
    """A switch at UDP sockets, below another one: the last of the processes."""

    def __init__(self, processes: int, fast: bool, reproducible: bool, offload: bool) -> None:
        self.above = UdpPort(HOME, offload=offload)
        Side.__init__(
            self, Switch(self.limits, reproducible, self.above.address, INCARNATION, self.keys)
        )
        enter = self.stack.enter_context
        enter(closing(self.above))
        counters = self.switch.counters
        self.port = UdpPort(HOME, offload=offload, counters=counters)
        self.lined = enter(closing(LinedPort(self.port, self.switch.sources, counters)))
        self.connect(processes - 1, offload)
        self.processes = processes
        if fast:
            kernels = loading.load("switch_kernel")
            self.lane = DatagramLane(self.switch, self.lined, kernels, time.monotonic)

    def send(self, sent: Sent) -> None:
        if sent.who < self.processes - 1:
            super().send(sent)
            return
        peers = (self.lined.lines[sent.line].address,)
        self.above.push([Outgoing(peers, sent.tos, sent.rows, sent.tail)])

    def received(self, who: int) -> list[bytes]:
        if who < self.processes - 1:
            return super().received(who)
        lines = {port.address.port: line for line, port in self.lined.lines.items()}
        return [
            struct.pack(">HB", lines[burst.peer.port], burst.tos) + row.tobytes()
            for burst in self.above.pull()
            for rows in burst.by_size()
            for row in rows
        ]

    def said(self, packet: bytes) -> Said:
        """What a packet that came to the switch above says."""
        return (*struct.unpack_from(">HB", packet), packet[3:])

    def move(self, now: float) -> None:
        for burst in self.lined.pull():
            self.lined.push(self.switch.receive(burst, now))

    def tick(self, now: float) -> None:  # noqa: ARG002
        self.lined.push(look(self))


class RingBelow(UdpBelow, RingSide):
    """A switch below another one, whose workers have rings, all but each sixth."""

    def __init__(self, processes: int, fast: bool, reproducible: bool, offload: bool) -> None:
        self.above = UdpPort(HOME, offload=offload)
        Side.__init__(
            self, Switch(self.limits, reproducible, self.above.address, INCARNATION, self.keys)
        )
        self.stack.enter_context(closing(self.above))
        counters = self.switch.counters
        self.port = UdpPort(HOME, offload=offload, counters=counters)
        self.lined = LinedPort(self.port, self.switch.sources, counters)
        self.offer(self.lined, processes - 1, fast, offload)
        self.processes = processes

    move = RingSide.move

    def tick(self, now: float) -> None:  # noqa: ARG002
        self.ringed.push(look(self))


def behind_last(processes: int) -> Address:
    """The address of the switch above, which is the last of the processes."""
    who = processes - 1
    return Address(f"10.26.0.{who + 1}", 5000 + who, who)


def learn(chassis: Chassis, above: Address) -> None:
    """Have a switch know where the one above is, as by ARP."""
    chassis._learn(above.host, above.ingress, bytes([2, 0, 0, 0, 0, above.ingress]))


class FrameBelow(FrameSide):
    """A switch with ports; the one above is behind the last."""

    def __init__(self, processes: int, fast: bool, reproducible: bool, offload: bool) -> None:
        above = behind_last(processes)
        Side.__init__(self, Switch(self.limits, reproducible, above, INCARNATION, self.keys))
        self.processes, self.offload = processes, offload
        self.ports = self.stack.enter_context(
            closing(CabledPorts(self.switch.counters, processes, offload))
        )
        jacks = [Jack(MTU, offload, FRAME_PACKETS) for _ in range(processes)]
        self.chassis = Chassis(self.switch, OWN_IP, OWN_MAC, jacks, OWN_PORT)
        learn(self.chassis, above)
        if fast:
            kernels = loading.load("switch_kernel")
            self.lane = FrameLane(self.chassis, self.ports, kernels, time.monotonic)

    def at(self, sent: Sent) -> int:
        return port_of(sent.line, OWN_PORT)

    def tick(self, now: float) -> None:
        self.ports.push([self.chassis.issuer.issue(look(self), now)])

    def said(self, packet: bytes) -> Said:
        """What a frame that came to the switch above says, which lacks its identification."""
        line = line_at(int.from_bytes(packet[30:32], "big"), OWN_PORT)
        assert line is not None
        return line, packet[15], packet[38:]


class HostBelow(FrameBelow, HostSide):
    """A switch with ports, below another one, whose hosts have rings besides their cables."""

    def __init__(self, processes: int, fast: bool, reproducible: bool, offload: bool) -> None:
        above = behind_last(processes)
        Side.__init__(self, Switch(self.limits, reproducible, above, INCARNATION, self.keys))
        self.offload = offload
        self.cable(processes, processes - 1, fast, offload)
        self.processes = processes
        learn(self.chassis, above)

    def send(self, sent: Sent) -> None:
        (FrameSide if sent.who == self.processes - 1 else RingSide).send(self, sent)

    def received(self, who: int) -> list[bytes]:
        if who == self.processes - 1:
            return FrameSide.received(self, who)
        return RingSide.received(self, who)

    move = RingSide.move

    def tick(self, now: float) -> None:
        self.ringed.push([self.chassis.issuer.issue(look(self), now)])


class PacedBelow(HostBelow):
    """The same behind links with a rate."""

    link = Impairment(rate=1_000_000_000, queue=1_000_000)
