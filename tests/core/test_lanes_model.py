"""The lanes of jobs that share memory, in random histories against an oracle: docs/sharing.md.

The oracle knows no lanes. It counts the bytes that jobs hold: the persistent part of every job that
has come in, and the ephemeral part from its turn on until somebody else has its lane. They never
exceed the memory. Every job ends; and while nothing is under way, no job waits that could come in.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import pytest

from iswitch.core.jobs.lanes import Lanes
from iswitch.core.jobs.lodging import Lane, Lodger
from iswitch.core.jobs.policy import Need, Policy
from iswitch.core.jobs.schedulers import Fair, Fifo, Pack, Srtf

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "80"))  # `make model` takes more
CAUGHT = 200  # seeds in which each broken policy must be caught
SCHEDULERS = Fifo, Srtf, Pack, Fair
Break = Callable[[pytest.MonkeyPatch], None]


class Broken(AssertionError):
    """A promise does not hold."""


@dataclass
class Job:
    number: int
    need: Need
    rounds: int
    state: str = "outside"  # then waiting, computing, asking, adding, over
    holds: bool = False  # its ephemeral part


class History:
    """One random history of a policy and the jobs of a switch."""

    def __init__(self, seed: int, kind: type[Lanes]) -> None:
        self.rng = rng = random.Random(seed)
        self.memory = rng.randint(10, 60)
        self.policy = kind(self.memory)
        self.jobs = {n: self.job(n) for n in range(rng.randint(1, 7))}
        self.now = 0.0

    def job(self, number: int) -> Job:
        rng = self.rng
        lends = rng.random() < 0.9
        persistent = rng.randint(1, self.memory // 2)
        ephemeral = rng.randint(1, self.memory - persistent) if lends else 0
        rounds = rng.randint(1, 4)
        told = rng.choice((0, rounds))
        return Job(number, Need(persistent, ephemeral, told), rounds)

    # What the world does

    def step(self) -> bool:
        """Let one thing happen; False: all jobs are over."""
        going = [job for job in self.jobs.values() if job.state != "over"]
        if not going:
            return False
        job = self.rng.choice(going)
        self.now += self.rng.random()
        getattr(self, job.state)(job)
        self.proceed()
        self.check()
        self.check_queue()
        return True

    def outside(self, job: Job) -> None:
        verdict = self.policy.admit(job.number, job.need)
        self.take_back()
        if verdict.admitted:
            job.state = "computing"
        elif not verdict.place:
            raise Broken(f"{job} is refused, and {self.memory} bytes are enough")
        else:
            job.state = "waiting"

    def waiting(self, job: Job) -> None:
        """Join again; or lose patience."""
        if self.rng.random() < 0.05:
            self.policy.forget(job.number)
            job.state = "over"
            return
        self.outside(job)

    def computing(self, job: Job) -> None:
        if not job.need.ephemeral:
            job.rounds -= 1
            self.leave(job, job.rounds == 0)
        elif job.holds and self.rng.random() < 0.5:  # it has its lane: no need to ask
            self.policy.begin(job.number, self.now)
            job.state = "adding"
        else:
            self.policy.ask(job.number, self.now)
            job.state = "asking"

    def asking(self, job: Job) -> None:
        self.leave(job, self.rng.random() < 0.02)

    def adding(self, job: Job) -> None:
        done = self.rng.random() < 0.95
        self.policy.end(job.number, self.now, done)
        job.state = "computing"
        job.rounds -= done
        if self.rng.random() < 0.3:  # by a heartbeat, which may be late
            self.policy.tell(job.number, max(1, job.rounds + self.rng.randint(0, 1)))
        self.leave(job, job.rounds == 0 or self.rng.random() < 0.02)

    def leave(self, job: Job, leaves: bool) -> None:
        if leaves:
            self.policy.leave(job.number)
            job.state, job.holds = "over", False

    # What the policy decides

    def proceed(self) -> None:
        self.let_in()
        given = [0]
        while given:
            given = self.policy.turns()
            self.take_back()
            for number in given:
                job = self.jobs[number]
                if job.state != "asking":
                    raise Broken(f"{job} has a turn that it has not asked for")
                job.state, job.holds = "adding", True
                self.policy.begin(job.number, self.now)
            self.check()
            self.let_in()

    def take_back(self) -> None:
        for number in self.policy.losses():
            job = self.jobs[number]
            if job.state == "adding":
                raise Broken(f"{job} loses its lane in the middle of a round")
            job.holds = False

    def let_in(self) -> None:
        while (number := self.policy.next_in()) is not None:
            job = self.jobs[number]
            if not self.policy.admit(number, job.need).admitted:
                raise Broken(f"{job} is said to come in, and does not")
            self.take_back()
            job.state = "computing"
            self.check()

    # The oracle

    def inside(self) -> list[Job]:
        return [x for x in self.jobs.values() if x.state not in ("outside", "waiting", "over")]

    def check(self) -> None:
        inside = self.inside()
        kept = sum(job.need.persistent for job in inside)
        lent = sum(job.need.ephemeral for job in inside if job.holds)
        if kept + lent > self.memory:
            raise Broken(f"{kept} + {lent} bytes are held, of {self.memory}")
        if not kept + lent <= self.policy.reserved <= self.memory:
            raise Broken(f"{self.policy.reserved} bytes reserved, {kept + lent} held")
        for job in inside:
            if job.need.ephemeral and self.policy.has_turn(job.number) != job.holds:
                raise Broken(f"whose turn is it? {job}")

    def check_queue(self) -> None:
        inside = self.inside()
        kept = sum(job.need.persistent for job in inside)
        waiting = [job for job in self.jobs.values() if job.state == "waiting"]
        if sorted(self.policy.queue()) != sorted(job.number for job in waiting):
            raise Broken("the queue is not who waits")
        merges = not isinstance(self.policy, Pack) or len(self.policy.lanes) < 2  # else if it pays
        if waiting and merges and not any(job.state == "adding" for job in inside):
            first = [self.jobs[number] for number in self.policy.queue()]
            for job in first if self.policy.overtakes else first[:1]:
                largest = max((one.need.ephemeral for one in (*inside, job)), default=0)
                if kept + job.need.persistent + largest <= self.memory:
                    raise Broken(f"{job} waits, although nothing is under way")

    def run(self) -> None:
        for _ in range(4000):
            if not self.step():
                if self.policy.reserved:
                    raise Broken("memory is left over")
                return
        raise Broken("some jobs never end")


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_memory_is_never_exceeded_and_all_jobs_end(kind: type[Lanes]) -> None:
    for seed in range(SEEDS):
        History(seed, kind).run()


def play(seeds: int) -> None:
    for seed in range(seeds):
        History(seed, SCHEDULERS[seed % len(SCHEDULERS)]).run()


def lanes_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane counts as large as its smallest job."""
    least = property(lambda self: min((job.need.ephemeral for job in self.jobs), default=0))
    monkeypatch.setattr(Lane, "size", least)


