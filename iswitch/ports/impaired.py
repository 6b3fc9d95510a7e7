"""Ports with faulty links: packets are lost, delayed, duplicated or corrupted as `Line` decides.

    link --> RawPorts or UdpPort --> lines in  --> machine
    link <-- RawPorts or UdpPort <-- lines out <--

Packets of other links pass untouched. Delayed packets are copied, since buffers are reused.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import is_
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Burst, Outgoing
from iswitch.core.format.times import earlier
from iswitch.ethernet.frame import ETH_HEADER, HEAD, Frames, Transmission
from iswitch.faults.fifo import Times
from iswitch.faults.impairment import DIRECTIONS, Impairments
from iswitch.faults.line import Fates, Ints, Line, Transit
from iswitch.faults.parts import Part, Payloads, frame_parts, sent_parts, transmission
from iswitch.faults.super_datagrams import heads_of, packets_of, without

from .port import Port

ROOM = 256 << 20  # bytes that may be under way in one direction

In = TypeVar("In")
Out = TypeVar("Out")
Piece = TypeVar("Piece")


class _Run(NamedTuple, Generic[Piece]):
    """Packets of one part that are under way."""

    part: Part[Piece]
    which: Ints
    bit: Ints


class OneWay(Generic[Piece]):
    """Applies the faults of one direction of all ports.

    Args:
        direction: `in` or `out`.
        impairments: the faults of both directions.
        seed: the seed of all chances.
        counters: counts the faults.
    """

    def __init__(
        self,
        direction: str,
        impairments: Impairments,
        seed: int,
        counters: Counters,
    ) -> None:
        number = DIRECTIONS.index(direction)
        self.lines = {
            port: Line(impairment, (seed, port, number), spared=ETH_HEADER)
            for (port, way), impairment in impairments.items()
            if way == direction and impairment
        }
        self.counters = counters
        self.by_port = {port: Counter[str]() for port in self.lines}  # faults, in packets
        self._direction = direction
        self._transit: Transit[_Run[Piece]] = Transit()
        self._bytes = 0

    def send(self, port: int, parts: Sequence[Part[Piece]], now: float) -> list[Piece] | None:
        """Send packets into a port's line; return those that come out now; None: all, unchanged.

        Args:
            port: the number of the port.
            parts: the packets.
            now: the time, in seconds.
        """
        if self.lines[port].only_loses:
            return self._lose(port, parts)
        sizes = np.concatenate([part.sizes for part in parts])
        self.by_port[port]["offered"] += len(sizes)
        fates = self.lines[port].fates(sizes, now)
        self._count(port, fates)
        if fates.as_sent(len(sizes), now):
            return None
        pieces: list[Piece] = []
        at = 0
        for part in parts:
            mine = (fates.which >= at) & (fates.which < at + len(part.sizes))
            which, due, bit = fates.which[mine] - at, fates.due[mine], fates.bit[mine]
            at += len(part.sizes)
            bit[part.immune[which]] = -1
            self._note(port, "corrupted", int((bit >= 0).sum()))
            soon = int(np.searchsorted(due, now, "right"))
            if soon:
                pieces += part.take(which[:soon], bit[:soon])
            if soon < len(which):
                self._keep(port, _Run(part, which[soon:], bit[soon:]), due[soon:])
        return pieces

    def losses(self, port: int, count: int) -> list[int]:
        """Decide which of `count` packets are lost, on a line without other faults."""
        self.by_port[port]["offered"] += count
        lost = self.lines[port].losses(count)
        if lost:
            self._note(port, "lost", len(lost))
        return lost

    def _lose(self, port: int, parts: Sequence[Part[Piece]]) -> list[Piece] | None:
        """Send packets into a line that only loses some."""
        lost = self.losses(port, sum(part.count for part in parts))
        return left_of(parts, lost) if lost else None

    def due(self, now: float) -> Iterator[Piece]:
        """Yield delayed packets that come out now."""
        for run, start, stop in self._transit.pop(now):
            if stop == len(run.which):
                self._bytes -= int(run.part.sizes.sum())
            yield from run.part.take(run.which[start:stop], run.bit[start:stop])

    def deadline(self) -> float | None:
        """Return the time at which the next packet comes out, in seconds; None: none will."""
        return self._transit.deadline()

    def close(self) -> None:
        """Count the packets that are still under way as lost."""
        left = sum(stop - start for _, start, stop in self._transit.clear())
        self.counters[f"lost_{self._direction}"] += left

    def _keep(self, port: int, run: _Run[Piece], due: Times) -> None:
        size = int(run.part.sizes.sum())
        if self._bytes + size > ROOM:
            self._note(port, "queue", len(run.which))
            return
        self._bytes += size
        self._transit.put(run._replace(part=run.part.copy()), due)

    def _count(self, port: int, fates: Fates) -> None:
        self._note(port, "lost", fates.lost)
        self._note(port, "queue", fates.full)
        self._note(port, "duplicated", fates.duplicated)
        self._note(port, "reordered", fates.reordered)

    def _note(self, port: int, name: str, packets: int) -> None:
        self.by_port[port][name] += packets
        self.counters[f"{name}_{self._direction}"] += packets


def left_of(parts: Sequence[Part[Piece]], lost: list[int]) -> list[Piece]:
    """Return the packets of parts without the `lost` ones, whose indices count over all parts."""
    which = np.delete(np.arange(sum(part.count for part in parts)), lost)
    pieces: list[Piece] = []
    at = 0
    for part in parts:
        mine = slice(*np.searchsorted(which, (at, at + part.count)))
        pieces += part.take(which[mine] - at, None)
        at += part.count
    return pieces


class Impaired(Generic[In, Out]):
    """Wraps a port of which some directions are impaired.

    Args:
        port: the port without faults.
        impairments: the faults, by port number and direction; a UDP socket is number 0.
        seed: the seed of all chances; with an equal seed, equal packets have equal fates.
        counters: counts the faults.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        port: Port[In, Out],
        impairments: Impairments,
        seed: int,
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.port = port
        self.clock = clock
        self._in: OneWay[Any] = OneWay("in", impairments, seed, counters)
        self._out: OneWay[Any] = OneWay("out", impairments, seed, counters)

    def faults(self, port: int) -> dict[str, int]:
        """Return how many packets a port's lines were `offered`, and met with each fault.

        The names end in the direction, as in `lost_in`.
        """
        return {
            f"{name}_{way}": packets
            for way, faults in (("in", self._in), ("out", self._out))
            for name, packets in faults.by_port.get(port, {}).items()
        }

    def fileno(self) -> int:
        """Return the port's file descriptor."""
        return self.port.fileno()

    def deadline(self) -> float | None:
        """Return the earlier of the next delayed packet's time and the port's deadline, or None."""
        late = earlier(self._in.deadline(), self._out.deadline())
        return earlier(late, self.port.deadline())

    def close(self) -> None:
        """Close the port; count the packets under way as lost."""
        self._in.close()
        self._out.close()
        self.port.close()


