"""The workers for whom segments wait, anywhere in a tree: known here, or told by neighbours.

A switch answers at once, and asks its neighbours for names that it does not know. The worker then
repeats the question: so no answer is older than the question. A switch asks each neighbour but the
asker, so a question goes through the tree once, and ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import (
    MOST_NAMED,
    NO_RANK,
    UNRANKED,
    AckWho,
    Awaited,
    MemberType,
    Who,
)

from .member import Member

Name = tuple[str, int]  # of a switch: its host, and the UDP port at which it listens
REMEMBERED = 1024  # answers of neighbours, the newest; of about 1 kB each


class Awaiting(NamedTuple):
    """The workers for whom segments wait: their total number, and those that one answer names."""

    total: int
    awaited: tuple[Awaited, ...]

    @property
    def settled(self) -> bool:
        """Return whether all switches that were asked have answered."""
        return all(one.rank != NO_RANK for one in self.awaited)


NOBODY = Awaiting(0, ())


def together(parts: list[Awaiting]) -> Awaiting:
    """Merge several answers; switches that have not answered come first."""
    named = sorted((one for part in parts for one in part.awaited), key=lambda o: o.rank != NO_RANK)
    return Awaiting(sum(part.total for part in parts), tuple(named[:MOST_NAMED]))


def named(member: Member) -> Awaited:
    """Name a contributor of this switch: a worker with its rank, or a switch below."""
    unranked = member.type is MemberType.WORKER and member.rank == NO_RANK
    return Awaited(*member.name, UNRANKED if unranked else member.rank)


class Neighbours:
    """Keeps the answers of the switches above and below."""

    def __init__(self) -> None:
        self._told: OrderedDict[tuple[Name, int, Who], Awaiting] = OrderedDict()

    def ask(
        self, neighbour: Name, job: int, who: Who, send: Callable[[], list[Outgoing]]
    ) -> tuple[Awaiting, list[Outgoing]]:
        """Return a neighbour's answer so far, and the packets that ask for more.

        Args:
            neighbour: the switch.
            job: the job's number.
            who: the question.
            send: called to make the packets that ask the question.
        """
        told = self._told.get((neighbour, job, who))
        if told is None:
            silent = Awaited(*neighbour, NO_RANK)
            return Awaiting(1, (silent,)), send()
        return told, [] if told.settled else send()

    def answered(self, neighbour: Name, job: int, who: Who, ack: AckWho) -> None:
        """Keep an answer, and name the neighbour as the switch of its own workers.

        Args:
            neighbour: the switch.
            job: the job's number.
            who: the question.
            ack: the answer.
        """
        host, port = neighbour
        named = tuple(
            one._replace(switch_host=host, switch_port=port)
            if one.rank != NO_RANK and not one.switch_port
            else one
            for one in ack.awaited
        )
        self._told[neighbour, job, who] = Awaiting(ack.total, named)
        self._told.move_to_end((neighbour, job, who))
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
