"""From which round on each contributor of a job takes part, and what may raise the window.

Rules of docs/protocol.md, "Rounds" and "Joining".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce

from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_STANDS_AT,
    ROUND_MASK,
    Join,
    later,
    round_distance,
)

from .member import Member
from .membership import Membership
from .phases import Standing
from .window import Window


@dataclass(slots=True)
class Rounds:
    """The rounds of one job.

    Attributes:
        members: of the job.
        window: the rounds that it takes.
        completed_any: something has completed since it began, or was reset.
        reset_to: the round from which the last Reset had it go on.
    """

    members: Membership
    window: Window = field(default_factory=Window)
    completed_any: bool = False
    reset_to: int | None = None

    # Contributions

    def refuse(self, member: Member, round_: int) -> str | None:
        """Take note of a contribution to this round; or return the reason to drop it."""
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
            if member.held_back:
                member.stand(Standing.NEWCOMER)
        elif round_ not in window:
            return "out_of_window"
        if member.contributed is None or round_distance(round_, member.contributed) > 0:
            member.contributed = round_
        self.contribute(round_)
        return None

    def contribute(self, round_: int) -> None:
        """Take note that something of a round in the window has come."""
        was = self.window.high
        self.window.contribute(round_)
        if self.window.high != was:
            self.members.move_on(self.window.high)

    def lacking(self, round_: int, bitmap: int, asker: Member | None = None) -> int:
        """Return the bitmap of the contributors whose contribution to an open segment is missing.

        Args:
            round_: of the segment.
            bitmap: of those whose contribution is there.
            asker: a newcomer that is ahead of the others waits for itself only.
        """
        lacking = self.members.participants(round_) & ~bitmap
        return lacking & asker.bit if asker is not None and round_ not in self.window else lacking

    def _may_begin(self, newcomer: Member, round_: int) -> bool:
        """Return whether a newcomer's first contribution may raise `high` to its round.

        It may if nobody needs a round before the last any more, be it past high + 1: the others may
        all have left. With H set, slow members fall behind in any case.
        """
        if self.members.threshold and self.completed_any:
            return round_ in self.window
        if newcomer.held_back and not self.members.gathered:
            return False
        before = (round_ - 1) & ROUND_MASK
        return all(m is newcomer or m.stands_at(before) for m in self.members.contributors())

    # Joining

    def name(self, round_: int, first: bool = False) -> None:
        """Move on to the round at which somebody stands; `first`: it has finished none before."""
        self.window.name(round_, first)
        self.members.move_on(self.window.high)

    def come_back(self, round_: int, first: bool) -> None:
        """Take the word of a member that comes back to a switch which lost its state.

        Newcomers whose first round is over by that begin as if they had joined only now.
        """
        self.name(round_, first)
        for member in self.members.contributors():
            if self._is_overtaken(member):
                self.members.begin_at(member, self.window.base)

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
            round_ = (window.newcomers + 1) & ROUND_MASK
            first = former.first_round
            if first is not None and round_distance(first, round_) >= 0:
                round_ = (first + 1) & ROUND_MASK
            member.begin_at(round_)
        elif not early:
            member.begin_at(window.newcomers)
        elif not comes_back or window.is_past(join.round):
            member.begin_at(window.base)
        elif join.flags & FLAG_FIRST:
            member.begin_at(join.round, held_back=True)

    def first_round_of(self, member: Member) -> int:
        """Return the round at which a member is to begin, or to go on."""
        first = member.first_round
        return self.window.high if first is None or self.window.is_past(first) else first

    def is_early(self, join: Join) -> bool:
        """Return whether nothing can have completed without the member that this Join brings."""
        expected = max(self.members.expected, join.expected)
        return expected > self.members.met and not self.completed_any

    def moves_up(self, member: Member) -> bool:
        """Have a member that lost its place take part from `high` on; whether it had lost it.

        Nothing before waits for it then.
        """
        before = (self.window.high - 1) & ROUND_MASK
        keeps_its_place = not member.contributes or member.stands_at(before)
        if keeps_its_place or self.members.threshold:
            return False
        self.members.begin_at(member, self.window.high)
        return True

    def _is_overtaken(self, newcomer: Member) -> bool:
        """Return whether a new process has done nothing yet, and its first round is over."""
        first = newcomer.first_round
        if first is None or newcomer.named is not None or newcomer.contributed is not None:
            return False
        return self.window.is_past(first)

    # With a parent

    def stands_at(self, has_all: Callable[[int], bool]) -> int:
        """Return the first round of which an aggregate from the parent is missing.

        Args:
            has_all: tells of a round whether all of its aggregates have come.
        """
        high = self.window.high
        before = (high - 1) & ROUND_MASK
        if before in self.window and round_distance(self.window.base, before) <= 0:
            # After a restart members may have named it, and wait for it still.
            wanted = self.members.participants(before)
            if wanted and not self.completed_any and not has_all(before):
                return before
        return (high + 1) & ROUND_MASK if has_all(high) else high

    def is_behind(self, round_: int) -> bool:
        """Return whether a member has finished a round: by a former process of this switch."""
        after = (round_ + 1) & ROUND_MASK
        return any(
            (m.named == after and not m.begins)
            or (m.contributed == after and round_ in self.window and m.takes_part_in(round_))
            for m in self.members.contributors()
        )

    # Whole jobs

    def is_out_of_step(self) -> bool:
        """Return whether not all go on from one place, in a whole job that has just gathered.

        So it is when a switch has lost its state and a worker was replaced meanwhile: some came
        back to a round they are at, and others know nothing of it, or have not heard of a reset. Or
        one was replaced before all had come: it begins later than they, for no packet of the old
        process may count as its own.
        """
        members = self.members.contributors()
        if any(m.replaces for m in members):
            return True
        going_on = {m.named for m in members if m.named is not None and not m.begins}
        beginning = {m.named for m in members if m.begins}
        if None in beginning:  # new ones
            return bool(going_on) or len(beginning) > 1
        # All begin at one round, and a worker that has finished that is at the next.
        rounds = beginning or going_on
        return len(beginning) > 1 or any(
            round_distance(to, at) not in ((0, 1) if beginning else (-1, 0, 1))
            for at in rounds
            for to in going_on
            if at is not None and to is not None
        )

    def is_beyond(self, join: Join) -> bool:
        """Return whether a new process of a switch below knows nothing of the others.

        Its first worker is new, then: a place was taken again.
        """
        ahead = round_distance(join.round, self.window.high) > 0
        return not join.flags & FLAG_STANDS_AT or (bool(join.flags & FLAG_FIRST) and ahead)

    # Resets

    def reset(self, round_: int | None, in_rounds: bool) -> None:
        """Go on two rounds further, or from the round that the parent says; all begin anew.

        Further than any member has named, too: after a switch lost its state some may know of a
        Reset of which others have not heard. They would take the same number for a late copy.

        Args:
            round_: what the parent says.
            in_rounds: the job counts in rounds, not in versions.
        """
        if round_ is None and in_rounds:
            named = (m.named for m in self.members.contributors() if m.named is not None)
            self.window.high = reduce(later, named, self.window.high)
        self.window.skip(round_)
        self.reset_to = self.window.high
        self.completed_any = False
        self.members.all_begin_anew()

    def knows_reset(self, round_: int) -> bool:
        """Return whether a Reset to this round has been heard of before, maybe rounds ago."""
        return self.reset_to is not None and 0 <= round_distance(self.reset_to, round_) < 1 << 30

    def end(self) -> None:
        """Keep the place in the rounds beyond all that was sent: nobody contributes any more."""
        self.completed_any = False
        self.members.expect_nobody()
        self.window.skip()
