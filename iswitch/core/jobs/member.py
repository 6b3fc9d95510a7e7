"""One member of a job: its process, its ranks, and the rounds in which it takes part.

Every member has a seat 0..63 at its switch, which is a contributor's bit in the bitmaps;
controllers take seats from 63 down. A worker's rank is another number, unique in the whole tree
(`ranks.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_STANDS_AT,
    NO_RANK,
    Join,
    MemberType,
    SwitchJoin,
    later,
    lowest,
    round_distance,
)

from .answers import Answers
from .bounds import Bound
from .pace import Tally
from .phases import STANDING, Standing, follow


@dataclass(slots=True)
class Member:
    """One member of a job.

    Attributes:
        address: its address.
        type: worker, switch or controller.
        seat: 0..63, a contributor's bit in the bitmaps.
        incarnation: the Request of its Join; of a switch, the largest of its heartbeats'.
        joined: the Request of its last Join that was no heartbeat.
        first_round: the first round in which it takes part; None: it takes part in all of the
            window.
        last_seen: when it last sent anything, in seconds.
        contributed: the newest round to which it contributed.
        named: the round that its Join named.
        begins: it took no part in the round before `named`, or named none.
        replaces: it took the place of an older process at its address.
        workers: the number of workers for which it stands; 1 unless it is a switch.
        sends_parts: its contributions come in parts, as those of a switch with few slots.
        listening: UDP port at which a switch listens; 0: not known, or it is no switch.
        met: the number of expected workers that it saw gathered; 0: they never were; None: it has
            contributed, so it knows that they gathered.
        has_spoken: it has sent more than Joins of a new process, and Acks of relayed commands.
        expected: the number of workers that its Join names.
        since: when it joined, in seconds.
        ranks: bitmap of its ranks: a worker has one, a switch those of all workers below it.
        stated: the last statement of ranks, of a switch; None: it has sent none.
        standing: a `Standing`, which tells in which rounds it takes part.
        bound: the slots to which it keeps, if those of its job change; None: they do not.
        answers: the answers to its requests.
        tally: what it has sent and needed.
    """

    address: Address
    type: MemberType
    seat: int
    incarnation: int
    first_round: int | None
    last_seen: float
    contributed: int | None = None
    named: int | None = None
    begins: bool = True
    replaces: bool = False
    workers: int = 1
    sends_parts: bool = False
    listening: int = 0
    met: int | None = 0
    has_spoken: bool = True
    expected: int = 0
    since: float = 0.0
    ranks: int = 0
    stated: Stated | None = None
    standing: Standing = Standing.SETTLED
    bound: Bound | None = None
    answers: Answers = field(default_factory=Answers)
    tally: Tally = field(default_factory=Tally)
    joined: int = field(init=False)

    def __post_init__(self) -> None:
        self.joined = self.incarnation

    @property
    def name(self) -> tuple[str, int]:
        """Return the host and port by which people know it: of a switch, where it listens."""
        return self.address.host, self.listening or self.address.port

    @property
    def held_back(self) -> bool:
        """Return whether this member's contributions are refused until the others have come."""
        return self.standing is Standing.HELD_BACK

    def stand(self, standing: Standing) -> None:
        """Change the standing.

        Raises:
            WrongStep: this standing cannot follow the present one.
        """
        self.standing = follow(STANDING, self.standing, standing)

    def begin_at(self, round_: int, held_back: bool = False) -> None:
        """Take part from this round on."""
        self.first_round = round_
        self.stand(Standing.HELD_BACK if held_back else Standing.NEWCOMER)

    def begin_anew(self, round_: int) -> None:
        """Take part from the round of a Reset on, or from a later one that it has begun."""
        rounds = (self.first_round, self.named, self.contributed)
        begun = [each for each in rounds if each is not None and round_distance(each, round_) > 0]
        self.first_round = self.contributed = self.named = None
        self.begins, self.replaces = True, False
        self.stand(Standing.SETTLED)
        if begun:
            self.begin_at(reduce(later, begun))

    @property
    def contributes(self) -> bool:
        """Return whether this member is a worker or a child switch."""
        return self.type is not MemberType.CONTROLLER

    @property
    def bit(self) -> int:
        """Return this member's bit in a contributor bitmap."""
        return 1 << self.seat

    @property
    def rank(self) -> int:
        """Return the rank of a worker; NO_RANK: not known yet, or the member is no worker."""
        return lowest(self.ranks) if self.type is MemberType.WORKER else NO_RANK

    @property
    def is_due(self) -> bool:
        """Return whether this member is a worker without a rank."""
        return self.type is MemberType.WORKER and not self.ranks

    def told(self, there: int) -> int:
        """Return the number of workers to tell this member: at least `met` until it contributes.

        So it learns that all have come, even if some have left since.
        """
        return max(there, self.met or 0)

    def be_called(self, request: int, heartbeat: bool) -> None:
        """Note the Request of a Join, which may be larger than that of the one before."""
        if request != self.incarnation and self.met is not None:
            self.met = 0  # the workers behind it may be others by now
        self.incarnation = request
        if not heartbeat:
            self.joined = request

    def heeds(self, join: Join, request: int) -> bool:
        """Return whether the numbers of workers count that a Join of this switch tells.

        Smaller numbers come under a new Request number; in an old one they are late or replayed.
        Under that of `joined`, if heartbeats had larger ones, larger numbers may be late.
        """
        if not isinstance(join, SwitchJoin):
            return False
        if request == self.incarnation:
            return join.workers >= self.workers and join.expected >= self.expected
        return request != self.joined or join.workers <= self.workers

    def note_standing(self, join: Join) -> None:
        """Remember the round that a Join of this member names, and whether it sends parts."""
        self.sends_parts = join.sends_parts
        stands = bool(join.flags & FLAG_STANDS_AT)
        self.named = join.round if stands else None
        self.begins = not stands or bool(join.flags & FLAG_FIRST)

    def stands_at(self, round_: int) -> bool:
        """Return whether it no longer needs any round before `round_`.

        A worker begins a round once it has every aggregate of the previous round.
        """
        starts = self.first_round is not None and round_distance(self.first_round, round_) >= 0
        came = self.contributed is not None and round_distance(self.contributed, round_) >= 0
        return starts or came

    def takes_part_in(self, round_: int) -> bool:
        """Return whether its contribution to this round counts."""
        return self.first_round is None or round_distance(round_, self.first_round) >= 0


@dataclass(slots=True)
class Stated:
    """The last statement of a switch below about the ranks of its workers.

    Attributes:
        number: the number of the statement.
        ranks: bitmap of the ranks that these workers have or ask for.
        unranked: the number of workers that need a rank, whichever it is.
        given: the number of these workers that have been given one.
        since: when the statement came, in seconds.
        decided: the newest statement to which the answer is known.
        kept: bitmap of the ranks that former processes of the switch had. They stay reserved until
            `until`, since their workers may come back.
        until: the end of that time, in seconds.
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
        """Return whether the statement is answered and no worker still needs a rank."""
        return self.decided == self.number and self.given >= self.unranked
