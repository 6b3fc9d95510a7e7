"""The cost of an allreduce, which a strategy predicts: its steps, and the bytes between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Node = int | str  # a worker's rank, or the name of something else


class Cost(NamedTuple):
    """The cost of one allreduce.

    Attributes:
        steps: length of the longest chain of messages in which each waits for the one before it;
            where vectors are sent in pieces, the chain of the first pieces.
        flows: bytes of payload by (sending node, receiving node).
    """

    steps: int
    flows: Mapping[tuple[Node, Node], int]

    def sent(self, node: Node) -> int:
        """Return the bytes of payload that a node sends on its link."""
        return sum(size for (source, _), size in self.flows.items() if source == node)

    def received(self, node: Node) -> int:
        """Return the bytes of payload that a node receives on its link."""
        return sum(size for (_, target), size in self.flows.items() if target == node)
