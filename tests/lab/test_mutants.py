"""The table of mutants fits the code, and what plays them sees what it should."""

from __future__ import annotations

import builtins
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants import examine as examining
from tests.mutants.__main__ import line, main, summary
from tests.mutants.examine import (
    ENDLESS,
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
from tests.mutants.reach import PROBES, put_probes
from tests.mutants.table import ROOT, Mutant, Rotten, mutants, seeds_known

pytestmark = pytest.mark.slow  # by the file, which has one copy of the tree

ALL = mutants()
QUICK = "duplicate-run-counted"
GUARDED = {
    "accelerator", "job", "rounds", "window", "admission", "hierarchy", "parent", "uplink",
    "asynchronous", "keys", "guard",
    "session", "recovery", "express",
}  # fmt: skip


@pytest.fixture(scope="module")
def sound() -> Iterator[Path]:
    with base() as copy:
        yield copy


def put_in(file: str, old: str, new: str, test: str = "") -> Mutant:
    return Mutant(name="one", what="of a test", file=file, old=old, new=new, test=test)


JOB = "iswitch/core/jobs/job.py"
ROUNDS = "iswitch/core/jobs/rounds.py"
HARMLESS = put_in(ROUNDS, "return bool(going_on)", "return bool(tuple(going_on))")

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
    with pytest.raises(Rotten, match=r"/job\.py has its old text 0 times, not once"):
        put_in("iswitch/core/jobs/job.py", "what nobody wrote", "").text()
    with pytest.raises(Rotten, match=r"has its old text [0-9]+ times, not once"):
        put_in("iswitch/core/jobs/job.py", "    def ", "").text()


def test_a_mutant_never_goes_into_the_checkout() -> None:
    before = (ROOT / HARMLESS.file).read_text()
    with pytest.raises(ValueError, match="not into the checkout"):
        HARMLESS.apply(ROOT)
    assert (ROOT / HARMLESS.file).read_text() == before


# What becomes of one


def test_soak_sees_it(sound: Path) -> None:
    (mutant,) = (mutant for mutant in ALL if mutant.name == "part-as-whole")
    finding = examine(mutant, Controls(sound), range(3), tests=False)
    assert finding.caught
    assert (finding.seeds or 0) >= 1
    assert finding.kind not in ("hangs", "dies")
    assert finding.complaint == ""


def test_the_line_in_the_documentation(sound: Path) -> None:
    """docs/soak.md shows what this mutant's line is today."""
    (mutant,) = (mutant for mutant in ALL if mutant.name == "duplicate-run-counted")
    finding = examine(mutant, Controls(sound, seeds_known()), range(200), tests=False)
    shown = f" {line(replace(finding, test=bool(mutant.test)))}"
    assert f"{shown}\n" in (ROOT / "docs/soak.md").read_text()


SAMPLE = """
class Sample:
    def play(self, x):
        \"\"\"Say what it is.\"\"\"
        if x == 1: return 1
        if x == 2:
            return 2
        elif x == 3:
            y = 3
            return y
        else:
            return sum(
                part for part in (x, 1)
            )
"""
PROBED = [  # what is changed, and the calls that pass a probe before it
    ("x == 1", [1, 2, 3, 4]),
    ("return 1", [1, 2, 3, 4]),
    ("        if x == 2:", [2, 3, 4]),
    ("return 2\n", [2]),
    ("elif x == 3", [2, 3, 4]),
    ("y = 3\n            return y\n", [3]),
    ("return y", [3]),
    ("else:\n            return", [2, 3, 4]),
    ("part in", [4]),
    ("def play", None),
    ("class Sample", None),
]


@pytest.mark.parametrize(("old", "calls"), PROBED)
def test_a_probe_stands_before_what_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, calls: list[int] | None
) -> None:
    """None: it has no probe, for it runs at the import."""
    (tmp_path / "sample.py").write_text(SAMPLE)
    always = put_probes([put_in("sample.py", old, "")], tmp_path)
    assert always == (set() if calls else {"one"})
    reached: set[str] = set()
    monkeypatch.setattr(builtins, PROBES, reached, raising=False)
    names: dict[str, type] = {}
    exec((tmp_path / "sample.py").read_text(), names)
    passed = []
    for x in (1, 2, 3, 4):
        reached.clear()
        assert names["Sample"]().play(x) == (x if x < 4 else 5)
        passed += [x] * bool(reached)
    assert passed == (calls or [])


