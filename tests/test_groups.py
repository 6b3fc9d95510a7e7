"""How `make test` deals tests out to its two processes."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import marks_of
from tests.support import ROOT

pytestmark = pytest.mark.serial  # networks that it has built clean up after those of other tests

MAKEFILE = (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("file", sorted((ROOT / "tests").rglob("test_*.py")))
def test_marks_that_decide_are_of_whole_files(file: Path) -> None:
    text = file.read_text()
    whole = marks_of(text) & {"serial", "unit"}
    assert len(whole) <= 1
    marks = [ast.unparse(n) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Attribute)]
    for mark in ("serial", "unit"):
        assert marks.count(f"pytest.mark.{mark}") == (mark in whole), mark


def test_serial_tests_run_in_one_process() -> None:
    """Two files of them, and one of units, which both processes get."""
    found = re.search(r"-m pytest (-n 2 --dist .*)", MAKEFILE)
    assert found
    files = [
        "tests/worlds/test_netns.py",
        "tests/worlds/test_netns_remains.py",
        "tests/core/test_wire.py",
    ]
    some = ["-k", "bursts or rates_beyond or misuse or without_pyroute2 or test_wire"]
    command = [sys.executable, "-m", "pytest", *found[1].split(), "-v", *some, *files]
    own = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    ran = re.findall(r"^\[(gw\d)\].* (?:PASSED|SKIPPED) (\S+?)::", done.stdout, re.MULTILINE)
    processes = {file: {gateway for gateway, name in ran if name == file} for file in files}
    assert len(processes[files[0]] | processes[files[1]]) == 1
    assert processes[files[2]] == {"gw0", "gw1"}
