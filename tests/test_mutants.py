"""The table of mutants fits the code, and what plays them sees what it should."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from .mutants import examine as examining
from .mutants.__main__ import line, main, summary
from .mutants.examine import (
    ENDLESS,
    FAILS,
    HANGS,
    PASSES,
    Controls,
    Finding,
    NotExamined,
    base,
    examine,
    outcome_of,
    soak,
)
from .mutants.table import ROOT, Mutant, Rotten, mutants

ALL = mutants()
QUICK = ("duplicate-run-counted", "part-as-whole")
GUARDED = {
    "accelerator", "job", "admission", "hierarchy", "uplink", "asynchronous", "keys", "guard",
    "session", "recovery", "express",
}  # fmt: skip


@pytest.fixture(scope="module")
def sound() -> Iterator[Path]:
    with base() as copy:
        yield copy


def put_in(file: str, old: str, new: str, test: str = "") -> Mutant:
    return Mutant(name="one", what="of a test", file=file, old=old, new=new, test=test)


HARMLESS = put_in("iswitch/job.py", "return bool(going_on)", "return bool(tuple(going_on))")

# The table


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_an_entry_fits(mutant: Mutant) -> None:
    """Its right text is there once, and with the wrong one the file is Python still."""
    text = mutant.text()
    assert text != (ROOT / mutant.file).read_text()
    compile(text, mutant.file, "exec")
    file, _, name = mutant.test.partition("::")
    if file:
        function = name.partition("[")[0] or "test_"
        assert f"def {function}" in (ROOT / file).read_text(), f"there is no {mutant.test}"


def test_the_table_is_of_all_that_decides_a_sum() -> None:
    assert len({mutant.name for mutant in ALL}) == len(ALL) >= 80
    assert {Path(mutant.file).stem for mutant in ALL} >= GUARDED
    assert sum(mutant.soak for mutant in ALL) >= 17, "those that an attack found are all there"


def test_an_entry_that_does_not_fit_is_named() -> None:
    with pytest.raises(Rotten, match=r"one: iswitch/job\.py has its old text 0 times, not once"):
        put_in("iswitch/job.py", "what nobody wrote", "").text()
    with pytest.raises(Rotten, match=r"has its old text [0-9]+ times, not once"):
        put_in("iswitch/job.py", "    def ", "").text()


def test_a_mutant_never_goes_into_the_checkout() -> None:
    before = (ROOT / HARMLESS.file).read_text()
    with pytest.raises(ValueError, match="not into the checkout"):
        HARMLESS.apply(ROOT)
    assert (ROOT / HARMLESS.file).read_text() == before


# What becomes of one


@pytest.mark.parametrize("name", QUICK)
def test_soak_sees_it(sound: Path, name: str) -> None:
    (mutant,) = (mutant for mutant in ALL if mutant.name == name)
    finding = examine(mutant, Controls(sound), range(20), tests=False)
    assert finding.caught
    assert (finding.seeds or 0) >= 1
    assert finding.kind not in ("hangs", "dies")
    assert finding.complaint == ""


def test_the_line_in_the_documentation(sound: Path) -> None:
    """docs/soak.md shows what this mutant's line is today."""
    (mutant,) = (mutant for mutant in ALL if mutant.name == "duplicate-run-counted")
    finding = examine(mutant, Controls(sound), range(200), tests=False)
    shown = f" {line(replace(finding, test=bool(mutant.test)))}"
    assert f"{shown}\n" in (ROOT / "docs/soak.md").read_text()


def test_what_breaks_nothing_survives(sound: Path) -> None:
    finding = examine(HARMLESS, Controls(sound), range(3))
    assert (finding.seeds, finding.kind, finding.test) == (None, "", None)
    assert finding.complaint == "it survives, unexplained"
    assert not (ROOT / HARMLESS.file).read_text().count("tuple(going_on)")


def test_a_unit_test_sees_it(sound: Path) -> None:
    """And is named if it does not."""
    test = "tests/test_job.py::test_three_rounds"
    wider = put_in("iswitch/job.py", "self.high) <= 1", "self.high) <= 2", test)
    finding = examine(wider, Controls(sound), ())
    assert (finding.seeds, finding.test, finding.complaint) == (None, True, "")
    assert outcome_of(sound, test) == PASSES


def test_what_hangs_is_stopped(sound: Path, tmp_path: Path) -> None:
    endless = put_in("iswitch/soak/many.py", "return run(generate(seed))", "\n    while True: pass")
    tree = shutil.copytree(sound, tmp_path / "tree")
    endless.apply(tree)
    assert soak(tree, [4, 5], longest=1) == (1, "hangs", "seed 4 takes more than 1 s")


