"""What an allreduce costs, as a strategy says beforehand: steps, and who sends how much to whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Node = int | str  # a worker's rank, or the name of something else


class Cost(NamedTuple):
    """Of one allreduce.

    `steps` is the length of the longest chain of messages, each of which waits for the one before
    (of the first pieces, where pieces follow one another). `flows` are bytes of payload from one
    node to another.
    """

    steps: int
    flows: Mapping[tuple[Node, Node], int]

    def sent(self, node: Node) -> int:
        """Bytes of payload on the link of a node, from it to its switch."""
        return sum(size for (source, _), size in self.flows.items() if source == node)

    def received(self, node: Node) -> int:
        """Bytes of payload on the link of a node, from its switch to it."""
        return sum(size for (_, target), size in self.flows.items() if target == node)
