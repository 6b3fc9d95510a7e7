"""Finds the P4 compiler and the software switch, and compiles the program."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from .generate import generate
from .sizes import PROGRAM

HOME = "ISWITCH_P4_HOME"
# The pass would put the expression of every result in the place of each use of it, and the adder's
# lines build on one another: their text would double with nearly every line.
OPTIONS = ("--excludeMidendPasses", "P4::LocalCopyPropagation")
PIP = "pip install -e '.[p4]' (in a checkout of iswitch)"  # for the CLI
COMPILER, SWITCH, CLI = "p4c-bm2-ss", "simple_switch", "simple_switch_CLI"


class ToolMissing(Exception):
    """A program is missing; the message says where it was looked for."""


class CompilationFailed(Exception):
    """The compiler refused the program or printed a warning."""


def find(tool: str) -> str:
    """Find a program in $ISWITCH_P4_HOME/bin or on PATH; return its path.

    Raises:
        ToolMissing: the program is in neither.
    """
    home = os.environ.get(HOME)
    places = [f"{home}/bin"] if home else []
    path = os.pathsep.join([*places, os.environ.get("PATH", os.defpath)])
    found = shutil.which(tool, path=path)
    if found is None:
        raise ToolMissing(
            f"no {tool} in {' or '.join([*places, 'PATH'])}: build p4c (v1.2.4.8) and "
            f"behavioral-model (1.15.5) as docs/p4.md says, and name the prefix they are "
            f"installed in by {HOME}"
        )
    return found


def cache_folder() -> Path:
    """Return the folder where compiled programs are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iswitch"


def sources() -> dict[str, str]:
    """Return the text of the program's files by name, including generated files."""
    files = {path.name: path.read_text(encoding="utf-8") for path in PROGRAM.glob("*.p4")}
    return files | generate()


def cli_command() -> list[str]:
    """Return the command that runs the switch's CLI.

    The CLI is a Python program, and its own Python may lack the package thrift.

    Raises:
        ToolMissing: the CLI is not installed.
    """
    cli = find(CLI)
    with open(cli, "rb") as file:
        is_python = b"python" in file.readline(256)
    return [sys.executable, cli] if is_python and find_spec("thrift") else [cli]


def version(compiler: str) -> str:
    """Return the version that a compiler prints.

    Raises:
        CompilationFailed: the compiler prints no version.
    """
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True)
    if done.returncode:
        raise CompilationFailed(f"{compiler} --version: {done.stderr.strip() or 'it fails'}")
    return done.stdout


def compile_program(port: int, cache: Path) -> Path:
    """Compile the program for a switch at a UDP port; return the path of the JSON file.

    A program compiled before, by this compiler with these options, is taken from the cache.

    Args:
        port: UDP port at which the switch listens.
        cache: folder of compiled programs, made if missing.

    Raises:
        ToolMissing: no compiler is installed.
        CompilationFailed: the compiler refused the program or printed a warning.
    """
    compiler = find(COMPILER)
    options = [*OPTIONS, f"-DISWITCH_PORT={port}"]
    files = sources()
    parts = [
        version(compiler),
        *options,
        *(part for pair in sorted(files.items()) for part in pair),
    ]
    known = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
    compiled = cache / f"iswitch-{known}.json"
    if compiled.exists():
        return compiled
    folder = cache / f"{known}.{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
        made = folder / "switch.json"
        done = subprocess.run(
            [compiler, *options, "-o", str(made), str(folder / "switch.p4")],
            capture_output=True,
            text=True,
        )
        if done.returncode or done.stderr.strip():
            raise CompilationFailed(f"{compiler}: {done.stderr.strip() or done.stdout.strip()}")
        os.replace(made, compiled)
    finally:
        shutil.rmtree(folder)
    return compiled
