"""Jobs that take turns with memory, and jobs that wait for some: docs/protocol.md, "Turns".

The policy decides with numbers who is next. What is here tells it what happens in the jobs, and
carries out what it decides: it takes waiting jobs in, and asks the members of the job whose turn it
is for their contributions.
"""

from __future__ import annotations

from math import inf

from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import TOS_CONTROL, Action, Header, Segments, round_distance
from iswitch.core.sums.turns import TurnAccelerator

from .admission import Admission
from .job import Job
from .member import Member
from .memory import take_back
from .phases import JobPhase
from .queue import Waiting
from .record import Record
from .relay import Relays
from .resizing import Resizing

SILENCE = 2.0  # seconds; a worker that waits for aggregates is heard of every second
LOOK_PAUSE = 0.5  # seconds between two looks whether a round is stuck


class Turns:
    """Carries out what the policy of a switch decides about queue and turns.

    Args:
        record: the jobs.
        relays: repeats the commands that are under way to members.
        admission: takes waiting contributors in.
    """

    def __init__(self, record: Record, relays: Relays, admission: Admission) -> None:
        self.record = record
        self.relays = relays
        self.admission = admission
        self.resizing = Resizing(record, relays)
        self._look_at = inf

    def deadline(self) -> float:
        """Return the next time at which `after` has work, in seconds; infinite: never."""
        return self._look_at

    def after(self, now: float, *jobs: Job | None) -> list[Outgoing]:
        """Do what follows from a packet, or from the time: let jobs in, and give turns.

        Args:
            now: the time, in seconds.
            jobs: the jobs in which something may have happened.
        """
        sends: list[Outgoing] = []
        if now >= self._look_at:
            self._look_at, jobs = inf, tuple(self.record.jobs.values())
        for job in jobs:
            if job is not None and isinstance(job.accelerator, TurnAccelerator):
                self._note(job, job.accelerator, now)
                sends += self._ask_for_missed(job, job.accelerator, now)
        sends += self.resizing.after(now, *jobs)
        sends, given = sends + self._let_in(now), [0]
        while given:
            given = self.record.policy.turns()
            take_back(self.record)
            for number in given:
                sends += self._give(self.record.jobs[number], now)
            sends += self._let_in(now)
        self._look_at = min(self._look_at, self.record.policy.look_at())
        sends += self.resizing.after(now)
        return self.record.keys.sealed(sends)

    # What happens in jobs

    def _note(self, job: Job, sums: TurnAccelerator, now: float) -> None:
        """Tell the policy how a job's rounds begin and end, and that it wants to begin one."""
        policy, number = self.record.policy, job.number
        runs = job.phase is JobPhase.RUNNING and not job.halted
        wanted = self._wanted(job, sums) if runs else None
        under_way = sums.under_way
        if sums.is_over:
            policy.begin(number, now)
            sums.land()
            policy.end(number, now, True)
            wanted = self._wanted(job, sums)
        elif not runs or (under_way is not None and is_later(wanted, under_way)):
            # What follows begins with a Reset; or all have what was sent before a restart.
            sums.void()
            policy.end(number, now, False)
        elif under_way is not None and sums.open and not self._is_stuck(job, now):
            policy.begin(number, now)
        else:
            policy.end(number, now, False)
        if runs and wanted is not None and sums.under_way is None:
            policy.ask(number, now)

    def _is_stuck(self, job: Job, now: float) -> bool:
        """Return whether a round waits for a member that may be dead; look again soon, if not.

        Whoever has asked for a round waits for its aggregates, and is heard of more often.
        """
        self._look_at = min(self._look_at, now + LOOK_PAUSE)
        return any(one.last_seen + SILENCE <= now for one in job.contributors())

    @staticmethod
    def _wanted(job: Job, sums: TurnAccelerator) -> int | None:
        return sums.wanted(job.members.participants(job.high)) if sums.asked else None

    # What the policy decides

    def _give(self, job: Job, now: float) -> list[Outgoing]:
        """Give a job its turn, and ask its members for their contributions."""
        sums = job.accelerator
        assert isinstance(sums, TurnAccelerator)
        round_ = self._wanted(job, sums)
        if round_ is None:  # meanwhile there was a Reset, or a member has left
            return []
        sums.grant(round_)
        self.record.policy.begin(job.number, now)
        return self._ask_for_all(job, round_, job.members.participants(round_), now)

    def _ask_for_missed(self, job: Job, sums: TurnAccelerator, now: float) -> list[Outgoing]:
        """Ask those for all segments who sent some before the round under way could begin."""
        missed = sums.missed()
        if not missed or sums.flying is None:
            return []
        return self._ask_for_all(job, sums.flying.round, missed, now)

    def _ask_for_all(self, job: Job, round_: int, whom: int, now: float) -> list[Outgoing]:
        """Ask the members in a bitmap of seats for all segments of a round."""
        whole = Segments(round_, 0, job.sums.shape.segments)
        sends: list[Outgoing] = []
        for member in job.contributors():
            if member.bit & whom:
                sends += self.relays.send(member.address, Action.HELP, job.number, whole, now)
        return sends

    def _let_in(self, now: float) -> list[Outgoing]:
        """Take in the waiting jobs for which there is room now."""
        record = self.record
        sends: list[Outgoing] = []
        while (number := record.policy.next_in()) is not None:
            waiting = record.queue.take(number, now)
            sends += [out for out in self._join(waiting, now) if not is_ack(out)]
            sends += self._join(waiting, now)  # so all are told how many have come
            record.policy.forget(number)  # if nobody waits for it any more
        return sends

    def _join(self, waiting: list[Waiting], now: float) -> list[Outgoing]:
        answers = [self.admission.join(one.peer, one.packet, one.join, now) for one in waiting]
        return [out for answer in answers for out in answer]


def is_ack(out: Outgoing) -> bool:
    """Return whether a packet is an Ack."""
    return out.tos == TOS_CONTROL and Header.parse(out.rows.tobytes()).action == Action.ACK


def is_later(round_: int | None, than: int) -> bool:
    """Return whether a round is known, and later than another."""
    return round_ is not None and round_distance(round_, than) > 0


def ask_for_turn(job: Job, member: Member, round_: int) -> None:
    """Note that a member that asks for Help wants to begin a round, if that has to wait."""
    sums = job.accelerator
    if isinstance(sums, TurnAccelerator) and round_ in job.window and not sums.is_open(round_):
        sums.ask(member.seat, round_)
