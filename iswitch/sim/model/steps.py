"""Programs that compute and call collectives, some of which run while they compute on.

Each rank has a program: items that wait for calls, compute, and call a collective. The calls of a
group match in order. A group that shares lines with others takes turns with them: one lane carries
one piece of a call after the other, as a process group with one thread does. What a lane carries
next, if several calls are ready, is a `Schedule`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .fabric import Floats


class Group:
    """Ranks that call collectives together; equal to itself alone.

    Args:
        ranks: the ranks, ascending.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self.place = {rank: at for at, rank in enumerate(ranks)}

    def __str__(self) -> str:
        return _listed(self.ranks)


Exchange = Callable[[Group, int, Floats], Floats]  # group, elements, starts -> ends, in seconds


class Call(NamedTuple):
    """A collective that a rank calls.

    Attributes:
        group: the ranks that take part.
        numel: elements of the vector.
        priority: of ready calls, that with the highest goes first, if the schedule says so.
        name: by which the rank's later items wait for it.
    """

    group: Group
    numel: int
    priority: int = 0
    name: str = ""


class Item(NamedTuple):
    """A part of a rank's program: it waits, computes, and calls.

    Attributes:
        seconds: of computing, once the calls that it waits for are done.
        call: what is called then; None: nothing.
        waits: names of calls; the rank's latest of each name must be done.
        waits_for_all: whether all calls of the rank must be done.
        blocks: whether the rank goes on only once its own call is done.
        ends: whether a step of the rank ends here.
    """

    seconds: float = 0.0
    call: Call | None = None
    waits: tuple[str, ...] = ()
    waits_for_all: bool = False
    blocks: bool = False
    ends: bool = False


class Schedule(NamedTuple):
    """How a lane carries calls.

    Attributes:
        piece: most elements that it carries at a time; 0: whole calls.
        by_priority: whether the highest priority goes first; else what was ready first.
    """

    piece: int = 0
    by_priority: bool = False


class Carried(NamedTuple):
    """A piece that a lane has carried: of which of the group's calls, and how many elements."""

    group: Group
    number: int
    numel: int


class Played(NamedTuple):
    """What came of programs.

    Attributes:
        ends: when each rank ended each step, (steps, ranks) seconds.
        carried: the pieces of all lanes, in the order in which they began.
    """

    ends: Floats
    carried: list[Carried]


class Mismatch(ValueError):
    """Programs whose calls do not match: some rank waits for ever."""


class Posted:
    """A call that some ranks of its group have made; all of them, if it is `ready`."""

    def __init__(self, call: Call, number: int) -> None:
        self.call, self.number = call, number
        self.came = np.full(len(call.group.ranks), np.nan)
        self.left = call.numel
        self.ends: Mapping[int, float] | None = None  # by rank, once it is done

    @property
    def ready(self) -> float:
        """Return when the last rank called; NaN: not all have."""
        return float(self.came.max())


class Rank:
    """A rank in its program."""

    def __init__(self, rank: int, items: Sequence[Item]) -> None:
        self.rank, self._items = rank, items
        self._at, self._now = 0, 0.0
        self._has_called = False  # the item's own call, for which it waits
        self._latest: dict[str, Posted] = {}
        self._open: list[Posted] = []
        self.ends: list[float] = []

    @property
    def done(self) -> bool:
        """Return whether the program is at its end."""
        return self._at == len(self._items)

    def go(self, post: Callable[[int, Call, float], Posted]) -> None:
        """Go on until a call is not done for which the rank waits."""
        while not self.done:
            item = self._items[self._at]
            if not self._has_called:
                if not self._waited(item):
                    return
                self._now += item.seconds
                if item.call is not None:
                    posted = post(self.rank, item.call, self._now)
                    self._open.append(posted)
                    self._latest[item.call.name] = posted
            if item.blocks and item.call is not None:
                self._has_called = True
                if not self._came([self._open[-1]]):
                    return
                self._open.pop()
                self._has_called = False
            if item.ends:
                self.ends.append(self._now)
            self._at += 1

    def _waited(self, item: Item) -> bool:
        if item.waits_for_all:
            if not self._came(self._open):
                return False
            self._open.clear()
        return self._came([self._latest[name] for name in item.waits if name in self._latest])

    def _came(self, calls: Sequence[Posted]) -> bool:
        """Let the time go to when calls are done; return whether they all are."""
        ends = [call.ends for call in calls]
        if any(one is None for one in ends):
            return False
        self._now = max([self._now, *(one[self.rank] for one in ends if one is not None)])
        return True


