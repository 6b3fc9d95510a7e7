"""The steps of docs/tutorial.md, as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import running_switch
from tests.docs.test_docs import BLOCK, TUTORIAL
from tests.support import ROOT, python

pytestmark = pytest.mark.serial

PATIENCE = 120.0
FOUND = BLOCK.findall((ROOT / "docs" / TUTORIAL).read_text())
((_, FIT),) = [block for block in FOUND if block[0] == "python"]
((_, SHOWN),) = [block for block in FOUND if block[0] == "text"]
COMMANDS = [line[2:] for kind, text in FOUND if kind == "console" for line in text.splitlines()]
RUN, IN_NETWORK, RECORD, ANALYZE, SWITCH, BY_HAND = COMMANDS[2:]
LINE = re.compile(r"(?:h\d \| )?rank (\d): (error \d\.\d{4}), sum (\d+\.\d{6})")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the script of the page."""
    (tmp_path / "fit.py").write_text(FIT)
    return tmp_path


def said(command: str, folder: Path, **variables: str) -> str:
    """What a command line of the page prints; it must end well."""
    words = shlex.split(command)
    start = ["-m", "iswitch"] if words[0] == "iswitch" else []
    words = [sys.executable if word == "python" else word for word in words[1:]]
    done = python(*start, *words, folder=folder, timeout=PATIENCE, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(output: str) -> None:
    """Four ranks have learned as well as the page shows, and to the same last digit."""
    found = sorted(LINE.findall(output))
    wanted = sorted(LINE.findall(SHOWN))
    assert [rank for rank, _, _ in found] == [rank for rank, _, _ in wanted] == list("0123")
    assert {error for _, error, _ in found} == {error for _, error, _ in wanted}
    assert len({total for _, _, total in found}) == 1


def test_the_steps_are_those_that_are_run() -> None:
    assert COMMANDS[:2] == ["make demo", ". .venv/bin/activate"]  # tests/training/test_demo.py
    for command in (RUN, IN_NETWORK, RECORD):
        assert command.endswith(" -- python fit.py")


def test_four_processes(place: Path) -> None:
    check(said(RUN, place))


@pytest.mark.root(reason="building namespaces needs root")
@pytest.mark.usefixtures("nothing_is_left")
def test_four_hosts(place: Path) -> None:
    check(said(IN_NETWORK, place))


def test_a_run_is_recorded_and_analyzed(place: Path) -> None:
    check(said(RECORD, place))
    report = said(ANALYZE, place)
    total, equal = re.findall(r"aggregates captured ([\d,]+): ([\d,]+) equal", report)[0]
    assert total == equal
    assert "<svg" in (place / "page.html").read_text()


def test_four_machines(place: Path) -> None:
    """Each is a process of its own here, which is started by hand."""
    assert SWITCH == "iswitch switch --listen 0.0.0.0:26963"
    *variables, program, script = shlex.split(BY_HAND)
    assert (program, script) == ("python", "fit.py")
    given = dict(variable.split("=") for variable in variables)
    with running_switch() as (_, (host, port)):
        processes = [
            subprocess.Popen(
                [sys.executable, script], cwd=place, stdout=subprocess.PIPE, text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), **given,
                     "ISWITCH_SWITCH": f"{host}:{port}", "RANK": str(rank)},
            )
            for rank in range(4)
        ]  # fmt: skip
        outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    check("".join(outputs))
