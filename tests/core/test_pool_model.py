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

The network loses, doubles, and keeps packets for as long as it likes; the switch is restarted. The
workers come back by Joins, of which late copies come, too, and the switch may then have less room
than the rounds under way had. Such a round goes on in a *short* set:

- An earlier segment takes a slot from a later one, even from a complete one. A later one takes it
  only from a complete one.
- Help for a segment whose slot an earlier open one has asks all for that one: it may be that nobody
  lacks it.
- Nothing is gone while its round is held: all have their contributions still, so any segment can be
  added up again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.core.test_slots_model import SEEDS, Broken, History, Slot, Worker

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
    short: str = "goes on"  # or "waits" for room, or is "as others"
    from_complete: bool = True  # in a short set an earlier segment takes slots of complete ones
    asks_before: bool = True  # Help asks for the open segment before, which has the slot
    gone: bool = False  # Help for what is S or more before the last one held is answered GONE


@dataclass
class Pooled(Worker):
    first: int = 2  # slots, when it joined
    begun: int = 0  # the newest round begun
    slots: int = 2  # in that round
    before: int = 2  # in the round before
    next: int = 2  # in later rounds, until there is an answer
    told: tuple[int, int] | None = None  # a round, and the slots in those after it
    requests: int = 0
    asked: int = 0  # its newest request for slots
    misled: bool = False  # it is a member by a Join from before the restart

    @classmethod
    def of(cls, name: int, least: int) -> Pooled:
        return cls(name, first=least, slots=least, before=least, next=least)

    @property
    def largest(self) -> int:
        return max(self.slots, self.before, self.next)

    def request(self) -> int:
        self.requests += 1
        return self.requests

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

    @property
    def most(self) -> int:
        return max(self.upto, self.after)


@dataclass
class Set:
    round: int
    slots: int
    short: bool
    kept: dict[int, Slot] = field(default_factory=dict)


