"""One run in every view: top, metrics, snapshot, the switch's JSON and a capture are equal."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from rich.console import Console

from iswitch.cli import main
from iswitch.core.format.counters import COUNTERS, DROPS
from iswitch.lab.launch.launch import free_port
from iswitch.lab.top.watching import show
from iswitch.watch.reader import Reader
from tests.support import ROOT
from tests.watch.test_metrics import samples
from tests.watch.test_snapshot import valid
from worker_lib import Worker

pytestmark = pytest.mark.serial

JOB, WORKERS, ROUNDS, NUMEL = 5, 3, 12, 2000  # six segments
PATIENCE = 20.0
WAITS_FOR = {"control", *(f"{w}_{u}" for w in ("rx", "tx") for u in ("packets", "bytes"))}


@contextmanager
def switch(folder: Path, metrics: int) -> Iterator[tuple[tuple[str, int], dict[str, int]]]:
    """A switch with every view; its last words are filled in at the end."""
    command = [
        sys.executable, "-m", "iswitch", "switch", "--listen", "127.0.0.1:0", "--json",
        "--watch", str(folder / "s1.sock"), "--metrics", str(metrics),
        "--capture", str(folder / "s1.pcapng"),
    ]  # fmt: skip
    counters: dict[str, int] = {}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            host, _, port = json.loads(process.stdout.readline())["listening"].rpartition(":")
            yield (host, int(port)), counters
            process.send_signal(signal.SIGINT)
            counters.update(json.loads(process.stdout.readline()))
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def rounds(worker: Worker) -> None:
    for _ in range(ROUNDS):
        if worker.rank == 1:
            time.sleep(0.01)  # so that it is the straggler
        worker.allreduce(np.ones(NUMEL, np.float32))


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(words) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_numbers_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port("127.0.0.1")
    assert port is not None
    at = f"http://127.0.0.1:{port}"
    place = str(tmp_path / "s1.sock")
    view = io.StringIO()
    with switch(tmp_path, port) as (where, ended), ThreadPoolExecutor(WORKERS) as pool:
        joining = [pool.submit(Worker, where, JOB, NUMEL, WORKERS, rank=i) for i in range(WORKERS)]
        workers = [one.result(PATIENCE) for one in joining]
        list(pool.map(rounds, workers))
        time.sleep(0.2)  # so that no former snapshot is fresh
        with closing(Reader(Path(place))) as reader:
            first = reader.read()
        by_http = json.load(urlopen(f"{at}/snapshot", timeout=PATIENCE))
        metrics = samples(urlopen(f"{at}/metrics", timeout=PATIENCE).read().decode())
        by_ctl = printed(capsys, "ctl", "snapshot", place)
        show(place, 0.2, True, Console(file=view, width=160, height=40, color_system=None))
        for worker in workers:
            worker.leave()
    assert first is not None
    for snapshot in (first, by_http, by_ctl):
        valid(snapshot)
        same(first, snapshot)

    # The switch's own last words
    data = {**first["counters"], **first["drops"]}
    assert {n: v for n, v in data.items() if n not in WAITS_FOR} == {
        n: ended[n] for n in (*COUNTERS, *DROPS) if n not in WAITS_FOR
    }

    # Metrics
    for name in COUNTERS.keys() - WAITS_FOR:
        assert metrics[f"iswitch_{name}_total", ""] == ended[name]
    for name in DROPS:
        key = "iswitch_packets_dropped_total"
        values = [v for (n, labels), v in metrics.items() if n == key and f'"{name}"' in labels]
        assert sum(values) == ended[name]
    (job,) = first["jobs"]
    rounds_ = metrics["iswitch_round_duration_seconds_count", f'job="{JOB}"']
    assert rounds_ == job["rounds"]["measured"] == ROUNDS

    seen = printed(capsys, "analyze", str(tmp_path / "s1.pcapng"), "--json")
    assert seen["trace"]["to_switch"] == ended["rx_packets"]
    assert seen["trace"]["from_switch"] == ended["tx_packets"]
    as_captured(seen, job, metrics)

    # What people see
    lines = view.getvalue().splitlines()
    row = next(line.split() for line in lines if line.startswith(f"{JOB} "))
    assert row[1:5] == ["running", f"{WORKERS}/{WORKERS}", str(WORKERS), str(ROUNDS - 1)]
    for member in job["members"]:
        assert any(re.match(rf"{member['name']} +{member['rank']} ", line) for line in lines)


def as_captured(
    seen: dict[str, Any], job: dict[str, Any], metrics: dict[tuple[str, str], float]
) -> None:
    """A job and its members are the capture's; so are their metrics."""
    (captured,) = seen["jobs"]
    assert (captured["job"], captured["rounds"]) == (JOB, ROUNDS)
    for of_capture, member in zip(captured["members"], job["members"], strict=True):
        assert of_capture["rank"] == member["rank"]
        assert of_capture["address"] == f"{member['host']}:{member['port']}"
        assert of_capture["packets"] == member["packets"]
        assert of_capture["last_of_round"] == member["last"]
        labels = f'job="{JOB}",member="{member["name"]}",rank="{member["rank"]}"'
        assert metrics["iswitch_member_packets_total", labels] == member["packets"]
        assert metrics["iswitch_member_last_rounds_total", labels] == member["last"]


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two snapshots of a job at rest differ only in times, and by heartbeats."""
    for part in ("counters", "drops"):
        unequal = {name for name in one[part] if one[part][name] != other[part][name]}
        assert unequal <= WAITS_FOR
    assert without_times(one["jobs"]) == without_times(other["jobs"])


def without_times(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**job, "members": [{**m, "silent": 0, "lease": 0} for m in job["members"]]} for job in jobs
    ]
