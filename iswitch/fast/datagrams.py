"""The kernel at a UDP socket, and at those of the lines to the switch above."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.switch import Switch
from iswitch.ports.kernel.lobby import CONTROL
from iswitch.ports.kernel.mmsg import SOCKADDR_SIZE
from iswitch.ports.lines import LinedPort
from iswitch.ports.rings.serving import Ringed
from iswitch.ports.udp import UdpPort

from . import tables as t
from .lanes import SEVERAL, Lane, Layout
from .lent import Way
from .tables import Form


class DatagramLane(Lane):
    """Serves plain datagrams at a UDP socket in compiled code.

    Args:
        switch: the switch at the port.
        port: its port; with lines, if there is a switch above.
        kernels: the module of kernels.
        clock: returns monotonic seconds.
        ringed: the port with rings beside it; None: there are none.
    """

    def __init__(
        self,
        switch: Switch,
        port: UdpPort | LinedPort,
        kernels: ModuleType,
        clock: Callable[[], float],
        ringed: Ringed[Any, Any] | None = None,
    ) -> None:
        layout = Layout(name=SOCKADDR_SIZE, control=CONTROL, receiver=SOCKADDR_SIZE)
        self.port = port.port if isinstance(port, LinedPort) else port
        super().__init__(switch, kernels, layout, [self.port.socket.fileno()], clock, ringed)
        self._lines = port.lines if isinstance(port, LinedPort) else {}
        self._ports = [(0, self.port)]  # with their lines, as the kernel numbers sockets
        self.machine, self.out = switch, ringed or port
        self._known: tuple[object, ...] = ()

    def has_changed(self) -> bool:
        """Return whether members, or the ways to them, have changed."""
        if self.port.lobby is not None:
            self.port.lobby.tell()
        changes = self.rings.changes
        ports = ((0, self.port), *self._lines.items())
        known: tuple[object, ...] = self.switch.sources.changes, changes
        known += tuple((line, port.fileno(), port.sender.version) for line, port in ports)
        if known == self._known:
            return False
        self._known, self._ports = known, list(ports)
        self._sockets = [port.socket.fileno() for _, port in ports]
        self.tables.parameters[t.SOCKETS] = len(ports)
        return True

    def way(self, form: Form, peers: tuple[Address, ...]) -> Way | None:
        """Say how packets of a form reach receivers without rings; None: in no plain way."""
        if not peers:
            return None
        port = self._lines.get(peers[0].line) if peers[0].line else self.port
        if port is None:
            return None
        way = port.sender.way(peers, form.tos, form.size)
        if way is None:
            return None
        names = way.names.address + np.arange(len(peers), dtype=np.int64) * SOCKADDR_SIZE
        columns = {
            t.RECEIVERS: len(peers),
            t.COPIES: 1,
            t.THROUGH: port.socket.fileno(),
            t.NAMES: names.__array_interface__["data"][0],
            t.CONTROL: way.control.address,
            t.CONTROL_SIZE: way.control.size,
            t.AT_MOST: min(way.at_most, form.most),
        }
        return Way(columns, (way, names))

    def others(self) -> list[int]:
        """Return the lobby's descriptor, while the lobby is open."""
        lobby = self.port.lobby
        return [] if lobby is None or lobby.closed_until is not None else [lobby.socket.fileno()]

    def send(self, out: Outgoing, error: int, now: float) -> None:  # noqa: ARG002
        """Send what the kernel did not take."""
        self.out.push([out])

    def note_broken(self, error: int) -> None:
        """Ignore what ICMP says of a peer, and raise all else."""
        _, port = self._ports[int(self.tables.parameters[t.SOCKET])]
        port.failed(OSError(error, os.strerror(error)))

    def handle(self, socket: int, start: int, stop: int) -> None:
        """Handle datagrams start..stop-1 of the inbox in the Python way, and learn their flows."""
        inbox, (line, port) = self.inbox, self._ports[socket]
        signatures = inbox.status[start:stop]
        lengths = inbox.lengths[start:stop].tolist()
        try:
            bursts = port.reader.cut(inbox.bodies[start:stop], lengths, signatures)
        except MemoryError:
            port.counters["rx_no_memory"] += stop - start
            return
        now, lacked = self.clock(), False
        for given in bursts:
            burst = given._replace(peer=given.peer._replace(line=line)) if line else given
            self.rings.comes_beside(burst)
            try:
                self.out.push(self.switch.receive(burst, now))
            except MemoryError:  # handle the other packets that have come
                lacked = True
        for signature in {row.tobytes() for row in signatures[:SEVERAL]}:
            self._learn(socket, signature)
        if lacked:
            raise MemoryError

    def _learn(self, socket: int, signature: bytes) -> None:
        line, port = self._ports[socket]
        kind = port.reader.kind(signature)
        columns = {t.FROM_SOCKET: socket, t.STEP: kind.segment}
        self.learn(signature, kind.peer._replace(line=line), kind.tos, columns)
