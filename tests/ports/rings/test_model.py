"""Random schedules of a ring's writer and reader, on a processor that delays stores (x86-64's TSO).

Every load and store of a word in shared memory is a point at which the other side may run. A store
waits in its side's buffer, behind earlier ones, until chance or a fence lets it out; its own side
sees it at once. The oracle: the reader gets every record once, whole and in order, and it does not
sleep for good while records are there.
"""

from __future__ import annotations

import os
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import TOS_DATA
from iswitch.ports.rings import ring
from iswitch.ports.rings.memory import HEAD, BrokenRing
from iswitch.ports.rings.ring import SLEEPS, TAKEN, Bell, Packets, Reader, Sleeper, Writer, pieces

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "100"))
SIZE = 512
RECORDS = 7
POINTS = 5000  # of a play at most: longer ones get nowhere


class Stopped(BaseException):
    """The play is over."""


class Play:
    """Runs one side at a time, and changes sides at points, as a seed draws."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.stuck = False
        self.points = 0
        self.buffers: tuple[deque[tuple[Words, int, int]], ...] = (deque(), deque())
        self.turn = 0
        self._batons = [threading.Semaphore(0) for _ in range(2)]
        self._waits: dict[int, Callable[[], bool]] = {}
        self._alive = {0, 1}

    def point(self, until: Callable[[], bool] | None = None) -> None:
        """Perhaps run the other side; with `until`, sleep until that holds."""
        side = self.turn
        self.points += 1
        if until is not None:
            self._waits[side] = until
        self._pass_on(side)
        if self.stuck:
            raise Stopped
        self._waits.pop(side, None)

    def _pass_on(self, side: int) -> None:
        for buffer in self.buffers:
            while buffer and self.chance.random() < 0.2:
                self.let_out(buffer)
        able = self._able()
        if not able:  # stores come out some time, and that may wake a side up
            for buffer in self.buffers:
                while buffer:
                    self.let_out(buffer)
            able = self._able()
        if not able or self.points > POINTS:
            self.stop()
            return
        self.turn = self.chance.choice(able)
        if self.turn != side:
            self._batons[self.turn].release()
            if side in self._alive:
                self._batons[side].acquire()

    def _able(self) -> list[int]:
        return [s for s in sorted(self._alive) if s not in self._waits or self._waits[s]()]

    def stop(self) -> None:
        self.stuck = bool(self._alive)
        for baton in self._batons:
            baton.release()

    @staticmethod
    def let_out(buffer: deque[tuple[Words, int, int]]) -> None:
        words, at, value = buffer.popleft()
        words.memory[at] = value

    def fence(self) -> None:
        buffer = self.buffers[self.turn]
        while buffer:
            self.let_out(buffer)
        self.point()

    def run(self, *sides: Callable[[], None]) -> None:
        def one(number: int) -> None:
            self._batons[number].acquire()
            try:
                if not self.stuck:
                    sides[number]()
            except Stopped:
                return
            except Exception as error:
                errors.append(error)
                self.stop()
                return
            self._alive.discard(number)
            if self._alive:
                self._pass_on(number)

        errors: list[Exception] = []
        threads = [threading.Thread(target=one, args=(number,)) for number in range(len(sides))]
        for thread in threads:
            thread.start()
        self._batons[0].release()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


class Words:
    """The words of a memory's head, behind store buffers."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.memory: dict[int, int] = {}

    def __getitem__(self, at: int) -> int:
        self.play.point()
        for words, where, value in reversed(self.play.buffers[self.play.turn]):
            if words is self and where == at:
                return value
        return self.memory.get(at, 0)

    def __setitem__(self, at: int, value: int) -> None:
        self.play.point()
        self.play.buffers[self.play.turn].append((self, at, value))
        self.play.point()


class Eventfd:
    """Rings: edges, which a sleep uses up."""

    def __init__(self) -> None:
        self.edges = 0

    def ring(self, *_: int) -> None:
        self.edges += 1


