"""Every input that the fuzzer has found worth keeping, and a little fuzzing from there."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
RUNS = {
    "control": 20_000,
    "switch": 1500,
    "child": 1500,
    "chassis": 1500,
    "guard": 3000,
    "session": 3000,
    "trace": 1500,
}


@pytest.mark.parametrize("name", TARGETS)
def test_corpus(name: str) -> None:
    """The invariants hold of all of it, and of the examples of docs/protocol.md."""
    inputs = sorted((CORPUS / name).iterdir())
    assert len(inputs) >= 5
    for content in [*seeds()[name], *(path.read_bytes() for path in inputs)]:
        TARGETS[name](content)


def test_corpus_is_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == set(TARGETS)
    assert sum(path.stat().st_size for path in files) < 500_000


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris has no wheel for this Python: pip install '.[fuzz]' where it has",
)
@pytest.mark.parametrize("name", TARGETS)
def test_a_little_fuzzing(name: str, tmp_path: Path) -> None:
    """The same inputs every time (of one version of the code): it never fails by chance."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", name, "--work", str(tmp_path), "-seed=1",
         f"-runs={RUNS[name]}"],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert not list(tmp_path.glob("crash-*"))
