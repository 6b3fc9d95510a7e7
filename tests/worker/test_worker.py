"""Workers against a switch in a process of its own: sums, errors, commands, a switch that dies."""

from __future__ import annotations

import gc
import inspect
import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import ml_dtypes
import numpy as np
import pytest

import worker_lib
from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA, Ack, Action, Control, Status
from iswitch.core.jobs.limits import Limits
from tests.conftest import StartSwitch
from tests.support import ROOT
from worker_lib import (
    AllreduceTimeout,
    AsynchronousWorker,
    BindError,
    JobHalted,
    JobReset,
    MemberLost,
    MembershipLost,
    Refused,
    SwitchUnreachable,
    Worker,
    WorkerError,
)

PATIENCE = 20.0  # seconds until a test is given up
NUMEL = 1000  # three segments

Where = tuple[str, int]
Make = Callable[..., list[Worker]]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def make(switch: Where, job: int, pool: ThreadPoolExecutor) -> Iterator[Make]:
    """Makes workers that have all joined, by rank; they leave at the end."""
    made: list[Worker] = []

    def make_workers(count: int, numel: int = NUMEL, **kwargs: object) -> list[Worker]:
        arguments = {"timeout": PATIENCE, **kwargs}
        joining = [
            pool.submit(Worker, switch, job, numel, count, **arguments)  # type: ignore[arg-type]
            for _ in range(count)
        ]
        workers = sorted((w.result(PATIENCE) for w in joining), key=lambda w: w.rank)
        made.extend(workers)
        return workers

    yield make_workers
    for worker in made:
        worker.leave()


def together(
    pool: ThreadPoolExecutor, workers: list[Worker], vectors: list[np.ndarray], **kwargs: object
) -> list[np.ndarray]:
    """One round of all these workers."""
    waiting: list[Future[np.ndarray]] = [
        pool.submit(worker.allreduce, vector, **kwargs)  # type: ignore[arg-type]
        for worker, vector in zip(workers, vectors, strict=True)
    ]
    return [w.result(PATIENCE) for w in waiting]


def ones(value: float = 1.0) -> np.ndarray:
    return np.full(NUMEL, value, np.float32)


# Sums


@pytest.mark.parametrize("numel", [0, 1, 365, 366, 367, 100_000])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_product(make: Make, pool: ThreadPoolExecutor, count: int, numel: int) -> None:
    workers = make(count, numel)
    assert [worker.rank for worker in workers] == list(range(count))
    rng = np.random.default_rng(numel)
    for round_ in range(3):
        assert {worker.round for worker in workers} == {round_}
        vectors = [rng.integers(-99, 100, numel).astype(np.float32) for _ in workers]
        for out in together(pool, workers, vectors):
            assert out.dtype == np.float32
            assert out.shape == (numel,)
            assert (out == np.sum(vectors, 0)).all()


def test_shorter_vectors(make: Make, pool: ThreadPoolExecutor) -> None:
    """Of any size from round to round, in place too; no more segments travel than they fill."""
    workers = make(3, 100_000, shorter=True)
    rng = np.random.default_rng(1)
    segments = 0
    for numel in [1, 365, 366, 367, 100_000, 99_999, 5, 50_000, 1, 100_000]:
        vectors = [rng.integers(-99, 100, numel).astype(np.float32) for _ in workers]
        exact = np.sum(vectors, 0)
        for out in together(pool, workers, vectors):
            assert (out == exact).all()
        waiting = [pool.submit(w.allreduce, v, v) for w, v in zip(workers, vectors, strict=True)]
        for out in [w.result(PATIENCE) for w in waiting]:
            assert (out == exact).all()
        segments += 2 * -(-numel // 366)
    assert workers[0].stats()["received"] == segments
    with pytest.raises(ValueError, match="numel=100001"):
        workers[0].allreduce(np.zeros(100_001, np.float32))
    with pytest.raises(ValueError, match="has 0 elements"):
        workers[0].allreduce(np.zeros(0, np.float32))


def test_who_lacks_in_a_shorter_vector(make: Make) -> None:
    workers = make(2, 100_000, shorter=True)
    with pytest.raises(AllreduceTimeout, match=r"2 of 2 segments missing .*rank 1") as raised:
        workers[0].allreduce(np.zeros(400, np.float32), timeout=0.3)
    assert raised.value.missing == [(0, 2)]


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32])
def test_dtypes_and_ops(make: Make, pool: ThreadPoolExecutor, dtype: type, op: str) -> None:
    workers = make(3, dtype=dtype, op=op)
    rng = np.random.default_rng(1)
    vectors: list[np.ndarray] = [rng.integers(-9, 10, NUMEL).astype(dtype) for _ in workers]
    exact = np.stack(vectors).astype(np.int64)
    for out in together(pool, workers, vectors):
        assert out.dtype == dtype
        assert (out == getattr(exact, op)(0)).all()


