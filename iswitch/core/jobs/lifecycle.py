"""What happens to a job: members go, its gate opens, it is reset, halted, or completes.

Each method does one such thing, in the record, and returns what is to be sent because of it: to
the members, and with a parent to that.
"""

from __future__ import annotations

from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import Action, Round

from .answers import Former
from .hierarchy import Hierarchy
from .job import Job
from .member import Member
from .ranks import Ranks
from .record import Record
from .relay import Relays

RETRY = 0.1  # seconds until what lacked memory is tried again


class Lifecycle:
    """Changes the jobs of a switch.

    Args:
        record: the jobs.
        ranks: who has which.
        relays: what is under way to members.
        hierarchy: what is said to the parent; None: there is none.
    """

    def __init__(
        self, record: Record, ranks: Ranks, relays: Relays, hierarchy: Hierarchy | None
    ) -> None:
        self.record = record
        self.ranks = ranks
        self.relays = relays
        self.hierarchy = hierarchy

    # Members go

    def remove(
        self, job: Job, member: Member, now: float, left: float | None = None
    ) -> list[Outgoing]:
        """Take a member out; what waited only for it completes.

        Args:
            job: its job.
            member: who goes.
            now: the time.
            left: when it left by itself; None: it did not.
        """
        record = self.record
        job.remove(member)
        former = Former(member.answers, member.incarnation, left)
        record.former.put(member.address, job.number, former, record.is_keyed(job.number))
        record.leave(member.address)
        self.relays.cancel(member.address, job.number)
        if member.contributes:
            del record.by_source[member.address]
            if not job.contributors():
                record.reserved -= sum(job.reserved.values())
                job.end()
        if not job.members:
            job.sleep(now)
            if not job.window.is_sure:  # nobody has ever contributed: there is nothing to remember
                del record.jobs[job.number]
        sends: list[Outgoing] = []
        if self.hierarchy and member.contributes:
            sends += self.hierarchy.changed(job, now)
        return sends + self.reevaluate(job, now)

    def end_lease(self, job: Job, member: Member, now: float) -> list[Outgoing]:
        """Take out a member that has been silent for a lease time.

        Args:
            job: its job.
            member: who is out.
            now: the time.
        """
        self.record.counters["leases_run_out"] += 1
        return self.remove(job, member, now)

    def end_leases(self, job: Job, members: list[Member], now: float) -> list[Outgoing]:
        """Take out members that have been silent for a lease time, one after the other.

        Args:
            job: their job.
            members: those that are out.
            now: the time.
        """
        sends: list[Outgoing] = []
        for member in members:
            # What completes next may take over the sets that are to be sent: copy them.
            sends += [out.copy() for out in self.end_lease(job, member, now)]
        return sends

    # Sums complete

    def reevaluate(self, job: Job, now: float) -> list[Outgoing]:
        """Send what a change of members or threshold completes: if memory runs out, soon."""
        try:
            return job.reevaluate()
        except MemoryError:  # the change itself is done, and need not be given up
            self.record.counters["given_up"] += 1
            self.lacks_memory(now)
            return []

    def lacks_memory(self, now: float) -> None:
        """Retry soon what could not be finished."""
        self.record.retry_at = now + RETRY

    def settle(self, now: float) -> list[Outgoing]:
        """Complete what is complete, in all jobs; what was not sent then will be asked for.

        Raises:
            MemoryError: it cannot be done yet.
        """
        self.record.expect_expiry(now)
        sends: list[Outgoing] = []
        for job in self.record.jobs.values():
            job.resume()
            sends += [out.copy() for out in job.reevaluate()]
        self.record.retry_at = float("inf")
        return sends

    # All have come

    def gate_opened(self, job: Job, newcomer: Member | None, now: float) -> list[Outgoing]:
        """Begin, all in one round: as many workers have come as are expected.

        Args:
            job: of the workers.
            newcomer: the one that came last; None: more came behind a switch.
            now: the time.
        """
        sends = self.number(job, now)
        if job.is_out_of_step():
            return sends + self.begin_anew(job, newcomer, now)
        return sends + self.reevaluate(job, now)

    def number(self, job: Job, now: float) -> list[Outgoing]:
        """Give the workers that are due the lowest free ranks; with a parent, ask for them."""
        due = self.ranks.due(job, now)
        if due and self.hierarchy:
            return self.hierarchy.restate(job, now)
        self.ranks.number(job, due, now)
        return []

    def begin_anew(self, job: Job, newcomer: Member | None, now: float) -> list[Outgoing]:
        """Have all continue in a new round: a place in a whole job was taken again.

        Args:
            job: the whole job.
            newcomer: who took it, if it is a member here.
            now: the time.
        """
        comes_back = newcomer is not None and newcomer.named is not None
        if self.hierarchy:
            job.await_reset()
            return self.hierarchy.tell(job, Action.RESET, None, now)
        sends = self.reset(job, None, now)
        if newcomer is None or comes_back:
            return sends
        self.relays.cancel(newcomer.address, job.number)  # its Ack says it
        return [out for out in sends if newcomer.address not in out.peers]

    # Commands

    def reset(self, job: Job, round_: int | None, now: float) -> list[Outgoing]:
        """Clear a job, which continues from a round, and tell its members.

        Args:
            job: to be cleared.
            round_: from which to continue; None: two rounds on.
            now: the time.
        """
        job.reset(round_)
        return self._relay(job, Action.RESET, Round(job.high), now)

    def halt(self, job: Job, now: float) -> list[Outgoing]:
        """Suspend a job, and tell its members."""
        job.halted = True
        return self._relay(job, Action.HALT, None, now)

    def _relay(self, job: Job, action: Action, value: Round | None, now: float) -> list[Outgoing]:
        """Pass a Halt or Reset on; whatever was under way before is void."""
        sends = []
        for member in job.contributors():
            self.relays.cancel(member.address, job.number)
            sends += self.relays.send(member.address, action, job.number, value, now)
        return sends
