"""Forwards traffic that is not for the switch: unchanged, or cut for a port without offload."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from iswitch.core.format.counters import Counters
from iswitch.core.format.memo import Memo

from .bridge import Bridge
from .frame import (
    ETH,
    HEAD,
    IP,
    UDP,
    VLAN_TAG,
    VLAN_TYPES,
    Frames,
    Transmission,
)
from .issuing import Jack
from .segmentation import read_super, wire_frames

TCP_USUAL = struct.pack("<HH", 34, 16)  # csum_start and csum_offset of TCP in IPv4, no options
TCP_OFFSET = UDP + 12  # offset of the length of such a TCP header
TRANSPORT = 128  # bytes after a head that hold the rest of the TCP headers
MEASURES = 4096  # measures of super-frames that are remembered

Sends = list[Transmission]


class Forwarder:
    """Sends ordinary frames on to the ports that the bridge names.

    Args:
        bridge: knows behind which port a station is.
        jacks: the abilities of each port.
        counters: counts the frames.
    """

    def __init__(self, bridge: Bridge, jacks: Sequence[Jack], counters: Counters) -> None:
        self.bridge = bridge
        self.jacks = jacks
        self.counters = counters
        self._measures: Memo[tuple[bytes, bytes, bytes, int], tuple[int, int]] = Memo(MEASURES)

    def __call__(self, group: Frames, destination: bytes, now: float) -> Sends:
        """Send a group of frames to their destination's port, or to all ports.

        Args:
            group: frames from one station to another.
            destination: their destination MAC.
            now: the time, in seconds.
        """
        heads, lengths = group.heads, group.lengths
        counts = [1] * len(lengths)
        largest = [length - IP for length in lengths]  # IP packet
        if any(heads[:, 1].tobytes()):
            sizes = [self.measure(group, i) for i in range(len(lengths))]
            if (0, 0) in sizes:
                return self._forward_sane(
                    group, [size != (0, 0) for size in sizes], destination, now
                )
            counts, largest = map(list, zip(*sizes, strict=True))
        ports = self.bridge.egress(destination, group.ingress, now)
        total = sum(counts)
        if not ports:
            return drop(self.counters, "same_port", total)
        self.counters["rx_frames"] += total
        self.counters["forwarded"] += total
        self.counters["copies"] += total * len(ports)
        return self.spread(ports, group, counts, largest)

    def spread(
        self, ports: tuple[int, ...], group: Frames, counts: list[int], largest: list[int]
    ) -> Sends:
        """Send frames to several ports; count those too large for a port, and drop them there.

        Args:
            ports: the egress ports.
            group: the frames.
            counts: the number of frames on the wire for which each frame stands.
            largest: bytes of the largest IP packet in each frame.
        """
        sends: Sends = []
        for port in ports:
            mtu = self.jacks[port].mtu
            if max(largest) <= mtu:
                sends += self._pass(port, group, counts)
                continue
            for i, size in enumerate(largest):
                tag = VLAN_TAG * (group.heads[i, ETH + 12 : IP].tobytes() in VLAN_TYPES)
                if size - tag <= mtu:
                    sends += self._pass(port, group.part(i, i + 1), counts[i : i + 1])
                else:
                    self.counters["too_large"] += counts[i]
        return sends

    def _forward_sane(
        self, group: Frames, sane: list[bool], destination: bytes, now: float
    ) -> Sends:
        """Forward all but the frames whose virtio_net_hdr makes no sense."""
        drop(self.counters, "bad_frame", sane.count(False))
        sends: Sends = []
        for i, good in enumerate(sane):
            if good:
                sends += self(group.part(i, i + 1), destination, now)
        return sends

    def _pass(self, port: int, group: Frames, counts: list[int]) -> Sends:
        """Send frames unchanged; for a port without offload, cut them and finish checksums."""
        heads, bodies, lengths = group.heads, group.bodies, group.lengths
        if self.jacks[port].offload and lengths[0] >= HEAD:
            rest = [length - HEAD for length in lengths]
            return [Transmission(port, heads, bodies, rest, counts)]
        sends = []
        for i in range(len(lengths)):
            row = np.frombuffer(group.row(i), np.uint8)
            if self.jacks[port].offload:
                sends.append(Transmission(port, None, row.reshape(1, -1), [row.size], [1]))
                continue
            frames = wire_frames(row)
            if not frames:
                self.counters["tx_failed"] += counts[i]
            sends += [Transmission.whole_frames(port, rows) for rows in frames]
        return sends

    def measure(self, group: Frames, i: int) -> tuple[int, int]:
        """Count the frames on the wire of frame `i`, and the bytes of its largest packet.

        The packet is the IP packet in a frame. Both numbers are zero if the virtio_net_hdr makes no
        sense.
        """
        length = group.lengths[i]
        head = group.heads[i].tobytes()
        if not head[1]:
            return 1, length - IP
        top = head + group.bodies[i, :TRANSPORT].tobytes()
        # All that the answer depends on, where the headers are as they nearly always are.
        key = (top[:ETH], top[IP - 2 : IP + 1], top[TCP_OFFSET : TCP_OFFSET + 1], length)
        known = self._measures.get(key)
        if known is not None:
            return known
        found = read_super(top[:length], length)
        if found is None:
            return 0, 0
        measure = found.frames, found.packet(length - ETH - found.header)
        if top[6:ETH] == TCP_USUAL:
            self._measures.keep(key, measure)
        return measure


def drop(counters: Counters, reason: str, frames: int) -> Sends:
    """Count received frames as dropped, in the counter `reason`; return nothing to send."""
    counters["rx_frames"] += frames
    counters[reason] += frames
    return []
