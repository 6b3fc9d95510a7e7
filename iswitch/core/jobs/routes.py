"""Who has yet to contribute a segment, and who receives it: all, or the rank that owns it."""

from __future__ import annotations

from collections.abc import Sequence

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.sums.owned import OwnedAccelerator
from iswitch.core.sums.plane import Accelerator
from iswitch.core.sums.runs import Run, merge

from .member import Member
from .membership import Membership


class Routes:
    """Sends the aggregates of one job, each to all contributors.

    Args:
        members: the members of the job.
        sums: its accelerator.
        counters: counts what is sent again.
    """

    def __init__(self, members: Membership, sums: Accelerator, counters: Counters) -> None:
        self._members = members
        self._sums = sums
        self._counters = counters

    def lacking(self, run: Run, bitmap: int, among: int) -> list[tuple[int, Run]]:
        """Return whose contributions an open run lacks: bits of members, and their segments.

        Args:
            run: segments in one state.
            bitmap: bitmap of the contributors to them.
            among: bitmap of the members that take part in the round.
        """
        return [(among & ~bitmap, run)]

    def elsewhere(self, run: Run) -> list[Run]:  # noqa: ARG002
        """Return the parts of a run that only ranks above or beside this switch contribute."""
        return []

    def _addressed(self, runs: Sequence[Run]) -> list[tuple[tuple[Address, ...], Sequence[Run]]]:
        """Group completed runs by the contributors that receive them."""
        return [(self._members.contributor_addresses(), runs)]

    def meant_for(self, member: Member, runs: Sequence[Run]) -> Sequence[Run]:  # noqa: ARG002
        """Return the parts of runs whose aggregates go to a member, or a controller that asks."""
        return runs

    def deliver(self, completed: Sequence[Run]) -> list[Outgoing]:
        """Send runs that have just completed."""
        groups = self._addressed(completed)
        return [out for peers, runs in groups for out in self._sums.deliver(runs, peers)]

    def pass_on(self, taken: Sequence[Run]) -> list[Outgoing]:
        """Send aggregates that have come from the parent."""
        groups = self._addressed(taken)
        return [out for peers, runs in groups for out in self._sums.send(runs, peers)]

    def answer(self, member: Member, kept: Sequence[Run]) -> list[Outgoing]:
        """Send those of the kept aggregates to one member again that it receives."""
        meant = self.meant_for(member, kept)
        sends = self._sums.send(meant, (member.address,)) if meant else []
        resent = sum(len(out.rows) for out in sends)
        self._counters["retransmitted"] += resent
        member.tally.resent += resent
        return sends


class Owners(Routes):
    """Sends the aggregates of a job whose segments have owners.

    Args:
        members: the members of the job.
        sums: its accelerator.
        counters: counts what is sent again.
    """

    _sums: OwnedAccelerator

    def lacking(self, run: Run, bitmap: int, among: int) -> list[tuple[int, Run]]:
        """Return whose contributions an open run lacks: bits of members, and their segments.

        Args:
            run: segments in one state.
            bitmap: bitmap of the contributors to them.
            among: bitmap of the members that take part in the round.
        """
        found: list[tuple[int, Run]] = []
        for start, stop, rank in self._sums.division.by_source(run.start, run.stop):
            part = run._replace(start=start, stop=stop)
            if start == self._sums.division.closing:
                found += self._unclosed(part, bitmap, among)
            elif rank is None:
                found.append((among & ~bitmap, part))
            else:
                owner = self._members.by_rank.get(rank)
                found.append((owner.bit & among & ~bitmap if owner else 0, part))
        return found

    def _unclosed(self, closing: Run, bitmap: int, among: int) -> list[tuple[int, Run]]:
        """Return the members whose contributions do not add up, and the segments they may owe."""
        open_ = among & (~bitmap | self._sums.unclosed(closing.round, bitmap))
        return [
            (member.bit, run)
            for member in self._members.seated(open_)
            for run in self._sums.lacks(closing.round, member.seat) or [closing]
        ]

    def elsewhere(self, run: Run) -> list[Run]:
        """Return the parts of a run that only ranks above or beside this switch contribute."""
        parts = self._sums.division.by_source(run.start, run.stop)
        return [
            run._replace(start=start, stop=stop)
            for start, stop, rank in parts
            if rank is not None and rank not in self._members.by_rank
        ]

    def _addressed(self, runs: Sequence[Run]) -> list[tuple[tuple[Address, ...], Sequence[Run]]]:
        """Group completed runs by the contributors that receive them."""
        everybody = self._members.contributor_addresses()
        groups: dict[tuple[Address, ...], list[Run]] = {}
        for run in runs:
            for start, stop, rank in self._sums.division.by_receiver(run.start, run.stop):
                owner = None if rank is None else self._members.by_rank.get(rank)
                peers = everybody if rank is None else (owner.address,) if owner else ()
                if peers:
                    groups.setdefault(peers, []).append(run._replace(start=start, stop=stop))
        return list(groups.items())

    def meant_for(self, member: Member, runs: Sequence[Run]) -> Sequence[Run]:
        """Return the parts of runs whose aggregates go to a member, or a controller that asks."""
        if not member.contributes:
            return runs
        return merge(
            run._replace(start=start, stop=stop)
            for run in runs
            for start, stop, rank in self._sums.division.by_receiver(run.start, run.stop)
            if rank is None or member.ranks >> rank & 1
        )


def routes(members: Membership, sums: Accelerator, counters: Counters) -> Routes:
    """Make the routes of a job that begins.

    Args:
        members: the members of the job.
        sums: its accelerator.
        counters: counts what is sent again.
    """
    if isinstance(sums, OwnedAccelerator):
        return Owners(members, sums, counters)
    return Routes(members, sums, counters)
