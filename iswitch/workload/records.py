"""The format of workloads: a line of JSON for each thing that a rank does; docs/workloads.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iswitch.outside import UsageError, reading
from iswitch.system.files import read_text

FORMAT = "iswitch workload 1"
COLLECTIVES = ("allreduce", "barrier")
ALL = "all"
MOST_RANKS = 1 << 20
MOST_BYTES = 1 << 40
MOST_SECONDS = 1e6
MOST_STEPS = 1_000_000
MOST_JITTER = 10.0
MOST_TEXT = 256 << 20  # bytes of a file


@dataclass(frozen=True)
class Record:
    """A part of a step of a rank: it waits, computes, and calls a collective.

    Attributes:
        step: number of the step, which rises along a rank's records.
        rank: whose it is; None: that of all ranks, or of all in its group.
        compute: seconds.
        collective: one of COLLECTIVES, called after computing; None: none.
        bytes: of the vector of float32 elements.
        group: the ranks that take part; None: all.
        priority: of calls that are ready, the highest may go first; None: those of later records.
        name: by which other records wait for it.
        is_async: whether the rank goes on while the collective lasts.
        wait: names of calls that must be done before computing, or ALL.
        repeat: how often the step is played, equal in all its records.
        jitter: deviation of the logarithm of a random factor of `compute`.
    """

    step: int = 0
    rank: int | None = None
    compute: float = 0.0
    collective: str | None = None
    bytes: int = 0
    group: tuple[int, ...] | None = None
    priority: int | None = None
    name: str = ""
    is_async: bool = False
    wait: tuple[str, ...] | str = ()
    repeat: int = 1
    jitter: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the record as an object of JSON, without what is the default."""
        values = {KEYS.get(name, name): value for name, value in vars(self).items()}
        plain = {KEYS.get(name, name): value for name, value in vars(Record()).items()}
        return {key: value for key, value in values.items() if value != plain[key] or key == "step"}


KEYS = {"is_async": "async"}
NAMES = {KEYS.get(name, name): name for name in vars(Record())}


@dataclass(frozen=True)
class Workload:
    """What the ranks of a program do.

    Attributes:
        name: of the file, for people.
        ranks: how many there are.
        records: what they do, in the order of each rank.
        label: where it comes from, in words.
    """

    name: str
    ranks: int
    records: tuple[Record, ...]
    label: str = ""

    def text(self) -> str:
        """Return the text of a file."""
        head: dict[str, Any] = {"format": FORMAT, "ranks": self.ranks}
        if self.label:
            head["label"] = self.label
        lines = [head, *(record.as_json() for record in self.records)]
        return "".join(f"{json.dumps(line)}\n" for line in lines)


def load(path: str) -> Workload:
    """Read a workload.

    Raises:
        UsageError: it cannot be read, or is none.
    """
    return parse(path, read_text(path, UsageError, MOST_TEXT))


def parse(path: str, text: str) -> Workload:
    """Make a workload of the text of a file.

    Raises:
        UsageError: it is none; the message names the line and the mend.
    """
    head, *lines = text.splitlines() or [""]
    first: dict[str, Any] = {}
    if FORMAT in head:
        with reading(path, UsageError):
            first = _object(head)
    if first.get("format") != FORMAT:
        raise UsageError(
            f'{path} is no workload: its first line is not {{"format": "{FORMAT}", ...}}; make one '
            "of a profiler's trace with `iswitch workload`, or see docs/workloads.md"
        )
    where = f"{path}, line 1"
    ranks = _whole("ranks", 1, MOST_RANKS)(where, first.get("ranks"), 0)
    records = []
    for number, line in enumerate(lines, 2):
        if line.strip():
            with reading(f"{path}, line {number},", UsageError):
                found = _object(line)
            records.append(_record(f"{path}, line {number}", found, ranks))
    if not records:
        raise UsageError(f"{path} has no records: nobody computes anything; add a line for a rank")
    _check(path, records)
    return Workload(path, ranks, tuple(records), str(first.get("label", "")))


def _object(line: str) -> dict[str, Any]:
    found = json.loads(line)
    if not isinstance(found, dict):
        raise TypeError("no object")
    return found


