"""What calls of a CollectiveWorker take and refuse, and how they fail and are called again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.conftest import StartSwitch
from tests.support.team import CAPACITY, Make, Team, pool, team
from tests.support.workers import PATIENCE, Where
from worker_lib import (
    AllreduceTimeout,
    CollectiveWorker,
    JobReset,
    MemberLost,
    SizesDiffer,
    TooFewWorkers,
    WorkerError,
)

__all__ = ["pool", "team"]  # fixtures


def vectors(count: int, *shape: int) -> list[Any]:
    """Vectors of whole numbers, no two alike."""
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 1000
    return [whole + rank for rank in range(count)]


# Arguments and results


def test_operations(team: Make) -> None:
    given = vectors(3, 3, 50)
    for op, right in (
        ("max", given[2]),
        ("min", given[0]),
        ("prod", given[0] * given[1] * given[2]),
    ):
        got = team(3, "reduce_scatter", op=op).call("reduce_scatter", given)
        assert all((got[rank] == right[rank]).all() for rank in range(3)), op


def test_pairs(team: Make) -> None:
    """Of values and their indices; the others copy them as they are."""
    pair = np.dtype([("value", np.float32), ("index", np.int32)])
    given = [np.array([(r * i % 5, r) for i in range(6)], pair) for r in (1, 2)]
    best = [max(a, b, key=lambda p: (p["value"], -p["index"])) for a, b in zip(*given, strict=True)]
    got = team(2, "reduce_scatter", dtype=pair, op="maxloc").call("reduce_scatter", given)
    assert [one.tolist() for part in got for one in part] == [one.tolist() for one in best]
    for got in team(2, "all_gather", dtype=pair).call("all_gather", given):
        assert (got == np.array(given)).all()


def test_shapes_and_out(team: Make) -> None:
    """Blocks of any shape; into arrays of the caller, also parts of what it gives."""
    these = team(2, "reduce_scatter")
    given = vectors(2, 2, 5, 7)
    total = given[0] + given[1]
    for rank, got in enumerate(these.call("reduce_scatter", given)):
        assert got.shape == (5, 7)
        assert (got == total[rank]).all()
    given = vectors(2, 2, 3 * CAPACITY)
    total = given[0] + given[1]
    outs = [given[rank][rank] for rank in range(2)]  # in place, in several rounds
    got = these.call("reduce_scatter", given, outs)
    assert all(got[rank] is outs[rank] and (outs[rank] == total[rank]).all() for rank in range(2))
    every = team(2, "all_to_all")
    given = vectors(2, 2, 3 * CAPACITY)
    right = [np.array([vector[rank] for vector in given]) for rank in range(2)]
    every.call("all_to_all", given, given)
    assert all((given[rank] == right[rank]).all() for rank in range(2))
    given = vectors(2, 2 * 2 * CAPACITY)
    shifted = [np.zeros(len(vector) + 8, np.float32) for vector in given]
    for vector, room in zip(given, shifted, strict=True):
        room[8:] = vector
    every.call("all_to_all", [r[8:] for r in shifted], [r[:-8] for r in shifted])
    for rank, room in enumerate(shifted):
        blocks = [vector.reshape(2, -1)[rank] for vector in given]
        assert (room[:-8].reshape(2, -1) == np.array(blocks)).all()


def test_tensors(team: Make) -> None:
    torch = pytest.importorskip("torch")
    these = team(2, "all_gather", dtype=ml_dtypes.bfloat16)
    given = [torch.full((2, 3), float(rank + 1), dtype=torch.bfloat16) for rank in range(2)]
    for got in these.call("all_gather", given):
        assert got.dtype is torch.bfloat16
        assert got.tolist() == [[[1.0] * 3] * 2, [[2.0] * 3] * 2]
    these.call("broadcast", given, root=1)
    assert (given[0] == 2).all()
    blocks = team(2, "all_to_all", dtype=ml_dtypes.bfloat16)
    got = blocks.call("scatter", [None, given[1]], root=1, out=torch.zeros(3, dtype=torch.bfloat16))
    assert all(one.tolist() == [2.0] * 3 for one in got)


def test_wrong_arguments(team: Make, switch: Where, job: int) -> None:
    these = team(2, "all_to_all")
    worker = these.workers[0]
    with pytest.raises(ValueError, match="collective='reduce_scatter'"):
        worker.reduce_scatter(np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="collective='all_gather'"):
        worker.broadcast(np.zeros(4, np.float32), 0)
    with pytest.raises(ValueError, match="no 2 equal blocks"):
        worker.all_to_all(np.zeros(5, np.float32))
    with pytest.raises(TypeError, match="float64"):
        worker.all_to_all(np.zeros(4))
    with pytest.raises(ValueError, match="counts add up to 5"):
        worker.all_to_all(np.zeros(4, np.float32), counts=([2, 3], [0, 0]))
    with pytest.raises(ValueError, match="3 numbers, for 2 ranks"):
        worker.all_to_all(np.zeros(4, np.float32), counts=([2, 1, 1], [0, 0]))
    with pytest.raises(ValueError, match=r"ranks are 0..1"):
        worker.gather(np.zeros(4, np.float32), 2)
    with pytest.raises(ValueError, match="counts say 3 of rank 0"):
        worker.gather(np.zeros(4, np.float32), 0, counts=[3, 4])
    with pytest.raises(ValueError, match="only root"):
        worker.scatter(np.zeros(4, np.float32), 1, counts=2)
    with pytest.raises(ValueError, match="counts is missing"):
        worker.scatter(None, 1)
    with pytest.raises(ValueError, match=r"the result has 4; pass one of 4$"):
        worker.all_to_all(np.zeros(4, np.float32), out=np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="pass one of reduce_scatter"):
        CollectiveWorker(switch, job, "alltoall", 10, 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'wait' or 'raise'"):
        CollectiveWorker(switch, job, "all_gather", 10, 2, on_member_lost="continue")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_workers"):
        CollectiveWorker(switch, job, "all_gather", 10, None)  # type: ignore[arg-type]
    with pytest.raises(TooFewWorkers, match="only 1 of 2"):
        CollectiveWorker(switch, job, "all_gather", 10, 2, timeout=0.3)
    assert not hasattr(worker, "set_threshold")
    stats = worker.stats()
    assert stats["calls"] == 0
    assert stats["rank"] == worker.rank == 0


def test_large_calls_begin_with_a_small_round(team: Make) -> None:
    """Where others' blocks come whether a rank is in its call or not."""
    for collective, rounds in (("reduce_scatter", 1), ("all_gather", 2), ("all_to_all", 2)):
        these = team(2, collective, numel=20_000)
        began = these.workers[0].round
        these.call(collective, vectors(2, 2, 2000))
        assert these.workers[0].round == began + 1
        these.call(collective, vectors(2, 2, 10_000))
        assert these.workers[0].round == began + 1 + rounds