ODD = """
import os, signal
from iswitch import job
def test_fails_anyway(): assert False
def test_is_slow_anyway():
    while True: pass
def test_hangs():
    while hasattr(job, "MUTANT"): pass
def test_is_killed():
    if hasattr(job, "MUTANT"): os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def odd(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controls:
    """A sound tree with tests that are not, and little patience."""
    tree = shutil.copytree(sound, tmp_path / "odd")
    (tree / "tests" / "test_odd.py").write_text(ODD)
    monkeypatch.setattr(examining, "PATIENCE", 8)
    return Controls(tree)


@pytest.mark.parametrize(
    ("test", "seen", "complaint"),
    [
        ("test_fails_anyway", None, "fails without it, too"),
        ("test_is_slow_anyway", None, "hangs without it, too"),
        ("test_hangs", True, ""),
    ],
)
def test_what_fails_without_a_mutant_proves_nothing(
    odd: Controls, test: str, seen: bool | None, complaint: str
) -> None:
    test = f"tests/test_odd.py::{test}"
    one = put_in("iswitch/job.py", "JobAccelerator = ", "MUTANT = JobAccelerator = ", test)
    finding = examine(one, odd, ())
    assert (finding.test, finding.test_hangs) == (seen, bool(seen))
    assert finding.complaint == (complaint and f"{test} {complaint}")
    assert ("test hangs" if seen else "IN DOUBT") in line(finding)


def test_a_test_that_was_killed_proves_nothing(odd: Controls) -> None:
    test = "tests/test_odd.py::test_is_killed"
    one = put_in("iswitch/job.py", "JobAccelerator = ", "MUTANT = JobAccelerator = ", test)
    with pytest.raises(NotExamined, match="pytest cannot run"):
        examine(one, odd, ())


def test_a_slow_control_leaves_a_doubt(odd: Controls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "QUICK", 0.0)
    test = "tests/test_odd.py::test_hangs"
    assert odd.doubt(test, FAILS) == ""
    assert "who knows whether it ends" in odd.doubt(test, HANGS)
    assert odd.doubt_of_soak([3]).startswith("soak takes ")
    monkeypatch.setattr(examining, "QUICK", 60.0)
    assert odd.doubt_of_soak([3]) == ""


def test_soak_without_an_end_is_doubted(odd: Controls, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sound tree did not end in time, either."""
    endless = put_in("iswitch/soak/many.py", "return run(generate(seed))", "\n    while True: pass")
    monkeypatch.setattr(examining, "QUICK", 60.0)
    assert examine(endless, odd, [3]).kind == ENDLESS
    monkeypatch.setattr(examining, "QUICK", 0.0)
    finding = examine(endless, Controls(odd.sound), [3])
    assert (finding.seeds, finding.kind, finding.caught) == (None, "", False)
    assert finding.complaint.startswith("soak takes ")


CAUGHT = replace(HARMLESS, soak=True)
EXPLAINED = replace(HARMLESS, survives="it is equal")
COMPLAINTS = [
    (Finding(HARMLESS, 3, "wrong sum"), ""),
    (Finding(HARMLESS, None, test=True), ""),
    (Finding(HARMLESS, None), "it survives, unexplained"),
    (Finding(EXPLAINED, None), ""),
    (Finding(EXPLAINED, 3, "wrong sum"), "it is caught; its entry says that nothing can"),
    (Finding(CAUGHT, None, test=True), "soak does not see it"),
    (Finding(replace(HARMLESS, test="x"), 3, "wrong sum", test=False), "x passes with it"),
]


@pytest.mark.parametrize(("finding", "complaint"), COMPLAINTS)
def test_complaints(finding: Finding, complaint: str) -> None:
    assert finding.complaint == complaint


def test_the_last_line() -> None:
    findings = [finding for finding, _ in COMPLAINTS]
    assert summary(findings[:2]) == (
        "2 mutants: 1 caught by soak (median 3 seeds), 1 by unit tests only, 0 survivors"
    )
    assert summary(findings[3:4]) == (
        "1 mutants: 0 caught by soak, 0 by unit tests only, 1 survivors (all explained)"
    )
    assert summary(findings[:4]).endswith("2 survivors (1 UNEXPLAINED)")


# The command


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--only", QUICK[0], "--seeds", "20", "--no-tests", "--processes", "1"]
    assert main(words) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("1 mutants: 1 caught by soak (median ")
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["mutants"][0]["name"] == QUICK[0]
    assert report["mutants"][0]["seeds"] >= 1


def test_names_that_there_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--only", "nothing-of-the-kind"])
    assert ended.value.code == 2
    assert "no mutant 'nothing-of-the-kind'; --list has their names" in capsys.readouterr().err
    assert main(["--list", "--only", QUICK[0]]) == 0
    assert capsys.readouterr().out.startswith(QUICK[0])
