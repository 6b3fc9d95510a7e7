"""How `make test` deals tests out to its processes."""

from __future__ import annotations

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


def test_marks_that_decide_are_of_whole_files() -> None:
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text()
        marks = re.findall(r"\bpytest\.mark\.(serial|unit)\b", text)
        assert len(marks) <= 1, file
        assert set(marks) == marks_of(text) & {"serial", "unit"}, file


def test_serial_tests_run_in_one_process() -> None:
    """Two files of them, and one of units, which several processes get."""
    found = re.search(r"-m pytest (-n 3 --dist .*)", MAKEFILE)
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
    assert len(processes[files[2]]) > 1


def test_a_process_that_dies_costs_one_test(tmp_path: Path) -> None:
    """All others are run, once, and the run comes to its end."""
    hooks = "from tests.conftest import pytest_xdist_make_scheduler\n"
    (tmp_path / "conftest.py").write_text(hooks)
    fine = "def test_before(): pass\n\n\ndef test_after(): pass\n"
    for number in range(8):
        (tmp_path / f"test_{number}.py").write_text(fine)
    fatal = "import os\n\n\ndef test_fatal(): os._exit(1)\n\n\n"
    (tmp_path / "test_5.py").write_text(fatal + fine)
    words = [
        "-q",
        "-n",
        "2",
        "--dist",
        "loadscope",
        "--no-loadscope-reorder",
        "-p",
        "no:cacheprovider",
        "--rootdir",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
    )
    assert "1 failed, 16 passed" in done.stdout, done.stdout
    assert "crashed while running 'test_5.py::test_fatal'" in done.stdout
