"""A group of workers that share a table of a parameter server, and the protocol between them.

A worker first sends a JSON message (`messages.say`) that names its group; the server answers with
another when all workers of the group are there. Then the worker sends headers, each followed by its
data: the values of all blocks from the first to the last, or `count` indices and then `count`
values of one block. The server answers pulls in order, with the values alone.
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
GREETING = 2.0  # seconds for a worker to send its first message, and for a server to answer one


class Kind(IntEnum):
    """The kind of a header; the bit PULL asks for the values of the blocks."""

    PUSH = 1
    PULL = 2
    PUSH_PULL = 3
    PUSH_SOME = 5
    PUSH_SOME_PULL = 7


SOME = 4  # bit of a kind: indices and values follow


class Group:
    """A group of workers that share a table.

    Attributes:
        workers: connections of the workers, by rank.
        gone: ranks of workers that have left.
        lost: the ranks of `gone` for which a pull waited first.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        numel, block, self.num_workers, tau = shape
        lag = inf if tau == ASYNCHRONOUS else tau
        self.table = Table(numel, block, self.num_workers, lag)
        self.workers: dict[int, Client] = {}
        self.gone: set[int] = set()
        self.lost: set[int] = set()

    def advance(self) -> None:
        """Answer all pulls that are ready, in order of rank, whoever joined first."""
        for _, worker in sorted(self.workers.items()):
            worker.answer()

    def leave(self, client: Client) -> None:
        """Remove a worker that has left, and disconnect the workers whose pulls wait for it.

        They may then ask for the group's status.
        """
        del self.workers[client.rank]
        self.gone.add(client.rank)
        for worker in list(self.workers.values()):
            worker.end_if_in_vain()

    def status(self) -> dict[str, Any]:
        """Return the ranks that are `lost`, and the ranks `behind`, for which pulls wait."""
        behind = {
            rank
            for worker in self.workers.values()
            if worker.pulls
            for rank in self.table.behind(worker.rank, worker.pulls[0])
        }
        return {"lost": sorted(self.lost), "behind": sorted(behind)}


class Client(Connection):
    """A server's connection to a worker.

    Args:
        sock: the connected socket.
        group: the worker's group.
        rank: the worker's number.
    """

    def __init__(self, sock: socket.socket, group: Group, rank: int) -> None:
        super().__init__(sock, f"rank {rank}", GREETING)
        self.group = group
        self.rank = rank
        self.pulls: deque[int] = deque()  # blocks whose values are still to be sent
        self._header = bytearray(HEADER.size)
        self._scratch = np.empty(group.table.block, np.float32)
        self._blocks: deque[int] = deque()  # announced by the header and not yet received
        self._kind = Kind.PULL
        self._view = memoryview(self._header)

    def read(self) -> None:
        """Receive without blocking, up to the end of one block, and handle what is complete.

        Raises:
            PeerLost: the worker has left, or does not speak the protocol.
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
        """Handle a complete header."""
        kind, count, first, last = HEADER.unpack(self._header)
        table = self.group.table
        if kind not in iter(Kind) or not first <= last < len(table.clock):
            raise PeerLost(self.peer, "it does not speak the protocol")
        self._kind = Kind(kind)
        if self._kind is Kind.PULL:
            self.pulls.extend(range(first, last + 1))
            self.answer()
            self._view = memoryview(self._header)
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
            self._view = self._scratch[:size].data.cast("B")
        elif self._some.size:
            self._view = self._some.data.cast("B")
        else:
            self._finish_block()

    def _finish_block(self) -> None:
        """Add a complete block to the table, and answer the pulls that waited for it."""
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
            self._view = memoryview(self._header)

    def answer(self) -> None:
        """Answer the worker's pulls in order, up to the first that is not ready."""
        table = self.group.table
        while self.pulls and table.ready(self.rank, self.pulls[0]):
            self.queue.append(table.read(self.rank, self.pulls.popleft()).data.cast("B"))
        with suppress(PeerLost):  # the next read notices that the worker has left
            self.flush()
        self.end_if_in_vain()

    def end_if_in_vain(self) -> None:
        """Disconnect the worker if its next pull waits for a worker that has left."""
        group = self.group
        if not self.pulls or not group.gone:
            return
        if lost := group.gone.intersection(group.table.behind(self.rank, self.pulls[0])):
            group.lost = group.lost or lost  # only the first: others are lost because of them
            self.pulls.clear()
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)  # both sides then read the end
