"""Forgets silent members and jobs without members after a lease time."""

from __future__ import annotations

from math import inf

from iswitch.core.format.packets import Address, Outgoing

from .hierarchy import Hierarchy
from .lifecycle import Lifecycle
from .record import Record

AWAKE = 1.0  # seconds; a timer that is later shows that the switch itself was suspended


class Leases:
    """Takes out silent members, and forgets jobs without members.

    Args:
        record: the jobs.
        lifecycle: changes the jobs.
        hierarchy: speaks to the parent; None: this switch has no parent.
    """

    def __init__(self, record: Record, lifecycle: Lifecycle, hierarchy: Hierarchy | None) -> None:
        self.record = record
        self.lifecycle = lifecycle
        self.hierarchy = hierarchy

    def renew(self, peer: Address, number: int, now: float) -> None:
        """Begin the lease of a member anew.

        Args:
            peer: its address.
            number: the job's number.
            now: the time, in seconds.
        """
        _, member = self.record.find(number, peer)
        if member is not None:
            member.last_seen = now

    def deadline(self) -> float:
        """Return the next time at which `handle_timer` has work, in seconds; infinite: never."""
        return self.record.next_expiry

    def handle_timer(self, now: float) -> list[Outgoing]:
        """End leases, and forget jobs a lease time after their last member."""
        record = self.record
        if now < record.next_expiry:
            return []
        for number, job in list(record.jobs.items()):
            if job.dormant_since is not None and now >= job.dormant_since + record.limits.lease:
                del record.jobs[number]
        return self._end(now)

    def _end(self, now: float) -> list[Outgoing]:
        """Take out the members that have been silent for a lease time."""
        record, lease = self.record, self.record.limits.lease
        if now > record.next_expiry + AWAKE:  # the switch itself was suspended: hear members first
            record.next_expiry = now + AWAKE
            return []
        sends: list[Outgoing] = []
        record.next_expiry = inf
        for job in list(record.jobs.values()):
            sends += self.lifecycle.end_leases(job, job.members.silent(now, lease), now)
            if (
                self.hierarchy and job.members.keeps_places
            ):  # a silent member that keeps its place no longer counts
                sends += self.hierarchy.changed(job, now)
            if job.dormant_since is not None:
                record.expect_expiry(job.dormant_since + lease)
            for member in job.members:
                if member.last_seen + lease > now:
                    record.expect_expiry(member.last_seen + lease)
        return sends