def test_without_offload_and_with_large_segments(make: Make, pool: ThreadPoolExecutor) -> None:
    workers = make(2, 100_000, offload=False, elements_per_segment=7500)
    assert workers[0].stats()["offload"] is False
    vector = np.arange(100_000, dtype=np.float32)
    for out in together(pool, workers, [vector, vector]):
        assert (out == 2 * vector).all()


def test_example_of_the_docstring(switch: Where, job: int) -> None:
    """In four processes."""
    example = textwrap.dedent(str(worker_lib.__doc__).partition("\n\n")[2])
    assert '("127.0.0.1", 26963), job=7' in example
    example = example.replace("26963", str(switch[1])).replace("job=7", f"job={job}")
    code = f"import numpy as np\ngrad = np.arange(3, dtype=np.float32)\n{example}\nprint(total)"
    command = [sys.executable, "-c", code]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    assert outputs == ["[0. 4. 8.]\n"] * 4


def test_out_and_in_place(make: Make, pool: ThreadPoolExecutor) -> None:
    first, second = make(2)
    out, vector = np.empty(NUMEL, np.float32), ones(2)
    waiting = pool.submit(second.allreduce, vector, vector)
    assert first.allreduce(ones(1), out) is out
    assert waiting.result(PATIENCE) is vector
    assert (out == 3).all()
    assert (vector == 3).all()


def test_the_vector_is_left_alone(make: Make) -> None:
    (alone,) = make(1)
    vector = ones(2)
    vector.flags.writeable = False
    out = alone.allreduce(vector)
    out += 1
    assert (vector == 2).all()