def test_what_breaks_nothing_survives(sound: Path) -> None:
    finding = examine(HARMLESS, Controls(sound), range(3))
    assert (finding.seeds, finding.kind, finding.test) == (None, "", None)
    assert finding.complaint == "it survives, unexplained"
    assert not (ROOT / HARMLESS.file).read_text().count("tuple(going_on)")


def test_a_unit_test_sees_it(sound: Path) -> None:
    """And is named if it does not."""
    test = "tests/core/test_job.py::test_three_rounds"
    wider = put_in("iswitch/core/jobs/window.py", "self.high) <= 1", "self.high) <= 2", test)
    finding = examine(wider, Controls(sound), ())
    assert (finding.seeds, finding.test, finding.complaint) == (None, True, "")
    assert outcome_of(sound, test) == PASSES


@pytest.mark.parametrize(
    ("known", "test", "named", "want"),
    [
        ({}, "", False, [[], [0, 1, 3]]),
        ({}, "tests/test_odd.py", False, [[]]),
        ({}, "tests/test_odd.py", True, [[], [0, 1, 3]]),
        ({"one": 3}, "", False, [[3], [0, 1, 3]]),
        ({"one": 7}, "", False, [[], [0, 1, 3]]),
        (None, "tests/test_odd.py", False, [[], [0, 1, 3]]),
    ],
)
def test_seeds_that_are_played(
    sound: Path,
    monkeypatch: pytest.MonkeyPatch,
    known: dict[str, int] | None,
    test: str,
    named: bool,
    want: list[list[int]],
) -> None:
    """The one that has shown it first; then those that reach it, unless the test sees it."""
    played: list[list[int]] = []

    def play(_: Path, seeds: Sequence[int]) -> tuple[int | None, str, str]:
        played.append([*seeds])
        return None, "", ""

    def reaching(*_: object) -> list[int]:
        return [0, 1, 3]

    monkeypatch.setattr(examining, "soak", play)
    monkeypatch.setattr(Controls, "reaching", reaching)
    monkeypatch.setattr(
        examining, "outcome_of", lambda tree, _: "fails" if is_mutated(tree) else PASSES
    )
    mutant = replace(odd(""), test=test, soak=named)
    examine(mutant, Controls(sound, known), range(4))
    assert played == want


def test_what_hangs_is_stopped(sound: Path, tmp_path: Path) -> None:
    endless = put_in(
        "iswitch/lab/soak/many.py", "return run(generate(seed))", "\n    while True: pass"
    )
    tree = shutil.copytree(sound, tmp_path / "tree")
    endless.apply(tree)
    assert soak(tree, [4, 5], longest=1) == (4, "hangs", "seed 4 takes more than 1 s")


ODD = """
import os, signal
from iswitch.core.jobs import job
def test_fails_anyway(): assert False
def test_is_killed():
    if hasattr(job, "MUTANT"): os.kill(os.getpid(), signal.SIGKILL)
"""


def odd(test: str) -> Mutant:
    """A harmless mutant, and one of these tests that nothing can go by."""
    named = f"tests/test_odd.py::{test}"
    head = "\n\n@dataclass\nclass Job:"
    return put_in(JOB, head, f"\nMUTANT = True\n{head}", named)


def is_mutated(tree: Path) -> bool:
    return "MUTANT" in (tree / "iswitch/core/jobs/job.py").read_text()


