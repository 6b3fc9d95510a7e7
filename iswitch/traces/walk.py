"""Reads a trace: classifies each packet by its role for the switch, and forms groups."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Rows
from iswitch.ethernet import made_up
from iswitch.ethernet.flows import datagrams_sound
from iswitch.ethernet.frame import ETH
from iswitch.ethernet.frame import HEAD as ROW_HEAD

from .batch import IN, OUT, gather
from .groups import CUT_OFF, FROM_SWITCH, PASSING, ROLES, SKIPPED, TO_SWITCH, PacketGroup
from .links import CUT, HEAD, IP, ORDINARY, TAGGED, UDP, LinkLayer, Packets
from .reader import Reader
from .stamps import settled
from .survey import CONTROL_BYTES, TraceSetting

MOST = 1024  # packets of a group: their bytes stay in the processor's caches
MOST_PASSING = 32  # of different lengths
SORTED = 32 << 20  # bytes of a trace that are put in the order of time, where it has no better
# Of a head, in words of 16 bits: not the identification, nor checksums.
SAME = np.array([0xFFFF] * 21, np.uint16)
SAME[[9, 12, 20]] = 0


Words = npt.NDArray[np.uint16]


class Walk:
    """Reads the packets of a trace, and puts them into groups.

    Args:
        reader: the trace.
        setting: where the trace was captured.

    Attributes:
        passed: number of packets by their kind.
        begin: the time of the first packet, in ns since 1970.
        end: the time of the last packet, in ns since 1970.
        first_cut: number of the first packet that the capture cut off.
    """

    def __init__(self, reader: Reader, setting: TraceSetting) -> None:
        self.reader = reader
        self.setting = setting
        self.passed = dict.fromkeys(("packets", *ROLES, "out_of_order", "ahead"), 0)
        self.begin: int | None = None  # ns since 1970
        self.end = 0
        self.first_cut: int | None = None  # packet number
        self._layer = LinkLayer(reader)
        self._address = bytes(map(int, setting.switch[0].split(".")))

    def groups(self) -> Iterator[PacketGroup]:
        """Yield groups of packets to, from and through the switch, in the order of the trace."""
        for packets, what in self.batches():
            yield from self.cut(packets, what, 0, len(what))

    def batches(self) -> Iterator[tuple[Packets, npt.NDArray[np.int64]]]:
        """Yield batches of packets, each with the roles of its packets, [n]."""
        if not self.setting.ordered:
            self.reader.window = max(self.reader.window, SORTED)
        for batch, ahead in settled(self.reader.batches()):
            self.passed["ahead"] += ahead
            packets = self._layer.read(batch)
            early = int(np.count_nonzero(batch.times < np.maximum.accumulate(batch.times)))
            self.passed["out_of_order"] += early
            if early and not self.setting.ordered:
                packets = packets.by_time()
            what = self._kinds(packets)
            self._count(packets, what)
            yield packets, what

    @property
    def ports(self) -> list[str]:
        """Name the ports, as far as they are known."""
        return self._layer.ports

    @property
    def unknown_links(self) -> dict[int, int]:
        """Count packets of unknown link types, by type."""
        return self._layer.unknown

    @staticmethod
    def bounds(packets: Packets, what: npt.NDArray[np.int64], start: int, stop: int) -> list[int]:
        """List the indices where a packet differs from the one before, and the range's ends."""
        words = packets.heads[start:stop].view(np.uint16)
        what, ports = what[start:stop], packets.ports[start:stop]
        differs = ((words[1:] ^ words[:-1]) & SAME).any(axis=1)
        plain = (what[1:] == PASSING) & (what[:-1] == PASSING)
        differs &= ~plain
        differs |= (what[1:] != what[:-1]) | (ports[1:] != ports[:-1])
        return [start, *(start + 1 + np.flatnonzero(differs)).tolist(), stop]

    def cut(
        self, packets: Packets, what: npt.NDArray[np.int64], begin: int, end: int
    ) -> Iterator[PacketGroup]:
        """Put packets of a range into groups, but for skipped and cut-off ones."""
        for start, stop in pairwise(self.bounds(packets, what, begin, end)):
            kind = int(what[start])
            if kind in (TO_SWITCH, FROM_SWITCH, PASSING):
                most = MOST if kind != PASSING else MOST_PASSING
                for at in range(start, stop, most):
                    some = slice(at, min(at + most, stop))
                    yield PacketGroup(packets, some, kind, self.setting.switch[1])

    def _kinds(self, packets: Packets) -> npt.NDArray[np.int64]:
        """Return the role of each packet for the switch, [n]."""
        heads, directions = packets.heads, packets.directions
        words = heads.view(np.uint16)
        ip = int(np.frombuffer(self._address, np.uint32)[0])
        source, target = IP + 12 >> 1, IP + 16 >> 1
        tagged = (packets.kinds == TAGGED) | (packets.kinds == CUT)
        to = tagged & (_pair(words, target) == ip) & self._are_ours(words, UDP + 2, IP + 12, UDP)
        if not self.setting.host:
            to &= directions != OUT
        of = tagged & (_pair(words, source) == ip) & ~to
        of &= self._are_ours(words, UDP, IP + 16, UDP + 2)
        if self.setting.directed and not self.setting.host:
            of &= directions != IN
        what = np.full(len(heads), SKIPPED, np.int64)
        if self.setting.directed and not self.setting.host:
            passing = (packets.kinds == ORDINARY) | (packets.kinds == TAGGED)
            foreign = _pair(words, source) != ip  # what it has sent comes in elsewhere only
            what[passing & foreign & (directions == IN) & ~to & ~of] = PASSING
        what[of & (packets.kinds == TAGGED)] = FROM_SWITCH
        what[to] = TO_SWITCH
        what[(to | of) & (packets.kinds == CUT)] = CUT_OFF
        return what

    def _are_ours(self, words: Words, own: int, host: int, port: int) -> npt.NDArray[np.bool_]:
        """Tell in which packets the switch has the UDP port at `own`, (n,).

        It is the port at which it listens, or, in packets from and to its parent, a line.

        Args:
            words: the heads, (n, bytes / 2) uint16 in network byte order.
            own: offset of that port in bytes.
            host: offset of the other end's IPv4 address.
            port: offset of the other end's port.
        """
        listening, parent = self.setting.switch[1], self.setting.parent
        ports = words[:, own >> 1].byteswap()
        ours: npt.NDArray[np.bool_] = ports == listening
        if parent is not None:
            ip = int(np.frombuffer(made_up.ip(parent), np.uint32)[0])
            is_parent = _pair(words, host >> 1) == ip
            is_parent &= words[:, port >> 1].byteswap() == parent.port
            ours |= is_parent & np.isin(ports, list(self.setting.lines))
        return ours

    def _count(self, packets: Packets, what: npt.NDArray[np.int64]) -> None:
        batch = packets.batch
        counts = np.bincount(what, minlength=len(ROLES)).tolist()
        for name, count in zip(ROLES, counts, strict=True):
            self.passed[name] += count
        self.passed["packets"] += len(what)
        if counts[CUT_OFF] and self.first_cut is None:
            self.first_cut = int(packets.numbers[(what == CUT_OFF).argmax()])
        if self.begin is None:
            self.begin = int(batch.times[0])
        self.end = max(self.end, int(batch.times.max()))

    def payloads(self, group: PacketGroup) -> list[bytes]:
        """Return the payloads of control packets, each cut off at the longest possible size."""
        rows = gather(self.reader.data, group.at, max(min(group.size, CONTROL_BYTES), 1))
        return [row.tobytes() for row in rows]

    def sound(self, group: PacketGroup, payloads: Rows | None = None) -> npt.NDArray[np.bool_]:
        """Tell which datagrams of a group have a right, no, or an unfinished checksum, (n,).

        Datagrams that the capture cut off count as sound.

        Args:
            group: the datagrams.
            payloads: payloads of the datagrams, (n, size) bytes; None: they are read from the file.
        """
        which, at, size = group.which, group.at, max(group.size, 0)
        if payloads is None:
            payloads = gather(self.reader.data, at, size)
        heads = np.zeros((len(at), ROW_HEAD), np.uint8)
        heads[:, ETH:] = group.packets.heads[which]
        batch = group.packets.batch
        cut_off = batch.at[which] + batch.sizes[which] < at + size
        sound: npt.NDArray[np.bool_] = (
            datagrams_sound(heads, payloads) | self.unfinished(heads[:, ETH:]) | cut_off
        )
        return sound

    @staticmethod
    def unfinished(heads: Rows) -> npt.NDArray[np.bool_]:
        """Tell which checksums cover only the pseudo-header, (n,): the sending card finishes them.

        One finished checksum in 65535 looks unfinished by chance, and is then not checked.
        """
        words = np.ascontiguousarray(heads[:, IP + 12 : HEAD]).view(">u2").astype(np.int32)
        said = words[:, 7]
        total = words[:, 0] + words[:, 1] + words[:, 2] + words[:, 3] + words[:, 6] + 17
        unfinished: npt.NDArray[np.bool_] = (said != 0) & ((total - said) % 0xFFFF == 0)
        return unfinished


def _pair(words: Words, at: int) -> npt.NDArray[np.uint32]:
    """Read two words of each head as one of 32 bits."""
    return words[:, at] | words[:, at + 1].astype(np.uint32) << np.uint32(16)
