"""docs/dissect.md: its listings and commands in their order, and what each prints."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from iswitch.core.format import wire
from iswitch.dissect import fields
from iswitch.dissect.plugin import dissector
from tests.support import ROOT

if shutil.which("tshark") is None and os.geteuid() != 0:
    pytest.skip("tshark is not installed", allow_module_level=True)

PAGE = ROOT / "docs" / "dissect.md"
HOME = "/home/you"  # on the page


def steps(text: str) -> Iterator[tuple[str, str]]:
    """What is run, and what it prints, in order."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for at, (tag, body) in enumerate(blocks):
        if tag == "python":
            assert blocks[at + 1][0] == "text"
            yield body, blocks[at + 1][1]
        elif tag == "console":
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                yield f"$ {command}", output


def run(step: str, folder: Path) -> str:
    """What a listing or a command prints."""
    kept = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")  # compiled kernels
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "XDG_CACHE_HOME": kept,
        "COLUMNS": "100",
    }
    code, is_command = step.removeprefix("$ "), step.startswith("$ ")
    if is_command:
        code = re.sub("^iswitch ", f"{sys.executable} -m iswitch ", code)
        command = ["sh", "-c", code]
    else:
        command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if "Running as user" not in line]
    return done.stdout.replace(str(folder), HOME)


def same_version(text: str) -> str:
    return re.sub(r"tshark [\d.]+ loads", "tshark 4.0.17 loads", text)


def test_what_is_shown_is_what_is_printed(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = list(steps(text))
    assert [bool(step.startswith("$")) for step, _ in found].count(False) == 2
    for step, shown in found:
        printed = same_version(run(step, tmp_path))
        assert [line.rstrip() for line in printed.splitlines()] == shown.splitlines(), step


def test_every_field_is_in_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    entries = map(fields.entry, (wire.AckWho, wire.AckJob))
    layouts = (fields.HEADER, fields.SEG, *entries, *fields.VALUES.values())
    for field in (field for layout in layouts for field in layout):
        assert f"`iswitch.{field.filter}`" in text
        assert f"`{field.name}`" in text
    for name in fields.FLAGS.values():
        assert f"`{name}`" in text or f"`iswitch.flags.{name}`" in text
    made = set(re.findall(r'"(iswitch\.[a-z_.]+)"', dissector()))
    for name in made - {"iswitch.", "iswitch.flags."}:
        assert f"`{name}`" in text, name
    for name in ("ports", "dtype"):
        assert f"preference `iswitch.{name}`" in text
