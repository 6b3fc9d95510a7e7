"""A switch shows itself at a UNIX socket: to its owner only, whatever readers do."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.lab.top.view import title
from iswitch.watch.judging import Scene
from iswitch.watch.places import BEGUN, PREFIX, Network, made_run, runs, titled
from iswitch.watch.reader import Observer, Reader
from iswitch.watch.server import READERS
from iswitch.watch.server import watched as watched_at
from tests.conftest import Where, running_switch
from tests.watch.test_snapshot import valid
from worker_lib import Worker

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("w") / "s1.sock"


@pytest.fixture(scope="module")
def watched(place: Path) -> Iterator[Where]:
    with socket.socket(socket.AF_UNIX) as left_over:  # of a killed switch
        left_over.bind(str(place))
    with running_switch("127.0.0.1:0", "--watch", str(place)) as (_, where):
        yield where
    assert not place.exists()


@pytest.mark.usefixtures("watched")
def test_only_its_owner_may_open_it(place: Path) -> None:
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


def test_counts_are_those_of_the_worker(watched: Where, place: Path) -> None:
    with Worker(watched, 3, 1000, 1) as worker:
        for _ in range(5):
            worker.allreduce(np.ones(1000, np.float32))
        time.sleep(0.2)  # so that no former snapshot is fresh
        with closing(Reader(place)) as reader:
            found = reader.read()
        with closing(Reader(place, parts=True)) as reader:
            in_parts = [reader.read(), reader.read()]
    assert found is not None
    valid(found)
    assert found["jobs"][0]["parts"] is None
    for each in in_parts:
        assert each is not None
        valid(each)
        (job,) = each["jobs"]
        assert job["parts"]["complete"] == job["members"][0]["came"] == [1, 1, 1]
        assert [one["round"] for one in job["rounds"]["recent"]] == [0, 1, 2, 3, 4]
    assert (found["name"], found["listening"]) == ("s1", "{}:{}".format(*watched))
    (job,) = found["jobs"]
    (member,) = job["members"]
    assert (job["job"], job["round"], job["rounds"]["measured"]) == (3, 4, 5)
    assert (member["rank"], member["rounds"], member["last"], member["packets"]) == (0, 5, 5, 15)
    assert found["counters"]["accumulated"] == 15


def test_ctl_prints_it(watched: Where, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ctl", "snapshot", str(place)]) == 0
    found = json.loads(capsys.readouterr().out)
    valid(found)
    assert found["listening"] == "{}:{}".format(*watched)


def test_readers_that_misbehave_stop_nobody(watched: Where, place: Path) -> None:
    idle = []
    for _ in range(READERS - 2):  # ask and never read
        one = socket.socket(socket.AF_UNIX)
        one.connect(str(place))
        one.sendall(b"x" * 100)
        idle.append(one)
    with Worker(watched, 4, 1000, 1) as worker:
        for _ in range(20):
            worker.allreduce(np.ones(1000, np.float32))
    with closing(Reader(place)) as reader:
        for _ in range(3):
            assert reader.read() is not None
    for one in idle:
        one.close()


def test_an_error_of_ours_ends_no_watching(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s.sock"
    answers: list[str | Exception] = [RuntimeError("boom"), MemoryError(), "{}", "[]"]

    def snapshots(_: bool) -> str:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return f"{found}\n"

    def asked() -> bytes:
        with socket.socket(socket.AF_UNIX) as reader:
            reader.connect(str(path))
            return reader.recv(100)

    with watched_at(str(path), snapshots):
        assert [asked() for _ in range(4)] == [b"", b"", b"{}\n", b"[]\n"]
    assert "boom" in caplog.text


def test_a_path_that_is_taken_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "precious"
    file.write_text("keep")
    assert main(["switch", "--listen", "127.0.0.1:0", "--watch", str(file)]) == 2
    assert "name a path that is free" in capsys.readouterr().err
    assert file.read_text() == "keep"
    long = str(tmp_path / ("x" * 120))
    assert main(["switch", "--listen", "127.0.0.1:0", "--watch", long]) == 2
    assert "107 bytes at most" in capsys.readouterr().err


def test_what_is_no_snapshot_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ctl", "snapshot", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["ctl", "snapshot", str(tmp_path)]) == 1
    assert "no switch listens in" in capsys.readouterr().err
    silent = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(silent))
    assert main(["ctl", "snapshot", str(silent)]) == 1
    assert "switch s does not answer" in capsys.readouterr().err


def test_folder_of_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "iswitch"
    monkeypatch.setattr("iswitch.watch.places.folder", lambda: own)
    own.mkdir(mode=0o700)
    left = own / "run-999999999-x"
    left.mkdir()
    with made_run("star:2") as one, made_run("star:3") as other:
        assert one is not None
        assert other is not None
        assert not left.exists()
        assert {stat.S_IMODE(watch.folder.stat().st_mode) for watch in (one, other)} == {0o700}
        assert set(runs()) == {one.folder, other.folder}
        named = Network("star:2", {"10.0.0.1": "h1"}, ["h7", "h8"], {"s1": "10.0.0.9:7"})
        named.write(one.folder)
        with closing(Observer(str(one.folder))) as observer:
            assert observer.network() == named
            assert observer.read() == {"s1": None}
    assert runs() == []
    assert os.listdir(own) == []
    assert named.name("worker", "10.0.0.1", 5, 1) == "h1"
    assert named.name("worker", "127.0.0.1", 5, 1) == "h8"
    assert named.name("switch", "10.0.0.9", 7, None) == "s1"
    assert named.name("controller", "127.0.0.1", 5, None) == "127.0.0.1:5"


def test_of_two_networks_one_is_shown_and_none_is_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("iswitch.watch.places.folder", lambda: tmp_path)
    tmp_path.chmod(0o700)
    with made_run("star:2") as one, made_run("star:3"):
        assert one is not None
        os.utime(one.folder / BEGUN, (1, 1))
        Network("star:2 (netns)").write(one.folder)  # which makes the folder no newer
        shown, other = runs()
        assert other == one.folder
        with closing(Observer(None)) as newest:
            assert (newest.place, newest.others()) == (shown, [other])
            told = title(Scene(newest.network(), others=newest.others())).plain
        assert told.endswith(f"; started last of 2: `iswitch top {other}` shows the other")
        with closing(Observer(str(other))) as named:
            assert named.others() == []
        assert main(["ctl", "snapshot"]) == 1  # nobody listens there
        assert f"started last; name another one to see it: {titled(other)}\n" in told_by(capsys)
        assert main(["ctl", "evict", "--job", "1"]) == 2
        err = told_by(capsys)
        assert f"2 networks of yours run here; name the one that evict is for: {shown}" in err
        assert titled(one.folder) == f"{one.folder} (star:2 (netns))"
        assert all(titled(run) in err for run in runs())
        assert main(["ctl", "drain", str(other)]) == 2
        assert "no switch can be watched" in told_by(capsys)


def told_by(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


def test_a_network_that_is_asked_for_while_it_begins_is_locked_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else it looks dead, and the next network removes its folder."""

    readers: list[threading.Timer] = []

    def asked(**options: Any) -> str:
        made = str(mkdtemp(**options))
        fd = os.open(made, os.O_RDONLY)  # as a reader does, for a moment
        fcntl.flock(fd, fcntl.LOCK_SH)
        readers.append(threading.Timer(0.05, os.close, [fd]))
        readers[-1].start()
        return made

    monkeypatch.setattr("iswitch.watch.places.folder", lambda: tmp_path)
    monkeypatch.setattr("iswitch.watch.places.mkdtemp", asked)
    with made_run("the first") as first:
        readers[0].join()
        with made_run("the next"):
            assert first is not None
            assert first.folder.exists()
            readers[1].join()
            assert len(runs()) == 2


