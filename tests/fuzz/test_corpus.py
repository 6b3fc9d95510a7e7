"""Every input that the fuzzer has found worth keeping, and a little fuzzing from there."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.fuzz import corpus
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS
from tests.support import python

pytestmark = pytest.mark.unit

RUNS = {
    "control": 8000,
    "switch": 800,
    "child": 800,
    "chassis": 300,
    "guard": 1500,
    "session": 600,
    "trace": 150,
}


@pytest.mark.parametrize("name", TARGETS)
def test_corpus(name: str) -> None:
    """The invariants hold of all of it, and of the examples of docs/protocol.md."""
    inputs = corpus.inputs(name)
    assert len(inputs) >= 5
    for content in [*seeds()[name], *inputs]:
        TARGETS[name](content)


def test_corpus_is_small() -> None:
    files = list(corpus.FOLDER.iterdir())
    assert {path.name for path in files} == {f"{name}.txt" for name in TARGETS}
    assert sum(path.stat().st_size for path in files) < 1_000_000


def test_an_input_is_added_once_and_unpacked_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "FOLDER", tmp_path)
    text = tmp_path / "guard.txt"
    text.write_text("# of frames\n00ff  # the first one\n")
    assert corpus.add("guard", [b"\1\2", b"\0\xff"], "the second") == 1
    assert text.read_text().splitlines()[2:] == ["0102  # the second"]
    assert corpus.inputs("guard") == [b"\0\xff", b"\1\2"]
    corpus.unpack("guard", tmp_path / "files")
    assert {path.read_bytes() for path in (tmp_path / "files").iterdir()} == {b"\0\xff", b"\1\2"}


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris has no wheel for this Python: pip install -e '.[fuzz]' where it has",
)
@pytest.mark.parametrize("name", TARGETS)
def test_a_little_fuzzing(name: str, tmp_path: Path) -> None:
    """The same inputs every time (of one version of the code): it never fails by chance."""
    words = [name, "--work", str(tmp_path), "-seed=1", f"-runs={RUNS[name]}"]
    done = python("-m", "tests.fuzz", *words, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert not list(tmp_path.glob("crash-*"))
