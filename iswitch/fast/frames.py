"""The kernel at the ports of a switch: frames with their virtio_net_hdr."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from iswitch.core.format.memo import Memo
from iswitch.core.format.packets import Address, Outgoing, super_packets
from iswitch.core.format.wire import SEG_SIZE
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.flows import KnownFlow
from iswitch.ethernet.frame import ETH, ETH_HEADER, HEAD, HEADERS, UDP, Frames, Route
from iswitch.ethernet.sorting import DATAGRAM, fixed, is_whole
from iswitch.ports.frames import SOCKADDR_LL
from iswitch.ports.interface import WITHOUT_VLAN, tag
from iswitch.ports.kernel.mmsg import Block, address_of
from iswitch.ports.kernel.replication import WORTH
from iswitch.ports.raw import CONTROL, RawPorts
from iswitch.ports.rings.serving import Ringed

from . import tables as t
from .lanes import SEVERAL, Lane, Layout
from .lent import Way
from .tables import Form

NO_FLOWS: Memo[tuple[int, bytes], KnownFlow | None] = Memo(1)


class Known(NamedTuple):
    """Versions of what flows and ways depend on: if one changes, these are lent anew."""

    flows: object
    changes: int  # of the members' addresses
    neighbours: int
    replicator: int
    rings: int


class FrameLane(Lane):
    """Serves plain frames at all ports of a switch in compiled code.

    Args:
        chassis: the switch with its ports' abilities.
        ports: its ports.
        kernels: the module of kernels.
        clock: returns monotonic seconds.
        ringed: the ports with rings beside them; None: there are none.
    """

    send_flags = socket.MSG_DONTWAIT

    def __init__(
        self,
        chassis: Chassis,
        ports: RawPorts,
        kernels: ModuleType,
        clock: Callable[[], float],
        ringed: Ringed[Any, Any] | None = None,
    ) -> None:
        layout = Layout(head=HEAD, control=CONTROL, receiver=SOCKADDR_LL.size)
        descriptors = [port.socket.fileno() for port in ports.ports]
        super().__init__(chassis.switch, kernels, layout, descriptors, clock, ringed)
        self.chassis = chassis
        self.ports = ports
        self.machine, self.out = chassis, ringed or ports
        self._known = Known(NO_FLOWS, -1, -1, -1, -1)
        self.tables.mask[:] = 0
        self.tables.mask.view(np.uint32)[: len(DATAGRAM)] = DATAGRAM

    def has_changed(self) -> bool:
        """Return whether members, their MACs, or the ways to them, have changed."""
        replicator = self.ports.replicator
        known = Known(
            self.chassis.flows(),
            self.switch.sources.changes,
            self.chassis.issuer.version,
            -1 if replicator is None else replicator.version,
            self.rings.changes,
        )
        changed = known[1:] != self._known[1:] or known.flows is not self._known.flows
        self._known = known
        return changed

    def others(self) -> list[int]:
        """Return no descriptor: the kernel reads all."""
        return []

    # The way to the members

    def way(self, form: Form, peers: tuple[Address, ...]) -> Way | None:
        """Say how packets of a form reach receivers without rings; None: in no plain way."""
        size = form.size
        jacks = {self.chassis.jacks[peer.ingress] for peer in peers}
        if len({(jack.offload, jack.most) for jack in jacks}) != 1:
            return None
        routes = [self.chassis.issuer.route(peer, form.tos) for peer in peers]
        if size + HEADERS - ETH_HEADER > min(jack.mtu for jack in jacks) or None in routes:
            return None
        jack = jacks.pop()
        at_most = min(super_packets(size, jack.most), form.most) if jack.offload else 1
        fan = self._fan(form, peers) if jack.offload else None
        given = [route for route in routes if route is not None][: 1 if fan else None]
        heads = heads_of(given, size, form.last, at_most)
        names = np.array([self.ports.names[peer.ingress].address for peer in peers], np.int64)
        kept: list[object] = [heads, names, fan]
        columns = {
            t.THROUGH: self.ports.out.fileno(),
            t.RECEIVERS: len(given),
            t.COPIES: len(peers) // len(given),
            t.NAMES: address_of(names),
            t.HEADS: address_of(heads),
            t.AT_MOST: at_most,
            t.CONTROL: fan.address if fan else 0,
            t.CONTROL_SIZE: fan.size if fan else 0,
        }
        if not jack.offload:
            heads[:, :, :, :ETH] = 0
            words = heads[:, :, 1, UDP:HEAD].copy().view("<u2").astype(np.int64)
            totals = np.ascontiguousarray(words.sum(axis=2))
            kept.append(totals)
            columns |= {t.SEPARATE: 1, t.SUMS: address_of(totals)}
        return Way(columns, kept)

    def _fan(self, form: Form, peers: tuple[Address, ...]) -> Block | None:
        """Return the control message with which one frame reaches all members; None: there is none.

        Sums of a job recur, so it is worth a program at once.
        """
        replicator = self.ports.replicator
        if replicator is None or len(peers) < 2:
            return None
        rows = np.zeros((1, form.size), np.uint8)
        copies = self.chassis.issuer.copies(Outgoing(peers, form.tos, rows, form.size))
        fan = None
        for _ in range(WORTH):
            fan = fan or replicator.fan(copies)
        return fan

    # What a call has done

    def settle(self) -> list[tuple[Address, float]]:
        """Take up what the kernel has done; return who was heard, and when, in seconds."""
        counts, counters = self.tables.counts, self.switch.counters
        counters["rx_frames"] += int(counts[t.PACKETS])
        counters["tx_frames"] += int(counts[t.TX_FRAMES])
        heard = super().settle()
        for address, when in heard:
            mac = self.chassis.issuer.mac_of(address.host, address.ingress)
            if mac is not None and not self.rings.serve((address,)):
                self.chassis.bridge.learn(mac, address.ingress, when)
        return heard

    def send(self, out: Outgoing, error: int, now: float) -> None:
        """Send what the kernel did not take."""
        if error != errno.ENOBUFS or self.ports.replicator is None or len(out.peers) < 2:
            self.out.push([self.chassis.issuer.issue([out], now)])
            return
        copies = self.chassis.issuer.copies(out)
        self.ports.push([self.ports.account(copies, [(0, error)])])

    def note_broken(self, error: int) -> None:
        """Count a frame that no virtio_net_hdr can describe; else an interface is down."""
        if error == errno.EINVAL:
            self.switch.counters["rx_frames"] += 1
            self.switch.counters["bad_frame"] += 1

    def handle(self, socket: int, start: int, stop: int) -> None:
        """Handle frames start..stop-1 of the inbox in the Python way, and learn their flows."""
        inbox = self.inbox
        lengths = inbox.lengths[start:stop].tolist()
        frames = Frames(socket, inbox.keys[start:stop, :HEAD], inbox.bodies[start:stop], lengths)
        if inbox.status[start:stop, t.VLAN_AT].tobytes().translate(None, WITHOUT_VLAN):
            frames = tag(frames, inbox.status[start:stop])
        self.out.push(self.chassis.receive(frames, self.clock()))
        for head in {row.tobytes() for row in inbox.keys[start:stop][:SEVERAL]}:
            self._learn(socket, head)

    def _learn(self, ingress: int, head: bytes) -> None:
        known = self.chassis.flows().get((ingress, fixed(head[:HEAD])))
        if known is None or known.flow.spoofed:
            return
        single = known.packets == 1 and known.tail >= SEG_SIZE
        is_whole_one = single and (known.is_unchecked or is_whole(known.found, known.least))
        if not (known.is_plain or is_whole_one):
            return
        if self.chassis.issuer.mac_of(*_where(known)) == known.flow.mac:
            columns = {
                t.FROM_SOCKET: ingress,
                t.STEP: known.step,
                t.FLOW_PACKETS: known.packets,
                t.FLOW_TAIL: known.tail,
                t.LEAST: known.least,
                t.UNCHECKED: known.is_unchecked,
            }
            key = np.frombuffer(head, np.int64) & self.tables.mask
            self.learn(key.tobytes(), known.flow.peer, known.flow.tos, columns)


def _where(known: KnownFlow) -> tuple[str, int]:
    return known.flow.peer.host, known.flow.peer.ingress


def heads_of(routes: Sequence[Route], size: int, last: int, at_most: int) -> np.ndarray:
    """Make heads of super-frames: (receivers, 2, packets from 0 to `at_most`, HEAD_ROOM) bytes.

    Args:
        routes: one for each receiver.
        size: bytes of a packet.
        last: bytes of the vector's last packet.
        at_most: packets in a super-frame.
    """
    heads = np.zeros((len(routes), 2, at_most + 1, t.HEAD_ROOM), np.uint8)
    for i, route in enumerate(routes):
        for kind, tail in enumerate((size, last)):
            for packets in range(1, at_most + 1):
                heads[i, kind, packets, :HEAD] = route.head((packets - 1) * size + tail, size)
    return heads
