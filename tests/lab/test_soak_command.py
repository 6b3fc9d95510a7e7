"""The soak command, and what soaks have found."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from iswitch.cli import main
from iswitch.lab.soak.generate import generate
from iswitch.lab.soak.many import FEW, play
from iswitch.lab.soak.run import History, Result, run
from iswitch.lab.soak.scenario import ELASTIC, WHOLE, Event, Job, Scenario
from tests.lab.test_soak import first_caught, no_bitmap
from tests.support import ROOT

pytestmark = pytest.mark.unit


@pytest.mark.slow
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--seeds", "9", "--first", "12", "--processes", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["seeds"] == 9
    assert report["sums"] > 50
    assert report["failed"] == report["violations"] == []
    assert main(["soak", "--seeds", "3", "--first", "5", "--processes", "1"]) == 0
    assert capsys.readouterr().out.startswith("3 histories, ")


@pytest.mark.slow
def test_processes_find_what_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iswitch.lab.soak.many.FEW", 2)

    def by_seed(processes: int) -> list[Result]:
        return sorted(play(range(14, 18), processes), key=lambda result: result.seed)

    assert by_seed(2) == by_seed(1)


def patient(seed: int) -> Result:
    """Play a seed; the second first waits until the result of another has been seen."""
    limit, seen = time.monotonic() + 20, Path(os.environ["SEEN"])
    while seed == 1 and not seen.exists() and time.monotonic() < limit:
        time.sleep(0.01)
    late = seed == 1 and not seen.exists()
    return replace(run(generate(3)), seed=seed, violation="late" * late)


@pytest.mark.slow
def test_each_result_counts_as_soon_as_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when those of more seeds are: Ctrl-C would find 0 of 2000 done."""
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setattr("iswitch.lab.soak.many.play_seed", patient)
    results = play(range(2 * FEW), 2)
    others = [next(results) for _ in range(2 * FEW - 1)]
    (tmp_path / "seen").touch()
    (last,) = results
    assert (last.seed, last.violation) == (1, "")
    assert 1 not in [one.seed for one in others]