def test_readers_that_ask_at_once_take_a_dead_network_for_dead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("iswitch.watch.places.folder", lambda: tmp_path)
    dead = tmp_path / f"{PREFIX}dead"
    dead.mkdir()
    fd = os.open(dead, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)  # another reader
    try:
        assert not runs()
    finally:
        os.close(fd)


def test_a_folder_that_others_can_write_to_shows_no_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its file would name the commands that `iswitch top` runs."""
    monkeypatch.setattr("iswitch.watch.places.folder", lambda: tmp_path)
    tmp_path.chmod(0o700)
    with made_run("star:2") as planted:
        assert planted is not None
        assert runs() == [planted.folder]
        tmp_path.chmod(0o722)
        assert runs() == []
        with made_run("star:2") as watch:
            assert watch is None


@pytest.mark.root(reason="makes a PID namespace")
def test_a_network_in_another_pid_namespace_runs_while_its_process_lives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("iswitch.watch.places.folder", lambda: tmp_path)
    tmp_path.chmod(0o700)
    program = (
        "import sys, time; from pathlib import Path; from iswitch.watch import places\n"
        "places.folder = lambda: Path(sys.argv[1])\n"
        "with places.made_run('star:2') as watch: print(watch.folder, flush=True); time.sleep(600)"
    )
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command += [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as inside:
        assert inside.stdout is not None
        made = Path(inside.stdout.readline().strip())
        assert runs() == [made]
        with made_run("star:3") as own:  # which removes what is left over
            assert own is not None
            assert set(runs()) == {made, own.folder}
        inside.kill()
    assert made.exists()
    while runs():  # until the system has ended the process
        time.sleep(0.01)
    with made_run("star:3"):
        assert not made.exists()
