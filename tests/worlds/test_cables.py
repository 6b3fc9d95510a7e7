"""Networks whose workers exchange packets with their switch through shared memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from iswitch.core.format.counters import EGRESS_DROPS, FRAME_DROPS
from iswitch.lab.launch.cables import check_shm
from iswitch.outside import UsageError
from iswitch.system.private import folder
from tests.support import python
from topologies import Topology

WORK = """
import numpy as np
from worker_lib import Worker
with Worker.from_env(50_000, dtype=np.int32) as worker:
    for step in range(5):
        total = worker.allreduce(np.full(50_000, 1 << 8 * worker.rank % 32, np.int32))
        assert (total == 0x01010101).all()
    assert worker.stats()["way"] == "CABLE"
"""


@pytest.mark.root(reason="networks need root")
@pytest.mark.parametrize("cable", ["shm", "veth"])
def test_workers_go_the_way_that_is_named(cable: str, tmp_path: Path) -> None:
    program, report = tmp_path / "work.py", tmp_path / "report.json"
    program.write_text(WORK.replace("CABLE", cable.replace("veth", "udp")))
    ended = python(
        "-m", "iswitch", "run", "--world", "netns", "--topology", "star:4", "--cable", cable,
        "--json", str(report), "--", sys.executable, str(program),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counters = json.loads(report.read_text())["switches"]["s1"]
    assert counters["aggregates"] == 5 * 137
    answered = counters["forwarded"] + counters["answered"]
    drops = sum(counters[name] for name in FRAME_DROPS)
    assert counters["rx_frames"] == counters["rx_packets"] + answered + drops
    given = counters["tx_packets"] + counters["copies"] + counters["own_frames"]
    assert given == counters["tx_frames"] + sum(counters[name] for name in EGRESS_DROPS)
    assert not list(folder().glob("*-s1"))


@pytest.mark.parametrize(
    ("kind", "form", "bmv2", "said"),
    [
        ("loopback", "star:2", (), "has no cables"),
        ("netns", "star:2", ("s1",), "a P4 program has ports only"),
        ("netns", "star:2,rate=1Gbit", (), "link h1-s1 has rate=1Gbit"),
        ("netns", "star:2,loss=1%", (), "is not paced"),
    ],
)
def test_what_shared_memory_would_skip_is_refused(
    kind: str, form: str, bmv2: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError, match="--cable shm") as refused:
        check_shm(kind, Topology.parse(form), bmv2)
    assert said in str(refused.value)
