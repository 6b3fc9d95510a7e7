"""A host between real namespaces that forges addresses of others, while they sum."""

from __future__ import annotations

import fcntl
import socket
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from iswitch.core.format.wire import Action, Control
from iswitch.ethernet.frame import ARP_REPLY, ARP_REQUEST, arp
from tests.ports.test_raw import PATIENCE, Running, running, tool
from tests.support import frames as slow
from worker_lib import Worker

pytestmark = [pytest.mark.root(reason="raw ports need root"), pytest.mark.serial]
SIOCGIFHWADDR = 0x8927
NUMEL = 20_000
ELEMENTS = 300  # of a segment: there is room for tags
SEGMENTS = -(-NUMEL // ELEMENTS)
ROUNDS = 300
WORKER = 40000  # UDP port of each worker
TAG, SERVICE = slow.tag(), slow.tag(kind=0x88A8)
WRAPS = {
    "plain": (),
    "priority": (slow.tag(0xE000),),
    "service": (SERVICE,),
    "stacked": (TAG, SERVICE, slow.tag(0x3000), TAG),
    "too deep": (TAG,) * 20,
}


def mac_of(world: Running, host: str) -> bytes:
    with world.network.inside(host), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = fcntl.ioctl(sock, SIOCGIFHWADDR, struct.pack("256s", f"{host}-eth0".encode()))
    return answer[18:24]


def forgeries(world: Running) -> list[bytes]:
    """Data, a Leave from each port, ordinary frames and ARP, all in the name of h1."""
    own, victim, other = (mac_of(world, host) for host in ("h3", "h1", "h2"))
    ip, here, target = (world.topology.address(n).packed for n in ("h1", "s1", "h2"))
    switch = bytes([0x02, 0x69]) + here
    rows = []
    for mac in (own, victim):
        for port in (5000, 26963, 40000):
            payload = bytes(8) + np.full(366, 1e6, np.float32).tobytes()
            leave = Control(Action.LEAVE, 7, 9).build()
            for tos, body in ((0x1C, payload), (0x0C, leave)):
                datagram = slow.udp(ip, here, (port, 26963), body)
                rows.append(slow.ethernet(switch, mac, slow.ip((ip, here), 17, datagram, tos)))
        rows.append(slow.ethernet(other, mac, slow.ip((ip, target), 17, bytes(40))))
    rows.append(slow.ethernet(other, victim, bytes(50), 0x88B5))
    rows.append(arp(ARP_REPLY, own, ip, other, target))
    rows.append(arp(ARP_REPLY, own, here, other, target))
    return rows


def aimed(world: Running, round_: int) -> Iterator[bytes]:
    """What h1 would take for the switch's if it came through: aggregates, a Halt, its MAC."""
    own, victim = mac_of(world, "h3"), mac_of(world, "h1")
    here, target = (world.topology.address(name).packed for name in ("s1", "h1"))
    for turn in range(2 * SEGMENTS):
        seg = ((round_ + turn % 2) << 32 | turn // 2).to_bytes(8, "big")
        data = seg + np.full(ELEMENTS, 1e6, np.float32).tobytes()
        halt = Control(Action.HALT, 7, 1 << 30).build()
        for tos, body in ((0x1C, data), (0x0C, halt)):
            datagram = slow.udp(here, target, (26963, WORKER), body)
            yield slow.ethernet(victim, own, slow.ip((here, target), 17, datagram, tos))
        for operation in (ARP_REPLY, ARP_REQUEST):
            said = arp(operation, own, here, victim, target)
            yield victim + said[6:]


class Sums:
    """A job of h1 and h2, each in a thread, its socket in its namespace."""

    def __init__(self, world: Running) -> None:
        self.world = world
        self.round = 0
        self.done: list[str] = []
        self.failed: list[BaseException] = []
        self._there = threading.Barrier(3)
        self._threads = [threading.Thread(target=self._work, args=(h,)) for h in ("h1", "h2")]
        for thread in self._threads:
            thread.start()
        self._there.wait(PATIENCE)

    def _work(self, host: str) -> None:
        world = self.world
        try:
            with world.network.inside(host):
                worker = Worker(
                    (world.address, 26963), 7, NUMEL, 2, timeout=PATIENCE,
                    bind=(str(world.topology.address(host)), WORKER), elements_per_segment=ELEMENTS,
                )  # fmt: skip
            with worker:
                self._there.wait(PATIENCE)
                for round_ in range(ROUNDS):
                    self.round = worker.round
                    total = worker.allreduce(np.full(NUMEL, round_, np.float32))
                    assert (total == 2 * round_).all(), np.unique(total)
                self.done.append(host)
                self._there.wait(PATIENCE)  # a member until then
        except BaseException as error:
            self.failed.append(error)

    @property
    def are_over(self) -> bool:
        """Whether there is nothing more to attack."""
        return len(self.done) == 2 or bool(self.failed)

    def end(self) -> dict[str, int]:
        """Have the workers leave and the switch end; its counters."""
        assert not self.failed, self.failed
        # Answered when all that was sent before has been handled.
        self.world.run("h3", tool("ping"), "-c", "1", "-W", "5", self.world.address)
        victim = str(self.world.topology.address("h1"))
        self.world.run("h2", tool("ping"), "-c", "1", "-W", "5", victim)  # it is where it was
        self._there.wait(PATIENCE)
        for thread in self._threads:
            thread.join(PATIENCE)
        assert not self.failed, self.failed
        return self.world.end()


def sender(world: Running) -> socket.socket:
    """A socket that sends any frame from h3."""
    with world.network.inside("h3"):
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        sock.bind(("h3-eth0", 0))
    return sock


def test_nobody_can_speak_for_a_member_from_another_port() -> None:
    with running("star:3") as world:
        sums, rows, sent = Sums(world), forgeries(world), 0
        with sender(world) as sock:
            while not sums.are_over:
                for row in rows:
                    sock.send(row)
                sent += len(rows)
        counters = sums.end()
    assert sent / 10 < counters["spoofed"] <= sent  # queues were full
    assert counters["stranger"] == 0
    assert counters["accumulated"] == 2 * counters["aggregates"]


@pytest.mark.parametrize("wraps", WRAPS.values(), ids=WRAPS)
def test_nobody_can_speak_to_a_member_as_the_switch(wraps: tuple[bytes, ...]) -> None:
    """Sums are right, and h1 sends to where the switch is; a host takes what these tags are on."""
    with running("star:3") as world:
        switch = bytes([0x02, 0x69]) + world.topology.address("s1").packed
        sums, sent = Sums(world), 0
        with sender(world) as sock:
            while not sums.are_over:
                for row in aimed(world, sums.round):
                    sock.send(slow.wrapped(slow.VNET + row, *wraps)[len(slow.VNET) :])
                    sent += 1
                known = world.run("h1", tool("ip"), "neighbour", "show", world.address)
                assert switch.hex(":") in known
        counters = sums.end()
    assert sent / 10 < counters["spoofed"] <= sent  # queues were full
    assert counters["stranger"] == 0
