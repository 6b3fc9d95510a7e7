"""Writes what the replaying switch sends to a pcapng file, as frames on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..frame import ETH, Transmission
from ..pcapng import Direction, interface, packets, section
from ..segmentation import wire_frames

APPLICATION = "iswitch replay"
LATEST = (1 << 63) - 1


class TraceWriter:
    """A file of frames that left.

    Args:
        path: the file; one that exists is replaced.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.frames = 0
        self._written = 0  # ports
        self._file = Path(path).open("wb")  # noqa: SIM115  (closed by `close`)
        self._file.write(section(APPLICATION))

    def write(self, step: list[Transmission], time_ns: int, ports: Sequence[str]) -> None:
        """Write frames that left at a time, at one of the ports of these names."""
        for transmission in step:
            while self._written <= transmission.port:
                self._file.write(interface(ports[self._written]))
                self._written += 1
            for row in transmission.whole():
                frame = np.frombuffer(row, np.uint8)
                for frames in wire_frames(frame) or [frame[ETH:].reshape(1, -1)]:
                    at = min(max(time_ns, 0), LATEST)
                    self._file.write(packets(transmission.port, at, Direction.OUT, frames))
                    self.frames += len(frames)

    def close(self) -> None:
        """There will be no more."""
        self._file.close()
