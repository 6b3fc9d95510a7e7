"""Prometheus' metrics say what the snapshot says, by names that promtool approves."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from iswitch.core.format.wire import MemberType
from iswitch.watch.metrics import Collector, drops, exposed, exposition
from tests.support import ROOT
from tests.support.parts import JOB, Bench
from tests.watch.test_snapshot import SHAPE, snapshot, vector

pytestmark = pytest.mark.unit

MONITORING = ROOT / "docs" / "monitoring"
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def text_of(snapshot: dict[str, Any]) -> str:
    return exposition(Collector(lambda: json.dumps(snapshot))).decode()


def samples(text: str) -> dict[tuple[str, str], float]:
    """The values, by name and labels in alphabetical order."""
    return {
        (name, ",".join(sorted(labels.split(",")))): float(value)
        for name, labels, value in SAMPLE.findall(text)
    }


@pytest.fixture(scope="module")
def ran() -> dict[str, Any]:
    bench = Bench()
    bench.gather(SHAPE, 2)
    bench.join(9, None, MemberType.CONTROLLER)
    for round_ in range(4):
        bench.now = round_ + 0.0
        bench.contribute(0, SHAPE, round_, vector())
        bench.now = round_ + 0.03
        bench.contribute(1, SHAPE, round_, vector())
    bench.counters["stranger"] += 5
    return snapshot(bench)


@pytest.mark.slow
def test_an_error_of_ours_is_logged_and_ends_no_serving(caplog: pytest.LogCaptureFixture) -> None:
    def wrong() -> bytes:
        raise RuntimeError("boom")

    pages = {"/wrong": ("text/plain", wrong), "/right": ("text/plain", lambda: b"right")}
    with exposed(("127.0.0.1", 0), pages) as port:
        with pytest.raises(OSError, match="closed connection"):
            urlopen(f"http://127.0.0.1:{port}/wrong")
        with urlopen(f"http://127.0.0.1:{port}/right") as answer:
            assert answer.read() == b"right"
    assert "boom" in caplog.text


def test_they_are_the_snapshots(ran: dict[str, Any]) -> None:
    found = samples(text_of(ran))
    for name, value in ran["counters"].items():
        assert found[f"iswitch_{name}_total", ""] == value
    for name, value in ran["drops"].items():
        labels = [f'port="{port}",reason="{name}"' for why, port, _ in drops(ran) if why == name]
        at = "iswitch_packets_dropped_total"
        assert sum(found[at, label] for label in labels) == value
    (job,) = ran["jobs"]
    of = f'job="{JOB}"'
    assert found["iswitch_memory_reserved_bytes", of] == job["reserved"]
    assert found["iswitch_round_duration_seconds_count", of] == job["rounds"]["measured"] == 4
    assert found["iswitch_round_duration_seconds_sum", of] == job["rounds"]["seconds"]
    assert found["iswitch_round_duration_seconds_bucket", f'{of},le="0.05"'] == 4
    assert found["iswitch_round_duration_seconds_bucket", f'{of},le="0.02"'] == 0
    slow = f'{of},member="10.0.0.2:40001",rank="1"'
    assert found["iswitch_member_last_rounds_total", slow] == 4
    assert found["iswitch_member_behind_seconds_total", slow] == pytest.approx(0.12)
    assert sum(name == "iswitch_member_packets_total" for name, _ in found) == 2  # no controllers


def test_losses_are_those_of_ports() -> None:
    bench = Bench()
    bench.counters["lost_in"] += 7
    found = snapshot(bench)
    found["links"][0]["lost_in"] = 5
    lost = [(port, packets) for why, port, packets in drops(found) if why == "lost_in"]
    assert lost == [("udp", 5), ("", 2)]


def test_names_and_labels(ran: dict[str, Any]) -> None:
    text = text_of(ran)
    labels = {label for _, labels in samples(text) for label in re.findall(r"(\w+)=", labels)}
    assert labels == {"version", "reason", "port", "job", "le", "member", "rank", "peer"}
    assert 'iswitch_build_info{version="' in text
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_switch_without_time_tells_nothing() -> None:
    assert exposition(Collector(lambda: None)) == b""


def names_in(text: str) -> set[str]:
    return set(re.findall(r"iswitch_[a-z_]+", text))


def test_dashboard_and_alerts_name_metrics_that_exist(ran: dict[str, Any], tmp_path: Path) -> None:
    known = {name for name, _ in samples(text_of(ran))}
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    expressions = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
    assert set().union(*map(names_in, expressions)) <= known
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    alerts = (MONITORING / "alerts.yml").read_text()
    assert names_in(alerts) - known == set()
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    rules = [f"  - {{record: r{i}, expr: {json.dumps(e.replace('$switch', '.*'))}}}"
             for i, e in enumerate(expressions)]  # fmt: skip
    of_dashboard = "groups:\n- name: d\n  rules:\n" + "\n".join(rules) + "\n"
    for text in (alerts, of_dashboard):
        file = tmp_path / "rules.yml"
        file.write_text(text)
        done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
