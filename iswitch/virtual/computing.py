"""Charges computing in virtual time: as measured, as fixed, or as read from a file."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from statistics import median

from iswitch.faults.units import TIME, QuantityError

_thread_time = time.thread_time  # the real one, whatever `time` shows later


class ComputingError(ValueError):
    """A text that says nothing about computing times; the message says what would."""


MOST = 1e9  # seconds
FORMS = "measured, zero, fixed:3ms, sample:20, or file:TIMES"


@dataclass(frozen=True)
class Plan:
    """How long processes compute.

    Attributes:
        kind: measured, zero, fixed, sample, or file.
        seconds: of `fixed`.
        samples: of `sample`: computing times that are measured.
        times: of `file`: for each rank, seconds that are repeated from the beginning.
        speed: factor for measured times.
        slow: factor of each rank; others have 1.
        sigma: deviation of the logarithm of a random factor; 0: none.
        seed: of these factors.
    """

    kind: str = "measured"
    seconds: float = 0.0
    samples: int = 0
    times: list[list[float]] = field(default_factory=list)
    speed: float = 1.0
    slow: dict[str, float] = field(default_factory=dict)
    sigma: float = 0.0
    seed: int = 0

    @property
    def is_measured(self) -> bool:
        """Return whether times depend on this machine."""
        return self.kind in ("measured", "sample")


def read_plan(text: str) -> Plan:
    """Read `measured`, `zero`, `fixed:TIME`, `sample:N` or `file:PATH`.

    A file has a line for each rank: times with units, or numbers in seconds.

    Raises:
        ComputingError: the text is none of these.
        OSError: the file cannot be read.
    """
    kind, _, rest = text.partition(":")
    if text in ("measured", "zero"):
        return Plan(text)
    if kind == "fixed" and rest:
        return Plan(kind, seconds=_seconds(rest))
    if kind == "sample" and rest.isdecimal() and 1 <= int(rest) <= 1_000_000:
        return Plan(kind, samples=int(rest))
    if kind == "file" and rest:
        with open(rest, encoding="utf-8", errors="replace") as file:
            lines = [line.partition("#")[0].split() for line in file]
        times = [
            [_seconds(word, f"{rest}, line {number}: ") for word in line]
            for number, line in enumerate(lines, 1)
            if line
        ]
        if not times:
            raise ComputingError(f"{rest} has no times: write a line of them for each rank")
        return Plan(kind, times=times)
    raise ComputingError(f"{text!r}: write {FORMS}")


def _seconds(text: str, where: str = "") -> float:
    units = ", ".join(TIME.scales)
    try:
        value = TIME.number(text)
    except QuantityError:
        raise ComputingError(
            f"{where}{text[:20]!r} is not a time; write a number and a unit ({units}), such as "
            f"{TIME.example}"
        ) from None
    if not 0.0 <= value < MOST:
        raise ComputingError(
            f"{where}{text} is not from 0 up to {MOST:g} s; write a time such as {TIME.example}"
        )
    return value


class Computing:
    """Charges one process for what it computes.

    Args:
        plan: how long processes compute.
        rank: number of the process.
    """

    def __init__(self, plan: Plan, rank: int) -> None:
        self._plan = plan
        self._factor = plan.slow.get(str(rank), 1.0)
        self._chance = random.Random(f"{plan.seed} {rank}")
        self._times = plan.times[rank % len(plan.times)] if plan.times else []
        self._samples: list[float] = []
        self._charged = 0
        self._local = threading.local()  # by thread: CPU time at its last call

    def mark(self, again: bool = True) -> None:
        """Count computing from now on, in this thread; `again`: even if it is counted already."""
        if again or getattr(self._local, "began", None) is None:
            self._local.began = _thread_time()

    def elapsed(self) -> float:
        """Return the seconds that this thread has computed since its last call, as measured."""
        began: float | None = getattr(self._local, "began", None)
        if began is None or self._plan.kind != "measured":
            return 0.0
        return (_thread_time() - began) * self._plan.speed * self._factor

    def charge(self) -> float:
        """Return the seconds to let pass now; 0 until the next call has ended."""
        began = getattr(self._local, "began", None)
        if began is None:
            return 0.0
        self._local.began = None
        seconds = self._base(_thread_time() - began) * self._factor
        if self._plan.sigma:
            seconds *= self._chance.lognormvariate(0.0, self._plan.sigma)
        self._charged += 1
        return seconds

    def _base(self, cpu: float) -> float:
        match self._plan.kind:
            case "fixed":
                return self._plan.seconds
            case "file":
                return self._times[self._charged % len(self._times)]
            case "measured":
                return cpu * self._plan.speed
            case "sample":
                if len(self._samples) < self._plan.samples:
                    self._samples.append(cpu * self._plan.speed)
                    return self._samples[-1]
                return median(self._samples)
        return 0.0
