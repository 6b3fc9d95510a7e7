"""iswitch paper: every published number has its deviation, and both worlds agree."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iswitch.cli import main
from iswitch.cli import paper as cli
from iswitch.lab.bench.plan import PAPER, Size
from iswitch.lab.paper import command, setups, telling
from iswitch.lab.paper.comparing import Row, compare
from iswitch.lab.paper.gpus import GPUS
from iswitch.lab.paper.published import HEADLINES, REASONS, TITLES
from iswitch.lab.paper.setups import MODEL, SIM, Nodes, Setup, Task, Times, work_out
from tests.support import ROOT, options_of

pytestmark = pytest.mark.unit

PAGE = ROOT / "docs" / "paper.md"
MARKS = ("paper", "data sheet", "derived", "estimate", "memory", "measured", "choice")
GPU = {name: gpu.seconds for name, gpu in GPUS.items()}
ALL = setups.setups(list(TITLES), [4, 6], GPU, Nodes("", ""))


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["paper", "--world", "model", "--processes", "1", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_no_headline_is_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has a value, a mark, a deviation that follows from both numbers, and reasons."""
    found = told(capsys)
    rows = found["headlines"]
    assert [(row["paper"], row["key"]) for row in rows] == [(h.paper, h.key) for h in HEADLINES]
    assert len({(h.paper, h.key) for h in HEADLINES}) == len(HEADLINES)
    for row in rows:
        assert row["mark"] in MARKS
        assert row["reasons"]
        assert set(row["reasons"]) <= set(found["reasons"]) <= set(REASONS)
        for world in (MODEL, SIM):
            ours, off = row[world], row["deviation"][world]
            assert off is None if ours is None else off == ours / row["value"] - 1
    unknown = {row["key"].split()[0] for row in rows if row[MODEL] is None}
    assert unknown == {"async"}  # which the model does not have; virtual time does
    assert all(one["mark"] in MARKS and one["source"] for one in found["inputs"])
    assert {one["paper"] for one in found["inputs"]} == set(TITLES)


def test_every_headline_has_a_value_from_virtual_time() -> None:
    """With whatever values: none is forgotten."""
    times = [
        Times(Task(one, world), {way.label: 1.0 for way in one.ways})
        for one in ALL
        for world in (MODEL, SIM)
    ]
    rows = compare(list(TITLES), times)
    assert len(rows) == len(HEADLINES)
    assert all(row.ours[SIM] is not None for row in rows)


def test_headlines_are_of_the_largest() -> None:
    seconds = {"iswitch": 1.0, "ps": 3.0, "ring": 1.5, "iswitch async": 1.0, "ps async": 4.0}
    times = [
        Times(Task(one, SIM), seconds | {"ps": 3.0 + (one.size == PAPER["a2c"])})
        for one in ALL
        if one.network == "star:4"
    ]
    rows = {row.headline.key: row for row in compare(["iswitch"], times)}
    assert rows["sync"].ours == {MODEL: None, SIM: 4.0}
    assert rows["sync dqn"].ours[SIM] == 3.0
    assert rows["ring a2c"].ours[SIM] == 4.0 / 1.5
    assert rows["async"].ours[SIM] == 4.0
    assert rows["share"].ours[SIM] == 1 - GPU["a2c"] / 4.0
    sync = rows["sync"]
    assert sync.deviation(SIM) == 4.0 / 3.66 - 1
    assert sync.deviation(MODEL) is None
    assert isinstance(sync, Row)


@pytest.mark.slow
@pytest.mark.parametrize("slots", [0, 64])
def test_both_worlds_agree(slots: int) -> None:
    """But for the time in which a switch's pipeline passes a packet, which the model leaves out."""
    two = tuple(way for way in ALL[0].ways if way.label in ("iswitch", "ring", "ps"))
    ways = two[:1] if slots else two
    size, paper = Size("some", 20_000), "switchml" if slots else "iswitch"
    setup = Setup(paper, "star:3", "10Gbit", size, Nodes("2us", "1us"), ways, 1e-3, slots=slots)
    model, sim = (work_out(Task(setup, world)).seconds for world in (MODEL, SIM))
    assert {name: sim[name] for name in model} == pytest.approx(model, rel=0.01)
    assert set(model) == {way.label for way in ways}


def test_a_vector_fills_slots_more_than_once() -> None:
    for one in ALL:
        if one.elements:
            assert one.size.numel // one.elements > one.slots
            assert setups.line_seconds(one) < work_out(Task(one, MODEL)).seconds["iswitch"]


