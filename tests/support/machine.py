"""Judging what depends on how much of the machine there is: delays, and times to start.

`judged` attempts as a user would. Only if that fails does it measure the machine, with bare sleeps
and bare processes, and attempt again; then each attempt, and all that it starts, goes before
everything else on the machine, where the kernel lets it: so beside processes that burn all cores
the same bounds hold. It measures after each attempt, too, and believes a failure only where the
machine was fit both times. Else it waits for a fit moment. No bound is ever wider on a busy
machine. A skip is the last resort: of those who may not go first, or share the cores with other
machines.

A defect that shows itself now and then could hide behind that. So whatever was repeated is told at
the end of all tests, with what each attempt found and how fit the machine was; their last line
counts it (`pytest_report_teststatus` in conftest.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import pytest

T = TypeVar("T")

LATE = 0.001  # seconds by which 95 % of bare sleeps are late at most
SHARE = 0.6  # of every core that a process gets; `make test` itself keeps one core of two busy
FAILED = 2  # repeated attempts that failed on a fit machine are a failure of what is tested
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


REPEATED: list[str] = []  # what the test under way has repeated, and why


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


@contextmanager
def untold() -> Iterator[list[str]]:
    """What is repeated meanwhile is made up, and not told at the end of the tests."""
    try:
        yield REPEATED
    finally:
        REPEATED.clear()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Have this thread, and what it starts, go before all others, where that is allowed."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        yield
    finally:
        os.sched_setscheduler(0, *before)


def communicated(
    process: subprocess.Popen[str], seconds: float, measure: Callable[[], Machine] = measured
) -> tuple[str, str]:
    """What a process says until it ends, in so many seconds; in more, as long as others burn cores.

    Raises:
        subprocess.TimeoutExpired: it has not ended, on a fit machine or after `ATTEMPTS` times.
    """
    for attempt in range(ATTEMPTS):
        try:
            return process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            if attempt == ATTEMPTS - 1 or (machine := measure()).is_fit:
                process.kill()
                raise
            REPEATED.append(f"not done in {seconds:g} s ({machine})")
    raise AssertionError("not reached")


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
    found = attempt()
    if holds(found):
        return found
    told = [f"{found} (machine not measured)"]
    with undisturbed():
        return _repeated(attempt, holds, measure, pause, told)


def _repeated(
    attempt: Callable[[], T],
    holds: Callable[[T], bool],
    measure: Callable[[], Machine],
    pause: Callable[[float], None],
    told: list[str],
) -> T:
    failed = 0
    before = measure()
    for _ in range(ATTEMPTS):
        for _ in range(LOOKS):
            if before.is_fit:
                break
            pause(PAUSE)
            before = measure()
        REPEATED.append(f"found {told[-1]}")
        found = attempt()
        if holds(found):
            return found
        after = measure()
        is_fit = before.is_fit and after.is_fit
        failed += is_fit
        told.append(f"{found} ({'fit' if is_fit else 'busy'} machine: {before}; then {after})")
        assert failed < FAILED, f"found {'; '.join(told)}"
        before = after
    pytest.skip(f"this machine is too busy to judge it: found {'; '.join(told)}")