class _Lane:
    """Calls of which one is carried after the other."""

    def __init__(self, schedule: Schedule, ranks: int) -> None:
        self._schedule = schedule
        self.waiting: list[Posted] = []
        self._free = np.zeros(ranks)  # when each rank can begin the next one
        self._over = 0.0  # when all ranks can
        self._group: Group | None = None  # of the last one

    def next(self) -> tuple[float, Posted] | None:
        """Return the call to carry next, and when all ranks can begin; None: none is ready."""
        ready = [(one.ready, one.number, one) for one in self.waiting if one.ready >= 0]
        if not ready:
            return None
        first = min(ready, key=lambda each: each[:2])
        begins = max(self._over, first[0])
        if self._schedule.by_priority:
            now = [each for each in ready if each[0] <= begins]
            first = min(now, key=lambda each: (-each[2].call.priority, *each[:2]))
        return begins, first[2]

    def carry(self, posted: Posted, exchange: Exchange) -> int:
        """Carry a piece of a call; return its elements."""
        call = posted.call
        size = min(posted.left, self._schedule.piece or posted.left)
        ranks = np.array(call.group.ranks)
        free = self._free[ranks] if call.group is self._group else self._over
        ends = exchange(call.group, size, np.maximum(posted.came, free))
        self._group, self._free[ranks] = call.group, ends
        self._over = max(self._over, float(ends.max()))
        posted.left -= size
        if not posted.left:
            posted.ends = dict(zip(call.group.ranks, ends.tolist(), strict=True))
            self.waiting.remove(posted)
        return size


def play(
    programs: Sequence[Sequence[Item]],
    exchange: Exchange,
    schedule: Schedule = Schedule(),  # noqa: B008  (immutable)
    lane_of: Callable[[Group], Hashable] = lambda _: 0,
) -> Played:
    """Play the programs of all ranks from time 0.

    Args:
        programs: items of each rank.
        exchange: tells when the ranks of a group have a sum.
        schedule: what lanes carry next.
        lane_of: names the lane of a group.

    Raises:
        Mismatch: ranks call different things; the message names them.
    """
    ranks = [Rank(rank, items) for rank, items in enumerate(programs)]
    lanes: dict[Hashable, _Lane] = {}
    made: dict[Group, list[Posted]] = {}
    counts: dict[tuple[Group, int], int] = {}  # calls of a group by rank
    carried: list[Carried] = []

    def post(rank: int, call: Call, now: float) -> Posted:
        calls = made.setdefault(call.group, [])
        number = counts.get((call.group, rank), 0)
        counts[call.group, rank] = number + 1
        if number == len(calls):
            calls.append(Posted(call, number))
            lane = lanes.setdefault(lane_of(call.group), _Lane(schedule, len(ranks)))
            lane.waiting.append(calls[-1])
        posted = calls[number]
        if posted.call.numel != call.numel:
            raise Mismatch(
                f"call {number} of ranks {call.group}: rank {rank} brings {call.numel:,} "
                f"elements, another {posted.call.numel:,}"
            )
        posted.came[call.group.place[rank]] = now
        return posted

    going: Sequence[int] = range(len(ranks))
    while True:
        for rank in going:
            ranks[rank].go(post)
        found = [(one, lane) for lane in lanes.values() if (one := lane.next()) is not None]
        if not found:
            break
        (_, posted), lane = min(found, key=lambda each: each[0][0])
        size = lane.carry(posted, exchange)
        carried.append(Carried(posted.call.group, posted.number, size))
        going = posted.call.group.ranks if posted.ends is not None else ()
    waiting = [one for lane in lanes.values() for one in lane.waiting]
    if waiting:
        lost = waiting[0]
        pairs = zip(lost.call.group.ranks, lost.came.tolist(), strict=True)
        absent = [rank for rank, came in pairs if np.isnan(came)]
        many = "ranks" if len(absent) > 1 else "rank"
        raise Mismatch(
            f"call {lost.number} of ranks {lost.call.group}: {many} {_listed(absent)} never "
            f"{'make' if len(absent) > 1 else 'makes'} it, and the others wait for ever"
        )
    return Played(np.array([one.ends for one in ranks]).T, carried)


def _listed(ranks: Sequence[int]) -> str:
    few = ", ".join(map(str, ranks[:4]))
    return f"{few}, ... ({len(ranks)})" if len(ranks) > 4 else few
