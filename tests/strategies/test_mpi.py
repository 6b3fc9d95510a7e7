"""The strategy mpi: how workers that run already become ranks, and what lacks is named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.support import ROOT, python
from tests.support.groups import MADE, group
from tests.support.ranks import free_port
from worker_lib.strategies import base, make
from worker_lib.strategies.errors import RendezvousError, Unavailable
from worker_lib.strategies.mpi import here_too
from worker_lib.strategies.mpi_daemon import Daemon, command, spanning
from worker_lib.strategies.rendezvous import meet

pytestmark = pytest.mark.serial

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
    shared = command(["127.0.0.1"] * 2, "/tmp/doors", "shm")
    assert shared[shared.index("btl") + 1] == "vader,self"
    assert "oob_tcp_if_include" not in command(["127.0.0.1"] * 2, "/tmp/doors")


def test_what_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_lib.strategies.base.shutil.which", lambda _: None)
    with pytest.raises(Unavailable, match="apt-get install --no-install-recommends openmpi-bin"):
        make("mpi", 10)
    monkeypatch.setattr(base, "find_spec", lambda _: None)
    with pytest.raises(Unavailable, match="needs mpi4py and mpirun and orted: pip install -e"):
        make("mpi", 10)


def twice() -> list[float]:
    sums = []
    for timeout in (60.0, 61.0):
        with make("mpi", 3, timeout=timeout) as strategy:
            sums.append(float(strategy.allreduce(np.ones(3, np.float32))[0]))
    return sums


def test_one_world_serves_whatever_the_timeouts() -> None:
    assert group(twice, 2) == [[2.0, 2.0]] * 2


FAILING = """
import os
import numpy as np
from worker_lib.strategies import make
with make("mpi", 3) as strategy:
    strategy.allreduce(np.ones(3, np.float32))
    if strategy.rank == 2:
        os._exit(7)
    strategy.allreduce(np.ones(3, np.float32))
"""


def test_a_rank_that_dies_ends_the_others() -> None:
    """And mpirun, and all that it has started."""
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", FAILING], cwd=ROOT, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
            env={**os.environ, **place, "RANK": str(rank), "PYTHONPATH": str(ROOT)},
        )
        for rank in range(3)
    ]  # fmt: skip
    said = [rank.communicate(timeout=PATIENCE)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1, 7], said
    for text in said[:2]:
        assert "mpirun has ended the job: another rank has failed" in text
    limit = time.monotonic() + PATIENCE
    while left := commands({rank.pid for rank in ranks}):
        assert time.monotonic() < limit, left
        time.sleep(0.05)


def commands(sessions: set[int]) -> list[str]:
    """The processes of these sessions."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, session, *_ = stat.read_text().rpartition(")")[2].split()
            if int(session) in sessions and state != "Z":
                found.append(stat.with_name("cmdline").read_text())
    return found


def left_between() -> str:
    """Rank 1 comes to both meetings, and is gone then."""
    if os.environ["RANK"] == "1":
        for what in ("mpi of 3 elements", "mpi's daemons"):
            meet(what, lambda here: (here, None, None), MADE)
        return ""
    with pytest.raises(RendezvousError) as caught:
        make("mpi", 3, timeout=1.0)
    return str(caught.value)


def test_who_leaves_between_the_meetings_is_named() -> None:
    assert group(left_between, 2)[0].startswith("rank 1 did not come to 127.0.0.1:")


def test_who_makes_a_folder_removes_it(tmp_path: Path) -> None:
    folder = tmp_path / "doors"
    with here_too(str(folder)):
        with here_too(str(folder)):
            assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.exists()
    assert not folder.exists()


def silent(folder: str) -> str:
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    with pytest.raises(RendezvousError) as caught:
        make("mpi", 3, timeout=1.0)
    return str(caught.value)


def test_that_mpirun_says_nothing_is_told(tmp_path: Path) -> None:
    fake = tmp_path / "mpirun"
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    fake.chmod(0o755)
    first, second = group(silent, 2, str(tmp_path))
    assert "it says nothing: look whether all hosts reach one another over TCP" in first
    assert second == f"rank 0 has given up: {first}"


def broken(folder: str) -> str:
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    tempfile.tempdir = folder  # others may have such folders in /tmp
    with pytest.raises(RendezvousError) as caught:
        make("mpi", 3)
    return str(caught.value)


def test_what_mpirun_says_is_told(tmp_path: Path) -> None:
    fake = tmp_path / "mpirun"
    fake.write_text("#!/bin/sh\necho out of slots\nexit 1\n")
    fake.chmod(0o755)
    first, *others = group(broken, 2, str(tmp_path))
    assert first == "mpirun has not connected the workers; it says: out of slots"
    assert others[0] == f"rank 0 has given up: {first}"
    assert list(tmp_path.iterdir()) == [fake]


def test_a_daemon_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """Daemons of namespaces would share one: they have one host name."""
    folders = []
    for number in range(2):
        path = tmp_path / str(number)
        with Daemon(f"sh -c 'echo $TMPDIR > {path}.made; mv {path}.made {path}; sleep 60'") as one:
            while not path.exists():
                one.check()
            folders.append(Path(path.read_text().strip()))
            assert folders[-1].is_dir()
    assert folders[0] != folders[1]
    assert not any(folder.exists() for folder in folders)


DYING = """#!/bin/sh
[ "$RANK" = 2 ] && { echo no such folder >&2; exit 3; }
exec %s "$@"
"""
JOINING = "from worker_lib.strategies import make; make('mpi', 3, timeout=300)"


@pytest.mark.root(reason="building namespaces needs root")
def test_that_a_daemon_dies_is_told_at_once(tmp_path: Path) -> None:
    """Mpirun does not notice; and who waits for mpirun would wait for the whole timeout."""
    orted = shutil.which("orted")
    fake = tmp_path / "orted"
    fake.write_text(DYING % orted)
    fake.chmod(0o755)
    words = ["run", "--world", "netns", "--topology", "star:3", "--", sys.executable, "-c", JOINING]
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = python("-m", "iswitch", *words, timeout=PATIENCE, PATH=path)
    assert done.returncode == 1, done.stderr
    said = "Open MPI's daemon on this host has ended with status 3; it says: no such folder"
    assert f"h3 | worker_lib.strategies.errors.RendezvousError: {said}" in done.stderr
    assert f"h1 | worker_lib.strategies.errors.RendezvousError: rank 2 says: {said}" in done.stderr
