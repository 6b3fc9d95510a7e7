"""Ranks that exchange blocks of owned segments in virtual time, and what each of them must get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from iswitch.core.format.division import divided
from iswitch.core.format.wire import DType, Mode, Op, Vector
from tests.support.tree import Tree
from tests.support.world import Faults
from worker_lib.protocol.owned_session import OwnedSession

MODES = (Mode.REDUCE_SCATTER, Mode.ALL_GATHER, Mode.ALL_TO_ALL)
Given = list[list[Vector]]  # the blocks that each rank gives


def expected(mode: Mode, gives: Given) -> Given:
    """Return the blocks that each rank must get."""
    everyone = range(len(gives))
    if mode is Mode.REDUCE_SCATTER:
        return [[summed([given[b] for given in gives])] for b in everyone]
    if mode is Mode.ALL_GATHER:
        return [[given[0] for given in gives]] * len(gives)
    return [[given[b] for given in gives] for b in everyone]


def summed(blocks: Sequence[Vector]) -> Vector:
    total = blocks[0].copy()
    for block in blocks[1:]:
        total = (total + block).astype(total.dtype)
    return total


def total_given(mode: Mode, shape: Any, gives: Given) -> int:
    """Return how many segments have aggregates in such a round, beside the closing one."""
    counted = gives[:1] if mode is Mode.REDUCE_SCATTER else gives
    return sum(-(-len(block) // shape.elements) for given in counted for block in given)


def numbers(rng: np.random.Generator, count: int, dtype: DType) -> Vector:
    """Draw small whole numbers, whose sums are exact in every type."""
    return rng.integers(0, 4, count).astype(dtype.numpy)


class Ranks(Tree):
    """A job of owned segments; each worker has a rank."""

    def __init__(
        self,
        *fan_outs: int,
        mode: Mode,
        numel: int,
        dtype: DType = DType.FLOAT32,
        op: Op = Op.SUM,
        most: int = 16,
        seed: int = 0,
        faults: Faults | None = None,
        **kwargs: Any,
    ) -> None:
        self.mode = mode
        count = int(np.prod(fan_outs))
        self.shape = divided(numel, count, mode, dtype, op, most)
        super().__init__(
            *fan_outs, seed=seed, faults=faults, shape=self.shape, whole=True, **kwargs
        )
        self.give_ranks_to_all()

    def give_ranks_to_all(self) -> None:
        self.all_there()
        self.give_ranks(self.workers)
        self.run(lambda: len({s.rank for s in self.workers}) == len(self.workers))

    @property
    def ranks(self) -> list[OwnedSession]:
        """The sessions by rank."""
        found = sorted(self.workers, key=lambda session: session.rank)
        return [session for session in found if isinstance(session, OwnedSession)]

    def draw(self, sizes: Sequence[Sequence[int]], seed: int = 0) -> Given:
        """Draw blocks of these sizes for each rank to give."""
        rng = np.random.default_rng(seed)
        return [[numbers(rng, n, self.shape.dtype) for n in given] for given in sizes]

    def begin_blocks(self, gives: Given, late: Sequence[int] = ()) -> Given:
        """Begin a round of all ranks, some 5 ms after the others; return what they get."""
        gets = [[np.full_like(b, 77) for b in g] for g in expected(self.mode, gives)]
        total = total_given(self.mode, self.shape, gives)
        for rank in [rank for rank in range(len(gives)) if rank not in late] + list(late):
            if rank in late:
                self.pass_by(0.005)
            self.ranks[rank].begin_blocks(gives[rank], gets[rank], self.now, total)
        return gets

    def pass_by(self, seconds: float) -> None:
        """Let this time pass, whatever happens or not."""
        end = self.now + seconds
        self.pump()
        while (when := self.network.next_time()) is not None and when <= end:
            self.step()
        self.now = max(self.now, end)

    def end_blocks(self, limit: float = 60.0) -> None:
        sessions = self.ranks
        self.run(lambda: all(s.transfer is not None and s.transfer.done for s in sessions), limit)
        for session in sessions:
            session.finish()

    def exchange(self, gives: Given) -> None:
        """Play a round of all ranks, and hold what they get against what they must get."""
        gets = self.begin_blocks(gives)
        self.end_blocks()
        self.check(gives, gets)

    def check(self, gives: Given, gets: Given) -> None:
        for rank, (want, got) in enumerate(zip(expected(self.mode, gives), gets, strict=True)):
            for block, (a, b) in enumerate(zip(want, got, strict=True)):
                assert a.tobytes() == b.tobytes(), (rank, block)


def even(mode: Mode, ranks: int, size: int) -> list[list[int]]:
    """Return the sizes of equal blocks that each rank gives."""
    return [[size] * (1 if mode is Mode.ALL_GATHER else ranks)] * ranks
