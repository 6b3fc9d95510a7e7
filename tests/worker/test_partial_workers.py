"""Real partial workers: what they are told, and what is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from iswitch.core.format.packets import Burst
from iswitch.ports.rings import channel
from iswitch.ports.rings.channel import LocalPort
from iswitch.ports.udp import UdpPort
from tests.conftest import Where
from tests.support.partial import (
    POLL,
    PROCESSES,
    ROUNDS,
    SHAPE,
    WAIT,
    WORKERS,
    H,
    Program,
    plan,
    vector,
)
from worker_lib import AllreduceTimeout, RoundGone, Worker
from worker_lib.command_errors import NoSuchJob
from worker_lib.controller import Controller


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

    def pull(self) -> Iterator[Burst]:
        for burst in super().pull():
            if self.hears.is_set():
                yield burst


class DeafLocal(Deaf, LocalPort):
    """One that may have rings."""


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
    monkeypatch.setattr(channel, "LocalPort", DeafLocal)
    monkeypatch.setattr(channel, "UdpPort", Deaf)
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
        with pytest.raises(AllreduceTimeout, match=r"H is 3, of 1 worker; set_threshold\(0\)"):
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


def test_a_round_is_received_without_a_contribution(
    switch: Where, job: int, pool: ThreadPoolExecutor
) -> None:
    """Of some segments; before it begins, when it is over, and when it is kept no longer."""
    make = partial(Worker, switch, job, 1000, 2, partial=True, timeout=WAIT)
    first, second = (one.result(WAIT) for one in [pool.submit(make) for _ in range(2)])
    first.set_threshold(1)
    with first, second:
        vectors = [np.full(1000, step, np.float32) for step in range(6)]
        waiting = pool.submit(second.receive, np.empty(1000, np.float32), 0)
        first.allreduce(vectors[0], round_=0)
        assert (waiting.result(WAIT) == 0).all()
        assert second.allreduces == 0
        first.allreduce(vectors[1], round_=1)
        assert first.newest_round() == 1
        out = np.empty((10, 100), np.float32)
        assert second.receive(out, 1) is out
        assert (out == 1).all()
        with pytest.raises(AllreduceTimeout, match=r"round 2 has not begun within 0\.2 s"):
            second.receive(out, 2, timeout=0.2)
        for step in (2, 3, 4):
            first.allreduce(vectors[step], round_=step)
        newest = second.newest_round()  # behind the sums, which nobody waits for
        with pytest.raises(RoundGone):
            second.receive(out, 2)
        assert newest == 4
        assert (second.receive(out, newest) == 4).all()
        assert (second.allreduce(vectors[5], round_=5) == 5).all()
        assert second.stats()["sent"] == first.shape.segments
        with pytest.raises(ValueError, match="out has 999 elements"):
            second.receive(out.reshape(-1)[:999], 6)
        assert [one.rank for one in first.members()] == [0, 1]
        assert not first.has_parent()
    with Worker(switch, job, 5) as plain, pytest.raises(ValueError, match="partial=True, or leave"):
        plain.receive(np.empty(5, np.float32), 0)
