"""A job at a switch: its members, its rounds and its sums.

Nothing here sends: completed segments are returned as packets. The control plane decides all else,
and takes jobs as data.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address, Outgoing, Rows, Stretch
from iswitch.core.format.wire import FLAG_FIRST, Join, Mode, Shape
from iswitch.core.sums.assembly import Assemblies
from iswitch.core.sums.plane import Accelerator, DataPlane, RoundAccelerator, VersionAccelerator
from iswitch.core.sums.runs import Held, Outcome, Run
from iswitch.core.sums.turns import TurnAccelerator

from .cutting import fitting
from .member import Member
from .membership import Membership
from .phases import JOB, JobPhase, follow
from .rounds import Rounds
from .routes import Routes, routes
from .way import PLAIN, Way
from .window import Window


@dataclass
class Job:
    """One job. Without contributors it is dormant: it has a window, but no shape and no buffers.

    Attributes:
        number: number of the job.
        counters: counts its packets.
        data_plane: makes the accelerators that add up.
        parent: address of the switch that gets its sums, with the job's line; None: its members get
            them.
        members: workers, switches and controllers in it.
        phase: whether its sums can complete, and if not why.
        halted: a Halt holds, until the next Reset.
        shape: the layout of its vectors; None while it is dormant.
        slots: segments of a round that have room at a time; 0: all.
        resizes: its slots change from round to round; `slots` are the fewest.
        takes_turns: its rounds wait for its turn with the memory.
        turns_above: they wait for its turn with the memory of the root.
        synchronous: it counts in rounds, not in versions.
        reproducible: its sums are made in rank order.
        partial: programs number its rounds, and may leave some out.
        left: rounds that it has still to do, as a member last told; 0: none has told.
        priority: as its first contributor asked, or the operator says.
        passes_on: segments go on to the parent where there is no slot for them.
        assemblies: merge contributions of switches below that come in parts, by seat.
        reserved: bytes of buffers, by seat.
        accelerator: adds up and keeps the sums; None while it is dormant.
        dormant_since: when the last member left, in seconds; None: it has members.
        routes: who contributes and receives its segments; None while it is dormant.
        rounds: the window, and the rounds in which the members take part.
    """

    number: int
    counters: Counters
    data_plane: DataPlane
    parent: Address | None = None
    members: Membership = field(default_factory=Membership)
    phase: JobPhase = JobPhase.DORMANT
    halted: bool = False
    shape: Shape | None = None
    slots: int = 0
    resizes: bool = False
    takes_turns: bool = False
    turns_above: bool = False
    passes_on: bool = False
    assemblies: Assemblies = field(default_factory=Assemblies)
    synchronous: bool = True
    reproducible: bool = False
    partial: bool = False
    left: int = 0
    priority: int = 0
    reserved: dict[int, int] = field(default_factory=dict)
    accelerator: Accelerator | None = None
    dormant_since: float | None = None
    routes: Routes | None = None
    rounds: Rounds = field(init=False)

    def __post_init__(self) -> None:
        self.rounds = Rounds(self.members)
        if self.data_plane.has_parent:
            self.members.above = 0

    # Its life

    def begin(
        self, shape: Shape, seat: int, way: Way = PLAIN, window: Window | None = None
    ) -> None:
        """Take the shape that the first contributor gives the job.

        Args:
            shape: the layout of its vectors.
            seat: the contributor's seat.
            way: how it adds up.
            window: the rounds in which the job begins; None: from round 0, or where it stood.

        Raises:
            MemoryError: too little memory for the job; nothing has changed.
        """
        named = self.number, shape, self.is_complete, self.priority
        accelerator = way.begin(self.data_plane, *named, self.members.slots_of)
        if shape.mode is Mode.ASYNCHRONOUS:
            accelerator.reset(self.high if window is None else window.high)
        accelerator.join(seat)
        if window is not None:
            self.rounds.window, self.rounds.told = window, window.high
        self.shape, self.passes_on = shape, way.pool is not None
        self.reproducible, self.slots, self.takes_turns, self.resizes, _ = way
        self.routes = routes(self.members, accelerator, self.counters)
        self.threshold *= not self.leaves_nobody_out  # which a controller may have set before
        self.dormant_since = None
        self.synchronous = shape.mode is not Mode.ASYNCHRONOUS
        self.accelerator = accelerator
        self._enter(JobPhase.GATHERING)

    def end(self) -> None:
        """Free the buffers after the last contributor has left; keep the place in the rounds.

        The threshold and the Halt of a controller that is still a member stay in force.
        """
        self.sums.end()
        self.shape, self.slots, self.routes = None, 0, None
        self.takes_turns = self.turns_above = self.passes_on = self.resizes = False
        self.assemblies.clear()
        self.left, self.synchronous, self.accelerator = 0, True, None
        self.reserved.clear()
        self.rounds.end()
        self._enter(JobPhase.DORMANT)

    def sleep(self, now: float) -> None:
        """Forget the threshold and the Halt: the last member has left."""
        self.threshold, self.halted = 0, False
        self.dormant_since = now

    def await_reset(self) -> None:
        """Complete nothing until the switch above names the round in which all resume."""
        self._enter(JobPhase.AWAITING_RESET)

    def reset(self, round_: int | None = None) -> None:
        """Empty all buffers and resume two rounds later, or in the round that the parent names."""
        self.rounds.reset(round_, self.synchronous)
        self.halted = False
        self.assemblies.forget(*self.assemblies)
        if self.accelerator is not None:
            self.accelerator.reset(self.high)
            self._enter(JobPhase.RUNNING if self.members.gathered else JobPhase.GATHERING)

    def _enter(self, phase: JobPhase) -> None:
        self.phase = follow(JOB, self.phase, phase)

    def _note_gate(self) -> None:
        """Move from GATHERING to RUNNING once all expected workers are members at once, or back."""
        if self.phase in (JobPhase.GATHERING, JobPhase.RUNNING):
            self._enter(JobPhase.RUNNING if self.members.gathered else JobPhase.GATHERING)

    @property
    def awaits_reset(self) -> bool:
        """Return whether the job waits for the switch above to name the next round."""
        return self.phase is JobPhase.AWAITING_RESET

    # Its members

    def member(self, peer: Address) -> Member | None:
        """Return the member at an address."""
        return self.members.by_address.get(peer)

    def contributors(self) -> list[Member]:
        """Return workers and child switches, by seat."""
        return self.members.contributors()

    def add(self, member: Member, whole: bool = False) -> None:
        """Take a member in; a contributor's `expected` raises the number waited for.

        Args:
            member: a new one.
            whole: whether every sum must hold that many contributions.
        """
        self.members.add(member, whole)
        self._note_gate()

    def remove(self, member: Member) -> None:
        """Take a member out."""
        self.members.remove(member)
        if member.contributes:
            self.members.are_fewer(member.workers)

    def opens_gate(self) -> bool:
        """Count the workers; return whether the expected number was reached just now."""
        opened = self.members.count()
        self._note_gate()
        return opened

    def give(self, member: Member, ranks: int) -> None:
        """Give a member the ranks of a bitmap; the lowest is its place in rank order."""
        self.members.give(member, ranks)
        if ranks and self.accelerator is not None:
            self.accelerator.rank(member.seat, ranks)

    @property
    def leaves_nobody_out(self) -> bool:
        """Return whether no sum may lack a contribution: no H, and no FBcast."""
        if self.slots or self.takes_turns or self.turns_above or self.passes_on or self.assemblies:
            return True
        return self.shape is not None and self.shape.mode.has_owners

    @property
    def threshold(self) -> int:
        """H, as it was set; 0: every current contributor."""
        return self.members.threshold

    @threshold.setter
    def threshold(self, threshold: int) -> None:
        self.members.threshold = threshold

    # Its rounds

    @property
    def window(self) -> Window:
        """Return the rounds whose contributions the job accepts."""
        return self.rounds.window

    @property
    def high(self) -> int:
        """Return the highest round that any member has begun."""
        return self.rounds.window.high

    def come_back(self, join: Join) -> None:
        """Move on to the round that the Join of a returning member names."""
        self.rounds.come_back(join.round, bool(join.flags & FLAG_FIRST))
        if isinstance(self.accelerator, VersionAccelerator):
            self.accelerator.name(self.high)

    def is_out_of_step(self) -> bool:
        """Return whether a whole job that has just gathered must resume in a new round."""
        return self.members.keeps_places and self.synchronous and self.rounds.is_out_of_step()

    def is_beyond(self, join: Join) -> bool:
        """Return whether a switch's new process joins a whole job without knowing its round."""
        return self.members.keeps_places and self.synchronous and self.rounds.is_beyond(join)

    def move_up(self, member: Member) -> bool:
        """Let a member that lost its place take part from `high` on; return whether it had."""
        return self.synchronous and self.rounds.moves_up(member)

    def stands_at(self) -> int:
        """Return the first round of which an aggregate from the parent is missing."""
        return self.rounds.stands_at(self._in_rounds.has_all)

    def has_finished(self, round_: int) -> bool:
        """Return whether every aggregate of a round has come from the parent, here or before."""
        return self._in_rounds.has_all(round_) or self.rounds.is_behind(round_)

    # Its sums

    @property
    def sums(self) -> Accelerator:
        """Return the accelerator of a job that has contributors."""
        assert self.accelerator is not None
        return self.accelerator

    @property
    def sent(self) -> Routes:
        """Return the routes of a job that has contributors."""
        assert self.routes is not None
        return self.routes

    @property
    def _in_rounds(self) -> RoundAccelerator:
        assert isinstance(self.accelerator, RoundAccelerator)
        return self.accelerator

    def is_complete(self, round_: int, held: int) -> bool:
        """Return whether a segment is complete.

        Args:
            round_: round of the segment.
            held: bitmap of its contributors; their number where contributions are only counted.
        """
        if self.phase is not JobPhase.RUNNING:
            return False
        members = self.members
        if not self.synchronous or self.data_plane.counts_packets:
            return held >= members.threshold_in_force
        if members.threshold:
            return held.bit_count() >= members.threshold
        participants = members.participants(round_)
        return held & participants == participants and held.bit_count() >= members.least

    def bits_held(self) -> int:
        """Return the bitmap of the seats that have a contribution in some open segment."""
        return 0 if self.accelerator is None else self.accelerator.bits_held()

    def held(self, round_: int, start: int, stop: int) -> list[tuple[Run, Held, int]]:
        """Return the runs of segments start..stop-1, each with its state and contributor bitmap."""
        return list(self.sums.held(round_, start, stop))

    def lacking(self, run: Run, bitmap: int, asker: Member | None = None) -> list[tuple[int, Run]]:
        """Return whose contributions an open run lacks: bits of members, and their segments.

        Args:
            run: segments in one state.
            bitmap: bitmap of the contributors to them.
            asker: the member that asks; None: the parent.
        """
        if isinstance(self.accelerator, TurnAccelerator):
            bitmap |= self.accelerator.waiting_for(run.round)
        return self.sent.lacking(run, bitmap, self.rounds.lacking(run.round, 0, asker))

    def waiting(self) -> list[Run]:
        """Return the runs that were sent to the parent and whose aggregates have not come."""
        return self._in_rounds.waiting()

    def is_gone(self, round_: int, what: Held) -> bool:
        """Return whether a segment is lost for good: not complete, and never to be completed."""
        if what is Held.GONE:
            return True
        return self.synchronous and what is not Held.COMPLETE and self.window.is_past(round_)

    # Data

    def stretches(self, rows: Rows, tail: int) -> list[Stretch]:
        """Cut data packets into stretches of one round each; drop malformed segments."""
        assert self.shape is not None
        assert self.accelerator is not None
        cut = self.accelerator.cutter.cut(rows, tail)
        if len(cut) == 1 and cut[0].fits(self.shape):  # as nearly always
            return cut
        return fitting(self.shape, cut, self.counters)

    def contribute(self, member: Member, stretch: Stretch, outcome: Outcome) -> None:
        """Accumulate segments of one member; count the dropped ones.

        Args:
            member: the sender.
            stretch: the segments.
            outcome: completed and late runs are added to it.
        """
        assert self.accelerator is not None
        reason = "halted" if self.halted else None
        if reason is None and self.synchronous:
            reason = self.rounds.refuse(member, stretch.round)
        if reason:
            self.counters[reason] += len(stretch.rows)
        else:
            member.met = None
            self.accelerator.accumulate(member.seat, stretch, outcome)

    def take(self, stretch: Stretch) -> list[Outgoing]:
        """Keep aggregates of one round from the parent, and broadcast the new ones."""
        if self.halted or stretch.round not in self.window:
            self.counters["halted" if self.halted else "out_of_window"] += len(stretch.rows)
            return []
        # If this raises `high`, H is set above or FBcast was used: the others are ahead.
        self.rounds.contribute(stretch.round)
        self.rounds.hear_of(stretch.round)
        # At a restarted switch, the sum may hold contributions of workers that are not back yet.
        self.rounds.completed_any |= self.members.gathered
        new = [run for some in stretch.consecutive() for run in self._in_rounds.take(some)]
        return self.sent.pass_on(new)

    def reevaluate(self) -> list[Outgoing]:
        """Send the segments that a change of members, threshold or phase has completed."""
        return [] if self.accelerator is None else self.deliver(self.accelerator.reevaluate())

    def force(self, round_: int, start: int, stop: int) -> tuple[list[Outgoing], int]:
        """Send open segments of start..stop-1 as they are; also return the fewest contributions."""
        completed, fewest = self.sums.force(round_, start, stop)
        return self.deliver(completed), fewest

    def deliver(self, completed: list[Run]) -> list[Outgoing]:
        """Send completed runs to the parent; without a parent, to the contributors."""
        if not completed:
            return []
        self.rounds.completed_any = True
        if isinstance(self.accelerator, VersionAccelerator):
            self.window.name(self.accelerator.version, False)
        if self.parent is None:
            return self.sent.deliver(completed)
        return self.sums.deliver(completed, (self.parent,))

    def contribute_again(self, completed: list[Run]) -> list[Outgoing]:
        """Send completed runs to the parent once more: the contribution of this switch."""
        if not completed:
            return []
        assert self.parent is not None
        self.counters["to_parent"] += sum(run.segments for run in completed)
        return self.sums.send(completed, (self.parent,), partial=True)

    def resume(self) -> None:
        """Catch up after a lack of memory: note that segments may have completed meanwhile."""
        self.rounds.completed_any |= self.accelerator is not None and self.members.gathered
        if isinstance(self.accelerator, VersionAccelerator):
            self.window.name(self.accelerator.version, False)
