"""Whether anything sees a mutant: soak, and the unit test that the table names.

What fails or does not end proves something only if it passes without the mutant: `Controls` looks.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from tests.mutants.reach import put_probes
from tests.mutants.table import ROOT, Mutant, mutants

TREE = ("iswitch", "worker_lib", "topologies", "p4", "tests", "docs", "pyproject.toml", "README.md")
LONGEST = 30  # seconds of CPU for a history: none of the sound ones takes 3
PATIENCE = 900  # seconds for all seeds of a mutant, and for its test
HISTORIES = "40"  # of each random model that is a mutant's test; `make test` plays fewer
QUICK = PATIENCE / 10  # seconds without a mutant, for it to be the mutant that has no end
PASSES, FAILS, HANGS = "passes", "fails", "hangs"
ENDLESS = "endless"  # soak as a whole; a history that takes too much CPU is said to hang


class NotExamined(RuntimeError):
    """Soak or pytest did not run at all; the message has what they said."""


@dataclass(frozen=True)
class Finding:
    """What became of a mutant.

    Attributes:
        seeds: of which the last shows it to soak, counted from 0; None: none does.
        kind: of the violation; "hangs": a history did not end.
        message: of the violation.
        test: whether its unit test saw it; None: it has none, was not wanted, or is in doubt.
        test_hangs: it saw it by not ending.
        doubt: why what did not pass proves nothing: it does not without the mutant, either.
    """

    mutant: Mutant
    seeds: int | None
    kind: str = ""
    message: str = ""
    test: bool | None = None
    test_hangs: bool = False
    doubt: str = ""

    @property
    def seed(self) -> int | None:
        """The seed that shows it to soak."""
        return None if self.seeds is None else self.seeds - 1

    @property
    def caught(self) -> bool:
        """Whether anything saw it."""
        return self.seeds is not None or bool(self.test)

    @property
    def complaint(self) -> str:
        """What is wrong with the tests, or with the table; empty: nothing."""
        mutant = self.mutant
        if self.doubt:
            return self.doubt
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
        for name in ("iswitch", "worker_lib", "topologies", "tests/mutants", "tests/support"):
            compileall.compile_dir(copy / name, quiet=2)
        yield copy


@contextmanager
def copied(sound: Path, name: str) -> Iterator[Path]:
    """A copy of the sound tree, to be played in: its files are the same until one is rewritten."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=sound.parent) as place:
        yield shutil.copytree(sound, Path(place) / "tree", copy_function=os.link)


class Controls:
    """What unit tests and soak do without any mutant: each is played once, when it is asked for.

    Args:
        sound: a copy of the tree.
        known: the seed that has shown a mutant, by its name; None: all seeds are played in turn.
    """

    def __init__(self, sound: Path, known: Mapping[str, int] | None = None) -> None:
        self.sound = sound
        self.known = known
        self._found: dict[object, tuple[str, float]] = {}
        self._locks: dict[object, Lock] = {}
        self._reached: dict[int, set[str]] = {}
        self._reaching = Lock()

    def reaching(self, mutant: Mutant, seeds: Sequence[int]) -> list[int]:
        """The seeds whose histories reach what a mutant changes.

        Raises:
            NotExamined: a history breaks a promise without any mutant.
        """
        with self._reaching:
            lacking = [seed for seed in seeds if seed not in self._reached]
            if lacking:
                with copied(self.sound, "reach") as tree:
                    always = put_probes(mutants(), tree)
                    status, said, errors = _run(tree, "tests.mutants.reach", *map(str, lacking))
                if status != 0:
                    raise NotExamined(f"soak fails without any mutant: {errors[-2000:]}")
                for line in map(json.loads, said.splitlines()):
                    self._reached[line["seed"]] = {*line["reached"], *always}
        return [seed for seed in seeds if mutant.name in self._reached[seed]]

    def doubt(self, test: str, outcome: str) -> str:
        """Why this outcome of a test proves nothing; empty: it does."""
        found, seconds = self._once(test, lambda tree: outcome_of(tree, test))
        if found != PASSES:
            return f"{test} {found} without it, too"
        if outcome == HANGS and seconds > QUICK:
            return f"{test} takes {seconds:.0f} s without it: who knows whether it ends"
        return ""

    def doubt_of_soak(self, seeds: Sequence[int]) -> str:
        """Why it proves nothing that soak did not end in time; empty: it does."""
        found, seconds = self._once(tuple(seeds), lambda tree: soak(tree, seeds)[1])
        if found or seconds > QUICK:
            return f"soak takes {seconds:.0f} s without it{found and ': '}{found}"
        return ""

    def _once(self, what: object, play: Callable[[Path], str]) -> tuple[str, float]:
        with self._locks.setdefault(what, Lock()):
            if what not in self._found:
                with copied(self.sound, "control") as tree:
                    began = time.monotonic()
                    self._found[what] = play(tree), time.monotonic() - began
            return self._found[what]