@pytest.fixture
def unsound(sound: Path, tmp_path: Path) -> Controls:
    tree = shutil.copytree(sound, tmp_path / "unsound")
    (tree / "tests" / "test_odd.py").write_text(ODD)
    return Controls(tree)


def test_what_fails_without_a_mutant_proves_nothing(unsound: Controls) -> None:
    mutant = odd("test_fails_anyway")
    finding = examine(mutant, unsound, ())
    assert (finding.test, finding.caught) == (None, False)
    assert finding.complaint == f"{mutant.test} fails without it, too"
    assert "IN DOUBT" in line(finding)


def test_a_test_that_was_killed_proves_nothing(unsound: Controls) -> None:
    with pytest.raises(NotExamined, match="pytest cannot run"):
        examine(odd("test_is_killed"), unsound, ())


def test_a_test_that_does_not_end_hangs(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "PATIENCE", 0.1)
    assert outcome_of(sound, "tests/core/test_job.py") == HANGS


@pytest.mark.parametrize(
    ("control", "quick", "seen", "doubt"),
    [
        (PASSES, 60.0, True, ""),
        (PASSES, 0.0, None, "takes 0 s without it: who knows whether it ends"),
        (HANGS, 60.0, None, "hangs without it, too"),
    ],
)
def test_a_hang_counts_where_the_control_is_quick(
    sound: Path,
    monkeypatch: pytest.MonkeyPatch,
    control: str,
    quick: float,
    seen: bool | None,
    doubt: str,
) -> None:
    """Each control is played once, however many mutants name the test."""
    played: list[bool] = []

    def outcome(tree: Path, _: str) -> str:
        played.append(is_mutated(tree))
        return HANGS if played[-1] else control

    monkeypatch.setattr(examining, "outcome_of", outcome)
    monkeypatch.setattr(examining, "QUICK", quick)
    controls, mutant = Controls(sound), odd("test_hangs")
    for _ in range(2):
        finding = examine(mutant, controls, ())
        assert (finding.test, finding.caught) == (seen, bool(seen))
        assert finding.complaint == (doubt and f"{mutant.test} {doubt}")
        assert ("test hangs" if seen else "IN DOUBT") in line(finding)
    assert played == [True, False, True]


@pytest.mark.parametrize(
    ("control", "quick", "seen"), [("", 60.0, True), ("", 0.0, False), (ENDLESS, 60.0, False)]
)
def test_soak_without_an_end_counts_where_the_control_is_quick(
    sound: Path, monkeypatch: pytest.MonkeyPatch, control: str, quick: float, seen: bool
) -> None:
    def play(tree: Path, _: Sequence[int]) -> tuple[int | None, str, str]:
        kind = ENDLESS if is_mutated(tree) else control
        return (2 if kind else None), kind, ""

    monkeypatch.setattr(examining, "soak", play)
    monkeypatch.setattr(examining, "QUICK", quick)
    finding = examine(odd(""), Controls(sound), [2], tests=False)
    assert (finding.seeds, finding.kind) == ((3, ENDLESS) if seen else (None, ""))
    assert finding.caught == seen
    assert finding.complaint.startswith("" if seen else "soak takes 0 s without it")


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


def test_the_command(
    sound: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.mutants.__main__.base", lambda: nullcontext(sound))
    words = ["--only", QUICK, "--seeds", "20", "--no-tests", "--processes", "1"]
    assert main(words) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("1 mutants: 1 caught by soak (median ")
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["mutants"][0]["name"] == QUICK
    assert report["mutants"][0]["seeds"] >= 1


def test_names_that_there_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--only", "nothing-of-the-kind"])
    assert ended.value.code == 2
    assert "no mutant 'nothing-of-the-kind'; --list has their names" in capsys.readouterr().err
    assert main(["--list", "--only", QUICK]) == 0
    assert capsys.readouterr().out.startswith(QUICK)
