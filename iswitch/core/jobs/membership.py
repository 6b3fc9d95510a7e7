"""Who belongs to a job, by address, and in which rounds each member takes part.

Rules of docs/protocol.md, "Joining". Every member has a seat 0..63 at its switch, which is a
contributor's bit in the bitmaps; controllers have those from 63 down. A worker's rank is another
number, of the whole tree (`ranks.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_STANDS_AT,
    MAX_MEMBERS,
    MOST_WORKERS,
    NO_RANK,
    Join,
    MemberType,
    round_distance,
)

from .answers import Answers


@dataclass(slots=True)
class Member:
    """One member of a job.

    `first_round` is the first round it takes part in; None: every round in the window (it came
    back to a switch that lost its state, or its first round is long past). `contributed` is the
    newest round it contributed to. `held_back`: it came back in its very first round, which says
    nothing of where the others are, so its contributions wait until they have come. `met`: how many
    workers were expected when all of these were there, and it was a member; 0: they never were;
    None: it has contributed, so it has been told.
    """

    address: Address
    type: MemberType
    seat: int
    incarnation: int
    first_round: int | None
    last_seen: float
    contributed: int | None = None
    held_back: bool = False
    named: int | None = None  # the round its Join named
    begins: bool = True  # it took no part in the round before that one, or named none
    replaces: bool = False  # an older process at its address
    workers: int = 1  # for how many it stands, if it is a switch
    met: int | None = 0
    has_spoken: bool = True  # more than Joins of a new process, and Acks of what was relayed
    expected: int = 0  # workers, by its Join
    since: float = 0.0  # when it joined
    ranks: int = 0  # bitmap of the ranks that it has: a worker one; a switch those below it
    stated: Stated | None = None  # what it last stated of them, if it is a switch
    answers: Answers = field(default_factory=Answers)

    @property
    def contributes(self) -> bool:
        """Whether it is a worker or a child switch."""
        return self.type is not MemberType.CONTROLLER

    @property
    def bit(self) -> int:
        """Its bit in a contributor bitmap."""
        return 1 << self.seat

    @property
    def rank(self) -> int:
        """A worker's rank; NO_RANK: it has none so far, or is no worker."""
        return lowest(self.ranks) if self.type is MemberType.WORKER else NO_RANK

    @property
    def is_due(self) -> bool:
        """Whether it is a worker that is to be given a rank."""
        return self.type is MemberType.WORKER and not self.ranks

    def told(self, there: int) -> int:
        """How many workers it is told of: all, if all were there and it has not contributed.

        So it learns that all have come, whoever of them has left since.
        """
        return max(there, self.met or 0)

    def note_standing(self, join: Join) -> None:
        """Remember where the process that sends this Join says that it stands."""
        stands = bool(join.flags & FLAG_STANDS_AT)
        self.named = join.round if stands else None
        self.begins = not stands or bool(join.flags & FLAG_FIRST)

    def stands_at(self, round_: int) -> bool:
        """Whether it has no use for rounds before `round_` any more.

        A worker begins a round when it has every aggregate of the one before.
        """
        starts = self.first_round is not None and round_distance(self.first_round, round_) >= 0
        came = self.contributed is not None and round_distance(self.contributed, round_) >= 0
        return starts or came

    def takes_part_in(self, round_: int) -> bool:
        """Whether its contribution to this round counts."""
        return self.first_round is None or round_distance(round_, self.first_round) >= 0


@dataclass(slots=True)
class Stated:
    """What a switch below states of the ranks of its workers.

    Attributes:
        number: of the statement.
        ranks: bitmap of those that they have or ask for.
        unranked: how many more are to be given.
        given: how many of these were.
        since: when it came.
        decided: the newest statement to which the answer is known.
        kept: ranks that former processes of the switch had, and nobody else may have before
            `until`: their workers may come back.
    """

    number: int = 0
    ranks: int = 0
    unranked: int = 0
    given: int = 0
    since: float = 0.0
    decided: int = 0
    kept: int = 0
    until: float = 0.0

    @property
    def is_settled(self) -> bool:
        """Whether all that it asks for is answered."""
        return self.decided == self.number and self.given >= self.unranked


def lowest(bits: int) -> int:
    """The number of the lowest bit that is set; NO_RANK: none is."""
    return (bits & -bits).bit_length() - 1 if bits else NO_RANK


