"""Makes the programs of ranks from a workload: steps repeated, computing drawn, calls arranged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from iswitch.faults.units import BYTES, QuantityError, Unit
from iswitch.outside import UsageError
from iswitch.sim.model.steps import Call, Group, Item, Schedule

from .records import ALL, Record, Workload

ELEMENT = 4  # bytes of a float32
SIZE = Unit("size", BYTES, "1MB")
MOST_ITEMS = 20_000_000
SIZED = {"made": (False,), "fused": (False,), "split": (True,), "priority": (False, True)}


@dataclass(frozen=True)
class Arrangement:
    """How the calls of a step are carried; a what-if of `iswitch simulate --schedule`.

    Attributes:
        text: as it was written.
        fused: all calls between two waits are one, called with the last of them.
        schedule: what is carried next.
    """

    text: str
    fused: bool
    schedule: Schedule

    @classmethod
    def parse(cls, text: str) -> Arrangement:
        """Read `made`, `fused`, `split:SIZE`, `priority` or `priority:SIZE`.

        Raises:
            UsageError: the text is none of these.
        """
        kind, colon, rest = text.partition(":")
        if bool(colon) not in SIZED.get(kind, ()):
            raise UsageError(
                f"--schedule {text}: write made, fused, split:SIZE, priority or priority:SIZE, "
                "such as priority:1MB"
            )
        piece = 0
        if colon:
            try:
                piece = max(1, int(SIZE.parse(rest)) // ELEMENT)
            except QuantityError as error:
                raise UsageError(f"--schedule {text}: {error}") from None
        return cls(text, kind == "fused", Schedule(piece, kind == "priority"))


AS_MADE = Arrangement("made", False, Schedule())


def programs(
    workload: Workload, workers: int, arrangement: Arrangement, seed: int = 0
) -> list[list[Item]]:
    """Return the items of each rank.

    With more workers than the workload has ranks, the ranks are repeated; with fewer, the last are
    left out. Computing that is random is drawn equally for equal seeds.

    Raises:
        UsageError: groups do not allow another number of workers, or it is too much.
    """
    if workers != workload.ranks and any(record.group for record in workload.records):
        raise UsageError(
            f"{workload.name} has groups of its {workload.ranks} ranks: leave --workers out, or "
            f"write {workload.ranks}"
        )
    steps = {record.step: record.repeat for record in workload.records}
    of_ranks: list[defaultdict[int, list[Record]]] = [
        defaultdict(list) for _ in range(workload.ranks)
    ]
    for record in workload.records:
        whose = range(workload.ranks) if record.rank is None else (record.rank,)
        for rank in whose:
            if record.group is None or rank in record.group:
                of_ranks[rank][record.step].append(record)
    most = max(sum(len(some) * steps[step] for step, some in own.items()) for own in of_ranks)
    if most * workers > MOST_ITEMS:
        raise UsageError(
            f"{workload.name}: {most * workers:,} records of {workers:,} workers are too many; "
            "repeat fewer steps"
        )
    everybody = Group(range(workers))
    groups = {record.group: Group(record.group) for record in workload.records if record.group}
    found = []
    for rank in range(workers):
        chance = Random(f"workload {seed} {rank}")
        own = of_ranks[rank % workload.ranks]
        items: list[Item] = []
        for step in sorted(steps):
            made = list(_items(own[step], groups, everybody, arrangement.fused))
            jitters = [record.jitter for record in own[step]]
            for _ in range(steps[step]):
                items += _drawn(made, jitters, chance)
        found.append(items)
    return found


def _drawn(items: Sequence[Item], jitters: Sequence[float], chance: Random) -> list[Item]:
    """Draw the random factors of computing."""
    if not any(jitters):
        return list(items)
    return [
        item._replace(seconds=item.seconds * chance.lognormvariate(0.0, jitter)) if jitter else item
        for item, jitter in zip(items, jitters, strict=True)
    ]


def _items(
    records: Sequence[Record],
    groups: dict[tuple[int, ...], Group],
    everybody: Group,
    fused: bool,
) -> Iterator[Item]:
    """Yield the items of a step, one for each record."""
    if fused:
        records = _fuse(records)
    for number, record in enumerate(records):
        call = None
        if record.collective is not None:
            numel = max(1, -(-record.bytes // ELEMENT))
            group = groups[record.group] if record.group else everybody
            priority = number if record.priority is None else record.priority
            call = Call(group, numel, priority, record.name)
        waits = record.wait if isinstance(record.wait, tuple) else ()
        yield Item(
            record.compute, call, waits, record.wait == ALL, not record.is_async,
            number == len(records) - 1,
        )  # fmt: skip
    if not records:
        yield Item(ends=True)


def _fuse(records: Sequence[Record]) -> list[Record]:
    """Make one call of all calls of a group that no wait comes between."""
    found: list[Record] = []
    renamed: dict[str, str] = {}

    def parts() -> Iterator[list[Record]]:
        part: list[Record] = []
        for record in records:
            if record.wait and part:
                yield part
                part = []
            part.append(record)
            if record.collective is not None and not record.is_async:
                yield part
                part = []
        yield part

    for part in parts():
        calls = [record for record in part if record.collective == "allreduce"]
        last = {record.group: record for record in calls}
        renamed |= {one.name: last[one.group].name for one in calls}
        for record in part:
            if record.collective != "allreduce":
                found.append(record)
            elif record is last[record.group]:
                size = sum(one.bytes for one in calls if one.group == record.group)
                found.append(replace(record, bytes=size))
            else:
                found.append(
                    replace(record, collective=None, bytes=0, group=None, name="", is_async=False)
                )
    return [
        replace(record, wait=tuple(renamed.get(name, name) for name in record.wait))
        if isinstance(record.wait, tuple)
        else record
        for record in found
    ]
