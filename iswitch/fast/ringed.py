"""The kernel at the rings of a switch, and the one at its other port beside it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from iswitch.core.format.packets import Outgoing
from iswitch.core.jobs.job import Job
from iswitch.core.switch import Switch
from iswitch.ethernet.chassis import Chassis
from iswitch.ports.kernel.mmsg import address_of
from iswitch.ports.rings.hub import Rings
from iswitch.ports.rings.members import Group, Member
from iswitch.ports.rings.memory import HEAD
from iswitch.ports.rings.serving import Ringed

from . import loading
from . import ring_table as r
from . import tables as t
from .lanes import LONGEST, Lane
from .lending import MOST_JOBS, Lending, Way, is_plain, receivers
from .ring_lanes import LentLanes
from .tables import READABLE, SECOND

AT_ONCE = 64  # records of a worker without a plain job, before others have their turn
TURN = 20e-6  # seconds in which the port of all others is read
MOST_READERS = 256
DIFFERS = (
    "A compiled link was busy until another time than its rate says, so this switch handles its "
    "packets in Python from now on; please report this, with the rates and delays of its links"
)


class RingLane:
    """Serves plain records of rings in compiled code, and plain packets of the other port.

    Args:
        switch: the switch.
        machine: handles packets: the switch, or the chassis around it.
        port: the switch's port, with rings.
        kernels: the module of kernels.
        clock: returns monotonic seconds.
        other: serves the other port; None: no kernel does.
    """

    def __init__(
        self,
        switch: Switch,
        machine: Any,
        port: Ringed[Any, Any],
        kernels: ModuleType,
        clock: Callable[[], float],
        other: Lane | None,
    ) -> None:
        self.switch = switch
        self.machine = machine
        self.port = port
        self.rings: Rings = port.rings
        self.clock = clock
        self.other = other
        self._serve: Callable[[t.Tables, r.Rings], int] = kernels.serve
        self.lending = Lending(switch, 1, self.way)
        self.tables = self.lending.tables
        self.tables.parameters[t.UNSENT] = -1
        self._members: tuple[Member, ...] = ()
        self._known = (-1, -1)
        self._is_plain = False
        self._differs = False  # has a kernel's link, so that none is trusted any more
        self._groups: dict[int, Group] = {}  # by row of the job
        self._lanes = LentLanes()
        self._table = r.Rings(
            np.zeros((0, r.RING), np.int64),
            np.zeros((MOST_JOBS, r.OUT_RING), np.int64),
            np.zeros((MOST_READERS, r.READER_COLUMNS), np.int64),
            np.zeros((0, r.LANE), np.int64),
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
            np.zeros(2 * r.EVENTS, np.int64),
            np.zeros(4, np.int64),
            np.ones(2, np.int64),
        )
        if other is not None:
            other.beside = (self.rings.bells.fileno(),)

    # What is plain

    def ready(self) -> bool:
        """Lend the jobs; return whether a kernel serves one."""
        if self._differs:
            return False
        known = self.switch.sources.changes, self.rings.changes
        if known != self._known:
            self._known = known
            self.lending.forget()
            self._lay_out()
        self._is_plain = bool(self._members) and self.lending.prepare()
        if self._is_plain:
            self.rings.has_more = False  # the kernel looks into all of them
            kept = self.lending.kept().items()
            self._groups = {at: group for at, group in kept if isinstance(group, Group)}
            self.rings.served = self._groups.values()
            return True
        return not self._members and self.other is not None and self.other.ready()

    def way(self, job: Job) -> Way | None:
        """Say how sums of a job reach their receivers; None: in no plain way."""
        peers = receivers(job)
        group = self.rings.group_of(peers) if peers and is_plain(job) else None
        if group is None:
            return None
        return Way({t.RECEIVERS: len(peers), t.COPIES: 1}, group)

    def _lay_out(self) -> None:
        """Make rows for the workers that have rings."""
        self._members = members = self.rings.in_turn
        rings = np.zeros((len(members), r.RING), np.int64)
        kicks = np.zeros(max((member.kick for member in members), default=0) + 1, np.int64)
        for row, member in zip(rings, members, strict=True):
            row[r.UP] = address_of(member.up.data) - HEAD
            row[r.UP_SIZE] = member.up.size
            row[r.OURS] = address_of(member.down.data) - HEAD
            row[r.BELL] = member.bell.fd
            kicks[member.kick] = 1
        pairs = [member.lanes for member in members if member.lanes is not None]
        self._lanes = LentLanes(lane for pair in pairs for lane in (pair.inward, pair.outward))
        for row, member in zip(rings, members, strict=True):
            if member.inlet is not None:
                row[r.INWARD] = self._lanes.row_of(member.inlet.lane)
                row[r.COMING] = address_of(member.inlet.table)
                row[r.COMING_ENDS] = address_of(member.inlet.ends)
        self._table = self._table._replace(rings=rings, kicks=kicks, lanes=self._lanes.table)
        self.tables.parameters[t.SOCKETS] = len(members)

    # One call

    def run(self, due: float | None, now: float, spin: float, wake: int) -> bool:
        """Serve until something is not plain, as `Lane.run` does."""
        if not self._is_plain:
            assert self.other is not None
            return self.other.run(due, now, spin, wake)
        parameters = self.tables.parameters
        until = now + LONGEST if due is None else min(due, now + LONGEST)
        parameters[t.DEADLINE], parameters[t.SPIN] = int(until * SECOND), int(spin * SECOND)
        self._lend()
        descriptors = np.array([self.rings.bells.fileno(), self.port.port.fileno(), wake], np.int64)
        outs = self._table.outs[: 1 + max(self._groups, default=-1)]
        result = self._serve(self.tables, self._table._replace(outs=outs, descriptors=descriptors))
        self._settle()
        for out, _ in self.lending.unsent():
            self._send(out, now)
        if result == t.NOT_PLAIN:
            self._handle(int(parameters[t.SOCKET]))
        if result == t.OTHERS:
            self.rings.admit()  # the kernel has heard of whoever asks
            waits, now = self.rings.look(), self.clock()
            if not waits or self.other is None or not self.other.ready():
                return True
            self.other.run(now + TURN, now, 0.0, wake)
            return bool(descriptors[-1] >> READABLE)
        return result in (t.TIMER, t.INTERRUPTED)

    def _lend(self) -> None:
        """Lend the ends of all rings."""
        rings, n = self._table.rings, 0
        self._lanes.lend(self.clock())
        for i, member in enumerate(self._members):
            row = rings[i]
            row[r.UP_TAKEN] = member.up.taken
            row[r.SLEEPS], row[r.NUMBER] = member.sleeper.sleeps, member.sleeper.number
            row[r.RUNG] = member.bell.rung
            found = self.switch.record.by_source.get(member.address)
            rows = None if found is None else self.lending.row_of(found[1])
            row[r.KNOWN] = rows is not None
            if rows is not None:
                self.tables.flows[i, t.MEMBER], self.tables.flows[i, t.JOB] = rows
        places = {id(member): i for i, member in enumerate(self._members)}
        for at, group in self._groups.items():
            out, writer = self._table.outs[at], group.down
            out[r.OUT_MEMORY], out[r.OUT_SIZE] = address_of(writer.data) - HEAD, writer.size
            out[r.OUT_WRITTEN] = writer.written
            out[r.OUT_HELD] = out[r.OUT_ENDS] = out[r.OUT_GRAIN] = 0
            out[r.OUT_FIRST] = n
            lanes = [member.lanes.outward for member in group.members if member.lanes is not None]
            if lanes:
                out[r.OUT_GRAIN] = lanes[0].grain
                out[r.OUT_HELD] = address_of(writer.held.table)
                out[r.OUT_ENDS] = address_of(writer.held.ends)
            for member in group.members:
                lane = None if member.lanes is None else member.lanes.outward
                self._table.readers[n] = (
                    places[id(member)],
                    member.number,
                    member.group_taken,
                    0 if lane is None else self._lanes.row_of(lane),
                    0 if lane is None else lanes.count(lane),
                )
                n += 1
            out[r.OUT_STOP] = n

    def _settle(self) -> None:
        """Take up what the kernel has done."""
        if isinstance(self.machine, Chassis):
            self.switch.counters["rx_frames"] += int(self.tables.counts[t.PACKETS])
            self.switch.counters["tx_frames"] += int(self.tables.counts[t.TX_FRAMES])
        self.lending.settle()
        for row, member in zip(self._table.rings.tolist(), self._members, strict=True):
            member.up.taken = row[r.UP_TAKEN]
            member.sleeper.sleeps, member.sleeper.number = row[r.SLEEPS], row[r.NUMBER]
            member.bell.rung = row[r.RUNG]
        for at, group in self._groups.items():
            group.down.written = int(self._table.outs[at, r.OUT_WRITTEN])
            for n in range(self._table.outs[at, r.OUT_FIRST], self._table.outs[at, r.OUT_STOP]):
                i, _, taken, *_ = self._table.readers[n].tolist()
                self._members[i].group_taken = taken
        if not self._lanes.settle():
            self._differs = True
            loading.say(DIFFERS)
        self.rings.served = None
        self.rings.keep(self._groups.values())

    def _send(self, out: Outgoing, now: float) -> None:
        """Send what found no room in a ring; it is counted as sent already."""
        if isinstance(self.machine, Chassis):
            self.port.push([self.machine.issuer.issue([out], now)])
        else:
            self.port.push([out])

    def _handle(self, i: int) -> None:
        """Handle the next record of a worker in the Python way; more if its job is not plain."""
        member, now, lacked = self._members[i], self.clock(), False
        times = 1 if self._table.rings[i, r.KNOWN] else AT_ONCE
        for _ in range(times):
            came = False
            for burst in self.rings.read_one(member, now):
                came = True
                try:
                    self.port.push(self.machine.receive(burst, now))
                except MemoryError:  # handle the other packets that have come
                    lacked = True
            if not came:
                break
        if lacked:
            raise MemoryError
