"""Tells what happens in a simulated network: to a trace, and to whoever listens."""

from __future__ import annotations

from collections.abc import Callable

from iswitch.core.format.lines import port_of
from iswitch.core.format.packets import Address, Burst

from .clock import Clock
from .node import payload
from .runs import Run, Times, time_of
from .trace import Trace, TraceRecord

Tap = Callable[[str, Burst, Address, Times], None]


class Homes:
    """The nodes that speak from several addresses: one for each line (see `Address`)."""

    def __init__(self) -> None:
        self.lines: dict[Address, Address] = {}  # the node's address, with the line

    def speaking(self, source: Address, line: int) -> Address:
        """Return the address from which a node speaks on a line."""
        if not line:
            return source
        own = source._replace(port=port_of(line, source.port))
        self.lines[own] = source._replace(line=line)
        return own

    def home(self, address: Address) -> Address:
        """Return the address of the node that has this address, or speaks from it on a line."""
        found = self.lines.get(address, address)
        return found._replace(line=0) if found.line else found


class Journal:
    """Records events of packets and machines.

    Args:
        clock: tells the time of what has no time of its own.
        homes: tells from which address a node speaks.
        trace: records all events; None: no record is kept.

    Attributes:
        tap: called with the event, the packets, their receiver and times for all that the trace
            records of packets; also when a machine has taken them, and for forged ones.
    """

    def __init__(self, clock: Clock, homes: Homes, trace: Trace | None) -> None:
        self.trace = trace
        self.tap: Tap | None = None
        self._clock = clock
        self._homes = homes

    def machine(self, address: Address, what: str) -> None:
        """Record an event of the machine at an address."""
        if self.trace is not None:
            self.trace.records.append(TraceRecord(self._clock.now, what, address))

    def packets(self, what: str, run: Run, target: Address) -> None:
        """Record an event of packets, each at its own time."""
        self.tell(what, run, target)
        if self.trace is not None:
            burst = run.burst
            target = self._homes.speaking(target, burst.peer.line)
            burst = burst._replace(peer=burst.peer._replace(line=0))
            for i in range(len(burst.rows)):
                self._packet(what, burst, i, target, -1, time_of(run.times, i))

    def tell(self, what: str, run: Run, node: Address) -> None:
        """Tell the tap of an event of packets that no trace records."""
        if self.tap is not None:
            self.tap(what, run.burst, node, run.times)

    def damage(self, target: Address, burst: Burst, what: str, i: int, bit: int) -> None:
        """Record that a link has lost or damaged a packet."""
        self._packet(what, burst, i, target, bit, self._clock.now)

    def _packet(
        self, what: str, burst: Burst, i: int, target: Address, bit: int, time: float
    ) -> None:
        assert self.trace is not None
        self.trace.records.append(
            TraceRecord(time, what, burst.peer, target, burst.tos, payload(burst, i), bit)
        )
