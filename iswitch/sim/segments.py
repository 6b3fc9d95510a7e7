"""What captures show of streams: frames of TCP, numbered as Linux would number them.

A frame acknowledges all bytes that had come when it was sent. There are no frames that only
acknowledge, since the transport of `streams` needs none.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from iswitch.core.format.packets import Address, Rows
from iswitch.ethernet.frame import (
    ETH_HEADER,
    ETHERTYPE_IP,
    GSO_NONE,
    GSO_TCPV4,
    IP_HEADER,
    NEEDS_CSUM,
    TCP,
    VNET,
    checksum,
    ip_header,
    pseudo_header,
)
from iswitch.ethernet.made_up import ip, mac
from iswitch.ethernet.segmentation import wire_frames

FIN, SYN, RST, PSH, ACK = 0x01, 0x02, 0x04, 0x08, 0x10
STAMPS = 12  # bytes of the option that Linux adds to each frame: time stamps, padded
OFFERS = 8  # and of those that only a SYN has: the largest segment, the window's scale, SACK
HEADER = 20  # of TCP, without options
HEAD = ETH_HEADER + IP_HEADER + HEADER + STAMPS  # of a frame
SCALE = 14  # the most of RFC 7323: the window is 1 GiB, since a sender never waits for memory
MOST = 65535 - IP_HEADER - HEADER - STAMPS - OFFERS  # bytes of an IPv4 packet's payload
NUMBERS = 1 << 32
FIELDS = struct.Struct(">HHIIBBHHH")  # ports, sequence, acknowledgement, size, flags, window


class Ends(NamedTuple):
    """The addresses between which a stream carries bytes."""

    source: Address
    target: Address


class Part(NamedTuple):
    """Bytes of a stream that leave together.

    Attributes:
        ends: from where to where.
        mtu: bytes of the largest IP packet.
        flags: of the last frame; all but those of the message's end are also of the others.
        sequence: the number of the first byte.
        acknowledged: the number of the next byte that is expected from the other side.
        stamp, echo: time stamps in ms: when it leaves, and that of the last frame that came.
        data: the bytes.
    """

    ends: Ends
    mtu: int
    flags: int
    sequence: int
    acknowledged: int
    stamp: int
    echo: int
    data: memoryview

    def frames(self) -> Rows:
        """Make the frames, with finished checksums, (n, bytes of the longest)."""
        step = self.mtu + ETH_HEADER - HEAD
        at_once = MOST // step * step
        cuts = [
            frames
            for at in range(0, max(1, len(self.data)), at_once)
            for frames in wire_frames(self._super_frame(at, at_once, step))
        ]
        table = np.zeros((sum(map(len, cuts)), max(cut.shape[1] for cut in cuts)), np.uint8)
        row = 0
        for cut in cuts:
            table[row : row + len(cut), : cut.shape[1]] = cut
            row += len(cut)
        return table

    def _super_frame(self, at: int, most: int, step: int) -> Rows:
        """Make a super-frame of `most` bytes from `at` on, cut every `step`, with a vnet header."""
        data = self.data[at : at + most]
        is_end = at + most >= len(self.data)
        source, target = ip(self.ends.source), ip(self.ends.target)
        options = self._options()
        length = HEADER + len(options) + len(data)
        pseudo = 0xFFFF - checksum(pseudo_header(source, target, TCP, length))
        transport = FIELDS.pack(
            self.ends.source.port,
            self.ends.target.port,
            (self.sequence + at) % NUMBERS,
            self.acknowledged,
            (HEADER + len(options)) // 4 << 4,
            self.flags if is_end else self.flags & ~(FIN | PSH),
            0xFFFF,
            pseudo,
            0,
        )
        start = ETH_HEADER + IP_HEADER
        gso = (GSO_TCPV4, HEAD, step) if len(data) > step else (GSO_NONE, 0, 0)
        return np.frombuffer(
            VNET.pack(NEEDS_CSUM, *gso, start, 16)
            + mac(self.ends.target)
            + mac(self.ends.source)
            + ETHERTYPE_IP
            + ip_header(source, target, TCP, length)
            + transport
            + options
            + data,
            np.uint8,
        )

    def _options(self) -> bytes:
        stamps = struct.pack(">BBII", 8, 10, self.stamp % NUMBERS, self.echo % NUMBERS)
        if not self.flags & SYN:
            return b"\x01\x01" + stamps
        most = struct.pack(">BBH", 2, 4, self.mtu - IP_HEADER - HEADER)
        return most + b"\x04\x02" + stamps + struct.pack(">BBBB", 1, 3, 3, SCALE)
