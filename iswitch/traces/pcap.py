"""Reads the records of a pcap file (draft-ietf-opsawg-pcap): a header of 16 bytes, and a packet."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from .batch import UNKNOWN, Bytes, Interface, Ints, PacketBatch, Problems, gather
from .chain import Chain, search_windows

HEADER, RECORD = 24, 16
MOST = 262_144  # bytes of a packet: libpcap's own limit; a larger snapshot length raises it
CANDIDATES = 4096  # looked at one by one in each
FOLLOWERS = 3  # sound records that must come after a place, where the file is broken before it
DAY = 86_400  # seconds that records may lie apart where the file is broken between them
MAGICS = {  # and nanoseconds of a tick
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\x3c\x4d": (">", 1),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
}


class PcapRecords:
    """Finds the records of a file, window by window.

    Args:
        data: the file, which begins with one of MAGICS.
        problems: notes the defects of the file.
    """

    def __init__(self, data: Bytes, problems: Problems) -> None:
        self.data = data
        self._bytes = data.data
        self.problems = problems
        self.order, self.tick = MAGICS[data[:4].tobytes()]
        self.at = HEADER
        snap, link = struct.unpack_from(f"{self.order}II", self._bytes, 16)
        self.interfaces = [Interface(link & 0x0FFFFFFF)]
        self.application = ""
        self.dropped = 0  # the format cannot say
        self._most = max(MOST, snap) if snap < 1 << 27 else MOST
        self._record = struct.Struct(f"{self.order}IIII")
        self._chain = Chain(data, self._length, 8)
        self._number = 1
        self._second: int | None = None  # of the last sound record

    def batches(self, window: int) -> Iterator[PacketBatch]:
        """Yield all packets, in batches of those that begin in the next `window` bytes."""
        end = len(self.data)
        while self.at < end:
            limit = min(self.at + window, end)
            starts, at = self._chain.follow(self.at, limit)
            if len(starts):
                yield self._batch(starts)
            self.at = at
            if at < limit:
                self.at = self._mend(at)

    def _length(self, at: int) -> int | None:
        if at + RECORD > len(self.data):
            return None
        _, _, size, _ = self._record.unpack_from(self._bytes, at)
        if size > self._most or at + RECORD + size > len(self.data):
            return None
        return RECORD + int(size)

    def _batch(self, starts: Ints) -> PacketBatch:
        words = gather(self.data, starts, RECORD).view(f"{self.order}u4").astype(np.int64)
        seconds, ticks, sizes, lengths = words.T
        number, self._number = self._number, self._number + len(starts)
        self._second = int(seconds[-1])
        zeros = np.zeros(len(starts), np.int64)
        return PacketBatch(
            number,
            starts + RECORD,
            sizes,
            np.maximum(sizes, lengths),
            seconds * 1_000_000_000 + ticks * self.tick,
            zeros,
            np.full(len(starts), UNKNOWN, np.uint8),
        )

    # Broken files

    def _mend(self, at: int) -> int:
        """Report the defect at `at`; return where to continue."""
        left = len(self.data) - at
        found = next(self._search(at + 1), None)
        if found is not None:
            self.problems.note(
                at, f"no record is here; went on with the one at {found}, {found - at} bytes on"
            )
            return found
        if left < RECORD:
            self.problems.note(at, f"the file ends {left} bytes into the header of a record")
        else:
            size = self._record.unpack_from(self._bytes, at)[2]
            there = left - RECORD
            self.problems.note(
                at, f"the file ends {there:,} bytes into a packet that should have {size:,}"
            )
        return len(self.data)

    def _search(self, start: int) -> Iterator[int]:
        """Yield offsets from `start` on where a record, followed by others, seems to be."""
        end = len(self.data) - RECORD
        for at, n in search_windows(start, end + 1):
            words = [
                np.ndarray((n,), f"{self.order}u4", self.data, at + 4 * i, (1,)) for i in range(4)
            ]
            sound = (words[1] < 1_000_000_000 // self.tick) & (words[2] <= self._most)
            sound &= (words[3] >= words[2]) & (words[3] <= self._most) & (words[2] > 0)
            if self._second is not None:
                apart = words[0].astype(np.int64) - self._second
                sound &= np.abs(apart) <= DAY
            for place in np.flatnonzero(sound)[:CANDIDATES].tolist():
                if self._leads_on(at + place):
                    yield at + place

    def _leads_on(self, at: int) -> bool:
        """Return whether a record is followed by others, or by the end of the file."""
        second = int(self._record.unpack_from(self._bytes, at)[0])
        for _ in range(FOLLOWERS):
            length = self._length(at)
            if length is None:
                return False
            at += length
            if at == len(self.data):
                return True
            if at + RECORD > len(self.data):
                return False
            its, tick, size, whole = self._record.unpack_from(self._bytes, at)
            if abs(its - second) > DAY or tick >= 1_000_000_000 // self.tick or whole < size:
                return False
        return True
