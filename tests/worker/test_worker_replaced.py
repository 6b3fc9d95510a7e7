"""Workers that are killed or leave, those that take their places, and a switch that is killed."""

from __future__ import annotations

import inspect
import socket
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from iswitch.core.jobs.limits import Limits
from tests.conftest import StartSwitch
from tests.support import ROOT
from tests.support.workers import NUMEL, PATIENCE, Make, Where, make, ones, pool, together
from worker_lib import (
    AllreduceTimeout,
    AsynchronousWorker,
    JobReset,
    MemberLost,
    MembershipLost,
    Worker,
)

__all__ = ["make", "pool"]  # fixtures


LONG = 2_000_000  # elements, more than what a worker has under way
STOPPED = """
    import os, sys, time
    import numpy as np
    from worker_lib import Worker
    how, *where = sys.argv[1:]
    switch, LONG = (where[0], int(where[1])), int(where[2])
    worker = Worker(switch, 1, LONG, 3, on_member_lost=how)
    worker.allreduce(np.ones(LONG, np.float32))
    print(worker.rank, flush=True)
    worker.allreduce(np.ones(LONG, np.float32), timeout=1e6)
"""


@pytest.mark.parametrize("how", ["continue", "raise", "wait"])
def test_a_worker_is_killed_in_the_middle_of_a_round(
    pool: ThreadPoolExecutor, start_switch: StartSwitch, how: str
) -> None:
    """The others finish, or all are told whom they wait for, soon after the lease has run out."""
    _, where = start_switch("127.0.0.1:0", "--lease", "5")
    command = [sys.executable, "-c", textwrap.dedent(STOPPED)]
    words = [*command, how, *map(str, (*where, LONG))]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        joining = [
            pool.submit(Worker, where, 1, LONG, 3, on_member_lost=how, timeout=PATIENCE)  # type: ignore[arg-type]
            for _ in range(2)
        ]
        first, second = (future.result(PATIENCE) for future in joining)
        vector = np.ones(LONG, np.float32)
        together(pool, [first, second], [vector] * 2)
        lost = int(process.stdout.readline())
        patience = 9.0 if how == "wait" else PATIENCE
        begun = pool.submit(first.allreduce, vector, timeout=patience)
        time.sleep(0.5)  # the round is under way, without the second's contribution
        process.kill()
        died = time.monotonic()
        other = pool.submit(second.allreduce, vector, timeout=patience)
        if how == "continue":
            for future in (begun, other):
                sums = future.result(PATIENCE)
                assert set(np.unique(sums)) == {2.0, 3.0}  # what had come of it counts
            assert 4 < time.monotonic() - died < 10
        elif how == "raise":
            for future in (begun, other):
                with pytest.raises(
                    MemberLost, match=rf"rank {lost} \(\S+\) is lost: 2 of 3"
                ) as error:
                    future.result(PATIENCE)
                assert error.value.ranks == [lost]
            assert 4 < time.monotonic() - died < 10
            with pytest.raises(MemberLost):  # and again, as long as nobody has come
                first.allreduce(vector)
            first.set_threshold(2)
            both = together(pool, [first, second], [vector] * 2)
            assert {float(out.min()) for out in both} == {2.0}
        else:
            wanted = rf" of .*rank {lost} .* die\? .*\(2 of 3 workers are in job 1 now\)"
            for future in (begun, other):  # the other may have had to stop before some segments
                with pytest.raises(AllreduceTimeout, match=wanted) as late:
                    future.result(PATIENCE)
                assert lost in (late.value.ranks or ())
        first.leave()
        second.leave()


def test_the_cause_is_the_same_while_others_give_up(make: Make, pool: ThreadPoolExecutor) -> None:
    first, second, third = make(3)
    together(pool, [first, second, third], [ones()] * 3)
    begun = pool.submit(first.allreduce, ones(), timeout=0.5)
    other = pool.submit(second.allreduce, ones(), timeout=1.5)
    cause = (
        rf"waiting for the contribution of rank {third.rank} \(\S+\): rank {third.rank} is in the "
        r"job, last heard .* may only be late"
    )
    with pytest.raises(AllreduceTimeout, match=f"{cause}$"):
        begun.result(PATIENCE)
    first.leave()
    with pytest.raises(
        AllreduceTimeout,
        match=cause + rf"; rank {first.rank} is missing: .* another in its place \(2 of 3 workers",
    ):
        other.result(PATIENCE)


def test_a_worker_that_leaves_is_missed_only_if_it_is_needed(
    make: Make, pool: ThreadPoolExecutor
) -> None:
    first, second, third = make(3, on_member_lost="raise")
    together(pool, [first, second, third], [ones()] * 3)
    waiting = pool.submit(first.allreduce, ones())
    named = rf"rank {third.rank} is lost \(it has left\): 2 of 3"
    third.leave()
    with pytest.raises(MemberLost, match=named) as error:
        waiting.result(PATIENCE)
    assert (error.value.ranks, error.value.left) == ([], [third.rank])
    assert error.value.round == first.round


