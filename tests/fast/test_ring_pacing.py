"""Links with a rate in compiled code bring the same packets at the same times as in Python."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.counters import Counters
from iswitch.fast import loading
from iswitch.fast import ring_table as r
from iswitch.fast.ring_lanes import LentLanes
from iswitch.faults.impairment import Impairment
from iswitch.faults.line import Line
from iswitch.ports.kernel.mmsg import address_of
from iswitch.ports.rings import due
from iswitch.ports.rings.memory import HEAD
from iswitch.ports.rings.pacing import Inlet, Lane, sizes_of
from iswitch.ports.rings.ring import Packets, Reader
from tests.ports.rings.test_pacing import check_inlets

numba = pytest.importorskip("numba")

SEEDS = range(200)
ADDRESSES = np.zeros(HEAD, np.uint8)  # where the switch's own memory for a worker would be


@pytest.fixture(scope="module")
def kernels(checked: None) -> Any:  # noqa: ARG001 (they are made while it holds)
    """The functions of kernels, with every index checked."""
    pacing = loading.load("ring_pacing")

    class Kernels:
        look = staticmethod(numba.njit(lambda rings, now: pacing.look(rings, rings.rings[0], now)))
        come = staticmethod(numba.njit(lambda rings, now: pacing.come(rings.rings[0], now)))
        hand_on = staticmethod(
            numba.njit(lambda rings, i, stop: pacing.hand_on(rings.rings[0], i, stop))
        )
        soonest = staticmethod(numba.njit(lambda rings: pacing.soonest(rings)))
        has_room, send = pacing.has_room, pacing.send

    return Kernels


class Turns(Inlet):
    """An inlet that kernels and Python serve in turns, at random."""

    def __init__(self, reader: Reader, lane: Lane, kernels: Any, seed: int) -> None:
        super().__init__(reader, lane)
        self.kernels, self.chance = kernels, random.Random(seed)
        self.lanes = LentLanes([lane])
        none = np.zeros(0, np.int64)
        rings = np.zeros((1, r.RING), np.int64)
        row = rings[0]
        row[r.UP], row[r.UP_SIZE] = address_of(reader.data) - HEAD, reader.size
        row[r.OURS] = address_of(ADDRESSES)
        row[r.COMING], row[r.COMING_ENDS] = address_of(self.table), address_of(self.ends)
        outs, readers = (
            np.zeros((0, r.OUT_RING), np.int64),
            np.zeros((0, r.READER_COLUMNS), np.int64),
        )
        self.tables = r.Rings(rings, outs, readers, self.lanes.table, *[none] * 4)

    def look(self, now: float) -> bool:
        if self.chance.random() < 0.3:
            return super().look(now)
        self.lanes.lend(now)
        self.tables.rings[0, r.UP_TAKEN] = self._reader.taken
        while True:
            before = self.tables.rings[0, r.UP_TAKEN]
            plain = self.kernels.look(self.tables, now)
            if not plain or self.tables.rings[0, r.UP_TAKEN] == before:
                break
        self._reader.taken = int(self.tables.rings[0, r.UP_TAKEN])
        assert self.lanes.settle()
        return False if plain else super().look(now)

    def read(self, now: float) -> Iterator[Packets]:
        if self.chance.random() < 0.3:
            yield from super().read(now)
            return
        while True:
            i, stop = self.kernels.come(self.tables, now)
            if i < 0:
                return
            at, packets, size, tail, tos, given, *_ = self.table[i].tolist()
            rows = self._reader.rows(at, packets, size)[given:stop]
            self.kernels.hand_on(self.tables, i, stop)
            yield Packets(tos, rows, tail if stop == packets else size)

    def deadline(self) -> float | None:
        found, soonest = super().deadline(), self.kernels.soonest(self.tables)
        if found is None:
            assert soonest > 1 << 61
        else:
            assert 0 < soonest - found * 1e9 <= 2
        return found


@pytest.mark.parametrize("queue", [1000, 7])
def test_packets_come_when_their_link_has_brought_them(queue: int, kernels: Any) -> None:
    numbers = count()
    check_inlets(queue, lambda reader, lane: Turns(reader, lane, kernels, next(numbers)))


def test_what_a_line_decides_is_decided_to_the_bit(kernels: Any) -> None:
    """First and last of all packets, and what is in the queue afterwards."""
    refused = 0
    for seed in SEEDS:
        chance = random.Random(seed)
        given = Impairment(
            rate=chance.choice((10**6, 10**9, 10**10)),
            delay=chance.choice((0.0, 1e-3)),
            queue=chance.choice((40, 1000)),
        )
        line, lane = Line(given, (0,)), Lane(given, "in", Counters())
        lent, now = LentLanes([lane]), chance.random() * 1e5
        for _ in range(5):
            lent.lend(now)
            for _ in range(chance.randint(1, 20)):
                now += chance.choice((0.0, 1e-5, 1e-3, 1e-2))
                packets, size = chance.randint(1, 60), chance.randint(1, 1472)
                tail = chance.randint(1, size)
                if not kernels.has_room(lent.table[0], packets, 1, now):
                    refused += 1
                    break
                first, each, last = kernels.send(lent.table[0], packets, size, tail, now)
                want = line.fates(sizes_of(packets, size, tail), now).due
                assert len(want) == packets, f"seed {seed}: no room"
                assert (first, last) == (want[0], want[-1]), f"seed {seed}"
                steps = [due.due_of(first, each, last, packets, i) for i in range(packets)]
                assert np.allclose(steps, want, rtol=0, atol=1e-8)
            assert lent.settle()
            assert lane.line.busy == line.busy
            assert lane.line.waiting(now) == line.waiting(now), f"seed {seed}"
    assert refused > 20, "the queues never fill"


def test_a_link_to_several_readers_has_room_for_all_of_them(kernels: Any) -> None:
    """What each is sent takes a row of the link's table, and no row is overwritten."""
    lane = Lane(Impairment(rate=10**9, queue=1000), "out", Counters())
    lent = LentLanes([lane])
    lent.lend(1.0)
    row, sizes = lent.table[0], count(100)
    while kernels.has_room(row, 3, 3, 1.0):
        size = next(sizes)
        for _ in range(3):
            kernels.send(row, 1, size, size, 1.0)
    assert row[r.SENT_STOP] == r.MOST_SENT // 3 * 3
    assert lent.settle()  # the line itself gives the same times


def test_a_link_that_differs_is_told_of_and_keeps_the_later_time(kernels: Any) -> None:
    lane = Lane(Impairment(rate=10**9, queue=1000), "out", Counters())
    lent = LentLanes([lane])
    lent.lend(1.0)
    kernels.send(lent.table[0], 3, 1000, 1000, 1.0)
    later = lent.table[0].view(np.float64)[r.BUSY] = 2.0
    assert not lent.settle()
    assert lane.line.busy == later
    lent.lend(1.0)
    assert lent.settle()
