"""What measurements in namespaces share: where a process is, a raw switch in one, common starts."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from iswitch.core.switch import Switch
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.frame import Frames, Transmission
from iswitch.faults.impairment import Impairments
from iswitch.lab.bench.plan import PAPER
from iswitch.ports.engine import Engine
from iswitch.ports.impaired import ImpairedPorts
from iswitch.ports.memory import keep_freed, settle
from iswitch.ports.raw import RawPorts
from topologies.namespaces import NAMESPACES, inside
from topologies.netns import Network

SIZES = {size.label: size.numel for size in PAPER.values()}
SWITCH_PORT = 26963


class Place(NamedTuple):
    """Where a process opens its sockets."""

    namespace: str
    ifnames: tuple[str, ...]
    address: str

    def __enter__(self) -> None:
        self_ = _entered.setdefault(self.namespace, ExitStack())
        descriptor = os.open(NAMESPACES / self.namespace, os.O_RDONLY)
        self_.callback(os.close, descriptor)
        self_.enter_context(inside(descriptor))

    def __exit__(self, *_: object) -> None:
        _entered.pop(self.namespace).close()


_entered: dict[str, ExitStack] = {}


def place(network: Network, node: str) -> Place:
    ifnames = tuple(port.ifname for port in network.topology.ports(node))
    return Place(network.namespace(node), ifnames, str(network.topology.address(node)))


class Timed(ImpairedPorts):
    """Impaired ports that tell how long losing packets has kept this thread: no network does that.

    Not in it is that the kernel copies no broadcast any more, from which each port lost others.
    """

    injection = 0.0  # seconds of CPU

    def _entering(self, frames: Frames, now: float) -> list[Frames] | None:
        began = time.thread_time()
        try:
            return super()._entering(frames, now)
        finally:
            self.injection += time.thread_time() - began

    def _leaving(self, step: Sequence[Transmission]) -> Sequence[Transmission]:
        began = time.thread_time()
        try:
            return super()._leaving(step)
        finally:
            self.injection += time.thread_time() - began


def serve(
    where: Place, report: Connection, impairments: Impairments | None = None, seed: int = 0
) -> None:
    """A raw switch: says when it is ready, and at the end its CPU seconds and counters.

    Among these is `injection`, the seconds of CPU that impairments have taken.
    """
    switch = Switch()
    with where:
        ports = RawPorts(where.ifnames, counters=switch.counters)
    address = socket.inet_aton(where.address)
    chassis = Chassis(switch, address, b"\2i" + address, ports.jacks, SWITCH_PORT)
    lossy = Timed(ports, impairments, seed, switch.counters) if impairments else None
    engine = Engine(chassis, lossy or ports)
    signal.signal(signal.SIGTERM, lambda *_: engine.stop())
    keep_freed()
    settle()
    report.send("ready")
    engine.run()
    usage = os.times()
    spent = {"injection": lossy.injection if lossy else 0.0}
    report.send((usage.user, usage.system, dict(switch.counters) | spent))


class Start:
    """Lets all workers begin at one time: released one after the other, they would not."""

    PAUSE = 0.001  # seconds in which all get to their timers

    def __init__(self, context: Any, workers: int) -> None:
        self._barrier = context.Barrier(workers)
        self._at = context.Value("d", 0.0, lock=False)

    def wait(self) -> float:
        """Wait for the others, then for the time; returns the time."""
        if self._barrier.wait() == 0:
            self._at.value = time.monotonic() + self.PAUSE
        self._barrier.wait()
        at: float = self._at.value
        time.sleep(max(0.0, at - time.monotonic()))
        return at