class ImpairedPorts(Impaired[Frames, Sequence[Transmission]]):
    """The ports of a switch, some of them impaired."""

    sendable: Callable[[Any], Any] = staticmethod(transmission)  # makes a port's of a line's piece

    def pull(self) -> Iterator[Frames]:
        """Yield the frames that have come through; send delayed ones that are due."""
        now = self.clock()
        self.port.push([list(map(self.sendable, self._out.due(now)))])
        yield from self._in.due(now)
        for frames in self.port.pull():
            came = None
            if frames.ingress in self._in.lines:
                came = self._entering(frames, now)
            yield from (frames,) if came is None else came

    def _entering(self, frames: Frames, now: float) -> list[Frames] | None:
        """Return the frames of one port that come in at once; None: all, unchanged."""
        port = frames.ingress
        if not self._in.lines[port].only_loses or (counts := packets_of(frames)) is None:
            return self._in.send(port, frame_parts(frames), now)
        lost = self._in.losses(port, sum(counts))
        if not lost:
            return None
        if len(lost) == sum(counts):
            return []
        payloads, lengths, _ = without(frames, counts, lost)
        heads = heads_of(frames.heads[0].tobytes(), lengths)
        return [Frames(port, heads, payloads, [HEAD + length for length in lengths])]

    def push(self, steps: Iterable[Sequence[Transmission]]) -> None:
        """Send frames, step by step."""
        self.port.push(map(self._leaving, steps))

    def _leaving(self, step: Sequence[Transmission]) -> Sequence[Transmission]:
        """Return the frames that leave at once; keep those that are delayed."""
        now = self.clock()
        leaving: list[Transmission] = []
        by_port: dict[int, list[Transmission]] = {}  # of ports with other faults than loss
        for _, alike in groupby(step, lambda one: id(one.bodies)):
            thinned: list[Transmission] = []
            for one in alike:
                line = self._out.lines.get(one.port)
                if line is not None and not line.only_loses:
                    by_port.setdefault(one.port, []).append(one)
                elif line is None or (left := self._left_of(one)) is None:
                    leaving.append(one)  # next to its like, which the kernel may copy
                else:
                    thinned += left
            leaving += thinned
        if len(leaving) == len(step) and all(map(is_, leaving, step)):
            return step
        for port, ones in by_port.items():
            parts = [part for one in ones for part in sent_parts(one)]
            frames = self._out.send(port, parts, now)
            leaving += ones if frames is None else map(transmission, frames)
        return leaving

    def _left_of(self, one: Transmission) -> list[Transmission] | None:
        """Return the frames that a line which only loses packets passes; None: all, unchanged."""
        port, heads, bodies, lengths, counts = one
        total = sum(counts)
        lost = self._out.losses(port, total)
        if not lost:
            return None
        if len(lost) == total:
            return []
        if heads is not None:
            frames = Frames(port, heads, bodies, [HEAD + length for length in lengths])
            if packets_of(frames) == counts:
                left = without(frames, counts, lost)
                return [Transmission(port, heads_of(heads[0].tobytes(), left.lengths), *left)]
        return list(map(transmission, left_of(sent_parts(one), lost)))


class ImpairedDatagrams(Impaired[Burst, Outgoing]):
    """A UDP socket, impaired."""

    def pull(self) -> Iterator[Burst]:
        """Yield the datagrams that have come through; send delayed ones that are due."""
        now = self.clock()
        self.port.push(self._out.due(now))
        yield from self._in.due(now)
        for burst in self.port.pull():
            came = self._in.send(0, [Payloads[Burst](burst)], now) if self._in.lines else None
            yield from (burst,) if came is None else came

    def push(self, sends: Iterable[Outgoing]) -> None:
        """Send datagrams."""
        self.port.push(self._leaving(sends) if self._out.lines else sends)

    def _leaving(self, sends: Iterable[Outgoing]) -> Iterator[Outgoing]:
        """Yield the datagrams that leave at once, one receiver after the other."""
        now = self.clock()
        for out in sends:
            parts = [Payloads[Outgoing](out._replace(peers=(peer,))) for peer in out.peers]
            left = self._out.send(0, parts, now)
            yield from (out,) if left is None else left
