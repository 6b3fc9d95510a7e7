"""Random histories of partial workers, and the oracle that judges them.

The workers of a star come late, lose the answers to their Joins, are killed and started again, at
their address or at another, while the switch is restarted and reset. Every element of a sum tells
which process contributed, and to which round of the program. The oracle:

- a sum holds contributions to the round that its worker named, each once, of those who take part in
  it, and H or more as long as the switch knows H;
- every call that is begun ends with a sum, or is told why not.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np

from iswitch.core.format.wire import ROUND_MASK, Action, DType, Shape, Status, Threshold
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.support.world import Faults, World, worker_address
from worker_lib.protocol.session import Answered, Dropped, Gone, Session, WasReset

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


def end(world: World, *sessions: Session) -> None:
    """Wait for the sums of sessions."""
    world.run(lambda: all(s.transfer is not None and s.transfer.done for s in sessions))
    for session in sessions:
        session.finish()