def test_computing_times_can_be_chosen() -> None:
    def of_dqn(text: str) -> tuple[float, str]:
        computing, kind = command._computing(text)
        chosen = setups.setups(["iswitch"], [4], computing, Nodes("", ""))
        told = setups.inputs(["iswitch"], chosen, kind)
        (mark,) = [one.mark for one in told if one.what == "computing of DQN"]
        return chosen[-1].compute, mark

    assert of_dqn("gpu") == (GPUS["dqn"].seconds, "derived")
    assert of_dqn("core") == (PAPER["dqn"].compute, "measured")
    assert of_dqn("5") == (0.005, "choice")


def test_more_workers_and_other_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "iswitch", "--workers", "6", "--host-overhead", "0s")
    assert list(dict.fromkeys(one["network"] for one in found["setups"])) == ["star:4", "rack:2x3"]
    assert {"0s", "fpga"} <= {one["value"] for one in found["inputs"]}
    ideal = {row["key"]: row[MODEL] for row in found["headlines"]}
    assert (
        ideal["sync"] < {r["key"]: r[MODEL] for r in told(capsys, "iswitch")["headlines"]}["sync"]
    )


def test_what_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.html"
    line = ["paper", "--world", "model", "--processes", "1", "--html", str(path)]
    assert main(line) == 0
    text = " ".join(capsys.readouterr().out.split())
    page = path.read_text()
    for title in TITLES.values():
        assert title in text
        assert title in page
    for headline in HEADLINES:
        assert headline.what in page
    assert "gradient of PPO: 40.02 KB (paper: its workloads)" in text
    assert "(1) The computing times decide the shares" in text
    assert "model, ms" in text
    assert "irtual time, ms" not in text  # nor another column of what was not asked for
    assert "difference" not in text
    assert page.count("<svg") == len(TITLES)


def test_ctrl_c_tells_what_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(work: Any, tasks: list[Task], _: int) -> Iterator[Times]:
        yield work(tasks[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "spread", stopped)
    assert main(["paper", "atp", "--world", "model", "--json"]) == 130
    out = capsys.readouterr()
    assert "stopped by SIGINT after 1 of 4 set-ups" in out.err
    found = json.loads(out.out)
    assert not found["complete"]
    assert [row[MODEL] for row in found["headlines"]] == [None, None]  # none is left out


def test_stopped_before_anything_is_done_it_tells_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(_: Any, tasks: list[Task], __: int) -> Iterator[Times]:
        worlds.extend(task.world for task in tasks)
        signal.raise_signal(signal.SIGTERM)
        yield from ()

    worlds: list[str] = []
    monkeypatch.setattr(command, "spread", stopped)
    path = tmp_path / "page.html"
    assert main(["paper", "atp", "--html", str(path)]) == 128 + signal.SIGTERM
    out, err = capsys.readouterr()
    assert not out
    assert err.endswith("iswitch paper: stopped by SIGTERM after 0 of 8 set-ups\n")
    assert not path.exists()
    assert worlds == [MODEL] * 4 + [SIM] * 4  # what takes no time is kept if the rest is stopped


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nsdi", "'nsdi': choose of iswitch, switchml, atp"),
        ("--workers 8", "--workers: 8 workers are not three in each rack"),
        ("--workers x", "--workers x: whole numbers of 1 or more"),
        ("--compute soon", "--compute soon: write gpu, core, or milliseconds"),
        ("--host-overhead soon", "--host-overhead: 'soon' is none of"),
        ("--switch-latency soon", "--switch-latency: 'soon' is none of"),
    ],
)
def test_mistakes_are_told(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", *line.split()]) == 2
    assert said in capsys.readouterr().err


def test_options_are_documented() -> None:
    text = PAGE.read_text()
    for option in options_of(cli.configure):
        assert f"`{option}" in text, option


def test_the_page_has_every_headline() -> None:
    """With the published value and the model's, as the command prints them."""
    chosen = setups.setups(list(TITLES), [command.FIRST], GPU, Nodes("", ""))
    rows = compare(list(TITLES), [work_out(Task(one, MODEL)) for one in chosen])
    text = re.sub(r" +", " ", PAGE.read_text())
    for headline, row in zip(HEADLINES, rows, strict=True):
        published = telling.value(headline.value, headline.unit)
        ours = telling.ours(row, MODEL)
        assert f"| {headline.what} | {published} | {headline.mark} | {ours} | " in text
