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
from functools import partial
from itertools import pairwise
from math import ceil

import numpy as np

from iswitch.core.format.packets import Address, Burst
from iswitch.ethernet.frame import ETH_HEADER, HEADERS

from .link import frame_sizes
from .network import VirtualNetwork
from .runs import Run

HEAD = ETH_HEADER + 20 + 20 + 12  # bytes: Ethernet, IPv4, TCP, and the time stamps that Linux adds
EXTRA = HEAD - HEADERS  # which a link, that thinks of UDP, does not add by itself
AT_ONCE = 16  # frames that are one event at most: another stream's frame waits for at most 16
PART = 64  # and at most this part of a message
SPARE = 128  # frames of a window beyond what fits on the way, so that the line is never idle
AGAIN = 0.2  # seconds until frames are tried again on a link that is down; each time twice as many
GIVE_UP = 30.0  # seconds; Linux needs 127 to give up connecting, but a silent run ends after 60
STREAM = -2  # in place of a ToS

Arrived = Callable[[int], None]  # told of the bytes that have come
Lost = Callable[[str], None]  # told why nothing will come any more


class Message:
    """A message that is not yet on its way as a whole."""

    def __init__(self, size: int, most: int, arrived: Arrived) -> None:
        self.frames = max(1, -(-size // most))  # left to send
        self.at_once = max(1, min(self.frames // PART, AT_ONCE))
        self.tail = size - (self.frames - 1) * most  # bytes of the last one
        self.arrived = arrived


class Way:
    """Carries messages from one host to another, one after the other.

    Args:
        network: the network.
        path: the addresses of all nodes on the way, both ends included; one: the same host.
        mtu: bytes of the largest IP packet.
        lost: told when a link has been down for too long; messages are dropped from then on.
    """

    def __init__(
        self, network: VirtualNetwork, path: Sequence[Address], mtu: int, lost: Lost
    ) -> None:
        self._network = network
        self._nodes = [network.nodes[address] for address in path]
        self._links = [network.links[a, b] for a, b in pairwise(path)]
        self._most = mtu + ETH_HEADER - HEAD  # bytes of a message in a frame
        self._messages: deque[Message] = deque()
        self._under_way = 0  # frames
        self._held: list[tuple[int, Arrived, Run]] = []  # before a link that is down: node, run
        self._lost: Lost | None = lost

    def send(self, size: int, arrived: Arrived) -> None:
        """Send a message, after those before it.

        Args:
            size: bytes of the message; without any it is a frame still.
            arrived: called when bytes have come, with their number; 0 for a message without any.
        """
        if self._lost is not None:
            self._messages.append(Message(size, self._most, arrived))
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
            whole = self._most + EXTRA
            tail = whole if message.frames else message.tail + EXTRA
            if not message.frames:
                self._messages.popleft()
            rows = np.broadcast_to(np.uint8(0), (n, whole))
            self._under_way += n
            burst = Burst(self._nodes[0].address, STREAM, rows, tail)
            self._leave(0, message.arrived, Run(burst, self._network.now))

    def _leave(self, at: int, arrived: Arrived, run: Run) -> None:
        """Put a run on the link behind node number `at`."""
        node, network = self._nodes[at], self._network
        if at == len(self._links):
            network.at(run.due, partial(self._end, arrived, run))
            return
        link = self._links[at]
        if not link.up or (self._held and self._held[0][0] >= at):
            if not self._held:
                self._try_again(AGAIN, network.now + GIVE_UP)
            self._held.append((at, arrived, run))
            return
        if at == 0 and node.outward is not None:
            run = run._replace(times=node.outward.serve(frame_sizes(run.burst), run.times))
        for each in link.carry(*run):
            network.at(each.due, partial(self._come, at + 1, arrived, each))

    def _try_again(self, seconds: float, limit: float) -> None:
        """Send held runs in their order after a time, or again later; give up at a limit."""
        network = self._network

        def again() -> None:
            held, self._held = self._held, []
            at = held[0][0]
            if self._links[at].up:
                for node, arrived, run in held:
                    self._leave(node, arrived, run._replace(times=network.now))
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

    def _come(self, at: int, arrived: Arrived, run: Run) -> None:
        """Let a run come to node number `at`."""
        self._links[at - 1].counts.delivered += len(run.burst.rows)
        node = self._nodes[at]
        if node.inward is not None:
            run = run._replace(times=node.inward.serve(frame_sizes(run.burst), run.times))
        if at == len(self._links) and node.inward is None:
            self._end(arrived, run)
        else:
            self._leave(at, arrived, run)

    def _end(self, arrived: Arrived, run: Run) -> None:
        """Take a run to its receiver."""
        n, whole = run.burst.rows.shape
        self._under_way -= n
        arrived((n - 1) * (whole - EXTRA) + run.burst.tail - EXTRA)
        self._fill()
