"""Full disks, few descriptors, closed streams and Ctrl-C: one sentence or none, no traceback."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import re
import resource
import select
import signal
import struct
import subprocess
import sys
import sysconfig
import termios
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from iswitch.cli import COMMANDS as COMMANDS_OF_ALL
from iswitch.cli import main
from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address
from iswitch.core.format.pcapng import Direction
from iswitch.outside import OutsideError
from iswitch.ports.capture import Capture
from iswitch.traces.reader import Reader
from tests.commands.test_damaged_input import CRAFTED, OF, options
from tests.conftest import heed_interrupts
from tests.support import ROOT

pytestmark = pytest.mark.serial

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
READ = {"replay trace", "analyze trace"}
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
    names = {"trace": trace, "spare": str(tmp_path / "spare")}
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


def test_standard_output_is_full_or_nobody_reads_it() -> None:
    with open("/dev/full", "w") as full:
        done = run("soak", "--seed", "1", stdout=full)
    assert done.returncode == 2
    assert done.stderr.startswith("iswitch soak: cannot write standard output: No space left")
    assert done.stderr.count("\n") == 1
    shell = f"{' '.join(COMMAND)} soak --seed 1 | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) in ((141, ""), (0, ""))


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("line", ["--help", "--version", "soak --help", "ctl reset --help"])
def test_help_that_cannot_be_written(line: str, unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = run(*line.split(), stdout=full, env=environment)
    assert done.returncode == 2
    assert "cannot write standard output: No space left on device; make room" in done.stderr
    assert done.stderr.count("\n") == 1


# Every command

SERVE = "switch --listen 127.0.0.1:0"
EVERY = {  # a line that works, and after how many seconds it has begun in earnest
    "demo": (DEMO, 1.5),
    "train": (TRAIN, 3.0),
    "run": ("run --topology star:1 -- true", 0.8),
    "bench": (BENCH, 1.5),
    "switch": (SERVE, 0.6),
    "ctl": ("ctl status --job 7 --switch 127.0.0.1:9 --timeout 0.5", 0.6),
    "doctor": ("doctor", 0.6),
    "soak": ("soak --seeds 2 --processes 1", 0.8),
    "record": ("record --to {folder}/to --topology star:1 -- true", 0.8),
    "replay": ("replay {trace}", 0.6),
    "analyze": ("analyze {trace}", 0.6),
    "generate": ("generate {folder}/made.pcapng --numel 9000 --rounds 1", 0.6),
    "dissector": ("dissector --print", 0.5),
}
COMMANDS = pytest.mark.parametrize("command", EVERY)


def words_of(command: str, trace: str, folder: Path) -> list[str]:
    folder.mkdir(exist_ok=True)
    return [word.format(trace=trace, folder=folder) for word in EVERY[command][0].split()]


def nothing_odd(said: str) -> None:
    for odd in ("Traceback", "Exception ignored", "KeyboardInterrupt", "a defect", 'File "'):
        assert odd not in said, said


def test_every_command_has_a_line() -> None:
    assert tuple(EVERY) == COMMANDS_OF_ALL


def nobody_reads(command: str, trace: str, folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run(*words_of(command, trace, folder), stdout=writer)
    os.close(writer)
    nothing_odd(done.stderr)
    silent = {"run": 0, "record": 0, "generate": 141, "ctl": 1}  # on stdout
    assert done.returncode == silent.get(command, 141), done.stderr
    said = done.stderr.replace("40kB, star:1\n", "")  # progress
    assert command in silent or said == ""


def output_is_full(command: str, trace: str, folder: Path) -> None:
    with open(FULL, "w") as full:
        done = run(*words_of(command, trace, folder), stdout=full)
    nothing_odd(done.stderr)
    silent = {"run": 0, "record": 0, "ctl": 1}
    assert done.returncode == silent.get(command, 2), done.stderr
    if command not in silent:
        wanted = f"iswitch {command}: cannot write standard output: No space left on device; make"
        assert done.stderr.splitlines()[-1].startswith(wanted), done.stderr


def sixty_columns(command: str, trace: str, folder: Path) -> None:
    line = [*COMMAND, *words_of(command, trace, folder)]
    if command == "switch":
        line = ["timeout", "--foreground", "-s", "INT", "1", *line]
    status, said = in_a_terminal(line)
    nothing_odd(said)
    assert status == {"ctl": 1, "switch": 124, "demo": 1}.get(command, 0), said


@COMMANDS
def test_wherever_it_prints(command: str, trace: str, tmp_path: Path) -> None:
    """Into a pipe that nobody reads, on a full disk, in a narrow terminal: side by side."""
    with ThreadPoolExecutor() as pool:
        ends = [
            pool.submit(case, command, trace, tmp_path / case.__name__)
            for case in (nobody_reads, output_is_full, sixty_columns)
        ]
    for end in ends:
        end.result()


BEGIN = """
import os, sys
import iswitch.__main__ as command, iswitch.system.interrupts as interrupts
real = interrupts.end_at_once
def ready():
    interrupts.end_at_once = real
    real()
    os.write({}, b"1")
