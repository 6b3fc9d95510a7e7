"""Rounds of some workers only: each is summed by itself; who is late is told at its own call.

Random histories of a star whose workers come late, lose the answers to their Joins, are killed and
started again, at their address or at another, while the switch is restarted and reset. Every
element of a sum tells which process contributed, and to which round of the program. The oracle:

- a sum holds contributions to the round that its worker named, each once, of those who take part in
  it, and H or more as long as the switch knows H;
- every call that is begun ends with a sum, or is told why not.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from iswitch.core.format.packets import Burst
from iswitch.core.format.wire import ROUND_MASK, Action, DType, Shape, Status, Threshold
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from iswitch.ports.udp import UdpPort
from tests.conftest import Where
from tests.support.tree import Tree
from tests.support.world import Faults, World, worker_address
from worker_lib import AllreduceTimeout, RoundGone, Worker, arguments
from worker_lib.controller import Controller, NoSuchJob
from worker_lib.protocol.session import Answered, Dropped, Gone, Session, WasReset

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "60"))  # `make model` takes more
WORKERS, ROUNDS, H = 4, 12, 2
PROCESSES = 12  # most in a history; each has a column of its own
SEGMENTS = 3
SHAPE = Shape.of(SEGMENTS * PROCESSES, DType.INT32, elements=PROCESSES)
LEASE = 2.0  # seconds
STEP = 0.001
POLL = 0.02  # seconds between two questions of a worker whether all are there
WAIT = 20.0  # seconds, of true time
PATIENCE = 3.0  # seconds of virtual time that a call takes at most
LONGEST = 200.0  # seconds of virtual time for a history
BEGINS = (0, 5000, ROUND_MASK - 3)  # the program's first round


def vector(process: int, index: int) -> np.ndarray:
    """Whose it is, and of which round of the program, in every segment."""
    grid = np.zeros((SEGMENTS, PROCESSES), np.int32)
    grid[:, process] = index + 1
    return grid.reshape(-1)


def plan(seed: int) -> list[set[int]]:
    """Who takes part in each round."""
    rng = random.Random(seed)
    return [set(rng.sample(range(WORKERS), rng.randint(H, WORKERS))) for _ in range(ROUNDS)]


class Program:
    """What all workers know of the rounds."""

    def __init__(self, rounds: list[set[int]], first: int = 0) -> None:
        self.rounds, self.first = rounds, first
        self.places: list[int] = []  # of the processes

    def named(self, index: int) -> int:
        """The number that the program gives a round."""
        return (self.first + index) & ROUND_MASK

    def check(self, out: np.ndarray, index: int, least: int) -> None:
        """A sum is of one round of the program, and of those who take part in that."""
        for segment in out.reshape(SEGMENTS, PROCESSES):
            inside = np.flatnonzero(segment)
            assert (segment[inside] == index + 1).all(), f"round {index} holds others: {segment}"
            places = {self.places[process] for process in inside}
            assert places <= self.rounds[index], f"round {index} of {self.rounds[index]}: {places}"
            assert len(inside) >= least


class Life:
    """A process that takes part in the rounds of its place, as a `Worker` does it."""

    def __init__(self, history: History, place: int, address: int, left: list[int]) -> None:
        self.history, self.left = history, left
        self.address = worker_address(address)
        self.column = len(history.program.places)
        history.program.places.append(place)
        self.place, self.at = place, address
        self.rng = random.Random(f"{history.seed} {self.column}")
        self.session: Session = history.world.join(
            address,
            SHAPE,
            expected=WORKERS,
            whole=history.whole,
            incarnation=1000 + self.column,
            partial=True,
            first_round=history.program.first,
        )
        self.out = np.zeros(SHAPE.numel, np.int32)
        self.done: list[int] = []
        self.told: list[int] = []  # rounds that were not summed up, and it learned why
        self.notice = False  # an error that the next call raises
        self.ready = self.sets = False  # all have come; it sets H
        self.next_join = 0.0
        self.starts = history.world.now
        self.told_first: int | None = None  # the round that its first Join was answered with

    def act(self) -> None:
        now = self.history.world.now
        self._hear(now)
        if not self.ready:
            self._gather(now)
        elif self.sets:
            self._set(now)
        elif self.session.transfer is not None:
            self._wait(now)
        elif self.left and now >= self.starts:
            self._call(now)

    def _hear(self, now: float) -> None:
        """As `Worker._events`."""
        events = self.history.world.events[self.address]
        for event in events:
            match event:
                case Gone() | WasReset() | Dropped():
                    self.notice = self.ready  # a reset while all were gathering: no call is void
                case Answered(_, Action.SETH, Status.OK):
                    self.sets = False
                case Answered(_, Action.JOIN, Status.FULL):  # a lease has still to run out
                    self.next_join = now + 0.5
        events.clear()

    def _gather(self, now: float) -> None:
        """As `Worker._join`."""
        session = self.session
        if session.member and self.told_first is None:
            self.told_first = session.round
        if session.member and session.joined >= WORKERS:
            self.ready = self.sets = True
        elif now >= self.next_join and not session.asks(Action.JOIN):
            self.next_join = now + POLL
            session.join(now)

    def _set(self, now: float) -> None:
        """As docs/worker.md has it, each before its first round; and when H was forgotten."""
        if self.session.member and not self.session.asks(Action.SETH):
            self.session.request(Action.SETH, Threshold(H), now)

    def _call(self, now: float) -> None:
        """As `Worker.allreduce`."""
        session = self.session
        index = self.left[0]
        if self.notice or not session.skip_to(self.history.named(self, index)):
            self._end(False, now)
            return
        session.begin(vector(self.column, index), self.out, now)
        self.starts = now

    def _wait(self, now: float) -> None:
        transfer = self.session.transfer
        assert transfer is not None
        if transfer.done:
            self.history.check(self.out, self.left[0])
            self.session.finish()
            self._end(True, now)
        elif now > self.starts + PATIENCE:
            self.session.abandon()
            self.sets = True
            self._end(False, now)

    def _end(self, summed: bool, now: float) -> None:
        self.notice = False
        (self.done if summed else self.told).append(self.left.pop(0))
        self.starts = now + self.rng.choice((0.0, 0.001, 0.02))


class History:
    """One run of the program.

    Args:
        seed: draws everything.
        kills: processes that are killed, and started again.
        restarts: of the switch.
        resets: by some worker.
        named: the number that a process gives a round; the program's own.
    """

    def __init__(
        self,
        seed: int,
        kills: int = 0,
        restarts: int = 0,
        resets: int = 0,
        named: Callable[[Life, int], int] | None = None,
    ) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.program = Program(plan(seed), rng.choice(BEGINS))
        self.whole = bool(rng.randrange(2))
        self.least = 1 if restarts else H  # a switch that was restarted has forgotten H
        self.named = named or (lambda _, index: self.program.named(index))
        faults = Faults(rng.choice((0.0, 0.1, 0.3)), duplicate=0.1, jitter=500e-6, lose=self._lose)
        self.deaf = rng.choice((0.0, 0.9))  # how likely the answer to a Join is lost, at first
        self.world = World(Switch(Limits(lease=LEASE)), faults, seed)
        self.lives: list[Life | None] = [None] * WORKERS
        self.ended: list[Life] = []
        self.times: list[tuple[float, Callable[[], None]]] = []
        self.fresh = itertools.count(WORKERS)
        for place in range(WORKERS):
            left = [i for i, who in enumerate(self.program.rounds) if place in who]
            self._at(rng.choice((0.0, rng.uniform(0, 0.3))), self._starter(place, place, left))
        for count, what in ((kills, self._kill), (restarts, self._restart), (resets, self._reset)):
            for _ in range(count):
                self._at(rng.uniform(0.0, 0.8), what)

    def _lose(self, up: bool, _tos: int, payload: bytes) -> bool:
        """Some answers to Joins, more than others: so these are repeated, and answered later."""
        if up or len(payload) < 9 or payload[0] != Action.ACK or payload[8] != Action.JOIN:
            return False
        return self.rng.random() < self.deaf and self.world.now < 1.0

    def _at(self, when: float, what: Callable[[], None]) -> None:
        self.times.append((when, what))
        self.times.sort(key=lambda one: one[0])

    def _starter(self, place: int, address: int, left: list[int]) -> Callable[[], None]:
        def start() -> None:
            self.lives[place] = Life(self, place, address, left)

        return start

    def _kill(self) -> None:
        life = self.rng.choice(self.lives)
        if life is None or not life.left:
            return
        self.world.pump()
        del self.world.sessions[life.address]
        self.lives[life.place] = None
        self.ended.append(life)
        address = self.rng.choice((life.at, next(self.fresh)))
        left = life.left[1:] if life.session.transfer is not None else life.left
        begins = self.world.now + self.rng.choice((0.0, 0.1, LEASE))
        self._at(begins, self._starter(life.place, address, left))

    def _restart(self) -> None:
        self.world.switch = Switch(Limits(lease=LEASE))

    def _reset(self) -> None:
        life = self.rng.choice(self.lives)
        if life is not None and life.session.member:
            life.session.request(Action.RESET, None, self.world.now)

    def check(self, out: np.ndarray, index: int) -> None:
        self.program.check(out, index, self.least)

    def play(self) -> History:
        world = self.world
        while self.times or any(life is None or life.left for life in self.lives):
            assert world.now < LONGEST, "\n".join(world.trace[-40:])
            while self.times and self.times[0][0] <= world.now:
                self.times.pop(0)[1]()
            world.pump()  # what has happened is known before anything else is done
            for life in self.lives:
                if life is not None:
                    life.act()
            end = world.now + STEP
            world.pump()
            while (at := world.network.next_time()) is not None and at <= end:
                world.step()
            world.now = max(world.now, end)
        return self

    @property
    def summed(self) -> float:
        """Which part of all calls got a sum."""
        lives = [*self.ended, *(life for life in self.lives if life is not None)]
        done = sum(len(life.done) for life in lives)
        return done / sum(len(who) for who in self.program.rounds)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_rounds_do_not_mix(seed: int) -> None:
    """Workers come when they please, and answers to their Joins are lost."""
    history = History(seed).play()
    for life in history.lives:
        assert life is not None
        named = [i for i, who in enumerate(history.program.rounds) if life.place in who]
        assert sorted(life.done + life.told) == named  # each was summed, or told at its own call
    assert history.summed > 1 / 3  # those who are late for two rounds are not the rule


@pytest.mark.parametrize("seed", range(SEEDS))
def test_rounds_do_not_mix_whatever_happens(seed: int) -> None:
    """Processes are killed and started again, the switch is restarted, and reset."""
    History(seed, kills=1 + seed % 3, restarts=seed % 2, resets=seed // 2 % 3).play()


def test_the_oracle_sees_rounds_that_each_counts_from_its_own_first() -> None:
    """What a worker is told first is not the same for all: the answers to some Joins come late."""

    def named(life: Life, index: int) -> int:
        assert life.told_first is not None
        return (life.told_first + index) & ROUND_MASK

    def play_all() -> None:
        for seed in range(20):
            History(seed, named=named).play()

    with pytest.raises(AssertionError, match="holds others"):
        play_all()


def test_the_oracle_draws_what_it_is_for() -> None:
    """Some are told first of a round that others have passed."""
    late = 0
    for seed in range(20):
        history = History(seed).play()
        late += any(life and life.told_first != history.program.first for life in history.lives)
    assert late >= 5


def gathered(world: World, workers: int, **kwargs: int) -> list[Session]:
    """Sessions of partial workers that know of each other."""
    ways = {"expected": workers, "partial": True, **kwargs}
    sessions = [world.join(i, SHAPE, **ways) for i in range(workers)]
    world.run(lambda: all(session.member for session in sessions))
    return sessions


def begin(world: World, session: Session, round_: int, number: int) -> np.ndarray:
    """Have a session contribute to a round; where its sum will be."""
    assert session.skip_to(round_)
    out = np.zeros(SHAPE.numel, np.int32)
    session.begin(vector(number, round_), out, world.now)
    return out


def end(world: World, *sessions: Session) -> None:
    """Wait for the sums of sessions."""
    world.run(lambda: all(s.transfer is not None and s.transfer.done for s in sessions))
    for session in sessions:
        session.finish()


def test_after_a_round_that_is_over_the_next_may_still_be_had() -> None:
    world = World()
    late, *others = gathered(world, 3)
    others[0].request(Action.SETH, Threshold(2), world.now)
    begin(world, late, 0, 0)
    for round_ in (1, 2):
        for number, session in enumerate(others, start=1):
            begin(world, session, round_, number)
        end(world, *others)
    told = world.events[worker_address(0)]
    world.run(lambda: any(isinstance(event, Gone) for event in told))
    out = begin(world, late, 1, 0)
    end(world, late)
    assert (out == vector(1, 1) + vector(2, 1)).all()


def test_who_comes_later_begins_with_a_number_of_its_own() -> None:
    """It may know better how far the program is than the others, and does not move them."""
    world = World()
    first, second = gathered(world, 2, first_round=5000)
    for round_ in (5000, 5001):
        outs = [begin(world, session, round_, i) for i, session in enumerate((first, second))]
        end(world, first, second)
        assert (outs[0] == vector(0, round_) + vector(1, round_)).all()
    later = world.join(2, SHAPE, expected=2, partial=True, first_round=5003)
    world.run(lambda: later.member)
    assert later.round == 5002
    assert first.skip_to(5002)
    for round_ in (5002, 5003):
        sessions = first, second, later
        outs = [begin(world, session, round_, i) for i, session in enumerate(sessions)]
        end(world, *sessions)
        assert (outs[2] == sum(vector(i, round_) for i in range(3))).all()


def test_a_program_begins_where_it_says_below_switches() -> None:
    first = 5000
    tree = Tree(2, 2, partial=True, first_round=first)
    tree.all_there()
    assert [session.round for session in tree.workers] == [first] * 4
    for _ in range(3):
        tree.round_of_all()


# Workers


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(WORKERS) as pool:
        yield pool


def test_workers_name_their_rounds(switch: Where, job: int, pool: ThreadPoolExecutor) -> None:
    """As docs/worker.md has it: some of them in every round, over a switch's socket."""
    program = Program(plan(7), 5000)
    program.places = list(range(WORKERS))

    def run(number: int) -> int:
        summed = 0
        with Worker(
            switch, job, SHAPE.numel, WORKERS, dtype=np.int32, elements_per_segment=PROCESSES,
            partial=True, first_round=program.first, timeout=WAIT,
        ) as worker:  # fmt: skip
            worker.set_threshold(H)
            for step, who in enumerate(program.rounds):
                if number in who:
                    try:
                        out = worker.allreduce(vector(number, step), round_=program.named(step))
                    except RoundGone:  # two rounds further already: told at this very call
                        continue
                    program.check(out, step, H)
                    summed += 1
        return summed

    assert sum(pool.map(run, range(WORKERS))) >= H * (ROUNDS - 2)  # those are the rule


