"""Switches at sockets that tests can look into: UDP, and frames as payloads of UDP."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np

from iswitch.core.format.memo import Memo, Notes
from iswitch.core.format.packets import Address, Outgoing, Rows, by_size, super_datagrams
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.frame import HEAD, HEADERS, Route, sums
from iswitch.ethernet.issuing import Jack
from iswitch.ethernet.segmentation import wire_frames
from iswitch.fast import loading
from iswitch.fast.datagrams import DatagramLane
from iswitch.fast.frames import FrameLane
from iswitch.fast.lanes import Lane
from iswitch.faults.impairment import Impairment
from iswitch.ports.frames import SOCKADDR_LL, FrameSender
from iswitch.ports.kernel.mmsg import Block, Receiver, Spacing, size_buffers
from iswitch.ports.lines import LinedPort
from iswitch.ports.raw import CONTROL, SEEN, RawPorts
from iswitch.ports.rings import channel, meeting
from iswitch.ports.rings.hub import Rings
from iswitch.ports.rings.pacing import Lanes
from iswitch.ports.rings.serving import RingChassis, Ringed, RingPort, RingPorts
from iswitch.ports.udp import UdpPort

HOME = ("127.0.0.1", 0)
PATIENCE = 20.0  # seconds until a history is given up
NOBODY = -1  # a descriptor at which nothing comes
TURN = 0.0005  # seconds that a kernel may wait for more
MTU = 4000
FRAME_PACKETS = 20  # packets of a super-frame, which must fit in a datagram itself
LONGEST = 70_000  # bytes of a frame with its headers
OWN_MAC, OWN_IP, OWN_PORT = bytes.fromhex("02690a1afffe"), bytes([10, 26, 255, 254]), 26963


@dataclass(frozen=True)
class Sent:
    """What one process sends at once."""

    who: int
    tos: int
    rows: Rows
    tail: int
    line: int = 0  # to which the switch above sends


class Side(ABC):
    """A switch with its port, and the sockets of all processes.

    Attributes:
        lane: runs the kernel; None: all goes the Python way.
        compiled: packets that a kernel added.
    """

    lane: Lane | None = None
    limits: Limits | None = None  # of the switch
    keys: Mapping[int, bytes] | None = None  # of its jobs

    def __init__(self, switch: Switch) -> None:
        self.switch = switch
        self.compiled = 0
        self.stack = ExitStack()

    def turn(self, due: int) -> None:
        """Handle what comes until the switch has received that many packets in all."""
        lane, counters = self.lane, self.switch.counters
        until = time.monotonic() + PATIENCE
        while self.came() < due:
            now = time.monotonic()
            assert now < until, f"{due - self.came()} packets do not come"
            if lane is not None and lane.ready():
                before = counters["accumulated"] + counters["from_parent"]
                others = lane.run(now + TURN, now, 0.0, NOBODY)
                self.compiled += counters["accumulated"] + counters["from_parent"] - before
                if others:
                    self.move(time.monotonic())  # which is past what the kernel has noted
            else:
                self.move(now)

    def play(self, batch: Sequence[Sent], ticks: bool = False) -> list[list[bytes]]:
        """Send a batch, perhaps `tick`, and return what each process got for it, sorted."""
        came, left = self.came(), self.left()
        for sent in batch:
            self.send(sent)
        self.turn(came + sum(len(sent.rows) for sent in batch))
        if ticks:
            self.tick(time.monotonic())
        got: list[list[bytes]] = [[] for _ in range(self.processes)]
        until = time.monotonic() + PATIENCE
        while sum(map(len, got)) < self.left() - left:
            assert time.monotonic() < until, "sent packets do not come"
            for who, packets in enumerate(got):
                packets += self.received(who)
        return [sorted(packets) for packets in got]

    processes: int

    @abstractmethod
    def came(self) -> int:
        """How many packets have come to the switch."""

    @abstractmethod
    def left(self) -> int:
        """How many packets the switch has sent."""

    @abstractmethod
    def send(self, sent: Sent) -> None:
        """Send a process's packets to the switch."""

    @abstractmethod
    def received(self, who: int) -> list[bytes]:
        """The packets that have come to a process."""

    @abstractmethod
    def move(self, now: float) -> None:
        """Handle what has come in the Python way."""

    def tick(self, now: float) -> None:
        """Look at what has to go up, as a switch below another one does."""
        raise NotImplementedError