def _record(where: str, found: Mapping[str, Any], ranks: int) -> Record:
    """Make a record of an object, each of whose values is checked."""
    if unknown := [key for key in found if key not in NAMES]:
        raise UsageError(f"{where}: no {unknown[0]!r}; write {', '.join(NAMES)}")
    values = {NAMES[key]: CHECKS[key](where, value, ranks) for key, value in found.items()}
    record = Record(**values)
    if (record.collective == "allreduce") != bool(record.bytes):
        raise UsageError(f"{where}: an allreduce has bytes, 1 or more, and nothing else has")
    if record.collective is None and (record.is_async or record.name or record.group):
        raise UsageError(f"{where}: async, name and group are of a collective; name one, too")
    return record


Check = Callable[[str, Any, int], Any]  # where it is written, the value, number of ranks


def _not(value: Any) -> str:
    return f"not {repr(value)[:20]}"


def _number(key: str, most: float, of: str = "") -> Check:
    def check(where: str, value: Any, ranks: int) -> float:  # noqa: ARG001
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not 0 <= value <= most  # NaN is not, either
        ):
            raise UsageError(f"{where}: {key} is a number{of} from 0 to {most:,.0f}, {_not(value)}")
        return float(value)

    return check


def _whole(key: str, least: int, most: int, none: bool = False) -> Check:
    def check(where: str, value: Any, ranks: int) -> int | None:
        last = ranks - 1 if key == "rank" else most
        if none and value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= last:
            raise UsageError(
                f"{where}: {key} is a whole number of {least} to {last}, {_not(value)}"
            )
        return value

    return check


def _collective(where: str, value: Any, ranks: int) -> str | None:  # noqa: ARG001
    if value is not None and value not in COLLECTIVES:
        known = " and ".join(COLLECTIVES)
        raise UsageError(f"{where}: collective {value!r}: only {known} are played")
    found: str | None = value
    return found


def _name(where: str, value: Any, ranks: int) -> str:  # noqa: ARG001
    if not isinstance(value, str):
        raise UsageError(f"{where}: name is a text")
    return value


def _truth(where: str, value: Any, ranks: int) -> bool:  # noqa: ARG001
    if not isinstance(value, bool):
        raise UsageError(f"{where}: async is true or false")
    return value


def _wait(where: str, value: Any, ranks: int) -> tuple[str, ...] | str:  # noqa: ARG001
    if value == ALL:
        return ALL
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UsageError(f'{where}: wait is a list of names, or "{ALL}"')
    return tuple(value)


def _group(where: str, value: Any, ranks: int) -> tuple[int, ...] | None:
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or not value
        or any(type(one) is not int or not 0 <= one < ranks for one in value)
        or sorted(set(value)) != value
    ):
        raise UsageError(f"{where}: group is a list of ranks, ascending, of 0 to {ranks - 1}")
    return tuple(value)


CHECKS: Mapping[str, Check] = {
    "step": _whole("step", 0, MOST_STEPS),
    "rank": _whole("rank", 0, 0, none=True),
    "compute": _number("compute", MOST_SECONDS, " of seconds"),
    "collective": _collective,
    "bytes": _whole("bytes", 0, MOST_BYTES),
    "group": _group,
    "priority": _whole("priority", -MOST_STEPS, MOST_STEPS, none=True),
    "name": _name,
    "async": _truth,
    "wait": _wait,
    "repeat": _whole("repeat", 1, MOST_STEPS),
    "jitter": _number("jitter", MOST_JITTER),
}


def _check(path: str, records: Sequence[Record]) -> None:
    """Refuse records that contradict each other."""
    repeats: dict[int, int] = {}
    names = {record.name for record in records}
    for record in records:
        if repeats.setdefault(record.step, record.repeat) != record.repeat:
            raise UsageError(f"{path}: step {record.step} has two numbers of repeats; write one")
        if isinstance(record.wait, tuple) and (lost := set(record.wait) - names):
            raise UsageError(f"{path}: a record waits for {lost.pop()!r}, which nobody calls")
        if record.group is not None and record.rank is not None and record.rank not in record.group:
            raise UsageError(f"{path}: rank {record.rank} calls with a group that it is not in")
    last: dict[int | None, int] = {}
    for record in records:
        before = max(last.values(), default=0) if record.rank is None else last.get(record.rank, 0)
        before = max(before, last.get(None, 0))
        if record.step < before:
            whose = "all ranks" if record.rank is None else f"rank {record.rank}"
            raise UsageError(f"{path}: step {record.step} of {whose} comes after a later one")
        last[record.rank] = record.step
