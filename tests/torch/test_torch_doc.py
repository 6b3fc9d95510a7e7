"""Every listing and launch of docs/torch.md runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Where
from tests.docs.test_docs import BLOCK
from tests.support import ROOT
from tests.support.ranks import free_port, in_processes

PATIENCE = 300.0  # seconds until a test is given up; every process imports torch by itself
PAGE = BLOCK.findall((ROOT / "docs" / "torch.md").read_text())
LISTINGS = [text for tag, text in PAGE if tag == "py"]
LAUNCHES = [text for tag, text in PAGE if tag == "sh"]
LAUNCHES += [text.removeprefix("$ ") for tag, text in PAGE if tag == "console"]
TORCHRUN = "torchrun --nproc-per-node"
(TRAIN,) = (text for text in LISTINGS if text.startswith("# train.py"))


def run(_rank: int, _size: int, code: str) -> None:
    exec(compile(code, "listing", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("listing", LISTINGS)
def test_listing(switch: Where, job: int, listing: str) -> None:
    code = listing.replace("26963", str(switch[1]))
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    place = {"ISWITCH_SWITCH": "{}:{}".format(*switch), "ISWITCH_JOB": str(job)}
    met_at_the_switch = {} if "iswitch://" in listing else address | place

    def variables(rank: int) -> dict[str, str]:
        return {"RANK": str(rank), "WORLD_SIZE": "2", **met_at_the_switch}

    in_processes(run, 2, code, variables=variables)


def launched(command: str, switch: Where, folder: Path) -> subprocess.CompletedProcess[str]:
    """A launch of the page, in a folder that has train.py and nothing else."""
    (folder / "train.py").write_text(TRAIN)
    found = [Path(sys.executable).parent, os.environ["PATH"]]
    said = command.replace("127.0.0.1:26963", "{}:{}".format(*switch))
    said = said.replace(TORCHRUN, f"torchrun --master-port {free_port()} --nproc-per-node")
    return subprocess.run(
        ["sh", "-c", said.replace("29500", str(free_port()))],
        capture_output=True, text=True, timeout=PATIENCE, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": ":".join(map(str, found))},
    )  # fmt: skip


@pytest.mark.parametrize("command", LAUNCHES)
def test_one_script_runs_in_all_ways(switch: Where, tmp_path: Path, command: str) -> None:
    done = launched(command, switch, tmp_path)
    assert done.returncode == 0, done.stderr
    heard = sorted(re.findall(r"rank \d of 4 is done", done.stdout))
    assert heard == [f"rank {rank} of 4 is done" for rank in range(4)], done.stderr


def test_there_are_four_ways() -> None:
    said = "".join(LAUNCHES)
    assert len(LAUNCHES) == 4
    ways = ("run --topology star", "run --topology rack", TORCHRUN, "RANK=$rank python")
    assert all(how in said for how in ways)
