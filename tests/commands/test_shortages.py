"""Full disks, few descriptors, closed streams and Ctrl-C: one sentence or none, no traceback."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address
from iswitch.core.format.pcapng import Direction
from iswitch.outside import OutsideError
from iswitch.ports.capture import Capture
from iswitch.traces.reader import Reader
from tests.commands.test_damaged_input import OF, PROFILE, options
from tests.conftest import heed_interrupts
from tests.support import ROOT

COMMAND = [sys.executable, "-m", "iswitch"]


def run(
    *line: str, disk: str = "", command: Sequence[str] = COMMAND, **more: object
) -> subprocess.CompletedProcess[str]:
    """Run a command line, with a disk of FOLDER:KIB mounted that it alone sees."""
    folder, _, room = disk.partition(":")
    inside = [*command, *line]
    if disk:
        # A file takes what is left beside it, so that the smallest disk, a page, has no room.
        mount = (
            'mount -t tmpfs -o size=$(($2 + 4))k,nr_inodes=64 tmpfs "$1" '
            '&& head -c 4096 /dev/zero > "$1/filling" && shift 2 && exec "$@"'
        )
        inside = ["unshare", "-m", "sh", "-c", mount, "sh", folder, room, *inside]
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        inside, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=60,
        **{"stdout": subprocess.DEVNULL, **more},
    )  # fmt: skip


# Full disks

SUM = (
    "import numpy as np; from worker_lib import Worker\n"
    "with Worker.from_env(numel=100_000) as w: w.allreduce(np.ones(100_000, np.float32))"
)
ADD = ["--", sys.executable, "-c", SUM]
BENCH = "bench --sizes 40kB --workers 1 --strategies iswitch --rounds 1"
SIMULATE = "simulate --topology star:2,rate=1Gbit --size 40kB"
DEMO = "demo --workers 1 --iterations 1"
TRAIN = "train ppo --env CartPole-v1 --workers 1 --iterations 1"
FULL = "/dev/full"
WRITING = {  # by option: what writes it; {} is the full file, or a folder on a full disk
    "demo capture": [*DEMO.split(), "--capture", "{}"],
    "demo json": [*DEMO.split(), "--json", FULL],
    "demo plot": [*DEMO.split(), "--plot", "{}/plot.png"],
    "train out": [*TRAIN.split(), "--out", "{}"],
    "train json": [*TRAIN.split(), "--json", FULL],
    "run capture": ["run", "--topology", "star:1", "--capture", "{}", *ADD],
    "run json": ["run", "--topology", "star:1", "--json", FULL, "--", "true"],
    "run logs": ["run", "--topology", "star:1", "--jobs", "{jobs}", "--logs", "{}"],
    "record logs": [
        "record", "--to", "{spare}", "--topology", "star:1", "--jobs", "{jobs}", "--logs", "{}",
    ],
    "place plot": [
        "place", "--topology", "star:1", "--jobs", "{jobs}", "--plot", "{}/places.png",
    ],
    "simulate save": [*SIMULATE.split(), "--save", FULL],
    "simulate csv": [*SIMULATE.split(), "--csv", FULL],
    "simulate html": [*SIMULATE.split(), "--html", FULL],
    "workload out": ["workload", PROFILE, "--out", FULL],
    "train record_workload": [*TRAIN.split(), "--record-workload", FULL],
    "paper html": ["paper", "atp", "--world", "model", "--html", FULL],
    "bench json": [*BENCH.split(), "--json", FULL],
    "bench csv": [*BENCH.split(), "--csv", FULL],
    "bench html": [*BENCH.split(), "--html", FULL],
    "switch capture": ["switch", "--listen", "127.0.0.1:0", "--capture", FULL],
    "soak pcapng": ["soak", "--seed", "1", "--pcapng", FULL],
    "record to": ["record", "--to", "{}", "--topology", "star:1", *ADD],
    "record json": [
        "record", "--to", "{spare}", "--topology", "star:1", "--json", FULL, "--", "true",
    ],
    "replay out": ["replay", "{trace}", "--out", FULL],
    "analyze html": ["analyze", "{trace}", "--html", FULL],
    "generate trace": ["generate", FULL, "--numel", "9000", "--rounds", "1"],
    "dissector folder": ["dissector", "--install", "--folder", "{}"],
}  # fmt: skip
READ = {"replay trace", "analyze trace", "web trace"}
AS_MUCH = {"demo capture": 0, "train out": 60, "run capture": 8, "record to": 60}  # KiB of room
INCOMPLETE = {"run capture", "record to"}  # the commands themselves have done their work
ROOT_ONLY = pytest.mark.root(reason="mounting a small disk needs root")


def test_every_option_that_writes_is_tried_on_a_full_disk() -> None:
    writing = {
        f"{path} {a.dest}"
        for path, a in options()
        if a.nargs != 0 and "written" in OF.get(a.dest, ())
    }
    assert set(WRITING) == writing - READ


def test_each_report_that_bench_cannot_write_is_named(tmp_path: Path) -> None:
    words = BENCH.split()
    for kind in ("json", "html"):
        (tmp_path / kind).symlink_to(FULL)
        words += [f"--{kind}", str(tmp_path / kind)]
    done = run(*words, "--csv", str(tmp_path / "csv"))
    assert done.returncode == 2
    assert f"cannot write {tmp_path}/json: No space left on device" in done.stderr
    assert f"; cannot write {tmp_path}/html: No space left on device" in done.stderr
    assert (tmp_path / "csv").read_text().count("\n") > 1


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("trace") / "sound.pcapng")
    assert main(["generate", path, "--numel", "5000", "--rounds", "1"]) == 0
    return path


@pytest.mark.parametrize(
    "option", [pytest.param(o, marks=[ROOT_ONLY] * (FULL not in w)) for o, w in WRITING.items()]
)
def test_full_disks(option: str, trace: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    jobs = tmp_path / "jobs.toml"
    jobs.write_text('[[jobs]]\nname = "a"\nworkers = 1\nnumel = 9\ncommand = "echo x"\n')
    names = {"trace": trace, "spare": str(tmp_path / "spare"), "jobs": str(jobs)}
    line = [w if w == SUM else w.format(str(disk), **names) for w in WRITING[option]]
    done = run(*line, disk="" if FULL in line else f"{disk}:{AS_MUCH.get(option, 0)}")
    assert "Traceback" not in done.stderr
    name = FULL if FULL in line else str(disk)
    said = [text for text in done.stderr.splitlines() if name in text]
    if option in INCOMPLETE:
        assert done.returncode == 1, done.stderr
        assert re.search(
            rf"iswitch {line[0]}: .*{name}/s1.pcapng is not complete, [1-9]\d* frames missing: "
            "No space left on device; make room",
            done.stderr,
        ), done.stderr
    else:
        assert done.returncode == 2, done.stderr
        assert said, done.stderr
        wanted = rf"(iswitch {line[0]}:|stopped:) .*{name}[^:]*: No space left on device; make room"
        assert re.match(wanted, said[-1]), said


@ROOT_ONLY
def test_a_record_that_finds_no_room_at_all(tmp_path: Path) -> None:
    finds_no_room("loopback", tmp_path / "disk")


def finds_no_room(world: str, disk: Path) -> None:
    disk.mkdir()
    network = ["--world", world, "--topology", "rack:2x2"]
    done = run("record", "--to", str(disk), *network, *ADD, disk=f"{disk}:0")
    assert done.returncode == 2, done.stderr
    assert f"cannot write {disk}/core1.pcapng: No space left on device" in done.stderr
    assert "defect" not in done.stderr


@ROOT_ONLY
@pytest.mark.parametrize(("elements", "room"), [("100_000", 0), ("100_000", 60), ("100", 0)])
def test_a_record_in_virtual_time_ends_on_a_full_disk(
    elements: str, room: int, tmp_path: Path
) -> None:
    """Whether it fills in the middle of the run, or when what is left is written at its end."""
    disk = tmp_path / "disk"
    disk.mkdir()
    add = [*ADD[:-1], SUM.replace("100_000", elements)]
    done = run("record", "--to", str(disk), "--world", "sim", "--topology", "star:1", *add,
               disk=f"{disk}:{room}")  # fmt: skip
    said = f"iswitch record: cannot write {disk}/s1.pcapng: No space left on device; make room"
    assert done.returncode == 2, done.stderr
    assert [line.startswith(said) for line in done.stderr.splitlines()][:2] == [False, True]
    assert not re.search("Traceback|Errno|killed", done.stderr), done.stderr


RECORDED = """
import os, signal, subprocess, sys
from pathlib import Path
disk, how, ours = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
trace = disk / "s1.pcapng"
add = [sys.executable, "-c", os.environ["SUM"]]
if how == "switch":
    switch = subprocess.Popen([*ours, "switch", "--listen", "127.0.0.1:0", "--capture", trace],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    where = switch.stdout.readline().split()[1]
    place = {"ISWITCH_SWITCH": where, "ISWITCH_JOB": "1", "WORLD_SIZE": "1", "RANK": "0"}
    subprocess.run(add, env=os.environ | place, check=True)
    switch.send_signal(signal.SIGINT)
    print(switch.communicate()[1], switch.returncode)
else:
    fails = ["; sys.exit(7)" if how == "fails" else ""]
    waits = ["; print('summed', flush=True); time.sleep(60)" if how == "stopped" else ""]
    code = "import sys, time\\n" + os.environ["SUM"] + "\\n0" + fails[0] + waits[0]
    record = subprocess.Popen([*ours, "record", "--to", disk, "--topology", "star:1", "--",
                               sys.executable, "-c", code],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if how == "stopped":
        record.stdout.readline()
        record.send_signal(signal.SIGINT)
    print(record.communicate()[1], record.returncode)
replay = subprocess.run([*ours, "replay", trace], capture_output=True, text=True)
print("replayed", replay.stdout, replay.stderr, replay.returncode)
"""


@ROOT_ONLY
@pytest.mark.parametrize(
    ("how", "status", "room"),
    [("switch", 1, 500), ("works", 1, 500), ("works", 1, 60), ("fails", 7, 500),
     ("stopped", 130, 500)],
)  # fmt: skip
def test_a_capture_that_a_full_disk_cuts_is_told_of(
    how: str, status: int, room: int, tmp_path: Path
) -> None:
    """By whoever wrote it, however that ended, and by whoever replays it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    script = [sys.executable, "-c", RECORDED, str(disk), how, *COMMAND]
    done = run(disk=f"{disk}:{room}", command=script, stdout=subprocess.PIPE,
               env={**os.environ, "SUM": SUM}, preexec_fn=heed_interrupts)  # fmt: skip
    assert not re.search(
        "^Traceback", done.stdout + done.stderr, re.M
    )  # of a command's, after h1 |
    written, _, replayed = done.stdout.partition("replayed")
    why = (
        rf"{disk}/s1.pcapng is not complete, [1-9]\d* frames missing: No space left on device; mak"
    )
    assert re.search(
        rf"^iswitch {'switch' if how == 'switch' else 'record'}: .*{why}", written, re.M
    )
    assert written.split()[-1] == str(status), written
    assert "packets missing in the file, which says so" in replayed
    if room == 60:  # not even the Join is in it
        assert "nobody joins" in replayed
    else:
        assert "which says so: the switch's disk was full" in replayed
    assert replayed.split()[-1] == ("2" if room == 60 else "1"), replayed


@pytest.mark.parametrize("name", ["progress.csv", "episodes.csv"])
def test_records_of_a_training_on_a_full_disk(name: str, tmp_path: Path) -> None:
    from iswitch.lab.training.files import Files

    (tmp_path / name).symlink_to(FULL)
    files = Files(tmp_path, goes_on=False)
    files.episodes(0.0, 0, 0, [1.0])
    with pytest.raises(OutsideError, match=f"cannot write .*{name}: No space left on device; make"):
        files.close()


def test_an_event_file_on_a_full_disk_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iswitch.lab.training.files import Files

    def full() -> None:
        close()
        raise OSError(errno.ENOSPC, "No space left on device")

    files = Files(tmp_path, goes_on=False)
    close = files._board.close
    monkeypatch.setattr(files._board, "close", full)
    with pytest.raises(OutsideError) as raised:
        files.close()
    (name,) = re.findall(r"cannot write (.*): No space", str(raised.value))
    assert [*tmp_path.glob(Path(name).name)] == [*tmp_path.glob("events*")] != []


@pytest.mark.parametrize("at_once", [1, 40])
def test_a_capture_on_a_full_disk_is_whole_blocks(at_once: int, tmp_path: Path) -> None:
    """It says how many frames are missing, and what it has is not broken."""
    path = tmp_path / "s1.pcapng"
    counters = Counters()
    capture = Capture(path, ["lo"], counters)
    rows = np.zeros((at_once, 1400), np.uint8)
    here = Address("127.0.0.1", 9)

    def give(frames: int) -> None:
        for _ in range(frames // at_once):
            capture.datagrams(Direction.IN, here, here, 0x08, (rows, 1400))

    give(800)
    while capture._taken < capture._given:
        time.sleep(0.01)
    room = path.stat().st_size + 5000
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))  # EFBIG: Python ignores SIGXFSZ
    try:
        give(800)
        with pytest.raises(OSError, match="File too large"):
            capture.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with Reader(path) as reader:
        found = sum(len(batch.at) for batch in reader.batches())
        assert reader.problems.count == 0
        assert 0 < reader.dropped == counters["capture_full"]
        assert found + reader.dropped == 1600


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("line", ["--help", "--version", "soak --help", "ctl reset --help"])
def test_help_that_cannot_be_written(line: str, unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = run(*line.split(), stdout=full, env=environment)
    assert done.returncode == 2
    assert "cannot write standard output: No space left on device; make room" in done.stderr
    assert done.stderr.count("\n") == 1
