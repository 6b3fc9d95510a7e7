"""Members that say nothing, and jobs without members, are forgotten after a lease time."""

from __future__ import annotations

from math import inf

from iswitch.core.format.packets import Address, Outgoing

from .hierarchy import Hierarchy
from .lifecycle import Lifecycle
from .record import Record

AWAKE = 1.0  # seconds by which a timer may be late in a switch that is awake


class Leases:
    """Ends what has been silent for a lease time.

    Args:
        record: the jobs.
        lifecycle: what happens to them.
        hierarchy: what is said to the parent; None: there is none.
    """

    def __init__(self, record: Record, lifecycle: Lifecycle, hierarchy: Hierarchy | None) -> None:
        self.record = record
        self.lifecycle = lifecycle
        self.hierarchy = hierarchy

    def renew(self, peer: Address, number: int, now: float) -> None:
        """Begin the lease of a member anew.

        Args:
            peer: its address.
            number: of the job.
            now: the time.
        """
        _, member = self.record.find(number, peer)
        if member is not None:
            member.last_seen = now

    def deadline(self) -> float:
        """Return when `handle_timer` has something to do; infinite: never."""
        dormant = (
            job.dormant_since + self.record.limits.lease
            for job in self.record.jobs.values()
            if job.dormant_since is not None
        )
        return min(self.record.next_expiry, *dormant, inf)

    def handle_timer(self, now: float) -> list[Outgoing]:
        """End leases, and forget jobs a lease time after their last member."""
        record = self.record
        sends = self._end(now) if now >= record.next_expiry else []
        for number, job in list(record.jobs.items()):
            if job.dormant_since is not None and now >= job.dormant_since + record.limits.lease:
                del record.jobs[number]
        return sends

    def _end(self, now: float) -> list[Outgoing]:
        """Take out the members that have been silent for a lease time."""
        record, lease = self.record, self.record.limits.lease
        if now > record.next_expiry + AWAKE:  # the switch itself slept: let it hear them first
            record.next_expiry = now + AWAKE
            return []
        sends: list[Outgoing] = []
        record.next_expiry = inf
        for job in list(record.jobs.values()):
            sends += self.lifecycle.end_leases(job, job.members.silent(now, lease), now)
            if (
                self.hierarchy and job.members.keeps_places
            ):  # who keeps its place is not counted now
                sends += self.hierarchy.changed(job, now)
            for member in job.members:
                if member.last_seen + lease > now:
                    record.expect_expiry(member.last_seen + lease)
        return sends
