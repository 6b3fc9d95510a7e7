"""The members of a job, by address, and the number of contributions that a sum needs.

Rules of docs/protocol.md, "Joining".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import (
    MAX_MEMBERS,
    MOST_WORKERS,
    NO_RANK,
    MemberType,
    round_distance,
)

from .member import Member
from .phases import Standing


class Membership:
    """Keeps the members of one job, and the number of contributions that a sum needs.

    Attributes:
        by_address: the members.
        threshold: H, as it was set; 0: every current contributor.
        expected: the number of workers that must come before anything completes: the largest that
            a present contributor names.
        whole: whether every sum must hold at least `expected` contributions.
        met: the largest `expected` so far for which all workers have come.
        above: workers in the whole tree, as the parent tells; None: there is no parent.
        least: fewest contributions that may make a sum while H is automatic.
    """

    def __init__(self) -> None:
        self.by_address: dict[Address, Member] = {}
        self.threshold = 0
        self.expected = 0
        self.whole = False
        self.met = 0
        self.above: int | None = None
        self.least = 0
        self._by_rank: dict[int, Member] | None = None
        self._participants: dict[int, int] = {}
        self._addresses: tuple[Address, ...] | None = None

    def __len__(self) -> int:
        return len(self.by_address)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.by_address.values())

    def contributors(self) -> list[Member]:
        """Return workers and child switches, by seat."""
        members = (m for m in self.by_address.values() if m.contributes)
        return sorted(members, key=lambda m: m.seat)

    def contributor_addresses(self) -> tuple[Address, ...]:
        """Return the addresses to which broadcasts go, by seat."""
        if self._addresses is None:
            self._addresses = tuple(member.address for member in self.contributors())
        return self._addresses

    @property
    def gathered(self) -> bool:
        """Return whether all `expected` workers have been members at once."""
        return self.expected <= self.met

    def free_seat(
        self,
        type_: MemberType,
        taken: int = 0,
        wish: int = NO_RANK,
        leaving: Collection[Member] = (),
    ) -> int | None:
        """Return a seat for a new member, if possible the wanted one; None: all are taken.

        Args:
            type_: the member's type.
            taken: bitmap of further seats to avoid.
            wish: the wanted seat.
            leaving: members whose seats count as free.
        """
        taken |= sum(m.bit for m in self.by_address.values() if m not in leaving)
        seats = range(MAX_MEMBERS)
        order = seats if type_ is not MemberType.CONTROLLER else reversed(seats)
        free = [seat for seat in order if not taken >> seat & 1]
        return wish if wish in free else next(iter(free), None)

    def add(self, member: Member, whole: bool = False) -> None:
        """Add a new member.

        Args:
            member: the new member.
            whole: whether the contributor refuses sums of fewer contributions; then the job does,
                too.
        """
        self.by_address[member.address] = member
        self.whole |= whole
        self._forget()
        self.count()

    def workers_here(self) -> int:
        """Return the number of workers among the members and below them."""
        there = sum(member.workers for member in self.by_address.values() if member.contributes)
        return min(there, MOST_WORKERS)

    @property
    def workers(self) -> int:
        """Return the number of workers of the job; with a parent, those in the whole tree."""
        return self.workers_here() if self.above is None else self.above

    def are_fewer(self, workers: int) -> None:
        """Subtract workers that have left from the number that the parent has told, if any.

        The result counts until the parent tells a new number. With the old number, a restarted
        switch below would open its gate although workers are missing.
        """
        if self.above is not None and workers > 0:
            self.above = max(0, self.above - workers)

    def count(self) -> bool:
        """Open the gate if enough workers are there; return whether it has opened just now.

        All present members are later told that it opened, even if others leave before they ask.
        From then on each sum of a whole job needs one contribution of each present contributor; a
        switch below does the same for its own contributors.
        """
        self.expected = max((member.expected for member in self.contributors()), default=0)
        if self.workers < self.expected:
            return False
        for member in self.contributors():
            if member.met is not None:
                member.met = self.expected
        if self.gathered:
            return False
        self.met = self.expected
        self.least = len(self.contributor_addresses()) if self.whole else 0
        return True

    def remove(self, member: Member) -> None:
        """Take a member out."""
        del self.by_address[member.address]
        self._forget()

    def _forget(self) -> None:
        """Forget what was derived from the members before they changed."""
        self._participants.clear()
        self._addresses = self._by_rank = None

    def give(self, member: Member, ranks: int) -> None:
        """Give a member the ranks of a bitmap."""
        member.ranks = ranks
        self._by_rank = None

    @property
    def by_rank(self) -> dict[int, Member]:
        """Return the contributor for each rank: the worker, or the switch that it is behind."""
        if self._by_rank is None:
            self._by_rank = {
                rank: member
                for member in self.contributors()
                for rank in range(member.ranks.bit_length())
                if member.ranks >> rank & 1
            }
        return self._by_rank

    def participants(self, round_: int) -> int:
        """Return the bitmap of the current contributors that take part in a round."""
        bits = self._participants.get(round_)
        if bits is None:
            if len(self._participants) > 8:
                self._participants.clear()
            members = self.by_address.values()
            bits = sum(m.bit for m in members if m.contributes and m.takes_part_in(round_))
            self._participants[round_] = bits
        return bits

    def slots_of(self, round_: int) -> int:
        """Return the slots that a round of a resized job needs which begins now."""
        bounds = (member.bound for member in self.contributors())
        return max(bound.of(round_) for bound in bounds if bound is not None)

    def seated(self, bits: int) -> list[Member]:
        """Return the contributors whose bits are set."""
        return [m for m in self.contributors() if bits & m.bit]

    def switches(self) -> int:
        """Return the bits of the switches below."""
        return sum(m.bit for m in self.by_address.values() if m.type is MemberType.SWITCH)

    def begin_at(self, member: Member, round_: int) -> None:
        """Let a member take part from this round on."""
        member.begin_at(round_)
        self._participants.clear()

    def move_on(self, high: int) -> None:
        """Forget the members' first and named rounds that are past, given the highest round `high`.

        Round numbers wrap: one kept for 2**31 rounds would look like a future round. The first
        round of a member that has not contributed is kept longer, to be told again.
        """
        for member in self.by_address.values():
            if member.named is not None and round_distance(high, member.named) > 1 << 30:
                member.named = None
            if member.first_round is None:
                continue
            ahead = round_distance(high, member.first_round)
            if ahead >= 1 and (member.contributed is not None or ahead > 1 << 30):
                member.first_round = None
                if not member.held_back:
                    member.stand(Standing.SETTLED)
                self._participants.clear()

    def all_begin_anew(self, round_: int) -> None:
        """Let all members take part from the round of a Reset on, or from a later one begun."""
        for member in self.by_address.values():
            member.begin_anew(round_)
        self._participants.clear()

    def await_reset(self, newcomer: Member) -> None:
        """Let a newcomer, which has been told no round, begin where the next Reset says."""
        newcomer.first_round = None
        newcomer.stand(Standing.SETTLED)
        self._participants.clear()

    def expect_nobody(self) -> None:
        """Forget the expectations of contributors, after the last one has left."""
        self.expected = self.met = self.least = 0
        self.whole = False
        if self.above is not None:
            self.above = 0

    @property
    def threshold_in_force(self) -> int:
        """The threshold H in force: the value that was set, else the number of contributors."""
        return self.threshold or max(len(self.contributor_addresses()), self.least)

    @property
    def keeps_places(self) -> bool:
        """Return whether a silent contributor keeps its place: the job is whole and has begun.

        Nothing completes without it, so it can still have every result that it missed. It stays
        until another process takes its place.
        """
        return self.whole and self.gathered and not self.threshold

    def workers_there(self, now: float, lease: float) -> int:
        """Return the number of live workers at this switch and below it.

        In a whole job that has begun, members that keep their place after their lease has run out
        do not count. The result fits in a Join, whatever numbers the switches below claim.
        """
        lost = self.lost(now, lease) if self.keeps_places else 0
        there = sum(m.workers for m in self.contributors() if not lost & m.bit)
        return min(there, MOST_WORKERS)

    def lost(self, now: float, lease: float) -> int:
        """Return the bitmap of the contributors whose lease has run out; they are members still."""
        return sum(m.bit for m in self.contributors() if m.last_seen + lease <= now)

    def silent(self, now: float, lease: float) -> list[Member]:
        """Return the members that must leave because they were silent for a lease time.

        Silent contributors stay while another contributor speaks, if the job keeps their places
        or is still gathering. Otherwise, in a gathering job, a process might come back early and
        contribute twice, from two seats.
        """
        members = list(self.by_address.values())
        silent = [m for m in members if m.last_seen + lease <= now]
        spoken = any(m.contributes for m in members if m not in silent)
        keep = spoken and (self.keeps_places or not self.gathered)
        return [m for m in silent if not (keep and m.contributes)]

    def places(self) -> int:
        """Return the number of free places, in a job that keeps them."""
        return self.least - len(self.contributor_addresses())