class Membership:
    """The members of one job."""

    def __init__(self) -> None:
        self.by_address: dict[Address, Member] = {}
        self.expected = 0
        self.whole = False  # no sum holds fewer than `expected` contributions
        self.met = 0  # the largest `expected` that as many workers have met
        self.above: int | None = None  # workers in the whole tree, as the parent tells
        self.least = 0  # fewest contributions that may make a sum while H is automatic
        self._participants: dict[int, int] = {}
        self._addresses: tuple[Address, ...] | None = None

    def __len__(self) -> int:
        return len(self.by_address)

    def contributors(self) -> list[Member]:
        """Workers and child switches, by seat."""
        members = (m for m in self.by_address.values() if m.contributes)
        return sorted(members, key=lambda m: m.seat)

    def contributor_addresses(self) -> tuple[Address, ...]:
        """Where broadcasts go, by seat."""
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
        """The seat of a new member, the one it wishes if that is free; None if there is none left.

        `taken` are bits to avoid; those `leaving` free theirs.
        """
        taken |= sum(m.bit for m in self.by_address.values() if m not in leaving)
        seats = range(MAX_MEMBERS)
        order = seats if type_ is not MemberType.CONTROLLER else reversed(seats)
        free = [seat for seat in order if not taken >> seat & 1]
        return wish if wish in free else next(iter(free), None)

    def add(self, member: Member, expected: int = 0, whole: bool = False) -> None:
        """Take a member in; a contributor's `expected` raises the number waited for.

        Any contributor can ask that the job be whole, and for all of them.
        """
        self.by_address[member.address] = member
        if member.contributes:
            self.expected = max(self.expected, expected)
            self.whole |= whole
        self._participants.clear()
        self._addresses = None
        self.count()

    def workers_here(self) -> int:
        """Workers among the members and below them."""
        there = sum(member.workers for member in self.by_address.values() if member.contributes)
        return min(there, MOST_WORKERS)

    @property
    def workers(self) -> int:
        """Workers of the job: with a parent, in the whole tree."""
        return self.workers_here() if self.above is None else self.above

    def are_fewer(self, workers: int) -> None:
        """So many workers are gone: with a parent, take them off what it told.

        Until it tells anew: a switch below that was restarted must not be told the number of
        before, by which its gate would open although it lacks workers.
        """
        if self.above is not None and workers > 0:
            self.above = max(0, self.above - workers)

    def count(self) -> bool:
        """Open the gate if enough workers are there; whether it has opened just now.

        Whoever is there then has to be told so, though others leave before it asks. A whole job's
        sums are from then on of as many contributions as there are contributors now: with switches
        below, each of these sees to its own.
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
        """Bitmap of the current contributors that take part in a round."""
        bits = self._participants.get(round_)
        if bits is None:
            if len(self._participants) > 8:
                self._participants.clear()
            members = self.by_address.values()
            bits = sum(m.bit for m in members if m.contributes and m.takes_part_in(round_))
            self._participants[round_] = bits
        return bits

    def seated(self, bits: int) -> list[Member]:
        """The contributors whose bits are set."""
        return [m for m in self.contributors() if bits & m.bit]

    def switches(self) -> int:
        """Bits of the switches below."""
        return sum(m.bit for m in self.by_address.values() if m.type is MemberType.SWITCH)

    def begin_at(self, member: Member, round_: int) -> None:
        """A member takes part from this round on."""
        member.first_round = round_
        member.held_back = False
        self._participants.clear()

    def move_on(self, high: int) -> None:
        """The highest round is now `high`: drop first rounds, and named ones, that are past.

        Round numbers wrap; one kept for 2**31 rounds would look like one to come. Who has not
        contributed yet may still have to be told of its first round again.
        """
        for member in self.by_address.values():
            if member.named is not None and round_distance(high, member.named) > 1 << 30:
                member.named = None
            if member.first_round is None:
                continue
            ahead = round_distance(high, member.first_round)
            if ahead >= 1 and (member.contributed is not None or ahead > 1 << 30):
                member.first_round = None
                self._participants.clear()

    def all_begin_anew(self) -> None:
        """Everybody takes part from the lowest round on: the job was reset."""
        for member in self.by_address.values():
            member.first_round = member.contributed = member.named = None
            member.begins = True
            member.replaces = False
            member.held_back = False
        self._participants.clear()

    def expect_nobody(self) -> None:
        """The last contributor left: the next begin as if nobody had been there."""
        self.expected = self.met = self.least = 0
        self.whole = False
        if self.above is not None:
            self.above = 0
