"""The engine: real clock, moves packets between a port and a switch until told to stop."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import Protocol

from .packets import Burst, Outgoing
from .ports.udp import UdpPort


class Machine(Protocol):
    """A sans-I/O object with time as an argument: a Switch, or what stands in for one."""

    def receive(self, burst: Burst, now: float) -> list[Outgoing]:
        """Take packets; returns what is to be sent because of them."""

    def deadline(self) -> float | None:
        """When `handle_timer` wants to be called."""

    def handle_timer(self, now: float) -> list[Outgoing]:
        """Do what is due."""


class Engine:
    """Runs a machine on a port.

    Args:
        clock: seconds, monotonic.
        spin: seconds to look for packets again and again before sleeping. It saves the wake-up
            (some 10 us and more) for the price of a busy core.
    """

    def __init__(
        self,
        machine: Machine,
        port: UdpPort,
        clock: Callable[[], float] = time.monotonic,
        spin: float = 0.0,
    ) -> None:
        self.machine = machine
        self.port = port
        self.clock = clock
        self.spin = spin

        self._stopping = False
        self._wake = os.eventfd(0)

    def stop(self) -> None:
        """Make `run` return soon; may be called from a signal handler or another thread."""
        self._stopping = True
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Serve until stopped; once."""
        try:
            self._serve()
        finally:
            os.close(self._wake)
            self._wake = -1

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self.port, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        machine, port, clock = self.machine, self.port, self.clock
        idle_since = clock()
        while not self._stopping:
            bursts = port.pull()
            now = clock()
            for burst in bursts:
                port.push(machine.receive(burst, now))
            deadline = machine.deadline()
            if deadline is not None and deadline <= now:
                port.push(machine.handle_timer(now))
            if bursts:
                idle_since = now
            elif now - idle_since >= self.spin:
                poller.poll(None if deadline is None else max(0.0, deadline - now) * 1000)
