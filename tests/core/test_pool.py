"""A pool of slots: equal shares, which change as jobs come and go: docs/sharing.md."""

from __future__ import annotations

import random
import time
from itertools import permutations

import numpy as np
import pytest

from iswitch.core.format.wire import Shape
from iswitch.core.jobs.policy import Growth, Need
from iswitch.core.jobs.shares import FIXED, Pool
from iswitch.core.jobs.turns import Turns
from iswitch.core.sums.resized import ResizedAccelerator
from topologies.virtual.notebook import Seat, simulate
from worker_lib import Worker

pytestmark = pytest.mark.unit

NUMEL = 40_000  # 110 segments
SHAPE = Shape.of(NUMEL)
STAR = "star:6,rate=10Gbit,delay=10us"


def of(slots: int) -> int:
    return ResizedAccelerator.memory(SHAPE, slots)


class Watch:
    """Notes the slots of rounds, and that memory is never over the limit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slots: dict[int, list[int]] = {}
        self.reserved: list[int] = []
        original = Turns.after

        def after(turns: Turns, now: float, *jobs: object) -> object:
            sends = original(turns, now, *jobs)  # type: ignore[arg-type]
            record, held = turns.record, 0
            for number, job in record.jobs.items():
                sums = job.accelerator
                if isinstance(sums, ResizedAccelerator):
                    held += sums.nbytes() + sums.headers() * 72
                    most = sums.most_held()
                    if most and self.slots.setdefault(number, [])[-1:] != [most]:
                        self.slots[number].append(most)
            assert held <= record.policy.reserved <= record.limits.memory
            self.reserved.append(record.policy.reserved)
            return sends

        monkeypatch.setattr(Turns, "after", after)


def rounds(seat: Seat, counts: tuple[int, ...], pauses: tuple[float, ...]) -> int:
    """Sum in job 1, 2 or 3, two workers each; the jobs come after pauses."""
    vector = np.arange(NUMEL, dtype=np.float32) % 7
    number, rank = seat.rank // 2, seat.rank % 2
    time.sleep(pauses[number])
    with Worker(seat.switch, 1 + number, NUMEL, 2, rank=rank) as worker:
        for i in range(counts[number]):
            time.sleep(0.001)
            total = worker.allreduce(vector + i)
            assert (total == 2 * (vector + i)).all()
    return counts[number]


@pytest.mark.parametrize("lost", ["", ",loss=1%"])
def test_shares_follow_jobs_that_come_and_go(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """The first job has a slot for each segment, gives some to others, and has them back."""
    watch = Watch(monkeypatch)
    counts, pauses = (60, 20, 8), (0.0, 0.03, 0.035)
    simulate(
        STAR + lost,
        lambda seat: rounds(seat, counts, pauses),
        policy="pool",
        memory=of(110) + of(32),
    )
    if not lost:
        assert watch.slots == {1: [16, 110, 64, 32, 64, 110], 2: [32, 64], 3: [32]}
    assert (watch.slots[1][0], watch.slots[1][-1]) == (16, 110)
    assert {64, 32} <= set(watch.slots[1])


def test_a_job_without_room_waits_until_others_have_given_some_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = Watch(monkeypatch)
    counts, pauses = (60, 20, 20), (0.0, 0.002, 0.002)
    memory = 2 * of(16)  # the third waits until another leaves
    simulate(STAR, lambda seat: rounds(seat, counts, pauses), policy="pool", memory=memory)
    assert set(watch.slots) == {1, 2, 3}


# The policy, with numbers alone


class Jobs:
    """Jobs that come, use slots and go, in random order."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pool = Pool(self.rng.randint(200, 4000))
        self.needs: dict[int, Need] = {}
        self.used: dict[int, int] = {}  # slots, by job
        self.waiting: set[int] = set()

    def step(self) -> None:
        job, chance = self.rng.randrange(8), self.rng.random()
        if job in self.used and chance < 0.3:
            self.pool.leave(job)
            del self.used[job]
        elif job in self.used:  # its rounds take up what it may have, at some time
            self.used[job] = self.pool.slots_of(job)
            self.pool.uses(job, self.used[job])
        elif job in self.waiting and chance < 0.3:
            self.pool.forget(job)
            self.waiting.discard(job)
        else:
            self.come(job)
        before = {number: self.pool.slots_of(number) for number in self.used}
        changed = self.pool.share()
        assert {n for n in before if self.pool.slots_of(n) != before[n]} == set(changed)
        self.check()

    def come(self, job: int) -> None:
        least, each = self.rng.choice((2, 4, 16)), self.rng.randint(1, 9)
        growth = Growth(least, self.rng.randint(least + 1, 200), each)
        if job not in self.waiting:
            fixed = Need(self.rng.randint(1, 300))
            grows = Need(100 + least * each, growth=growth)
            self.needs[job] = fixed if self.rng.random() < 0.1 else grows
        need = self.needs[job]
        verdict = self.pool.admit(job, need)
        if verdict.admitted:
            self.used[job] = (need.growth or FIXED).least
            self.waiting.discard(job)
        elif verdict.place:
            self.waiting.add(job)
        else:
            assert need.persistent > self.pool.memory

    def check(self) -> None:
        pool, sizes = self.pool, 0
        for job, used in self.used.items():
            growth, slots = self.needs[job].growth or FIXED, pool.slots_of(job)
            sizes += size_of(self.needs[job], max(used, slots))
            assert growth.least <= slots <= growth.most
            assert slots in (0, growth.most) or slots & (slots - 1) == 0
        assert sizes <= pool.reserved <= pool.memory
        assert set(pool.queue()) == self.waiting

    def settle(self) -> None:
        for job in self.pool.queue():
            self.pool.forget(job)
        for _ in range(10):
            self.pool.share()
            for job in self.used:
                self.pool.uses(job, self.pool.slots_of(job))

    def check_equal(self) -> None:
        """Nobody who could have more has less than half of what another has above its fewest."""
        sizes = {job: size_of(self.needs[job], self.pool.slots_of(job)) for job in self.used}
        for job, other in permutations(self.used, 2):
            mine, its = self.needs[job].growth or FIXED, self.needs[other].growth or FIXED
            slots = self.pool.slots_of(job)
            if slots < mine.most and self.pool.slots_of(other) > its.least:
                assert size_of(self.needs[job], 2 * slots) > sizes[other], (job, other, sizes)


def size_of(need: Need, slots: int) -> int:
    growth = need.growth or FIXED
    return need.persistent + growth.each * max(0, min(slots, growth.most) - growth.least)


@pytest.mark.parametrize("seed", range(60))
def test_the_policy_shares_equally_and_never_more_than_there_is(seed: int) -> None:
    jobs = Jobs(seed)
    for _ in range(120):
        jobs.step()
    jobs.settle()
    jobs.check_equal()
