"""Watches a slow round: decides when a member is lost, and words the error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args
from zlib import crc32

from iswitch.core.format.wire import (
    HEARTBEAT,
    NO_RANK,
    RANKS,
    AckWho,
    Action,
    Awaited,
    Mode,
    Present,
    Status,
    Who,
)
from worker_lib.protocol.owned import OwnedTransfer
from worker_lib.protocol.session import Answered, Session

from . import naming
from .errors import AllreduceTimeout, JobHalted, MemberLost

OnMemberLost = Literal["wait", "continue", "raise"]
CHOICES: tuple[OnMemberLost, ...] = get_args(OnMemberLost)
LOOK_PAUSE = 1.0  # seconds between two questions for the members, with "raise"
WHO_PAUSE = 0.25  # seconds without progress after which to ask for whom the round waits
ELSEWHERE = 2.0  # seconds without progress: then a member of another switch is missing
ALIVE = HEARTBEAT + 0.5  # seconds of silence up to which a worker passes for alive
LOST_AT_ONCE = 16  # questions for lost members, each after the answer to the one before
LOST_PAUSE = 0.05  # seconds between two questions after these


class Waiting:
    """Watches the round under way.

    A member counts as lost when the switch first tells of too few workers, and then of a missing
    contribution. (A member that left after its last contribution is not missed, even by workers
    that still lack aggregates.) If the switch misses no contribution, the member has left or
    belongs to another switch; then time shows whether the aggregates are only late.

    Args:
        session: this worker's.
        num_workers: expected number of workers; 0: any number.
        on_member_lost: reaction to the loss of a member.
        hosts: names of hosts by address, for messages.
    """

    def __init__(
        self,
        session: Session,
        num_workers: int,
        on_member_lost: OnMemberLost,
        hosts: Mapping[str, str] | None = None,
    ) -> None:
        self.session = session
        self.num_workers = num_workers
        self.on_member_lost = on_member_lost
        self._hosts = hosts or {}
        self.expected = 0  # workers that the job waits for, as the switch has shown it
        self._threshold = 0  # H when all were there
        self._questions = 0
        self.begin(float("-inf"))

    def begin(self, now: float) -> None:
        """Begin to watch another allreduce."""
        self._began = now  # others may have mended what was told before
        self._since: float | None = None  # when somebody was found to be absent, or came progress
        self._remaining = 0
        self._asked: int | None = None  # the Request that asks for lost members
        self._ask_again = now  # when to, under the same question
        self._lost_question = self._times_asked = 0
        self._lost: AckWho | None = None
        self._told: AckWho | None = None
        self._waiting_too: frozenset[int] = frozenset()  # of those told, if they wait for others
        self.there: list[Present] = []  # contributors to the job, as the switch has shown them
        self._looked = -1, now  # segments that were missing then, and when
        self._look: int | None = None  # the Request that asks for whom the round waits

    def look(self, now: float) -> None:
        """Ask the switch for missing contributions if nothing has arrived for a while."""
        transfer = self.session.transfer
        if transfer is None or transfer.done or self.session.halted or not self.session.member:
            return
        remaining, since = self._looked
        if remaining != transfer.remaining:
            self._looked, self._told = (transfer.remaining, now), None
        elif now >= since + WHO_PAUSE and self.session.waiting_for:
            if self._look is not None:
                self.session.forget(self._look)
            self._looked = remaining, now
            self._look = self.ask_for_whom(self._question(), now)

    @property
    def awaited(self) -> list[Awaited]:
        """Return the workers for which the round waits, as far as the switch has said."""
        return [] if self._others is None else list(self._others.awaited)

    def _question(self) -> int:
        """Return a number that no other question has."""
        self._questions += 1
        session = self.session
        whose = session.incarnation, session.rank, self._questions
        return crc32(repr(whose).encode())

    def ask_for_whom(self, question: int, now: float) -> int:
        """Ask the switch whose contributions are missing in the whole tree; return the Request.

        Repeat this with an equal `question` as long as `knows` is false, since distant switches
        answer later.
        """
        transfer = self.session.transfer
        assert transfer is not None
        # Segments beyond the windows were sent by nobody: they do not show who is silent.
        missing = transfer.missing(sent_only=True) or transfer.missing()
        first, stop = missing[0][0], missing[-1][1]
        if isinstance(transfer, OwnedTransfer):
            first, self._waiting_too = self._telling(transfer, first)
            stop = first + 1
        who = Who(transfer.round, first, stop - first, question)
        return self.session.request(Action.HELP, who, now)

    def _telling(self, transfer: OwnedTransfer, first: int) -> tuple[int, frozenset[int]]:
        """Return the owned segment that shows who is silent.

        Segments of one rank wait for no other: a rank that has begun has closed its contribution.
        Those of all ranks may be held back until earlier ones have come, but not the first that is
        missing here. Between missing segments lie others that nobody gives in this round.

        Args:
            transfer: the round.
            first: its first missing segment.

        Returns:
            The segment, and the ranks that may owe it though they only wait for others: this one,
            and where it gets nothing itself, those that it gives to.
        """
        shape = self.session.shape
        closing = shape.segments - 1
        waiting_too = {self.session.rank}
        if shape.mode is not Mode.REDUCE_SCATTER:
            first = closing
        elif first == closing:
            given = transfer.plan.sizes[0]
            waiting_too |= {rank for rank, elements in enumerate(given) if elements}
        return first, frozenset(waiting_too)

    @property
    def knows(self) -> bool:
        """Return whether all switches have answered which workers the round waits for."""
        return self._told is not None and all(o.rank != NO_RANK for o in self._told.awaited)

    def lost(self, now: float) -> MemberLost | None:
        """Return the error to raise if a member is lost now; None: there is none to raise."""
        session = self.session
        transfer = session.transfer
        if self.on_member_lost != "raise" or transfer is None or transfer.done or session.halted:
            return None
        if session.joined >= self.num_workers:
            self._threshold = session.threshold
        if session.told < self._began:
            return None
        by_hand = session.threshold < self._threshold  # then the others go on without it
        if not session.member or session.joined >= self.num_workers or by_hand:
            self._since = None
            return None
        if self._since is None or transfer.remaining != self._remaining:
            self._since, self._remaining = now, transfer.remaining
            session.forget_who_is_missing()  # earlier answers say nothing about now
            if self._asked is not None:
                session.forget(self._asked)
            self._lost, self._asked, self._ask_again = None, None, now
            self._lost_question, self._times_asked = self._question(), 0
        lost = self._lost
        heard = lost is not None and all(one.rank != NO_RANK for one in lost.awaited)
        again = self._times_asked < LOST_AT_ONCE or now >= self._ask_again
        if not heard and self._asked is None and again:
            # Under the same question as before, if a switch further away has not answered. It names
            # no segment, so that the answers name lost members.
            nothing = Who(transfer.round, 0, 0, self._lost_question)
            self._asked = session.request(Action.HELP, nothing, now)
            self._times_asked, self._ask_again = self._times_asked + 1, now + LOST_PAUSE
        patient = now < self._since + ELSEWHERE
        if lost is None or session.waiting_for is None or (patient and not heard):
            return None
        if not session.waiting_for and patient:
            return None
        named = [self._placed(one) for one in lost.awaited]
        who = naming.workers(lost.awaited, lost.total, self._hosts)
        return self._member_lost(transfer.round, named, who)

    def named(self, lost: MemberLost) -> MemberLost:
        """Return the error with the ranks that have left, as far as the switch lists members."""
        left = self._absent()
        if lost.awaited or not left:
            return lost
        return self._member_lost(lost.round, [], naming.listed(left), left)

    def _member_lost(
        self, round_: int, lost: Sequence[Awaited], who: str, left: Sequence[int] = ()
    ) -> MemberLost:
        session = self.session
        has_h = not session.shape.owners
        return MemberLost(
            round_, lost, who, session.joined, self.num_workers, left, may_shrink=has_h
        )

    def answered(self, answer: Answered) -> None:
        """Use an answer from the switch if it answers a question of this object."""
        told = answer.ack if answer.status is Status.OK else None
        if answer.request == self._asked:
            self._asked = None
            self._lost = told if isinstance(told, AckWho) else self._lost
        elif isinstance(told, AckWho) and answer.action is Action.HELP:
            self._told = told

    @property
    def _others(self) -> AckWho | None:
        """Return whom the switch has named, without ranks that may only wait for these.

        If there are no others, these ranks do not wait.
        """
        told, session = self._told, self.session
        if told is None:
            return None
        others = tuple(one for one in told.awaited if one.rank not in self._waiting_too)
        if not (others or session.joined < self.num_workers):
            return told
        return replace(told, awaited=others, total=told.total - len(told.awaited) + len(others))

    def too_late(self, seconds: float, now: float, failed: int) -> AllreduceTimeout:
        """Make the error that the round timed out.

        Args:
            seconds: the timeout.
            now: the time.
            failed: number of packets that could not be sent.
        """
        session = self.session
        assert session.transfer is not None
        round_ = session.round
        missing = session.transfer.missing()
        count = sum(stop - start for start, stop in missing)
        what = f"round {round_} not done within {naming.time(seconds)}"
        if session.taken is not None:
            owner = naming.owner(session.taken, self._hosts)
            why = f"the switch at {session.switch} does not take this worker in again"
            mend = f"another worker has its rank; end that one, or this one{owner}"
            return AllreduceTimeout(f"{what}: {why}: {mend}", round_, missing, None)
        if session.halted:
            return JobHalted(
                f"{what}: the job is halted; reset() resumes it", round_, missing, None
            )
        ranges = [
            f"{start}-{stop - 1}" if stop > start + 1 else f"{start}" for start, stop in missing
        ]
        named = ", ".join(ranges[:4]) + ", ..." * (len(ranges) > 4)
        segments = f"{count} of {session.transfer.shape.segments} segments missing ({named})"
        silence = now - session.heard
        unheard = session.waiting_for is None or silence > 2 * session.round_trip.ceiling
        if unheard and self._told is None:
            why = "is it running, and is the network to it up?"
            if session.denied:
                why = "the job has another key there now, or none: has it been restarted?"
            return AllreduceTimeout(
                f"{what}: {segments}; the switch at {session.switch} does not answer: {why}",
                round_,
                missing,
                None,
            )
        told = self._others
        whom = self._whom()
        if max(session.joined, self.num_workers) < self.expected:
            whom += (
                f" (this worker was made with num_workers={self.num_workers}, but the job expects "
                f"{self.expected}: give all its workers one num_workers)"
            )
        if failed:
            whom += f" ({failed} packets of this worker could not be sent: is the MTU too small?)"
        awaited = [self._placed(one) for one in told.awaited] if told else []
        ranks = naming.ranks(awaited) if told else None
        return AllreduceTimeout(f"{what}: {segments}; {whom}", round_, missing, ranks, awaited)

    def _placed(self, one: Awaited) -> Awaited:
        """Return an awaited worker, placed at our own switch if the answer names no switch."""
        if one.switch_port:
            return one
        return one._replace(
            switch_host=self.session.switch.host, switch_port=self.session.switch.port
        )

    def _absent(self) -> list[int]:
        """Return the ranks that no worker has; empty if the switch cannot see all workers."""
        present = {one.rank for one in self.there}
        ranks = range(self.num_workers)
        all_seen = len(self.there) == len(present) == self.session.joined
        return [r for r in ranks if r not in present] if all_seen and present <= set(ranks) else []

    def who_joined(self) -> str:
        """Name the missing ranks; if workers choose no ranks, the places of those present."""
        absent = self._absent()
        if absent and self.session.terms.rank != NO_RANK:
            return f": {naming.listed(absent)} {'are' if len(absent) > 1 else 'is'} missing"
        if len(self.there) != self.session.joined:  # some are behind other switches
            return ""
        places = [naming.place(one.host, one.port, self._hosts) for one in self.there]
        shown = ", ".join(places[: naming.MOST_NAMED]) + ", ..." * (len(places) > naming.MOST_NAMED)
        return f", those at {shown}"

    def _whom(self) -> str:
        """Describe the workers for which the round waits."""
        session = self.session
        elastic = self.on_member_lost == "continue"
        too_few = session.joined < self.num_workers
        there = f"{session.joined} of {self.num_workers} workers are in job {session.job}"
        told = self._others
        if told is None:
            number = (session.waiting_for or 0).bit_count()
            names = f"{number} worker{'s' * (number > 1)}"
        else:
            number = told.total
            names = naming.workers(told.awaited, number, self._hosts)
        if session.partial and session.rank in [one.rank for one in self.awaited]:
            return (
                f"round {session.round} is beyond those that the job keeps: in every round before "
                f"it H = {session.threshold} workers must take part; name no round that is "
                "further, or use another job number"
            )
        if number:  # more may have left, as they waited in vain, too
            whose = f"waiting for the contribution{'s' * (number > 1)} of {names}: "
            return whose + self._what_of(number, there if too_few and not elastic else "")
        if too_few:
            others = " (another worker asked for sums of all)" * elastic
            absent = self._absent()
            several = len(absent) > 1
            missing = naming.listed(absent) + (" are missing" if several else " is missing")
            who = f"{missing}: have they" if several else f"{missing}: has it"
            return (
                f"only {there}: {who if absent else 'has one'} not started, left or died? "
                f"{_restarting(several).capitalize()}{others}"
            )
        if session.threshold > session.joined:
            return (
                f"H is {session.threshold}, of {session.joined} worker"
                f"{'s' * (session.joined != 1)}; set_threshold(0) sets it to their number"
            )
        return "no contribution is missing: the aggregates are lost on their way here"

    def _what_of(self, number: int, there: str) -> str:
        """Say of those that the round waits for who is in the job, and for whom to start another.

        Args:
            number: how many they are; those behind other switches are not known to be in the job.
            there: how many workers are in the job, if they are too few; else "".
        """
        silent = {one[:2]: one.silent / 1000 for one in self.there if one.rank < RANKS}
        silent = {at: seconds for at, seconds in silent.items() if seconds <= ALIVE}
        late = [one for one in (self._others.awaited if self._others else ()) if one[:2] in silent]
        several, said = number - len(late) > 1, ""
        if late:
            last = max(silent[one[:2]] for one in late)
            said = (
                f"{naming.listed(naming.ranks(late))} {'are' if len(late) > 1 else 'is'} in the "
                f"job, last heard {last:.1f} s ago (heartbeats come every {HEARTBEAT:g} s), and "
                "may only be late; "
            )
        if number > len(late):
            they = "they" if several else "it"
            they = f"the other{'s' * several}" if late else they
            said += f"did {they} stop, or die?"
            return said + f" {_restarting(several).capitalize()} ({there} now)" * bool(there)
        if not there:
            return said.removesuffix("; ")
        missing = self._absent()
        several = len(missing) != 1
        who = naming.listed(missing) if missing else "others"
        verb = "are" if several else "is"
        return f"{said}{who} {verb} missing: {_restarting(several)} ({there} now)"


def _restarting(several: bool) -> str:
    """Advise what to do for workers that are not in the job."""
    if several:
        return "if they have not been restarted yet, start others in their places"
    return "if it has not been restarted yet, start another in its place"
