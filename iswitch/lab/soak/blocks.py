"""Checks the blocks that ranks get in a job whose segments have owners.

Which block is whose is written here once more, as docs/protocol.md has it ("Owned segments"): the
oracle must not share an error with the switch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

import numpy as np
import numpy.typing as npt

from iswitch.core.format.wire import Mode, Shape, Vector

from .oracle import Rounds
from .scenario import Job, Scenario
from .violation import Violation


class Owners:
    """Tells which rank gives a block, and which gets it.

    Args:
        shape: layout of a job whose segments have owners.
    """

    def __init__(self, shape: Shape) -> None:
        self.mode, self.ranks = shape.mode, shape.owners
        self.blocks = self.ranks**2 if self.mode is Mode.ALL_TO_ALL else self.ranks
        self.per_block = (shape.segments - 1) // self.blocks
        self._reach: dict[int, npt.NDArray[np.bool_]] = {}  # by ranks

    def givers(self, block: int) -> list[int]:
        """Return the ranks that contribute to a block."""
        if self.mode is Mode.REDUCE_SCATTER:
            return list(range(self.ranks))
        return [block if self.mode is Mode.ALL_GATHER else block // self.ranks]

    def getters(self, block: int) -> list[int]:
        """Return the ranks that get the aggregates of a block."""
        if self.mode is Mode.ALL_GATHER:
            return list(range(self.ranks))
        return [block if self.mode is Mode.REDUCE_SCATTER else block % self.ranks]

    def gives(self, rank: int) -> list[int]:
        """Return the blocks to which a rank contributes."""
        return [block for block in range(self.blocks) if rank in self.givers(block)]

    def gets(self, rank: int) -> list[int]:
        """Return the blocks that a rank gets."""
        return [block for block in range(self.blocks) if rank in self.getters(block)]

    def reach(self, ranks: int) -> npt.NDArray[np.bool_]:
        """Tell which aggregates go to a member with these ranks, a bitmap; by segment."""
        if ranks not in self._reach:
            everybody, blocks = list(range(self.ranks)), range(self.blocks)
            getters = [self.getters(block) for block in blocks]
            got = [to == everybody or any(ranks >> r & 1 for r in to) for to in getters]
            self._reach[ranks] = np.append(np.repeat(got, self.per_block), True)
        return self._reach[ranks]


@cache
def owners_of(shape: Shape | None) -> Owners | None:
    """Return who gives and gets what in a job of this shape; None: no segment has an owner."""
    return Owners(shape) if shape is not None and shape.mode.has_owners else None


class Blocks(Rounds):
    """The oracle of one job whose segments have owners.

    Args:
        scenario: the whole history.
        job: the job.
        lives: the most worker processes that it can have.
    """

    def __init__(self, scenario: Scenario, job: Job, lives: int) -> None:
        self.owners = Owners(job.shape())
        super().__init__(scenario, job, lives)
        self.per_block = self.owners.per_block * self.values.shape.elements  # elements
        self.seed = scenario.seed
        self.ranks: dict[tuple[int, int], int] = {}  # by life and round

    def layout(self, shape: Shape) -> Shape:
        """Return the layout of all blocks, without the closing segment."""
        numel = (shape.segments - 1) * shape.elements
        return Shape.of(numel, shape.dtype, elements=shape.elements)

    def sizes(self, round_: int) -> list[int]:
        """Return how many elements of each block a round has; they differ from round to round."""
        rng, most = Random(f"blocks {self.seed} {self.job.number} {round_}"), self.per_block
        return [rng.choice((0, most, rng.randint(0, most))) for _ in range(self.owners.blocks)]

    def segments(self, round_: int) -> int:
        """Return how many segments of all blocks a round has."""
        elements = self.values.shape.elements
        return sum(-(-size // elements) for size in self.sizes(round_))

    def gives(self, identity: int, rank: int, round_: int) -> list[Vector]:
        """Note that a process begins a round with a rank; return the blocks that it gives."""
        whole, sizes = self.begins(identity, round_), self.sizes(round_)
        self.ranks[identity, round_] = rank
        return [self._part(whole, b, sizes[b]) for b in self.owners.gives(rank)]

    def spaces(self, rank: int, round_: int) -> list[Vector]:
        """Return room for the blocks that a rank gets in a round."""
        dtype, sizes = self.values.shape.dtype.numpy, self.sizes(round_)
        return [np.zeros(sizes[block], dtype) for block in self.owners.gets(rank)]

    def gets_blocks(self, who: str, identity: int, round_: int, got: Sequence[Vector]) -> None:
        """Judge the blocks that a process has received in a round.

        Args:
            who: the process, for messages.
            identity: its number.
            round_: the round.
            got: the blocks, in ascending order.
        """
        self.finished += 1
        self.done[identity] = round_
        blocks = self.owners.gets(self.ranks[identity, round_])
        for block, elements in zip(blocks, got, strict=True):
            codes = set(elements[:: self.values.shape.elements].astype(np.int64).tolist())
            for code in sorted(codes):
                self._judge(who, round_, block, elements, code)

    def _judge(self, who: str, round_: int, block: int, got: Vector, code: int) -> None:
        """Judge the segments of a block that have a code: givers, and every element."""
        counts, where = self.lives_in(who, round_, code)
        ranks = sorted(self.ranks[life, round_] for life in counts)
        givers = self.owners.givers(block)
        if ranks != givers:
            kind = "too few" if set(ranks) < set(givers) else "wrong sum"
            raise Violation(kind, f"block {block} in {where} is of ranks {ranks}, not {givers}")
        right = self._part(self.values.total(tuple(sorted(counts)), round_), block, len(got))
        elements = self.values.shape.elements
        codes = np.repeat(got[::elements].astype(np.int64), elements)[: len(got)]
        wrong = np.flatnonzero((codes == code) & (got != right))
        if len(wrong):
            first = int(wrong[0])
            raise Violation(
                "wrong sum",
                f"element {first} of block {block} in {where}: {got[first]}, not {right[first]}",
            )

    def _part(self, whole: Vector, block: int, size: int) -> Vector:
        return whole[block * self.per_block :][:size]