def test_a_run_that_was_killed_and_started_again_at_once(
    pool: ThreadPoolExecutor, start_switch: StartSwitch
) -> None:
    """The second run waits until the leases of the first have run out."""
    _, where = start_switch("127.0.0.1:0", "--lease", "5")

    def run(_: int) -> Worker:
        worker = Worker(where, 1, NUMEL, 2, timeout=PATIENCE)
        assert (worker.allreduce(ones()) == 2).all()
        return worker

    for worker in pool.map(run, range(2)):  # as if killed
        worker._left.set()
        worker._port.close()
    for worker in pool.map(run, range(2)):
        worker.leave()


def test_by_default_the_others_wait_for_another_to_take_a_place() -> None:
    """A survivor's round begins before the lease does, and ends long after it."""
    for kind in (Worker, AsynchronousWorker):
        assert inspect.signature(kind).parameters["timeout"].default == 2 * Limits().lease


def test_another_takes_the_place_of_one_that_was_killed(
    pool: ThreadPoolExecutor, start_switch: StartSwitch
) -> None:
    """As with the defaults: without `bind`, and a timeout of twice the lease."""
    lease = 5.0
    _, where = start_switch("127.0.0.1:0", "--lease", f"{lease:g}")
    join = partial(Worker, where, 1, NUMEL, 3, timeout=2 * lease)
    workers = list(pool.map(lambda _: join(), range(3)))
    together(pool, workers, [ones()] * 3)
    killed = workers.pop()
    killed._left.set()
    killed._port.close()
    waiting = [pool.submit(worker.allreduce, ones()) for worker in workers]
    time.sleep(1)
    another = pool.submit(join)
    for one in waiting:
        with pytest.raises(JobReset):
            one.result(PATIENCE)
    workers.append(another.result(PATIENCE))
    assert all((out == 3).all() for out in together(pool, workers, [ones()] * 3))
    for worker in workers:
        worker.leave()


def test_a_worker_that_computes_for_long_stays_a_member(
    pool: ThreadPoolExecutor, start_switch: StartSwitch
) -> None:
    """Between calls its own thread keeps the lease; one that is stopped loses it."""
    _, where = start_switch("127.0.0.1:0", "--lease", "5")
    first, second = pool.map(
        lambda _: Worker(where, 1, NUMEL, 2, on_member_lost="continue", timeout=PATIENCE), range(2)
    )
    second._left.set()  # its thread ends: nobody speaks for it any more
    time.sleep(6.5)
    second._left.clear()
    assert (first.allreduce(ones()) == 1).all()
    with pytest.raises(MembershipLost, match="round 0 went on without it"):
        second.allreduce(ones())
    assert (first.stats()["rejoins"], second.stats()["rejoins"]) == (0, 1)
    outs = together(pool, [first, second], [ones(), ones()])
    assert all((out == 2).all() for out in outs)
    first.leave()
    second.leave()


def test_a_new_process_at_the_same_place(switch: Where, job: int) -> None:
    """Even within a second nothing of the old one counts as the new one's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        place = probe.getsockname()
    old = Worker(switch, job, NUMEL, 1, bind=place, timeout=PATIENCE)
    old.set_threshold(2)
    with pytest.raises(AllreduceTimeout):
        old.allreduce(ones(100), timeout=0.1)
    old._left.set()  # as if killed
    old._port.close()
    with Worker(switch, job, NUMEL, 1, bind=place, timeout=PATIENCE) as new:
        new.set_threshold(0)
        assert (new.allreduce(ones()) == 1).all()


def test_requests_after_a_restart(start_switch: StartSwitch) -> None:
    """A request that meets a switch which forgot the worker is made again by itself."""
    process, where = start_switch()
    worker = Worker(where, 1, NUMEL, 1, timeout=PATIENCE)
    process.kill()
    process.wait()
    start_switch("{}:{}".format(*where))
    assert worker.set_threshold(3) == 3
    assert worker.stats()["rejoins"] == 1
    worker.leave()


def test_switch_killed_and_restarted(pool: ThreadPoolExecutor, start_switch: StartSwitch) -> None:
    """Twice in mid-training; every sum of every round is exact."""
    numel, count, rounds = 20_000, 3, 60
    process, where = start_switch()
    listen = "{}:{}".format(*where)
    workers: list[Worker] = []
    try:
        joining = [
            pool.submit(Worker, where, 7, numel, count, timeout=PATIENCE) for _ in range(count)
        ]
        workers = [j.result(PATIENCE) for j in joining]

        base = np.arange(numel, dtype=np.int32) % 1000
        done = dict.fromkeys(workers, 0)

        def train(number: int) -> None:
            worker = workers[number]
            for round_ in range(rounds):
                assert worker.round == round_
                out = worker.allreduce((base + (number + 1) * round_).astype(np.float32))
                assert (out == count * base + 6 * round_).all(), round_  # 6 = 1 + 2 + 3
                done[worker] = round_ + 1

        training = [pool.submit(train, number) for number in range(count)]
        for after in (10, 35):
            end = time.monotonic() + PATIENCE
            while min(done.values()) < after:
                assert time.monotonic() < end, done
            process.kill()
            process.wait(PATIENCE)
            process.stdout.close()  # type: ignore[union-attr]
            process, _ = start_switch(listen)
        for future in training:
            future.result(PATIENCE)
    finally:
        for worker in workers:
            worker.leave()
        process.kill()
        process.communicate()
    assert all(worker.stats()["rejoins"] >= 1 for worker in workers)
