"""Every command where nobody reads, on Ctrl-C, and with few descriptors."""

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
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from iswitch.cli import COMMANDS as COMMANDS_OF_ALL
from tests.commands.test_damaged_input import PROFILE
from tests.commands.test_shortages import (
    BENCH,
    COMMAND,
    DEMO,
    FULL,
    SIMULATE,
    TRAIN,
    run,
    trace,
)
from tests.conftest import StartSwitch, Where, heed_interrupts
from tests.support import ROOT

pytestmark = pytest.mark.serial

__all__ = ["trace"]  # fixtures

SERVE = "switch --listen 127.0.0.1:0"


EVERY = {  # a line that works, and after how many seconds it has begun in earnest
    "demo": (DEMO, 1.5),
    "train": (TRAIN, 3.0),
    "run": ("run --topology star:1 -- true", 0.8),
    "place": ("place --topology rack:2x2,rate=1Gbit --policy fastest --jobs {jobs}", 1.0),
    "simulate": (SIMULATE, 1.0),
    "workload": (f"workload {PROFILE} --out {{folder}}/made.jsonl", 0.8),
    "paper": ("paper atp --world model", 1.0),
    "bench": (BENCH, 1.5),
    "switch": (SERVE, 0.6),
    "ctl": ("ctl jobs --switch {switch}", 0.6),
    "top": ("top --once --every 1 {watched}", 0.8),
    "web": ("web --listen 127.0.0.1:0 {watched}", 0.8),
    "doctor": ("doctor", 0.6),
    "soak": ("soak --seeds 2 --processes 1", 0.8),
    "record": ("record --to {folder}/to --topology star:1 -- true", 0.8),
    "replay": ("replay {trace}", 0.6),
    "analyze": ("analyze {trace}", 0.6),
    "generate": ("generate {folder}/made.pcapng --numel 9000 --rounds 1", 0.6),
    "dissector": ("dissector --print", 0.5),
}


COMMANDS = pytest.mark.parametrize("command", EVERY)


@pytest.fixture(scope="module")
def watched(start_switch: StartSwitch, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("w") / "s1.sock"
    start_switch("127.0.0.1:0", "--watch", str(path))
    return str(path)


@pytest.fixture
def given(trace: str, switch: Where, watched: str, tmp_path: Path) -> dict[str, str]:
    """What the lines name: a trace, a switch that answers, the socket of one, and a job."""
    jobs = tmp_path / "jobs.toml"
    jobs.write_text('[[jobs]]\nname = "a"\nworkers = 2\nnumel = 100\n')
    where = "{}:{}".format(*switch)
    return {"trace": trace, "switch": where, "watched": watched, "jobs": str(jobs)}


def words_of(command: str, given: dict[str, str], folder: Path) -> list[str]:
    folder.mkdir(exist_ok=True)
    return [word.format(folder=folder, **given) for word in EVERY[command][0].split()]


def nothing_odd(said: str) -> None:
    for odd in ("Traceback", "Exception ignored", "KeyboardInterrupt", "a defect", 'File "'):
        assert odd not in said, said


def test_every_command_has_a_line() -> None:
    assert tuple(EVERY) == COMMANDS_OF_ALL


def nobody_reads(command: str, given: dict[str, str], folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run(*words_of(command, given, folder), stdout=writer)
    os.close(writer)
    nothing_odd(done.stderr)
    silent = {"run": 0, "record": 0, "generate": 141}  # on stdout
    assert done.returncode == silent.get(command, 141), done.stderr
    progress = r"40kB, star:1\n|set-ups \d/4\n|iswitch bench: to watch: iswitch top \S+\n"
    said = re.sub(progress, "", done.stderr)
    assert command in silent or said == ""


def output_is_full(command: str, given: dict[str, str], folder: Path) -> None:
    with open(FULL, "w") as full:
        done = run(*words_of(command, given, folder), stdout=full)
    nothing_odd(done.stderr)
    silent = {"run": 0, "record": 0}
    assert done.returncode == silent.get(command, 2), done.stderr
    if command not in silent:
        wanted = f"iswitch {command}: cannot write standard output: No space left on device; make"
        assert done.stderr.splitlines()[-1].startswith(wanted), done.stderr
        assert command != "soak" or done.stderr.count("\n") == 1, done.stderr


def sixty_columns(command: str, given: dict[str, str], folder: Path) -> None:
    line = [*COMMAND, *words_of(command, given, folder)]
    if command in ("switch", "web"):
        line = ["timeout", "--foreground", "-s", "INT", "1", *line]
    status, said = in_a_terminal(line)
    nothing_odd(said)
    assert status == {"switch": 124, "web": 124, "demo": 1}.get(command, 0), said


@COMMANDS
def test_wherever_it_prints(command: str, given: dict[str, str], tmp_path: Path) -> None:
    """Into a pipe that nobody reads, on a full disk, in a narrow terminal: side by side."""
    with ThreadPoolExecutor() as pool:
        ends = [
            pool.submit(case, command, given, tmp_path / case.__name__)
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


TIMES = int(os.environ.get("ISWITCH_CTRL_C_TIMES", "4"))  # `make fuzz` takes more
AT_ONCE = 3


SOON = 5.0  # seconds in which whatever is interrupted has ended


@COMMANDS
def test_ctrl_c_at_random_times(command: str, given: dict[str, str], tmp_path: Path) -> None:
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
*words_of(command, given, tmp_path / str(i)), *more],
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
            ended_before = int(command == "demo")  # or, of a switch, as it is asked to
            assert status in (130, ended_before), (delays[i], said)
            assert (status == 130) == ("stopped by SIGINT" in said), (delays[i], said)
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
