"""Results that take long: how far they are is told, a signal keeps what there is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator

import pytest

from iswitch.lab.gathering import gather
from tests.support import ROOT

pytestmark = pytest.mark.unit


def test_lines_are_told_now_and_then_where_no_terminal_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter([0.0, 1.0, 5.0, 9.0, 10.0])
    monkeypatch.setattr("iswitch.lab.gathering.time.monotonic", lambda: next(now))
    numbers = (number for number in range(4))
    assert gather(numbers, 4, "points", "some") == ([0, 1, 2, 3], 0)
    assert capsys.readouterr().err == "points 2/4\npoints 4/4\n"


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_there_is(
    which: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = []

    def some() -> Generator[int, None, None]:
        try:
            yield 1
            signal.raise_signal(which)
            yield 2
        finally:
            ended.append(True)

    before = signal.getsignal(which)
    assert gather(some(), 3, "points", "iswitch some") == ([1], 128 + which)
    assert ended
    assert signal.getsignal(which) == before
    said = f"iswitch some: stopped by {which.name} after 1 of 3 points\n"
    assert capsys.readouterr().err.endswith(said)


PROGRAM = """
import os, signal, sys, time
from iswitch.lab.gathering import gather
from iswitch.lab.spread import spread

def some():
    for one in spread(abs, [-1, -2, -3], 2):
        os.kill(os.getpid(), signal.SIGTERM)
        yield one

if __name__ == "__main__":
    sys.exit(gather(some(), 3, "numbers", "program")[1])
"""


@pytest.mark.slow
def test_processes_leave_nothing_when_a_signal_ends_them() -> None:
    """No words of multiprocessing about semaphores."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env={**os.environ, "PYTHONWARNINGS": "default"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr == "program: stopped by SIGTERM after 0 of 3 numbers\n"
