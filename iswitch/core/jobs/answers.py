"""Memory of answers: repeats the answer to a repeated request, which is not executed again.

Answers outlive their member, so that a repeated Leave finds its answer. In a keyed job this memory
also refuses replays: the Request numbers that an address uses in a job only grow, over all its
processes. The numbers wrap, and are compared by `round_distance`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import later, round_distance

PER_MEMBER = 64
REMEMBERED = 1024  # former members, the newest
LINGER = 0.1  # seconds after a Leave in which a Join of the same process can only be a late copy


class Answers:
    """Keeps the newest answers to one address in one job, and the largest Request number of all.

    Args:
        incarnation: the Request of the Join by which the present process has become a member.
        before: the answers to the processes before it; None: there were none.
    """

    def __init__(self, incarnation: int | None = None, before: Answers | None = None) -> None:
        last: int | None = None if before is None else before.last
        self.last: int | None = last if incarnation is None else later(last, incarnation)
        # A process numbers its requests upwards from its Join. So these are of those before.
        self._former: tuple[int, int] | None = None
        self._first = incarnation  # the Join of the first of the processes, each above the last
        first = None if before is None else before._first
        if first is not None and last is not None and self.last != last:
            self._first, self._former = first, (first, last)
        self._payloads: OrderedDict[int, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._payloads)

    def get(self, request: int) -> bytes | None:
        """Return the answer to this request; None if it is not remembered."""
        return self._payloads.get(request)

    def has_grown(self, request: int) -> bool:
        """Return whether a request's number is larger than every number answered so far."""
        return self.last is None or round_distance(request, self.last) > 0

    def is_of_former(self, request: int) -> bool:
        """Return whether a request is a late copy, of a process before the present one."""
        if self._former is None:
            return False
        join, last = self._former
        return round_distance(request, join) > 0 >= round_distance(request, last)

    def grow(self, request: int) -> None:
        """Note that a request with this number was answered, but keep no answer."""
        self.last = later(self.last, request)

    def put(self, request: int, payload: bytes) -> None:
        """Keep an answer as the newest."""
        self.grow(request)
        self._payloads[request] = payload
        self._payloads.move_to_end(request)
        if len(self._payloads) > PER_MEMBER:
            self._payloads.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Former:
    """Remembers a former member: its answers, its incarnation, and when it left.

    `left` is None without a Leave: the lease ran out, or another process took the place. `number`
    is that of its newest contribution to an asynchronous job; None: it is not known, or not needed.
    `evicted` are the fields that tell it why an operator has ended its job; None: none has.
    """

    answers: Answers = field(default_factory=Answers)
    incarnation: int | None = None
    left: float | None = None
    number: int | None = None
    evicted: Mapping[str, int] | None = None

    def outdates(self, incarnation: int, keyed: bool, now: float) -> bool:
        """Return whether a Join is a late copy, or in a keyed job a replay.

        Args:
            incarnation: the Request number of the Join.
            keyed: whether the job has a key.
            now: the time, in seconds.
        """
        if self.incarnation is None:
            return False
        ahead = round_distance(incarnation, self.incarnation)
        if self.left is None:
            return keyed and ahead < 0
        return ahead <= 0 and (keyed or now - self.left < LINGER)


class FormerMembers:
    """Remembers the last former members, by address and job.

    Keyed jobs have a memory of their own, so that senders without a key cannot displace it.
    """

    def __init__(self) -> None:
        self._former: dict[bool, OrderedDict[tuple[Address, int], Former]] = {
            False: OrderedDict(),
            True: OrderedDict(),
        }
        self._withdrawn: OrderedDict[tuple[Address, int], tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._former.values()))

    def __iter__(self) -> Iterator[Former]:
        return (one for former in self._former.values() for one in former.values())

    def __contains__(self, who: tuple[Address, int]) -> bool:
        return any(who in former for former in self._former.values())

    def get(self, peer: Address, job: int) -> Former:
        """Return the memory of a former member; an empty one for a stranger."""
        found = (former.get((peer, job)) for former in self._former.values())
        return next((one for one in found if one is not None), _NOBODY)

    def note_leave(self, peer: Address, job: int, request: int, now: float) -> None:
        """Remember the Leave of a process that is no member: it may have overtaken its Join."""
        self._withdrawn[peer, job] = request, now
        self._withdrawn.move_to_end((peer, job))
        if len(self._withdrawn) > REMEMBERED:
            self._withdrawn.popitem(last=False)

    def has_left(self, peer: Address, job: int, incarnation: int, now: float) -> bool:
        """Return whether a Join is of a process whose Leave came just before, and overtook it."""
        request, when = self._withdrawn.get((peer, job), (0, -inf))
        return now - when < LINGER and round_distance(incarnation, request) <= 0

    def put(self, peer: Address, job: int, former: Former, keyed: bool) -> None:
        """Remember a member that has just gone; the oldest memory makes room if there are too many.

        Args:
            peer: its address.
            job: its job's number.
            former: its answers, incarnation and time of leaving.
            keyed: whether the job has a key.
        """
        memory = self._former[keyed]
        memory[peer, job] = former
        memory.move_to_end((peer, job))
        if len(memory) > REMEMBERED:
            memory.popitem(last=False)

    def pop(self, peer: Address, job: int) -> Former:
        """Forget a former member that is a member again; return its memory."""
        found = self.get(peer, job)
        for former in self._former.values():
            former.pop((peer, job), None)
        return found


_NOBODY = Former()