interrupts.end_at_once = ready
sys.argv = ["iswitch", *sys.argv[2:]]
sys.exit(command.main())
"""
TIMES, AT_ONCE = 20, 3
SOON = 5.0  # seconds in which whatever is interrupted has ended


@COMMANDS
def test_ctrl_c_at_random_times(command: str, trace: str, tmp_path: Path) -> None:
    """From its first lines on: before, Python itself is loaded. Early times prevail."""
    more = {"soak": ["--seeds", "300", "--processes", "2"]}.get(command, [])
    rng = random.Random(command)
    delays = [EVERY[command][1] * rng.random() ** 3 for _ in range(TIMES)]

    def interrupt(i: int) -> tuple[int, str, float]:
        reader, writer = os.pipe()
        with (
            open(tmp_path / f"said{i}", "w+") as said,
            subprocess.Popen(
                [sys.executable, "-c", BEGIN.format(writer), "-",
*words_of(command, trace, tmp_path / str(i)), *more],
                cwd=ROOT, stdout=said, stderr=said, pass_fds=[writer],
                start_new_session=True, preexec_fn=heed_interrupts,
            ) as process,
        ):  # fmt: skip
            os.close(writer)
            os.read(reader, 1)
            os.close(reader)
            time.sleep(delays[i])
            begin = time.monotonic()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            status = process.wait(60)
            took = time.monotonic() - begin
            said.seek(0)
            return status, said.read(), took

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for i, (status, said, took) in enumerate(pool.map(interrupt, range(TIMES))):
            nothing_odd(said)
            ended_before = {"ctl": 1, "demo": 1}.get(
                command, 0
            )  # or, of a switch, as it is asked to
            assert status in (-signal.SIGINT, 130, ended_before), (delays[i], said)
            assert took < SOON, delays[i]


@pytest.mark.parametrize("most", [6, 8, 12])
def test_few_descriptors(most: int) -> None:
    done = run(
        "run", "--topology", "star:2", "--", "true",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most)),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Too many open files; raise the limit of this process" in done.stderr
    assert "Traceback" not in done.stderr


# Limits of the system


def limited(*line: str, **limits: int) -> subprocess.CompletedProcess[str]:
    """Run a command line under limits, of descriptors or bytes of addresses."""

    def limit() -> None:
        for name, most in limits.items():
            number = getattr(resource, f"RLIMIT_{name.upper()}")
            resource.setrlimit(number, (most, most))

    return run(*line, preexec_fn=limit)


def told_in_one_sentence(done: subprocess.CompletedProcess[str]) -> None:
    assert "Traceback" not in done.stderr
    assert done.returncode == 2, done.stderr
    assert re.match(r"iswitch \w+: ", done.stderr.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("most", [3, 4])
def test_where_python_itself_has_too_few_descriptors(most: int) -> None:
    """It ends before our first line: an editable install is found by a file that `site` runs."""
    done = limited("run", "--topology", "star:2", "--", "true", nofile=most)
    assert done.returncode
    assert not re.search(r"/(iswitch|worker_lib|topologies)/\w+\.py", done.stderr), done.stderr


def test_few_descriptors_of_python_alone() -> None:
    """As it is where iswitch is installed, rather than linked to a checkout."""
    paths = [str(ROOT), sysconfig.get_path("purelib")]
    begin = (
        f"import sys; sys.path[:0] = {paths}; sys.argv[1:] = ['run', '--topology', 'star:2', '--', "
        "'true']\nfrom iswitch.__main__ import main; sys.exit(main())"
    )
    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4)); "
    begin = limit + f"os.execv(sys.executable, ['iswitch', '-S', '-c', {begin!r}])"
    done = subprocess.run([sys.executable, "-c", begin], capture_output=True, text=True, timeout=60)
    told_in_one_sentence(done)
    assert "Too many open files; raise the limit of this process" in done.stderr


@ROOT_ONLY
@pytest.mark.parametrize("most", [5, 7])
def test_few_descriptors_of_a_network(most: int) -> None:
    """A library that looks for a folder then says that there is none."""
    done = limited("run", "--world", "netns", "--topology", "star:2", "--", "true", nofile=most)
    told_in_one_sentence(done)
    assert "Too many open files; raise the limit of this process" in done.stderr


def test_a_worker_that_cannot_load_torch() -> None:
    done = limited(*TRAIN.split(), **{"as": 400_000 << 10})
    told_in_one_sentence(done)
    assert re.search(r"h1 \(rank 0, process \d+\): cannot load .*; free some memory", done.stderr)


LINES = {"switch": "switch --listen 127.0.0.1:0", "demo": DEMO, "bench": BENCH}


@pytest.mark.parametrize("command", LINES)
def test_few_descriptors_of_other_commands(command: str) -> None:
    done = limited(*LINES[command].split(), nofile=6)
    told_in_one_sentence(done)
    assert "Too many open files; raise the limit of this process" in done.stderr


@ROOT_ONLY
def test_no_more_processes() -> None:
    """As another user, for root is not limited; Python's files may not be theirs to read."""
    begin = (
        "import os, resource, sys; import iswitch.__main__ as command\n"
        "sys.argv = ['iswitch', 'run', '--topology', 'star:2', '--', 'true']\n"
        "assert command.main() == 0\n"  # all is loaded
        "resource.setrlimit(resource.RLIMIT_NPROC, (0, 0)); os.setgroups([]); os.setuid(64123)\n"
        "sys.exit(command.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", begin], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    told_in_one_sentence(done)
    assert "no more processes or threads can be started" in done.stderr


