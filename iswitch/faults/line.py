"""One direction of one link: decides the fates of the packets that are sent into it.

    queue --> rate --> the wire: lost? corrupted? twice? --> delay, jitter, or past both --> out

A `Line` only decides; its caller keeps the packets, those under way in a `Transit`. All chances are
drawn for every packet in one order, whether needed or not. So the fate of a packet depends on the
seed and on the packets sent before it, not on how packets were grouped. More of one fault leaves
the other faults unchanged.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from .fifo import Fifo, Times
from .impairment import Impairment

Item = TypeVar("Item")
Ints = npt.NDArray[np.int64]

CHANCES = 6  # drawn for each packet: loss, corrupt, which bit, duplicate, reorder, jitter
AHEAD = 2048  # packets whose loss is decided in one go, on a line that only loses packets


class Fates(NamedTuple):
    """The packets that come out of a line, in their order, and counts of the faults.

    `which`, `due` and `bit` are arrays (n,). `which` holds the index of each packet among those
    sent: twice if it is duplicated, not at all if it is lost. `due` is its time, in seconds; it
    never falls. `bit` is the bit to flip, counted from the packet's first bit (the most significant
    of its byte), or -1. `full` is the number of packets that found no room in the queue.
    """

    which: Ints
    due: Times
    bit: Ints
    lost: int
    full: int
    duplicated: int
    reordered: int

    def all_came(self, count: int) -> bool:
        """Return whether all of `count` packets come out: once, undamaged and in their order."""
        changed = len(self.which) != count or self.duplicated or self.reordered
        return not changed and bool((self.bit < 0).all())

    def as_sent(self, count: int, now: float) -> bool:
        """Return whether all of `count` packets leave by `now`, as they were sent."""
        return self.all_came(count) and (not count or bool(self.due[-1] <= now))


class Line:
    """Decides the fates of packets.

    Args:
        impairment: the faults of the line.
        seed: seeds its random draws; no other line has these numbers.
        spared: bytes at the beginning of a packet in which no bit is flipped.
    """

    def __init__(self, impairment: Impairment, seed: Sequence[int], spared: int = 0) -> None:
        self._impairment, self._is_certain = impairment, is_certain(impairment)
        self._chance = np.random.default_rng(seed)
        self._spared = spared
        self._fifo = Fifo()
        # When each packet in the queue will have been sent, by run; and how many there are at most.
        self._queued: deque[Times] = deque()
        self._waiting = 0
        self._latest = -np.inf  # when the last packet in order comes out
        self._floor = -np.inf  # when the last packet of another impairment comes out
        # Of the last `passage`: bytes of packets, the rate, seconds that each takes, and in sum.
        self._sizes: Ints | None = None
        self._rate = 0.0
        self._service = self._total = np.empty(0)
        self._undrawn = 0  # packets whose chances are not drawn yet, since none mattered
        self._losing: bool | None = None  # whether the last packet was lost; None: there was none
        self._passed = 0  # packets whose losses `losses` has returned
        self._decided = 0  # packets whose losses are decided
        self._doomed: list[int] = []  # numbers of lost packets that are not returned yet

    @property
    def impairment(self) -> Impairment:
        """Return the faults; setting others leaves packets on their way unchanged."""
        return self._impairment

    @impairment.setter
    def impairment(self, impairment: Impairment) -> None:
        self._impairment, self._is_certain = impairment, is_certain(impairment)
        self._floor = self._latest  # nothing overtakes them

    def fates(self, sizes: Ints, ready: Times | float) -> Fates:
        """Decide the fates of packets that are sent one after the other.

        Args:
            sizes: bytes of each packet, (n,).
            ready: when each is sent, in seconds, (n,); or one time for all. It never falls from
                packet to packet. The queue takes packets in the order of the calls.
        """
        given = self.impairment
        assert not self._decided, "a line is asked for its losses only, or for all fates"
        sent, left = self._send(sizes, ready)
        if self.is_certain:
            self._undrawn += len(sizes)
            due = np.maximum(left + given.delay, self._floor)
            self._latest = max(self._latest, float(due[-1])) if len(due) else self._latest
            return Fates(sent, due, _undamaged(len(sent)), 0, len(sizes) - len(sent), 0, 0)
        chances = self._draw(len(sizes))[sent]
        kept = np.flatnonzero(~self._lost(chances[:, 0]))
        which, left = sent[kept], left[kept]
        _, corrupt, place, duplicate, reorder, jitter = chances[kept].T

        bits = 8 * (sizes[which] - self._spared)
        bit = 8 * self._spared + (place * bits).astype(np.int64)
        bit[(corrupt >= given.corrupt) | (bits <= 0)] = -1

        due = left + given.delay + given.jitter * (2 * jitter - 1)
        early = reorder < given.reorder
        due[~early] = self._in_order(due[~early])
        due[early] = left[early]

        times = 1 + (duplicate < given.duplicate)
        order = np.repeat(np.arange(len(kept)), times)
        if early.any():
            order = order[np.argsort(due[order], kind="stable")]
        return Fates(
            which=which[order],
            due=due[order],
            bit=bit[order],
            lost=len(sent) - len(kept),
            full=len(sizes) - len(sent),
            duplicated=len(order) - len(kept),
            reordered=int(early.sum()),
        )

    def passage(self, sizes: Ints, ready: Times | float) -> Times | None:
        """Return when packets come out, as `fates`, if all surely do.

        None: a chance decides, or the queue may be too full; nothing has happened.

        Args:
            sizes: bytes of each packet, (n,), n > 0.
            ready: when each is sent, see `fates`.
        """
        given, n = self._impairment, len(sizes)
        if not self._is_certain or self._decided or given.rate is None:
            return None
        first = ready if isinstance(ready, float) else float(ready[0])
        if n > given.queue - self.waiting(first):
            return None
        if sizes is not self._sizes or given.rate != self._rate:
            self._sizes, self._rate = sizes, given.rate
            self._service = np.multiply(sizes, 8 / given.rate, dtype=np.float64)
            self._total = self._service.cumsum()
        left = self._fifo.serve(ready, self._service, self._total)
        self._queued.append(left)
        self._waiting += n
        self._undrawn += n
        due = left + given.delay if given.delay else left
        if due[0] < self._floor:
            due = np.maximum(due, self._floor)
        self._latest = max(self._latest, float(due[-1]))
        return due

    def carry(self, sizes: Ints, ready: Times | float) -> Times:
        """Carry packets that wait at their sender, not in the queue; return when they come out.

        They take their time at the line's rate, between all others, and its delay. None of the
        line's chances concerns them.

        Args:
            sizes: bytes of each packet, (n,).
            ready: when each can be sent, see `fates`.
        """
        rate = self.impairment.rate
        if rate is None:
            left = np.full(len(sizes), ready)
        else:
            left = self._fifo.serve(ready, np.multiply(sizes, 8 / rate, dtype=np.float64))
        return np.maximum(left + self.impairment.delay, self._floor)

    @property
    def busy(self) -> float:
        """Return when the queue will be empty, in seconds."""
        return self._fifo.busy

    def waiting(self, now: float) -> int:
        """Return how many packets are in the queue, or more: a run counts until all of it left."""
        queued = self._queued
        while queued and queued[0][-1] <= now:
            self._waiting -= len(queued.popleft())
        return self._waiting

    def pass_by(self, until: float) -> None:
        """Note that packets have been sent of which `fates` was not told.

        Args:
            until: when the last of them left the queue, in seconds.
        """
        self._fifo.busy = max(self._fifo.busy, until)

    @property
    def is_certain(self) -> bool:
        """Return whether chance decides nothing here."""
        return self._is_certain

    @property
    def only_loses(self) -> bool:
        """Return whether loss is the only fault, so that `losses` can serve instead of `fates`."""
        given = self.impairment
        later = given.delay or given.jitter or given.reorder or given.rate is not None
        return not (later or given.duplicate or given.corrupt)

    def losses(self, count: int) -> list[int]:
        """Decide which of `count` packets are lost, at less cost than `fates`.

        The losses are decided ahead of time, so that many small calls cost little. After the first
        such call, `fates` must not be called any more.
        """
        start, stop = self._passed, self._passed + count
        while self._decided < stop:
            lost = np.flatnonzero(self._lost(self._chance.random((AHEAD, CHANCES))[:, 0]))
            self._doomed += (lost + self._decided).tolist()
            self._decided += AHEAD
        self._passed = stop
        n = bisect_left(self._doomed, stop)
        lost_now, self._doomed = self._doomed[:n], self._doomed[n:]
        return [i - start for i in lost_now]

    def _draw(self, count: int) -> Times:
        """Draw the chances of packets, (count, CHANCES)."""
        if self._undrawn:
            # Skip those of packets for which chance decided nothing.
            generator = self._chance.bit_generator
            generator.advance(self._undrawn * CHANCES)  # type: ignore[attr-defined]
            self._undrawn = 0
        return self._chance.random((count, CHANCES))

    def _lost(self, chance: Times) -> npt.NDArray[np.bool_]:
        """Return which packets are lost on the wire, (n,) booleans.

        In bursts, a packet behind a lost one is lost with probability 1 - 1/burst. A packet behind
        a kept one is lost less often, so that the overall rate is `loss` (Gilbert's model of two
        states). A chance between the two probabilities gives a packet its predecessor's fate.
        """
        given = self.impairment
        if not given.burst or not len(chance):
            return chance < given.loss
        again = 1 - 1 / given.burst
        begins = given.loss / (given.burst * (1 - given.loss))
        lost = chance < begins
        settled = lost | (chance >= again)
        if self._losing is None:
            lost[0], settled[0] = chance[0] < given.loss, True
        last = np.maximum.accumulate(np.where(settled, np.arange(len(chance)), -1))
        lost = np.where(last < 0, bool(self._losing), lost[last])
        self._losing = bool(lost[-1])
        return lost

    def _send(self, sizes: Ints, ready: Times | float) -> tuple[Ints, Times]:
        """Return which packets find room in the queue, and when each of them has left it."""
        n, rate = len(sizes), self.impairment.rate
        sent = _indices(n)
        if rate is None:
            return sent, np.full(n, ready)
        first = float(ready[0]) if isinstance(ready, np.ndarray) else ready
        queued = self._queued
        service: Times = np.multiply(sizes, 8 / rate, dtype=np.float64)
        if n > self.impairment.queue - self.waiting(first):
            waiting = np.sort(np.concatenate(queued)) if queued else np.empty(0)
            waiting = waiting[np.searchsorted(waiting, first, "right") :]
            self._queued = queued = deque([waiting] if len(waiting) else ())
            self._waiting = len(waiting)
            if n > self.impairment.queue - len(waiting):
                sent = self._find_room(service, ready, waiting)
                service = service[sent]
                ready = ready[sent] if isinstance(ready, np.ndarray) else ready
        left = self._fifo.serve(ready, service)
        if len(left):
            queued.append(left)
            self._waiting += len(left)
        return sent, left

    def _find_room(self, service: Times, ready: Times | float, waiting: Times) -> Ints:
        """Return which packets find room in a queue that is too full for some of them.

        A run goes packet by packet: a full queue is no fast path.
        """
        queue, most = deque(waiting.tolist()), self.impairment.queue
        sent: list[int] = []
        if not isinstance(ready, np.ndarray):
            return np.arange(most - len(queue))
        for i, (takes, at) in enumerate(zip(service.tolist(), ready.tolist(), strict=True)):
            while queue and queue[0] <= at:
                queue.popleft()
            if len(queue) < most:
                queue.append(max(at, queue[-1] if queue else at) + takes)
                sent.append(i)
        return np.array(sent, np.int64)

    def _in_order(self, due: Times) -> Times:
        """Delay packets so that none comes out before an earlier one."""
        if not len(due):
            return due
        due = np.maximum.accumulate(np.maximum(due, self._latest))
        self._latest = float(due[-1])
        return due


def is_certain(given: Impairment) -> bool:
    """Return whether chance decides nothing."""
    chances = given.loss or given.corrupt or given.duplicate
    return not (chances or given.jitter or given.reorder)


@lru_cache(256)
def _indices(count: int) -> Ints:
    """Return 0..count-1, not to be changed."""
    found = np.arange(count)
    found.setflags(write=False)
    return found


@lru_cache(256)
def _undamaged(count: int) -> Ints:
    """Return that no bit of `count` packets is flipped, not to be changed."""
    found = np.full(count, -1)
    found.setflags(write=False)
    return found


class Transit(Generic[Item]):
    """Keeps packets under way: items of several packets each, with their due times."""

    def __init__(self) -> None:
        self._runs: list[tuple[float, int, int, Times, Item]] = []
        self._serial = 0

    def put(self, item: Item, due: Times) -> None:
        """Keep an item until its packets are due, at `due` (n,) seconds, which never fall."""
        heapq.heappush(self._runs, (float(due[0]), self._serial, 0, due, item))
        self._serial += 1

    def deadline(self) -> float | None:
        """Return the time at which the next packet is due, in seconds; None: there is none."""
        return self._runs[0][0] if self._runs else None

    def pop(self, now: float) -> Iterator[tuple[Item, int, int]]:
        """Take out due packets in order; yield each item with its due range start..stop-1."""
        while self._runs and self._runs[0][0] <= now:
            _, serial, start, due, item = heapq.heappop(self._runs)
            stop = int(np.searchsorted(due, now, "right"))
            if self._runs and self._runs[0][0] <= now:  # another run comes in between, or after
                first, other = self._runs[0][:2]
                before = np.searchsorted(due, first, "right" if serial < other else "left")
                stop = max(start + 1, int(before))
            if stop < len(due):
                heapq.heappush(self._runs, (float(due[stop]), serial, stop, due, item))
            yield item, start, stop

    def clear(self) -> Iterator[tuple[Item, int, int]]:
        """Take out all packets that are still under way."""
        return self.pop(np.inf)
