"""Lends the rings of a switch's workers to its kernel, for one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from iswitch.core.format.packets import Address, Burst
from iswitch.core.switch import Switch
from iswitch.ports.kernel.mmsg import address_of
from iswitch.ports.rings.hub import Rings
from iswitch.ports.rings.members import Group, Member
from iswitch.ports.rings.memory import HEAD

from . import loading
from . import ring_table as r
from . import tables as t
from .lending import MOST_JOBS, Lending
from .lent import Way
from .ring_lanes import LentLanes

AT_ONCE = 64  # records of a worker without a plain job, before others have their turn
MOST_READERS = 512  # of groups, and of rings of their own
DIFFERS = (
    "A compiled link was busy until another time than its rate says, so this switch handles its "
    "packets in Python from now on; please report this, with the rates and delays of its links"
)


class LentRings:
    """The rows of the rings of a switch's workers.

    Sums are written through the caches for workers that are nearer than `near` nanoseconds.

    Args:
        switch: the switch.
        lending: lends its jobs.
        rings: the rings; None: there are none.
        clock: returns monotonic seconds.

    Attributes:
        differs: a kernel's link has differed from Python's, so that none is trusted any more.
    """

    near = r.NEAR

    def __init__(
        self, switch: Switch, lending: Lending, rings: Rings | None, clock: Callable[[], float]
    ) -> None:
        self.switch = switch
        self.lending = lending
        self.rings = rings
        self.clock = clock
        self.differs = False
        self._members: tuple[Member, ...] = ()
        self._holders: dict[int, Group | Member] = {}  # of rings for packets of jobs, by row
        self._lanes = LentLanes()
        self._table = r.Rings(
            np.zeros((0, r.RING), np.int64),
            np.zeros((MOST_JOBS, r.OUT_RING), np.int64),
            np.zeros((MOST_READERS, r.READER_COLUMNS), np.int64),
            np.zeros((0, r.LANE), np.int64),
            np.zeros((0, t.FLOW), np.int64),
            np.zeros(0, np.int64),
            np.zeros(2 * r.EVENTS, np.int64),
            np.ones(4, np.int64),
        )

    # Which jobs are served through rings

    @property
    def changes(self) -> int:
        """How often the workers, or the ways to them, have changed."""
        return 0 if self.rings is None else self.rings.changes

    def comes_beside(self, burst: Burst) -> None:
        """Take note of packets that came by a socket."""
        if self.rings is not None:
            self.rings.comes_beside(burst)

    def serve(self, peers: tuple[Address, ...]) -> bool:
        """Return whether some of these peers have rings."""
        return self.rings is not None and not self.rings.lacks(peers)

    def parts(self, peers: tuple[Address, ...]) -> list[tuple[Address, ...]]:
        """Return those of these peers that have rings, and those that have none, if any."""
        both = (peers,) if self.rings is None else self.rings.parted(peers)
        return [some for some in both if some]

    def way(self, peers: tuple[Address, ...]) -> Way | None:
        """Say how packets reach receivers that have rings; None: in no plain way."""
        holder = None if self.rings is None else self.rings.holder_of(peers)
        return None if holder is None else Way({t.RECEIVERS: len(peers), t.COPIES: 1}, holder)

    def choose(self) -> None:
        """Take the rings that the lent jobs' packets go into."""
        if self.rings is not None:
            kept = self.lending.kept().items()
            self._holders = {at: one for at, one in kept if isinstance(one, Group | Member)}
            self.rings.served = self._holders.values()
            self.rings.has_more = False  # the kernel looks into all of them

    def lay_out(self) -> None:
        """Make rows for the workers that have rings."""
        if self.rings is None:
            return
        self._members = members = self.rings.in_turn
        rings = np.zeros((len(members), r.RING), np.int64)
        flows = np.zeros((len(members), t.FLOW), np.int64)
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
        self._table = self._table._replace(
            rings=rings, kicks=kicks, lanes=self._lanes.table, flows=flows
        )

    # One call

    def lend(self) -> r.Rings:
        """Lend the ends of all rings for one call."""
        if self.rings is None:
            return self._table
        rings, outs, n = self._table.rings, self._table.outs, 0
        outs = outs[: 1 + max(self._holders, default=-1)]
        outs[:] = 0
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
                self._table.flows[i, t.MEMBER], self._table.flows[i, t.JOB] = rows
        places = {id(member): i for i, member in enumerate(self._members)}
        for at, holder in self._holders.items():
            out, writer = outs[at], holder.down
            members = holder.members if isinstance(holder, Group) else (holder,)
            out[r.OUT_MEMORY], out[r.OUT_SIZE] = address_of(writer.data) - HEAD, writer.size
            out[r.OUT_WRITTEN] = writer.written
            out[r.OUT_APART], out[r.OUT_NEAR] = writer.apart, self.near
            out[r.OUT_FIRST] = n
            lanes = [member.lanes.outward for member in members if member.lanes is not None]
            if lanes:
                out[r.OUT_GRAIN] = lanes[0].grain
                out[r.OUT_HELD] = address_of(writer.held.table)
                out[r.OUT_ENDS] = address_of(writer.held.ends)
            for member in members:
                lane = None if member.lanes is None else member.lanes.outward
                self._table.readers[n] = (
                    places[id(member)],
                    member.number if isinstance(holder, Group) else -1,
                    member.group_taken,
                    0 if lane is None else self._lanes.row_of(lane),
                    0 if lane is None else lanes.count(lane),
                )
                n += 1
            out[r.OUT_STOP] = n
        return self._table._replace(outs=outs)

    def settle(self) -> None:
        """Take up what the kernel has done."""
        if self.rings is None:
            return
        for row, member in zip(self._table.rings.tolist(), self._members, strict=True):
            member.up.taken = row[r.UP_TAKEN]
            member.sleeper.sleeps, member.sleeper.number = row[r.SLEEPS], row[r.NUMBER]
            member.bell.rung = row[r.RUNG]
        for at, holder in self._holders.items():
            out = self._table.outs[at]
            columns = [r.OUT_WRITTEN, r.OUT_APART]
            holder.down.written, holder.down.apart = out[columns].tolist()
            readers = range(out[r.OUT_FIRST], out[r.OUT_STOP]) if isinstance(holder, Group) else ()
            for n in readers:
                i, _, taken, *_ = self._table.readers[n].tolist()
                self._members[i].group_taken = taken
        if not self._lanes.settle():
            self.differs = True
            loading.say(DIFFERS)
        self.rings.served = None
        self.rings.keep(self._holders.values())

    def come(self, i: int, now: float) -> Iterator[Burst]:
        """Yield the next packets of a worker, for the Python way; more if its job is not plain."""
        assert self.rings is not None
        member = self._members[i]
        times = 1 if self._table.rings[i, r.KNOWN] else AT_ONCE
        for _ in range(times):
            came = False
            for burst in self.rings.read_one(member, now):
                came = True
                yield burst
            if not came:
                break