class UdpSide(Side):
    """A switch at a UDP socket."""

    def __init__(self, processes: int, fast: bool, reproducible: bool, offload: bool) -> None:
        super().__init__(Switch(self.limits, reproducible, keys=self.keys))
        enter, counters = self.stack.enter_context, self.switch.counters
        self.port = enter(closing(UdpPort(HOME, offload=offload, counters=counters)))
        self.connect(processes, offload)
        if fast:
            kernels = loading.load("switch_kernel")
            self.lane = DatagramLane(self.switch, self.port, kernels, time.monotonic)

    def connect(self, processes: int, offload: bool) -> None:
        """Open the sockets of the processes."""
        where, enter = self.port.address[:2], self.stack.enter_context
        self.processes = processes
        self._sockets = [
            enter(closing(UdpPort(HOME, connect=where, offload=offload))) for _ in range(processes)
        ]

    def came(self) -> int:
        return self.switch.counters["rx_packets"]

    def left(self) -> int:
        return self.switch.counters["tx_packets"]

    def send(self, sent: Sent) -> None:
        peers = (self.port.address,)
        self._sockets[sent.who].push([Outgoing(peers, sent.tos, sent.rows, sent.tail)])

    def received(self, who: int) -> list[bytes]:
        """The packets that have come to a process, each behind its ToS byte."""
        return [
            bytes([burst.tos]) + row.tobytes()
            for burst in self._sockets[who].pull()
            for rows in burst.by_size()
            for row in rows
        ]

    def move(self, now: float) -> None:
        for burst in self.port.pull():
            self.port.push(self.switch.receive(burst, now))


@dataclass
class CabledPort:
    """A port whose cable is a UDP socket."""

    socket: socket.socket
    spacing: Spacing
    mtu: int = MTU
    most: int = FRAME_PACKETS

    def expect(self, frames: object) -> None:
        """Nothing: all spacings serve."""

    def dropped(self) -> int:
        return 0


class CabledPorts(RawPorts):
    """Ports that move frames through UDP sockets, and not through interfaces."""

    def __init__(self, chassis_counters: object, processes: int, offload: bool) -> None:
        self.counters = chassis_counters  # type: ignore[assignment]
        self.recorder = self.replicator = None
        self.offload = offload
        self.out = bound()
        self._epoll = select.epoll()
        self.hosts = [bound() for _ in range(processes)]
        sockets = [bound() for _ in range(processes)]
        self.ports = [CabledPort(one, Spacing(MTU, HEAD)) for one in sockets]  # type: ignore[misc]
        self.addresses = [one.getsockname() for one in sockets]
        for one in sockets:
            self._epoll.register(one, select.EPOLLIN)
        self._numbers = {one.fileno(): i for i, one in enumerate(sockets)}
        self.names = [Block(packed(*one.getsockname())) for one in self.hosts]
        self._receiver = Receiver(head=HEAD, control=CONTROL)
        self._sender = FrameSender()
        self._seen = Memo(SEEN)
        self._posts = Notes()
        self._looked = time.monotonic()

    def close(self) -> None:
        self._epoll.close()
        for one in (*self.hosts, *(port.socket for port in self.ports), self.out):
            one.close()


def bound() -> socket.socket:
    """A socket at any address of this machine."""
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    size_buffers(one, 1 << 22)
    one.setblocking(False)
    one.bind(HOME)
    return one


def packed(host: str, port: int) -> bytes:
    """A socket's address, as long as that of an interface."""
    address = struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host)
    return address.ljust(SOCKADDR_LL.size, b"\0")


class FrameSide(Side):
    """A switch with ports, to each of which a process is connected."""

    chassis: Chassis

    def __init__(self, processes: int, fast: bool, reproducible: bool, offload: bool) -> None:
        super().__init__(Switch(self.limits, reproducible, keys=self.keys))
        self.processes, self.offload = processes, offload
        self.ports = self.stack.enter_context(
            closing(CabledPorts(self.switch.counters, processes, offload))
        )
        jacks = [Jack(MTU, offload, FRAME_PACKETS) for _ in range(processes)]
        self.chassis = Chassis(self.switch, OWN_IP, OWN_MAC, jacks, OWN_PORT)
        if fast:
            kernels = loading.load("switch_kernel")
            self.lane = FrameLane(self.chassis, self.ports, kernels, time.monotonic)

    def came(self) -> int:
        return self.switch.counters["rx_frames"]

    def left(self) -> int:
        return self.switch.counters["tx_frames"]

    def send(self, sent: Sent) -> None:
        who = sent.who
        mac, ip = bytes([2, 0, 0, 0, 0, who]), bytes([10, 26, 0, who + 1])
        route = Route(mac, OWN_MAC, ip, OWN_IP, 5000 + who, self.at(sent), sent.tos)
        host, at = self.ports.hosts[who], self.ports.addresses[who]
        if self.offload and len(sent.rows) > 1:
            for some in super_datagrams(sent.rows, sent.tail, FRAME_PACKETS):
                for payload, length in zip(some.payloads, some.lengths, strict=True):
                    head = route.head(length, sent.rows.shape[1])
                    host.sendto(head.tobytes() + payload[:length].tobytes(), at)
            return
        for rows in by_size(sent.rows, sent.tail):
            for head, row in zip(route.heads(rows.shape[1], sums(rows)), rows, strict=True):
                host.sendto(head.tobytes() + row.tobytes(), at)

    def at(self, sent: Sent) -> int:  # noqa: ARG002
        """Return the UDP port of the switch to which packets are sent."""
        return OWN_PORT

    def received(self, who: int) -> list[bytes]:
        """Whole frames as they are on the wire."""
        frames: list[bytes] = []
        while True:
            try:
                row = self.ports.hosts[who].recv(LONGEST)
            except BlockingIOError:
                return frames
            for cut in wire_frames(np.frombuffer(row, np.uint8)):
                frames += [without_identification(frame) for frame in cut]

    def move(self, now: float) -> None:
        for frames in self.ports.pull():
            self.ports.push(self.chassis.receive(frames, now))