@pytest.mark.parametrize(
    "arrange",
    [
        lambda a: a.reshape(10, 100),
        lambda a: a.reshape(10, 5, 20).transpose(2, 0, 1),
        lambda a: np.repeat(a, 2)[::2],
        lambda a: a[::-1],
        lambda a: np.asfortranarray(a.reshape(20, 50)),
    ],
    ids=["matrix", "transposed", "strided", "reversed", "fortran"],
)
def test_any_shape(
    make: Make, pool: ThreadPoolExecutor, arrange: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Elements meet by their place in C order."""
    workers = make(2)
    vector = arrange(np.arange(NUMEL, dtype=np.float32))
    for out in together(pool, workers, [vector, vector]):
        assert out.shape == vector.shape
        assert (out == 2 * vector).all()


def test_nan_and_infinity(make: Make, pool: ThreadPoolExecutor) -> None:
    workers = make(2, 4)
    inf, nan = np.inf, np.nan
    vectors = [np.array(v, np.float32) for v in ([inf, inf, nan, 1], [1, -inf, 1, 2])]
    for out in together(pool, workers, vectors):
        assert np.array_equal(out, np.array([inf, nan, nan, 3], np.float32), equal_nan=True)


# Misuse


@pytest.mark.parametrize(
    ("vector", "error", "text"),
    [
        (
            np.zeros(NUMEL),
            TypeError,
            "vector is float64, this worker's dtype is float32: convert it with .astype(float32), "
            "or make the Worker with another dtype",
        ),
        (
            ones()[1:],
            ValueError,
            "vector has 999 elements, this worker's vectors have 1000; make the Worker with "
            "numel=999",
        ),
        (
            [1.0] * NUMEL,
            TypeError,
            "vector must be a NumPy array or a tensor of PyTorch on the CPU, not list",
        ),
    ],
)
def test_wrong_vector(make: Make, vector: np.ndarray, error: type[Exception], text: str) -> None:
    (alone,) = make(1)
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        alone.allreduce(vector)
    assert (alone.allreduce(ones(3)) == 3).all()
    assert alone.round == 1


def read_only() -> np.ndarray:
    array = ones()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "error", "text"),
    [
        (np.zeros(NUMEL, np.float16), TypeError, "out is float16"),
        (np.zeros(NUMEL + 1, np.float32), ValueError, "out has 1001 elements"),
        (np.zeros(2 * NUMEL, np.float32)[::2], ValueError, "out must be writable and C-contiguous"),
        (read_only(), ValueError, "leave it out for a new array"),
    ],
)
def test_wrong_out(make: Make, out: np.ndarray, error: type[Exception], text: str) -> None:
    (alone,) = make(1)
    with pytest.raises(error, match=text):
        alone.allreduce(ones(), out)
    assert (alone.allreduce(ones(3)) == 3).all()


@pytest.mark.parametrize(
    ("kwargs", "error", "text"),
    [
        ({"job": 65536}, ValueError, "job = 65536: a job number is 0..65535"),
        ({"job": -1}, ValueError, "job = -1"),
        ({"numel": -1}, ValueError, r"numel = -1: .*grad\.size"),
        ({"num_workers": 0}, ValueError, "num_workers = 0"),
        ({"num_workers": 4097}, ValueError, "1 to 4096 workers"),
        ({"elements_per_segment": 20_000}, ValueError, "does not fit a UDP datagram"),
        ({"elements_per_segment": 0}, ValueError, "elements_per_segment = 0: pass 1 to 65535"),
        ({"job": "a"}, ValueError, "job = 'a': a job number is"),
        ({"numel": 1.5}, ValueError, r"numel = 1\.5: .*grad\.size"),
        ({"numel": 10**12}, ValueError, "0 to 4294967295"),
        ({"op": "mean"}, ValueError, "op = 'mean': use 'sum'"),
        ({"dtype": "float33"}, ValueError, "dtype = 'float33': use float32"),
        ({"dtype": np.float64}, ValueError, "use float32, float16, bfloat16 or int32"),
        ({"timeout": 0}, ValueError, "timeout = 0: pass seconds, more than 0"),
        ({"timeout": None}, ValueError, "timeout = None: pass seconds"),
        ({"switch": "127.0.0.1:26963"}, ValueError, r"switch = '127.*pass \(host, port\)"),
        ({"switch": ("localhost", "7")}, ValueError, r"switch = .* pass"),
        ({"switch": ("127.0.0.1", 0)}, ValueError, r"switch = .* pass"),
        ({"bind": ("127.0.0.1", 70000)}, ValueError, r"bind = .* pass"),
        ({"on_member_lost": "ignore"}, ValueError, "pass 'wait', 'continue' or 'raise'"),
        ({"on_member_lost": "raise"}, ValueError, "pass num_workers"),
        ({"bind": ("192.0.2.1", 0)}, BindError, "cannot bind .*no address of this machine"),
    ],
)
def test_wrong_arguments(
    switch: Where, kwargs: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Worker(**{"switch": switch, "job": 1, "numel": 1, **kwargs})  # type: ignore[arg-type]


def test_a_bound_port_that_is_taken(switch: Where) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(BindError, match="another socket has it; choose another"):
            Worker(switch, job=1, numel=1, bind=taken.getsockname())


@pytest.mark.parametrize("threshold", [-1, 1.5, 2**33, True])
def test_thresholds_that_are_none(make: Make, threshold: int) -> None:
    (alone,) = make(1)
    with pytest.raises(ValueError, match=r"threshold = .*or 0 for everybody's"):
        alone.set_threshold(threshold)
    with pytest.raises(ValueError, match="timeout = 0"):
        alone.allreduce(ones(), timeout=0)


def test_segments_that_are_not_there(make: Make) -> None:
    (alone,) = make(1)
    for start, stop in [(0, 4), (2, 2), (-1, 2)]:
        with pytest.raises(ValueError, match="the vector has 3"):
            alone.force_broadcast(start, stop)


# Nobody there, not let in


@pytest.mark.parametrize("deaf", [True, False])
def test_no_switch(deaf: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        where = silent.getsockname()
        if not deaf:
            silent.close()
        began = time.monotonic()
        with pytest.raises(SwitchUnreachable) as raised:
            Worker(where, 1, 10, timeout=0.3)
        assert 0.3 <= time.monotonic() - began < 3
    address = "{}:{}".format(*where)
    assert f"no answer from a switch at {address} within 0.3 s" in str(raised.value)
    assert ("nothing was heard" if deaf else "the connection was refused") in str(raised.value)
    assert f"iswitch switch --listen {address}" in str(raised.value)


def test_a_worker_of_iswitch_run_that_asks_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISWITCH_SWITCH", "10.26.255.254:26963")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.bind(("127.0.0.1", 0))
        with pytest.raises(SwitchUnreachable, match="take Worker"):
            Worker(nobody.getsockname(), 1, 10, timeout=0.2)


def test_switch_by_name(switch: Where, job: int) -> None:
    with Worker(("localhost", switch[1]), job, NUMEL, 1, timeout=PATIENCE) as worker:
        assert (worker.allreduce(ones(2)) == 2).all()


@pytest.mark.parametrize("kwargs", [{"numel": 999}, {"dtype": np.int32}, {"op": "max"}])
def test_mismatch(switch: Where, job: int, make: Make, kwargs: dict[str, object]) -> None:
    (alone,) = make(1)
    arguments = {"numel": NUMEL, "timeout": PATIENCE, **kwargs}
    with pytest.raises(Refused, match=rf"JOIN refused in job {job}: .*mend the odd one") as raised:
        Worker(switch, job, **arguments)  # type: ignore[arg-type]
    assert (raised.value.action, raised.value.status) == (Action.JOIN, Status.MISMATCH)
    assert (alone.allreduce(ones(3)) == 3).all()


def test_only_two_of_three(switch: Where, job: int, pool: ThreadPoolExecutor) -> None:
    joining = [pool.submit(Worker, switch, job, NUMEL, 3, timeout=0.5) for _ in range(2)]
    for future in joining:
        with pytest.raises(WorkerError, match=rf"only 2 of 3 workers joined job {job} within 0.5"):
            future.result(PATIENCE)


# Waiting in vain


def test_timeout_names_whom_it_waits_for(make: Make, pool: ThreadPoolExecutor) -> None:
    first, second, third = make(3)
    together(pool, [first, second, third], [ones()] * 3)
    for _ in range(2):
        with pytest.raises(AllreduceTimeout) as raised:
            first.allreduce(ones(5), timeout=0.3)
    error = raised.value
    at = ["{}:{}".format(*worker._port.socket.getsockname()) for worker in (second, third)]
    assert str(error) == (
        "round 1 not done within 0.3 s: 3 of 3 segments missing (0-2); waiting for the "
        f"contributions of rank 1 ({at[0]}), rank 2 ({at[1]}): did they stop, or die?"
    )
    assert (error.round, error.missing, error.ranks) == (1, [(0, 3)], [1, 2])
    # The round stays open: who calls again with the same vector goes on.
    outs = together(pool, [first, second, third], [ones(5), ones(6), ones(7)])
    assert all((out == 18).all() for out in outs)
    outs = together(pool, [first, second, third], [ones(1), ones(2), ones(3)])
    assert all((out == 6).all() for out in outs)


def test_timeout_without_a_switch(start_switch: StartSwitch) -> None:
    process, where = start_switch()
    with process:
        worker = Worker(where, 1, NUMEL, 1, timeout=PATIENCE)
        process.kill()
        process.wait(PATIENCE)
        with pytest.raises(AllreduceTimeout, match=r"does not answer: is it running") as raised:
            worker.allreduce(ones(), timeout=0.3)
        assert raised.value.ranks is None
        began = time.monotonic()
        worker.leave()  # nobody is there to be told
        assert time.monotonic() - began < 5


# Commands


def test_set_threshold(make: Make) -> None:
    first, second = make(2, partial=True)
    assert first.set_threshold(1) == 1
    assert (first.allreduce(ones(5), round_=first.round) == 5).all()
    assert (second.allreduce(ones(9), round_=second.round) == 5).all()  # late
    assert second.set_threshold(0) == 2


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


def test_no_sum_of_fewer(switch: Where, make: Make, pool: ThreadPoolExecutor) -> None:
    """With on_member_lost="wait" who is left waits, and is told who is there."""
    first, second, third = make(3)
    waiting = [pool.submit(w.allreduce, ones(2), timeout=0.5) for w in (first, second)]
    named = rf"only 2 of 3 workers are in job .*: rank {third.rank} is missing: has it .*Start one"
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
    again.leave()


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
    cause = rf"waiting for the contribution of rank {third.rank} \(\S+\): did it stop, or die\?"
    with pytest.raises(AllreduceTimeout, match=f"{cause}$"):
        begun.result(PATIENCE)
    first.leave()
    with pytest.raises(AllreduceTimeout, match=cause + r".* \(2 of 3 workers are in job"):
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


def test_an_abandoned_worker_is_collected(switch: Where, job: int) -> None:
    """Its thread holds it no longer than a moment."""
    worker = Worker(switch, job, NUMEL, 1)
    port, reference = worker._port, weakref.ref(worker)
    del worker
    gc.collect()
    assert reference() is None
    port.close()


def test_a_retry_in_place_contributes_what_it_had(make: Make, pool: ThreadPoolExecutor) -> None:
    """What was sent counts, also for a switch that forgot it; the vector holds sums by then."""
    first, second = make(2, partial=True)
    vectors = [ones(), ones()]
    second.set_threshold(1)  # the first gets some of its own back as sums, in place
    first.allreduce(ones(5), round_=first.round)
    second.allreduce(ones(6), round_=second.round)
    second.set_threshold(0)
    with pytest.raises(AllreduceTimeout):
        first.allreduce(vectors[0], out=vectors[0], timeout=0.2, round_=first.round)
    vectors[0][:] = 100
    outs = together(pool, [first, second], vectors, round_=first.round)
    assert all((out == 2).all() for out in outs)


@pytest.mark.parametrize("shift", [-300, 300])
def test_out_that_lies_over_a_part(make: Make, shift: int) -> None:
    (alone,) = make(1)
    both = np.ones(NUMEL + 300, np.float32)
    vector, out = both[:NUMEL], both[300:]
    if shift < 0:
        vector, out = out, vector
    with pytest.raises(ValueError, match="out lies over a part of vector"):
        alone.allreduce(vector, out)
    with pytest.raises(ValueError, match=r"out has shape .*reshape\(\(1000,\)\) is a view"):
        alone.allreduce(vector, np.ones((10, 100), np.float32))
    assert (alone.allreduce(vector, vector) == 1).all()


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


def test_a_flood_does_not_hold_off_the_timeout() -> None:
    """Whatever keeps coming: a call ends in time, and Help is asked for meanwhile."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as switch:
        switch.bind(("127.0.0.1", 0))
        switch.settimeout(PATIENCE)
        done = threading.Event()

        def play() -> None:
            packet, peer = switch.recvfrom(100)
            ack = Control(Action.ACK, 1, Control.parse(packet).request, Ack(Action.JOIN, 0, 0, 1))
            switch.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS_CONTROL)
            switch.sendto(ack.build(), peer)
            switch.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS_DATA)
            while not done.is_set():
                switch.sendto(bytes(8 + 4 * 366), peer)  # round 0, index 0, again and again

        thread = threading.Thread(target=play)
        thread.start()
        worker = Worker(switch.getsockname(), 1, NUMEL, timeout=PATIENCE)
        began = time.monotonic()
        try:
            with pytest.raises(AllreduceTimeout):
                worker.allreduce(ones(), timeout=0.5)
            assert time.monotonic() - began < 5
            assert worker.stats()["helps"] > 1
        finally:
            done.set()
            thread.join()
            worker.timeout = 0.1
            worker.leave()