def test_one_seed_with_its_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "seed.pcapng"
    assert main(["soak", "--seed", "7", "--pcapng", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("seed 7: ")
    assert " received  JOIN " in out
    assert "all promises held: " in out.splitlines()[-1]
    assert path.read_bytes()[:4] == b"\x0a\x0d\x0d\x0a"
    assert main(["soak", "--seed", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scenario"]["seed"] == 7


@pytest.mark.slow
def test_a_failure_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says the shortest schedule, and how to play that again; the status is 1."""
    no_bitmap(monkeypatch)
    first = first_caught()[0].seed
    words = ["soak", "--first", str(first), "--seeds", "1", "--processes", "1"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert f"seed {first} breaks a promise" in out
    assert "the shortest schedule found that breaks it, too:" in out
    (command,) = [line for line in out.splitlines() if "--scenario" in line]
    scenario = command.split("--scenario ")[1].strip("'")
    assert main(["soak", "--scenario", scenario]) == 1
    assert "counted twice" in capsys.readouterr().out.splitlines()[-1]
    assert main([*words, "--json"]) == 1
    (violation,) = json.loads(capsys.readouterr().out)["violations"]
    assert violation["shortest"]["violation"] == violation["violation"] == "counted twice"


DOC = (ROOT / "docs" / "soak.md").read_text()


@pytest.mark.parametrize("at", ["", "@"])
def test_the_documented_example(
    at: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a file; the timeline has the lines of the page, in their order."""
    (scenario,) = re.findall(r"^```json\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```timeline\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL)
    path = tmp_path / "failure.json"
    path.write_text(scenario)
    assert main(["soak", "--scenario", f"{at}{path}"]) == 0
    lines = iter(capsys.readouterr().out.splitlines())
    wanted = [re.split(r"\s+# ", line)[0] for line in shown.splitlines()]
    assert [line for line in wanted if line not in lines] == []  # each behind the one before
    *_, last = lines
    assert last in " ".join(DOC.split())


def test_the_keys_of_json_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    part = DOC[DOC.index("With `--json`") : DOC.index("## What is left out")]
    tables = part.split("and for many:")
    for table, words in zip(tables, (["--seed", "3"], ["--seeds", "1"]), strict=True):
        assert main(["soak", *words, "--json"]) == 0
        found = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        keys = {key for cell in found for key in re.findall(r"`(\w+)`", cell)}
        assert keys == set(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    "words",
    [["--scenario", "nonsense"], ["--pcapng", "x"], ["--seeds", "0"], ["--seeds", "x"]],
)
def test_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["soak", *words])
    except SystemExit as ended:
        status = int(str(ended.code))
    assert status == 2
    assert capsys.readouterr().err


def ms(at: float, what: str, who: str, lasting: float = 0.0) -> Event:
    return Event(at / 1000, what, who, lasting / 1000)


TWO, THREE, FOUR = (tuple(f"h{i}" for i in range(1, n + 1)) for n in (2, 3, 4))


MENDED = {
    "a Reset relayed again, rounds later, had a switch of a tree go back": Scenario(
        3773, "rack:3x1", (Job(1, ELASTIC, THREE, "float16", 33, 33),),
        "loss=0.2,duplicate=0.1", (ms(145.573, "reset", "h3"),), 0.2, 0.01, 0.0005,
    ),
    "a switch whose workers had all left was told how many there had been": Scenario(
        2611, "tree:2x1x2", (Job(1, WHOLE, FOUR, "int32", 96, 8),), "loss=0.01,duplicate=0.3",
        (ms(12.9, "cut", "s3", 100), ms(14.3, "reborn", "h2", 20), ms(24.5, "leave", "h3", 20),
         ms(24.7, "cut", "h4", 2), ms(34.6, "leave", "h4", 20)), 0.05, 0.0025, 0.0001,
    ),
    "after restarts of two switches nobody knew of the older of two open rounds": Scenario(
        5875, "rack:1x3", (Job(1, WHOLE, THREE, "bfloat16", 1, 8),),
        "loss=0.05,duplicate=0.01,delay=100us,jitter=50us,reorder=0.3",
        (ms(55.2, "cut", "h1", 100), ms(70.2, "restart", "tor1", 50), ms(74, "cut", "tor1", 100),
         ms(221.5, "restart", "core1", 50)), 0.4, 0.02, 0.0001,
    ),
    "late answers to a switch in between told how many there had been": Scenario(
        6150, "tree:1x1x1x2", (Job(1, WHOLE, TWO, "int32", 33, 33, reproducible=True),),
        "loss=0.1,duplicate=0.1,delay=1000us,jitter=1000us,reorder=0.05",
        (ms(83.84, "pause", "s3", 100), ms(120.373, "pause", "h1", 100),
         ms(125.919, "restart", "s4", 0.01), ms(265.902, "pause", "h1", 100)), 0.4, 0.02, 2e-5,
    ),
    "the last of a whole job, replaced, began later than those who came after": Scenario(
        8027, "star:2", (Job(1, WHOLE, TWO, "int32", 33, 33),),
        "loss=0.2,duplicate=0.3,corrupt=0.01,delay=1000us,jitter=500us,reorder=0.3",
        (ms(9.5, "reborn", "h1", 1), ms(52.1, "leave", "h2", 20), ms(134, "pause", "s1", 20)),
        0.2, 0.01, 0.0001,
    ),
    "a newcomer in a job whose workers ask for their ranks": Scenario(
        79, "star:3", (Job(1, ELASTIC, TWO, "int32", 1, 8),), "loss=0.1,duplicate=0.1,corrupt=0.01",
        (ms(1.6, "join", "h3"), ms(20.6, "cut", "h3", 20), ms(38.9, "reborn", "h1", 0.01)),
        0.05, 0.00125, 0.00002,
    ),
}  # fmt: skip


SEEN = {  # beside the first twenty from the scenario's own on
    6150: [6288],  # who is held back gets the aggregate that its switch keeps by Help, not at once
}


@pytest.mark.parametrize("scenario", MENDED.values(), ids=MENDED)
def test_what_was_mended_stays_so(scenario: Scenario) -> None:
    for seed in [*range(scenario.seed, scenario.seed + 20), *SEEN.get(scenario.seed, [])]:
        result = run(replace(scenario, seed=seed))
        assert not result.violation, (seed, result.message)


@pytest.mark.parametrize("broken", ["", "sum"])
def test_ctrl_c_tells_what_was_found_so_far(
    broken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def some(seeds: range, _: int) -> Iterator[Result]:
        yield replace(run(generate(1)), seed=seeds[0])
        yield replace(run(generate(1)), seed=seeds[1], violation=broken)
        raise KeyboardInterrupt

    monkeypatch.setattr("iswitch.lab.soak.many.play", some)
    assert main(["soak", "--seeds", "9", "--first", "70"]) == 130
    out, err = capsys.readouterr()
    assert err == "iswitch soak: stopped by SIGINT after 2 of 9 histories\n"
    assert re.match("2 histories, .*: 1 violation\n" if broken else "2 histor.*no violations", out)
    assert out.endswith("failed: 71\n") == bool(broken)
    assert main(["soak", "--seeds", "9", "--json"]) == 130
    report = json.loads(capsys.readouterr().out)
    assert (report["seeds"], report["complete"]) == (2, False)
    monkeypatch.setattr(History, "play", lambda _: signal.raise_signal(signal.SIGINT))
    assert main(["soak", "--seed", "5"]) == 130
    said = "iswitch soak: stopped by SIGINT in the history of seed 5\n"
    assert capsys.readouterr() == ("", said)


def test_ctrl_c_while_a_schedule_is_made_shorter_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two failed; it comes while the second is made shorter."""

    def both(seeds: range, _: int) -> Iterator[Result]:
        yield from (replace(run(generate(1)), seed=seed, violation="sum") for seed in seeds)

    def slow(scenario: Scenario) -> tuple[Scenario, Result]:
        if scenario.seed == 71:
            signal.raise_signal(signal.SIGINT)
        return scenario, run(scenario)

    monkeypatch.setattr("iswitch.lab.soak.many.play", both)
    monkeypatch.setattr("iswitch.lab.soak.shrink.shrink", slow)
    words = ["soak", "--seeds", "3", "--first", "70"]
    assert main(words) == 130
    out, err = capsys.readouterr()
    assert err == "iswitch soak: stopped by SIGINT while it made the schedule of seed 71 shorter\n"
    assert out.startswith("seed 70 breaks a promise")
    assert re.search("3 histories, .*: 3 violations\nfailed, too: 71 72\n$", out)
    assert main([*words, "--json"]) == 130
    report = json.loads(capsys.readouterr().out)
    assert (report["seeds"], report["complete"], report["failed"]) == (3, True, [70, 71, 72])
    assert [violation["seed"] for violation in report["violations"]] == [70]


@pytest.mark.slow
def test_no_process_of_soak_ever_minds_ctrl_c() -> None:
    """From its first instruction on: one that is still being imported would print a traceback."""
    soak = subprocess.Popen(
        [sys.executable, "-m", "iswitch", "soak", "--seeds", "300", "--processes", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    children = Path(f"/proc/{soak.pid}/task/{soak.pid}/children")
    begun: list[str] = []
    while not begun and soak.poll() is None:
        for child in children.read_text().split():
            with suppress(OSError):
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    begun.append(child)
    words = dict(
        line.split(":", 1) for line in Path(f"/proc/{begun[0]}/status").read_text().splitlines()
    )
    deaf = int(words["SigBlk"], 16) | int(words["SigIgn"], 16)
    os.killpg(soak.pid, signal.SIGINT)
    output = soak.communicate(timeout=60)
    said = b"iswitch soak: stopped by SIGINT after 0 of 300 histories\n"
    assert (soak.returncode, output) == (130, (b"", said))
    assert deaf & 1 << signal.SIGINT - 1
