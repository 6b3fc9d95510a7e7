"""The rule of slots as a model of its own, against an oracle: docs/protocol.md, "Slots".

A switch keeps two sets, chosen by round mod 2, of S slots each: segment i lies at i mod S. A later
segment of the round takes a slot over, whatever is in it. A worker contributes to segment i only
when it has the aggregates of all segments up to i - W, where W = S / 2. Then no slot is taken over
while a worker lacks the aggregate in it:

    Who contributes to i has all up to i - W. So all workers have contributed up to i - W, and have
    all up to i - S: what i takes over.

Nothing in that depends on what the switch remembers, so it also holds after restarts: the segments
that workers still send or lack are never more than S apart. So a switch can answer GONE to Help for
a segment that is S or more before the last one it holds: whoever asked has it by then. The network
here loses, doubles, and keeps packets for as long as it likes.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "150"))  # `make model` takes more
CAUGHT = 200  # seeds in which each broken rule must be caught


class Broken(AssertionError):
    """A promise does not hold."""


@dataclass(frozen=True)
class Rule:
    """What workers and switches follow; the defaults are right."""

    window: float = 0.5  # W, in slots
    in_order: bool = True  # all up to i - W; else i - W alone, of which the proof needs no more
    by_round: bool = True  # two sets
    gone: int = 0  # segments that are told to be gone although they are less than S before the last
    overwrites: str = "anything"  # or only what is "complete"
    earlier_wins: bool = False


@dataclass
class Slot:
    round: int
    index: int
    sum: Counter[int] = field(default_factory=Counter)  # contributions, by worker
    complete: bool = False


@dataclass
class Worker:
    name: int
    round: int = 0
    sent: int = 0  # segments, from the first on
    has: set[int] = field(default_factory=set)

    def first_missing(self) -> int:
        return next(i for i in range(len(self.has) + 1) if i not in self.has)


class History:
    """One random history of a switch and its workers."""

    def __init__(self, seed: int, rule: Rule = Rule()) -> None:
        self.rng = rng = random.Random(seed)
        self.rule = rule
        self.slots = rng.choice((2, 4, 8, 16))
        self.window = max(1, int(self.slots * rule.window))
        self.workers = [Worker(name) for name in range(rng.randint(1, 4))]
        most = 3 * self.slots + 1
        # Vectors may be shorter than the job's, each round another.
        self.lengths = [rng.choice((rng.randint(1, most), most)) for _ in range(4)]
        self.kept: dict[tuple[int, int], Slot] = {}
        self.high = 0
        self.bag: list[tuple[Any, ...]] = []  # packets under way
        self.loss, self.double = rng.choice((0.0, 0.1, 0.3)), rng.choice((0.0, 0.2, 0.5))
        self.forgets = rng.choice((0.0, 0.002, 0.02))

    # Workers

    def may_send(self, worker: Worker, index: int) -> bool:
        before = index - self.window
        if before < 0:
            return True
        return worker.first_missing() > before if self.rule.in_order else before in worker.has

    def send(self, worker: Worker) -> None:
        """Send a new segment, or one again: lost, or asked for by the switch for another worker."""
        rounds = [worker.round, worker.round - 1]
        round_ = rounds[self.rng.random() < 0.2 and worker.round > 0]
        if round_ >= len(self.lengths):
            return
        stop = worker.sent if round_ == worker.round else self.lengths[round_]
        if round_ == worker.round and stop and self.rng.random() < 0.1:
            self.put("help", worker.name, round_, worker.first_missing())
        new = round_ == worker.round and stop < self.lengths[round_] and self.may_send(worker, stop)
        if new and self.rng.random() < 0.5:
            self.put("data", worker.name, round_, stop)
            worker.sent += 1
        elif stop:
            # Mostly what it lacks itself; the switch asks for what others lack.
            lacks = worker.first_missing() if round_ == worker.round else 0
            index = self.rng.choice((min(lacks, stop - 1), self.rng.randrange(stop)))
            if self.is_wanted(round_, index):
                self.put("data", worker.name, round_, index)

    def is_wanted(self, round_: int, index: int) -> bool:
        return any(
            (one.round == round_ and index not in one.has) or one.round < round_
            for one in self.workers
        )

    def take(self, worker: Worker, round_: int, index: int) -> None:
        if round_ != worker.round:
            return
        worker.has.add(index)
        if len(worker.has) == self.lengths[round_]:
            worker.round, worker.sent, worker.has = round_ + 1, 0, set()

    # The switch

    def place(self, round_: int, index: int) -> tuple[int, int]:
        return (round_ & 1 if self.rule.by_round else 0), index % self.slots

    def receive(self, name: int, round_: int, index: int) -> None:
        if not -1 <= round_ - self.high <= 1:
            return
        self.high = max(self.high, round_)
        place = self.place(round_, index)
        slot = self.kept.get(place)
        if slot is None or (slot.round, slot.index) != (round_, index):
            if slot is not None and not self.takes_over(slot, round_, index):
                self.not_in_vain(name, round_, index)
                return
            if slot is not None:
                self.nobody_lacks(slot)
            slot = self.kept[place] = Slot(round_, index)
        if slot.complete:
            self.put("sum", name, slot)
        elif not slot.sum[name]:
            slot.sum[name] += 1
            if len(slot.sum) == len(self.workers):
                slot.complete = True
                for worker in self.workers:
                    self.put("sum", worker.name, slot)

    def help(self, name: int, round_: int, index: int) -> None:
        which = self.place(round_, 0)[0]
        of_set = [slot for (set_, _), slot in self.kept.items() if set_ == which]
        last = max((slot.index for slot in of_set if slot.round == round_), default=-1)
        later = any(slot.round > round_ for slot in of_set)
        if later or index <= last - self.slots + self.rule.gone:
            self.put("gone", name, round_, index)
            return
        slot = self.kept.get(self.place(round_, index))
        if slot is not None and slot.complete and (slot.round, slot.index) == (round_, index):
            self.put("sum", name, slot)

    def takes_over(self, slot: Slot, round_: int, index: int) -> bool:
        if slot.round != round_:
            return slot.round < round_
        if self.rule.overwrites == "complete" and not slot.complete:
            return False
        return slot.index < index or (self.rule.earlier_wins and not slot.complete)

    # The oracle

    def nobody_lacks(self, slot: Slot) -> None:
        for worker in self.workers:
            lacks = worker.round == slot.round and slot.index not in worker.has
            if worker.round < slot.round or lacks:
                raise Broken(f"{worker} lacks {slot}, whose slot is given away")

    def not_in_vain(self, name: int, round_: int, index: int) -> None:
        """A contribution for which there is no slot is late: its sender has the aggregate."""
        worker = self.workers[name]
        if worker.round == round_ and index not in worker.has and self.rule == Rule():
            raise Broken(f"{worker} lacks {index}, and its contribution is dropped")

    # The network

    def put(self, kind: str, name: int, *what: object) -> None:
        self.bag.append((kind, name, *what))

    def deliver(self, reliable: bool) -> None:
        at = self.rng.randrange(len(self.bag))
        kind, name, *what = self.bag[at]
        if reliable or self.rng.random() >= self.double:
            self.bag[at] = self.bag[-1]
            self.bag.pop()
        if not reliable and self.rng.random() < self.loss:
            return
        if kind == "data":
            self.receive(name, *what)
            return
        if kind == "help":
            self.help(name, *what)
            return
        if kind == "gone":
            worker, (round_, index) = self.workers[name], what
            if worker.round == round_ and index not in worker.has:
                raise Broken(f"{worker} is told that {index} is gone")
            return
        (slot,) = what
        if sorted(slot.sum.elements()) != list(range(len(self.workers))):
            raise Broken(f"wrong sum: {slot}")
        self.take(self.workers[name], slot.round, slot.index)

    # What happens

    def play(self) -> None:
        steps = 0
        while any(worker.round < len(self.lengths) for worker in self.workers):
            steps += 1
            reliable = steps > 3000
            if steps > 60_000:
                raise Broken("no progress")
            if self.bag and (len(self.bag) > 60 or self.rng.random() < 0.6):
                self.deliver(reliable)
            elif not reliable and self.rng.random() < self.forgets:
                self.forget()
            else:
                self.send(self.rng.choice(self.workers))

    def forget(self) -> None:
        """The switch is restarted; its workers say where they stand, and packets stay under way."""
        self.kept.clear()
        self.high = max(worker.round for worker in self.workers)


def play_all(rule: Rule) -> None:
    for seed in range(CAUGHT):
        History(seed, rule).play()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_slot_is_given_away_too_early(seed: int) -> None:
    History(seed).play()


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (Rule(window=1.0), "whose slot is given away"),
        (Rule(by_round=False), "whose slot is given away|is gone"),
        (Rule(overwrites="complete"), "no progress"),
        (Rule(earlier_wins=True), "whose slot is given away"),
        (Rule(gone=1), "is gone"),
    ],
)  # fmt: skip
def test_broken_rules_are_caught(rule: Rule, what: str) -> None:
    """A window of all slots, one set for all rounds, or slots that stay with an earlier segment."""
    with pytest.raises(Broken, match=what):
        play_all(rule)


def test_the_proof_needs_one_segment_only() -> None:
    """A worker could look at i - W alone; in order is simpler, and hardly slower."""
    play_all(Rule(in_order=False))
