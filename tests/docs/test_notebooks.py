"""The course's notebooks run, and make the outputs that are stored in them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.notebooks import COURSE, NOTEBOOKS, read
from tests.support import ROOT

pytestmark = pytest.mark.slow

LARGEST = 80_000  # bytes of a stored notebook
MEND = (
    "if that is meant, read the outputs that `python -m tests.docs.notebooks` stores, and keep them"
)
FIGURE = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the notebooks as they are after a run."""
    folder = tmp_path_factory.mktemp("course")
    subprocess.run(
        [sys.executable, "-m", "tests.docs.notebooks", "--to", str(folder)], cwd=ROOT, check=True
    )
    return folder


def shown(cell: Any) -> list[str]:
    """What a cell shows: its texts, and that there is a picture."""
    texts: list[str] = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {"text/plain": output.get("text", "")})
        texts += ["picture"] if "image/png" in data else [data[kind] for kind in sorted(data)]
    if "rounding" in cell.metadata.get("tags", ()):
        texts = [FIGURE.sub("#", text) for text in texts]
    return texts


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_those_that_are_stored(executed: Path, path: Path) -> None:
    stored, found = read(path), read(executed / path.name)
    for one, other in zip(stored.cells, found.cells, strict=True):
        assert one.source == other.source
        assert shown(one) == shown(other), MEND
        assert one.get("execution_count") == other.get("execution_count")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_notebooks_are_small_and_hold_no_error(path: Path) -> None:
    text = path.read_text()
    assert len(text) < LARGEST
    assert "/root" not in text
    assert "/tmp" not in text
    cells = json.loads(text)["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert outputs
    assert all(output["output_type"] != "error" for output in outputs)
    assert all(output.get("name") != "stderr" for output in outputs)
    assert all(cell["execution_count"] for cell in cells if cell["cell_type"] == "code")


def test_the_course_is_whole() -> None:
    """Each notebook says what one learns and has exercises; the page and the one before link it."""
    page = (COURSE / "README.md").read_text()
    texts = [path.read_text() for path in NOTEBOOKS]
    assert len(texts) == 6
    for before, path, text in zip(["", *texts], NOTEBOOKS, texts, strict=False):
        assert f"({path.name})" in page
        assert not before or f"({path.name})" in before
        for part in ("**What you learn.**", "**What you should see.**", "## Exercises"):
            assert part in text
