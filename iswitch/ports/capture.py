"""Writes the frames at the ports of a switch to a pcapng file, from a thread of its own.

The switch only hands the bytes over. The bytes that wait to be written are bounded: frames beyond
the bound are missing in the file, and counted (`capture_full`); the file also tells their number.
When the disk is full, the file ends with a whole block. Super-frames are written as the frames that
they stand for on the wire, with finished checksums.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address, Rows, super_datagrams
from iswitch.core.format.pcapng import OWN, Direction, interface, packets, section, statistics
from iswitch.ethernet.frame import ETH, Frames, Transmission
from iswitch.ethernet.made_up import route
from iswitch.ethernet.segmentation import MOST_HEADERS, read_super, wire_frames

ROOM = 256 << 20  # bytes that may wait to be written
CHUNK = 8 << 10  # bytes written at once, at least; removing a chunk frees a page of the disk
SWITCH_INTERVAL = 0.0005  # seconds after which the writing thread must let the switch run


T = TypeVar("T")
Packets = tuple[Rows, int]  # and the size of the last
Made = tuple[bytes, int]  # blocks, and the number of frames in them
Cut = Callable[[int, int, Direction, bytes], Made | None]  # of a `_Record`


class _Record(NamedTuple):
    number: int
    time_ns: int
    direction: Direction
    row: bytes


class _Blocks:
    """Writes blocks to a file, which ends with a whole block even after an error."""

    def __init__(self, path: str | Path, begin: bytes) -> None:
        self.error: OSError | None = None  # the first; nothing is written after it
        self.missing = 0  # frames
        self._file = Path(path).open("wb", buffering=0)  # noqa: SIM115  (closed by `close`)
        self._end = self._last = 0  # of the file, and where the last chunk begins
        self._frames = self._last_frames = 0
        self._kept: list[bytes] = []
        self._size = 0
        self._put(begin)
        self._last = self._end

    def add(self, blocks: bytes, frames: int) -> None:
        """Keep the blocks of some frames, and write them once there are enough."""
        self._kept.append(blocks)
        self._size += len(blocks)
        self._frames += frames
        if self._size >= CHUNK:
            self.flush()

    def close(self, end: bytes) -> None:
        """Write the last block."""
        with suppress(OSError):  # it is told already, or says nothing that the counters do not
            self._put(end)
        self._file.close()

    def flush(self) -> None:
        """Write the kept blocks; count the frames that cannot be written."""
        kept, frames = self._kept, self._frames
        self._kept, self._size, self._frames = [], 0, 0
        if self.error is None:
            begin = self._end
            try:
                self._put(b"".join(kept))
            except OSError as error:
                self.error = error
                self._cut()
            except MemoryError:  # none of it has been written
                pass
            else:
                self._last, self._last_frames = begin, frames
                return
        self.missing += frames

    def _cut(self) -> None:
        """Cut off the last chunk and all after it, to make room for the last block."""
        with suppress(OSError):  # a pipe
            self._file.truncate(self._last)
            self._file.seek(self._last)
            self.missing += self._last_frames

    def _put(self, content: bytes) -> None:
        left = memoryview(content)
        while left:
            left = left[self._file.write(left) :]
        self._end += len(content)


class Capture:
    """Records all frames until it is closed; a `Recorder` for RawPorts.

    Args:
        path: the file; an existing one is replaced.
        ifnames: names of the ports.
        counters: counts the frames that could not be kept.
        room: bytes that may wait to be written.
        writer: the name of the writer in the file; tells a replay whether to trust the order.
        cut: makes the blocks of a row; None, or if it returns None: they are made here.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        ifnames: Sequence[str],
        counters: Counters,
        room: int = ROOM,
        writer: str = OWN,
        cut: Cut | None = None,
    ) -> None:
        self.counters = counters
        self._file = _Blocks(path, section(writer) + b"".join(map(interface, ifnames)))
        # A clock that is set meanwhile must not bend the times of a trace.
        self._epoch = time.time_ns() - time.monotonic_ns()
        self._room = room
        self._cut = cut
        self._given = 0  # bytes, by the switch's thread
        self._taken = 0  # bytes, by the writing one
        self._missing = 0  # frames, for want of room; by the switch's thread
        self._written = False  # all that was handed over
        self._queue: queue.SimpleQueue[_Record | None] = queue.SimpleQueue()
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def received(self, frames: Frames) -> None:
        """Record frames that have come."""
        rows = (frames.row(i) for i in range(len(frames.lengths)))

        def counts() -> list[int]:
            tops = zip(frames.heads, frames.bodies[:, :MOST_HEADERS], frames.lengths, strict=True)
            return [_stands_for(head.tobytes() + top.tobytes(), n) for head, top, n in tops]

        self._record(frames.ingress, Direction.IN, rows, counts)

    def sent(self, transmission: Transmission, refused: Collection[int]) -> None:
        """Record frames that were sent; `refused` holds the indices of those that were not."""

        def kept(of: Iterable[T]) -> Iterator[T]:
            return (one for i, one in enumerate(of) if i not in refused)

        def rows() -> Iterator[bytes]:
            yield from kept(transmission.whole())

        self._record(
            transmission.port, Direction.OUT, rows(), lambda: list(kept(transmission.counts))
        )

    def datagrams(
        self,
        direction: Direction,
        source: Address,
        target: Address,
        tos: int,
        packets: Packets,
        port: int = 0,
    ) -> None:
        """Record datagrams of a socket or a ring, as frames.

        Args:
            direction: whether they came or were sent.
            source: their sender.
            target: their receiver.
            tos: type of service.
            packets: the payloads, (n, size) bytes, and the size of the last.
            port: number of the port where they are.
        """
        size = packets[0].shape[1]
        rows = (
            _head(source, target, tos, length, size) + payload[:length].tobytes()
            for payloads, lengths, _ in super_datagrams(*packets)
            for payload, length in zip(payloads, lengths, strict=True)
        )
        self._record(
            port,
            direction,
            rows,
            lambda: [n for *_, some in super_datagrams(*packets) for n in some],
        )

    def _record(
        self,
        number: int,
        direction: Direction,
        rows: Iterator[bytes],
        counts: Callable[[], Sequence[int]],
    ) -> None:
        """Hand rows over to be written; rows for which memory is lacking are counted as missing.

        Args:
            number: the port.
            direction: whether they came or were sent.
            rows: frames, each with its virtio_net_hdr.
            counts: returns the number of frames of each row; called only if rows are missing.
        """
        now = self._now()
        given = 0
        try:
            for row in rows:
                self._give(_Record(number, now, direction, row))
                given += 1
        except MemoryError:
            try:
                self._lose(sum(counts()[given:]))
            except MemoryError:
                self._lose(1)

    def close(self) -> None:
        """Write the rest and the number of missing frames, and close the file.

        Raises:
            OSError: not all could be written, for example because the disk is full.
        """
        self._queue.put(None)
        self._thread.join()
        self._file.flush()
        self.counters["capture_full"] += self._file.missing
        missing = self._missing + self._file.missing
        self._file.close(statistics(0, self._now(), missing) if missing else b"")
        if self._file.error is not None:
            raise self._file.error
        if not self._written:
            raise OSError("the thread that writes it has ended early")

    def _now(self) -> int:
        """Return the nanoseconds since 1970, unaffected by clock changes after the start."""
        return self._epoch + time.monotonic_ns()

    def _give(self, record: _Record) -> None:
        size = len(record.row)
        if self._file.error is not None or self._given - self._taken + size > self._room:
            self._lose(_stands_for(record.row))
            return
        self._queue.put(record)
        self._given += size

    def _lose(self, frames: int) -> None:
        """Count frames that will be missing in the file; the file tells the number."""
        self.counters["capture_full"] += frames
        self._missing += frames

    def _write(self) -> None:
        while (record := self._queue.get()) is not None:
            number, time_ns, direction, row = record
            written = 0
            try:
                made = None if self._cut is None else self._cut(*record)
                if made is not None:
                    self._file.add(*made)
                    written = made[1]
                for frames in on_the_wire(row) if made is None else ():
                    self._file.add(packets(number, time_ns, direction, frames), len(frames))
                    written += len(frames)
            except MemoryError:
                self._file.missing += _stands_for(row) - written
            self._taken += len(row)
        self._written = True


@lru_cache(maxsize=1024)
def _head(source: Address, target: Address, tos: int, length: int, size: int) -> bytes:
    """Make the head of a super-datagram of `length` bytes in packets of `size`."""
    return route(source, target, tos).head(length, size).tobytes()


def _stands_for(row: bytes, size: int | None = None) -> int:
    """Return the number of frames on the wire for which a row stands; its headers suffice."""
    found = read_super(row[:MOST_HEADERS], len(row) if size is None else size) if row[1] else None
    return found.frames if found else 1


def on_the_wire(row: bytes) -> Iterator[Rows]:
    """Cut a row into the frames on the wire; a row with a malformed header stays whole."""
    frame = np.frombuffer(row, np.uint8)
    yield from wire_frames(frame) or [frame[ETH:].reshape(1, -1)]
