"""Judging what depends on how much of the machine there is: delays, and times to start.

`judged` measures the machine before and after each attempt, with bare sleeps and bare processes,
and believes a failure only where it was fit both times. Else it waits for a fit moment, and tries
again. No bound is ever wider on a busy machine, and a skip is the last resort: under two processes
that burn both cores, one of eight attempts is within the bounds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pytest

T = TypeVar("T")

LATE = 0.001  # seconds by which 95 % of bare sleeps are late at most
SHARE = 0.6  # of every core that a process gets; `make test` itself keeps one core of two busy
FAILED = 3  # attempts that failed on a fit machine are a failure of what is tested
ATTEMPTS = 8
LOOKS, PAUSE = 3, 1.0  # for a fit moment, and seconds between them
SLEEPS, NAP = 100, 0.001  # seconds
WORK = 0.1  # seconds of a core
SPIN = f"""
import time
began, used = time.perf_counter(), time.process_time()
while time.process_time() - used < {WORK}:
    pass
print({WORK} / (time.perf_counter() - began))
"""


@dataclass(frozen=True)
class Machine:
    """How late bare sleeps are, in seconds, and which share of a core a process gets."""

    late: float
    share: float

    @property
    def is_fit(self) -> bool:
        """Whether what is measured now says something of what is tested."""
        return self.late <= LATE and self.share >= SHARE

    def __str__(self) -> str:
        return f"bare sleeps {self.late * 1e3:.2f} ms late, {self.share:.0%} of a core"


def measured() -> Machine:
    """Measure this machine; 0.3 s if it is idle."""
    late = []
    for _ in range(SLEEPS):
        began = time.perf_counter()
        time.sleep(NAP)
        late.append(time.perf_counter() - began - NAP)
    cores = len(os.sched_getaffinity(0))
    command = [sys.executable, "-I", "-S", "-c", SPIN]
    spinning = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(cores)]
    shares = [float(process.communicate()[0]) for process in spinning]
    return Machine(sorted(late)[int(0.95 * SLEEPS)], min(1.0, *shares))


def judged(
    attempt: Callable[[], T],
    holds: Callable[[T], bool],
    measure: Callable[[], Machine] = measured,
    pause: Callable[[float], None] = time.sleep,
) -> T:
    """Attempt until what is found holds; returns that.

    Raises:
        AssertionError: it did not hold `FAILED` times on a fit machine. It says what was found.
        pytest.skip.Exception: the machine was hardly ever fit. It says so, with the figures.
    """
    told: list[str] = []
    failed = 0
    before = measure()
    for _ in range(ATTEMPTS):
        found = attempt()
        if holds(found):
            return found
        after = measure()
        is_fit = before.is_fit and after.is_fit
        failed += is_fit
        told.append(f"{found} ({'fit' if is_fit else 'busy'} machine: {before}; then {after})")
        assert failed < FAILED, f"found {'; '.join(told)}"
        before = after
        for _ in range(LOOKS):
            if before.is_fit:
                break
            pause(PAUSE)
            before = measure()
    pytest.skip(f"this machine is too busy to judge it: found {'; '.join(told)}")
