"""What was answered to whom: a repeated request is answered from here, and not executed again.

Answers outlive their member, so that a repeated Leave finds its own. In a keyed job this memory is
also what refuses replays: the Request numbers that an address uses in a job only grow, over all
processes it has had there. They wrap, and are compared as rounds are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import later, round_distance

PER_MEMBER = 64
REMEMBERED = 1024  # former members, the newest
LINGER = 0.1  # seconds after a Leave in which a Join of the same process can only be a late copy


class Answers:
    """Keeps the newest answers to one address in one job, and the largest Request of all."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self._payloads: OrderedDict[int, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._payloads)

    def get(self, request: int) -> bytes | None:
        """Return what was answered to this request, if that is still remembered."""
        return self._payloads.get(request)

    def has_grown(self, request: int) -> bool:
        """Return whether a request's number is larger than all that were answered."""
        return self.last is None or round_distance(request, self.last) > 0

    def grow(self, request: int) -> None:
        """Note that a request of this number was answered, without keeping the answer."""
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
    """A member that is gone: what it was answered, its incarnation, and when it left.

    `left` is None if it did not leave: its lease ran out, or another process took its place.
    """

    answers: Answers = field(default_factory=Answers)
    incarnation: int | None = None
    left: float | None = None

    def outdates(self, incarnation: int, keyed: bool, now: float) -> bool:
        """Return whether a Join is a late copy, or in a keyed job a replay.

        Args:
            incarnation: of the Join.
            keyed: the job has a key.
            now: the time.
        """
        if self.incarnation is None:
            return False
        ahead = round_distance(incarnation, self.incarnation)
        if self.left is None:
            return keyed and ahead < 0
        return ahead <= 0 and (keyed or now - self.left < LINGER)


class FormerMembers:
    """The members that went last, by address and job.

    Those of keyed jobs are kept apart: nobody without a key can have them forgotten.
    """

    def __init__(self) -> None:
        self._former: dict[bool, OrderedDict[tuple[Address, int], Former]] = {
            False: OrderedDict(),
            True: OrderedDict(),
        }

    def __len__(self) -> int:
        return sum(map(len, self._former.values()))

    def __iter__(self) -> Iterator[Former]:
        return (one for former in self._former.values() for one in former.values())

    def __contains__(self, who: tuple[Address, int]) -> bool:
        return any(who in former for former in self._former.values())

    def get(self, peer: Address, job: int) -> Former:
        """Return what is remembered of a former member: of a stranger, nothing."""
        found = (former.get((peer, job)) for former in self._former.values())
        return next((one for one in found if one is not None), _NOBODY)

    def put(self, peer: Address, job: int, former: Former, keyed: bool) -> None:
        """Remember a member as the last that went.

        Args:
            peer: its address.
            job: its job's number.
            former: what is to be remembered.
            keyed: the job has a key.
        """
        memory = self._former[keyed]
        memory[peer, job] = former
        memory.move_to_end((peer, job))
        if len(memory) > REMEMBERED:
            memory.popitem(last=False)

    def pop(self, peer: Address, job: int) -> Former:
        """Forget a former member, and return what was remembered: it is a member again."""
        found = self.get(peer, job)
        for former in self._former.values():
            former.pop((peer, job), None)
        return found


_NOBODY = Former()
