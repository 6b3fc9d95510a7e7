"""`iswitch run --fallback`: a switch with few slots, and one above it that adds the rest."""

from __future__ import annotations

import json
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from iswitch.cli import main
from iswitch.lab.launch import shares
from iswitch.lab.launch.processes import Fleet
from iswitch.system.logs import is_logged
from tests.worlds.test_run import as_root, run

pytestmark = pytest.mark.serial

SUM = """
    import numpy as np
    from worker_lib import Worker
    with Worker.from_env(numel=20_000, dtype=np.int32) as worker:
        mine = np.arange(20_000, dtype=np.int32)
        for round_ in range(3):
            total = worker.allreduce(mine + round_)
            assert (total == worker.num_workers * (mine + round_)).all()
    print("summed over", worker.num_workers)
"""


@pytest.mark.parametrize(
    ("world", "policy"),
    [
        ("loopback", "preempt"),
        ("sim", "besteffort"),
        pytest.param("netns", "preempt", marks=as_root),
    ],
)
def test_a_fallback_adds_what_finds_no_slot(world: str, policy: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ["--topology", "star:3", "--world", world, "--json", str(report)]
    command = [sys.executable, "-c", textwrap.dedent(SUM)]
    status, out, err = run(*words, "--fallback", f"{policy}:8", "--", *command)
    assert status == 0, err
    assert sorted(out.splitlines()) == [f"h{i} | summed over 3" for i in (1, 2, 3)]
    told = json.loads(report.read_text())
    switches = told["switches"]
    assert sorted(switches) == ["fallback", "s1"]
    own, above = switches["s1"], switches["fallback"]
    segments = 3 * -(-20_000 // 366)
    assert own["accumulated"] + own["passed_on"] >= 3 * segments
    assert min(own["accumulated"], own["passed_on"]) > 0
    assert above["accumulated"] == segments <= own["from_parent"]  # some twice, on a busy machine
    assert above["merged"] > 0
    share = own["accumulated"] / (own["accumulated"] + own["passed_on"])
    assert told["share_added"] == {"s1": share}
    assert f"contributions added: {share:.1%} in s1, the rest in the fallback" in err


def test_the_share_is_told_of_those_below_a_fallback_only() -> None:
    own, above = {"accumulated": 30, "passed_on": 10}, {"accumulated": 5, "passed_on": 0}
    assert shares.told({"s1": above}) == ""
    assert shares.told({"fallback": above, "s1": own}) == "75.0% in s1, the rest in the fallback"
    assert shares.told({"fallback": above, "s1": above}) == "100.0% in s1"
    assert shares.shares({"core1": above, "tor1": own, "tor2": above}) == {"tor1": 0.75}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("static:8", "'static:8' is not besteffort:N or preempt:N"),
        ("besteffort", "'besteffort' is not besteffort:N or preempt:N"),
        ("preempt:12", "12 is not a power of two"),
    ],
)
def test_what_is_no_fallback(given: str, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--topology", "star:2", "--fallback", given, "--", "true"]
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert fault in capsys.readouterr().err


@pytest.mark.parametrize("world", ["loopback", "sim"])
def test_switches_get_options(world: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(SUM)]
    words = ["--topology", "star:2", "--world", world, "--switch=--memory=0.05"]
    status, out, _ = run(*words, "--switch=--policy=static --slots 8", "--", *command)
    assert status == 0
    assert sorted(out.splitlines()) == ["h1 | summed over 2", "h2 | summed over 2"]
    status, _, err = run(*words, "--", *command)
    assert status != 0
    assert "--memory" in err, err  # the whole vector does not fit


def test_what_switches_warn_of_reaches_the_user_once() -> None:
    """Both switches count packets, and the root has none above it."""
    words = ["--topology", "rack:1x1", "--switch=--policy=besteffort", "--switch=--slots=8"]
    status, _, err = run(*words, "--", "true")
    assert status == 0
    (line,) = [line for line in err.splitlines() if "warning: " in line]
    said = "iswitch run: switch core1: warning: --policy besteffort has no switch above to pass "
    assert line.startswith(said)
    status, _, err = run("--topology", "rack:1x1", "--switch=--counting=paper", "--", "true")
    assert status == 0
    assert err.count("warning: counting packets as the paper does") == 1


def test_what_a_switch_says_as_it_fails_is_not_told_as_its_log() -> None:
    printed = "warning: a\nTraceback\nerror: b\n", "warning: c\nhalf of"
    script = "import sys, time; sys.stderr.write(sys.argv[1]); sys.stderr.flush(); print()"
    with Fleet() as fleet:
        child = fleet.start("s1", ["-c", script, "".join(printed)])
        while child.status() is None:
            list(fleet.listen(0.1))
        told = child.news()
        assert [line for line in told if is_logged(line)] == [
            "warning: a",
            "error: b",
            "warning: c",
        ]
        assert child.news() == []
        assert child.complaint() == "half of"


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (["--switch=--foo=1"], "--switch: iswitch switch has no --foo=1"),
        (["--switch=--slots=3"], "3 is not a power of two"),
        (["--switch=--policy=preempt"], "say how many: --slots N"),
        (["--switch=--slots=8", "--switch=--policy=preempt", "--switch=--memory=0.001"], "not fit"),
        (
            ["--switch=--slots=8", "--switch=--policy=preempt"],
            "instead, --fallback preempt:8 puts one",
        ),
        (
            ["--world", "sim", "--switch=--slots=8 --policy=besteffort"],
            "--switch=--policy=besteffort: star:2 is one switch, with none above it to pass",
        ),
        (["--switch=--capture=x.pcapng"], "iswitch run --capture DIR and iswitch record do it at"),
        (["--switch=--list=:0"], "--listen is set for each switch of a network; leave it out"),
        (["--switch=--memory=4 --help"], "`iswitch switch --help` lists its options"),
        (["--memory", "4"], "--memory 4; switches have it: --switch=--memory=4"),
        (["--no-shm"], "--no-shm; switches have it: --switch=--no-shm"),
        (["--switch", "--memory=4"], "expected one argument; write --switch=--memory=4"),
        (["--world", "sim", "--switch=--spin=1"], "--switch=--spin: in virtual time"),
        (["--policy", "lanes:fair"], "iswitch run --switch=--policy=lanes:fair gives it"),
    ],
)
def test_what_switches_do_not_have(
    given: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with suppress(SystemExit):
        assert main(["run", "--topology", "star:2", *given, "--", "true"]) == 2
    assert fault in " ".join(capsys.readouterr().err.split())
