"""A network of machines under a virtual clock.

The user starts machines, lets their owners speak (`poke`), and moves from event to event (`step`).
The network does the rest: it hands packets that come out of a link to the machine, or keeps them in
the socket of a stopped one; it wakes machines at their deadlines, and sends their packets at once.
Faults are calls: plug and unplug a link, pause, crash, restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from iswitch.core.format.packets import Address, Burst, Outgoing, Rows
from iswitch.faults.impairment import Impairment

from .clock import Clock
from .grain import AUTO, SINGLE, Crossing, Grain
from .host import FRAME, HostStack
from .journal import Homes, Journal, Tap
from .link import LATENCY, LinkCounts, VirtualLink, frame_sizes
from .node import Beside, Lose, Node, Paced, Process, Speaker, Witness, gathered, joined, not_lost
from .runs import Lately, Run, Times, announced
from .trace import RECEIVED, SENT, Trace

TAKEN, FORGED = "taken", "forged"  # events that only a tap is told of


class VirtualNetwork(Clock):
    """Machines, links and the clock.

    Args:
        seed: the seed of all chances.
        latency: seconds that a packet needs on any link at least.
        trace: records all events; None: no record is kept.
        grain: how much may be one event (see runs.py).
    """

    def __init__(
        self,
        seed: int = 0,
        latency: float = LATENCY,
        trace: Trace | None = None,
        grain: Grain = SINGLE,
    ) -> None:
        super().__init__()
        self.grain = grain
        self.seed = seed
        self.latency = latency
        self._homes = Homes()
        self.speaking, self.home = self._homes.speaking, self._homes.home
        self.journal = Journal(self, self._homes, trace)
        self.nodes: dict[Address, Node] = {}
        self.links: dict[tuple[Address, Address], VirtualLink] = {}
        self.lose: Lose | None = None
        self.lost = 0  # packets that `lose` has lost
        self.witness: Witness | None = None
        # Called with a receiver and packets for it: returns after how many seconds to repeat them.
        self.echo: Callable[[Address, Burst], float | None] | None = None
        # Called with a receiver and packets for it: returns older ones to send in the same burst.
        self.ahead: Callable[[Address, Burst], Burst | None] | None = None
        self.beside: Beside | None = None  # another way for some packets
        self.copy: Callable[[Rows], Rows] = np.ndarray.copy  # of packets that are sent
        self.echoed = 0  # packets that `echo` and `ahead` have repeated

    # Building

    def add(self, name: str, address: Address, machine: Process | None = None) -> Node:
        """Add a node; start its machine, if one is given."""
        node = self.nodes[address] = Node(name, address)
        node.lately, node.crossing = Lately() if self.grain > SINGLE else None, Crossing(self.grain)
        if machine is not None:
            self.start(address, machine)
        return node

    def connect(self, a: Address, b: Address, impairment: Impairment | None = None) -> None:
        """Connect two nodes by a cable with one impairment for both directions."""
        for source, target in ((a, b), (b, a)):
            seed = (self.seed, len(self.links))
            tell = None if self.trace is None else partial(self.journal.damage, target)
            into = self.nodes[target].crossing
            link = VirtualLink(impairment or Impairment(), seed, self.latency, tell, into)
            self.links[source, target] = link
        if self.grain == AUTO and not link.is_certain:
            self._be_exact()

    def names(self) -> dict[Address, str]:
        """Return the names of all nodes, in the order in which they were added, and of lines."""
        names = {address: node.name for address, node in self.nodes.items()}
        return names | {
            line: names[home._replace(line=0)] for line, home in self._homes.lines.items()
        }

    def link_counts(self) -> LinkCounts:
        """Return the sum of the counts of all links."""
        return LinkCounts.total(self.links.values())

    # Faults

    def start(self, address: Address, machine: Process) -> None:
        """Start a process, in place of any present one."""
        node = self.nodes[address]
        self._end(node)
        node.machine = machine
        node.speaker = machine if isinstance(machine, Speaker) else None
        node.paced = machine if isinstance(machine, Paced) else None
        self.note(node.address, "starts")
        self.poke(address)

    def crash(self, address: Address) -> None:
        """End a process without a message; packets that come for it are lost."""
        self._end(self.nodes[address])
        self.note(address, "crashes")

    def pause(self, address: Address) -> None:
        """Stop a process (SIGSTOP): packets wait in its socket while there is room."""
        node = self.nodes[address]
        node.paused = True
        node.timer = None
        self.note(node.address, "is paused")

    def resume(self, address: Address) -> None:
        """Resume a stopped process: it handles the waiting packets, then its due timers."""
        node = self.nodes[address]
        if not node.paused:
            return
        node.paused = False
        self.note(node.address, "goes on")
        waiting, node.waiting = node.waiting, deque()
        node.waiting_bytes = 0
        for burst in gathered(waiting):
            self._receive(node, Run(burst, self.now))
        self.poke(address)

    def plug(self, a: Address, b: Address, up: bool) -> None:
        """Plug the cable between two nodes in, or pull it out."""
        for pair in ((a, b), (b, a)):
            self.links[pair].up = up
        self.note(a, f"{'joined with' if up else 'parted from'} {self.nodes[b].name}")

    @property
    def trace(self) -> Trace | None:
        """Return the trace in which all events are recorded; None: there is none."""
        return self.journal.trace

    @property
    def tap(self) -> Tap | None:
        """Return what is told of packets (see `Journal`)."""
        return self.journal.tap

    @tap.setter
    def tap(self, tap: Tap | None) -> None:
        self.journal.tap = tap

    def poke(self, address: Address) -> None:
        """Send the packets of a machine after its owner has called it."""
        node = self.nodes[address]
        if node.machine is not None and not node.paused:
            self._speak(node)

    # Inside

    def _be_exact(self) -> None:
        """Move every packet by itself: a moment may decide which one chance or a queue takes."""
        self.grain = SINGLE
        for node in self.nodes.values():
            node.crossing = Crossing(SINGLE)
        for (_, target), link in self.links.items():
            link.into = self.nodes[target].crossing

    def _end(self, node: Node) -> None:
        node.machine = node.timer = node.speaker = node.paced = None
        node.paused = False
        node.unread += node.waiting_packets()
        node.waiting.clear()
        node.waiting_bytes = 0

    def _speak(self, node: Node) -> None:
        """Look at a machine that may have changed: call its owner, send, and set its timer."""
        node.told = self.now
        if node.heed is not None:
            node.heed()
        machine = node.machine
        if machine is None or node.paused:  # its owner has ended it
            return
        if node.speaker is not None:
            while sends := node.speaker.transmissions(self.now):
                self._say(node, None, sends)
        due = machine.deadline()
        if due is None or due == float("inf"):
            node.timer = None
        elif due != node.timer:
            node.timer = max(due, self.now)
            self.at(node.timer, partial(self._ring, node, node.timer))

    def _ring(self, node: Node, when: float) -> None:
        machine = node.machine
        if node.timer != when or machine is None or node.paused:
            return
        node.timer = None
        due = machine.deadline()
        if due is not None and due <= self.now:
            self.wake(node)
        self._speak(node)

    def wake(self, node: Node) -> None:
        """Have the machine of a node do what is due, whatever its timer."""
        assert node.machine is not None
        if self.witness is not None:
            self.witness.comes(node, None)
        self._say(node, None, node.machine.handle_timer(self.now) or ())

    def _say(self, node: Node, run: Run | None, sends: Sequence[Outgoing], at: float = 0.0) -> None:
        if self.witness is not None:
            self.witness.says(node, run and run.burst, sends)
        if self.beside is not None:
            sends = [rest for out in sends for rest in self.beside.sends(node.address, out)]
        self.transmit(node.address, sends, run, at)

    def transmit(
        self,
        source: Address,
        sends: Sequence[Outgoing],
        run: Run | None = None,
        at: float = 0.0,
        stays: bool = False,
    ) -> None:
        """Put packets on their links.

        Args:
            source: the node that sends them.
            sends: the packets.
            run: the packets in response to which they are sent; None: there are none.
            at: when they are sent, unless they answer packets of the run; 0: now.
            stays: their memory does not change later; else they are copied.
        """
        now, node = at or self.now, self.nodes[source]
        for out in sends:
            ready: Times = now
            if run is not None and node.lately is not None and not isinstance(run.times, float):
                ready = node.lately.ready(out, run, now)
            rows = out.rows if stays else self.copy(out.rows)
            for peer in out.peers:
                burst = Burst(self.speaking(source, peer.line), out.tos, rows, out.tail)
                peer = peer._replace(line=0) if peer.line else peer
                self.journal.packets(SENT, Run(burst, ready), peer)
                self._transmit(source, peer, Run(burst, ready))

    def forge(self, source: Address, name: Address, out: Outgoing) -> None:
        """Send packets from a node in another's name; the trace shows only their arrival."""
        for peer in out.peers:
            run = Run(Burst(name, out.tos, out.rows.copy(), out.tail), self.now)
            self.journal.tell(FORGED, run, peer)
            self._transmit(source, peer, run)

    def _transmit(self, source: Address, peer: Address, run: Run) -> None:
        node = self.nodes[source]
        node.given += len(run.burst.rows)
        if self.lose is not None:
            kept = not_lost(run, peer, self.lose)
            self.lost += len(run.burst.rows) - (0 if kept is None else len(kept.burst.rows))
            if kept is None:
                return
            run = kept
        burst = run.burst
        link = self.links.get((source, self.home(peer)))
        if link is None or (node.stack is not None and node.stack.is_turned):
            node.unreachable += len(burst.rows)
            return
        if node.outward is not None:
            run = Run(burst, node.outward.serve(frame_sizes(burst), run.times))
        if self.grain == AUTO and (segments := announced(burst)) is not None:
            ends, size = (burst.peer, peer), burst.rows.shape[1]
            if node.crossing.leaves(link, ends, segments, size) > link.room:
                self._be_exact()
        own = source == self.home(burst.peer)  # else forged, and never repeated
        older = self.ahead(peer, burst) if own and self.ahead is not None else None
        if older is None:
            self._put_on(link, peer, run)
        else:
            self.echoed += len(older.rows)
            self._put_on(link, peer, Run(joined((older, burst)), run.due))
        after = self.echo(peer, burst) if own and self.echo is not None else None
        if after is not None:
            self.at(self.now + after, partial(self._echo, link, peer, burst))

    def _put_on(self, link: VirtualLink, peer: Address, run: Run) -> None:
        for arrival in link.send(*run):
            self.at(arrival.due, partial(self._arrive, link, peer, arrival))

    def _echo(self, link: VirtualLink, peer: Address, burst: Burst) -> None:
        """Send a burst again that the network has sent before."""
        self.echoed += len(burst.rows)
        self._put_on(link, peer, Run(burst, self.now))

    def _arrive(self, link: VirtualLink, peer: Address, run: Run) -> None:
        """Take a run from its link; the node may need time for it before its process sees it."""
        burst = run.burst
        link.counts.delivered += len(burst.rows)
        home = self._homes.lines.get(peer, peer)
        if home.line:
            run = run._replace(burst=burst._replace(peer=burst.peer._replace(line=home.line)))
        node = self.nodes[home._replace(line=0) if home.line else home]
        if node.inward is None:
            self._enter(node, run)
            return
        handled = Run(run.burst, node.inward.serve(frame_sizes(burst), run.times))
        for each in handled.cut(self.grain):
            node.inside += len(each.burst.rows)
            self.at(each.due, partial(self._handled, node, each))

    def _handled(self, node: Node, run: Run) -> None:
        node.inside -= len(run.burst.rows)
        self._enter(node, run)

    def _enter(self, node: Node, run: Run) -> None:
        if run.burst.tos == FRAME and node.stack is not None:
            for datagram in self._unpack(node, node.stack, run):
                self.deliver(node, datagram)
        elif self.beside is None or not self.beside.comes(node, run.burst):
            self.deliver(node, run)

    def deliver(self, node: Node, run: Run) -> None:
        """Hand packets to a process; they wait if it is stopped, and are lost if there is none."""
        burst = run.burst
        count = len(burst.rows)
        peer = node.address
        if node.machine is None:
            node.dead += count
            self.journal.packets("dead", run, peer)
        elif node.paused:
            fits = node.make_room(burst)
            node.overflow += count - fits
            if fits:
                size = burst.rows.shape[1]
                tail = burst.tail if fits == count else size
                node.waiting.append(burst._replace(rows=burst.rows[:fits], tail=tail))
            if fits < count:
                rest = burst._replace(rows=burst.rows[fits:])
                self.journal.packets("overflow", Run(rest, run.due), peer)
        else:
            self._receive(node, self._foretell(node, run))
            self._speak(node)

    def _foretell(self, node: Node, run: Run) -> Run:
        """Give those packets of a run to a machine after which it may send; return the others.

        While the line on which it sends is busy, it need not see them one after the other: what it
        sends would wait.
        """
        machine, times = node.paced, run.times
        if machine is None or isinstance(times, float):
            return run
        link = self.links.get((node.address, self.home(run.burst.peer)))
        at, n = 0, len(times)
        while link is not None and link.busy < times[-1]:
            step = max(machine.patience(), int(np.searchsorted(times, link.busy)) - at)
            if at + step >= n:
                break
            part = run.part(at, at + step)
            at += step
            now = max(part.due, node.told)
            self._receive(node, part, now)
            while sends := machine.transmissions(now):
                self._say(node, None, sends, now)
        return run.part(at, n) if at else run

    def _unpack(self, node: Node, stack: HostStack, run: Run) -> Iterator[Run]:
        """Yield the forged datagrams among received frames; the stack handles the other frames."""
        self.journal.packets(RECEIVED, run, node.address)
        for row in run.burst.rows:
            datagram = stack.receive(row.tobytes())
            self.journal.tell(TAKEN, run, node.address)
            if datagram is None:
                node.taken += 1
            else:
                forged = Run(datagram, run.due)
                self.journal.tell(FORGED, forged, node.address)
                yield forged

    def _receive(self, node: Node, run: Run, at: float = 0.0) -> None:
        assert node.machine is not None
        now = node.told = at or self.now
        burst = run.burst
        node.taken += len(burst.rows)
        self.journal.packets(RECEIVED, run, node.address)
        if self.witness is not None:
            self.witness.comes(node, burst)
        if node.lately is not None and node.speaker is None:
            node.lately.note(run)
        sends = node.machine.receive(burst, now) or ()
        self.journal.tell(TAKEN, run, node.address)
        self._say(node, run, sends, now)

    def note(self, address: Address, what: str) -> None:
        """Record in the trace an event of a node."""
        self.journal.machine(address, what)
