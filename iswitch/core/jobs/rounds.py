"""The rounds in which each contributor of a job takes part, and what may raise the window.

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
    Round,
    later,
    round_distance,
)

from .member import Member
from .membership import Membership
from .pace import Pace
from .phases import Standing
from .window import Window


@dataclass(slots=True)
class Rounds:
    """The rounds of one job.

    Attributes:
        members: the members of the job.
        window: the rounds whose contributions the job accepts.
        completed_any: a segment has completed since the job began or was reset.
        told: the newest round that the switch above has told, by its Ack to the first Join, an
            aggregate or a Reset; None: it has told none.
        pace: the durations of the rounds.
    """

    members: Membership
    window: Window = field(default_factory=Window)
    completed_any: bool = False
    told: int | None = None
    pace: Pace = field(default_factory=Pace)

    # Contributions

    def refuse(self, member: Member, round_: int) -> str | None:
        """Note a contribution to this round and return None, or return the reason to drop it."""
        window = self.window
        if round_ == window.high and window.contributed and member.first_round is None:
            if member.contributed != round_:
                member.contributed = round_
                self.pace.begin(member.tally, round_, member.last_seen)
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
            self.pace.begin(member.tally, round_, member.last_seen)
        self.contribute(round_)
        return None

    def contribute(self, round_: int) -> None:
        """Note that data of a round in the window has come."""
        was = self.window.high
        self.window.contribute(round_)
        if self.window.high != was:
            self.members.move_on(self.window.high)

    def lacking(self, round_: int, bitmap: int, asker: Member | None = None) -> int:
        """Return the bitmap of the contributors whose contribution to an open segment is missing.

        Args:
            round_: the round of the segment.
            bitmap: bitmap of the contributors whose contribution has come.
            asker: the member that asks. If the round is not in the window yet, the asker is a
                newcomer ahead of the others, and waits for itself only.
        """
        lacking = self.members.participants(round_) & ~bitmap
        return lacking & asker.bit if asker is not None and round_ not in self.window else lacking

    def _may_begin(self, newcomer: Member, round_: int) -> bool:
        """Return whether a newcomer's first contribution may raise `high` to its round.

        It may, even beyond high + 1, if no other contributor still needs a round before the
        previous one. With H set, slow members fall behind in any case.
        """
        if self.members.threshold and self.completed_any:
            return round_ in self.window
        if newcomer.held_back and not self.members.gathered:
            return False
        before = (round_ - 1) & ROUND_MASK
        return all(m is newcomer or m.stands_at(before) for m in self.members.contributors())

    # Joining

    def name(self, round_: int, first: bool = False) -> None:
        """Move on to a returning member's round; `first`: it has finished no round yet."""
        self.window.name(round_, first)
        self.members.move_on(self.window.high)

    def come_back(self, round_: int, first: bool) -> None:
        """Move on to the round of a member that comes back to a switch which lost its state.

        Newcomers that have not contributed, and whose first round is then past, begin with
        the window's `base`.

        Args:
            round_: the round that the member named.
            first: whether the member has finished no round before.
        """
        self.name(round_, first)
        for member in self.members.contributors():
            if self._is_overtaken(member):
                self.members.begin_at(member, self.window.base)

    def place(self, member: Member, join: Join, early: bool, former: Member | None) -> None:
        """Set the first round in which a new contributor takes part.

        Args:
            member: the new member.
            join: its Join, whose round has been named.
            early: whether nothing can have completed without it.
            former: the member whose place it takes, or None.
        """
        window = self.window
        comes_back = bool(join.flags & FLAG_STANDS_AT)
        if former is not None:  # beyond every round that the old process may have sent
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
        """Return the round in which a member begins or resumes."""
        first = member.first_round
        return self.window.high if first is None or self.window.is_past(first) else first

    def is_early(self, join: Join) -> bool:
        """Return whether nothing can have completed without the sender of this Join."""
        expected = max(self.members.expected, join.expected)
        return expected > self.members.met and not self.completed_any

    def moves_up(self, member: Member) -> bool:
        """Let a member that lost its place take part from `high` on; return whether it had lost it.

        No earlier round waits for it then.
        """
        before = (self.window.high - 1) & ROUND_MASK
        keeps_its_place = not member.contributes or member.stands_at(before)
        if keeps_its_place or self.members.threshold:
            return False
        self.members.begin_at(member, self.window.high)
        return True

    def _is_overtaken(self, newcomer: Member) -> bool:
        """Return whether a new process has contributed nothing yet and its first round is past."""
        first = newcomer.first_round
        if first is None or newcomer.named is not None or newcomer.contributed is not None:
            return False
        return self.window.is_past(first)

    # With a parent

    def hear_of(self, round_: int) -> None:
        """Note that the switch above has begun a round."""
        self.told = later(self.told, round_)

    def catch_up(self, round_: int) -> None:
        """Move on to the round that the parent names; a Reset to it may still be under way."""
        self.name(round_)
        self.hear_of((round_ - 1) & ROUND_MASK)

    def stands_at(self, has_all: Callable[[int], bool]) -> int:
        """Return the first round of which an aggregate from the parent is missing.

        Args:
            has_all: returns whether all aggregates of a round have come.
        """
        high = self.window.high
        before = (high - 1) & ROUND_MASK
        if before in self.window and round_distance(self.window.base, before) <= 0:
            # After a restart, members may have named this round, and still wait for it.
            wanted = self.members.participants(before)
            if wanted and not self.completed_any and not has_all(before):
                return before
        return (high + 1) & ROUND_MASK if has_all(high) else high

    def is_behind(self, round_: int) -> bool:
        """Return whether a member finished a round through an earlier process of this switch."""
        after = (round_ + 1) & ROUND_MASK
        return any(
            (m.named == after and not m.begins)
            or (m.contributed == after and round_ in self.window and m.takes_part_in(round_))
            for m in self.members.contributors()
        )

    # Whole jobs

    def is_out_of_step(self) -> bool:
        """Return whether the members of a whole job, just gathered, are at different rounds.

        This happens when a switch has lost its state and a worker was replaced meanwhile: some
        members come back to their round, others do not know it or missed a Reset. It also happens
        when a worker was replaced before all had come: the new process begins later, so that no
        packet of the old one counts as its own.
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
        """Return whether the Join of a switch's new process shows that it does not know our round.

        Its first worker is new then, and has taken a free place.
        """
        ahead = round_distance(join.round, self.window.high) > 0
        return not join.flags & FLAG_STANDS_AT or (bool(join.flags & FLAG_FIRST) and ahead)

    # Resets

    def reset(self, round_: int | None, in_rounds: bool) -> None:
        """Resume two rounds later, or in the round that the parent names; all members begin anew.

        The new round is also beyond every round that a member has named. After a switch has lost
        its state, some members may know of a Reset that others have not heard of; they would take
        a Reset to an equal number for a late copy. Nor does it come before any member's first
        round, which can lie further ahead: that of a new process at the address of processes that
        died.

        Args:
            round_: the round that the parent names; None: there is no parent.
            in_rounds: whether the job counts in rounds, not in versions.
        """
        if round_ is None and in_rounds:
            named = (m.named for m in self.members.contributors() if m.named is not None)
            self.window.high = reduce(later, named, self.window.high)
            round_ = reduce(later, self._first_rounds(), (self.window.high + 2) & ROUND_MASK)
        self.window.skip(round_)
        self.told = self.window.high
        self.completed_any = False
        self.pace.forget()
        self.members.all_begin_anew(self.window.high)

    def knows_reset(self, round_: int) -> bool:
        """Return whether the parent has begun this round before, or a later one."""
        return self.told is not None and 0 <= round_distance(self.told, round_) < 1 << 30

    def ahead(self) -> Round | None:
        """Return the furthest first round of a member that is ahead of `high`; None: there is none.

        The parent must be asked for a Reset beyond this round, or the Reset would lead the member
        back.
        """
        high = self.window.high
        ahead = [first for first in self._first_rounds() if round_distance(first, high) > 0]
        return Round(reduce(later, ahead)) if ahead else None

    def _first_rounds(self) -> list[int]:
        members = self.members.contributors()
        return [m.first_round for m in members if m.first_round is not None]

    def end(self) -> None:
        """Move beyond every round that was sent, after the last contributor has left."""
        self.completed_any = False
        self.members.expect_nobody()
        self.window.skip()
