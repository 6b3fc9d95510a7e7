"""The kernels' ends of a ring, in the model of a processor that delays stores.

The functions of `records` are run in Python, as they stand, on the words of the model: each load
and store of them is a point at which the other side may run.
"""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest

from iswitch.fast import loading
from iswitch.fast.ring_table import NEAR
from iswitch.ports.rings.memory import HEAD, BrokenRing
from iswitch.ports.rings.ring import Packets
from tests.ports.rings.test_model import SIZE, Ends, Eventfd, Play, Words, played

numba = pytest.importorskip("numba")
pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "100"))
THEIRS = 1 << 20  # address of the reader's memory; the writer's is at 0
WORD = struct.Struct("=q")


class KernelEnds(Ends):
    """Both ends of a ring, of the functions that kernels are made of."""

    def __init__(self, play: Play, eventfd: Eventfd, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(play, eventfd, monkeypatch)
        self.play = play
        self.records = records = loading.load("records")
        monkeypatch.setattr(records, "load_acquire", self.load)
        monkeypatch.setattr(records, "store_release", self.store)
        monkeypatch.setattr(records, "copy_lines", self.copy)
        monkeypatch.setattr(records, "fence", self.settle)
        monkeypatch.setattr(records, "nanoseconds", lambda _: 0)
        for part in ("lay", "length_of", "open_record", "describe", "show"):
            part_ = getattr(records, part)
            monkeypatch.setattr(records, part, getattr(part_, "py_func", part_))
        monkeypatch.setattr(records, "write", eventfd.ring)
        monkeypatch.setattr(records, "fcntl", lambda *_: 0)
        self.writer = self.reader = self.sleeper = self.bell = self
        self.written = self.taken = self.rung = self.sleeps = self.number = self._length = 0
        self.past: list[tuple[int, bytes]] = []

    # Memory

    def _words(self, address: int) -> tuple[Words, int]:
        return (self.theirs if address >= THEIRS else self.ours), address % THEIRS // WORD.size

    def load(self, address: int) -> int:
        if HEAD <= address < THEIRS:
            return int(WORD.unpack_from(self.memory, address)[0])
        words, at = self._words(address)
        return words[at]

    def store(self, address: int, value: int) -> None:
        if HEAD <= address < THEIRS:
            WORD.pack_into(self.memory, address, value)
        else:
            words, at = self._words(address)
            words[at] = value

    def copy(self, target: int, source: bytes, size: int, past: bool) -> None:
        assert target + size <= HEAD + SIZE
        if past:
            self.past.append((target, source[:size]))
        else:
            self.memory[target : target + size] = source[:size]

    def settle(self) -> None:
        """Let the reader see all stores, and what was copied past the caches."""
        for target, source in self.past:
            self.memory[target : target + len(source)] = source
        self.past.clear()
        self.play.fence()

    def fence(self) -> None:
        """Nothing: `show` has done it."""

    # The ends

    def put(self, packets: Packets, taken: int) -> bool:
        tos, rows, tail = packets
        before, past = self.written, self.play.chance.random() < 0.5
        again = self.play.chance.choice((1, 128, SIZE))
        self.written, _ = self.records.put.py_func(
            0, SIZE, before, taken, rows.tobytes(), *rows.shape, tail, tos, past, again, 0, 0
        )
        return self.written > before

    def ring(self) -> None:
        self.rung = self.records.call.py_func(THEIRS, 0, self.rung, 0)

    def next(self) -> Packets | None:
        found, self.taken, self._length, packets, step, tail, tos = (
            self.records.next_record.py_func(0, SIZE, self.taken)
        )
        if found == self.records.BROKEN:
            raise BrokenRing
        if found == self.records.EMPTY:
            return None
        at = HEAD + self.taken % SIZE + self.records.LINE
        rows = np.frombuffer(self.memory, np.uint8, packets * step, at).reshape(packets, step)
        return Packets(tos, rows.copy(), tail)

    def take(self) -> None:
        self.taken += self._length

    def has_more(self) -> bool:
        return self.load(self.records.WRITTEN) != self.taken

    def lie_down(self) -> None:
        self.sleeps, self.number = self.records.lie_down.py_func(THEIRS, self.sleeps, self.number)

    def get_up(self) -> None:
        self.sleeps = self.records.get_up.py_func(THEIRS, self.sleeps)


def test_every_record_comes_once_and_no_wake_up_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(SEEDS):
        sent, received, stuck = played(seed, monkeypatch, KernelEnds)
        assert not stuck, f"seed {seed}: asleep for good, with {len(received)} of {len(sent)}"
        assert received == sent, f"seed {seed}"


def test_a_writer_follows_its_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes past the caches soon when they are far, and no more some time after."""
    records = loading.load("records")
    monkeypatch.setattr(records, "store_release", lambda *_: None)
    monkeypatch.setattr(records, "fence", lambda: None)
    times: list[int] = []
    monkeypatch.setattr(records, "nanoseconds", lambda _: times.pop(0))
    apart = 0

    def show(took: int) -> bool:
        nonlocal apart
        times[:] = 1000, 1000 + took
        apart = records.show.py_func(0, 64, apart, 0)
        return bool(apart < NEAR)

    assert all(show(took) for took in (20, 20, 60, 20, 70) * 20)
    assert show(5_000_000), "something came between"
    assert all(show(60) for _ in range(100))
    far = [show(took) for took in (20, 20, 160, 20, 170) * 20]
    assert not any(far[20:])
    near = [show(took) for took in (20, 20, 60, 20, 70) * 20]
    assert all(near[50:])


def test_the_model_finds_a_missing_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Play, "fence", lambda self: self.point())
    assert any(played(seed, monkeypatch, KernelEnds)[2] for seed in range(200))


def test_a_fence_finishes_stores_before_later_loads() -> None:
    """By an instruction that locks, which x86-64 takes for a full barrier."""
    libc = loading.load("libc")

    def slept(base: int) -> int:
        libc.store_release(base, 1)
        libc.fence()
        return int(libc.load_acquire(base + 64))

    compiled = numba.njit(slept)
    compiled(np.zeros(16, np.int64).ctypes.data)
    (code,) = compiled.inspect_asm().values()
    lines = [line.split() for line in code.splitlines()]
    barriers = [i for i, line in enumerate(lines) if line[:1] in (["lock"], ["mfence"])]
    stores = [i for i, line in enumerate(lines) if line[:1] == ["movq"] and "$1," in line]
    loads = [i for i, line in enumerate(lines) if line[:1] == ["movq"] and "64(" in line[-2]]
    assert any(a < b < c for a in stores for b in barriers for c in loads), code
