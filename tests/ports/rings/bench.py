"""A switch with a socket, and perhaps rings, and its workers' ports, in one thread."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from iswitch.core.format.packets import Burst, Outgoing
from iswitch.core.format.wire import Action, Control, Join, Shape
from iswitch.core.switch import Switch
from iswitch.fast import loading
from iswitch.ports.port import Port
from iswitch.ports.rings import channel, meeting
from iswitch.ports.rings.hub import Rings
from iswitch.ports.rings.serving import RingPort
from iswitch.ports.udp import UdpPort

HOME = ("127.0.0.1", 0)
TURN = 0.0005  # seconds that a kernel may wait for more
NOBODY = -1  # a descriptor at which nothing comes
SETTLED = 3  # looks in a row that find nothing, until all is handled


class Bench:
    """A switch, and ports of workers that are connected to it.

    Args:
        path: of its UNIX socket; None: it has none.
        listen: where it serves; port 0: any.
        rings: more arguments of its rings, whose time is `now`.
    """

    def __init__(self, path: Path | None, listen: tuple[str, int] = HOME, **rings: Any) -> None:
        self.path = path
        self.now = 0.0
        self.switch = Switch()
        udp = UdpPort(listen, counters=self.switch.counters)
        self.address = udp.address
        self.port: Port[Burst, Outgoing] = udp
        if path is not None:
            rings = {"clock": lambda: self.now, **rings} if rings else {}
            self.port = RingPort(udp, Rings(path, udp.address, udp.fileno(), **rings))
        self.lane: Any = None  # serves the rings by the kernel
        self.workers: list[UdpPort] = []
        self.came: list[bytes] = []  # of all workers' packets, with the worker's number in front

    def compile(self) -> None:
        """Serve the rings by the kernel from now on, and in Python what that leaves."""
        from iswitch.fast.datagrams import DatagramLane

        assert isinstance(self.port, RingPort)
        assert isinstance(self.port.port, UdpPort)
        kernels, clock = loading.load("switch_kernel"), time.monotonic
        self.lane = DatagramLane(self.switch, self.port.port, kernels, clock, self.port)

    def plug(self, count: int) -> None:
        """Connect workers."""
        for _ in range(count):
            variable = {meeting.VARIABLE: str(self.path) if self.path else "0"}
            with patch.dict(os.environ, variable), patch.object(channel, "PATIENCE", 0.0):
                self.workers.append(channel.port(HOME, self.address[:2]))
            self.settle()

    def settle(self) -> None:
        """Move packets until none is under way."""
        quiet = 0
        while quiet < SETTLED:
            quiet += not self.step()
            if quiet:
                time.sleep(0.0005)

    def later(self, seconds: float) -> None:
        """Let time pass, and handle what has come then."""
        self.now += seconds
        self.settle()

    def look(self) -> bool:
        """Let the kernel serve what there is; return whether Python has to look, too."""
        now = time.monotonic()
        return bool(self.lane.run(now + TURN, now, 0.0, NOBODY))

    def step(self) -> bool:
        """Let the switch and each worker handle what has come; return whether anything had."""
        counters = self.switch.counters
        before = counters["rx_packets"]
        if self.lane is not None and self.lane.ready():
            self.look()
        moved = counters["rx_packets"] > before
        for burst in self.port.pull():
            moved = True
            self.port.push(self.switch.receive(burst, self.now))
        for number, worker in enumerate(self.workers):
            worker.holds()  # which asks the switch to ring
            for burst in worker.pull():
                moved = True
                for one in burst.singles():
                    self.came.append(
                        b"%d %d " % (number, one.tos) + one.rows[:, : one.tail].tobytes()
                    )
        return moved

    def say(self, number: int, *sends: Outgoing) -> None:
        """Have a worker send, and wait until all is handled."""
        self.workers[number].push([out._replace(peers=(self.address,)) for out in sends])
        came, self.came = self.came, []
        self.settle()
        self.came = came + sorted(
            self.came
        )  # what goes to one worker may overtake what goes to all

    def join(self, number: int, shape: Shape, expected: int) -> None:
        """Have a worker join job 7."""
        packet = Control(Action.JOIN, 7, 1000, Join.for_shape(shape, expected=expected))
        self.say(number, Outgoing.control(self.address, packet.build()))

    def close(self) -> None:
        """Close all ports."""
        for worker in self.workers:
            worker.close()
        self.port.close()


@contextmanager
def bench(path: Path | None, listen: tuple[str, int] = HOME) -> Iterator[Bench]:
    """Make a bench, and close it."""
    made = Bench(path, listen)
    try:
        yield made
    finally:
        made.close()


def whole_group(made: Bench) -> bool:
    """Whether all workers get sums from one ring."""
    plans = made.port.rings._plans.values()  # type: ignore[attr-defined]
    return any(plan.group and len(plan.group.members) == len(made.workers) for plan in plans)
