"""A signal is heeded though its exception is lost, in a destructor or as a process forks."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
