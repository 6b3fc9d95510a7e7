"""The listing of docs/mpi.md runs as it stands there; what processes of their own show."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import BLOCK
from tests.support import ROOT, python

pytestmark = pytest.mark.serial

PAGE = BLOCK.findall((ROOT / "docs" / "mpi.md").read_text())
(LISTING,) = (text for tag, text in PAGE if tag == "py")
(OUTPUT,) = (text for tag, text in PAGE if tag == "text")
LOST = """
from worker_lib import mpi as MPI
comm = MPI.COMM_WORLD
comm.Barrier()
if comm.rank == 1:
    comm.Abort(3)
try:
    comm.Barrier()
except MPI.Exception as error:
    print(error, flush=True)
"""


def run(tmp_path: Path, topology: str, code: str) -> tuple[int, list[str]]:
    """Run a program under `iswitch run`; return its status, and what it printed, sorted."""
    (tmp_path / "program.py").write_text(code)
    words = ["-m", "iswitch", "run", "--topology", topology, "--", sys.executable, "program.py"]
    done = python(*words, folder=tmp_path)
    lines = [line.partition(" | ")[2] for line in done.stdout.splitlines()]
    return done.returncode, sorted(line for line in lines if line)


@pytest.mark.parametrize("topology", ["star:4", "rack:2x2"])
def test_listing(tmp_path: Path, topology: str) -> None:
    assert run(tmp_path, topology, LISTING) == (0, OUTPUT.splitlines())


def test_abort_ends_all(tmp_path: Path) -> None:
    status, printed = run(tmp_path, "star:2", LOST)
    assert status != 0
    assert all("rank 1" in line for line in printed)
