"""Checks that members learn that all have joined, even if others leave as soon as they know it.

Only switches without a parent are checked: the others are told by their parents.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from iswitch.core.format.wire import Ack
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member

from .said import Endpoint, endpoint
from .violation import Violation


@dataclass
class _Newcomer:
    """A member that has contributed nothing; `met`: how many workers its Ack must tell."""

    member: Member
    incarnation: int
    met: int = 0


class ToldOfAll:
    """Checks what a switch without a parent tells newcomers of the members that have joined.

    Args:
        name: name of the switch.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._known: dict[tuple[Endpoint, int], Member] = {}
        self._newcomers: dict[tuple[Endpoint, int], _Newcomer] = {}

    def look(self, jobs: Iterable[Job]) -> None:
        """Note the present members."""
        known: dict[tuple[Endpoint, int], Member] = {}
        for job in jobs:
            members = job.members.contributors() if job.synchronous else []
            known |= {(endpoint(m.address), job.number): m for m in members}
            workers = sum(member.workers for member in members)
            for key, member in known.items():
                if key[1] == job.number:
                    self._note(key, member, workers, job.members.expected)
        self._known = known
        self._newcomers = {key: one for key, one in self._newcomers.items() if key in known}

    def _note(self, key: tuple[Endpoint, int], member: Member, workers: int, expected: int) -> None:
        one = self._newcomers.get(key)
        if self._known.get(key) is not member:
            one = self._newcomers[key] = _Newcomer(member, member.incarnation)
        if one is None or member.contributed is not None:
            self._newcomers.pop(key, None)
            return
        if one.incarnation != member.incarnation:  # it may stand for others since
            one.incarnation, one.met = member.incarnation, 0
        if workers >= expected:
            one.met = expected

    def answered(self, peer: Endpoint, job: int, ack: Ack) -> None:
        """Judge the answer to a Join."""
        one = self._newcomers.get((peer, job))
        if one is not None and ack.contributors < one.met:
            raise Violation(
                "left out",
                f"{self.name} tells {peer} of {ack.contributors} workers, though all {one.met} "
                "have come, and it among them",
            )
