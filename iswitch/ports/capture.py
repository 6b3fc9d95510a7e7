"""Writes the frames at the ports of a switch to a pcapng file, from a thread of its own.

The switch only hands the bytes over. What the thread has not written yet is bounded: beyond that
frames are missing in the file, and counted (`capture_full`); the file, too, says how many.
Super-frames are written as the frames that they are on the wire, with finished checksums.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..counters import Counters
from ..frame import ETH, Frames, Transmission
from ..made_up import route
from ..packets import Address, Rows, supers
from ..pcapng import OWN, Direction, interface, packets, section, statistics
from ..segmentation import MOST_HEADERS, read_super, wire_frames

ROOM = 256 << 20  # bytes that may wait to be written
SWITCH_INTERVAL = 0.0005  # seconds after which the writing thread has to let the switch go on


Packets = tuple[Rows, int]  # and the size of the last


class _Record(NamedTuple):
    number: int
    time_ns: int
    direction: Direction
    row: bytes


class Capture:
    """Takes note of all frames until it is closed; a `Recorder` for RawPorts.

    Args:
        path: the file; one that exists is replaced.
        ifnames: names of the ports.
        counters: where frames that could not be kept are counted.
        room: bytes that may wait to be written.
        writer: of the file, by its own name: whether a replay can go by the order of its frames.

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
    ) -> None:
        self.counters = counters
        self.error: OSError | None = None
        self._file = Path(path).open("wb")  # noqa: SIM115  (closed by `close`)
        self._file.write(section(writer) + b"".join(map(interface, ifnames)))
        self._file.flush()
        # A clock that is set meanwhile must not bend the times of a trace.
        self._epoch = time.time_ns() - time.monotonic_ns()
        self._room = room
        self._given = 0  # bytes, by the switch's thread
        self._taken = 0  # bytes, by the writing one
        self._missing = 0  # frames, for want of room
        self._queue: queue.SimpleQueue[_Record | None] = queue.SimpleQueue()
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def received(self, frames: Frames) -> None:
        """These frames have come."""
        now = self._now()
        for i in range(len(frames.lengths)):
            self._give(_Record(frames.ingress, now, Direction.IN, frames.row(i)))

    def sent(self, transmission: Transmission, refused: Collection[int]) -> None:
        """These frames have gone, but for the refused ones."""
        now = self._now()
        for i, row in enumerate(transmission.whole()):
            if i not in refused:
                self._give(_Record(transmission.port, now, Direction.OUT, row))

    def datagrams(
        self, direction: Direction, source: Address, target: Address, tos: int, packets: Packets
    ) -> None:
        """These have come or gone at a socket: the frames that they would be, at port 0."""
        now = self._now()
        size = packets[0].shape[1]
        for payloads, lengths, _ in supers(*packets):
            for payload, length in zip(payloads, lengths, strict=True):
                head = route(source, target, tos).head(length, size)
                row = head.tobytes() + payload[:length].tobytes()
                self._give(_Record(0, now, direction, row))

    def close(self) -> None:
        """Write what is left, and close the file.

        Raises:
            OSError: it could not all be written: the disk is full, say.
        """
        self._queue.put(None)
        self._thread.join()
        try:
            if self._missing and self.error is None:
                self._file.write(statistics(0, self._now(), self._missing))
            self._file.close()
        except OSError as error:
            self.error = error
        if self.error is not None:
            raise self.error

    def _now(self) -> int:
        """Nanoseconds since 1970, by the clock as it was in the beginning."""
        return self._epoch + time.monotonic_ns()

    def _give(self, record: _Record) -> None:
        size = len(record.row)
        if self.error is not None or self._given - self._taken + size > self._room:
            found = read_super(record.row[:MOST_HEADERS], size) if record.row[1] else None
            missing = found.frames if found else 1
            self.counters["capture_full"] += missing
            self._missing += missing
            return
        self._given += size
        self._queue.put(record)

    def _write(self) -> None:
        while (record := self._queue.get()) is not None:
            number, time_ns, direction, row = record
            for frames in on_the_wire(row):
                try:
                    self._file.write(packets(number, time_ns, direction, frames))
                except OSError as error:  # the disk is full
                    self.error = error
            self._taken += len(row)


def on_the_wire(row: bytes) -> Iterator[Rows]:
    """The frames that a row stands for; one whose virtio_net_hdr makes no sense as it is."""
    frame = np.frombuffer(row, np.uint8)
    yield from wire_frames(frame) or [frame[ETH:].reshape(1, -1)]
