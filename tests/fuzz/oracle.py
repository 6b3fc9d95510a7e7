"""The rules of synchronous rounds once more (docs/protocol.md, "Rounds"): one packet at a time.

Plain Python, nothing shared with the switch: for a job whose workers have all joined before the
first contribution, whose number is the largest `expected`, and of which none joins again. Elements
are int32, and sums wrap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

Elements = tuple[int, ...]
Sends = Counter[tuple[int, int, int, Elements]]  # rank, round, index, sum


def ahead(a: int, b: int) -> int:
    """By how much round a is ahead of b."""
    return (a - b + (1 << 31)) % (1 << 32) - (1 << 31)


@dataclass
class Place:
    """Where a worker stands."""

    first_round: int | None
    contributed: int | None = None


@dataclass
class Held:
    """A set."""

    round: int
    sum: Elements
    ranks: frozenset[int]
    complete: bool = False


@dataclass
class Answer:
    """What an Ack to the worker must say, and what aggregates go out because of it."""

    status: str
    threshold: int
    round: int
    contributors: int = 0
    sends: Sends = field(default_factory=Counter)


@dataclass
class Oracle:
    """One job.

    `lengths` are the elements of each segment, `start` the round that all workers name, or None:
    they are new.
    """

    workers: int
    lengths: list[int]
    start: int | None = None

    def __post_init__(self) -> None:
        first = 0 if self.start is None else None
        self.places = {rank: Place(first) for rank in range(self.workers)}
        self.high = self.start or 0
        self.lowest: int | None = None
        self.threshold = 0
        self.halted = False
        self.sets: dict[tuple[int, int], Held] = {}
        self.counts: Counter[str] = Counter()

    # The rules

    def past(self, round_: int) -> bool:
        """Whether a round is before the window."""
        before = self.lowest is not None and ahead(round_, self.lowest) < 0
        return before or ahead(round_, self.high) < -1

    def takes_part(self, place: Place, round_: int) -> bool:
        return place.first_round is None or ahead(round_, place.first_round) >= 0

    def ripe(self, held: Held) -> bool:
        """Whether an open set is complete."""
        if self.threshold:
            return len(held.ranks) >= self.threshold
        wanted = {rank for rank, p in self.places.items() if self.takes_part(p, held.round)}
        return wanted <= held.ranks

    def finish(self, index: int, held: Held) -> Sends:
        """Complete a set; to whom its sum goes."""
        held.complete = True
        self.counts["aggregates"] += 1
        return Counter({(rank, held.round, index, held.sum): 1 for rank in self.places})

    def reconsider(self) -> Sends:
        """Complete what now meets the conditions."""
        sends: Sends = Counter()
        for (_, index), held in self.sets.items():
            if not held.complete and self.ripe(held):
                sends += self.finish(index, held)
        return sends

    def look(self, round_: int, start: int, stop: int) -> Iterator[tuple[int, Held | None, bool]]:
        """Of each segment: what is held of it in this round, and whether it is gone."""
        for index in range(start, stop):
            held = self.sets.get((round_ & 1, index))
            if held is None or ahead(held.round, round_) < 0:
                yield index, None, self.past(round_)
            elif held.round != round_:
                yield index, None, True
            else:
                yield index, held, not held.complete and self.past(round_)

    # What workers send

    def contribute(self, rank: int, round_: int, index: int, elements: Elements | None) -> Sends:
        """A data packet; None: its length is wrong."""
        reason, sends = self.take(rank, round_, index, elements)
        self.counts[reason] += 1
        return sends

    def take(
        self, rank: int, round_: int, index: int, elements: Elements | None
    ) -> tuple[str, Sends]:
        nothing: Sends = Counter()
        if index >= len(self.lengths) or elements is None or len(elements) != self.lengths[index]:
            return "malformed", nothing
        place = self.places[rank]
        if self.halted:
            return "halted", nothing
        if not self.takes_part(place, round_):
            return "before_join", nothing
        if self.past(round_) or ahead(round_, self.high) > 1:
            return "out_of_window", nothing
        if place.contributed is None or ahead(round_, place.contributed) > 0:
            place.contributed = round_
        if ahead(round_, self.high) > 0:
            self.high = round_
            for other in self.places.values():
                settled = other.first_round is not None and ahead(self.high, other.first_round) > 0
                if settled and other.contributed is not None:
                    other.first_round = None
        held = self.sets.get((round_ & 1, index))
        if held is None or held.round != round_:
            held = self.sets[round_ & 1, index] = Held(round_, (0,) * len(elements), frozenset())
        if held.complete:
            return "late", Counter({(rank, round_, index, held.sum): 1})
        if rank in held.ranks:
            return "duplicate", nothing
        held.ranks |= {rank}
        held.sum = tuple((a + b) % (1 << 32) for a, b in zip(held.sum, elements, strict=True))
        return "accumulated", self.finish(index, held) if self.ripe(held) else nothing

    def ack(self, rank: int, status: str = "OK") -> Answer:
        first = self.places[rank].first_round
        round_ = self.high if first is None or self.past(first) else first
        return Answer(status, self.threshold or len(self.places), round_)

    def set_threshold(self, rank: int, threshold: int) -> Answer:
        if self.halted:
            return self.ack(rank, "HALTED")
        self.threshold = threshold
        sends = self.reconsider()
        answer = self.ack(rank)
        answer.sends = sends
        return answer

    def leave(self, rank: int) -> Answer:
        answer = self.ack(rank)
        del self.places[rank]
        answer.sends = self.reconsider()
        return answer

    def halt(self, rank: int) -> Answer:
        if self.halted:
            return self.ack(rank, "HALTED")
        self.halted = True
        return self.ack(rank)

    def reset(self, rank: int) -> Answer:
        self.high = self.lowest = (self.high + 2) % (1 << 32)
        self.halted = False
        self.sets.clear()
        for place in self.places.values():
            place.first_round = place.contributed = None
        return self.ack(rank)

    def force(self, rank: int, round_: int, start: int, stop: int) -> Answer:
        if self.halted:
            return self.ack(rank, "HALTED")
        if stop > len(self.lengths):
            return self.ack(rank, "BAD_REQUEST")
        seen = list(self.look(round_, start, stop))
        forced = [(index, held) for index, held, _ in seen if held and not held.complete]
        sends: Sends = Counter()
        for index, held in forced:
            sends += self.finish(index, held)
        self.counts["partial_aggregates"] += len(forced)
        answer = self.ack(rank, "GONE" if any(gone for _, _, gone in seen) else "OK")
        answer.contributors = min((len(held.ranks) for _, held in forced), default=0)
        answer.sends = sends
        return answer

    def help(self, rank: int, round_: int, start: int, stop: int) -> Answer:
        if self.halted:
            return self.ack(rank, "HALTED")
        if stop > len(self.lengths):
            return self.ack(rank, "BAD_REQUEST")
        status, missing = "OK", 0
        sends: Sends = Counter()
        for index, held, gone in self.look(round_, start, stop):
            if held and held.complete:
                sends[rank, round_, index, held.sum] += 1
            elif gone:
                status = "GONE"
            else:
                present = held.ranks if held else frozenset()
                beyond = ahead(round_, self.high) > 1
                missing |= sum(
                    1 << other
                    for other, place in self.places.items()
                    if self.takes_part(place, round_)
                    and other not in present
                    and (other == rank or not beyond)
                )
        if status == "GONE":
            sends += self.move_up(rank)
        answer = self.ack(rank, status)
        answer.threshold, answer.contributors = missing >> 32, missing & 0xFFFFFFFF
        answer.sends = sends
        return answer

    def move_up(self, rank: int) -> Sends:
        """Who is told GONE and has lost its place takes part again from `high` on."""
        place, before = self.places[rank], (self.high - 1) % (1 << 32)
        marks = (place.first_round, place.contributed)
        if self.threshold or any(at is not None and ahead(at, before) >= 0 for at in marks):
            return Counter()
        place.first_round = self.high
        return self.reconsider()
