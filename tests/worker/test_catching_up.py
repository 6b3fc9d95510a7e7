"""Workers that are not equally far go on from the state of the furthest, to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from worker_lib import JobReset, Worker, catch_up

PATIENCE = 20.0
Where = tuple[str, int]
Make = Callable[..., list[Worker]]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def make(switch: Where, job: int, pool: ThreadPoolExecutor) -> Iterator[Make]:
    made: list[Worker] = []

    def make_workers(count: int, numel: int, **kwargs: object) -> list[Worker]:
        def one(_: int) -> Worker:
            return Worker(switch, job, numel, count, timeout=PATIENCE, **kwargs)  # type: ignore[arg-type]

        made.extend(pool.map(one, range(count)))
        return sorted(made, key=lambda worker: worker.rank)

    yield make_workers
    for worker in made:
        worker.leave()


def state(seed: int) -> list[np.ndarray]:
    """Arrays of several types, 13,081 bytes, with values that sums do not keep."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((40, 50)).astype(np.float32)
    weights[0, :5] = -0.0, np.nan, np.inf, 1e-45, -np.inf
    weights.view(np.uint32)[1, 1] = 0x7FA00001  # a NaN that adding would make quiet
    return [weights, rng.standard_normal(635), np.array(-seed, np.int8)]


def bits(arrays: list[np.ndarray]) -> bytes:
    return b"".join(array.tobytes() for array in arrays)


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32])
def test_all_have_what_the_furthest_had(
    make: Make, pool: ThreadPoolExecutor, dtype: type, op: str
) -> None:
    workers = make(3, 500, dtype=dtype, op=op)
    for steps, source in [((0, 7, 0), 1), ((70_000, 70_000, 69_999), 0), ((0, 1, 2**40), 2)]:
        states = [state(seed) for seed in (1, 2, 3)]
        wanted = bits(states[source])
        found = list(pool.map(catch_up, workers, states, steps))
        assert found == [max(steps)] * 3
        assert [bits(arrays) for arrays in states] == [wanted] * 3


@pytest.mark.parametrize("numel", [1, 7, 100_000])
def test_vectors_of_any_length(make: Make, pool: ThreadPoolExecutor, numel: int) -> None:
    workers = make(2, numel)
    arrays = [np.arange(5.0), np.arange(5.0) + 3]
    assert list(pool.map(catch_up, workers, ([arrays[0]], [arrays[1]]), (3, 4))) == [4, 4]
    assert (arrays[0] == np.arange(5.0) + 3).all()


def test_nothing_is_copied_among_equals(make: Make, pool: ThreadPoolExecutor) -> None:
    workers = make(2, 1000)
    states = [state(1), state(2)]
    before = [bits(arrays) for arrays in states]
    rounds = workers[0].round
    assert list(pool.map(catch_up, workers, states, (5, 5))) == [5, 5]
    assert [bits(arrays) for arrays in states] == before
    assert workers[0].round == rounds + 1


def test_ranks_of_one_s_own(make: Make, pool: ThreadPoolExecutor) -> None:
    workers = make(2, 1000)
    assert list(pool.map(catch_up, workers, ([], []), (5, 6), (63, 17))) == [6, 6]
    same = [pool.submit(catch_up, worker, [], 5, 9) for worker in workers]
    for future in same:
        with pytest.raises(ValueError, match="two workers pass the same rank; leave it out"):
            future.result(PATIENCE)


def test_other_sizes(make: Make, pool: ThreadPoolExecutor) -> None:
    workers = make(2, 1000)
    arrays = [[np.zeros(3)], [np.zeros(4)]]
    for future in [
        pool.submit(catch_up, *with_) for with_ in zip(workers, arrays, (1, 2), strict=True)
    ]:
        with pytest.raises(ValueError, match=r"as many bytes in all workers; .* 24 at rank 0, 32"):
            future.result(PATIENCE)


@pytest.mark.parametrize(
    ("arrays", "step", "rank", "message"),
    [
        ([np.zeros((4, 4)).T[1:]], 0, 0, "C-contiguous"),
        ([np.frombuffer(b"12345678")], 0, 0, "writable"),
        ([], -1, 0, "step = -1"),
        ([], 0, 64, "rank = 64"),
    ],
)
def test_misuse(make: Make, arrays: list[np.ndarray], step: int, rank: int, message: str) -> None:
    (alone,) = make(1, 10)
    with pytest.raises(ValueError, match=message):
        catch_up(alone, arrays, step, rank)


def test_vectors_of_nothing(make: Make) -> None:
    (alone,) = make(1, 0)
    with pytest.raises(ValueError, match="numel > 0"):
        catch_up(alone, [], 0)


def test_a_reset_meanwhile_writes_nothing(make: Make, pool: ThreadPoolExecutor) -> None:
    workers = make(2, 1000)
    mine = np.zeros(100_000)
    waiting = pool.submit(catch_up, workers[0], [mine], 0)
    # What catch_up does first; then the other does not go on with its state, but resets.
    told = np.zeros((64, 9), np.float32)
    told[1] = [1, 5, 0, 0, 0, *np.array([mine.nbytes], "<u8").view("<u2")]
    workers[1].allreduce(np.resize(told, 1000) * (np.arange(1000) < told.size).astype(np.float32))
    workers[1].reset()
    with pytest.raises(JobReset):
        waiting.result(PATIENCE)
    assert (mine == 0).all()
