"""How models and contributions travel as vectors, and how every packet of a sum tells who is in it.

Behind its elements, each packet has a *stamp*: a 1, and a bitmap of ranks with one bit, that of the
sender. The switch adds stamps up like all else. So the stamp of an aggregate is the number of
contributions in it, and the bitmap of their ranks; as each contribution counts once, no bit is
carried, and if one did count twice, number and bitmap would differ. A bitmap is of whole numbers
below 2^24, as many as are needed, which float32 adds without rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from iswitch.core.format.wire import ROUND_MASK, Vector
from worker_lib.errors import WorkerError

from .numbers import weighted

BITS = 24  # of a bitmap in one float32
TAGS = 4096  # tags of rounds; as many of them as there can be members sum up to less than 2^24
HALF = 16  # bits of a round's number in one float32


def bitmap(ranks: Iterable[int], words: int) -> Vector:
    """Return ranks as a bitmap, float32 [words]: bit r % 24 of word r // 24 is rank r."""
    bits = sum(1 << rank for rank in ranks)
    return np.array([bits >> BITS * i & (1 << BITS) - 1 for i in range(words)], np.float32)


def ranks_in(words: Vector) -> tuple[int, ...]:
    """Return the ranks of a bitmap, ascending."""
    bits = sum(int(word) << BITS * i for i, word in enumerate(words))
    return tuple(rank for rank in range(bits.bit_length()) if bits >> rank & 1)


@dataclass(frozen=True)
class Layout:
    """The layout of contributions: segments of `elements`, each with a stamp at its end.

    The payload is the weighted weights, n, and zeros up to the last segment's end.

    Attributes:
        numel: elements of the model.
        num_workers: members; the coordinator has the rank after theirs.
        elements: elements of a segment.
    """

    numel: int
    num_workers: int
    elements: int

    @property
    def words(self) -> int:
        """Return the elements of a bitmap."""
        return -(-(self.num_workers + 1) // BITS)

    @property
    def payload(self) -> int:
        """Return the elements of a segment that are no stamp."""
        return self.elements - 1 - self.words

    @property
    def segments(self) -> int:
        """Return the segments of a contribution."""
        return -(-(self.numel + 1) // self.payload)

    @property
    def size(self) -> int:
        """Return the elements of a contribution."""
        return self.segments * self.elements

    def stamp(self, ranks: Iterable[int]) -> Vector:
        """Return the stamp of a sum over these ranks, float32 [1 + words]."""
        ranks = tuple(ranks)
        return np.append(np.float32(len(ranks)), bitmap(ranks, self.words))

    def stamped(self, rank: int, segments: int) -> Vector:
        """Return a contribution of zeros, float32 [segments * elements]: only its stamps count."""
        rows = np.zeros((segments, self.elements), np.float32)
        rows[:, self.payload :] = self.stamp([rank])
        return rows.reshape(-1)

    def ready(self, rank: int, number: int) -> Vector:
        """Return what says that a member is ready, float32 [elements]: its stamp, and a tag.

        The tag names the round, since one that a restart has misled may say so in another round.
        """
        vector = self.stamped(rank, 1)
        vector[0] = number % TAGS
        return vector

    def tag(self, vector: Vector) -> float:
        """Return the tag that those who are ready have in the mean: that of `ready`, if of all."""
        return float(vector[0]) / float(vector[self.payload])

    def contribution(self, rank: int, weights: Vector, n: float) -> Vector:
        """Return n * weights and n, float32 [size]."""
        flat = np.zeros(self.segments * self.payload, np.float32)
        flat[: self.numel] = weighted(weights, n)
        flat[self.numel] = n
        vector = self.stamped(rank, self.segments)
        vector.reshape(-1, self.elements)[:, : self.payload] = flat.reshape(-1, self.payload)
        return vector

    def ranks(self, vector: Vector) -> tuple[int, ...]:
        """Return the members in the first segment of a sum, ascending.

        Raises:
            WorkerError: its stamp cannot be one.
        """
        count, *words = vector[self.payload : self.elements]
        ranks = ranks_in(np.asarray(words))
        if count != len(ranks):
            raise WorkerError(
                f"a sum of {count:g} contributions names {len(ranks)} ranks: do two members have "
                "one rank, or other programs this job number?"
            )
        return tuple(rank for rank in ranks if rank < self.num_workers)

    def is_of(self, vector: Vector, ranks: Iterable[int]) -> bool:
        """Return whether every segment of a sum is of exactly these members."""
        stamps = vector.reshape(-1, self.elements)[:, self.payload :]
        return bool((stamps == self.stamp(ranks)).all())

    def total(self, vector: Vector) -> tuple[Vector, float]:
        """Return what a sum holds: of the weighted weights, float32 [numel], and of the n."""
        flat = vector.reshape(-1, self.elements)[:, : self.payload].reshape(-1)
        return flat[: self.numel], float(flat[self.numel])


@dataclass(frozen=True)
class Word:
    """What the coordinator tells all members with a model.

    Attributes:
        round: the round's number; that of the last one if this is the end.
        bids: the round of the sums' job in which the members that are ready say so.
        picked: ranks that take part.
        before: number of the round before; None: this is the first.
        ranks: the ranks in that one's sum.
        goes_on: False: the federation ends.
    """

    round: int
    bids: int
    picked: tuple[int, ...] = ()
    before: int | None = None
    ranks: tuple[int, ...] = ()
    goes_on: bool = True

    NUMBERS = 7  # elements before the two bitmaps

    @classmethod
    def elements(cls, num_workers: int) -> int:
        """Return how many elements this takes behind a model."""
        return cls.NUMBERS + 2 * Layout(0, num_workers, 0).words

    def build(self, num_workers: int) -> Vector:
        """Return this as float32 [elements]."""
        words = Layout(0, num_workers, 0).words
        state = self.goes_on + 2 * (self.before is not None)
        halves = [
            half
            for number in (self.round, self.bids, self.before or 0)
            for half in (number & (1 << HALF) - 1, number >> HALF)
        ]
        numbers = np.array([state, *halves], np.float32)
        return np.concatenate([numbers, bitmap(self.picked, words), bitmap(self.ranks, words)])

    @classmethod
    def parse(cls, elements: Vector) -> Word:
        """Read what `build` has made."""
        state, *halves = (int(number) for number in elements[: cls.NUMBERS])
        round_, bids, before = (
            (low | high << HALF) & ROUND_MASK
            for low, high in zip(halves[::2], halves[1::2], strict=True)
        )
        picked, ranks = elements[cls.NUMBERS :].reshape(2, -1)
        told = before if state & 2 else None
        return cls(round_, bids, ranks_in(picked), told, ranks_in(ranks), bool(state & 1))