# Failures


def test_sizes_that_differ(team: Make) -> None:
    """The error names the mend, and the next call works."""
    these = team(2, "all_gather")
    calls = [
        these.alone(rank, "all_gather", np.ones(400 + 400 * rank, np.float32)) for rank in (0, 1)
    ]
    for call in calls:
        with pytest.raises(SizesDiffer, match="vectors of equal size"):
            call.result(PATIENCE)
    got = these.call("all_gather", vectors(2, 700))
    assert (got[0] == np.array(vectors(2, 700))).all()


def test_called_again_after_a_timeout(team: Make) -> None:
    """It goes on with the round in which it failed, with what came before."""
    these = team(2, "all_gather")
    given = vectors(2, 3 * CAPACITY)
    first = these.alone(0, "all_gather", given[0], timeout=0.3)
    with pytest.raises(AllreduceTimeout, match="rank 1") as timeout:
        first.result(PATIENCE)
    assert timeout.value.ranks == [1]
    got = these.call("all_gather", given)
    assert all((one == np.array(given)).all() for one in got)


def test_who_waits_is_not_awaited(team: Make) -> None:
    """Of a large call a rank sends most when the others have begun: it lacks none of its own."""
    these = team(3, "all_gather", numel=20_000)
    these.call("all_gather", vectors(3, 20_000))
    these.workers[0].leave()
    these.workers[2].leave()
    alone = these.alone(1, "all_gather", np.ones(20_000, np.float32), timeout=1)
    with pytest.raises(AllreduceTimeout, match="only 1 of 3 workers are in job") as timeout:
        alone.result(PATIENCE)
    assert timeout.value.awaited == []


