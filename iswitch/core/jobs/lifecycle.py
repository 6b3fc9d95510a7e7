"""Changes of a job: members go, its gate opens, it is reset, halted, or completes.

Each method makes one such change in the record, and returns the packets that follow from it: to the
members, and to the parent if there is one.
"""

from __future__ import annotations

from dataclasses import replace

from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import ROUND_MASK, Action, Round, round_distance
from iswitch.core.sums.numbered import NumberedAccelerator
from iswitch.core.sums.runs import Held

from .answers import Former
from .hierarchy import Hierarchy
from .job import Job
from .member import Member
from .ranks import Ranks
from .record import Elsewhere, Record
from .relay import Relays

RETRY = 0.1  # seconds until what lacked memory is tried again


class Lifecycle:
    """Changes the jobs of a switch.

    Args:
        record: the jobs.
        ranks: gives ranks to members.
        relays: repeats the commands that are under way to members.
        hierarchy: speaks to the parent; None: this switch has no parent.
    """

    def __init__(
        self, record: Record, ranks: Ranks, relays: Relays, hierarchy: Hierarchy | None
    ) -> None:
        self.record = record
        self.ranks = ranks
        self.relays = relays
        self.hierarchy = hierarchy

    # Members leave

    def remove(
        self, job: Job, member: Member, now: float, left: float | None = None
    ) -> list[Outgoing]:
        """Take a member out; complete the segments that waited only for it.

        Args:
            job: the member's job.
            member: the member that goes.
            now: the time, in seconds.
            left: the time of its Leave; None: it sent none.
        """
        record = self.record
        sends: list[Outgoing] = []
        numbers = job.accelerator if member.contributes else None
        number = numbers.newest(member.seat) if isinstance(numbers, NumberedAccelerator) else None
        job.remove(member)
        former = Former(member.answers, member.incarnation, left, number)
        record.former.put(member.address, job.number, former, record.is_keyed(job.number))
        record.leave(member.address)
        self.relays.cancel(member.address, job.number)
        if member.contributes:
            del record.by_source[member.address]
            if not job.contributors():
                upward = self.hierarchy.upward_of(job) if self.hierarchy else None
                sends += upward.hand_over() if upward else []
                record.policy.leave(job.number)
                job.end()
        if not job.members:
            job.sleep(now)
            self.record.expect_expiry(now + self.record.limits.lease)
            if not job.window.is_sure:  # no member ever contributed: there is nothing to remember
                del record.jobs[job.number]
        if self.hierarchy and member.contributes:
            sends += self.hierarchy.changed(job, now)
        sends += self.reevaluate(job, now)
        if self.hierarchy and member.contributes:
            uplink = self.hierarchy.uplinks.get(job.number)
            if uplink is not None and _is_deserted(job, uplink.first_round):
                sends = [out.copy() for out in sends] + self.begin_anew(job, None, now)
        return sends

    def end_lease(self, job: Job, member: Member, now: float) -> list[Outgoing]:
        """Take out a member that has been silent for a lease time.

        Args:
            job: the member's job.
            member: the silent member.
            now: the time, in seconds.
        """
        self.record.counters["leases_run_out"] += 1
        return self.remove(job, member, now)

    def end_leases(self, job: Job, members: list[Member], now: float) -> list[Outgoing]:
        """Take out members that have been silent for a lease time, one after the other.

        Args:
            job: the members' job.
            members: the silent members.
            now: the time, in seconds.
        """
        sends: list[Outgoing] = []
        for member in members:
            # The next member's end may reuse the buffers of these packets: copy them.
            sends += [out.copy() for out in self.end_lease(job, member, now)]
        return sends

    def evict(self, job: Job, to: Elsewhere, now: float) -> list[Outgoing]:
        """Take out all members of a job; each is told why, and where to go, when it comes back.

        Args:
            job: the job.
            to: where the members are told to go.
            now: the time, in seconds.
        """
        record, keyed = self.record, self.record.is_keyed(job.number)
        sends: list[Outgoing] = []
        if job.shape is not None:
            job.reset()  # no sum is completed by those that are still there
        for member in list(job.members):
            sends += [out.copy() for out in self.remove(job, member, now)]
            former = record.former.get(member.address, job.number)
            told = replace(former, evicted=to.told(evicted=True))
            record.former.put(member.address, job.number, told, keyed)
        return sends

    # Sums complete

    def reevaluate(self, job: Job, now: float) -> list[Outgoing]:
        """Send the segments that a change has completed; retry soon if memory runs out."""
        try:
            return job.reevaluate()
        except MemoryError:  # the change itself is done, and stays
            self.record.counters["given_up"] += 1
            self.lacks_memory(now)
            return []

    def lacks_memory(self, now: float) -> None:
        """Schedule a retry of the work that lacked memory."""
        self.record.retry_at = now + RETRY

    def settle(self, now: float) -> list[Outgoing]:
        """Send, in all jobs, the segments that became complete while memory was lacking.

        Workers ask with Help for the results that were lost meanwhile.

        Raises:
            MemoryError: there is still too little memory.
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
        """Begin in one round, now that all expected workers have come.

        Args:
            job: the job of the workers.
            newcomer: the member that came last; None: the last worker came behind a switch.
            now: the time, in seconds.
        """
        sends = self.number(job, now)
        if job.is_out_of_step():
            return sends + self.begin_anew(job, newcomer, now)
        return sends + self.reevaluate(job, now)

    def number(self, job: Job, now: float) -> list[Outgoing]:
        """Give each worker that is due a rank the lowest free one; under a parent, ask for them."""
        due = self.ranks.due(job, now)
        if due and self.hierarchy:
            return self.hierarchy.restate(job, now)
        self.ranks.number(job, due, now)
        return []

    def begin_anew(self, job: Job, newcomer: Member | None, now: float) -> list[Outgoing]:
        """Resume a whole job in a new round, after a member took a place that was free.

        Args:
            job: the whole job.
            newcomer: the member that took the place; None: a member of another switch took it.
            now: the time, in seconds.
        """
        comes_back = newcomer is not None and newcomer.named is not None
        if self.hierarchy:
            job.await_reset()
            return self.hierarchy.tell(job, Action.RESET, job.rounds.ahead(), now)
        sends = self.reset(job, None, now)
        if newcomer is None or comes_back:
            return sends
        self.relays.cancel(newcomer.address, job.number)  # the Ack of its Join names the round
        return [out for out in sends if newcomer.address not in out.peers]

    # Commands

    def reset(self, job: Job, round_: int | None, now: float) -> list[Outgoing]:
        """Clear the sums of a job, and tell its members from which round on it continues.

        Args:
            job: the job to clear.
            round_: the first round after the Reset; None: two rounds later.
            now: the time, in seconds.
        """
        job.reset(round_)
        return self._relay(job, Action.RESET, Round(job.high), now)

    def halt(self, job: Job, now: float) -> list[Outgoing]:
        """Suspend a job, and tell its members."""
        job.halted = True
        return self._relay(job, Action.HALT, None, now)

    def _relay(self, job: Job, action: Action, value: Round | None, now: float) -> list[Outgoing]:
        """Relay a Halt or Reset to the contributors, and repeat no earlier command to them."""
        sends = []
        for member in job.contributors():
            self.relays.cancel(member.address, job.number)
            sends += self.relays.send(member.address, action, job.number, value, now)
        return sends


def _is_deserted(job: Job, first: int) -> bool:
    """Return whether the switch above waits in vain: all who took part in a round here are gone.

    The members that are left, which followed them within the round, begin later.

    Args:
        job: a job with a switch above.
        first: the first round in which this switch takes part there.
    """
    members = job.members
    if job.shape is None or not job.synchronous or job.awaits_reset:
        return False
    if members.threshold or members.whole:  # a whole job begins anew once its places are filled
        return False
    lacks = (Held.OPEN, Held.NOTHING)
    for ahead in (-1, 0, 1):
        round_ = (job.high + ahead) & ROUND_MASK
        awaited = round_ in job.window and round_distance(round_, first) >= 0
        if not awaited or members.participants(round_):
            continue
        if any(what in lacks for _, what, _ in job.held(round_, 0, job.shape.segments)):
            return True
    return False


def recount(job: Job, switch: Member, workers: int, expected: int) -> bool:
    """Change the number of workers of a switch below; return whether that opens the gate.

    Args:
        job: its job.
        switch: the switch below.
        workers: number of workers at that switch and below it.
        expected: number of workers that the switch expects in the whole job.
    """
    job.members.are_fewer(switch.workers - workers)
    switch.workers, switch.expected = workers, expected
    return job.opens_gate()
