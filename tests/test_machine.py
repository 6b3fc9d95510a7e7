"""Failures are believed where the machine was fit, and only there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from . import machine
from .machine import ATTEMPTS, FAILED, LOOKS, Machine, measured

FIT, BUSY = Machine(0.0001, 0.95), Machine(0.004, 0.3)


def telling(*machines: Machine) -> Callable[[], Machine]:
    """A measurement that finds these, and the last one from then on."""
    left: Iterator[Machine] = iter(machines)
    return lambda: next(left, machines[-1])


def judged(
    attempt: Callable[[], float], holds: Callable[[float], bool], measure: Callable[[], Machine]
) -> float:
    """As in `machine`, without waiting."""
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


@pytest.mark.parametrize("now", [FIT, BUSY])
def test_what_holds_is_attempted_once(now: Machine) -> None:
    product = Product(9)
    assert judged(product, below_ten, telling(now)) == 9
    assert product.attempts == 1


def test_a_fault_fails_on_a_fit_machine() -> None:
    product = Product(11, 12, 13)
    with pytest.raises(AssertionError, match=r"found 11 \(fit machine.*12 \(fit.*13 \(fit"):
        judged(product, below_ten, telling(FIT))
    assert product.attempts == FAILED


def test_a_fault_fails_when_a_busy_machine_becomes_fit() -> None:
    with pytest.raises(AssertionError, match=r"11 \(busy machine.*12 \(fit"):
        judged(Product(11, 12), below_ten, telling(BUSY, FIT))


def test_a_machine_that_was_fit_at_one_end_only_proves_nothing() -> None:
    product = Product(11, 11, 11, 9)
    assert judged(product, below_ten, telling(FIT, BUSY, FIT, BUSY)) == 9


def test_a_fit_moment_is_waited_for() -> None:
    """Busy at first, and after the first attempt, and fit then: three failures are believed."""
    product = Product(11)
    busy = [BUSY] * (1 + LOOKS)
    with pytest.raises(AssertionError, match=r"busy.*fit machine.*fit machine.*fit machine"):
        judged(product, below_ten, telling(*busy, FIT))
    assert product.attempts == 1 + FAILED


def test_what_a_busy_machine_cannot_judge_is_skipped_with_its_figures() -> None:
    product = Product(11)
    with pytest.raises(pytest.skip.Exception, match=r"too busy.*11 \(busy machine: bare sleeps 4"):
        judged(product, below_ten, telling(BUSY))
    assert product.attempts == ATTEMPTS


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may go before others")
def test_what_is_judged_goes_before_burners() -> None:
    """Also what it starts; and afterwards it is as all others again."""
    with burners():
        assert machine.judged(measured, lambda found: found.is_fit)
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

    with ends_after(0.5) as process:
        assert machine.communicated(process, 0.1, told(BUSY)) == ("", None)
    assert asked
    with ends_after(60) as process, pytest.raises(subprocess.TimeoutExpired):
        machine.communicated(process, 0.01, told(BUSY, FIT))
    asked.clear()
    with ends_after(60) as process, pytest.raises(subprocess.TimeoutExpired):
        machine.communicated(process, 0.01, told(BUSY))
    assert len(asked) == ATTEMPTS - 1
