"""Opens a trace: maps the file into memory, and reads pcap and pcapng.

Only a window of the file is in use at a time, and given back when it has been read, so that the
memory taken does not grow with the file.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Self

import numpy as np

from iswitch.outside import OutsideError

from . import blocks, pcap
from .batch import Bytes, Interface, PacketBatch, Problems

WINDOW = 24 << 20  # bytes read at a time
POPULATE_READ = 22  # MADV_POPULATE_READ (linux/mman.h, 5.14): one call instead of many page faults
CONVERT = "convert it with `editcap -F pcapng FILE OUT.pcapng`, of Wireshark"
FOREIGN = {  # how other formats begin
    b"\xa1\xb2\xcd\x34": "a modified pcap (of a patched libpcap)",
    b"\x34\xcd\xb2\xa1": "a modified pcap (of a patched libpcap)",
    b"snoop\0\0\0": "a snoop capture",
    b"btsnoop\0": "a btsnoop capture",
    b"RTSS": "a Microsoft NetMon 1 capture",
    b"GMBU": "a Microsoft NetMon 2 capture",
    b"XCP\0": "a NetXray or Sniffer for Windows capture",
    b"TRSNIFF data": "a Sniffer for DOS capture",
    b"\x05VNF": "a Visual Networks capture",
    b"\xaa\xaa\xaa\xaa": "a 5View capture",
}
PACKED = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"\xfd7zXZ": ("xz", "unxz"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\x04\x22\x4d\x18": ("lz4", "unlz4"),
}
ODD_RECORDS = {20: "Nokia's", 24: "a patched libpcap's (ss990417)"}  # by bytes of a record's header


class NotATrace(ValueError):
    """A file is not a readable trace; the message names a program that converts it."""


class Reader:
    """A trace in a file.

    Args:
        path: the file.
        window: bytes of it that are read at a time.

    Attributes:
        data: the bytes of the file.
        problems: descriptions of the defects found so far.

    Raises:
        NotATrace: the file is neither pcap nor pcapng, or no regular file.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], window: int = WINDOW) -> None:
        self.path = os.fspath(path)
        self.window = window
        self._map = _map(self.path)
        self.data: Bytes = np.frombuffer(self._map, np.uint8)
        begin = self.data[:16].tobytes()
        self.format = kind_of(begin, self.path)
        if self.format == "pcap":
            check_pcap(self.data, self.path)
        self.problems = Problems()
        self._records = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the file, unless views of it are left; these keep it mapped."""
        self.data = np.empty(0, np.uint8)
        del self._records
        with suppress(BufferError):  # a view is left; the map goes with it
            self._map.close()

    def __len__(self) -> int:
        """Return the size of the file in bytes."""
        return len(self.data)

    @property
    def interfaces(self) -> list[Interface]:
        """Return the interfaces read so far."""
        return self._records.interfaces

    @property
    def application(self) -> str:
        """Name the program that wrote the file, if known."""
        return self._records.application

    @property
    def dropped(self) -> int:
        """Return the number of packets that the capture dropped, as far as the file was read."""
        return self._records.dropped

    def batches(self) -> Iterator[PacketBatch]:
        """Read all packets from the first on; `interfaces` and `problems` begin anew."""
        self.problems = Problems()
        self._records = self._open()
        passed = 0
        fetched = self._fetch(0, self.window)
        self.check_whole()
        for batch in self._records.batches(self.window):
            yield batch
            self.check_whole()
            at = self._records.at // mmap.PAGESIZE * mmap.PAGESIZE
            if at > passed:
                self._map.madvise(mmap.MADV_DONTNEED, passed, at - passed)
                passed = at
            if at + self.window > fetched:
                fetched = self._fetch(max(at, fetched), at + self.window)

    def check_whole(self) -> None:
        """Check that the file has not become shorter, since reading lost bytes kills this process.

        Raises:
            OutsideError: the file became shorter.
        """
        if self._map.size() < len(self._map):
            raise OutsideError(
                f"{self.path} became shorter while it was read; start again when nothing writes it"
            )

    def _open(self) -> pcap.PcapRecords | blocks.PcapngBlocks:
        if self.format == "pcap":
            return pcap.PcapRecords(self.data, self.problems)
        return blocks.PcapngBlocks(self.data, self.problems)

    def _fetch(self, start: int, stop: int) -> int:
        """Read and map the pages of start..stop-1 in one call, before they are used."""
        size = min(stop, len(self._map)) - start
        if size > 0:
            with suppress(OSError):  # an older kernel maps them page by page on use
                self._map.madvise(POPULATE_READ, start, size)
        return stop


def kind_of(begin: bytes, path: str) -> str:
    """Tell from the first bytes of a file whether it is `pcap` or `pcapng`.

    Raises:
        NotATrace: the file is neither.
    """
    if begin[:4] == blocks.MAGIC:
        if begin[8:12] not in blocks.ORDERS:
            raise NotATrace(
                f"{path} begins as pcapng does, and then names no byte order: it is broken"
            )
        return "pcapng"
    if begin[:4] in pcap.MAGICS:
        return "pcap"
    for magic, (name, tool) in PACKED.items():
        if begin.startswith(magic):
            raise NotATrace(f"{path} is packed with {name}; unpack it first: {tool} {path}")
    for magic, name in FOREIGN.items():
        if begin.startswith(magic):
            raise NotATrace(f"{path} is {name}, not pcap or pcapng; {CONVERT}")
    raise NotATrace(
        f"{path} is neither pcap nor pcapng (it begins with {begin[:4].hex(' ') or 'nothing'}); "
        f"{CONVERT}"
    )


def check_pcap(data: Bytes, path: str) -> None:
    """Refuse pcap files whose records have longer headers than their magic number says.

    Raises:
        NotATrace: the file is one of these.
    """
    if len(data) < pcap.HEADER:
        raise NotATrace(f"{path} ends inside the header of a pcap file: it holds no packets")
    order, tick = pcap.MAGICS[data[:4].tobytes()]

    def leads_on(header: int) -> bool:
        at, seen = pcap.HEADER, 0
        while at + header <= len(data) and seen < 3:
            part, size, whole = struct.unpack_from(f"{order}4xIII", data.data, at)
            if part >= 1_000_000_000 // tick or not 0 < size <= min(pcap.MOST, whole):
                return False
            at, seen = at + header + size, seen + 1
        return at <= len(data) and (seen == 3 or at == len(data))

    if leads_on(pcap.RECORD):
        return
    for header, whose in ODD_RECORDS.items():
        if leads_on(header):
            raise NotATrace(f"{path} has records of {whose} kind of pcap; {CONVERT}")


def _map(path: str) -> mmap.mmap:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise NotATrace(f"{path} is no file that could be mapped; write it to a file first")
        if not status.st_size:
            raise NotATrace(f"{path} is empty")
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