def test_only_missing_ranks_are_named(
    start_switch: StartSwitch, pool: ThreadPoolExecutor, jobs: Iterator[int]
) -> None:
    """In a tree, though other ranks' blocks lie between what is missing, unused in this round."""
    root = start_switch("127.0.0.1:0")[1]
    racks = [start_switch("127.0.0.1:0", "--parent", "{}:{}".format(*root))[1] for _ in range(2)]
    for collective, method, shape in (
        ("all_gather", "all_gather", (60_000,)),
        ("all_to_all", "all_to_all", (4, 60_000)),
        ("reduce_scatter", "reduce_scatter", (4, 60_000)),
        ("reduce_scatter", "reduce", (60_000,)),
    ):
        options = {"job": next(jobs), "collective": collective, "numel": 60_000, "num_workers": 4}
        joining = [
            pool.submit(
                CollectiveWorker,
                racks[rank // 2],
                rank=rank,
                timeout=PATIENCE,
                **options,  # type: ignore[arg-type]
            )
            for rank in range(4)
        ]
        these = Team(pool, [one.result(PATIENCE) for one in joining])
        given = np.ones(shape, np.float32), *[2] * (method == "reduce")  # the root waits, too
        calls = [these.alone(rank, method, *given, timeout=1.0) for rank in (0, 2)]
        told = r"not done within (1|0\.\d{1,3}) s.* rank 1 "  # less what it took to begin
        for call in calls:
            with pytest.raises(AllreduceTimeout, match=told) as timeout:
                call.result(PATIENCE)
            assert timeout.value.ranks == [1, 3], method
        for worker in these.workers:
            worker.leave()


def fail_in_the_second_round(
    these: Team, patch: pytest.MonkeyPatch, given: Any, error: BaseException, **outs: Any
) -> None:
    """Have worker 1 fail in the second round of an all_gather, so that worker 0 times out."""
    late = these.workers[1]
    exchange, rounds = late._membership.exchange, []

    def once(*arguments: Any) -> int:
        rounds.append(arguments)
        if len(rounds) == 2:
            raise error
        return exchange(*arguments)

    with patch.context() as only:
        only.setattr(late._membership, "exchange", once)
        calls = [
            these.alone(0, "all_gather", given[0], timeout=1.0, **outs),
            these.alone(1, "all_gather", given[1]),
        ]
        with pytest.raises(AllreduceTimeout):
            calls[0].result(PATIENCE)
        with pytest.raises(type(error)):
            calls[1].result(PATIENCE)


@pytest.mark.parametrize(
    "error",
    [AllreduceTimeout("late on purpose", 0, [], None), KeyboardInterrupt(), MemoryError()],
    ids=lambda error: type(error).__name__,
)
def test_called_again_in_a_later_round(
    team: Make, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """It goes on in the second round of two, whatever ended the call there."""
    these = team(2, "all_gather")
    given = vectors(2, 2 * CAPACITY)
    out = np.zeros((2, 2 * CAPACITY), np.float32)
    fail_in_the_second_round(these, monkeypatch, given, error, out=out)
    out[:] = 7  # the caller's own: what came before is kept elsewhere
    waiting = these.alone(0, "all_gather", given[0], out=out)
    assert (these.alone(1, "all_gather", given[1]).result(PATIENCE) == np.array(given)).all()
    assert (waiting.result(PATIENCE) == np.array(given)).all()


@pytest.mark.parametrize(("rounds", "where"), [(1, "behind"), (2, "behind"), (2, "between")])
def test_called_again_after_a_round_that_was_over(
    team: Make, monkeypatch: pytest.MonkeyPatch, rounds: int, where: str
) -> None:
    """Ctrl-C comes before the call has noted that its first round is over, or between rounds."""
    these = team(2, "all_gather")
    given = vectors(2, rounds * CAPACITY)
    late = these.workers[1]
    exchange, room = late._membership.exchange, late._room

    def interrupted(*arguments: Any) -> int:
        exchange(*arguments)
        raise KeyboardInterrupt

    def once(start: int) -> int:
        if start:
            raise KeyboardInterrupt
        return room(start)

    waiting = these.alone(0, "all_gather", given[0])
    with monkeypatch.context() as only:
        if where == "behind":
            only.setattr(late._membership, "exchange", interrupted)
        else:
            only.setattr(late, "_room", once)
        with pytest.raises(KeyboardInterrupt):
            these.alone(1, "all_gather", given[1]).result(PATIENCE)
    assert (these.alone(1, "all_gather", given[1]).result(PATIENCE) == np.array(given)).all()
    assert (waiting.result(PATIENCE) == np.array(given)).all()
    for got in these.call("all_gather", given):
        assert (got == np.array(given)).all()


def test_no_other_call_follows_a_failed_one(team: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would meet the old one of the others; after a Reset, all begin anew."""
    these = team(2, "all_gather")
    given = vectors(2, 2 * CAPACITY)
    error = AllreduceTimeout("late on purpose", 0, [], None)
    fail_in_the_second_round(these, monkeypatch, given, error)
    with pytest.raises(ValueError, match="make it again with blocks of those sizes, or reset"):
        these.workers[0].all_gather(given[0][:7])
    these.workers[0].reset()
    with pytest.raises(JobReset, match="the call under way is void"):
        these.alone(1, "all_gather", given[1]).result(PATIENCE)
    given = vectors(2, 2 * CAPACITY + 1)
    waiting = these.alone(0, "all_gather", given[0])
    got = these.alone(1, "all_gather", given[1]).result(PATIENCE)
    assert (got == np.array(given)).all()
    assert (waiting.result(PATIENCE) == np.array(given)).all()


def test_reset(team: Make) -> None:
    """A call under way fails; then all begin anew, from the first round of a call."""
    these = team(2, "reduce_scatter")
    waiting = these.alone(0, "reduce_scatter", np.ones(200, np.float32))
    these.workers[1].reset()
    with pytest.raises(JobReset, match="the call under way is void"):
        waiting.result(PATIENCE)
    given = vectors(2, 2, 300)
    got = these.call("reduce_scatter", given)
    assert (got[1] == given[0][1] + given[1][1]).all()


def test_member_lost(team: Make) -> None:
    these = team(3, "all_to_all", on_member_lost="raise")
    these.workers[2].leave()
    waiting = [these.alone(rank, "all_to_all", np.ones(9, np.float32)) for rank in (0, 1)]
    for call in waiting:
        with pytest.raises(MemberLost, match="2 of 3") as lost:
            call.result(PATIENCE)
        assert "set_threshold" not in str(lost.value)
    with pytest.raises(WorkerError, match="has left its job"):
        these.workers[2].all_to_all(np.ones(9, np.float32))


# Losses and restarts


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather", "all_to_all"])
def test_with_a_tenth_of_all_packets_lost(
    team: Make, start_switch: StartSwitch, collective: Any
) -> None:
    where = start_switch("127.0.0.1:0", "--impair", "loss=10%,seed=3")[1]
    these = team(3, collective, switch=where, timeout=PATIENCE)
    for size in (0, 1, 2000):
        given = vectors(3, 3, size)
        check(these, collective, given)


def check(these: Team, collective: str, given: list[Any]) -> None:
    """Call the collective's method of its name, and look at the results."""
    right = {
        "reduce_scatter": list(np.sum(given, 0)),
        "all_gather": [np.array(given)] * len(given),
        "all_to_all": [np.array([vector[rank] for vector in given]) for rank in range(len(given))],
    }[collective]
    for got, want in zip(these.call(collective, given), right, strict=True):
        assert (got == want).all()


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather", "all_to_all"])
def test_switch_restarted(team: Make, start_switch: StartSwitch, collective: Any) -> None:
    process, where = start_switch()
    these = team(3, collective, switch=where)
    given = vectors(3, 3, 2 * CAPACITY)
    check(these, collective, given)
    waiting = [these.alone(rank, collective, given[rank]) for rank in (0, 1)]
    process.kill()
    process.wait()
    start_switch(f"{where[0]}:{where[1]}")
    last = these.alone(2, collective, given[2])
    for call in (*waiting, last):
        call.result(PATIENCE)
    check(these, collective, given)
