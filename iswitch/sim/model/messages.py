"""Exchanges of messages between hosts over ideal streams, as `iswitch.sim.streams` carries them.

Here streams may share lines, so that the order in which frames come to a line is part of the
answer. Therefore all times are improved pass by pass: each pass takes the times at which frames can
leave, lets every line serve its frames in the order in which they come, and finds from the times of
arrival when frames can leave. What happens first is right after the first pass, what depends on it
alone after the second, and so on; when a pass changes nothing, all times are those of the network.
Times are whole femtoseconds, so that those of equal lines are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from iswitch.ethernet.frame import ETH_HEADER
from iswitch.sim.handling import Handling
from iswitch.sim.segments import HEAD
from iswitch.sim.streams import SPARE

from .fabric import Fabric, Floats, Ints

FEMTO = 1e15  # ticks of a second
LONGEST = 4000.0  # seconds; a line may begin as late, and ticks of both fit into an int64
Arrival = tuple[int, int]  # of so many bytes of a message


class Message(NamedTuple):
    """A message of one stream.

    Attributes:
        size: its bytes.
        after: numbers of messages, and how many bytes of each must have come, before it leaves.
        of_worker: whether it cannot leave before the worker of its host begins.
        turn: of messages that can leave a host at one time, that with the lowest goes first.
    """

    size: int
    after: Sequence[Arrival] = ()
    of_worker: bool = True
    turn: tuple[int, ...] = ()


class Stream(NamedTuple):
    """The messages from one host to another, in order; hosts are ranks."""

    source: int
    target: int
    messages: Sequence[Message]


def frames_of(size: int, mtu: int) -> Ints:
    """Return the bytes of each frame of a message."""
    most = mtu + ETH_HEADER - HEAD
    count = max(1, -(-size // most))
    found = np.full(count, most + HEAD)
    found[-1] = size - (count - 1) * most + HEAD
    return found


class TooLong(ValueError):
    """An exchange takes longer than 64 bits of femtoseconds can count."""


def ticks(seconds: Floats) -> Ints:
    """Return seconds, one after the other, as whole femtoseconds.

    Raises:
        TooLong: they are more than LONGEST together.
    """
    if seconds.sum() > LONGEST:
        raise TooLong
    return np.rint(seconds * FEMTO).astype(np.int64)


def ticks_of(seconds: float) -> int:
    """Return some seconds as whole femtoseconds."""
    return round(seconds * FEMTO)


class Served(NamedTuple):
    """What one line serves: frames of several streams, in turn; how long each takes."""

    frames: Ints
    takes: Ints
    delay: int
    mixed: bool  # whether they are of several streams

    def serve(self, at: Ints) -> None:
        """Replace the times at which frames come to the line by those at which they have passed."""
        came = at[self.frames]
        order = np.argsort(came, kind="stable") if self.mixed else slice(None)
        came, takes = came[order], self.takes[order]
        total = takes.cumsum()
        done = np.maximum.accumulate(came - total + takes) + total
        at[self.frames[order]] = done + self.delay


class Exchange:
    """Streams in a network.

    Args:
        fabric: the network.
        streams: what is sent; messages are numbered through, stream by stream.
        hosts: the time that hosts take for each frame.
        latency: seconds for which switches delay each frame.
    """

    def __init__(
        self, fabric: Fabric, streams: Sequence[Stream], hosts: Handling, latency: float
    ) -> None:
        self._fabric, self._streams = fabric, streams
        self._hosts, self._latency = hosts, latency
        per_message = [frames_of(m.size, fabric.mtu) for s in streams for m in s.messages]
        self._sizes = np.concatenate([*per_message, np.empty(0, np.int64)])
        # The first frame of each message, and of each stream; at the end, the number of frames.
        self._first = np.cumsum([0, *map(len, per_message)])
        turns = [m.turn for s in streams for m in s.messages]
        rank = {turn: i for i, turn in enumerate(sorted(set(turns)))}
        self._turn = np.repeat([rank[turn] for turn in turns], np.diff(self._first))
        self._begin = self._first[np.cumsum([0, *(len(s.messages) for s in streams)])]
        self._lines = list(self._served())
        self._gates()
        self._behind()

    def _served(self) -> Iterator[Served]:
        """Yield what takes time, in an order in which all frames pass it."""
        fabric, streams = self._fabric, self._streams
        nodes = fabric.hosts
        paths = [fabric.path(int(nodes[s.source]), int(nodes[s.target])) for s in streams]
        remote = [i for i, path in enumerate(paths) if path]
        if self._hosts:
            for rank in sorted({streams[i].source for i in remote}):
                yield self._host([i for i in remote if streams[i].source == rank])
        depth = fabric.depths()
        used: dict[tuple[int, bool], list[int]] = {}
        for i in remote:
            for line in paths[i]:
                used.setdefault(line, []).append(i)
        targets = set(nodes.tolist())
        for node, up in sorted(used, key=lambda line: depth[line[0]] * (-1 if line[1] else 1)):
            if not up:
                continue
            yield self._line(used[node, up], node, True)
        for node, up in sorted(used, key=lambda line: depth[line[0]]):
            if not up:
                yield self._line(used[node, up], node, node not in targets)
        if self._hosts:
            for rank in sorted({streams[i].target for i in remote}):
                yield self._host([i for i in remote if streams[i].target == rank])

    def _line(self, streams: Sequence[int], node: int, to_switch: bool) -> Served:
        frames = self._frames(streams)
        takes = ticks(self._sizes[frames] * 8 / self._fabric.rate[node])
        delay = float(self._fabric.delay[node]) + to_switch * self._latency
        return Served(frames, takes, ticks_of(delay), len(streams) > 1)

    def _host(self, streams: Sequence[int]) -> Served:
        frames, (each, byte, latency) = self._frames(streams), self._hosts
        takes = ticks(each + byte * self._sizes[frames])
        return Served(frames, takes, ticks_of(latency), len(streams) > 1)

    def _frames(self, streams: Sequence[int]) -> Ints:
        """Return the numbers of all frames of some streams, in turn."""
        found = np.concatenate([np.arange(*self._begin[i : i + 2]) for i in streams])
        return found[np.argsort(self._turn[found], kind="stable")]

    def _gates(self) -> None:
        """Find the frames that messages wait for; messages that wait for the same share a gate."""
        most = self._fabric.mtu + ETH_HEADER - HEAD
        gates: dict[tuple[Arrival, ...], int] = {(): 0}
        of = [
            gates.setdefault(tuple(m.after), len(gates)) for s in self._streams for m in s.messages
        ]
        self._gate_of = np.repeat(of, np.diff(self._first)).astype(np.int64)
        waited = [
            [self._first[number] + max(0, -(-size // most) - 1) for number, size in after]
            for after in gates
            if after
        ]
        self._waited = np.array([frame for some in waited for frame in some], np.int64)
        self._gate_first = np.cumsum([0, *map(len, waited)])[:-1]

    def _behind(self) -> None:
        """Find for each frame the one that must have come, by the window of its stream."""
        fabric, nodes = self._fabric, self._fabric.hosts
        most = fabric.mtu + ETH_HEADER - HEAD
        waits, fors = [], []
        for i, stream in enumerate(self._streams):
            path = fabric.path(int(nodes[stream.source]), int(nodes[stream.target]))
            at = [node for node, _ in path]
            rates = [rate for rate in fabric.rate[at].tolist() if rate != np.inf]
            way = min(rates, default=0.0) * float(fabric.delay[at].sum()) / 8 / (most + HEAD)
            window = SPARE + int(np.ceil(way))
            frames = np.arange(*self._begin[i : i + 2])
            waits.append(frames[window:])
            fors.append(frames[:-window])
        self._window_waits = np.concatenate([*waits, np.empty(0, np.int64)])
        self._window_for = np.concatenate([*fors, np.empty(0, np.int64)])

    @property
    def frames(self) -> int:
        """Return the number of frames."""
        return len(self._sizes)

    def play(self, starts: Floats) -> Floats:
        """Return when each worker has received all that is for it, (ranks,) seconds.

        Args:
            starts: when each worker begins, (ranks,) seconds.
        """
        if starts.max(initial=0.0) > LONGEST:
            raise TooLong
        begins = np.rint(starts * FEMTO).astype(np.int64)
        own = np.concatenate(
            [
                np.repeat(
                    [begins[s.source] if m.of_worker else 0 for m in s.messages],
                    np.diff(self._first[a : b + 1]),
                )
                for s, (a, b) in zip(self._streams, self._bounds(), strict=True)
            ]
            or [np.empty(0, np.int64)]
        ).astype(np.int64)
        at = own
        while len(at):
            before, at = at, self._pass(own, at)
            if np.array_equal(before, at):
                break
        ends = begins.copy()
        for i, stream in enumerate(self._streams):
            arrived = at[slice(*self._begin[i : i + 2])]
            ends[stream.target] = max(ends[stream.target], arrived.max(initial=0))
        return ends / FEMTO

    def _bounds(self) -> Iterator[tuple[int, int]]:
        """Yield the first message of each stream, and the one after its last."""
        counts = np.cumsum([0, *(len(s.messages) for s in self._streams)]).tolist()
        return pairwise(counts)

    def _pass(self, own: Ints, came: Ints) -> Ints:
        """Return when frames come, if those that they wait for come at the given times."""
        at = own.copy()
        if len(self._waited):
            opened = np.concatenate(
                [[0], np.maximum.reduceat(came[self._waited], self._gate_first)]
            )
            np.maximum(at, opened[self._gate_of], out=at)
        at[self._window_waits] = np.maximum(at[self._window_waits], came[self._window_for])
        for start, stop in pairwise(self._begin.tolist()):
            np.maximum.accumulate(at[start:stop], out=at[start:stop])
        for line in self._lines:
            line.serve(at)
        return at
