"""Writes what the replaying switch sends to a pcapng file, as frames on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from iswitch.core.format.packets import Rows
from iswitch.core.format.pcapng import Direction, blocks, interface, packets, section
from iswitch.ethernet.frame import ETH, Transmission
from iswitch.ethernet.segmentation import wire_frames

from .batch import Ints

APPLICATION = "iswitch replay"
LATEST = (1 << 63) - 1


class _Piece(NamedTuple):
    """Blocks of one size, and the place of each in the order of writing."""

    places: Ints
    rows: Rows


class TraceWriter:
    """Writes the frames that leave to a file.

    Args:
        path: the file; one that exists is replaced.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.frames = 0
        self._written = 0  # ports
        self._kept: list[_Piece] = []
        self._file = Path(path).open("wb")  # noqa: SIM115  (closed by `close`)
        self._file.write(section(APPLICATION))

    def write(self, step: list[Transmission], time_ns: int, ports: Sequence[str]) -> None:
        """Write frames that left by one of the named ports, all at one time (ns since 1970)."""
        at = min(max(time_ns, 0), LATEST)
        for transmission in step:
            self._name(transmission.port, ports)
            frames = whole_frames(transmission)
            for rows in frames:
                self._file.write(packets(transmission.port, at, Direction.OUT, rows))
                self.frames += len(rows)

    def keep(
        self, transmission: Transmission, places: Ints, times: Ints, ports: Sequence[str]
    ) -> None:
        """Keep frames of one size for `flush`, which writes them in the order of their places.

        Args:
            transmission: the frames, with finished checksums and no super-frames.
            places: place of each frame, (n,); frames of equal places keep the order of the calls.
            times: time of each frame, ns since 1970, (n,).
            ports: their names.
        """
        self._name(transmission.port, ports)
        (rows,) = whole_frames(transmission)
        times = np.clip(times, 0, LATEST)
        self._kept.append(_Piece(places, blocks(transmission.port, times, Direction.OUT, rows)))
        self.frames += len(rows)

    def flush(self) -> None:
        """Write the kept frames in the order of their places."""
        kept, self._kept = self._kept, []
        if not kept:
            return
        sizes = np.concatenate([np.full(len(p.places), p.rows.shape[1]) for p in kept])
        order = np.argsort(np.concatenate([p.places for p in kept]), kind="stable")
        ends = np.cumsum(sizes[order])
        begins = np.empty_like(ends)
        begins[order] = ends - sizes[order]
        content = np.empty(int(ends[-1]), np.uint8)
        first = 0
        for _, rows in kept:
            n, size = rows.shape
            # Each place as a row that overlaps the next: NumPy copies a block as one piece.
            targets = np.ndarray((len(content) - size + 1, size), np.uint8, content, 0, (1, 1))
            targets[begins[first : first + n]] = rows
            first += n
        self._file.write(content.data)

    def close(self) -> None:
        """Close the file."""
        self.flush()
        self._file.close()

    def _name(self, port: int, ports: Sequence[str]) -> None:
        while self._written <= port:
            self._file.write(interface(ports[self._written]))
            self._written += 1


def whole_frames(transmission: Transmission) -> list[Rows]:
    """Return the frames on the wire, as arrays of consecutive frames of one size."""
    heads, bodies, lengths = transmission.heads, transmission.bodies, transmission.lengths
    if heads is not None and not heads[:, :ETH].any() and lengths.count(lengths[0]) == len(lengths):
        return [np.concatenate((heads[:, ETH:], bodies[:, : lengths[0]]), axis=1)]
    found: list[Rows] = []
    for row in transmission.whole():
        frame = np.frombuffer(row, np.uint8)
        found += wire_frames(frame) or [frame[ETH:].reshape(1, -1)]
    return found
