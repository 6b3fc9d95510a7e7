"""A worker's metrics are its own counts, served only while its program asks for it."""

from __future__ import annotations

import shutil
import subprocess
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import numpy as np
import pytest

from iswitch.outside import UsageError
from tests.conftest import Where
from tests.watch.test_metrics import samples
from worker_lib import Worker
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
    for name, (metric, _) in COUNTS.items():
        assert found[f"iswitch_worker_{metric}_total", labels] == stats[name]
    took = "iswitch_worker_allreduce_duration_seconds"
    assert found[f"{took}_count", labels] == stats["allreduces"] == 7
    assert 0 < found[f"{took}_sum", labels] < 20
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
