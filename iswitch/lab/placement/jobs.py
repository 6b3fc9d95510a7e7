"""Jobs that share a network, as a file describes them (docs/place.md)."""

from __future__ import annotations

import math
import re
import shlex
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from iswitch.core.format.wire import MTU_PAYLOAD, RANKS, DType, Op, Shape
from iswitch.ethernet.frame import HEADERS
from iswitch.faults.units import RATE, TIME, QuantityError, Unit, count
from iswitch.outside import UsageError, reading
from topologies import TopologyError
from topologies.toml import expect

MOST_JOBS = 256
MOST_ELEMENTS = 1 << 32
MOST = 1e9  # of a priority or of seconds
COMPUTE = Unit("time", TIME.scales, "20ms")  # as text, with a unit
PRIORITY = Unit("priority", {"": RATE.scales["bit"]}, "2", bare="")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}", re.ASCII)
KEYS = {
    "name": str,
    "workers": int,
    "numel": int,
    "dtype": str,
    "compute": object,
    "priority": object,
    "rate": object,
    "job": int,
    "command": str,
    "rounds": int,
}


@dataclass(frozen=True)
class Job:
    """A job that has a host for each of its workers.

    Attributes:
        name: what it is called.
        workers: how many workers it has.
        numel: elements of its vector.
        dtype: their type.
        compute: seconds that a worker computes between two rounds.
        priority: weight of its time beside the other jobs' times.
        rate: bit/s that each link on its ways must have for it alone; 0: any share will do.
        number: its number at the switches.
        command: what each of its workers runs.
        rounds: how many rounds it is going to do; 0: not known.
        payload: bytes of the largest UDP payload that its packets may have.
    """

    name: str
    workers: int
    numel: int
    dtype: DType = DType.FLOAT32
    compute: float = 0.0
    priority: float = 1.0
    rate: float = 0.0
    number: int = 1
    command: tuple[str, ...] = ()
    rounds: int = 0
    payload: int = MTU_PAYLOAD

    @cached_property
    def shape(self) -> Shape:
        """Return the layout of its vector in segments."""
        return Shape.of(self.numel, self.dtype, payload=self.payload)

    @property
    def variables(self) -> dict[str, str]:
        """Return what its processes' environment has besides."""
        return {"ISWITCH_ROUNDS": str(self.rounds)} if self.rounds else {}

    @cached_property
    def bits(self) -> int:
        """Return the bits of the frames in which its vector travels."""
        shape = self.shape
        payload = (shape.segments - 1) * shape.packet_size + shape.last_size
        return 8 * (payload + shape.segments * HEADERS)

    @cached_property
    def frame(self) -> int:
        """Return the bits of its largest frame."""
        shape = self.shape
        size = shape.packet_size if shape.full_segments else shape.last_size
        return 8 * (size + HEADERS)


def loads(text: str, file: str) -> tuple[Job, ...]:
    """Read the jobs of a file; `file` is what messages call it.

    Raises:
        UsageError: the text is not TOML, or describes no jobs; the message names the mend.
    """
    with reading(file, UsageError):
        try:
            return _jobs(tomllib.loads(text))
        except (tomllib.TOMLDecodeError, TopologyError, QuantityError, UsageError) as error:
            raise UsageError(f"{file}: {error}") from error


def _jobs(data: dict[str, Any]) -> tuple[Job, ...]:
    expect("the file", data, {"jobs": list})
    tables = data.get("jobs", [])
    if not 1 <= len(tables) <= MOST_JOBS:
        raise UsageError(
            f"there are {len(tables)} jobs, not 1 to {MOST_JOBS}; write [[jobs]] before each"
        )
    jobs = []
    named = [table.get("job") for table in tables if isinstance(table, dict)]
    taken = {number for number in named if isinstance(number, int)}
    for at, table in enumerate(tables, 1):
        called = table.get("name") if isinstance(table, dict) else None
        job = _job(f"job {called!r}" if called else f"job number {at}", table, taken)
        taken.add(job.number)
        jobs.append(job)
    for what, values in (("name", [j.name for j in jobs]), ("number", [j.number for j in jobs])):
        twice, times = Counter(values).most_common(1)[0]
        if times > 1:
            raise UsageError(f"{times} jobs have the {what} {twice!r}; give each its own")
    return tuple(jobs)


def _job(what: str, table: object, taken: set[int]) -> Job:
    """Read one job; unless it names its number, it gets the first that is not taken."""
    expect(what, table, KEYS, "name", "workers", "numel")
    assert isinstance(table, dict)
    if not NAME.fullmatch(table["name"]):
        raise UsageError(
            f"{what} cannot be called so; take 1 to 32 letters, digits, _, . and -, of which the "
            "first is a letter or a digit"
        )
    number = table.get("job")
    if number is None:
        number = next(free for free in range(1, MOST_JOBS + 2) if free not in taken)
    dtype = table.get("dtype", DType.FLOAT32.label)
    if dtype not in (summed := [one.label for one in DType if Op.SUM.takes(one)]):
        raise UsageError(f"{what}: dtype {dtype!r} is none of {', '.join(summed)}")
    try:
        command = tuple(shlex.split(table.get("command", "")))
    except ValueError as error:
        raise UsageError(f"{what}: command: {error}; close each quotation mark") from error
    if any("\0" in word for word in command):
        raise UsageError(f"{what}: command has a NUL, which no program can be given; leave it out")
    return Job(
        table["name"],
        _whole(f"{what}: workers", table["workers"], 1, RANKS),
        _whole(f"{what}: numel", table["numel"], 0, MOST_ELEMENTS),
        DType.of(dtype),
        _number(f"{what}: compute", COMPUTE, table.get("compute", 0.0)),
        _number(f"{what}: priority", PRIORITY, table.get("priority", 1.0)),
        _number(f"{what}: rate", RATE, table.get("rate", 0.0), math.inf),
        _whole(f"{what}: job", number, 0, 0xFFFF),
        command,
        _whole(f"{what}: rounds", table.get("rounds", 0), 0, 0xFFFFFFFF),
    )


def _whole(what: str, value: int, least: int, most: int) -> int:
    if isinstance(value, bool) or not least <= value <= most:
        raise UsageError(f"{what} is {str(value)[:40]}, not a whole number from {least} to {most}")
    return value


def _number(what: str, unit: Unit, value: object, most: float = MOST) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(f"{what} is neither text nor a number; mend it")
    shown = str(value)[:40]
    try:
        number = unit.number(value)
    except (QuantityError, ArithmeticError) as error:
        units = ", ".join(filter(None, unit.scales))
        known = f" and a unit ({units})" if units else ""
        mend = f'write "{unit.example}"'
        raise UsageError(f"{what} {shown!r} is not a number{known}; {mend}") from error
    if not (0 <= number <= most and math.isfinite(number)):
        limit = "" if math.isinf(most) else f", {most:g} at most"
        raise UsageError(f"{what} {shown} is not 0 or more{limit}, and finite")
    return number


def needed(jobs: tuple[Job, ...]) -> str:
    """Say how many hosts the jobs need, in words."""
    return count(sum(job.workers for job in jobs), "host")
