"""Workers against a switch in a process of its own: sums, misuse, retries, forks, statistics."""

from __future__ import annotations

import gc
import os
import re
import socket
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

import worker_lib
from tests.support import ROOT, python
from tests.support.workers import NUMEL, PATIENCE, Make, Where, make, ones, pool, together
from worker_lib import (
    AllreduceTimeout,
    BindError,
    Worker,
    WorkerError,
)
from worker_lib.controller import Controller

__all__ = ["make", "pool"]  # fixtures


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
    with pytest.raises(ValueError, match=r"vector has 0 elements.* pass one of 1 to 100000$"):
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
        (np.zeros(NUMEL + 1, np.float32), ValueError, r"vectors have 1000; pass one of 1000$"),
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
        ({"op": "mean"}, ValueError, "op = 'mean': use sum, max, min, prod"),
        ({"op": ["sum"]}, ValueError, "op = .*: use sum, max"),
        ({"partial": True, "first_round": None}, ValueError, "first_round is missing"),
        ({"dtype": "float33"}, ValueError, "dtype = 'float33': use float32"),
        ({"dtype": np.uint32}, ValueError, "use float32, float16, bfloat16, int32, float64"),
        ({"op": "band"}, ValueError, "band is of int32, int64, uint8, bool, not of float32"),
        ({"timeout": 0}, ValueError, "timeout = 0: pass seconds, more than 0"),
        ({"timeout": None}, ValueError, "timeout = None: pass seconds"),
        ({"switch": "127.0.0.1:26963"}, ValueError, r"switch = '127.*pass \(host, port\)"),
        ({"switch": ("localhost", "7")}, ValueError, r"switch = .* pass"),
        ({"switch": ("127.0.0.1", 0)}, ValueError, r"switch = .* pass"),
        ({"switch": ("a..b", 1)}, ValueError, r"switch = .* no host can have that name"),
        ({"switch": ("a\0b", 1)}, ValueError, r"switch = .* no host can have that name"),
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


def test_wrong_arguments_of_a_controller(switch: Where) -> None:
    for wrong in ({"timeout": "3"}, {"timeout": -1.0}, {"switch": "127.0.0.1"}, {"bind": 7}):
        with pytest.raises(ValueError, match=r"(timeout|switch|bind) = .*: pass"):
            Controller(**{"switch": switch, "job": 1, **wrong})  # type: ignore[arg-type]


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


# A worker in its process


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
        "fast", "offload", "way", "rx_overflow", "tx_failed", "no_memory",
        "share_added", "apart",
    }  # fmt: skip
    assert (stats["allreduces"], stats["round"], stats["received"]) == (4, 4, 12)
    assert stats["share_added"] is None
    assert alone.share_added() == alone.stats()["share_added"] == 1.0
    assert stats["sent"] >= 12
    assert 0 < stats["allreduce_p50"] <= stats["allreduce_p99"] < PATIENCE
    assert 0 < stats["round_trip"] < PATIENCE


def test_importing_the_package_loads_no_numpy() -> None:
    code = (
        "import sys, worker_lib; print('numpy' in sys.modules); worker_lib.Worker; "
        "print('numpy' in sys.modules)"
    )
    assert python("-c", code).stdout == "False\nTrue\n"
    with pytest.raises(AttributeError, match="no attribute 'Wroker'"):
        _ = worker_lib.Wroker
    assert all(hasattr(worker_lib, name) for name in worker_lib.__all__)
    assert dir(worker_lib) == sorted(worker_lib.__all__)
