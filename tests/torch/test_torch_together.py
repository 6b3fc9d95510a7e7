"""Three trainings at once on one tree: FSDP2, DDP with a key, and an asynchronous one."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.support import ROOT
from tests.torch import test_torch_fsdp
from worker_lib import AsynchronousWorker

pytestmark = pytest.mark.serial

PATIENCE = 90.0  # seconds
KEY = "a key of 20 letters.."
FSDP_ALONE, FSDP, DDP, ASYNCHRONOUS = 20, 60, 100, 140  # job numbers
STEPS = 25  # of FSDP: it is under way when the worker is killed, and afterwards
VERSIONS = 40
LOST, LOST_AT = 3, 3  # rank and step of the DDP worker that is killed
SOON = 4.0  # seconds after which the others of its job are told


def digest(arrays: Iterator[np.ndarray]) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def fully_sharded(rank: int, size: int) -> str:
    test_torch_fsdp.STEPS = STEPS
    weights = test_torch_fsdp.train(rank, size, "iswitch", None, {})
    return digest(weights[name] for name in sorted(weights))


def data_parallel(rank: int, _size: int) -> str:
    """Train with a key until a worker is killed; what the others are told."""
    os.environ["ISWITCH_KEY"] = KEY
    distributed.init_process_group("iswitch", timeout=timedelta(seconds=SOON))
    model = DistributedDataParallel(nn.Linear(30, 20))
    try:
        for step in range(1000):
            if (rank, step) == (LOST, LOST_AT):
                os.kill(os.getpid(), signal.SIGKILL)
            model(torch.ones(2, 30)).sum().backward()
    except Exception as error:
        return f"{step}: {error}"
    return "nothing"


def asynchronous(rank: int, size: int) -> dict[str, Any]:
    """Contribute until there are enough versions; their digests and the worker's rejoins."""
    host, port = os.environ["ISWITCH_SWITCH"].rsplit(":", 1)
    weights = np.random.default_rng(rank).standard_normal(1000).astype(np.float32)

    def update(total: np.ndarray, contributions: int, _version: int) -> None:
        weights[:] -= np.float32(0.05) * total / np.float32(contributions)

    ways: dict[str, Any] = {"update": update, "state": [weights], "check": True}
    with AsynchronousWorker(
        (host, int(port)), ASYNCHRONOUS, 1000, num_workers=size, rank=rank, **ways
    ) as worker:
        mine = np.empty_like(weights)
        while worker.version < VERSIONS:
            worker.contribute(mine, worker.read([mine]))
        stats = worker.stats()
        return {"digests": stats["digests"], "rejoins": stats["rejoins"]}


def on_a_host(rank: int, size: int) -> dict[str, Any]:
    """Train with FSDP alone, then all three at once; what each of them tells."""
    fork = get_context("fork")  # of a process that has imported torch, which takes seconds
    port = int(os.environ["MASTER_PORT"])

    def start(train: Callable[[int, int], Any], job: int) -> Callable[[], Any]:
        end, other = fork.Pipe()

        def play() -> None:
            os.environ |= {"ISWITCH_JOB": str(job), "MASTER_PORT": str(port + job)}
            other.send(train(rank, size))
            os._exit(0)  # without gloo's destructors

        process = fork.Process(target=play)
        process.start()
        other.close()

        def result() -> Any:
            try:
                return end.recv() if end.poll(PATIENCE) else "it does not end"
            except EOFError:
                process.join()
                return process.exitcode

        return result

    alone = start(fully_sharded, FSDP_ALONE)()
    trainings = {"fsdp": (fully_sharded, FSDP), "ddp": (data_parallel, DDP)}
    trainings["asynchronous"] = (asynchronous, ASYNCHRONOUS)  # type: ignore[assignment]
    running = {name: start(*training) for name, training in trainings.items()}
    return {"alone": alone} | {name: result() for name, result in running.items()}


RUN = """
from functools import partial
import sys
from iswitch.cli import main
from iswitch.lab.launch import command
command.make_switches = partial(command.make_switches, options=("--keys", sys.argv.pop(1)))
sys.exit(main())
"""  # `iswitch run` with keys of single jobs: its own option is a key of all


@pytest.mark.root(reason="only root can make namespaces")
def test_who_shares_a_tree_with_a_killed_worker_does_not_notice(tmp_path: Path) -> None:
    """Its own job is told which one it was."""
    keys, report = tmp_path / "keys.toml", tmp_path / "report.json"
    keys.touch(0o600)
    keys.write_text("".join(f'{job} = "{KEY}"\n' for job in range(DDP, ASYNCHRONOUS)))
    words = ["run", "--topology", "rack:2x2", "--world", "netns", "--json", str(report)]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(keys), *words, "--", sys.executable, "-m", __name__],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads(line.partition("| ")[2]) for line in done.stdout.splitlines()]
    assert len(told) == 4, done.stdout
    assert len({one["alone"] for one in told} | {one["fsdp"] for one in told}) == 1
    digests = [one["asynchronous"]["digests"] for one in told]  # not of versions that one skipped
    for version in set().union(*digests):
        assert len({held[version] for held in digests if version in held}) == 1, version
    assert sum(map(len, digests)) > 2 * VERSIONS
    assert [one["asynchronous"]["rejoins"] for one in told] == [0] * 4
    endings = [one["ddp"] for one in sorted(told, key=lambda one: one["rank"])]
    assert endings.pop(LOST) == -signal.SIGKILL
    for ending in endings:
        assert ending.startswith(f"{LOST_AT}: ")
        assert f"rank {LOST}" in ending
    switches = json.loads(report.read_text())["switches"]
    assert not any(counters["leases_run_out"] for counters in switches.values())


if __name__ == "__main__":
    import torch._dynamo  # which else each training imports when it first needs it

    torch.set_num_threads(1)
    mine = int(os.environ["RANK"])
    print(json.dumps({"rank": mine} | on_a_host(mine, int(os.environ["WORLD_SIZE"]))))
