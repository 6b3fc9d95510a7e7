"""`iswitch generate`, `record` and `analyze`: what they write and say."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from html import escape
from pathlib import Path

import pytest

from iswitch.cli import main
from iswitch.lab.tracing import charts
from iswitch.traces.reader import Reader
from iswitch.traces.timeline import MEANING
from tests.support.browser import browser

pytestmark = pytest.mark.unit

JITTER = ["--loss", "1%", "--delay", "100us", "--jitter", "100us"]
SLOW = ["--workers", "4", "--numel", "40001", "--rounds", "5", "--slow", "2", "--seed", "3"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "t.pcapng"
    assert main(["generate", str(path), *SLOW, *JITTER]) == 0
    return path


def test_the_same_options_make_the_same_trace(trace: Path, tmp_path: Path) -> None:
    for seed, same in (("3", True), ("4", False)):
        again = tmp_path / seed
        words = [*SLOW[:-1], seed, *JITTER]
        assert main(["generate", str(again), *words]) == 0
        assert (again.read_bytes() == trace.read_bytes()) == same


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "0"], "1 to 64 workers"),
        (["--numel", "-1"], "--numel -1: 0 to 268435456"),
        (["--rounds", "0"], "--rounds 0: 1 to 1048576"),
        (["--slow", "4"], "the workers are number 0 to 3"),
        (["--loss", "x"], "loss"),
        (["--topology", "rack:2x2", "--switch", "nosuch"], "no switch 'nosuch'"),
        (["--job", "65536"], "0..65535"),
    ],
)
def test_what_cannot_be_generated(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(tmp_path / "x"), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_generated_job_says_how_large_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t"
    words = ["--topology", "rack:2x2", "--switch", "tor1", "--numel", "10", "--rounds", "2"]
    assert main(["generate", str(path), *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    with Reader(path) as reader:
        assert found["frames"] == sum(len(batch.at) for batch in reader.batches())
        assert [i.name for i in reader.interfaces] == ["tor1-eth1", "tor1-eth2", "tor1-eth3"]


def test_record_wants_to_say_it_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--to", str(tmp_path), "--topology", "star:2", "--capture", str(tmp_path)]
    with pytest.raises(SystemExit) as refused:
        main(["record", *words, "--", "true"])
    assert refused.value.code == 2
    assert "--capture" in capsys.readouterr().err


def test_record_keeps_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s1.pcapng").write_text("former")
    assert main(["record", "--to", str(tmp_path), "--topology", "star:2", "--", "true"]) == 2
    assert "has s1.pcapng already; name another folder" in capsys.readouterr().err
    assert (tmp_path / "s1.pcapng").read_text() == "former"


def test_where_the_time_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t"
    assert main(["generate", str(trace), *SLOW]) == 0
    capsys.readouterr()
    assert main(["analyze", str(trace), "--round", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    timeline = report["timeline"]
    assert timeline["round"] == 2
    (told,) = [r for r in report["jobs"][0]["per_round"] if r["number"] == 2]
    slow = [m["rank"] for m in report["jobs"][0]["members"] if m["address"].startswith("10.26.0.3")]
    assert [told["straggler"]] == [timeline["straggler"]] == slow
    times = [sum(cut.values()) for cut in timeline["where_time_went"].values()]
    assert times == pytest.approx([max(times)] * 4)
    assert min(times) >= told["seconds"] - 1e-8
    complete = [e for e in timeline["events"] if e["what"] == "aggregate"]
    assert sum(b - a for a, b in (e["segments"] for e in complete)) == told["segments"]
    sent = [e for e in timeline["events"] if e["what"] != "aggregate"]
    assert {e["rank"] for e in sent} == {0, 1, 2, 3}
    assert sum(b - a for a, b in (e["segments"] for e in sent)) >= told["segments"] * 4
    assert all(0 <= e["begin"] <= e["end"] for e in timeline["events"])


def test_waiting_for_the_switch_above(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 3 is slow, behind the other switch: no rank of this one is blamed for that."""
    trace = str(tmp_path / "t")
    words = ["--topology", "rack:2x2", "--numel", "3000", "--compute", "20", "--slow", "3"]
    took = {}
    for switch in ("tor1", "core1"):
        assert main(["generate", trace, *words, "--switch", switch]) == 0
        capsys.readouterr()
        assert main(["analyze", trace, "--round", "5", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        took[switch] = {r["number"]: r for r in report["jobs"][0]["per_round"]}
        (cut, _) = report["timeline"]["where_time_went"].values()
        assert ("waiting above" in cut) == (switch == "tor1")
        assert sum(cut.values()) == pytest.approx(took[switch][5]["seconds"])
        assert cut.get("waiting above", 0.0) == pytest.approx(took[switch][5]["above"])
    for number in range(1, 10):
        below, above = took["tor1"][number], took["core1"][number]
        assert below["above"] == pytest.approx(above["behind"], abs=50e-6)  # and two links
        assert below["seconds"] > below["above"] > 0.003
        assert above["above"] == 0
    assert main(["generate", trace, *words, "--switch", "tor1"]) == 0
    capsys.readouterr()
    assert main(["analyze", trace]) == 0
    told = capsys.readouterr().out
    assert re.search(r"slow +round \d+ took [\d.]+ ms; [\d.]+ ms of that it waited for", told)
    assert "Waiting above: from the last sum" in told


def test_switches_below_are_named_by_the_topology(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, where = str(tmp_path / "t"), ["--topology", "rack:2x2", "--switch", "core1"]
    assert main(["generate", trace, *where, "--slow", "3", "--numel", "3000"]) == 0
    for command in ("analyze", "replay"):
        capsys.readouterr()
        assert main([command, trace, *where]) == 0
        named = capsys.readouterr().out
        assert "tor2 was" in named
        assert re.search(r"(?m)^ tor1 +10\.26\.", named)
        assert "child" not in named
    assert main(["analyze", trace]) == 0
    assert "child 1 was" in capsys.readouterr().out


def test_the_longest_round_is_shown(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(trace)]) == 0
    out = capsys.readouterr().out
    assert "aggregates captured" in out
    assert main(["analyze", str(trace), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    longest = max(report["jobs"][0]["per_round"], key=lambda told: told["seconds"])
    assert f"round {longest['number']} of job 1: {longest['seconds'] * 1000:.3f} ms" in out


def test_no_such_round(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option, value in (("round", "77"), ("job", "2")):
        assert main(["analyze", str(trace), f"--{option}", value]) == 2
        message = capsys.readouterr().err
        assert f"no such {option};" in message
        assert message.endswith(": job 1 has rounds 0 to 4\n")


@pytest.fixture(scope="module")
def page(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page, made as by a command."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    words = ["analyze", str(trace), "--order", "known", "--round", "1", "--html", str(path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["iswitch", *words])
        assert main(words) == 0
    assert shlex.join(["iswitch", *words]) in path.read_text()
    return path


def test_counts_have_whole_axes() -> None:
    worker = {"type": "worker", "name": "rank", "behind": 0.001}
    members = [{**worker, "rank": rank, "last_of_round": rank} for rank in range(3)]
    told = {"resent": 1, "duplicates": 0, "late": 0, "helps": 0}
    job = {"members": members, "per_round": [{**told, "number": i} for i in range(2)]}
    figures = [(charts.stragglers(job), "x"), (charts.losses(job), "x"), (charts.losses(job), "y")]
    for figure, axis in figures:
        (axes,) = figure.axes
        ticks = axes.get_xticks() if axis == "x" else axes.get_yticks()
        assert {float(at).is_integer() for at in ticks} == {True}


def test_the_page(trace: Path, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text()
    for caption in (
        "Who sent when, and when aggregates were complete",
        "When each segment came from each, and was complete",
        f"Where the time of each worker went. {escape(MEANING)}",
        "How often each worker was the last, and by how much",
        "What came more than once, or was asked for",
    ):
        assert f"<figcaption>{caption}</figcaption>" in text
    assert "<script" not in text
    assert '<a download="page.json"' in text
    again = tmp_path / page.name
    words = ["analyze", str(trace), "--order", "known", "--round", "1", "--html", str(again)]
    monkeypatch.setattr(sys, "argv", ["iswitch", *words])
    assert main(words) == 0
    assert again.read_text().replace(str(again), str(page)) == text


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("chromium") is None and os.geteuid() != 0, reason="chromium is not installed"
)
def test_the_page_opens_without_trouble(page: Path) -> None:
    with browser() as opened:
        visit = opened.visit(page)
    assert visit.requests == [page.as_uri()]
    assert not visit.trouble


def test_of_an_upper_switch_the_members_are_switches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, page = str(tmp_path / "core.pcapng"), str(tmp_path / "core.html")
    assert (
        main(["generate", trace, "--topology", "rack:2x2", "--numel", "800", "--rounds", "2"]) == 0
    )
    capsys.readouterr()
    assert main(["analyze", trace, "--html", page]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^ child  0  10\.\d+", said, re.MULTILINE)
    assert re.search(r"^  child 0 +\d", said, re.MULTILINE)
    assert "rank" not in said
    assert main(["replay", trace, "--json"]) == 0
    members = json.loads(capsys.readouterr().out)["jobs"][0]["members"]
    assert [member["type"] for member in members] == ["switch", "switch"]
    text = Path(page).read_text()
    assert "child 1" in text
    assert "rank 1" not in text
