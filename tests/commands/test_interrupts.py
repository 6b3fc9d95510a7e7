"""What ends a command early: a signal is heeded, is told, and leaves no half of a file."""

from __future__ import annotations

import resource
import signal as signals
import subprocess
import sys
from pathlib import Path

import pytest

from iswitch.cli import main
from iswitch.outside import OutsideError
from iswitch.system.files import write
from tests.support import ROOT

BEGIN = """
import os, signal, time
from iswitch.system import boundary, interrupts
boundary.own_process()
signal.signal(signal.SIGINT, signal.default_int_handler)

def end():
    os.kill(os.getpid(), signal.{signal})

class Loses:
    def __del__(self): end()

def lose():
    {lose}
"""
HEEDED = """
with interrupts.Signals() as signals:
    try:
        lose()
        time.sleep(20)
    except interrupts.Stopped as stopped:
        print("stopped", stopped.signum)
        end(); time.sleep(0.1)  # what comes later changes nothing
"""
BARE = """
try:
    lose()
    time.sleep(20)
except KeyboardInterrupt:
    print("stopped", 2)
"""


@pytest.mark.parametrize(
    "lose", ["Loses()", "os.register_at_fork(after_in_parent=end); os.fork() or os._exit(0)"]
)
@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM", "bare SIGINT"])
def test_a_lost_signal_comes_again(lose: str, signal: str) -> None:
    number = 15 if signal == "SIGTERM" else 2
    code = BEGIN.format(signal=signal.split()[-1], lose=lose) + (BARE if " " in signal else HEEDED)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=15
    )
    assert (done.stdout, done.stderr, done.returncode) == (f"stopped {number}\n", "", 0)


LIBRARY = """
def library():
    try:
        lose()
        time.sleep(20)
    except (KeyboardInterrupt, SystemExit):
        raise
    except:
        pass

with interrupts.Signals():
    try:
        library()
        print("swallowed")
    except interrupts.Stopped as stopped:
        print("stopped", stopped.signum)
"""


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_library_that_continues_after_exceptions_swallows_no_signal(signal: str) -> None:
    code = BEGIN.format(signal=signal, lose="end()") + LIBRARY
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=15
    )
    number = getattr(signals, signal).value
    assert (done.stdout, done.stderr, done.returncode) == (f"stopped {number}\n", "", 0)


GENERATE = ["generate", "--workers", "2", "--numel", "2000", "--rounds", "2"]


def test_an_interrupted_generate_says_so_and_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def slow(path: str, *_: object) -> int:
        Path(path).write_bytes(bytes(100))
        raise KeyboardInterrupt

    monkeypatch.setattr("iswitch.lab.tracing.generating.synthesize", slow)
    assert main([*GENERATE, str(tmp_path / "a.pcapng")]) == 130
    assert capsys.readouterr().err == "iswitch generate: stopped by SIGINT\n"
    assert not list(tmp_path.iterdir())


def test_a_trace_or_report_that_the_disk_has_no_room_for_leaves_no_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))  # EFBIG: Python ignores SIGXFSZ
    try:
        assert main([*GENERATE, str(tmp_path / "a.pcapng")]) == 2
        with pytest.raises(OutsideError, match="File too large"):
            write(tmp_path / "report.json", bytes(6000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "cannot write" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
