"""The engine of a switch whose plain packets go through a kernel."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from iswitch.core.switch import Switch
from iswitch.ethernet.chassis import Chassis
from iswitch.ports.engine import Engine
from iswitch.ports.lines import LinedPort
from iswitch.ports.raw import RawPorts
from iswitch.ports.rings.serving import Ringed, RingPorts
from iswitch.ports.udp import UdpPort

from . import loading
from .lanes import Lane


class FastEngine(Engine[Any, Any]):
    """Runs a switch on a port: plain packets in compiled code, all others in the Python way.

    Where no kernel serves the port or the switch, it is an ordinary engine.
    """

    _lane: Lane | None = None

    def load(self) -> None:
        """Load the kernel for this switch and port; call this before others can reach the switch.

        Without it, all packets are handled in Python.
        """
        try:
            self._lane = self._open()
        except ImportError as error:
            loading.say(f"Numba cannot be used, so packets are handled in Python: {error}")

    def _open(self) -> Lane | None:
        machine, port = self.machine, self.port
        switch = machine.switch if isinstance(machine, Chassis) else machine
        if type(switch) is not Switch:
            return None
        ringed = port if isinstance(port, Ringed) else None
        sockets = port if ringed is None else ringed.port
        if isinstance(sockets, RawPorts) and sockets.recorder is not None:
            return None
        if isinstance(ringed, RingPorts) and ringed.recorder is not None:
            return None
        if machine is switch and (type(sockets) is UdpPort or type(sockets) is LinedPort):
            from .datagrams import DatagramLane

            kernels = loading.load("switch_kernel")
            return DatagramLane(switch, sockets, kernels, self.clock, ringed)
        if isinstance(machine, Chassis) and type(sockets) is RawPorts:
            from .frames import FrameLane

            kernels = loading.load("switch_kernel")
            return FrameLane(machine, sockets, kernels, self.clock, ringed)
        return None

    def _move(self, now: float) -> tuple[bool, float | None]:
        """Move packets until something is not plain; the kernel does the waiting."""
        lane, machine = self._lane, self.machine
        if lane is None or not lane.ready():
            return super()._move(now)
        if lane.run(self.port.deadline(), now, self.spin, self._wake, machine.deadline()):
            with suppress(BlockingIOError):
                os.read(self._wake, 4096)
            super()._move(self.clock())
            return True, None
        now, due = self.clock(), machine.deadline()
        if due is not None and due <= now:
            self.port.push(machine.handle_timer(now))
        return True, None