class RingSide(UdpSide):
    """A switch with rings: all processes but each sixth have some."""

    ringed: Ringed[Any, Any]
    without = 6  # the last of each six processes has no rings
    link: Impairment | None = None  # of all ports

    def __init__(self, processes: int, fast: bool, reproducible: bool, offload: bool) -> None:
        Side.__init__(self, Switch(self.limits, reproducible, keys=self.keys))
        self.port = UdpPort(HOME, offload=offload, counters=self.switch.counters)
        self.offer(self.port, processes, fast, offload)

    def offer(self, port: UdpPort | LinedPort, workers: int, fast: bool, offload: bool) -> None:
        """Serve workers at a port, with rings beside it."""
        enter, counters = self.stack.enter_context, self.switch.counters
        self.path = Path(enter(TemporaryDirectory()), "rings")
        links, at = self.links(1), self.port.address
        rings = Rings(self.path, at, port.fileno(), links=links, counters=counters)
        self.ringed = enter(closing(RingPort(port, rings)))
        self.machine: Any = self.switch
        self.plug(range(workers), offload, without=self.without)
        if fast:
            kernels = loading.load("switch_kernel")
            self.lane = DatagramLane(self.switch, port, kernels, time.monotonic, self.ringed)

    def links(self, ports: int) -> dict[int, Lanes]:
        """Make the links with a rate, at each port."""
        if self.link is None:
            return {}
        return {number: Lanes(self.link, self.switch.counters) for number in range(ports)}

    def received(self, who: int) -> list[bytes]:
        self.ringed.rings.release()
        return super().received(who)

    def plug(self, processes: range, offload: bool, without: int) -> None:
        """Connect the processes; each that is last of `without` has no rings."""
        self.processes, self._sockets = len(processes), []
        for process in processes:
            has = process % without != without - 1
            variable = {meeting.VARIABLE: str(self.path) if has else "0"}
            with patch.dict(os.environ, variable), patch.object(channel, "PATIENCE", 0.0):
                at = channel.port(HOME, self.port.address[:2], offload)
            self._sockets.append(self.stack.enter_context(closing(at)))
            while has and at.way == "udp":
                list(self.ringed.pull())
                list(at.pull())

    def move(self, now: float) -> None:
        for came in self.ringed.pull():
            self.ringed.push(self.machine.receive(came, now))


class HostSide(RingSide):
    """A switch with ports, whose hosts have rings besides their cables."""

    chassis: Chassis

    def __init__(self, processes: int, fast: bool, reproducible: bool, offload: bool) -> None:
        Side.__init__(self, Switch(self.limits, reproducible, keys=self.keys))
        self.cable(processes, processes, fast, offload)

    def cable(self, ports: int, workers: int, fast: bool, offload: bool) -> None:
        """Make the switch's ports, at the first of which are workers with rings."""
        enter, counters = self.stack.enter_context, self.switch.counters
        self.port = enter(closing(UdpPort(HOME)))  # nothing is received here: all have rings
        self.path = Path(enter(TemporaryDirectory()), "rings")
        self.ports = CabledPorts(counters, ports, offload)
        jacks = [Jack(MTU, offload, FRAME_PACKETS) for _ in range(ports)]
        self.machine = self.chassis = chassis = RingChassis(
            self.switch, OWN_IP, OWN_MAC, jacks, OWN_PORT
        )
        links, at = self.links(ports), self.port.address
        rings = Rings(self.path, at, self.ports.fileno(), Address, links, counters)
        chassis.issuer.rings = rings
        self.ringed = enter(closing(RingPorts(self.ports, rings, chassis.issuer)))
        self.plug(range(workers), offload, without=workers + 1)
        if fast:
            kernels, clock = loading.load("switch_kernel"), time.monotonic
            self.lane = FrameLane(self.chassis, self.ports, kernels, clock, self.ringed)


class PacedSide(RingSide):
    """A switch with rings behind one link with a rate."""

    link = Impairment(rate=5_000_000_000, queue=1_000_000)


class PacedHostSide(HostSide):
    """A switch with ports, with a link with a rate at each."""

    link = Impairment(rate=1_000_000_000, queue=1_000_000)


def without_identification(frame: Rows) -> bytes:
    """A frame whose IP header says nothing of its place in a super-frame."""
    assert len(frame) > HEADERS
    return frame[:18].tobytes() + frame[20:24].tobytes() + frame[26:].tobytes()
