"""docs/strategies.md: its listings run by its commands, its tables complete."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support import ROOT, python
from worker_lib.strategies import STRATEGIES, errors, ps

pytestmark = pytest.mark.serial

TEXT = (ROOT / "docs" / "strategies.md").read_text()
LISTINGS = dict(re.findall(r"^```py\n# (\w+\.py)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN = {code: text for (_, code), (tag, text) in pairwise(BLOCK.findall(TEXT)) if tag == "text"}
COMMANDS = {  # and what they print
    command: text
    for code, text in SHOWN.items()
    for command in re.findall(r"^\$ iswitch (.*)$", code, re.MULTILINE)
}


def run(folder: Path, *words: str) -> str:
    for name, code in LISTINGS.items():
        (folder / name).write_text(code)
    this = {"python": sys.executable}
    done = python(*(this.get(word, word) for word in words), folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_all_that_is_run_has_its_output() -> None:
    assert len(COMMANDS) == TEXT.count("\n$ iswitch ") == 4
    assert sum("# packed.py" in code for code in SHOWN) == 1


@pytest.mark.parametrize("command", [words for words in COMMANDS if "total.py" in words])
def test_commands(command: str, tmp_path: Path) -> None:
    if "netns" in command and os.geteuid() != 0:
        pytest.skip("building namespaces needs root")
    lines = sorted(run(tmp_path, "-m", "iswitch", *shlex.split(command)).splitlines())
    assert lines == COMMANDS[command].splitlines()


def test_training(tmp_path: Path) -> None:
    (command,) = (words for words in COMMANDS if words.startswith("train"))
    watch, *said = run(tmp_path, "-m", "iswitch", *shlex.split(command)).splitlines()
    first, rest, last = COMMANDS[command].splitlines()
    assert watch.startswith(" to watch: iswitch top ")
    assert rest == "..."
    assert (said[0], said[-1]) == (first, last)


def test_packing(tmp_path: Path) -> None:
    (output,) = (text for code, text in SHOWN.items() if "# packed.py" in code)
    assert run(tmp_path, "packed.py") == output


def test_tables_are_complete() -> None:
    for name in STRATEGIES:
        assert f"\n| `{name}` |" in TEXT
    for name, value in vars(errors).items():
        if inspect.isclass(value) and value.__module__ == errors.__name__:
            assert f"\n| `{name}` |" in TEXT
    for name in inspect.signature(ps.join).parameters:
        assert name in ("numel", "timeout") or f"\n| `{name}` |" in TEXT
