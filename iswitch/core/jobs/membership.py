"""Who belongs to a job, by address, and how many of them a sum needs.

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
    """The members of one job, and how many of them a sum needs.

    Attributes:
        by_address: the members.
        threshold: H, as it was set; 0: every current contributor.
        expected: how many workers are to come before anything completes.
        whole: no sum holds fewer than `expected` contributions.
        met: the largest `expected` that as many workers have met.
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
        """Whether as many workers have been there at once as the largest `expected` names."""
        return self.expected <= self.met

    def free_seat(
        self,
        type_: MemberType,
        taken: int = 0,
        wish: int = NO_RANK,
        leaving: Collection[Member] = (),
    ) -> int | None:
        """Return a seat for a new member, if possible the one it wishes; None: all are taken.

        Args:
            type_: of the member.
            taken: bits of seats to avoid besides.
            wish: the number of the seat that it wishes.
            leaving: members whose seats are free then.
        """
        taken |= sum(m.bit for m in self.by_address.values() if m not in leaving)
        seats = range(MAX_MEMBERS)
        order = seats if type_ is not MemberType.CONTROLLER else reversed(seats)
        free = [seat for seat in order if not taken >> seat & 1]
        return wish if wish in free else next(iter(free), None)

    def add(self, member: Member, expected: int = 0, whole: bool = False) -> None:
        """Take a member in.

        Args:
            member: a new one.
            expected: how many workers a contributor expects; the largest of all counts.
            whole: no sum may hold fewer contributions. Any contributor can ask that for all.
        """
        self.by_address[member.address] = member
        if member.contributes:
            self.expected = max(self.expected, expected)
            self.whole |= whole
        self._participants.clear()
        self._addresses = None
        self.count()

    def workers_here(self) -> int:
        """Return how many workers there are among the members and below them."""
        there = sum(member.workers for member in self.by_address.values() if member.contributes)
        return min(there, MOST_WORKERS)

    @property
    def workers(self) -> int:
        """Workers of the job: with a parent, in the whole tree."""
        return self.workers_here() if self.above is None else self.above

    def are_fewer(self, workers: int) -> None:
        """Take workers that are gone off the number that the parent has told, if there is one.

        It counts until the parent tells anew: a switch below that was restarted must not be told
        the number of before, by which its gate would open although it lacks workers.
        """
        if self.above is not None and workers > 0:
            self.above = max(0, self.above - workers)

    def count(self) -> bool:
        """Open the gate if enough workers are there; return whether it has opened just now.

        All that are there then have to be told so, though others leave before they ask. From then
        on a whole job's sums are of as many contributions as there are contributors now: with
        switches below, each of these sees to its own.
        """
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
        self._participants.clear()
        self._addresses = None

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

    def seated(self, bits: int) -> list[Member]:
        """Return the contributors whose bits are set."""
        return [m for m in self.contributors() if bits & m.bit]

    def switches(self) -> int:
        """Return the bits of the switches below."""
        return sum(m.bit for m in self.by_address.values() if m.type is MemberType.SWITCH)

    def begin_at(self, member: Member, round_: int) -> None:
        """Have a member take part from this round on."""
        member.begin_at(round_)
        self._participants.clear()

    def move_on(self, high: int) -> None:
        """Drop first rounds, and named ones, that are past now that the highest round is `high`.

        Round numbers wrap; one kept for 2**31 rounds would look like one to come. A member that has
        not contributed yet may still have to be told of its first round again.
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

    def all_begin_anew(self) -> None:
        """Have everybody take part from the lowest round on: the job was reset."""
        for member in self.by_address.values():
            member.begin_anew()
        self._participants.clear()

    def expect_nobody(self) -> None:
        """Have the next contributors begin as if nobody had been there: the last one left."""
        self.expected = self.met = self.least = 0
        self.whole = False
        if self.above is not None:
            self.above = 0

    @property
    def threshold_in_force(self) -> int:
        """H as it counts now: what was set, or the number of contributors."""
        return self.threshold or max(len(self.contributor_addresses()), self.least)

    @property
    def keeps_places(self) -> bool:
        """Whether it is a whole job that has begun: it waits for each of its contributors.

        Then nothing completes without one that is silent, and what it has missed it can still have:
        it stays until another takes its place.
        """
        return self.whole and self.gathered and not self.threshold

    def workers_there(self, now: float, lease: float) -> int:
        """Return how many workers at this switch and below it can be counted on.

        Once a whole job has begun, those that keep their place though their lease has run out are
        not there. Switches may claim any number: the sum is no larger than an Ack can tell.
        """
        lost = self.lost(now, lease) if self.keeps_places else 0
        there = sum(m.workers for m in self.contributors() if not lost & m.bit)
        return min(there, MOST_WORKERS)

    def lost(self, now: float, lease: float) -> int:
        """Return the bitmap of the contributors whose lease has run out; they are members still."""
        return sum(m.bit for m in self.contributors() if m.last_seen + lease <= now)

    def silent(self, now: float, lease: float) -> list[Member]:
        """Return the members that have said nothing for a lease time, and are out therefore.

        Contributors whose place is kept stay as long as one of them speaks; so do those of a job
        that gathers: the same process could come back early, and contribute a second time from
        another seat.
        """
        members = list(self.by_address.values())
        silent = [m for m in members if m.last_seen + lease <= now]
        spoken = any(m.contributes for m in members if m not in silent)
        keep = spoken and (self.keeps_places or not self.gathered)
        return [m for m in silent if not (keep and m.contributes)]

    def places(self) -> int:
        """Return how many places are free, in a job that keeps them."""
        return self.least - len(self.contributor_addresses())