def examine(
    mutant: Mutant, controls: Controls, seeds: Sequence[int], *, tests: bool = True
) -> Finding:
    """Put a mutant into a copy of the sound tree, and see whether anything sees it there.

    The seed that has shown it before is played first. The others that reach it are played, too, if
    neither that seed nor the unit test sees it, or if soak must.

    Raises:
        Rotten: it does not fit.
        NotExamined: soak or pytest did not run, or was killed.
    """
    known = None if controls.known is None else controls.known.get(mutant.name)
    tried: Sequence[int] = [known] if known is not None and known in seeds else []
    outcome, seen, doubt = PASSES, None, ""
    with copied(controls.sound, mutant.name) as tree:
        mutant.apply(tree)
        if tests and mutant.test:
            outcome = outcome_of(tree, mutant.test)
            doubt = "" if outcome == PASSES else controls.doubt(mutant.test, outcome)
            seen = None if doubt else outcome != PASSES
        seed, kind, message = soak(tree, tried)
        if not kind and (not seen or mutant.soak or controls.known is None):
            tried = controls.reaching(mutant, seeds)
            seed, kind, message = soak(tree, tried)
    if kind == ENDLESS and (why := controls.doubt_of_soak(tried)):
        seed, kind, doubt = None, "", doubt or why
    hangs = bool(seen) and outcome == HANGS
    return Finding(mutant, None if seed is None else seed + 1, kind, message, seen, hangs, doubt)


def soak(tree: Path, seeds: Sequence[int], longest: int = LONGEST) -> tuple[int | None, str, str]:
    """The seed that breaks a promise (None: there is none), its kind and its message."""
    if not seeds:
        return None, "", ""
    status, said, errors = _run(tree, "tests.mutants.play", *map(str, (longest, *seeds)))
    lines = [json.loads(line) for line in said.splitlines()]
    if not lines:
        raise NotExamined(f"soak does not begin: {errors[-2000:]}")
    last = lines[-1]
    if status is None:
        return last["seed"], ENDLESS, f"seed {last['seed']} does not end"
    if status == -signal.SIGKILL:  # by nobody here: by the kernel, for want of memory
        raise NotExamined(f"soak was killed in seed {last['seed']}")
    if status:  # a signal, or no memory for the interpreter itself
        return last["seed"], "dies", errors.strip().rpartition("\n")[2] or f"status {status}"
    return (last["seed"], last["kind"], last["message"]) if "kind" in last else (None, "", "")


def outcome_of(tree: Path, test: str) -> str:
    """Whether a unit test passes there, fails, or hangs.

    Raises:
        NotExamined: pytest did not run, or was killed.
    """
    plugins = ("no:cacheprovider", "no:xdist", "tests.mutants.hurry")
    options = ("-q", "-x", *(word for plugin in plugins for word in ("-p", plugin)))
    status, said, errors = _run(tree, "pytest", *options, test)
    if status not in (None, 0, 1):
        raise NotExamined(f"pytest cannot run {test}: {said[-2000:]}{errors[-2000:]}")
    return HANGS if status is None else FAILS if status else PASSES


def _run(tree: Path, module: str, *words: str) -> tuple[int | None, str, str]:
    """Run a module in a tree: exit status (None: it took too long), and what it wrote."""
    environment = {"ISWITCH_MODEL_SEEDS": HISTORIES, **os.environ}
    environment |= {"PYTHONPATH": str(tree), "OPENBLAS_NUM_THREADS": "1"}
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
