"""Failures are believed where the machine was fit, and only there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import machine, python
from tests.support.machine import ATTEMPTS, FAILED, LOOKS, Machine, measured, untold

pytestmark = pytest.mark.serial

FIT, BUSY = Machine(0.0001, 0.95), Machine(0.004, 0.3)


def telling(*machines: Machine) -> Callable[[], Machine]:
    """A measurement that finds these, and the last one from then on."""
    left: Iterator[Machine] = iter(machines)
    return lambda: next(left, machines[-1])


def judged(
    attempt: Callable[[], float], holds: Callable[[float], bool], measure: Callable[[], Machine]
) -> float:
    """As in `machine`, without waiting."""
    with untold():
        return machine.judged(attempt, holds, measure, lambda _: None)


class Product:
    """Finds one figure after the other, and the last one from then on."""

    def __init__(self, *figures: float) -> None:
        self.figures = figures
        self.attempts = 0

    def __call__(self) -> float:
        self.attempts += 1
        return self.figures[min(self.attempts, len(self.figures)) - 1]


def below_ten(figure: float) -> bool:
    return figure < 10


def never() -> Machine:
    raise AssertionError("not measured before anything is repeated")


def test_what_holds_is_attempted_once() -> None:
    """As a user would; and nothing is told."""
    schedulers = []
    product = Product(9)

    def attempt() -> float:
        schedulers.append(os.sched_getscheduler(0))
        return product()

    assert judged(attempt, below_ten, never) == 9
    assert (product.attempts, schedulers, machine.REPEATED) == (1, [os.SCHED_OTHER], [])


def test_a_fault_fails_on_a_fit_machine() -> None:
    product = Product(11, 12, 13)
    with pytest.raises(AssertionError, match=r"found 11 \(.*not measured.*12 \(fit.*13 \(fit"):
        judged(product, below_ten, telling(FIT))
    assert product.attempts == 1 + FAILED


def test_a_fault_fails_when_a_busy_machine_becomes_fit() -> None:
    with pytest.raises(AssertionError, match=r"12 \(busy machine.*13 \(fit"):
        judged(Product(11, 12, 13), below_ten, telling(*[BUSY] * (2 + LOOKS), FIT))


def test_a_machine_that_was_fit_at_one_end_only_proves_nothing() -> None:
    product = Product(11, 11, 11, 11, 9)
    assert judged(product, below_ten, telling(FIT, BUSY, FIT, BUSY, FIT, BUSY)) == 9


def test_a_fit_moment_is_waited_for() -> None:
    """Busy after the first attempt for a while, then fit: no other attempt before that."""
    product = Product(11)
    with pytest.raises(AssertionError, match=r"not measured\); 11 \(fit machine.*11 \(fit machine"):
        judged(product, below_ten, telling(*[BUSY] * LOOKS, FIT))
    assert product.attempts == 1 + FAILED


def test_what_a_busy_machine_cannot_judge_is_skipped_with_its_figures() -> None:
    product = Product(11)
    with pytest.raises(pytest.skip.Exception, match=r"too busy.*11 \(busy machine: bare sleeps 4"):
        judged(product, below_ten, telling(BUSY))
    assert product.attempts == 1 + ATTEMPTS


TOLD = """
from tests.support import machine
FIT = machine.Machine(0.0001, 0.95)

def test_now_and_then():
    found = iter([11, 9])
    machine.judged(lambda: next(found), lambda figure: figure < 10, lambda: FIT)

def test_always():
    machine.judged(lambda: 9, lambda figure: figure < 10, lambda: FIT)
"""


@pytest.mark.parametrize("options", [[], ["-n", "1"]])
def test_what_was_repeated_is_told_last(options: list[str], tmp_path: Path) -> None:
    """With what it found, also where another process ran the test."""
    (tmp_path / "test_told.py").write_text(TOLD)
    words = ["-m", "pytest", "-q", "-p", "tests.conftest", f"--rootdir={tmp_path}"]
    words += ["-p", "no:cacheprovider", *options, str(tmp_path)]
    done = python(*words, PYTEST_ADDOPTS="")
    *lines, last = done.stdout.splitlines()
    assert last.startswith("1 passed, 1 judged again in "), done.stdout + done.stderr
    assert any("test_now_and_then: found 11 (machine not measured)" in line for line in lines)


@contextmanager
def burners() -> Iterator[None]:
    """Twice as many processes that burn a core as there are cores."""
    spin = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    burning = [subprocess.Popen(spin) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


def test_a_busy_machine_is_seen() -> None:
    with burners():
        found = measured()
    assert not found.is_fit, found


@pytest.mark.root(reason="only root may go before others")
def test_what_is_judged_goes_before_burners() -> None:
    """Also what it starts; and afterwards it is as all others again."""
    found: list[Machine] = []

    def attempt() -> Machine:
        found.append(measured())
        return found[-1]

    with burners(), untold():
        machine.judged(attempt, lambda last: last.is_fit)
    assert [one.is_fit for one in found] == [False, True]  # the first as any other process
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_process_that_does_not_end_is_waited_for_where_the_machine_is_busy() -> None:
    """Each time as long; and no longer once the machine is fit."""
    asked: list[Machine] = []

    def told(*machines: Machine) -> Callable[[], Machine]:
        left = telling(*machines)
        return lambda: asked.append(left()) or asked[-1]  # type: ignore[func-returns-value]

    def ends_after(seconds: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-I", "-S", "-c", f"import time; time.sleep({seconds})"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    with ends_after(0.5) as process, untold() as repeated:
        said: tuple[str, Any] = machine.communicated(process, 0.1, told(BUSY))
        assert said == ("", None)
        assert len(repeated) == len(asked) > 0
        assert repeated[0].startswith("not done in 0.1 s (bare sleeps 4.00 ms late")
    with ends_after(60) as process, untold(), pytest.raises(subprocess.TimeoutExpired):
        machine.communicated(process, 0.01, told(BUSY, FIT))
    asked.clear()
    with ends_after(60) as process, untold(), pytest.raises(subprocess.TimeoutExpired):
        machine.communicated(process, 0.01, told(BUSY))
    assert len(asked) == ATTEMPTS - 1
