"""A network of machines under a virtual clock.

The user starts machines, lets their owners speak (`poke`), and moves from event to event (`step`).
The network does the rest: it hands packets that come out of a link to the machine, or keeps them in
the socket of a stopped one; it wakes machines at their deadlines, and sends their packets at once.
Faults are calls: plug and unplug a link, pause, crash, restart.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count

from iswitch.core.format.lines import port_of
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.faults.impairment import Impairment

from .host import FRAME, HostStack
from .link import LATENCY, Arrival, LinkCounts, VirtualLink
from .node import Node, Process, Speaker, Witness, gathered, joined, payload
from .trace import RECEIVED, SENT, Trace, TraceRecord

TAKEN, FORGED = "taken", "forged"  # events that only a tap is told of

Action = Callable[[], None]


class VirtualNetwork:
    """Machines, links and the clock.

    Args:
        seed: the seed of all chances.
        latency: seconds that a packet needs on any link at least.
        trace: records all events; None: no record is kept.
    """

    def __init__(self, seed: int = 0, latency: float = LATENCY, trace: Trace | None = None) -> None:
        self.now = 0.0
        self.seed = seed
        self.latency = latency
        self.trace = trace
        self.nodes: dict[Address, Node] = {}
        self._homes: dict[Address, Address] = {}  # of lines: the node's address, with the line
        self.links: dict[tuple[Address, Address], VirtualLink] = {}
        # Called with sender, receiver, ToS and payload of every packet; True: it is lost.
        self.lose: Callable[[Address, Address, int, bytes], bool] | None = None
        self.lost = 0  # packets that `lose` has lost
        # Called with the event, the packets and their receiver for all that the trace records of
        # packets; also when a machine has taken them, and for forged ones.
        self.tap: Callable[[str, Burst, Address], None] | None = None
        self.witness: Witness | None = None
        # Called with a receiver and packets for it: returns after how many seconds to repeat them.
        self.echo: Callable[[Address, Burst], float | None] | None = None
        # Called with a receiver and packets for it: returns older ones to send in the same burst.
        self.ahead: Callable[[Address, Burst], Burst | None] | None = None
        self.echoed = 0  # packets that `echo` and `ahead` have repeated
        self._events: list[tuple[float, int, Action]] = []  # a heap, by time and serial number
        self._serial = count()  # equal times keep their order

    # Building

    def add(self, name: str, address: Address, machine: Process | None = None) -> Node:
        """Add a node; start its machine, if one is given."""
        node = self.nodes[address] = Node(name, address)
        if machine is not None:
            self.start(address, machine)
        return node

    def connect(self, a: Address, b: Address, impairment: Impairment | None = None) -> None:
        """Connect two nodes by a cable with one impairment for both directions."""
        for source, target in ((a, b), (b, a)):
            seed = (self.seed, len(self.links))
            tell = None if self.trace is None else partial(self._note_damage, target)
            link = VirtualLink(impairment or Impairment(), seed, self.latency, tell)
            self.links[source, target] = link

    def names(self) -> dict[Address, str]:
        """Return the names of all nodes, in the order in which they were added, and of lines."""
        names = {address: node.name for address, node in self.nodes.items()}
        return names | {line: names[home._replace(line=0)] for line, home in self._homes.items()}

    def link_counts(self) -> LinkCounts:
        """Return the sum of the counts of all links."""
        total = LinkCounts()
        for link in self.links.values():
            total.add(link.counts)
        return total

    # Faults

    def start(self, address: Address, machine: Process) -> None:
        """Start a process, in place of any present one."""
        node = self.nodes[address]
        self._end(node)
        node.machine = machine
        self._note(node, "starts")
        self.poke(address)

    def crash(self, address: Address) -> None:
        """End a process without a message; packets that come for it are lost."""
        node = self.nodes[address]
        self._end(node)
        self._note(node, "crashes")

    def pause(self, address: Address) -> None:
        """Stop a process (SIGSTOP): packets wait in its socket while there is room."""
        node = self.nodes[address]
        node.paused = True
        node.timer = None
        self._note(node, "is paused")

    def resume(self, address: Address) -> None:
        """Resume a stopped process: it handles the waiting packets, then its due timers."""
        node = self.nodes[address]
        if not node.paused:
            return
        node.paused = False
        self._note(node, "goes on")
        waiting, node.waiting = node.waiting, deque()
        node.waiting_bytes = 0
        for burst in gathered(waiting):
            self._receive(node, burst)
        self.poke(address)

    def plug(self, a: Address, b: Address, up: bool) -> None:
        """Plug the cable between two nodes in, or pull it out."""
        for pair in ((a, b), (b, a)):
            self.links[pair].up = up
        self._note(self.nodes[a], f"{'joined with' if up else 'parted from'} {self.nodes[b].name}")

    # Time

    def at(self, when: float, action: Action) -> None:
        """Schedule an action for a time in seconds; a past time means now."""
        self._put(max(when, self.now), action)

    def next_time(self) -> float | None:
        """Return the time of the next event, in seconds; None: there is none.

        The event may turn out to be void: a deadline that its machine has moved since.
        """
        return self._events[0][0] if self._events else None

    def step(self) -> bool:
        """Advance the clock to the next event and carry it out; return False if there is none."""
        if not self._events:
            return False
        self.now, _, action = heapq.heappop(self._events)
        action()
        return True

    def poke(self, address: Address) -> None:
        """Send the packets of a machine after its owner has called it."""
        node = self.nodes[address]
        if node.machine is not None and not node.paused:
            self._speak(node)

    # Inside

    def _put(self, when: float, action: Action) -> None:
        heapq.heappush(self._events, (when, next(self._serial), action))

    def _end(self, node: Node) -> None:
        node.machine = node.timer = None
        node.paused = False
        node.unread += node.waiting_packets()
        node.waiting.clear()
        node.waiting_bytes = 0

    def _speak(self, node: Node) -> None:
        """Look at a machine that may have changed: call its owner, send, and set its timer."""
        if node.heed is not None:
            node.heed()
        machine = node.machine
        if machine is None or node.paused:  # its owner has ended it
            return
        if isinstance(machine, Speaker):
            while sends := machine.transmissions(self.now):
                self._say(node, None, sends)
        due = machine.deadline()
        if due is None or due == float("inf"):
            node.timer = None
        elif due != node.timer:
            node.timer = max(due, self.now)
            self._put(node.timer, partial(self._ring, node, node.timer))

    def _ring(self, node: Node, when: float) -> None:
        machine = node.machine
        if node.timer != when or machine is None or node.paused:
            return
        node.timer = None
        due = machine.deadline()
        if due is not None and due <= self.now:
            if self.witness is not None:
                self.witness.comes(node, None)
            self._say(node, None, machine.handle_timer(self.now) or ())
        self._speak(node)

    def _say(self, node: Node, burst: Burst | None, sends: Sequence[Outgoing]) -> None:
        if self.witness is not None:
            self.witness.says(node, burst, sends)
        self.transmit(node.address, sends)

    def transmit(self, source: Address, sends: Sequence[Outgoing]) -> None:
        """Put packets on their links, as copies."""
        for out in sends:
            rows = out.rows.copy()
            for peer in out.peers:
                burst = Burst(self.speaking(source, peer.line), out.tos, rows, out.tail)
                peer = peer._replace(line=0)
                self._note_packets(SENT, burst, peer)
                self._transmit(source, peer, burst)

    def speaking(self, source: Address, line: int) -> Address:
        """Return the address from which a node speaks on a line."""
        if not line:
            return source
        own = source._replace(port=port_of(line, source.port))
        self._homes[own] = source._replace(line=line)
        return own

    def home(self, address: Address) -> Address:
        """Return the address of the node that has this address, or speaks from it on a line."""
        return self._homes.get(address, address)._replace(line=0)

    def forge(self, source: Address, name: Address, out: Outgoing) -> None:
        """Send packets from a node in another's name; the trace shows only their arrival.

        Args:
            source: the address of the real sender.
            name: the address that the packets name as theirs.
            out: the packets.
        """
        for peer in out.peers:
            burst = Burst(name, out.tos, out.rows.copy(), out.tail)
            self._tell(FORGED, burst, peer)
            self._transmit(source, peer, burst)

    def _transmit(self, source: Address, peer: Address, burst: Burst) -> None:
        count = len(burst.rows)
        node = self.nodes[source]
        node.given += count
        if self.lose is not None:
            kept = self._not_lost(burst, peer)
            if kept is None:
                return
            burst = kept
        link = self.links.get((source, self.home(peer)))
        if link is None or (node.stack is not None and node.stack.is_turned):
            node.unreachable += len(burst.rows)
            return
        own = source == self.home(burst.peer)  # forged packets are never repeated
        older = self.ahead(peer, burst) if own and self.ahead is not None else None
        if older is None:
            self._put_on(link, peer, burst)
        else:
            self.echoed += len(older.rows)
            self._put_on(link, peer, joined((older, burst)))
        after = self.echo(peer, burst) if own and self.echo is not None else None
        if after is not None:
            self.at(self.now + after, partial(self._echo, link, peer, burst))

    def _put_on(self, link: VirtualLink, peer: Address, burst: Burst) -> None:
        for arrival in link.send(burst, self.now):
            self._put(arrival.due, partial(self._arrive, link, peer, arrival))

    def _echo(self, link: VirtualLink, peer: Address, burst: Burst) -> None:
        """Send a burst again that the network has sent before."""
        self.echoed += len(burst.rows)
        self._put_on(link, peer, burst)

    def _not_lost(self, burst: Burst, peer: Address) -> Burst | None:
        """Remove from a burst the packets that `lose` loses; None: none is left."""
        assert self.lose is not None
        payloads = [payload(burst, i) for i in range(len(burst.rows))]
        fates = [self.lose(burst.peer, peer, burst.tos, each) for each in payloads]
        if not any(fates):
            return burst
        self.lost += sum(fates)
        kept = [i for i, lost in enumerate(fates) if not lost]
        if not kept:
            return None
        tail = len(payloads[kept[-1]])
        return burst._replace(rows=burst.rows[kept], tail=tail)

    def _arrive(self, link: VirtualLink, peer: Address, arrival: Arrival) -> None:
        burst = arrival.burst
        link.counts.delivered += len(burst.rows)
        home = self._homes.get(peer, peer)
        if home.line:
            burst = burst._replace(peer=burst.peer._replace(line=home.line))
        node = self.nodes[home._replace(line=0)]
        if burst.tos == FRAME and node.stack is not None:
            for datagram in self._unpack(node, node.stack, burst):
                self._deliver(node, datagram)
        else:
            self._deliver(node, burst)

    def _deliver(self, node: Node, burst: Burst) -> None:
        """Hand packets to a process; they wait if it is stopped, and are lost if there is none."""
        count = len(burst.rows)
        peer = node.address
        if node.machine is None:
            node.dead += count
            self._note_packets("dead", burst, peer)
        elif node.paused:
            fits = node.make_room(burst)
            node.overflow += count - fits
            if fits:
                size = burst.rows.shape[1]
                tail = burst.tail if fits == count else size
                node.waiting.append(burst._replace(rows=burst.rows[:fits], tail=tail))
            if fits < count:
                rest = burst._replace(rows=burst.rows[fits:])
                self._note_packets("overflow", rest, peer)
        else:
            self._receive(node, burst)
            self._speak(node)

    def _unpack(self, node: Node, stack: HostStack, burst: Burst) -> Iterator[Burst]:
        """Yield the forged datagrams among received frames; the stack handles the other frames."""
        self._note_packets(RECEIVED, burst, node.address)
        for row in burst.rows:
            datagram = stack.receive(row.tobytes())
            self._tell(TAKEN, burst, node.address)
            if datagram is None:
                node.taken += 1
            else:
                self._tell(FORGED, datagram, node.address)
                yield datagram

    def _receive(self, node: Node, burst: Burst) -> None:
        assert node.machine is not None
        node.taken += len(burst.rows)
        self._note_packets(RECEIVED, burst, node.address)
        if self.witness is not None:
            self.witness.comes(node, burst)
        sends = node.machine.receive(burst, self.now) or ()
        self._tell(TAKEN, burst, node.address)
        self._say(node, burst, sends)

    # The trace

    def _note(self, node: Node, what: str) -> None:
        if self.trace is not None:
            self.trace.records.append(TraceRecord(self.now, what, node.address))

    def note(self, address: Address, what: str) -> None:
        """Record in the trace an event of a node."""
        self._note(self.nodes[address], what)

    def _note_packets(self, what: str, burst: Burst, target: Address) -> None:
        self._tell(what, burst, target)
        if self.trace is not None:
            target = self.speaking(target, burst.peer.line)
            burst = burst._replace(peer=burst.peer._replace(line=0))
            for i in range(len(burst.rows)):
                self._note_packet(what, burst, i, target)

    def _tell(self, what: str, burst: Burst, node: Address) -> None:
        if self.tap is not None:
            self.tap(what, burst, node)

    def _note_damage(self, target: Address, burst: Burst, what: str, i: int, bit: int) -> None:
        self._note_packet(what, burst, i, target, bit)

    def _note_packet(self, what: str, burst: Burst, i: int, target: Address, bit: int = -1) -> None:
        assert self.trace is not None
        self.trace.records.append(
            TraceRecord(self.now, what, burst.peer, target, burst.tos, payload(burst, i), bit)
        )