class PoolHistory(History):
    """One random history of a switch that changes the slots of its job."""

    def __init__(self, seed: int, pool: PoolRule = PoolRule()) -> None:
        super().__init__(seed)
        self.pool = pool
        self.rng = random.Random(seed)
        least = self.rng.choice(SIZES[:2])
        self.target = self.room = self.least = least
        self.workers = [Pooled.of(one.name, least) for one in self.workers]
        self.lengths = [self.rng.choice((self.rng.randint(1, 49), 40)) for _ in range(8)]
        self.sets: dict[int, Set] = {}
        self.high = 0
        self.changes, self.beats = self.rng.choice((0.02, 0.1)), self.rng.choice((0.01, 0.05))
        self.lives = 0  # of the switch
        self.bounds: dict[int, Bound] = {}  # of those that have joined
        self.joined: dict[int, int] = {}  # their Joins
        self.wanted: set[tuple[int, int]] = set()  # segments that the switch asks all for
        for worker in self.pooled():
            self.join(worker)

    def pooled(self) -> list[Pooled]:
        return [worker for worker in self.workers if isinstance(worker, Pooled)]

    # Workers

    def may_send(self, worker: Worker, index: int) -> bool:
        assert isinstance(worker, Pooled)
        worker.begin(worker.round)
        return index < worker.first_missing() + worker.slots // 2

    def is_wanted(self, round_: int, index: int) -> bool:
        return super().is_wanted(round_, index) or (round_, index) in self.wanted

    def join(self, worker: Pooled) -> None:
        named = worker.largest if self.pool.comes_back == "largest" else worker.first
        self.put("join", worker.name, worker.request(), self.lives, worker.round, named)

    def ask(self, worker: Pooled) -> None:
        worker.asked = worker.request()
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

    def come_back(self, worker: Pooled) -> None:
        """Join a restarted switch; answers of the one before do not count."""
        worker.told, worker.asked = None, 0
        self.join(worker)

    # The switch

    def lets_in(self, name: int, number: int, life: int, round_: int, named: int) -> None:
        """Take in who joins, also again: each heartbeat is a Join, too."""
        if number < self.joined.get(name, 0):
            return
        known = self.bounds.get(name)
        if known is None and self.pool.short == "waits" and named > self.room:
            return
        if known is None:
            worker = self.workers[name]
            assert isinstance(worker, Pooled)
            worker.misled = life != self.lives
        if known is None or named > known.most:
            self.bounds[name] = Bound(-1, named, named, number)
            for held in self.sets.values():
                held.short |= self.is_short(held.slots, named)
        self.joined[name] = number
        self.high = max(self.high, round_)

    def asked(self, name: int, number: int, round_: int, keeps: int) -> None:
        bound = self.bounds[name]
        if keeps > bound.most or (self.pool.newest_ask and number <= bound.asked):
            return
        upto = bound.of(round_) if self.pool.names_begun else keeps
        after = max(keeps, self.target) if self.pool.confirms else self.target
        if round_ < bound.round:  # only where requests of before are heeded
            round_ = bound.round
        self.bounds[name] = Bound(round_, upto, after, number)
        high = self.high if self.pool.after_high else -1
        self.put("answer", name, number, high, self.target)
        self.resize()

    def resize(self) -> None:
        """Give back the room that no round uses, or have as much as there is to have."""
        used = max([one.slots for one in self.sets.values()], default=0)
        used = max([used, *(bound.most for bound in self.bounds.values())])
        self.room = max(self.target, min(self.room, used))

    def needed(self, round_: int) -> int:
        return max(self.least, *(bound.of(round_) for bound in self.bounds.values()), 0)

    def is_short(self, slots: int, needed: int) -> bool:
        return self.pool.short == "goes on" and slots < needed

    def receive(self, name: int, round_: int, index: int) -> None:
        if not -1 <= round_ - self.high <= 1:
            return
        self.high = max(self.high, round_)
        held = self.sets.get(round_ & 1)
        if held is None or held.round < round_:
            for given_away in held.kept.values() if held is not None else ():
                self.nobody_lacks(given_away)
            needed = self.needed(round_)
            slots = min(needed, self.room)
            held = self.sets[round_ & 1] = Set(round_, slots, self.is_short(slots, needed))
        if held.round > round_:
            return
        at = index % held.slots
        slot = held.kept.get(at)
        if slot is None or (slot.index != index and self.makes_way(held, slot, index)):
            slot = held.kept[at] = Slot(round_, index)
        if slot.index != index:
            if not held.short:
                self.not_in_vain(name, round_, index)
        elif slot.complete:
            self.put("sum", name, slot)
        elif not slot.sum[name]:
            slot.sum[name] += 1
            if len(slot.sum) == len(self.workers):
                slot.complete = True
                for worker in self.workers:
                    self.put("sum", worker.name, slot)

    def makes_way(self, held: Set, slot: Slot, index: int) -> bool:
        """Return whether another segment takes this slot."""
        if held.short:
            if slot.index > index:
                return self.pool.from_complete or not slot.complete
            return slot.complete
        if slot.index < index:
            self.nobody_lacks(slot)
        return slot.index < index

    def help(self, name: int, round_: int, index: int) -> None:
        held = self.sets.get(round_ & 1)
        if held is None or held.round < round_:
            return
        last = max((slot.index for slot in held.kept.values()), default=-1)
        if held.round > round_ or (self.pool.gone and index <= last - held.slots):
            self.put("gone", name, round_, index)
            return
        slot = held.kept.get(index % held.slots)
        if slot is not None and slot.complete and slot.index == index:
            self.put("sum", name, slot)
        elif slot is not None and held.short and self.pool.asks_before and slot.index < index:
            self.wanted.add((round_, slot.index))

    # The oracle

    def is_sure(self) -> bool:
        """Return whether the switch knows the members that it has by Joins since its start."""
        return not any(worker.misled for worker in self.pooled())

    def nobody_lacks(self, slot: Slot) -> None:
        if self.is_sure():
            super().nobody_lacks(slot)

    def not_in_vain(self, name: int, round_: int, index: int) -> None:
        worker = self.workers[name]
        if worker.round == round_ and index not in worker.has and self.is_sure():
            raise Broken(f"{worker} lacks {index}, and its contribution is dropped")

    # What happens

    def deliver(self, reliable: bool) -> None:
        at = self.rng.randrange(len(self.bag))
        kind, name, *what = self.bag[at]
        worker = self.workers[name]
        assert isinstance(worker, Pooled)
        if reliable or self.rng.random() >= self.double:
            self.bag[at] = self.bag[-1]
            self.bag.pop()
        if not reliable and self.rng.random() < self.loss:
            return
        if kind in ("data", "help", "ask") and name not in self.joined:
            self.put("stranger", name)
        elif kind in ("data", "help", "ask", "join"):
            takes: dict[str, Callable[..., None]] = {
                "data": self.receive, "help": self.help, "ask": self.asked, "join": self.lets_in,
            }  # fmt: skip
            takes[kind](name, *what)
        else:
            self.hears(worker, kind, *what)

    def hears(self, worker: Pooled, kind: str, *what: Any) -> None:
        """Let a worker take a packet."""
        if kind == "stranger":
            self.come_back(worker)
        elif kind == "nudge":
            self.ask(worker)
        elif kind == "answer":
            self.answered(worker, *what)
        elif kind == "gone":
            round_, index = what
            if worker.round == round_ and index not in worker.has:
                raise Broken(f"{worker} is told that {index} is gone")
        else:
            (slot,) = what
            if sorted(slot.sum.elements()) != list(range(len(self.workers))):
                raise Broken(f"wrong sum: {slot}")
            self.take(worker, slot.round, slot.index)

    def send(self, worker: Worker) -> None:
        assert isinstance(worker, Pooled)
        if self.rng.random() < self.changes:  # another job has come, or has gone
            self.target = self.rng.choice([size for size in SIZES if size >= self.least])
            self.resize()
        if self.rng.random() < 0.05:
            self.put("nudge", worker.name)
        if self.rng.random() < self.beats:
            self.join(worker)  # a heartbeat
        super().send(worker)

    def forget(self) -> None:
        """The switch is restarted, and has other room; its workers come back by and by."""
        self.lives += 1
        self.sets.clear()
        self.bounds.clear()
        self.joined.clear()
        self.wanted.clear()
        self.high = 0
        self.target = self.room = self.rng.choice([size for size in SIZES if size >= self.least])

    def settles(self) -> None:
        """Once the network is quiet, and rounds go on, all keep to what the switch wants."""
        for _ in range(3):
            for worker in self.pooled():
                self.join(worker)
                self.ask(worker)
                self.bag = [one for one in self.bag if one[0] in ("join", "ask", "answer")]
                while self.bag:
                    self.deliver(reliable=True)
                worker.begin(worker.begun + 1)
        if any(one.slots != self.target for one in self.pooled()):
            raise Broken("a worker keeps to another number")
        if any(bound.of(bound.round + 1) != self.target for bound in self.bounds.values()):
            raise Broken("the switch does not know what its workers keep to")


@pytest.mark.parametrize("seed", range(SEEDS // 3))
def test_sets_are_as_large_as_their_windows_need(seed: int) -> None:
    history = PoolHistory(seed)
    history.play()
    history.settles()


@pytest.mark.parametrize(
    ("rule", "seed"),
    [
        (PoolRule(confirms=False), 3),
        (PoolRule(names_begun=False), 23),
        (PoolRule(after_high=False), 479),
        (PoolRule(newest_answer=False), 4),
        (PoolRule(newest_ask=False), 4),
        (PoolRule(comes_back="first"), 2),
        (PoolRule(short="waits"), 117),
        (PoolRule(short="as others"), 36),
        (PoolRule(from_complete=False), 36),
        (PoolRule(asks_before=False), 0),
        (PoolRule(gone=True), 59),
    ],
)
def test_broken_rules_are_caught(rule: PoolRule, seed: int) -> None:
    """In this history, which ends well with the rule as it is."""
    PoolHistory(seed).play()
    with pytest.raises(Broken):
        PoolHistory(seed, rule).play()