@pytest.mark.parametrize("mib", [160, 190])
@pytest.mark.parametrize("command", ["replay", "soak", "run", "generate"])
def test_few_addresses(command: str, mib: int, trace: str, tmp_path: Path) -> None:
    """So few that something may not be had, whatever it is."""
    lines = {
        "replay": ["replay", trace],
        "soak": ["soak", "--seed", "1"],
        "run": ["run", "--topology", "star:1", "--", "true"],
        "generate": ["generate", str(tmp_path / "x.pcapng"), "--numel", "30000000"],
    }
    done = limited(*lines[command], **{"as": mib << 20})
    if done.returncode:
        told_in_one_sentence(done)
    assert done.returncode or command != "generate"


def test_a_checkpoint_that_announces_more_than_there_is_memory(tmp_path: Path) -> None:
    CRAFTED["4 GB as 0.npy"](tmp_path / "checkpoint.npz")
    done = limited(*TRAIN.split(), "--out", str(tmp_path), "--resume", **{"as": 1 << 30})
    told_in_one_sentence(done)
    assert "checkpoint.npz is damaged" in done.stderr


# Terminals


def in_a_terminal(line: list[str]) -> tuple[int, str]:
    """How a command ends in a terminal of 60 columns, and what it shows there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
    with subprocess.Popen(line, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        said = b""
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.1)[0]:
                said += os.read(ours, 1 << 16)
    os.close(ours)
    os.close(theirs)
    return process.returncode, said.decode(errors="replace")


def test_a_refusal_in_a_narrow_terminal() -> None:
    status, said = in_a_terminal([*COMMAND, "run", "--topology", "x", "--", "x"])
    assert status == 2
    nothing_odd(said)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(closed: str) -> None:
    for words, wanted in (("soak --seed 1", 0), ("run --topology star:1 -- true", 0),
                          ("run --topology star:x -- true", 2)):  # fmt: skip
        shell = f"{' '.join(COMMAND)} {words} {closed}"
        done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True)
        assert "Traceback" not in done.stderr + done.stdout
        assert done.returncode == wanted, done.stderr
