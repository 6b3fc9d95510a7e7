"""Writes records into a ring, and reads them: the layout is in the room's page."""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from iswitch.core.format.packets import MAX_SUPER, Outgoing, Rows

from .memory import HEAD, LINE, BrokenRing

WRITTEN, SLEEPS, TAKEN, GROUP = range(0, 4 * LINE // 8, LINE // 8)  # words of a head
RECORD = struct.Struct("=qqqqq")  # bytes, packets, bytes of a packet, of the last one, ToS
GROUP_SHIFT = 40  # GROUP holds the group's number above these bits, and lines taken below, modulo
GROUP_LINES = (1 << GROUP_SHIFT) - 1
PIECE = 1 << 18  # bytes of a record at most, so that its reader can begin early


def group_word(number: int, taken: int) -> int:
    """Return what a reader of a group's ring says in GROUP.

    Args:
        number: the group's.
        taken: bytes that it has taken.
    """
    return number << GROUP_SHIFT | ((taken // LINE) & GROUP_LINES)


def group_taken(word: int, before: int, written: int) -> int:
    """Return the bytes that a reader of a group's ring has taken; more than there are, none.

    Args:
        word: its GROUP.
        before: the bytes that it had taken when it was looked at last.
        written: the bytes that were written into the ring.
    """
    ahead = ((word - before // LINE) & GROUP_LINES) * LINE
    return before + ahead if ahead <= written - before else before


def fence() -> None:
    """Finish all stores before any later load: taking a lock is an atomic instruction."""
    with threading.Lock():  # of its own: a lock of all threads could be taken for ever by a fork
        pass


class Packets(NamedTuple):
    """The packets of a record: as a `Burst`, without its sender."""

    tos: int
    rows: Rows
    tail: int


def pieces(out: Outgoing, piece: int = PIECE) -> Iterator[tuple[Packets, Rows]]:
    """Yield the records of packets to send, of `piece` bytes, each with the rows from it on."""
    tos, rows, tail = out[1:]
    n, size = rows.shape
    step = max(1, piece // size)
    for a in range(0, n, step):
        yield Packets(tos, rows[a : a + step], tail if a + step >= n else size), rows[a:]


class Writer:
    """Writes into a ring.

    Args:
        memory: made by `create`.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self.words = memoryview(memory)[:HEAD].cast("q")
        self.data = np.frombuffer(memory, np.uint8, offset=HEAD)
        self._heads = memoryview(memory)[HEAD:]
        self.size = len(self.data)
        self.written = 0

    def put(self, packets: Packets, taken: int) -> bool:
        """Write a record; False: there is no room for it. The arguments are those of `lay`."""
        if not self.lay(packets, taken):
            return False
        self.words[WRITTEN] = self.written
        return True

    def lay(self, packets: Packets, taken: int) -> bool:
        """Write a record that does not count yet; False: there is no room for it.

        Args:
            packets: the packets.
            taken: bytes that all readers have taken; what lies behind them is not overwritten.
        """
        tos, rows, tail = packets
        count, size = rows.shape
        nbytes = count * size
        length = -(-(LINE + nbytes) // LINE) * LINE
        at = self.written % self.size
        rest = self.size - at
        gap = rest if length > rest else 0
        if self.written + gap + length - taken > self.size:
            return False
        if gap:
            RECORD.pack_into(self._heads, at, gap, 0, 0, 0, 0)
            self.written += gap
            at = 0
        RECORD.pack_into(self._heads, at, length, count, size, tail, tos)
        self.data[at + LINE : at + LINE + nbytes].reshape(count, size)[...] = rows
        self.written += length
        return True


class Reader:
    """Reads a ring that another process writes.

    Args:
        memory: returned by `attach`.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self.words = memoryview(memory)[:HEAD].cast("q")
        self.data = np.frombuffer(memory, np.uint8, offset=HEAD)
        self._heads = memoryview(memory)[HEAD:]
        self.size = len(self.data)
        self.taken = 0
        self._length = 0  # bytes of the record last returned

    def has_more(self) -> bool:
        """Return whether a record is there."""
        return self.words[WRITTEN] != self.taken

    def next(self) -> Packets | None:
        """Return the packets of the next record, where they lie; None: there is none.

        `take` it before the next call.

        Raises:
            BrokenRing: the writer has written what cannot be.
        """
        while True:
            there = self.words[WRITTEN] - self.taken
            if not there:
                return None
            at = self.taken % self.size
            if not LINE <= there <= self.size or self.taken % LINE:
                raise BrokenRing("positions that cannot be")
            length, count, size, tail, tos = RECORD.unpack_from(self._heads, at)
            if length % LINE or not LINE <= length <= min(there, self.size - at):
                raise BrokenRing("a record that cannot be")
            if count:
                break
            if not at or length != self.size - at:
                raise BrokenRing("an empty record that fills nothing")
            self.taken += length
        whole = 0 < count * size <= length - LINE
        if not (0 < tail <= size <= MAX_SUPER and whole and 0 <= tos <= 0xFF):
            raise BrokenRing("a record of packets that cannot be")
        self._length = length
        return Packets(tos, self.rows(at + LINE, count, size), tail)

    @property
    def place(self) -> int:
        """Return where the packets of the record last returned begin in the ring, in bytes."""
        return self.taken % self.size + LINE

    def rows(self, at: int, count: int, size: int) -> Rows:
        """Return packets that lie in the ring, (count, size)."""
        return self.data[at : at + count * size].reshape(count, size)

    def take(self) -> None:
        """Give up the record last returned; its packets may be overwritten from now on."""
        self.taken += self._length
        self._length = 0


class Sleeper:
    """Says in memory of our own that we sleep.

    Args:
        words: the head of that memory.
    """

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self.sleeps = 0
        self.number = 0

    def lie_down(self) -> None:
        """Want the bell rung from now on; look into the rings once more before the sleep."""
        if not self.sleeps:
            self.number += 1
            self.sleeps = self.words[SLEEPS] = self.number

    def get_up(self) -> None:
        """Want no bell."""
        if self.sleeps:
            self.sleeps = self.words[SLEEPS] = 0


def check_bell(fd: int) -> None:
    """Make sure that a descriptor from another process is an eventfd that keeps nobody waiting.

    Raises:
        BrokenRing: it is another thing.
    """
    if os.readlink(f"/proc/self/fd/{fd}") != "anon_inode:[eventfd]":
        raise BrokenRing("a bell that is no eventfd")
    os.set_blocking(fd, False)


class Bell:
    """Wakes the other side up if it sleeps.

    Args:
        words: the head of its memory.
        fd: its eventfd.
    """

    def __init__(self, words: memoryview, fd: int) -> None:
        self._words = words
        self.fd = fd
        self.rung = 0

    def ring(self) -> None:
        """Wake the other side up; call this after a record is written, and `fence`."""
        number = self._words[SLEEPS]
        if number and number != self.rung:
            self.rung = number
            os.set_blocking(self.fd, False)  # the other side can change that
            with suppress(BlockingIOError):  # it is full: whoever fills it need not be woken
                os.eventfd_write(self.fd, 1)
