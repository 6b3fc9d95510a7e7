"""Reads blocks of a pcapng file (draft-ietf-opsawg-pcapng): sections, interfaces, packets.

A section has its own byte order and its own interfaces, each with a resolution of its times. Other
kinds of blocks are skipped.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Rows

from .batch import UNKNOWN, Bytes, Interface, Ints, PacketBatch, Problems, gather
from .chain import Chain, search_windows

Mask = npt.NDArray[np.bool_]

SECTION, INTERFACE, OLD_PACKET, SIMPLE_PACKET, STATISTICS, PACKET = 0x0A0D0D0A, 1, 2, 3, 5, 6
MAGIC = b"\x0a\x0d\x0d\x0a"
ORDERS = {b"\x1a\x2b\x3c\x4d": ">", b"\x4d\x3c\x2b\x1a": "<"}
MOST = 1 << 24  # bytes of a block, as Wireshark has it
LEAST = {
    SECTION: 28,
    INTERFACE: 20,
    PACKET: 32,
    OLD_PACKET: 32,
    SIMPLE_PACKET: 16,
    STATISTICS: 24,
}
DATA = 28  # where the packet is in a block that holds one
CANDIDATES = 4096
MOST_OPTIONS = 32  # of a packet, that are looked through for its flags
MOST_INTERFACES = 1 << 16  # of a file that are kept; a capture has one for each port
MOST_NAME = 256  # bytes of a name that are kept
MICROSECONDS = 6  # resolution, where an interface does not name any
MOST_SECONDS = 1 << 32  # that an interface can have added to its times
FLAGS = 2  # the option epb_flags, pack_flags in old ones
NAME, RESOLUTION, OFFSET = 2, 9, 14  # options of an interface
APPLICATION = 4  # option of a section
DROPPED = (5, 7)  # options of statistics: by what captures, and by its operating system


def nanoseconds(ticks: npt.NDArray[np.uint64], resolution: int) -> Ints:
    """Convert ticks to nanoseconds; impossible ticks give arbitrary times, but no error.

    Args:
        ticks: times, as an interface counts them.
        resolution: the byte of its option: n for 10**n ticks a second, 128 + n for 2**n.
    """
    n = resolution & 0x7F
    if resolution & 0x80:
        whole = ticks >> np.uint64(n) if n < 64 else ticks * np.uint64(0)
        part = ticks & np.uint64((1 << min(n, 64)) - 1)
        if n > 30:
            part, n = part >> np.uint64(min(n - 30, 63)), 30
        rest = (part * np.uint64(1_000_000_000)) >> np.uint64(n)
        times = whole * np.uint64(1_000_000_000) + rest
    elif n <= 9:
        times = ticks * np.uint64(10 ** (9 - n))
    else:
        times = ticks // np.uint64(10 ** min(n - 9, 19))
    return times.astype(np.int64)


class Section(NamedTuple):
    """The state of a section when a group of its packets is read."""

    big_endian: bool
    first: int  # of its interfaces, among all
    known: int  # interfaces that it has so far


class PcapngBlocks:
    """Finds packets, window by window.

    Args:
        data: the file, which begins with a section.
        problems: notes the defects of the file.
    """

    def __init__(self, data: Bytes, problems: Problems) -> None:
        self.data = data
        self._bytes = data.data
        self.problems = problems
        self.at = 0
        self.order = "<"
        self.interfaces: list[Interface] = []
        self.application = ""  # that wrote the first section
        self._dropped: dict[int, int] = {}  # by interface
        self._sections = 0
        self._first = 0  # of the section's interfaces, among all
        self._resolutions = array("B")  # by interface, as the next two
        self._offsets = array("q")  # nanoseconds that are added to times
        self._snaps = array("q")
        self._chain = Chain(data, self._packet_length, 0)
        self._number = 1
        self._last_time = 0

    def batches(self, window: int) -> Iterator[PacketBatch]:
        """Yield all packets, in batches of those that begin in the next `window` bytes."""
        end = len(self.data)
        while self.at < end:
            limit = min(self.at + window, end)
            pieces: list[Ints] = []
            sections: list[Section] = []  # of each piece
            while self.at < limit:
                starts, self.at = self._chain.follow(self.at, limit)
                if len(starts):
                    known = len(self.interfaces) - self._first
                    pieces.append(starts)
                    sections.append(Section(self.order == ">", self._first, known))
                if self.at < limit:
                    self.at = self._other(self.at)
            if pieces:
                yield self._batch(pieces, sections)

    @property
    def dropped(self) -> int:
        """Return the number of packets that the capture dropped, as the file says."""
        return sum(self._dropped.values())

    # Blocks

    def _head(self, at: int) -> tuple[int, int] | None:
        """Return type and length of the block at offset `at`; None: the block is damaged."""
        if at + 12 > len(self.data):
            return None
        kind, length = struct.unpack_from(f"{self.order}II", self._bytes, at)
        if kind == SECTION:
            order = ORDERS.get(self.data[at + 8 : at + 12].tobytes())
            if order is None:
                return None
            (length,) = struct.unpack_from(f"{order}I", self._bytes, at + 4)
        if not LEAST.get(kind, 12) <= length <= MOST or length & 3 or at + length > len(self.data):
            return None
        end = at + length - 4
        if self.data[end : end + 4].tobytes() != self.data[at + 4 : at + 8].tobytes():
            return None
        return kind, length

    def _packet_length(self, at: int) -> int | None:
        head = self._head(at)
        if head is None or head[0] not in (PACKET, OLD_PACKET, SIMPLE_PACKET):
            return None
        return head[1]

    def _other(self, at: int) -> int:
        """Handle a block that is no packet, or report a defect; return where to continue."""
        head = self._head(at)
        if head is None:
            return self._mend(at)
        kind, length = head
        if kind == SECTION:
            self._begin(at, length)
        elif kind == INTERFACE:
            self._add_interface(at, length)
        elif kind == STATISTICS:
            self._count_dropped(at, length)
        return at + length

    def _begin(self, at: int, length: int) -> None:
        self.order = ORDERS[self.data[at + 8 : at + 12].tobytes()]
        self._first = len(self.interfaces)
        options = self._options(at + 24, at + length - 4)
        if not self._sections:
            self.application = _text(options.get(APPLICATION, b""))
        self._sections += 1

    def _add_interface(self, at: int, length: int) -> None:
        if len(self.interfaces) == MOST_INTERFACES:
            self.problems.note(
                at, f"an interface beyond the {MOST_INTERFACES:,} that are kept of a file"
            )
            return
        link, _, snap = struct.unpack_from(f"{self.order}HHI", self._bytes, at + 8)
        options = self._options(at + 16, at + length - 4)
        seconds = 0
        if len(offset := options.get(OFFSET, b"")) == 8:
            (seconds,) = struct.unpack(f"{self.order}q", offset)
        self.interfaces.append(Interface(link, _text(options.get(NAME, b"")[:MOST_NAME])))
        self._resolutions.append((options.get(RESOLUTION) or bytes([MICROSECONDS]))[0])
        self._offsets.append(max(-MOST_SECONDS, min(seconds, MOST_SECONDS)) * 1_000_000_000)
        self._snaps.append(snap or MOST)

    def _count_dropped(self, at: int, length: int) -> None:
        """Note the packets that an interface has dropped; each count includes the earlier ones."""
        (number,) = struct.unpack_from(f"{self.order}I", self._bytes, at + 8)
        if self._first + number >= len(self.interfaces):
            return  # there is none of that number: the file is damaged
        options = self._options(at + 20, at + length - 4)
        counts = (options.get(code, b"") for code in DROPPED)
        self._dropped[self._first + number] = sum(
            struct.unpack(f"{self.order}Q", count)[0] for count in counts if len(count) == 8
        )

    def _options(self, at: int, end: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        while at + 4 <= end:
            code, length = struct.unpack_from(f"{self.order}HH", self._bytes, at)
            if not code or at + 4 + length > end:
                break
            found.setdefault(code, self.data[at + 4 : at + 4 + length].tobytes())
            at += 4 + (length + 3 & ~3)
        return found

    # Packets

    def _batch(self, pieces: list[Ints], sections: list[Section]) -> PacketBatch:
        starts = np.concatenate(pieces)
        lengths_of = [len(piece) for piece in pieces]
        big, first, known = np.repeat(np.array(sections, np.int64), lengths_of, axis=0).T
        head = gather(self.data, starts, DATA)
        words = _numbers(head, big, 4)
        kinds, totals = words[:, 0], words[:, 1]
        interfaces = words[:, 2].copy()
        old, simple = kinds == OLD_PACKET, kinds == SIMPLE_PACKET
        if old.any():
            interfaces[old] = _numbers(head[old], big[old], 2)[:, 4]
        sizes, lengths, data = words[:, 5].copy(), words[:, 6].copy(), starts + DATA
        ticks = words[:, 3].astype(np.uint64) << np.uint64(32) | words[:, 4].astype(np.uint64)
        room = totals - (DATA + 4)
        if simple.any():
            interfaces[simple] = 0
            snaps = np.append(np.array(self._snaps), 0)  # 0: of a section without interfaces
            snap = snaps[np.where(known > 0, first, len(snaps) - 1)]
            lengths[simple] = words[simple, 2]
            room[simple] = totals[simple] - 16
            sizes[simple] = np.minimum(np.minimum(lengths, room), snap)[simple]
            data[simple] = starts[simple] + 12
        sound = interfaces < known
        for at, of in zip(starts[~sound].tolist(), known[~sound].tolist(), strict=True):
            self.problems.note(at, f"a packet of an interface that the section lacks ({of})")
        fits = sizes <= room
        for at in starts[sound & ~fits].tolist():
            self.problems.note(at, "a packet longer than its block")
        interfaces = np.where(sound, interfaces + first, np.where(known > 0, first, -1))
        times = self._times(interfaces, ticks, simple, sound)
        flags = self._directions(starts, data, sizes, totals, big, simple | ~fits)
        # Numbers count all packets: those that are not sound keep their places, without bytes.
        broken = ~(sound & fits)
        sizes[broken] = lengths[broken] = 0
        interfaces[broken] = np.where(known > 0, first, -1)[broken]
        number, self._number = self._number, self._number + len(starts)
        return PacketBatch(
            number, data, sizes, np.maximum(sizes, lengths), times, interfaces, flags
        )

    def _times(
        self, interfaces: Ints, ticks: npt.NDArray[np.uint64], simple: Mask, sound: Mask
    ) -> Ints:
        times = np.zeros(len(ticks), np.int64)
        if sound.any():
            resolutions = np.array(self._resolutions)[interfaces]
            for resolution in np.unique(resolutions[sound]).tolist():  # 256 at most
                which = sound & (resolutions == resolution)
                offsets = np.array(self._offsets)[interfaces[which]]
                times[which] = nanoseconds(ticks[which], resolution) + offsets
        if simple.any():  # they have no time: that of the one before
            known = np.maximum.accumulate(np.where(simple, -1, np.arange(len(times))))
            times = np.where(known < 0, self._last_time, times[known])
        self._last_time = int(times[-1])
        return times

    def _directions(
        self, starts: Ints, data: Ints, sizes: Ints, totals: Ints, big: Ints, without: Mask
    ) -> npt.NDArray[np.uint8]:
        """Read the directions in the packets' flags."""
        found = np.full(len(starts), UNKNOWN, np.uint8)
        at = data + (sizes + 3 & ~3)
        ends = starts + totals - 4
        open_ = np.flatnonzero(~without & (at + 8 <= ends))
        for _ in range(MOST_OPTIONS):
            if not len(open_):
                break
            option = gather(self.data, at[open_], 8)
            codes = _numbers(option, big[open_], 2)[:, :2]
            is_flags = (codes[:, 0] == FLAGS) & (codes[:, 1] == 4)
            values = _numbers(option, big[open_], 4)[:, 1]
            found[open_[is_flags]] = values[is_flags] & 3
            at[open_] += 4 + (codes[:, 1] + 3 & ~3)
            more = ~is_flags & (codes[:, 0] != 0) & (at[open_] + 8 <= ends[open_])
            open_ = open_[more]
        found[found == 3] = UNKNOWN
        return found

    # Broken files

    def _mend(self, at: int) -> int:
        found = self._search(at + 1)
        if found is not None:
            self.problems.note(
                at, f"no block is here; went on with the one at {found}, {found - at} bytes on"
            )
            return found
        left = len(self.data) - at
        self.problems.note(at, f"the file ends {left:,} bytes into a block, or is broken from here")
        return len(self.data)

    def _search(self, start: int) -> int | None:
        """Find the next place of a packet, an interface or a section."""
        end = len(self.data) - 12
        for at, n in search_windows(start, end + 1):
            kinds = np.ndarray((n,), f"{self.order}u4", self.data, at, (1,))
            lengths = np.ndarray((n,), f"{self.order}u4", self.data, at + 4, (1,))
            sound = np.isin(kinds, (PACKET, OLD_PACKET, SIMPLE_PACKET, INTERFACE))
            sound &= (lengths <= MOST) & (lengths & 3 == 0)
            sound |= kinds == SECTION
            for place in np.flatnonzero(sound)[:CANDIDATES].tolist():
                if self._head(at + place) is not None:
                    return at + int(place)
        return None


def _numbers(rows: Rows, big_endian: Ints, size: int) -> Ints:
    """Read all numbers of `size` bytes in each row, in the byte order of its section."""
    found: Ints = rows.view(f"<u{size}").astype(np.int64)
    if big_endian.any():
        which = big_endian != 0
        found[which] = rows.view(f">u{size}")[which]
    return found


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace").rstrip("\0")
