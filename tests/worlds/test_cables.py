"""Networks whose workers exchange packets with their switch through shared memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from iswitch.core.format.counters import EGRESS_DROPS, FRAME_DROPS
from iswitch.lab.launch.cables import check_shm
from iswitch.outside import UsageError
from iswitch.ports.rings.meeting import VARIABLE
from iswitch.system.private import folder
from iswitch.traces.paired import ReplayOptions
from iswitch.traces.reader import Reader
from iswitch.traces.report import replay
from iswitch.traces.survey import survey
from tests.support import python

WORK = """
import numpy as np
from worker_lib import Worker
with Worker.from_env(50_000, dtype=np.int32) as worker:
    for step in range(5):
        total = worker.allreduce(np.full(50_000, 1 << 8 * worker.rank % 32, np.int32))
        assert (total == 0x01010101).all()
    assert worker.stats()["way"] == "CABLE"
"""


@pytest.fixture(autouse=True)
def _shared_memory_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


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


@pytest.mark.root(reason="networks need root")
def test_a_switch_without_hosts_needs_no_shared_memory(tmp_path: Path) -> None:
    program = tmp_path / "work.py"
    program.write_text(WORK.replace("CABLE", "shm"))
    ended = python(
        "-m", "iswitch", "run", "--world", "netns", "--cable", "shm",
        "--topology", "rack:2x2,rate=200Mbit", "--", sys.executable, str(program),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.root(reason="networks need root")
def test_links_and_captures_hold_for_packets_in_shared_memory(tmp_path: Path) -> None:
    """A rate, loss, delay; what the capture has is what the switch counts, and replays."""
    program, report = tmp_path / "work.py", tmp_path / "report.json"
    program.write_text(WORK.replace("CABLE", "shm"))
    ended = python(
        "-m", "iswitch", "run", "--world", "netns", "--cable", "shm", "--json", str(report),
        "--topology", "star:4,rate=100Mbit,loss=1%,delay=1ms,duplicate=1%,seed=4",
        "--capture", str(tmp_path), "--", sys.executable, str(program),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counters = json.loads(report.read_text())["switches"]["s1"]
    assert counters["aggregates"] == 5 * 137
    assert min(counters[name] for name in ("lost_in", "lost_out", "duplicated_in")) > 0
    given = counters["tx_packets"] + counters["duplicated_out"] + counters["own_frames"]
    assert counters["tx_frames"] == given - counters["lost_out"]
    with Reader(tmp_path / "s1.pcapng") as reader:
        found = replay(reader, survey(reader), ReplayOptions())
    assert found["compared"]["equal"] == found["compared"]["captured"] > 0
    assert found["compared"]["different"] == 0


@pytest.mark.parametrize(
    ("kind", "bmv2", "said"),
    [
        ("loopback", (), "has no cables"),
        ("netns", ("s1",), "a P4 program has ports only"),
        ("sim", (), "no cables"),
    ],
)
def test_where_shared_memory_cannot_be_is_refused(
    kind: str, bmv2: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError, match="--cable shm") as refused:
        check_shm(kind, bmv2)
    assert said in str(refused.value)


def test_the_environment_may_switch_shared_memory_off(monkeypatch: pytest.MonkeyPatch) -> None:
    check_shm("netns", ())
    monkeypatch.setenv(VARIABLE, "0")
    with pytest.raises(UsageError, match="ISWITCH_SHM=0 switches shared memory off; unset it"):
        check_shm("netns", ())
