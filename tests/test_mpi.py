"""The strategy mpi: how workers that run already become ranks, and what lacks is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker_lib.strategies import make, mpi
from worker_lib.strategies.errors import Unavailable
from worker_lib.strategies.mpi import command, spanning

from .groups import group

ROOT = Path(__file__).parent.parent
PATIENCE = 60.0


def test_networks_of_addresses() -> None:
    assert str(spanning(["127.0.0.1"] * 3)) == "127.0.0.0/30"
    assert str(spanning(["10.26.0.1", "10.26.0.2"])) == "10.26.0.0/30"
    assert str(spanning(["10.26.0.1", "10.26.0.9", "10.26.0.2"])) == "10.26.0.0/28"


def test_the_command() -> None:
    words = command(["10.26.0.1", "10.26.0.1", "10.26.0.2", "10.26.0.2"], "/tmp/doors")
    assert words[words.index("--host") + 1] == "10.26.0.1:2,10.26.0.2:2"
    assert words[words.index("-n") + 1] == "4"
    assert words[words.index("btl") + 1] == "tcp,self"
    assert words[words.index("oob_tcp_if_include") + 1] == "10.26.0.0/30"
    assert words[-2:] == ["rank", "/tmp/doors"]
    assert "oob_tcp_if_include" not in command(["127.0.0.1"] * 2, "/tmp/doors")


def test_what_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi.shutil, "which", lambda _: None)
    with pytest.raises(Unavailable, match="apt-get install --no-install-recommends openmpi-bin"):
        make("mpi", 10)
    monkeypatch.setattr(mpi, "find_spec", lambda _: None)
    with pytest.raises(Unavailable, match="needs mpi4py: pip install -e"):
        make("mpi", 10)


FAILING = """
import os, sys
import numpy as np
from worker_lib.strategies import make
with make("mpi", 3) as strategy:
    strategy.allreduce(np.ones(3, np.float32))
    if strategy.rank == 2:
        os._exit(7)
    strategy.allreduce(np.ones(3, np.float32))
"""


def test_a_rank_that_dies_ends_the_others() -> None:
    command = [sys.executable, "-m", "iswitch", "run", "--topology", "star:3", "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", FAILING], cwd=ROOT, capture_output=True, text=True,
        timeout=PATIENCE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode in (1, 7), done.stderr


def broken(folder: str) -> str:
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    with pytest.raises(mpi.RendezvousError) as caught:
        make("mpi", 3)
    return str(caught.value)


def test_what_mpirun_says_is_told(tmp_path: Path) -> None:
    fake = tmp_path / "mpirun"
    fake.write_text("#!/bin/sh\necho out of slots\nexit 1\n")
    fake.chmod(0o755)
    first, *others = group(broken, 2, str(tmp_path))
    assert first == "mpirun has not connected the workers; it says: out of slots"
    assert others[0].startswith("rank 0 has given up")
    assert not list(Path("/tmp").glob("iswitch-mpi-*/agents"))
