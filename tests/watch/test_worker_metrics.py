"""A worker's metrics are its own counts, served only while its program asks for it."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import numpy as np
import pytest

from iswitch.core.format.wire import Vector
from iswitch.outside import UsageError
from tests.conftest import Where
from tests.watch.test_metrics import samples
from worker_lib import AsynchronousWorker, CollectiveWorker, Worker
from worker_lib.metrics import COUNTS, exposed

pytestmark = pytest.mark.serial


def test_worker_metrics(switch: Where, job: int) -> None:
    with Worker(switch, job, 1000, 1) as worker:
        with exposed(worker) as port:
            for _ in range(7):
                worker.allreduce(np.ones(1000, np.float32))
            at = f"http://127.0.0.1:{port}"
            text = urlopen(f"{at}/metrics", timeout=20).read().decode()
            stats = worker.stats()
            with pytest.raises(HTTPError, match="404"):
                urlopen(f"{at}/round", timeout=20)
            with pytest.raises(UsageError, match="name another port"), exposed(worker, port=port):
                pass
        with pytest.raises(URLError):
            urlopen(f"{at}/metrics", timeout=20)
    found = samples(text)
    labels = f'job="{job}",rank="0"'
    assert {"sent", "sent_again", "received", "useless", "helps", "rejoins"} < stats.keys()
    counted(found, labels, stats)
    took = "iswitch_worker_allreduce_duration_seconds"
    assert found[f"{took}_count", labels] == stats["allreduces"] == 7
    assert 0 < found[f"{took}_sum", labels] < 20
    checked(text)


def test_metrics_of_a_collective_worker(switch: Where, job: int) -> None:
    with CollectiveWorker(switch, job, "all_to_all", 100, 1) as worker, exposed(worker) as port:
        for _ in range(3):
            worker.all_to_all(np.ones(100, np.float32))
        text = read(port)
    found = samples(text)
    labels = f'collective="all_to_all",job="{job}",rank="0"'
    assert found["iswitch_worker_collective_duration_seconds_count", labels] == 3
    assert found["iswitch_worker_helps_total", f'job="{job}",rank="0"'] == 0
    checked(text)


def test_metrics_of_an_asynchronous_worker(switch: Where, job: int) -> None:
    weights = np.zeros(1000, np.float32)

    def update(total: Vector, contributions: int, version: int) -> None:  # noqa: ARG001
        weights.__iadd__(total / contributions)

    with AsynchronousWorker(switch, job, 1000, 1, update=update, state=[weights]) as worker:
        begun = worker.version
        for made in range(1, 5):
            worker.contribute(np.ones(1000, np.float32), worker.version)
            worker.wait_for(begun + made)
        with exposed(worker) as port:
            text, stats = read(port), worker.stats()
    found = samples(text)
    labels = f'job="{job}",rank="0"'
    counted(found, labels, stats)
    assert found["iswitch_worker_gradients_contributed_total", labels] == 4
    assert found["iswitch_worker_versions_applied_total", labels] == 4
    assert found["iswitch_worker_version", labels] == stats["version"]
    late = "iswitch_worker_gradient_staleness_versions"
    assert found[f"{late}_bucket", f'job="{job}",le="0",rank="0"'] == stats["staleness"].get(0, 0)
    assert found[f"{late}_count", labels] == sum(stats["staleness"].values()) == 4
    checked(text)


def counted(found: dict[tuple[str, str], float], labels: str, stats: dict[str, Any]) -> None:
    """Check each count of a worker."""
    for name in COUNTS.keys() & stats.keys():
        assert found[f"iswitch_worker_{COUNTS[name][0]}_total", labels] == stats[name]


def read(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return str(answer.read().decode())


def checked(text: str) -> None:
    """Have promtool check metrics."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
