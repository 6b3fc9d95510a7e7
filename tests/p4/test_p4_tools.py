"""The tools of the P4 program: which is run, and when what it made is made anew."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from p4 import tools
from p4.tools import CLI, COMPILER, HOME, CompilationFailed, cli_command, compile_program

pytestmark = pytest.mark.unit

STAND_IN = """#!{python}
import sys
here = {here!r}
words = sys.argv[1:]
if words == ["--version"]:
    print(open(here + "/version").read())
    sys.exit(int(open(here + "/status").read()))
open(here + "/calls", "a").write(" ".join(words) + chr(10))
open(words[words.index("-o") + 1], "w").write("compiled")
"""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a stand-in for the compiler, what it says its version is, and its calls."""
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / COMPILER
    tool.write_text(STAND_IN.format(python=sys.executable, here=str(tmp_path)))
    tool.chmod(0o755)
    for name, content in (("version", "1.2.4.8"), ("status", "0"), ("calls", "")):
        (tmp_path / name).write_text(content)
    monkeypatch.setenv(HOME, str(tmp_path))
    return tmp_path


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines())


def test_a_program_is_compiled_once(compiler: Path) -> None:
    cache = compiler / "cache"
    first = compile_program(26963, cache)
    assert first.read_text() == "compiled"
    assert compile_program(26963, cache) == first
    assert calls(compiler) == 1
    assert compile_program(26964, cache) != first
    assert calls(compiler) == 2
    assert {path.suffix for path in cache.iterdir()} == {".json"}


def test_another_compiler_compiles_it_anew(compiler: Path) -> None:
    first = compile_program(26963, compiler / "cache")
    (compiler / "version").write_text("1.2.5.0")
    assert compile_program(26963, compiler / "cache") != first
    assert calls(compiler) == 2


def test_other_options_compile_it_anew(compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_program(26963, compiler / "cache")
    monkeypatch.setattr(tools, "OPTIONS", (*tools.OPTIONS, "--other"))
    assert compile_program(26963, compiler / "cache") != first
    assert calls(compiler) == 2


def test_a_compiler_that_does_not_run_is_told_of(compiler: Path) -> None:
    (compiler / "status").write_text("1")
    with pytest.raises(CompilationFailed, match=f"{COMPILER} --version"):
        compile_program(26963, compiler / "cache")


@pytest.mark.parametrize(
    ("head", "has_thrift", "python"),
    [
        ("#!/usr/bin/env python3\n", True, [sys.executable]),
        ("#!/usr/bin/env python3\n", False, []),
        ("#!/bin/sh\n", True, []),
    ],
)
def test_the_cli_runs_in_the_python_that_has_thrift(
    head: str,
    has_thrift: bool,
    python: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python's packages in a virtual environment are not seen by the python3 on PATH."""
    (tmp_path / "bin").mkdir()
    cli = tmp_path / "bin" / CLI
    cli.write_text(head)
    cli.chmod(0o755)
    monkeypatch.setenv(HOME, str(tmp_path))
    found = ModuleSpec("thrift", None) if has_thrift else None
    monkeypatch.setattr(tools, "find_spec", lambda _: found)
    assert cli_command() == [*python, str(cli)]
