"""The rule of changing slots as a model of its own, against an oracle: docs/protocol.md, "Pools".

The switch may give a job more or fewer slots from round to round. Each round has a number at each
worker, fixed when that begins the round, and one at the switch, fixed by the first contribution.
The set of a round has at least as many slots as any worker may take it to have:

- A worker asks, under a new request number each time, and names the newest round that it has begun,
  and the number that it keeps to in later rounds. From then on it heeds no answer to an earlier
  request.
- The answer tells the number that it may take in rounds after the newest that the switch has
  begun. A smaller one counts at once, for the next round that the worker begins; then it asks
  again, which shows the switch that it keeps to that.
- So for every round the switch knows a bound for each worker. The sets are as large as the largest.

The network loses, doubles, and keeps packets for as long as it likes; the switch is restarted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tests.core.test_slots_model import CAUGHT, SEEDS, Broken, History, Slot, Worker

pytestmark = pytest.mark.unit

SIZES = (2, 4, 8, 16)


@dataclass(frozen=True)
class PoolRule:
    """What workers and switches follow; the defaults are right."""

    confirms: bool = True  # the sets shrink once the workers are known to keep to less
    names_begun: bool = True  # an ask counts for rounds after the newest that its sender has begun
    after_high: bool = True  # an answer counts for rounds after the newest the switch has begun
    newest_answer: bool = True  # answers to earlier requests are not heeded
    newest_ask: bool = True  # earlier requests are not heeded
    comes_back: str = "largest"  # what a worker names after a restart; or the "first" it was told


@dataclass
class Pooled(Worker):
    first: int = 2  # slots, when it joined
    begun: int = 0  # the newest round begun
    slots: int = 2  # in that round
    before: int = 2  # in the round before
    next: int = 2  # in later rounds, until there is an answer
    told: tuple[int, int] | None = None  # a round, and the slots in those after it
    asked: int = 0  # its newest request

    @classmethod
    def of(cls, name: int, least: int) -> Pooled:
        return cls(name, first=least, slots=least, before=least, next=least)

    def begin(self, round_: int) -> None:
        """Fix the number of a round that begins."""
        if round_ > self.begun:
            self.begun, self.before = round_, self.slots
            self.slots = self.next
            if self.told is not None and round_ > self.told[0]:
                self.slots = self.next = self.told[1]
                self.told = None


@dataclass
class Bound:
    """What the switch knows of a worker: its slots up to a round, and after it."""

    round: int = -1
    upto: int = 2
    after: int = 2
    asked: int = -1

    def of(self, round_: int) -> int:
        return self.upto if round_ <= self.round else self.after


@dataclass
class Set:
    round: int
    slots: int
    kept: dict[int, Slot] = field(default_factory=dict)


class PoolHistory(History):
    """One random history of a switch that changes the slots of its job."""

    def __init__(self, seed: int, pool: PoolRule = PoolRule()) -> None:
        super().__init__(seed)
        self.pool = pool
        self.rng = random.Random(seed)
        least = self.rng.choice(SIZES[:2])
        self.target = self.least = least
        self.workers = [Pooled.of(one.name, least) for one in self.workers]
        self.bounds = [Bound(-1, least, least) for _ in self.workers]
        self.lengths = [self.rng.choice((self.rng.randint(1, 49), 40)) for _ in range(8)]
        self.sets: dict[int, Set] = {}
        self.high = 0

    # Workers

    def may_send(self, worker: Worker, index: int) -> bool:
        assert isinstance(worker, Pooled)
        worker.begin(worker.round)
        return index < worker.first_missing() + worker.slots // 2

    def ask(self, worker: Pooled) -> None:
        worker.asked += 1
        keeps = max(worker.next, worker.told[1] if worker.told is not None else 0)
        self.put("ask", worker.name, worker.asked, worker.begun, keeps)

    def answered(self, worker: Pooled, number: int, after: int, slots: int) -> None:
        if self.pool.newest_answer and number != worker.asked:
            return
        smaller = slots < worker.next
        worker.next = min(worker.next, slots)
        worker.told = (after, slots)
        if smaller and self.pool.confirms:
            worker.told = None
            self.ask(worker)

    # The switch

    def asked(self, name: int, number: int, round_: int, keeps: int) -> None:
        bound = self.bounds[name]
        if self.pool.newest_ask and number <= bound.asked:
            return
        upto = bound.of(round_) if self.pool.names_begun else keeps
        after = max(keeps, self.target) if self.pool.confirms else self.target
        if round_ < bound.round:  # only where requests of before are heeded
            round_ = bound.round
        self.bounds[name] = Bound(round_, upto, after, number)
        high = self.high if self.pool.after_high else -1
        self.put("answer", name, number, high, self.target)

    def slots_of(self, round_: int) -> int:
        return max(self.least, *(bound.of(round_) for bound in self.bounds))

    def receive(self, name: int, round_: int, index: int) -> None:
        if not -1 <= round_ - self.high <= 1:
            return
        self.high = max(self.high, round_)
        held = self.sets.get(round_ & 1)
        if held is None or held.round < round_:
            for given_away in held.kept.values() if held is not None else ():
                self.nobody_lacks(given_away)
            held = self.sets[round_ & 1] = Set(round_, self.slots_of(round_))
        if held.round > round_:
            return
        at = index % held.slots
        slot = held.kept.get(at)
        if slot is None or slot.index < index:
            if slot is not None:
                self.nobody_lacks(slot)
            slot = held.kept[at] = Slot(round_, index)
        if slot.index > index:
            self.not_in_vain(name, round_, index)
        elif slot.complete:
            self.put("sum", name, slot)
        elif not slot.sum[name]:
            slot.sum[name] += 1
            if len(slot.sum) == len(self.workers):
                slot.complete = True
                for worker in self.workers:
                    self.put("sum", worker.name, slot)

    def help(self, name: int, round_: int, index: int) -> None:
        held = self.sets.get(round_ & 1)
        if held is None or held.round < round_:
            return
        last = max((slot.index for slot in held.kept.values()), default=-1)
        if held.round > round_ or index <= last - held.slots:
            self.put("gone", name, round_, index)
            return
        slot = held.kept.get(index % held.slots)
        if slot is not None and slot.complete and slot.index == index:
            self.put("sum", name, slot)

    def not_in_vain(self, name: int, round_: int, index: int) -> None:
        worker = self.workers[name]
        if worker.round == round_ and index not in worker.has:
            raise Broken(f"{worker} lacks {index}, and its contribution is dropped")

    # What happens

    def deliver(self, reliable: bool) -> None:
        at = self.rng.randrange(len(self.bag))
        kind, name, *what = self.bag[at]
        worker = self.workers[name]
        assert isinstance(worker, Pooled)
        if kind not in ("nudge", "ask", "answer"):
            self.bag[at], self.bag[-1] = self.bag[-1], self.bag[at]
            self.take_last(reliable)
            return
        if reliable or self.rng.random() >= self.double:
            self.bag[at] = self.bag[-1]
            self.bag.pop()
        if not reliable and self.rng.random() < self.loss:
            return
        if kind == "nudge":
            self.ask(worker)
        elif kind == "ask":
            self.asked(name, *what)
        else:
            self.answered(worker, *what)

    def take_last(self, reliable: bool) -> None:
        """Deliver the last packet of the bag."""
        kind, name, *what = self.bag[-1]
        if reliable or self.rng.random() >= self.double:
            self.bag.pop()
        if not reliable and self.rng.random() < self.loss:
            return
        if kind == "data":
            self.receive(name, *what)
        elif kind == "help":
            self.help(name, *what)
        elif kind == "gone":
            worker, (round_, index) = self.workers[name], what
            if worker.round == round_ and index not in worker.has:
                raise Broken(f"{worker} is told that {index} is gone")
        else:
            (slot,) = what
            if sorted(slot.sum.elements()) != list(range(len(self.workers))):
                raise Broken(f"wrong sum: {slot}")
            self.take(self.workers[name], slot.round, slot.index)

    def send(self, worker: Worker) -> None:
        if self.rng.random() < 0.02:  # another job has come, or has gone
            self.target = self.rng.choice([size for size in SIZES if size >= self.least])
        if self.rng.random() < 0.05:
            self.put("nudge", worker.name)
        super().send(worker)

    def forget(self) -> None:
        """The switch is restarted; its workers say where they stand, and what they have sent."""
        self.sets.clear()
        self.high = max(worker.round for worker in self.workers)
        for worker, bound in zip(self.workers, self.bounds, strict=True):
            assert isinstance(worker, Pooled)
            worker.asked += 1  # answers of the switch before do not count
            worker.told = None
            named = max(worker.slots, worker.before, worker.next)
            if self.pool.comes_back == "first":
                named = worker.first
            bound.round, bound.upto, bound.after, bound.asked = -1, named, named, worker.asked

    def settles(self) -> None:
        """Once the network is quiet, and rounds go on, all keep to what the switch wants."""
        for _ in range(3):
            for worker in self.workers:
                assert isinstance(worker, Pooled)
                self.ask(worker)
                self.bag = [one for one in self.bag if one[0] in ("ask", "answer")]
                while self.bag:
                    self.deliver(reliable=True)
                worker.begin(worker.begun + 1)
        if any(one.slots != self.target for one in self.workers if isinstance(one, Pooled)):
            raise Broken("a worker keeps to another number")
        if any(bound.of(bound.round + 1) != self.target for bound in self.bounds):
            raise Broken("the switch does not know what its workers keep to")


def play_all(rule: PoolRule) -> None:
    for seed in range(CAUGHT):
        PoolHistory(seed, rule).play()


@pytest.mark.parametrize("seed", range(SEEDS // 3))
def test_sets_are_as_large_as_their_windows_need(seed: int) -> None:
    history = PoolHistory(seed)
    history.play()
    history.settles()


@pytest.mark.parametrize(
    "rule",
    [
        PoolRule(confirms=False),
        PoolRule(names_begun=False),
        PoolRule(after_high=False),
        PoolRule(newest_answer=False),
        PoolRule(newest_ask=False),
        PoolRule(comes_back="first"),
    ],
)
def test_broken_rules_are_caught(rule: PoolRule) -> None:
    with pytest.raises(Broken):
        play_all(rule)
