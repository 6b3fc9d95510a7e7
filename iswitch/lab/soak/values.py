"""Makes contributions of whole numbers, whose sum tells which contributions are in it.

Every process of a worker has an identity in its job: 0, 1 and so on. Elements 0, 2, 4 ... of a
segment are 4**identity: so the digits of a sum to the base 4 count the contributions of each
process. The elements between are tokens of process, round and segment: so a sum also tells which
contributions these are. All sums are exact in the element type, in any order.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from iswitch.core.format.memo import Memo
from iswitch.core.format.wire import DType, Shape, Vector

# Whole numbers below 2**EXACT[dtype] are exact.
EXACT = {DType.FLOAT32: 24, DType.FLOAT16: 11, DType.BFLOAT16: 8, DType.INT32: 31}
KEPT = 64  # contributions
BITS = 2  # of the code, for each life: to tell once from twice, and thrice


def most_lives(dtype: DType) -> int:
    """Compute how many worker processes a job of this type can tell apart."""
    return EXACT[dtype] // BITS


class Values:
    """The contributions of one job's worker processes."""

    def __init__(self, shape: Shape, lives: int) -> None:
        assert 0 < lives <= most_lives(shape.dtype)
        self.shape = shape
        self.lives = lives
        self.tokens = min(997, (1 << EXACT[shape.dtype]) // lives)  # and none is as large
        self._segment = np.arange(shape.numel) // shape.elements
        self._codes = np.arange(shape.numel) % shape.elements % 2 == 0
        self._made: Memo[tuple[int, int], Vector] = Memo(KEPT)

    def contribution(self, identity: int, round_: int) -> Vector:
        """Make the vector of a process in a round, shape (numel,)."""
        found = self._made.get((identity, round_))
        if found is None:
            token = 1 + identity * 101 + (round_ & 0xFFFFFF) * 389 + self._segment * 53
            values = np.where(self._codes, 1 << BITS * identity, token % self.tokens)
            found = values.astype(self.shape.dtype.numpy)
            self._made.keep((identity, round_), found)
        return found

    def counts(self, code: int) -> dict[int, int]:
        """Decode how often each process is in a sum, from its element 0."""
        digits = {i: code >> BITS * i & (1 << BITS) - 1 for i in range(self.lives)}
        return {i: count for i, count in digits.items() if count}

    def codes(self, total: Vector) -> npt.NDArray[np.int64]:
        """Return element 0 of every segment of a sum; an empty vector has none."""
        return total[:: self.shape.elements].astype(np.int64)

    def totals(
        self,
        codes: npt.NDArray[np.int64],
        members: Mapping[int, tuple[int, ...]],
        round_: int,
    ) -> Vector:
        """Make the exact sum, shape (numel,), whose contributors the codes of segments name.

        Args:
            codes: element 0 of each segment, shape (segments,).
            members: identities of the contributors, by code.
            round_: the round.
        """
        found = {code: self.total(lives, round_) for code, lives in members.items()}
        if len(found) == 1:
            return next(iter(found.values()))
        whole = np.zeros(self.shape.numel, self.shape.dtype.numpy)
        of_elements = codes[self._segment]
        for code, total in found.items():
            whole[of_elements == code] = total[of_elements == code]
        return whole

    def total(self, identities: tuple[int, ...], round_: int) -> Vector:
        """Compute the exact sum of these processes' contributions."""
        parts = [self.contribution(i, round_).astype(np.int64) for i in identities]
        total: Vector = np.sum(parts, axis=0).astype(self.shape.dtype.numpy)
        return total
