"""How the segments of a job are divided among its ranks: who contributes one, and who gets it.

All segments but the last lie in equal blocks:

    mode              blocks   block     contributors   receivers
    reduce_scatter    N        b         all            rank b
    all_gather        N        a         rank a         all
    all_to_all        N x N    a N + b   rank a         rank b

The last, the closing segment, is of all ranks and for all (docs/protocol.md, "Owned segments").
"""

from __future__ import annotations

from collections.abc import Iterator

from .wire import CLOSING_SIZE, DType, Mode, Op, Shape


class Division:
    """Divides the segments of a shape whose mode has owners.

    Attributes:
        owners: number of ranks, N.
        per_block: segments of a block.
        closing: index of the closing segment.
        per_source: consecutive segments that one rank contributes; 0: all ranks contribute all.
        is_for_one: a segment goes to one rank, not to all.
    """

    def __init__(self, shape: Shape) -> None:
        self.owners = shape.owners
        self.closing = shape.segments - 1
        self.per_block = self.closing // shape.blocks
        alone = shape.mode is not Mode.REDUCE_SCATTER
        self.per_source = self.closing // self.owners if alone else 0
        self.is_for_one = shape.mode is not Mode.ALL_GATHER

    def by_receiver(self, start: int, stop: int) -> Iterator[tuple[int, int, int | None]]:
        """Cut segments start..stop-1 by receiver: ranges a..b-1, and a rank; None: for all."""
        return self._by_rank(start, stop, self.per_block if self.is_for_one else 0)

    def by_source(self, start: int, stop: int) -> Iterator[tuple[int, int, int | None]]:
        """Cut segments start..stop-1 by contributor: ranges a..b-1, and a rank; None: all."""
        return self._by_rank(start, stop, self.per_source)

    def _by_rank(self, start: int, stop: int, step: int) -> Iterator[tuple[int, int, int | None]]:
        """Cut segments where a rank's `step` segments end; 0: all ranks share all of them."""
        last = min(stop, self.closing)
        while start < last:
            end = min(last, (start // step + 1) * step) if step else last
            yield start, end, start // step % self.owners if step else None
            start = end
        if start < stop:
            yield start, stop, None


def divided(
    numel: int,
    owners: int,
    mode: Mode,
    dtype: DType = DType.FLOAT32,
    op: Op = Op.SUM,
    most: int = 366,
) -> Shape:
    """Return the shape of vectors in equal blocks, each of at most `numel` elements.

    The segments of a block are equally long, so that hardly any element travels as padding.

    Args:
        numel: elements of a block.
        owners: number of ranks.
        mode: mode of the job.
        dtype: element type.
        op: operation of a reduce_scatter.
        most: elements that a segment may have.
    """
    last = -(-CLOSING_SIZE // dtype.itemsize)
    per_block = max(1, -(-numel // most))
    elements = max(last, -(-numel // per_block))
    blocks = owners**2 if mode is Mode.ALL_TO_ALL else owners
    return Shape(dtype, op, mode, elements, last, blocks * per_block + 1, owners)
