"""What a rank gives to a round of owned segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from iswitch.core.format.division import Division
from iswitch.core.format.packets import Indices, Rows
from iswitch.core.format.wire import CLOSING_SIZE, SEG_SIZE, Shape, Vector

from .exchange import Packets
from .plan import Plan

Blocks = Vector | Sequence[Vector]  # elements of blocks, (blocks, n), or a flat array of each


class OwnContribution(Packets):
    """What a rank contributes to one round, as packets in the order of sending (see `Plan`).

    Attributes:
        plan: of the round; None: it has no packets.
        blocks: elements that are not laid out yet, or not all of them; None: they all are.
        filled: packets laid out, from the first on.
    """

    def __init__(self, shape: Shape) -> None:
        division = Division(shape)
        super().__init__(shape, (division.per_source or division.closing) + 1)
        self._count = 0  # of packets before the closing one
        self.plan: Plan | None = None
        self.blocks: Blocks | None = None
        self.filled = 0

    def begin(self, round_: int) -> None:
        """Start over as the contribution to another round, with no packets until `give`."""
        self.plan, self.blocks, self._count, self.filled = None, None, 0, 0
        self.round = round_  # last, in case that a signal's handler raises an error meanwhile

    def give(self, plan: Plan, blocks: Blocks) -> None:
        """Have packets that hold these blocks once they are laid out (`fill`)."""
        assert self.round is not None
        count = len(plan.given) - 1
        self.packets["seg"][: count + 1] = plan.given + (self.round << 32)
        closing = self._rows[count, SEG_SIZE:]
        closing[:] = 0
        closing[:CLOSING_SIZE] = np.frombuffer(count.to_bytes(CLOSING_SIZE, "little"), "u1")
        self.blocks, self._count = blocks, count
        self.plan = plan  # last, as in `begin`

    def filled_to(self, stop: int) -> None:
        """Note that the first `stop` packets are laid out."""
        self.filled = stop
        if stop > self._count:
            self.blocks = None

    def fill(self) -> None:
        """Lay out the elements of all packets that are not laid out."""
        plan, blocks = self.plan, self.blocks
        if plan is None or blocks is None:
            return
        if isinstance(blocks, np.ndarray) and len(plan.sent_from):
            used = len(plan.sent_from[0])
            self._lay(np.concatenate(plan.sent_from).reshape(len(blocks), used), blocks)
        else:
            for places, block in zip(plan.sent_from, blocks, strict=True):
                self._lay(places.reshape(1, -1), block.reshape(1, -1))
        self.filled_to(self._count + 1)

    def _lay(self, places: Indices, blocks: Vector) -> None:
        """Put blocks, (blocks, n), into the packets at these places, (blocks, segments)."""
        size = self.shape.elements
        full, tail = divmod(blocks.shape[1], size)
        whole = blocks[:, : full * size].reshape(len(blocks), full, size)
        self._data[places[:, :full]] = whole
        if tail:
            self._data[places[:, full], :tail] = blocks[:, full * size :]
            self._data[places[:, full], tail:] = np.zeros((), self._data.dtype)

    def _tail(self, stop: int) -> int:
        return self.shape.last_size if stop > self._count else self.shape.packet_size

    def again(self, start: int, stop: int, most: int, burst: int) -> Iterator[tuple[Rows, int]]:
        """Yield the packets of segments start..stop-1, at most `most`, in bursts."""
        if self.plan is None:
            return
        places = np.sort(self.plan.places_of(start, stop)[:most])
        for at in range(0, len(places), burst):
            yield self.pick(places[at : at + burst])
