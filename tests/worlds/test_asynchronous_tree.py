"""`iswitch run` on a tree: an asynchronous job beside a synchronous one, of the same workers."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.serial

PATIENCE = 120.0  # seconds
VERSIONS = 60
TRAIN = f"""
    import os, threading
    import numpy as np
    from worker_lib import AsynchronousWorker, Worker

    host, port = os.environ["ISWITCH_SWITCH"].rsplit(":", 1)
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    job = int(os.environ["ISWITCH_JOB"]) + 1
    weights = np.random.default_rng(rank).standard_normal(1000).astype(np.float32)

    def update(total, contributions, version):
        weights[:] -= np.float32(0.05) * total / np.float32(contributions)

    def sum_up(worker):
        for step in range(100):
            out = worker.allreduce(np.full(500, step + rank, np.float32))
            assert (out == size * step + sum(range(size))).all(), out

    ways = dict(num_workers=size, rank=rank, update=update, state=[weights], check=True)
    with (
        Worker.from_env(numel=500) as rounds,
        AsynchronousWorker((host, int(port)), job, 1000, **ways) as versions,
    ):
        beside = threading.Thread(target=sum_up, args=(rounds,))
        beside.start()
        mine = np.empty_like(weights)
        while versions.version < {VERSIONS}:
            versions.contribute(mine, versions.read([mine]))
        beside.join()
        stats = versions.stats()
        assert stats["contributions"] >= stats["applied"], stats
        # A version is not applied here if it held only greetings, or came within another's state.
        assert stats["applied"] >= {VERSIONS} - 10 or stats["snapshots_taken"], stats
        assert versions.rank == rank
        assert abs(weights).mean() < 0.5
        digest = stats["digests"].get({VERSIONS})
        assert digest or stats["snapshots_taken"], stats  # it may have taken a later state
        print("weights", digest or "", flush=True)
        rounds.allreduce(np.zeros(500, np.float32))  # until all are done
"""


@pytest.mark.parametrize(
    "world",
    ["loopback", pytest.param("netns", marks=pytest.mark.root(reason="only root can make them"))],
)
def test_an_asynchronous_job_shares_a_tree_with_a_synchronous_one(
    world: str, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    words = ["--topology", "rack:2x2", "--world", world, "--json", str(report), "--job", "40"]
    command = [sys.executable, "-m", "iswitch", "run", *words, "--", sys.executable, "-c"]
    done = subprocess.run(
        [*command, textwrap.dedent(TRAIN)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    digests = [line.partition("weights ")[2] for line in done.stdout.splitlines()]
    assert len(digests) == 4
    assert len(set(filter(None, digests))) == 1
    switches = json.loads(report.read_text())["switches"]
    assert all(switches[name]["to_parent"] for name in ("tor1", "tor2"))
    # The root makes the versions: of fewer contributions than the workers have given.
    workers = sum(switches[name]["accumulated"] for name in ("tor1", "tor2"))
    assert switches["core1"]["accumulated"] < workers