class Deaf(UdpPort):
    """A socket that loses whatever comes before it `hears`."""

    hears = threading.Event()

    def pull(self) -> Iterable[Burst]:
        if self.hears.is_set():
            return super().pull()
        for _ in super().pull():
            pass
        return ()


def workers(controller: Controller) -> int:
    """How many are in its job; none while there is none."""
    with suppress(NoSuchJob):
        return controller.look().contributors
    return 0


def test_a_late_answer_to_a_join(
    switch: Where, job: int, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker does not count from the round that it is told: the others were at another."""
    make = partial(Worker, switch, job, 1, 3, dtype=np.int32, partial=True, timeout=WAIT)
    early = [pool.submit(make) for _ in range(2)]
    with Controller(switch, job) as controller:
        while workers(controller) < len(early):
            time.sleep(0.01)
    monkeypatch.setattr(arguments, "UdpPort", Deaf)
    coming = pool.submit(make)
    first, second = (future.result(WAIT) for future in early)
    first.set_threshold(2)

    def both(one: Worker, other: Worker, step: int) -> list[int]:
        vector = np.array([step + 1], np.int32)
        ways = [pool.submit(worker.allreduce, vector, round_=step) for worker in (one, other)]
        return [int(way.result(WAIT)[0]) for way in ways]

    for step in range(4):
        assert both(first, second, step) == [2 * (step + 1)] * 2
    Deaf.hears.set()
    with coming.result(WAIT) as late, first, second:
        assert late.round != 0
        with pytest.raises(RoundGone, match="name a later round"):
            late.allreduce(np.array([1], np.int32), round_=0)
        assert late.allreduce(np.array([4], np.int32), round_=3) == [8]  # kept; without its own
        assert both(late, first, 4) == [10] * 2


def test_another_run_in_the_same_job(switch: Where, job: int) -> None:
    """The job stands beyond the rounds that the program names first; each call is told."""

    def run(steps: int) -> list[int]:
        gone = []
        with Worker(switch, job, 1, 1, dtype=np.int32, partial=True) as worker:
            for step in range(steps):
                vector = np.array([step], np.int32)
                try:
                    assert worker.allreduce(vector, round_=step) == vector
                except RoundGone:
                    gone.append(step)
        return gone

    assert run(4) == []
    assert run(8) == [0, 1, 2, 3, 4]  # it is told the mend: another job number


def test_an_h_above_the_number_of_workers_is_told(switch: Where, job: int) -> None:
    with Worker(switch, job, 5, 1, timeout=WAIT) as worker:
        worker.set_threshold(3)
        with pytest.raises(AllreduceTimeout, match=r"H is 3, of 1 workers; set_threshold\(0\)"):
            worker.allreduce(np.ones(5, np.float32), timeout=1.0)
        worker.set_threshold(0)


def test_a_gap_is_told_and_not_blamed_on_the_caller(switch: Where, job: int) -> None:
    with Worker(switch, job, 5, 1, partial=True, timeout=WAIT) as worker:
        worker.allreduce(np.ones(5, np.float32), round_=0)
        with pytest.raises(AllreduceTimeout, match=r"round 5 is beyond.* H = 1 workers must"):
            worker.allreduce(np.ones(5, np.float32), round_=5, timeout=2.0)


def test_a_threshold_that_could_mix_rounds_is_refused(
    switch: Where, job: int, pool: ThreadPoolExecutor
) -> None:
    """The naive program: each calls allreduce in the rounds it takes part in, unnamed."""
    made = [
        future.result(WAIT)
        for future in [pool.submit(Worker, switch, job, 5, 3, timeout=WAIT) for _ in range(3)]
    ]
    first, second, _ = made
    for threshold in (1, 2):
        with pytest.raises(ValueError, match=r"3 workers are in the job.*partial=True"):
            first.set_threshold(threshold)
    assert first.set_threshold(3) == 3
    assert first.set_threshold(4) == 4  # whoever is still to come
    assert first.set_threshold(0) == 3
    ones = np.ones(5, np.float32)
    late = pool.submit(first.allreduce, ones, timeout=0.5)
    with pytest.raises(AllreduceTimeout):
        second.allreduce(ones, timeout=0.5)
    assert isinstance(late.exception(WAIT), AllreduceTimeout)
    assert second.set_threshold(2) == 2  # the third does not contribute: go on without it
    assert (second.allreduce(ones) == 2).all()
    for worker in made:
        worker.leave()


def test_a_threshold_does_not_leave_out_who_was_late_once(
    switch: Where, job: int, pool: ThreadPoolExecutor
) -> None:
    """A round waited for the third, and is done: whom it waited for says nothing any more."""
    made = [
        future.result(WAIT)
        for future in [pool.submit(Worker, switch, job, 5, 3, timeout=WAIT) for _ in range(3)]
    ]
    first, *_, third = made
    ones = np.ones(5, np.float32)
    early = [pool.submit(worker.allreduce, ones) for worker in made[:2]]
    limit = time.monotonic() + WAIT
    while not first._session.waiting_for:
        assert time.monotonic() < limit
        time.sleep(POLL)
    assert (third.allreduce(ones) == 3).all()
    assert all((one.result(WAIT) == 3).all() for one in early)
    with pytest.raises(ValueError, match=r"3 workers are in the job.*partial=True"):
        first.set_threshold(2)
    for worker in made:
        worker.leave()


def test_rounds_are_named_where_they_have_to_be(switch: Where, job: int) -> None:
    ones = np.ones(5, np.float32)
    with pytest.raises(ValueError, match="first_round = 7: make the Worker with partial=True"):
        Worker(switch, job, 5, first_round=7)
    with pytest.raises(ValueError, match="first_round = -1: a round is a number"):
        Worker(switch, job, 5, partial=True, first_round=-1)
    with Worker(switch, job, 5) as plain, pytest.raises(ValueError, match="partial=True, or leave"):
        plain.allreduce(ones, round_=0)
    with Worker(switch, job, 5, partial=True) as worker:
        with pytest.raises(ValueError, match="round_ is missing"):
            worker.allreduce(ones)
        least = worker.round
        assert (worker.allreduce(ones, round_=least + 1) == 1).all()
        done = f"this worker has already done round {least + 1}"
        with pytest.raises(RoundGone, match=f"^{done}: name round {least + 2} or a later one$"):
            worker.allreduce(ones, round_=least + 1)
        with pytest.raises(RoundGone, match=f"^{done}, and cannot go back to round {least}: name"):
            worker.allreduce(ones, round_=least)
        with pytest.raises(ValueError, match="a round is a number"):
            worker.allreduce(ones, round_=-1)
