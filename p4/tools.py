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
    """One of the programs is not there; the message says where it was looked for."""


class CompilationFailed(Exception):
    """The compiler refuses the program, or warns of something in it."""


def find(tool: str) -> str:
    """The path of a program: in $ISWITCH_P4_HOME/bin, or on PATH.

    Raises:
        ToolMissing: it is in neither.
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
    """Where compiled programs are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iswitch"


def sources() -> dict[str, str]:
    """The files of the program, by name, with the generated ones."""
    files = {path.name: path.read_text(encoding="utf-8") for path in PROGRAM.glob("*.p4")}
    return files | generate()


def cli_command() -> list[str]:
    """How the switch's CLI is run: a Python program, and its own Python may lack thrift.

    Raises:
        ToolMissing: it is not there.
    """
    cli = find(CLI)
    with open(cli, "rb") as file:
        is_python = b"python" in file.readline(256)
    return [sys.executable, cli] if is_python and find_spec("thrift") else [cli]


def version(compiler: str) -> str:
    """What a compiler says of itself.

    Raises:
        CompilationFailed: nothing.
    """
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True)
    if done.returncode:
        raise CompilationFailed(f"{compiler} --version: {done.stderr.strip() or 'it fails'}")
    return done.stdout


def compile_program(port: int, cache: Path) -> Path:
    """The program for a switch that listens at a UDP port, compiled: a file of JSON.

    What has been compiled before, by the same compiler with the same options, is taken from the
    cache: a folder, made if it is not there.

    Raises:
        ToolMissing: there is no compiler.
        CompilationFailed: it refuses the program, or warns.
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
