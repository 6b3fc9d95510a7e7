"""A member of a job whose segments have owners: gives and gets blocks, in rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from iswitch.core.format.wire import Mode, Shape, Vector
from worker_lib.protocol.own import Blocks

from . import arguments
from .errors import AllreduceTimeout, MemberLost, WorkerError
from .opening import Opening
from .rounds import RoundWorker

FIRST = 64 << 10  # bytes that a rank is sent at most before it begins a call: the least socket's
CONTINUED = AllreduceTimeout, MemberLost  # after these, the same call continues


class Exchanging(RoundWorker):
    """A member of a job whose segments have owners.

    Args:
        opening: what every worker is given.
        shape: layout of the blocks.
        resized: returns that layout with other elements per segment.
        on_member_lost: reaction to the loss of a worker.
        terms: further arguments of `RoundTerms`.
    """

    def __init__(
        self,
        opening: Opening,
        shape: Shape,
        resized: Callable[[int], Shape],
        on_member_lost: object,
        **terms: Any,
    ) -> None:
        self._unfinished: tuple[object, int, list[Vector]] | None = None
        self._workers = shape.owners
        super().__init__(opening, shape, resized, on_member_lost, whole=True, **terms)

    @property
    def capacity(self) -> int:
        """Return the elements of a block that one round takes, `numel` or a few more."""
        shape = self.shape
        return (shape.segments - 1) // shape.blocks * shape.elements

    def reset(self) -> int:
        """Clear the job's buffers and forget a call that failed; return the round to resume from.

        The other workers' calls raise JobReset.
        """
        round_ = super().reset()
        self._unfinished = None
        return round_

    def _exchange(
        self,
        what: object,
        gives: Blocks,
        gets: Blocks,
        sizes: Sequence[int] | None,
        timeout: float | None,
        times: int = 1,
    ) -> None:
        """Give blocks to the others and get theirs, in as many rounds as that takes.

        Args:
            what: the method and its root.
            gives: the blocks that this rank gives.
            gets: receives the blocks that it gets.
            sizes: elements of all blocks of all ranks; None: not known here.
            timeout: seconds.
            times: how often these blocks occur.
        """
        wait = self.timeout if timeout is None else arguments.seconds("timeout", timeout)
        call = what, [len(block) for block in gives], [len(block) for block in gets]
        with self._call():
            start = self._resumed(call, gets)
            elements, all_sizes = self.shape.elements, np.asarray(sizes or [], np.int64)
            if not start and _overlap(gives, gets, self._room(0)):
                gives = [block.copy() for block in gives]
            limit = time.monotonic() + wait
            more = sizes is None or not start or bool((all_sizes > start).any())
            round_, stop = self._session.round, start
            try:
                while more:
                    round_, stop = self._session.round, start + self._room(start)
                    here = np.clip(all_sizes, start, stop) - start
                    total = None if sizes is None else times * int((-(-here // elements)).sum())
                    pieces = _piece(gives, start, stop), _piece(gets, start, stop)
                    left = max(limit - time.monotonic(), 0.0)
                    found = self._membership.exchange(*pieces, total, left)
                    if sizes is None:  # whoever has more to give has filled a block
                        more = found * elements >= stop - start
                    else:
                        more = bool((all_sizes > stop).any())
                    start = stop
                self._unfinished = None
            except BaseException as error:  # the round stays open after Ctrl-C, too
                if self._session.round != round_:  # that one is over, if only just
                    start = stop
                continues = not isinstance(error, WorkerError) or isinstance(error, CONTINUED)
                had = [block[:start].copy() for block in gets]
                self._unfinished = (call, start, had) if continues else None
                raise

    def _room(self, start: int) -> int:
        """Return how many elements of a block go into the round that begins with this one.

        Where a rank is sent what others give before it gives anything itself, its socket has to
        hold the first round of a call. When that is over, all are in the call, and read.
        """
        if start or self.shape.mode is Mode.REDUCE_SCATTER:
            return self.capacity
        segments = max(1, FIRST // (self.shape.owners * self.shape.packet_size))
        return min(segments * self.shape.elements, self.capacity)

    def _resumed(self, call: object, gets: Blocks) -> int:
        """Return the element of a block with which to begin: not 0 if this call failed before."""
        if self._unfinished is None:
            return 0
        former_call, start, former = self._unfinished
        if former_call != call:
            raise ValueError(
                "the call before this one failed, and others may be waiting in it: make it again "
                "with blocks of those sizes, or reset() the job"
            )
        for block, had in zip(gets, former, strict=True):
            block[:start] = had[:start]
        return start


def _piece(blocks: Blocks, start: int, stop: int) -> Blocks:
    """Return elements start..stop-1 of each block."""
    if isinstance(blocks, np.ndarray):
        return blocks[:, start:stop]
    return [block[start:stop] for block in blocks]


def _overlap(gives: Blocks, gets: Blocks, room: int) -> bool:
    """Return whether results could be written over what later rounds have yet to send."""
    if max((len(block) for block in gives), default=0) <= room:
        return False
    return any(
        given is not got and np.may_share_memory(given, got) for given in gives for got in gets
    )
