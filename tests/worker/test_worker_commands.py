"""Commands of workers: thresholds, forced broadcasts, halts, resets, leaving."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from iswitch.core.format.wire import Ack, Action, Status
from tests.support.workers import NUMEL, PATIENCE, Make, Where, make, ones, pool, together
from worker_lib import (
    AllreduceTimeout,
    AsynchronousWorker,
    JobHalted,
    JobReset,
    Refused,
    Worker,
    WorkerError,
    telling,
)

__all__ = ["make", "pool"]  # fixtures


def test_set_threshold(make: Make) -> None:
    first, second = make(2, partial=True)
    assert first.set_threshold(1) == 1
    assert (first.allreduce(ones(5), round_=first.round) == 5).all()
    assert (second.allreduce(ones(9), round_=second.round) == 5).all()  # late
    assert second.set_threshold(0) == 2


def test_a_threshold_above_the_number_of_workers_is_warned_of(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = make(2)
    assert first.set_threshold(2) == 2
    assert not caplog.messages
    assert first.set_threshold(5) == 5
    (said,) = caplog.messages
    assert said == (
        "H is 5: with 2 workers, nothing completes in a synchronous job until 5 are there; "
        "start them, or set a lower H"
    )


def test_force_broadcast(make: Make, pool: ThreadPoolExecutor) -> None:
    first, second = make(2)
    assert second.force_broadcast() == 0
    waiting = pool.submit(first.allreduce, ones(3))
    end = time.monotonic() + PATIENCE
    while second.force_broadcast(0, 1) == 0:
        assert time.monotonic() < end
    assert second.force_broadcast(1) in (0, 1)  # the rest, unless it has yet to come
    while not waiting.done():
        second.force_broadcast(1, 3, 0)
        assert time.monotonic() < end
    assert (waiting.result(PATIENCE) == 3).all()
    assert (second.allreduce(ones(4)) == 3).all()


def test_halt_and_reset(make: Make, pool: ThreadPoolExecutor) -> None:
    workers = make(3)
    first, second, third = workers
    together(pool, workers, [ones()] * 3)
    third.halt()
    with pytest.raises(JobHalted, match=r"the job is halted; reset\(\) resumes it"):
        first.allreduce(ones(), timeout=0.2)
    with pytest.raises(Refused, match=r"reset\(\) resumes it") as raised:
        second.set_threshold(0)
    assert raised.value.status is Status.HALTED
    waiting = pool.submit(second.allreduce, ones())
    round_ = third.reset()
    assert third.round == round_
    for call in (waiting.result, lambda _: first.allreduce(ones())):
        with pytest.raises(JobReset, match=f"goes on from round {round_}") as reset:
            call(PATIENCE)
        assert reset.value.round == round_
    for value in range(3):
        outs = together(pool, workers, [ones(value)] * 3)
        assert all((out == 3 * value).all() for out in outs)
    assert {worker.round for worker in workers} == {round_ + 3}


def test_who_resets_is_not_told_of_it(make: Make) -> None:
    """However Ack and relay fall: the next allreduce goes through."""
    (alone,) = make(1)
    for i in range(100):
        round_ = alone.reset()
        assert alone.round == round_
        assert (alone.allreduce(ones(i)) == i).all()


def test_leave(make: Make, pool: ThreadPoolExecutor) -> None:
    first, second, third = make(3, on_member_lost="continue")
    waiting = [pool.submit(w.allreduce, ones(2)) for w in (first, second)]
    third.leave()  # what waited only for it completes
    assert all((w.result(PATIENCE) == 4).all() for w in waiting)
    third.leave()
    third.close()
    for use in (lambda: third.allreduce(ones()), third.halt, third.reset):
        with pytest.raises(WorkerError, match="has left its job; make a new one"):
            use()
    outs = together(pool, [first, second], [ones(), ones()])
    assert all((out == 2).all() for out in outs)


def test_no_sum_of_fewer(
    switch: Where, make: Make, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With on_member_lost="wait" who is left waits, and is told who is there."""
    first, second, third = make(3)
    waiting = [pool.submit(w.allreduce, ones(2), timeout=0.5) for w in (first, second)]
    named = (
        rf"only 2 of 3 workers are in job .*: rank {third.rank} is missing: has it .*start another"
    )
    third.leave()
    for future in waiting:
        with pytest.raises(AllreduceTimeout, match=named):
            future.result(PATIENCE)
    again = Worker(switch, first.job, NUMEL, 3, timeout=PATIENCE)
    for worker in (first, second):
        with pytest.raises(JobReset):
            worker.allreduce(ones())
    assert {w.round for w in (first, second, again)} == {again.round}
    outs = together(pool, [first, second, again], [ones()] * 3)
    assert all((out == 3).all() for out in outs)
    with pytest.raises(
        Refused, match=r"it has its 3 workers already; the places .*--lease, 30 s by default"
    ) as refused:
        Worker(switch, first.job, NUMEL, 3, timeout=0.1)
    assert refused.value.taken
    told = Mock(side_effect=KeyboardInterrupt)  # at once, whatever the timeout
    monkeypatch.setattr("worker_lib.telling.of_places", told)
    with pytest.raises(KeyboardInterrupt):
        Worker(switch, first.job, NUMEL, 4, timeout=PATIENCE)
    said, seconds = told.call_args.args
    assert "This worker's num_workers (WORLD_SIZE) is 4, theirs 3, so it has no place" in str(said)
    assert 0 < seconds <= PATIENCE
    again.leave()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_who_waits_for_its_rank_says_so(
    switch: Where, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    """A process that was killed and is started again by hand waits for its own lease."""
    weights = np.zeros(1, np.float32)
    update = {"update": lambda *_: None, "state": [weights]} if asynchronous else {}
    kind: Any = AsynchronousWorker if asynchronous else Worker
    job = 40 + asynchronous
    told = Mock(side_effect=KeyboardInterrupt)  # at once, whatever the timeout
    with kind(switch, job, NUMEL, 1, rank=0, **update) as holder:
        monkeypatch.setattr("worker_lib.telling.of_rank", told)
        monkeypatch.setattr("worker_lib.telling.SILENT", 0.0)
        with pytest.raises(KeyboardInterrupt):
            kind(switch, job, NUMEL, 1, rank=0, timeout=PATIENCE, **update)
        number, ack, _, seconds = told.call_args.args
        assert (number, ack.rank) == (job, 0)
        assert 0 < seconds <= PATIENCE
        assert holder.rank == 0


def test_a_rank_that_is_waited_for_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    ack = Ack(Action.JOIN, rank=1, threshold=0x0A000002, round=40001, contributors=1500)
    telling.of_rank(7, ack, {"10.0.0.2": "h2"}, 58.4)
    (said,) = caplog.messages
    assert said.startswith(
        "job 7: another worker has the rank asked for (rank 1 is that of the worker at h2, "
        "10.0.0.2:40001, heard 1.5 s ago); if it was killed, its rank is free when its lease has "
    )
    assert said.endswith("; asking again for 58 s, the rest of the timeout")


def test_a_full_job_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    telling.of_places(ValueError("it has its 3 workers already"), 58.4)
    said = "it has its 3 workers already; asking again for 58 s, the rest of the timeout"
    assert caplog.messages == [said]
