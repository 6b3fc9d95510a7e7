"""A Worker with a kernel: sums over lossy links, Ctrl-C, and what it says of the kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from iswitch.fast import loading
from tests.commands.test_switch_command import PATIENCE, end, switch
from tests.support import ROOT
from worker_lib import AllreduceTimeout, CollectiveWorker, Worker
from worker_lib.collective import OFFERED, Collective

pytest.importorskip("numba")


@pytest.fixture(autouse=True, params=["udp", "shm"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(loading.SWITCH, "1")
    monkeypatch.setenv("ISWITCH_SHM", str(int(request.param == "shm")))
    return str(request.param)


@pytest.mark.parametrize("numel", [3000, 200_003])
@pytest.mark.parametrize("loss", ["0%", "2%"])
def test_sums_are_exact(way: str, numel: int, loss: str) -> None:
    """Vectors of many windows, too; one of the workers plays in Python."""
    with switch("--impair", f"loss={loss},duplicate={loss},seed=1") as (process, where):

        def work(i: int) -> dict[str, object]:
            compiled = i > 0
            with Worker(where, 7, numel, 3, timeout=PATIENCE, restart_safe=i == 1) as worker:
                if not compiled:
                    worker._membership.kernel = None
                for round_ in range(8):
                    vector = np.arange(numel, dtype=np.float32) % 97 + 1000 * i + round_
                    total = 3 * (np.arange(numel) % 97 + round_) + 3000
                    out = vector if round_ % 2 else np.empty_like(vector)
                    assert np.array_equal(worker.allreduce(vector, out), total)
                return worker.stats()

        with ThreadPoolExecutor(3) as pool:
            stats = list(pool.map(work, range(3)))
        assert [one["fast"] for one in stats] == [False, True, True]
        assert {one["way"] for one in stats} == {way}
        assert all(one["apart"] is None for one in stats[: 1 if way == "shm" else 3])
        segments = 8 * -(-numel // 366)
        assert [one["received"] for one in stats] == [segments] * 3
        end(process)


@pytest.mark.parametrize("loss", ["0%", "2%"])
def test_blocks_are_exact(way: str, loss: str) -> None:
    """Of many windows, and of ranks that get nothing back for what they give; one is in Python."""
    n = 50_000 if loss == "0%" else 20_000
    counts = [[0 if a == b else n - 1000 * a - b for b in range(3)] for a in range(3)]
    given = [np.arange(3 * n, dtype=np.float32) % 97 + 1000 * rank for rank in range(3)]
    total = given[0] + given[1] + given[2]
    with switch("--impair", f"loss={loss},duplicate={loss},seed=1") as (process, where):

        def work(rank: int, collective: Collective, job: int) -> dict[str, object]:
            with CollectiveWorker(
                where, job, collective, 2 * n // 3, 3, rank=rank, timeout=PATIENCE
            ) as worker:
                if not rank:
                    worker._membership.kernel = None
                mine = given[rank]
                for _ in range(2 if loss == "0%" else 1):
                    if collective == "reduce_scatter":
                        found = worker.reduce_scatter(mine)
                        assert np.array_equal(found, total.reshape(3, -1)[rank])
                        if (found := worker.reduce(mine, root=1)) is not None:
                            assert np.array_equal(found, total)
                    elif collective == "all_gather":
                        assert np.array_equal(worker.all_gather(mine), given)
                        found = worker.broadcast(mine.copy(), root=1)
                        assert np.array_equal(found, given[1])
                    else:
                        blocks = [one.reshape(3, -1)[rank] for one in given]
                        assert np.array_equal(worker.all_to_all(mine), np.concatenate(blocks))
                        sent, got = counts[rank], [row[rank] for row in counts]
                        found = worker.all_to_all(mine[: sum(sent)], counts=(sent, got))
                        starts = [sum(row[:rank]) for row in counts]
                        blocks = [
                            one[start : start + n]
                            for one, start, n in zip(given, starts, got, strict=True)
                        ]
                        assert np.array_equal(found, np.concatenate(blocks))
                return worker.stats()

        with ThreadPoolExecutor(3) as pool:
            for job, collective in enumerate(OFFERED):
                found = list(pool.map(work, range(3), [collective] * 3, [job] * 3))
                assert [one["fast"] for one in found] == [False, True, True]
                assert {one["way"] for one in found} == {way}
        end(process)


def test_below_another_switch_kernels_serve_rings_too(way: str) -> None:
    """Sums go up by UDP, and aggregates come down in the workers' way."""
    with switch() as (above, at), switch("--parent", "{}:{}".format(*at)) as (below, where):

        def work(i: int) -> dict[str, object]:
            with Worker(where, 7, 30_000, 2, timeout=PATIENCE) as worker:
                for round_ in range(6):
                    total = worker.allreduce(np.full(30_000, i + round_, np.float32))
                    assert (total == 1 + 2 * round_).all()
                return worker.stats()

        with ThreadPoolExecutor(2) as pool:
            stats = list(pool.map(work, range(2)))
        assert [(one["fast"], one["way"]) for one in stats] == [(True, way)] * 2
        end(below)
        end(above)


def test_several_threads_and_a_signal() -> None:
    """A call that waits in the kernel heeds Ctrl-C, and lets other threads run."""
    with switch() as (process, where), Worker(where, 1, 1000, timeout=PATIENCE) as alone:
        alone.allreduce(np.ones(1000, np.float32))
        alone.halt()
        alone.reset()
        with Worker(where, 1, 1000, timeout=PATIENCE):  # which contributes nothing
            begun, heeded = threading.Event(), threading.Event()
            counted: list[object] = []

            def interrupt() -> None:
                begun.wait(PATIENCE)
                for i in range(10):
                    counted.append(i)
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)
                counted.append(heeded.wait(PATIENCE))

            thread = threading.Thread(target=interrupt)
            thread.start()
            begun.set()
            with pytest.raises(KeyboardInterrupt):
                alone.allreduce(np.ones(1000, np.float32), timeout=10 * PATIENCE)
            heeded.set()
            thread.join()
            assert counted == [*range(10), True]
            with pytest.raises(AllreduceTimeout):
                alone.allreduce(np.ones(1000, np.float32), timeout=0.3)
        end(process)


def test_switched_off_no_worker_loads_numba() -> None:
    with switch() as (process, where):
        code = (
            "import sys\n"
            "from worker_lib import Worker\n"
            f"with Worker({where!r}, 1, 10) as worker:\n"
            "    print(worker.stats()['fast'], 'numba' in sys.modules)\n"
        )
        found = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, loading.SWITCH: "0"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout == "False False\n"
        end(process)
