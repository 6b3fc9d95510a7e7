"""A job at a switch: its members, its window of rounds, its threshold and its accelerator.

The rules are those of docs/protocol.md, "Rounds". Why two sets suffice: with H automatic a worker
starts round R only when it has every aggregate of R-1, so a contribution to R proves that everybody
contributed to R-1 and so has R-2, whose set R then takes over. The first contribution of a newcomer
proves nothing of the kind, so it may not raise `high` before the others are that far.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Rows, Stretch
from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_STANDS_AT,
    MOST_WORKERS,
    ROUND_MASK,
    Join,
    Mode,
    Shape,
    later,
    round_distance,
)
from iswitch.core.sums.plane import Accelerator, DataPlane, RoundAccelerator, VersionAccelerator
from iswitch.core.sums.runs import Outcome, Run

from .membership import Member, Membership, lowest


@dataclass(slots=True)
class Window:
    """The rounds a synchronous job takes: `high - 1` to `high + 1`, none before `lowest`.

    `named` says whether anything has set `high` yet: the first to name a round sets it, whatever
    the number, since workers that come back to a switch which lost its state may stand anywhere in
    the circle of numbers. `contributed`: something was contributed to `high`. `base` is the round
    the job began with here; it is of interest until something has completed.
    """

    high: int = 0
    base: int = 0
    lowest: int | None = None
    named: bool = False
    provisional: bool = False  # only named by members in their first round
    contributed: bool = False

    def __contains__(self, round_: int) -> bool:
        return not self.is_past(round_) and round_distance(round_, self.high) <= 1

    def is_past(self, round_: int) -> bool:
        """Whether a round is before the window."""
        if self.lowest is not None and round_distance(round_, self.lowest) < 0:
            return True
        return round_distance(round_, self.high) < -1

    def name(self, round_: int, first: bool) -> None:
        """A Join names the round its sender stands at.

        If it is the sender's first, the others may be up to two rounds behind: it counts only
        until somebody names one that is not.
        """
        if first:
            lower = round_distance(round_, self.high) < 0
            if not self.named and (lower or not self.provisional):
                self.provisional = True
                self.base = self.high = round_
            return
        if not self.named or round_distance(round_, self.high) > 0:
            before = self.high if self.named or self.provisional else round_
            self._raise(round_)
            self.base = before if before in self else round_
        elif round_distance(round_, self.base) < 0 and round_ in self:
            self.base = round_

    def contribute(self, round_: int) -> None:
        """A contribution to this round, which is in the window, was accepted."""
        if round_distance(round_, self.high) > 0:
            self._raise(round_)
        self.named = True
        if round_ == self.high:
            self.contributed = True

    def skip(self, round_: int | None = None) -> None:
        """Go on two rounds further, so that no straggler from before can enter."""
        self._raise((self.high + 2) & ROUND_MASK if round_ is None else round_)
        self.lowest = self.base = self.high

    def _raise(self, round_: int) -> None:
        self.high = round_
        self.named = True
        self.contributed = False
        if self.base not in self:
            self.base = round_
        # Numbers wrap: a bound kept for 2**31 rounds would look like one to come.
        if self.lowest is not None and round_distance(round_ - 1, self.lowest) >= 0:
            self.lowest = None

    @property
    def newcomers(self) -> int:
        """The first round of a member that joins now."""
        return (self.high + self.contributed) & ROUND_MASK


@dataclass
class Job:
    """One job. Without contributors it is dormant: it has a window, but no shape and no buffers."""

    number: int
    counters: Counters
    data_plane: DataPlane
    members: Membership = field(default_factory=Membership)
    window: Window = field(default_factory=Window)
    threshold: int = 0  # H; 0: every current member
    halted: bool = False
    shape: Shape | None = None
    synchronous: bool = True  # counts in rounds
    reproducible: bool = False
    reserved: dict[int, int] = field(default_factory=dict)  # bytes by seat
    accelerator: Accelerator | None = None
    completed_any: bool = False
    awaits_reset: bool = False  # by the switch above; until then nothing completes
    dormant_since: float | None = None  # when the last member left
    reset_to: int | None = None  # the round from which the last Reset had it go on

    def __post_init__(self) -> None:
        if self.data_plane.has_parent:
            self.members.above = 0

    def begin(self, shape: Shape, reproducible: bool, seat: int) -> None:
        """The first contributor, on this seat, gives the job its shape.

        Raises:
            MemoryError: there is none for it; nothing has changed.
        """
        accelerator = self.data_plane.begin(self.number, shape, self.is_complete, reproducible)
        if shape.mode is Mode.ASYNCHRONOUS:
            accelerator.reset(self.window.high)
        accelerator.join(seat)
        self.shape = shape
        self.reproducible = reproducible
        self.dormant_since = None
        self.synchronous = shape.mode is Mode.SYNCHRONOUS
        self.accelerator = accelerator

    def end(self) -> None:
        """The last contributor has left: free the buffers, keep the place in the rounds.

        What a controller that is still there has set stays set.
        """
        if self.accelerator is not None:
            self.accelerator.end()
        self.shape = None
        self.synchronous = True
        self.accelerator = None
        self.reserved.clear()
        self.completed_any = False
        self.awaits_reset = False
        self.members.expect_nobody()
        self.window.skip()

    def sleep(self, now: float) -> None:
        """The last member has left: what it had set goes with it."""
        self.threshold = 0
        self.halted = False
        self.dormant_since = now

    def give(self, member: Member, ranks: int) -> None:
        """A member has these ranks from now on; a switch's place in rank order is its lowest."""
        member.ranks = ranks
        if ranks and self.accelerator is not None:
            self.accelerator.rank(member.seat, lowest(ranks))

    @property
    def threshold_in_force(self) -> int:
        """H as it counts now: what was set, or the number of contributors."""
        return self.threshold or max(len(self.members.contributor_addresses()), self.members.least)

    def is_complete(self, round_: int, held: int) -> bool:
        """Whether a segment is complete.

        `held` is the bitmap of its contributors, or where they are only counted their number.
        """
        if not self.members.gathered or self.awaits_reset:
            return False
        if not self.synchronous or self.data_plane.counts_packets:
            return held >= self.threshold_in_force
        if self.threshold:
            return held.bit_count() >= self.threshold
        participants = self.members.participants(round_)
        return held & participants == participants and held.bit_count() >= self.members.least

    @property
    def keeps_places(self) -> bool:
        """Whether it is a whole job that has begun: it waits for each of its contributors.

        Then nothing completes without one that is silent, and what it has missed it can still have:
        it stays until another takes its place.
        """
        return self.members.whole and self.members.gathered and not self.threshold

    def is_out_of_step(self) -> bool:
        """Whether, in a whole job that has just gathered, not all go on from the same place.

        So it is when a switch has lost its state and a worker was replaced meanwhile: some came
        back to a round they are at, and others know nothing of it, or have not heard of a reset. Or
        one was replaced before all had come: it begins later than they, for no packet of the old
        process may count as its own.
        """
        if not self.keeps_places or not self.synchronous:
            return False
        members = self.members.contributors()
        if any(m.replaces for m in members):
            return True
        going_on = {m.named for m in members if m.named is not None and not m.begins}
        beginning = {m.named for m in members if m.begins}
        if None in beginning:  # new ones
            return bool(going_on) or len(beginning) > 1
        # All begin at one round, and who has finished that is at the next.
        rounds = beginning or going_on
        return len(beginning) > 1 or any(
            round_distance(to, at) not in ((0, 1) if beginning else (-1, 0, 1))
            for at in rounds
            for to in going_on
            if at is not None and to is not None
        )

    def is_beyond(self, join: Join) -> bool:
        """Whether a new process of a switch below knows, in a whole job, nothing of the others.

        Its first worker is new, then: a place was taken again.
        """
        if not self.keeps_places or not self.synchronous:
            return False
        ahead = round_distance(join.round, self.window.high) > 0
        return not join.flags & FLAG_STANDS_AT or (bool(join.flags & FLAG_FIRST) and ahead)

    def workers_there(self, now: float, lease: float) -> int:
        """Workers at this switch and below it that can be counted on.

        Once a whole job has begun, those that keep their place though their lease has run out are
        not there. Switches may say what they like: the number is no larger than an Ack can tell.
        """
        lost = self.lost(now, lease) if self.keeps_places else 0
        there = sum(m.workers for m in self.members.contributors() if not lost & m.bit)
        return min(there, MOST_WORKERS)

    def lost(self, now: float, lease: float) -> int:
        """Bitmap of the contributors whose lease has run out though they are members still."""
        return sum(m.bit for m in self.members.contributors() if m.last_seen + lease <= now)

    def silent(self, now: float, lease: float) -> list[Member]:
        """Who has said nothing for a lease time and is out, therefore.

        Contributors whose place is kept stay as long as one of them speaks; so do those of a job
        that gathers: the same process could come back early, and contribute a second time from
        another seat.
        """
        members = list(self.members.by_address.values())
        silent = [m for m in members if m.last_seen + lease <= now]
        spoken = any(m.contributes for m in members if m not in silent)
        keep = spoken and (self.keeps_places or not self.members.gathered)
        return [m for m in silent if not (keep and m.contributes)]

    def places(self) -> int:
        """In a job that keeps places: how many of them are free."""
        return self.members.least - len(self.members.contributor_addresses())

    def stretches(self, rows: Rows, tail: int) -> list[Stretch]:
        """Cut data packets into segments of one round, without what is malformed."""
        assert self.shape is not None
        assert self.accelerator is not None
        cut = self.accelerator.cutter.cut(rows, tail)
        if len(cut) == 1 and cut[0].fits(self.shape):  # as nearly always
            return cut
        good: list[Stretch] = []
        for stretch in cut:
            fits = stretch.fits(self.shape)
            good += (stretch,) if fits else self._well_formed(self.shape, stretch)
        return good

    def contribute(self, member: Member, stretch: Stretch, outcome: Outcome) -> None:
        """Take segments of one member; count what is not taken."""
        assert self.accelerator is not None
        reason = self._refuse(member, stretch.round)
        if reason:
            self.counters[reason] += len(stretch.rows)
        else:
            member.met = None
            self.accelerator.accumulate(member.seat, stretch, outcome)

    def _well_formed(self, shape: Shape, stretch: Stretch) -> Iterator[Stretch]:
        """What has the length and the indices that the job's vectors have."""
        for piece in stretch.pieces():
            round_, index, rows, size, _ = piece
            n = len(rows)
            first = end = index  # the segments that have this length
            if size == shape.packet_size:
                first, end = 0, shape.full_segments
            elif size == shape.last_size:
                first, end = shape.full_segments, shape.segments
            rows = rows[max(0, first - index) : max(0, end - index)]
            self.counters["malformed"] += n - len(rows)
            if len(rows):
                yield Stretch(round_, max(index, first), rows, size)

    def take(self, stretch: Stretch) -> list[Run]:
        """Take aggregates from the parent; what is new, to be sent to the members."""
        assert isinstance(self.accelerator, RoundAccelerator)
        round_, rows = stretch.round, stretch.rows
        if self.halted or round_ not in self.window:
            self.counters["halted" if self.halted else "out_of_window"] += len(rows)
            return []
        was = self.window.high
        self.window.contribute(round_)
        if self.window.high != was:  # H is set above, or FBcast was: the others are ahead
            self.members.move_on(self.window.high)
        # Before all are back at a switch that was restarted, those away may be in it, too.
        self.completed_any |= self.members.gathered
        return [run for some in stretch.consecutive() for run in self.accelerator.take(some)]

    def stands_at(self) -> int:
        """The first round of which an aggregate from the parent is missing."""
        assert isinstance(self.accelerator, RoundAccelerator)
        high = self.window.high
        before = (high - 1) & ROUND_MASK
        if before in self.window and round_distance(self.window.base, before) <= 0:
            # After a restart members may have named it, and wait for it still.
            wanted = self.members.participants(before)
            if wanted and not self.completed_any and not self.accelerator.has_all(before):
                return before
        return (high + 1) & ROUND_MASK if self.accelerator.has_all(high) else high

    def name(self, round_: int, first: bool) -> None:
        """A member that comes back to a switch which lost its state names the round it is at."""
        self.window.name(round_, first)
        self.members.move_on(self.window.high)
        for member in self.members.contributors():
            if self.synchronous and self._is_overtaken(member):  # as if it had joined only now
                self.members.begin_at(member, self.window.base)
        if isinstance(self.accelerator, VersionAccelerator):
            self.accelerator.name(self.window.high)

    def place(self, member: Member, join: Join, early: bool, former: Member | None) -> None:
        """Say from which round on a new contributor takes part.

        Args:
            member: the new member.
            join: its Join, whose round has been named.
            early: nothing can have completed without it.
            former: the member it takes the place of: an older process at the same address.
        """
        window = self.window
        comes_back = bool(join.flags & FLAG_STANDS_AT)
        if former is not None:  # beyond all that the old process can have under way
            member.first_round = (window.newcomers + 1) & ROUND_MASK
            first = former.first_round
            if first is not None and round_distance(first, member.first_round) >= 0:
                member.first_round = (first + 1) & ROUND_MASK
        elif not early or (comes_back and window.is_past(join.round)):
            member.first_round = window.newcomers
        elif not comes_back:
            member.first_round = window.base
        elif join.flags & FLAG_FIRST:
            member.first_round = join.round
            member.held_back = True

    def _is_overtaken(self, newcomer: Member) -> bool:
        """Whether a new process has done nothing yet, and its first round is over."""
        first = newcomer.first_round
        if first is None or newcomer.named is not None or newcomer.contributed is not None:
            return False
        return self.window.is_past(first)

    def _refuse(self, member: Member, round_: int) -> str | None:
        """The reason to drop a contribution to this round; None if it is taken."""
        if self.halted:
            return "halted"
        if not self.synchronous:
            return None
        window = self.window
        if round_ == window.high and window.contributed and member.first_round is None:
            member.contributed = round_
            return None  # as nearly always
        if not member.takes_part_in(round_):
            return "before_join"
        ahead = round_ == member.first_round and round_distance(round_, window.high) > 0
        if ahead or member.held_back:
            if not self._may_begin(member, round_):
                return "out_of_window"
            member.held_back = False
        elif round_ not in window:
            return "out_of_window"
        if member.contributed is None or round_distance(round_, member.contributed) > 0:
            member.contributed = round_
        was = window.high
        window.contribute(round_)
        if window.high != was:
            self.members.move_on(window.high)
        return None

    def _may_begin(self, newcomer: Member, round_: int) -> bool:
        """Whether a newcomer's first contribution may raise `high` to its round.

        It may if nobody needs a round before the last any more, be it past high + 1: the others may
        all have left. With H set, who is slow falls behind in any case.
        """
        if self.threshold and self.completed_any:
            return round_ in self.window
        if newcomer.held_back and not self.members.gathered:
            return False
        before = (round_ - 1) & ROUND_MASK
        return all(m is newcomer or m.stands_at(before) for m in self.members.contributors())

    def note(self, completed: list[Run]) -> list[Run]:
        """Remember that segments completed; in an asynchronous job, the version they made."""
        if completed:
            self.completed_any = True
            if isinstance(self.accelerator, VersionAccelerator):
                self.window.name(self.accelerator.version, False)
        return completed

    def resume(self) -> None:
        """Something may have completed of which nobody took note, for want of memory."""
        self.completed_any |= self.accelerator is not None and self.members.gathered
        if isinstance(self.accelerator, VersionAccelerator):
            self.window.name(self.accelerator.version, False)

    def reset(self, round_: int | None = None) -> None:
        """Empty all buffers and go on two rounds further, or from the round the parent says.

        Further than any member has named, too: after a switch lost its state some may know of a
        Reset of which others have not heard. They would take the same number for a late copy.
        """
        if round_ is None and self.synchronous:
            named = (m.named for m in self.members.contributors() if m.named is not None)
            self.window.high = reduce(later, named, self.window.high)
        self.window.skip(round_)
        self.reset_to = self.window.high
        self.halted = False
        self.awaits_reset = False
        self.completed_any = False
        self.members.all_begin_anew()
        if self.accelerator is not None:
            self.accelerator.reset(self.window.high)
