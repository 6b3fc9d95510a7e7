"""Streams in a simulated network: an ideal transport between hosts, where TCP would be.

    message --> full frames, as with TCP --> a run at a time --> line --> switch --> line --> bytes

The frames go over the same lines as all other packets, and wait there for their turn. The transport
is ideal: it knows the way. Its window is what fits on the way, and some frames more, from the
beginning. So it has no slow start; no frame is lost, whatever the links do to others; no queue is
too full; acknowledgements take neither time nor bytes. All that flatters what uses it. Frames wait
for a link that is down, and are tried again as TCP does; after GIVE_UP seconds the way is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import pairwise
from math import ceil

import numpy as np

from iswitch.core.format.packets import Address, Burst, Rows
from iswitch.ethernet.frame import ETH_HEADER, HEADERS

from .host import FRAME
from .link import frame_sizes
from .network import VirtualNetwork
from .node import Node
from .runs import Run
from .segments import ACK, FIN, HEAD, NUMBERS, OFFERS, PSH, SYN, Ends, Part
from .trace import RECEIVED, SENT

EXTRA = HEAD - HEADERS  # which a link, that thinks of UDP, does not add by itself
AT_ONCE = 16  # frames that are one event at most: another stream's frame waits for at most 16
PART = 64  # and at most this part of a message
SPARE = 128  # frames of a window beyond what fits on the way, so that the line is never idle
AGAIN = 0.2  # seconds until frames are tried again on a link that is down; each time twice as many
GIVE_UP = 30.0  # seconds; Linux needs 127 to give up connecting, but a silent run ends after 60
STREAM = -2  # in place of a ToS
CLOCK = 4e-6  # seconds in which the number of a first byte grows by one (RFC 9293, 3.4.1)

Arrived = Callable[[memoryview], None]  # told of the bytes that have come
Lost = Callable[[str], None]  # told why nothing will come any more


class Message:
    """A message that is not yet on its way as a whole.

    Args:
        data: its bytes; a message without any is a frame still.
        flags: of its last frame.
        most: bytes of a frame.
        arrived: called with bytes that have come; once, without any, for a message without.
    """

    def __init__(self, data: memoryview, flags: int, most: int, arrived: Arrived) -> None:
        self.data = data  # left to send
        self.flags = flags
        self.frames = max(1, -(-len(data) // most))  # left to send
        self.at_once = max(1, min(self.frames // PART, AT_ONCE))
        self.arrived = arrived

    @property
    def options(self) -> int:
        """Return the bytes of options that only this message has."""
        return OFFERS if self.flags & SYN else 0


class Piece:
    """Frames that leave together.

    Args:
        part: what is in them.
        arrived: called with bytes that have come.
    """

    def __init__(self, part: Part, arrived: Arrived) -> None:
        self.part = part
        self.arrived = arrived

    @cached_property
    def frames(self) -> Rows:
        """Return the frames, for captures."""
        return self.part.frames()


class Way:
    """Carries messages from one host to another, one after the other.

    Args:
        network: the network.
        path: the addresses of all nodes on the way, both ends included; one: the same host.
        mtu: bytes of the largest IP packet.
        ends: the addresses of the stream's two ends.
        lost: told when a link has been down for too long; messages are dropped from then on.
        back: carries what goes the other way; None: nothing does yet.
    """

    def __init__(
        self,
        network: VirtualNetwork,
        path: Sequence[Address],
        mtu: int,
        ends: Ends,
        lost: Lost,
        back: Way | None = None,
    ) -> None:
        self._network = network
        self._nodes = [network.nodes[address] for address in path]
        self._links = [network.links[a, b] for a, b in pairwise(path)]
        self._mtu, self._ends = mtu, ends
        self._most = mtu + ETH_HEADER - HEAD  # bytes of a message in a frame
        self._messages: deque[Message] = deque()
        self._under_way = 0  # frames
        self._held: list[tuple[int, Piece, Run]] = []  # before a link that is down: node, run
        self._lost: Lost | None = lost
        self._next = int(network.now / CLOCK) % NUMBERS  # number of the next byte to send
        self._came = self._stamp = 0  # of the next byte to come, and the last time stamp that came
        self._back = back
        if back is not None:
            back._back = self

    def send(self, data: memoryview, arrived: Arrived, flags: int = PSH) -> None:
        """Send a message, after those before it.

        Args:
            data: its bytes, which must not change any more; without any it is a frame still.
            arrived: called when bytes have come, with these; without, for a message without any.
            flags: of its last frame, beside ACK.
        """
        if self._lost is not None:
            self._messages.append(Message(data, flags, self._most, arrived))
            self._fill()

    @property
    def _window(self) -> int:
        """Return how many frames may be under way."""
        rates = [link.impairment.rate for link in self._links]
        rate = min((rate for rate in rates if rate is not None), default=0.0)
        seconds = sum(link.latency + link.impairment.delay for link in self._links)
        return SPARE + ceil(rate * seconds / 8 / (self._most + HEAD))

    def _fill(self) -> None:
        """Send as much as the window allows."""
        window, most = self._window, self._network.grain.packets
        while self._messages and self._under_way < window:
            message = self._messages[0]
            n = min(message.frames, message.at_once, most, window - self._under_way)
            message.frames -= n
            size = n * self._most if message.frames else len(message.data)
            tail = size - (n - 1) * self._most + message.options
            piece = self._piece(message, size)
            message.data = message.data[size:]
            if not message.frames:
                self._messages.popleft()
            # Each frame holds its number, so that it is known when a run has been cut.
            numbers = np.arange(n, dtype=np.uint8).reshape(n, 1)
            rows = np.broadcast_to(numbers, (n, self._most + EXTRA))
            self._under_way += n
            burst = Burst(self._nodes[0].address, STREAM, rows, tail + EXTRA)
            self._leave(0, piece, Run(burst, self._network.now))

    def _piece(self, message: Message, size: int) -> Piece:
        """Number the next bytes of a message."""
        flags, came, echo = message.flags, 0, 0
        if message.frames:
            flags &= ~PSH
        if self._back is not None:
            flags, came, echo = flags | ACK, self._back._came, self._back._stamp
        stamp = int(self._network.now * 1000)
        data = message.data[:size]
        part = Part(self._ends, self._mtu, flags, self._next, came, stamp, echo, data)
        self._next = (self._next + size + bool(flags & (SYN | FIN))) % NUMBERS
        return Piece(part, message.arrived)

    def _tell(self, what: str, piece: Piece, run: Run, source: Node, target: Node) -> None:
        """Tell captures of frames between two neighbours."""
        if self._network.tap is not None:
            first, n = int(run.burst.rows[0, 0]), len(run.burst.rows)
            rows = piece.frames[first : first + n]
            shown = Burst(source.address, FRAME, rows, run.burst.tail + HEADERS)
            self._network.journal.tell(what, Run(shown, run.times), target.address)

    def _leave(self, at: int, piece: Piece, run: Run) -> None:
        """Put a run on the link behind node number `at`."""
        node, network = self._nodes[at], self._network
        if at == len(self._links):
            network.at(run.due, partial(self._end, piece, run))
            return
        link = self._links[at]
        if not link.up or (self._held and self._held[0][0] >= at):
            if not self._held:
                self._try_again(AGAIN, network.now + GIVE_UP)
            self._held.append((at, piece, run))
            return
        if at == 0 and node.outward is not None:
            run = run._replace(times=node.outward.serve(frame_sizes(run.burst), run.times))
        self._tell(SENT, piece, run, node, self._nodes[at + 1])
        for each in link.carry(*run):
            network.at(each.due, partial(self._come, at + 1, piece, each))

    def _try_again(self, seconds: float, limit: float) -> None:
        """Send held runs in their order after a time, or again later; give up at a limit."""
        network = self._network

        def again() -> None:
            held, self._held = self._held, []
            at = held[0][0]
            if self._links[at].up:
                for node, piece, run in held:
                    self._leave(node, piece, run._replace(times=network.now))
            elif network.now < limit:
                self._held = held
                self._try_again(2 * seconds, limit)
            else:
                self._messages.clear()
                lost, self._lost = self._lost, None
                ends = f"{self._nodes[at].name} and {self._nodes[at + 1].name}"
                assert lost is not None
                lost(f"the link between {ends} has been down for {GIVE_UP:g} s")

        network.at(min(network.now + seconds, limit), again)

    def _come(self, at: int, piece: Piece, run: Run) -> None:
        """Let a run come to node number `at`."""
        self._links[at - 1].counts.delivered += len(run.burst.rows)
        node = self._nodes[at]
        if node.inward is not None:
            run = run._replace(times=node.inward.serve(frame_sizes(run.burst), run.times))
        self._tell(RECEIVED, piece, run, self._nodes[at - 1], node)
        if at == len(self._links) and node.inward is None:
            self._end(piece, run)
        else:
            self._leave(at, piece, run)

    def _end(self, piece: Piece, run: Run) -> None:
        """Take a run to its receiver."""
        n, part = len(run.burst.rows), piece.part
        self._under_way -= n
        start = int(run.burst.rows[0, 0]) * self._most
        data = part.data[start : start + n * self._most]
        numbered = start + len(data) + bool(part.flags & (SYN | FIN))
        self._came, self._stamp = (part.sequence + numbered) % NUMBERS, part.stamp
        piece.arrived(data)
        self._fill()
