"""Whether anything sees a mutant: soak, and the unit test that the table names."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .table import ROOT, Mutant

TREE = ("iswitch", "worker_lib", "topologies", "p4", "tests", "docs", "pyproject.toml", "README.md")
LONGEST = 30  # seconds of CPU for a history: none of the sound ones takes 3
PATIENCE = 900  # seconds for all seeds of a mutant, and for its test


class NotExamined(RuntimeError):
    """Soak or pytest did not run at all; the message has what they said."""


@dataclass(frozen=True)
class Finding:
    """What became of a mutant.

    Attributes:
        seeds: that were played until soak saw it; None: it did not.
        kind: of the violation; "hangs": a history did not end.
        message: of the violation.
        test: whether its unit test failed; None: it has none, or that was not wanted.
    """

    mutant: Mutant
    seeds: int | None
    kind: str = ""
    message: str = ""
    test: bool | None = None

    @property
    def caught(self) -> bool:
        """Whether anything saw it."""
        return self.seeds is not None or bool(self.test)

    @property
    def complaint(self) -> str:
        """What is wrong with the tests, or with the table; empty: nothing."""
        mutant = self.mutant
        if self.test is False:
            return f"{mutant.test} passes with it"
        if self.caught and mutant.survives:
            return "it is caught; its entry says that nothing can"
        if not self.caught and not mutant.survives:
            return "it survives, unexplained"
        if mutant.soak and self.seeds is None:
            return "soak does not see it"
        return ""


@contextmanager
def base(root: Path = ROOT) -> Iterator[Path]:
    """A compiled copy of the tree, in a place of its own; what is edited meanwhile is not in it."""
    with tempfile.TemporaryDirectory(prefix="iswitch-mutants-") as place:
        copy = Path(place) / "base"
        copy.mkdir()
        for name in TREE:
            if (root / name).is_dir():
                shutil.copytree(root / name, copy / name)
            else:
                shutil.copy2(root / name, copy / name)
        for name in ("iswitch", "worker_lib", "topologies", "tests"):
            compileall.compile_dir(copy / name, quiet=2)
        yield copy


def examine(mutant: Mutant, sound: Path, seeds: Sequence[int], *, tests: bool = True) -> Finding:
    """Put a mutant into a copy of the sound tree, and see whether anything sees it there.

    Raises:
        Rotten: it does not fit.
        NotExamined: soak or pytest did not run.
    """
    with tempfile.TemporaryDirectory(prefix=f"{mutant.name}-", dir=sound.parent) as place:
        tree = Path(place) / "tree"
        shutil.copytree(sound, tree)
        mutant.apply(tree)
        played, kind, message = soak(tree, seeds)
        test = fails(tree, mutant.test) if tests and mutant.test else None
    return Finding(mutant, played, kind, message, test)


def soak(tree: Path, seeds: Sequence[int], longest: int = LONGEST) -> tuple[int | None, str, str]:
    """The seeds played until a violation (None: there was none), its kind and its message."""
    if not seeds:
        return None, "", ""
    status, said, errors = _run(tree, "tests.mutants.play", *map(str, (longest, *seeds)))
    lines = [json.loads(line) for line in said.splitlines()]
    if not lines:
        raise NotExamined(f"soak does not begin: {errors[-2000:]}")
    last, played = lines[-1], len({line["seed"] for line in lines})
    if status is None:
        return played, "hangs", f"seed {last['seed']} does not end"
    if status:  # a signal, or no memory for the interpreter itself
        return played, "dies", errors.strip().rpartition("\n")[2] or f"exit status {status}"
    return (played, last["kind"], last["message"]) if "kind" in last else (None, "", "")


def fails(tree: Path, test: str) -> bool:
    """Whether a unit test fails there, or does not end."""
    plugins = ("no:cacheprovider", "no:xdist", "tests.mutants.hurry")
    options = ("-q", "-x", *(word for plugin in plugins for word in ("-p", plugin)))
    status, said, errors = _run(tree, "pytest", *options, test)
    if status not in (None, 0, 1):
        raise NotExamined(f"pytest cannot run {test}: {said[-2000:]}{errors[-2000:]}")
    return status != 0


def _run(tree: Path, module: str, *words: str) -> tuple[int | None, str, str]:
    """Run a module in a tree: exit status (None: it took too long), and what it wrote."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module, *words]
    with subprocess.Popen(
        command, cwd=tree, env=environment, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            said, errors = process.communicate(timeout=PATIENCE)
            return process.returncode, said, errors
        except subprocess.TimeoutExpired:
            process.kill()
            said, errors = process.communicate()
            return None, said, errors
        except BaseException:
            process.kill()
            raise