class Ends:
    """Both ends of a ring, in Python.

    Args:
        play: has the schedule.
        eventfd: the reader's bell.
        monkeypatch: puts the model in place of the system.
    """

    writer: Any
    reader: Any
    sleeper: Any
    bell: Any

    def __init__(self, play: Play, eventfd: Eventfd, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.eventfd_write", eventfd.ring)
        self.memory = bytearray(HEAD + SIZE)
        self.ours, self.theirs = Words(play), Words(play)
        self.writer, self.reader = Writer(self.memory), Reader(self.memory)  # type: ignore[arg-type]
        self.writer.words = self.reader.words = self.ours
        self.sleeper = Sleeper(self.theirs)  # type: ignore[arg-type]
        self.bell = Bell(self.theirs, 0)  # type: ignore[arg-type]

    def fence(self) -> None:
        """Finish the stores of a record, before its writer looks whether to ring."""
        ring.fence()


def played(
    seed: int, monkeypatch: pytest.MonkeyPatch, kind: type[Ends] = Ends
) -> tuple[list[bytes], list[bytes], bool]:
    """Return the records sent, those received, and whether the reader sleeps for good."""
    play, eventfd = Play(seed), Eventfd()
    monkeypatch.setattr(ring, "fence", play.fence)
    ends = kind(play, eventfd, monkeypatch)
    writer, reader, sleeper, bell = ends.writer, ends.reader, ends.sleeper, ends.bell
    theirs = ends.theirs
    sizes = [play.chance.randint(1, 150) for _ in range(RECORDS)]
    sent = [bytes([i]) * size for i, size in enumerate(sizes)]
    received: list[bytes] = []

    def write() -> None:
        for record in sent:
            rows = np.frombuffer(record, np.uint8).reshape(1, -1)
            while not writer.put(Packets(TOS_DATA, rows, len(record)), theirs[TAKEN]):
                play.point()
            ends.fence()
            bell.ring()

    def read() -> None:
        while len(received) < len(sent):
            sleeper.get_up()
            while (packets := reader.next()) is not None:
                play.point()
                received.append(packets.rows.tobytes())
                reader.take()
                theirs[TAKEN] = reader.taken
            sleeper.lie_down()
            ring.fence()
            if not reader.has_more() and len(received) < len(sent):
                play.point(until=lambda: eventfd.edges > 0)
                eventfd.edges = 0

    play.run(write, read)
    return sent, received, play.stuck


@pytest.mark.parametrize("some", range(0, SEEDS, 50))
def test_every_record_comes_once_and_no_wake_up_is_lost(
    some: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(some, min(some + 50, SEEDS)):
        sent, received, stuck = played(seed, monkeypatch)
        assert not stuck, f"seed {seed}: asleep for good, with {len(received)} of {len(sent)}"
        assert received == sent, f"seed {seed}"


@pytest.mark.parametrize("defect", ["no fence", "no second look", "taken too early"])
def test_the_model_finds(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The classic defects; so the model can fail."""
    if defect == "no fence":
        monkeypatch.setattr(Play, "fence", lambda self: self.point())
    elif defect == "no second look":
        monkeypatch.setattr(Reader, "has_more", lambda _: False)
    else:
        whole = Reader.next

        def hasty(self: Reader) -> Packets | None:
            packets = whole(self)
            if packets is not None:
                at, self._length = self._length, 0
                self.taken += at
            return packets

        monkeypatch.setattr(Reader, "next", hasty)
        monkeypatch.setattr(
            Writer,
            "put",
            lambda self, packets, taken, put=Writer.put: put(self, packets, taken + SIZE // 2),
        )
    for seed in range(200):
        try:
            sent, received, stuck = played(seed, monkeypatch)
        except BrokenRing:
            return
        if stuck or received != sent:
            return
    pytest.fail("not found")


def test_records_are_cut_where_their_reader_can_begin_early() -> None:
    rows = np.arange(3000 * 1472, dtype=np.int64).astype(np.uint8).reshape(3000, 1472)
    cut = list(pieces(Outgoing((), TOS_DATA, rows, 100)))
    assert np.array_equal(np.concatenate([packets.rows for packets, _ in cut]), rows)
    assert [packets.tail for packets, _ in cut] == [1472] * (len(cut) - 1) + [100]
    assert all(packets.rows.nbytes <= ring.PIECE for packets, _ in cut)
    assert all(len(rest) == 3000 - 178 * i for i, (_, rest) in enumerate(cut))


def test_the_words_have_cache_lines_of_their_own() -> None:
    words = (ring.WRITTEN, SLEEPS, TAKEN, ring.GROUP)
    assert [8 * word for word in words] == [0, 64, 128, 192]
