"""The kernel at a UDP socket."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import TOS_DATA
from iswitch.core.jobs.job import Job
from iswitch.core.switch import Switch
from iswitch.ports.kernel.lobby import CONTROL
from iswitch.ports.kernel.mmsg import SOCKADDR_SIZE
from iswitch.ports.rings.serving import Ringed
from iswitch.ports.udp import UNREACHABLE, UdpPort

from . import tables as t
from .lanes import SEVERAL, Lane, Layout
from .lending import Way, receivers


class DatagramLane(Lane):
    """Serves plain datagrams at a UDP socket in compiled code.

    Args:
        switch: the switch at the port.
        port: its port.
        kernels: the module of kernels.
        clock: returns monotonic seconds.
        ringed: the port with rings beside it; None: there are none.
    """

    def __init__(
        self,
        switch: Switch,
        port: UdpPort,
        kernels: ModuleType,
        clock: Callable[[], float],
        ringed: Ringed[Any, Any] | None = None,
    ) -> None:
        layout = Layout(name=SOCKADDR_SIZE, control=CONTROL, receiver=SOCKADDR_SIZE)
        descriptor = port.socket.fileno()
        super().__init__(switch, kernels, layout, [descriptor], descriptor, clock)
        self.port = port
        self._out: Any = ringed or port
        self._rings = ringed.rings if ringed else None
        self._known = (-1, -1, -1)

    def has_changed(self) -> bool:
        """Return whether members, or the ways to them, have changed."""
        if self.port.lobby is not None:
            self.port.lobby.tell()
        changes = self._rings.changes if self._rings else 0
        known = self.switch.sources.changes, self.port.sender.version, changes
        changed, self._known = known != self._known, known
        return changed

    def way(self, job: Job) -> Way | None:
        """Say how sums of a job reach their receivers; None: in no plain way."""
        peers = receivers(job)
        if self._rings is not None and not self._rings.lacks(peers):
            return None
        size = job.sums.shape.packet_size
        way = self.port.sender.way(peers, TOS_DATA, size) if peers else None
        if way is None:
            return None
        names = way.names.address + np.arange(len(peers), dtype=np.int64) * SOCKADDR_SIZE
        columns = {
            t.RECEIVERS: len(peers),
            t.COPIES: 1,
            t.NAMES: names.__array_interface__["data"][0],
            t.CONTROL: way.control.address,
            t.CONTROL_SIZE: way.control.size,
            t.AT_MOST: way.at_most,
        }
        return Way(columns, (way, names))

    def others(self) -> list[int]:
        """Return the lobby's descriptor, while the lobby is open."""
        lobby = self.port.lobby
        return [] if lobby is None or lobby.closed_until is not None else [lobby.socket.fileno()]

    def send(self, out: Outgoing, error: int, now: float) -> None:  # noqa: ARG002
        """Send what the kernel did not take."""
        self._out.push([out])

    def note_broken(self, error: int) -> None:
        """Ignore what ICMP says of a peer, and raise all else."""
        if error not in UNREACHABLE:
            raise OSError(error, os.strerror(error))
        self.port.refused |= error == errno.ECONNREFUSED

    def handle(self, socket: int, start: int, stop: int) -> None:  # noqa: ARG002
        """Handle datagrams start..stop-1 of the inbox in the Python way, and learn their flows."""
        inbox, port = self.inbox, self.port
        signatures = inbox.status[start:stop]
        lengths = inbox.lengths[start:stop].tolist()
        try:
            bursts = port.reader.cut(inbox.bodies[start:stop], lengths, signatures)
        except MemoryError:
            port.counters["rx_no_memory"] += stop - start
            return
        now, lacked = self.clock(), False
        for burst in bursts:
            if self._rings is not None:
                self._rings.comes_beside(burst)
            try:
                self._out.push(self.switch.receive(burst, now))
            except MemoryError:  # handle the other packets that have come
                lacked = True
        for signature in {row.tobytes() for row in signatures[:SEVERAL]}:
            self._learn(signature)
        if lacked:
            raise MemoryError

    def _learn(self, signature: bytes) -> None:
        kind = self.port.reader.kind(signature)
        found = self.switch.record.by_source.get(kind.peer)
        if found is not None and classify(kind.tos) is Traffic.DATA:
            self.lending.add_flow(signature, found[1], {t.STEP: kind.segment})