def given_away_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane goes to the next job while a round is under way in it."""
    monkeypatch.setattr(Lane, "busy", False)


def not_switched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job that had the lane is not told that it has it no more."""
    monkeypatch.setattr(Lanes, "losses", Policy.losses)


def persistent_parts_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a job keeps between its rounds is not counted."""
    monkeypatch.setattr(Lanes, "reserved", property(lambda self: sum(x.size for x in self.lanes)))


def never_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lane is emptied for a job that waits."""
    monkeypatch.setattr(Lanes, "_has_room", lambda self, need: need.total <= self._free)


def forgets_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has ended stays in its lane."""
    original = Lanes._leave_lane

    def leave(self: Lanes, lodger: Lodger) -> None:
        if lodger.number in self._jobs:
            original(self, lodger)

    monkeypatch.setattr(Lanes, "_leave_lane", leave)


@pytest.mark.parametrize(
    "broken",
    [
        lanes_too_small,
        given_away_too_early,
        not_switched,
        persistent_parts_forgotten,
        never_closed,
        forgets_to_leave,
    ],
)
def test_broken_policies_are_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(Broken):
        play(CAUGHT)


def alternate(policy: Lanes, took: dict[int, float], until: float) -> dict[int, float]:
    """Let jobs that always want their turn have rounds of these lengths; return their seconds."""
    now, spent = 0.0, dict.fromkeys(took, 0.0)
    for job in took:
        policy.ask(job, 0.0)
    while now < until:
        for job in policy.turns():
            policy.begin(job, now)
            now += took[job]
            spent[job] += took[job]
            policy.end(job, now, True)
            policy.ask(job, now)
    return spent


def test_fair_shares_time_not_turns() -> None:
    policy = Fair(30)
    for job in (1, 2):
        assert policy.admit(job, Need(5, 20)).admitted
    spent = alternate(policy, {1: 3.0, 2: 1.0}, 1000.0)
    assert abs(spent[1] - spent[2]) <= 3.0


def compute_between(took: dict[int, float], computes: dict[int, float]) -> dict[int, float]:
    """Let jobs under FAIR have rounds of these lengths; return their shares of the time."""
    policy = Fair(30)
    for job in took:
        assert policy.admit(job, Need(5, 20)).admitted
    spent, look = dict.fromkeys(took, 0.0), inf
    events = [(0.0, job, "asks") for job in took]
    while events and min(events)[0] < 500.0:
        now, job, what = min([*events, (look, 0, "looks")])
        if what == "asks":
            policy.ask(job, now)
        elif what == "ends":
            policy.end(job, now, True)
            spent[job] += took[job]
            events.append((now + computes[job], job, "asks"))
        else:  # as a switch does, which asks in the name of all that wait
            for _, one, waits in events:
                if waits == "waits":
                    policy.ask(one, now)
        events = [one for one in events if one != (now, job, what)]
        events += [(inf, job, "waits")] * (what == "asks")
        for given in policy.turns():
            policy.begin(given, now)
            events = [one for one in events if one != (inf, given, "waits")]
            events.append((now + took[given], given, "ends"))
        look = policy.look_at()
    return {job: seconds / sum(spent.values()) for job, seconds in spent.items()}


@pytest.mark.parametrize(
    ("took", "computes"),
    [((3.0, 1.0), (0.5, 0.2)), ((1.0, 8.0), (0.1, 4.0)), ((2.0, 2.1), (0.1, 1.5))],
)
def test_fair_waits_for_a_job_that_is_behind(
    took: tuple[float, float], computes: tuple[float, float]
) -> None:
    """If it took whoever asks, the two would have as many rounds, however long these are."""
    share = compute_between(dict(enumerate(took)), dict(enumerate(computes)))
    assert abs(share[0] - 0.5) < 0.025


def test_fair_waits_for_nobody_who_computes_for_long() -> None:
    """A job that could not use half of the lane leaves the rest to the other one."""
    share = compute_between({1: 1.0, 2: 1.0}, {1: 0.1, 2: 4.0})
    assert share[1] > 0.7


@pytest.mark.parametrize(("idle", "comes_in"), [(0.5, False), (3.0, True)])
def test_pack_joins_lanes_only_if_their_jobs_leave_them_idle(idle: float, comes_in: bool) -> None:
    """Two jobs with lanes of their own; a third has room only if these become one."""
    policy, now = Pack(54), 0.0
    for job in (1, 2):
        assert policy.admit(job, Need(7, 20)).admitted
    assert policy.admit(3, Need(7, 20)).place == 1
    for _ in range(4):
        for job in (1, 2):
            policy.ask(job, now)
        given = policy.turns()
        for job in given:
            policy.begin(job, now)
        for job in given:
            policy.end(job, now + 1.0, True)
        now += 1.0 + idle
    assert (policy.next_in() == 3) is comes_in


def test_srtf_lets_the_shorter_one_finish_first() -> None:
    policy = Srtf(30)
    for job, rounds in ((1, 100), (2, 3)):
        assert policy.admit(job, Need(5, 20, rounds)).admitted
    order = []
    for job in (1, 2):
        policy.ask(job, 0.0)
    for now in range(6):
        for job in policy.turns():
            order.append(job)
            policy.begin(job, now)
            policy.end(job, now + 1.0, True)
            if order.count(2) < 3 or job == 1:
                policy.ask(job, now + 1.0)
    assert order == [1, 2, 2, 2, 1, 1]  # each once, to be measured


def test_srtf_heeds_what_jobs_tell_on_their_way() -> None:
    """A job that is about to end goes first, however long it was said to be."""
    policy = Srtf(30)
    for job, rounds in ((1, 100), (2, 50)):
        assert policy.admit(job, Need(5, 20, rounds)).admitted
    alternate(policy, {1: 1.0, 2: 1.0}, 4.0)
    assert policy._jobs[1].done == 1
    policy.tell(1, 2)
    alternate(policy, {1: 1.0, 2: 1.0}, 3.0)
    assert policy._jobs[1].done == 4


def test_jobs_that_wait_know_their_place() -> None:
    policy = Fifo(30)
    assert policy.admit(1, Need(20, 10)).admitted
    assert [policy.admit(job, Need(20, 10)).place for job in (2, 3, 2)] == [1, 2, 1]
    policy.leave(1)
    assert policy.next_in() == 2
    assert policy.admit(3, Need(20, 10)).place == 2  # nobody overtakes
    assert policy.admit(2, Need(20, 10)).admitted


def test_pack_lets_a_smaller_job_overtake() -> None:
    policy = Pack(30)
    assert policy.admit(1, Need(20, 5)).admitted
    assert policy.admit(2, Need(20, 10)).place == 1
    assert policy.admit(3, Need(2, 3)).admitted


def test_what_can_never_fit_is_refused() -> None:
    verdict = Fifo(30).admit(1, Need(20, 11))
    assert not verdict.admitted
    assert not verdict.place
