"""How much one event of a simulated network may hold: `--grain`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from iswitch.faults.units import QuantityError


class Grain(NamedTuple):
    """The most packets of a run, and the most seconds between the first and the last of them."""

    packets: int
    span: float = float("inf")

    def fitting(self, packets: int, span: float) -> int:
        """Return into runs of how many packets to cut some that come within `span` seconds."""
        most = self.packets
        while most > 1 and span * most > self.span * packets:
            most //= 2
        return most


WINDOW = 5 << 18  # bytes that a worker has under way at most (CEILING in worker_lib)


class Flow(NamedTuple):
    """What one source sends to one target on a line: segments of a vector, bytes of a packet."""

    segments: int
    size: int

    @property
    def most(self) -> int:
        """Return how many of its packets a queue may hold at once."""
        return min(self.segments, -(-WINDOW // self.size))


class Crossing:
    """Cuts the runs that come to a node finer, where flows share a line that begins there.

    A run is served between packets of others, but those that were served before keep their times.
    So the error of a flow is up to a run of another. A part of 1/800 of the shorter vector keeps it
    below 0.5 % of a round on the four lines that both may share in a tree of three levels.

    Args:
        grain: how much a run may hold where no flows meet.

    Attributes:
        idle: returns from when on, in seconds, a machine here may send more as soon as it is told
            of packets; None: it is told of each at its own time, however long the run.
    """

    PART = 800

    def __init__(self, grain: Grain) -> None:
        self.grain = grain  # of runs that come to the node
        self._whole = grain
        self.idle: Callable[[], float] | None = None
        # By line and source and target: what was seen of the flow so far.
        self._flows: dict[object, dict[object, Flow]] = {}
        self._most: dict[object, int] = {}  # packets that may queue, by line

    def leaves(self, line: object, ends: tuple[object, object], segments: int, size: int) -> int:
        """Note that a flow leaves the node on a line; return the packets that may queue there.

        Args:
            line: the line.
            ends: source and target.
            segments: number of segments that its vectors have, at least; 0: not known.
            size: bytes of a packet.
        """
        flows = self._flows.setdefault(line, {})
        if ends not in flows or flows[ends].segments < segments:
            flows[ends] = Flow(segments, size)
            if any(len(some) > 1 for some in self._flows.values()):
                every = (flow.segments for some in self._flows.values() for flow in some.values())
                shortest = min(filter(None, every), default=0)
                self.grain = Grain(max(1, min(shortest // self.PART, self._whole.packets)))
            self._most[line] = sum(flow.most for flow in flows.values())
        return self._most[line]


SINGLE = Grain(1)  # every packet by itself, unless others come at the same time

# A worker's first window is 176 packets. A run of no more than half of it comes back before the
# line has sent the other half, so that what it makes room for need not wait. And the shortest timer
# of a worker, after which it asks what became of a segment, is 2 ms.
AUTO = Grain(88, 0.001)


def grain_of(text: str) -> Grain:
    """Read a grain: `auto`, or a number of packets of 1 or more.

    Raises:
        QuantityError: it is neither.
    """
    if text == "auto":
        return AUTO
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 20:
        raise QuantityError(
            f"grain {text!r} is neither auto nor a number of packets from 1 to {1 << 20}; 1 moves "
            "every packet by itself"
        )
    return Grain(int(text))