@pytest.mark.root(reason="only root can make a network namespace")
def test_a_way_with_a_small_mtu() -> None:
    """E is made to fit; a larger one, asked for, is cut by IP rather than lost."""
    code = """
        import fcntl, socket, struct, subprocess, sys
        import numpy as np
        from worker_lib import Worker
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, 0x8922, struct.pack("16si12x", b"lo", 1400))  # SIOCSIFMTU
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS: up
        switch = subprocess.Popen(
            [sys.executable, "-m", "iswitch", "switch", "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE, text=True,
        )
        port = int(switch.stdout.readline().split(":")[1])
        for given, used in [(None, 341), (366, 366)]:
            with Worker(
                ("127.0.0.1", port), 1, 20_000, 1, elements_per_segment=given, timeout=5
            ) as worker:
                assert worker.shape.elements == used, worker.shape
                assert (worker.allreduce(np.ones(20_000, np.float32)) == 1).all()
                assert worker.stats()["tx_failed"] == 0
        switch.terminate()
        switch.communicate()
        """
    run = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(
        ["unshare", "--net", *run], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_fork_cannot_use_it(make: Make) -> None:
    """Nor leave for its parent, nor close its socket."""
    (worker,) = make(1)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:  # nothing of pytest may run here
        try:
            worker.allreduce(ones())
        except WorkerError as error:
            os.write(writer, str(error).encode())
        worker.leave()
        os._exit(0)
    os.waitpid(child, 0)
    assert b"belongs to the process that made it" in os.read(reader, 1000)
    os.close(reader)
    os.close(writer)
    assert (worker.allreduce(ones(3)) == 3).all()


def test_context_manager(switch: Where, job: int) -> None:
    for _ in range(3):
        with Worker(switch, job, NUMEL, 1, timeout=PATIENCE) as worker:
            assert (worker.rank, worker.stats()["rank"]) == (0, 0)
            assert (worker.allreduce(ones(2)) == 2).all()
    with pytest.raises(KeyError), Worker(switch, job, NUMEL, 1, timeout=PATIENCE) as worker:
        raise KeyError
    with pytest.raises(WorkerError, match="has left"):
        worker.allreduce(ones())


def test_stats(make: Make) -> None:
    (alone,) = make(1)
    before = alone.stats()
    assert np.isnan(before["allreduce_p50"])
    assert before["round_trip"] is None
    for _ in range(4):
        alone.allreduce(ones())
    stats = alone.stats()
    assert set(stats) == {
        "sent", "sent_again", "received", "useless", "probes", "helps", "helped", "rejoins", "rank",
        "round", "allreduces", "allreduce_p50", "allreduce_p99", "round_trip", "timer", "window",
        "offload", "rx_overflow", "tx_failed", "no_memory",
    }  # fmt: skip
    assert (stats["allreduces"], stats["round"], stats["received"]) == (4, 4, 12)
    assert stats["sent"] >= 12
    assert 0 < stats["allreduce_p50"] <= stats["allreduce_p99"] < PATIENCE
    assert 0 < stats["round_trip"] < PATIENCE


# A switch that is killed


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


def test_importing_the_package_loads_no_numpy() -> None:
    code = (
        "import sys, worker_lib; print('numpy' in sys.modules); worker_lib.Worker; "
        "print('numpy' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\nTrue\n"
    with pytest.raises(AttributeError, match="no attribute 'Wroker'"):
        _ = worker_lib.Wroker
    assert all(hasattr(worker_lib, name) for name in worker_lib.__all__)
    assert dir(worker_lib) == sorted(worker_lib.__all__)


def test_switch_whose_name_is_unknown() -> None:
    with pytest.raises(SwitchUnreachable, match=r"cannot reach no\.such\.host\.invalid:9 .*mend"):
        Worker(("no.such.host.invalid", 9), 1, 10)


def test_constructor_that_fails_leaves_the_job(switch: Where, job: int) -> None:
    """Else the next attempt in the same job would wait for the member that is no more."""
    with pytest.raises(WorkerError, match="only 1 of 2 workers joined"):
        Worker(switch, job, 10, 2, timeout=0.3)
    with Worker(switch, job, 10, timeout=5) as alone:
        assert (alone.allreduce(np.ones(10, np.float32)) == 1).all()
