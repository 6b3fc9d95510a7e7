"""Workers that share a table of a parameter server, and what they and the server say.

A worker begins with a message of JSON (`rendezvous.say`) that says what group it is of, and
gets another when all workers of the group are there. Then headers follow, each with what it
announces: values of blocks, from the first to the last, or `count` indices and values of one. What
is pulled is answered in order, bare.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from contextlib import suppress
from enum import IntEnum
from math import inf
from typing import Any

import numpy as np

from .errors import PeerLost
from .ps_table import ASYNCHRONOUS, Shape, Table
from .tcp import Connection

HEADER = struct.Struct("<IIII")  # kind, count, first and last block
GREETING = 2.0  # seconds for a worker to say who it is, and for a server to answer


class Kind(IntEnum):
    """What a header announces. PULL, alone or in the name: the range is to be answered."""

    PUSH = 1
    PULL = 2
    PUSH_PULL = 3
    PUSH_SOME = 5
    PUSH_SOME_PULL = 7


SOME = 4  # bit of a kind: indices and values follow


class Group:
    """Workers that share a table."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        numel, block, self.num_workers, tau = shape
        lag = inf if tau == ASYNCHRONOUS else tau
        self.table = Table(numel, block, self.num_workers, lag)
        self.workers: dict[int, Client] = {}
        self.gone: set[int] = set()
        self.lost: set[int] = set()  # of those, whom somebody waited for

    def advance(self) -> None:
        """Answer what can be answered."""
        for worker in list(self.workers.values()):
            worker.answer()

    def leave(self, client: Client) -> None:
        """Without it, whoever waits for it waits in vain: those are sent away, and may ask why."""
        del self.workers[client.rank]
        self.gone.add(client.rank)
        for worker in list(self.workers.values()):
            worker.end_if_in_vain()

    def status(self) -> dict[str, Any]:
        """Who is lost while others wait, and for whom the pulls wait."""
        behind = {
            rank
            for worker in self.workers.values()
            if worker.pulls
            for rank in self.table.behind(worker.rank, worker.pulls[0])
        }
        return {"lost": sorted(self.lost), "behind": sorted(behind)}


class Client(Connection):
    """A worker, as its server sees it."""

    def __init__(self, sock: socket.socket, group: Group, rank: int) -> None:
        super().__init__(sock, f"rank {rank}", GREETING)
        self.group = group
        self.rank = rank
        self.pulls: deque[int] = deque()  # blocks, not answered yet
        self._header = bytearray(HEADER.size)
        self._scratch = np.empty(group.table.block, np.float32)
        self._blocks: deque[int] = deque()  # to come, of what the header announced
        self._kind = Kind.PULL
        self._expect(memoryview(self._header))

    def _expect(self, view: memoryview) -> None:
        self._view = view

    def read(self) -> None:
        """Take what has come, up to a block.

        Raises:
            PeerLost: it has left, or does not speak the protocol.
        """
        while got := self.take(self._view):
            self._view = self._view[got:]
            if self._view:
                continue
            if not self._blocks:
                self._begin()
            else:
                self._finish_block()
                return

    def _begin(self) -> None:
        """A header has come."""
        kind, count, first, last = HEADER.unpack(self._header)
        table = self.group.table
        if kind not in iter(Kind) or not first <= last < len(table.clock):
            raise PeerLost(self.peer, "it does not speak the protocol")
        self._kind = Kind(kind)
        if self._kind is Kind.PULL:
            self.pulls.extend(range(first, last + 1))
            self.answer()
            self._expect(memoryview(self._header))
            return
        self._blocks.extend(range(first, last + 1))
        if kind & SOME:
            if first != last or count > table.size(first):
                raise PeerLost(self.peer, "it pushes more than a block")
            self._some = np.empty((2, count), np.uint32)
        self._expect_block()

    def _expect_block(self) -> None:
        if not self._kind & SOME:
            size = self.group.table.size(self._blocks[0])
            self._expect(self._scratch[:size].data.cast("B"))
        elif self._some.size:
            self._expect(self._some.data.cast("B"))
        else:
            self._finish_block()

    def _finish_block(self) -> None:
        """A block of what was announced has come."""
        number = self._blocks.popleft()
        table = self.group.table
        size = table.size(number)
        if self._kind & SOME:
            indices, values = self._some[0], self._some[1].view(np.float32)
            if (indices >= size).any() or (indices[1:] <= indices[:-1]).any():
                raise PeerLost(self.peer, "its indices are not of the block, or do not rise")
            was_waited_for = table.push_some(self.rank, number, indices, values)
        else:
            was_waited_for = table.push(self.rank, number, self._scratch[:size])
        if self._kind & Kind.PULL:
            self.pulls.append(number)
        if was_waited_for:
            self.group.advance()
        else:
            self.answer()
        if self._blocks:
            self._expect_block()
        else:
            self._expect(memoryview(self._header))

    def answer(self) -> None:
        """Send of what was pulled what is there."""
        table = self.group.table
        while self.pulls and table.ready(self.rank, self.pulls[0]):
            self.queue.append(table.read(self.rank, self.pulls.popleft()).data.cast("B"))
        with suppress(PeerLost):  # it will be read that it has left
            self.flush()
        self.end_if_in_vain()

    def end_if_in_vain(self) -> None:
        """If it waits for one who has left, send it away."""
        group = self.group
        if not self.pulls or not group.gone:
            return
        if lost := group.gone.intersection(group.table.behind(self.rank, self.pulls[0])):
            group.lost = group.lost or lost  # who are sent away for that will be missed, too
            self.pulls.clear()
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)  # read as an end, by both
