"""Admission to jobs: decides on each Join, and in which round its sender begins.

Rules of docs/protocol.md, "Joining".
"""

from __future__ import annotations

from dataclasses import replace

from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import (
    FLAG_HEARTBEAT,
    FLAG_NEW,
    FLAG_PARTIAL,
    FLAG_STANDS_AT,
    FLAG_WHOLE,
    IN_TURNS,
    MAX_MEMBERS,
    Action,
    Control,
    Join,
    MemberType,
    Status,
    SwitchJoin,
    TreeJoin,
    WireError,
)
from iswitch.core.sums.numbered import NumberedAccelerator

from .answers import Answers
from .hierarchy import Hierarchy
from .job import Job
from .lifecycle import Lifecycle, recount
from .member import Member
from .memory import note_join, reserve, wait
from .processes import Asked, refuse_drained, refuse_outdated, take_over
from .queue import Waiting
from .record import Record, bare_answer
from .requests import Refusal, Request
from .slots import slots_of
from .upward import begin


class Admission:
    """Takes members into the jobs of a switch.

    Args:
        record: the jobs.
        lifecycle: changes the jobs.
        hierarchy: speaks to the parent; None: this switch has no parent.
    """

    def __init__(self, record: Record, lifecycle: Lifecycle, hierarchy: Hierarchy | None) -> None:
        self.record = record
        self.lifecycle = lifecycle
        self.hierarchy = hierarchy
        self.ranks = lifecycle.ranks

    def join(self, peer: Address, packet: Control, join: Join, now: float) -> list[Outgoing]:
        """Answer a Join: take its sender in, keep it, or refuse it.

        With a parent the answer to a contributor waits until the parent has taken this switch in.

        Args:
            peer: the sender.
            packet: the request.
            join: the Join in it.
            now: the time, in seconds.
        """
        try:
            asked = Asked(peer, packet, join, *join.checked(), now)
        except ValueError:
            return [bare_answer(peer, packet, Status.BAD_REQUEST)]
        ended: list[Outgoing] = []
        try:
            self._refuse_shape(asked)
            answer = self._let_in(asked, ended)
        except WireError:
            answer = [bare_answer(peer, packet, Status.BAD_REQUEST)]
        except Refusal as refused:
            self.record.counters["ranks_refused"] += refused.status is Status.RANK_TAKEN
            waits = refused.status is Status.WAITING
            if waits and not wait(self.record, Waiting(peer, packet, join, now)):
                refused = Refusal(Status.FULL)
            answer = [bare_answer(peer, packet, refused.status, **refused.told)]
        finally:
            if self.hierarchy:
                self.hierarchy.reserve(packet.job, 0)
        return ended + answer

    def _let_in(self, asked: Asked, ended: list[Outgoing]) -> list[Outgoing]:
        """Let a new member in, keep a present one, or let the sender wait for the parent.

        Args:
            asked: the sender's Join.
            ended: the packets that end memberships are appended here, even if the Join is refused.

        Raises:
            Refusal: the Join is refused.
            WireError: the Join is refused because such a job cannot exist.
        """
        job, member = self.record.find(asked.packet.job, asked.peer)
        uplink = self.hierarchy.uplinks.get(asked.packet.job) if self.hierarchy else None
        waiting = uplink.waiting.get(asked.peer) if uplink else None
        refuse_outdated(self.record, asked, member, waiting)
        former = None
        repeated = member is not None and asked.packet.request == member.incarnation
        if asked.contributes and not (repeated or asked.is_heartbeat):
            slots_of(self.record, job, asked.join)  # its next Join must find all unchanged
        if job is not None and member is not None:
            if asked.is_still(member):
                return self._join_again(asked, job, member)
            if self._waits_to_follow(asked):
                assert self.hierarchy is not None
                # The old process keeps its place until then, so that the new one can take it over.
                return self.hierarchy.admit(asked.peer, asked.packet, asked.join, asked.now) or []
            former = self._follow(asked, job, member, ended)
        if asked.is_heartbeat:
            raise Refusal(Status.NOT_MEMBER)
        if asked.contributes:
            refuse_drained(self.record, asked, job)
            ended += take_over(self.record, self.lifecycle, asked)
        leaving: list[Member] = []
        if job is not None:
            self._refuse_misfit(job, asked)  # before the answer can tell the owners of ranks
            silent, leaving = self._make_room(job, asked, ended)
            former = former or silent
        if self.hierarchy and asked.contributes:
            waits = self.hierarchy.admit(asked.peer, asked.packet, asked.join, asked.now)
            if waits is not None:
                return waits
        return self._admit(asked, former, leaving)

    def _refuse_shape(self, asked: Asked) -> None:
        """Refuse vectors that the data plane cannot add up.

        Raises:
            Refusal: the data plane cannot add up such vectors.
        """
        if asked.shape is None:
            return
        job = self.record.jobs.get(asked.packet.job)
        status = self.record.data_plane.refusal(asked.shape, job is None or job.shape is None)
        if status is not None:
            raise Refusal(status)

    # Processes before this one

    def _waits_to_follow(self, asked: Asked) -> bool:
        """Return whether the parent has to confirm the process that follows a member."""
        above = self.hierarchy
        if above is None or not asked.contributes:
            return False
        return above.must_ask(asked.packet.job, asked.join)

    def _follow(
        self, asked: Asked, job: Job, member: Member, ended: list[Outgoing]
    ) -> Member | None:
        """Take out the old process at an address, so that a new one can follow it.

        Returns:
            The member whose place the new process takes; None if it takes no place over.
        """
        if self.hierarchy and asked.contributes:
            self.hierarchy.reserve(job.number, member.ranks)
        ended += self.lifecycle.remove(job, member, asked.now)
        # If the old one was the last, the job resumes beyond all rounds that it has sent.
        return member if member.contributes and job.shape is not None else None

    # Members that are in

    def _join_again(self, asked: Asked, job: Job, member: Member) -> list[Outgoing]:
        """Answer the Join of a present member.

        A restarted switch below continues the membership of its previous process.

        Raises:
            Refusal: the Join names another member type or another shape.
        """
        join = asked.join
        if not asked.fits(job, member):
            raise Refusal(Status.MISMATCH)
        same = asked.packet.request == member.incarnation
        states = not same and not asked.is_heartbeat  # its ranks from the start
        anew = states and asked.packet.request != member.joined  # a new process
        if anew:  # its Request numbers begin anew, and its first worker may be new, too
            member.answers = Answers(asked.packet.request, member.answers)
            member.note_standing(join)
            self._follow_sums(job, asked, member.seat)
        if not job.synchronous and asked.is_ahead_of(job.high):
            job.come_back(join)
        member.answers.grow(asked.packet.request)
        told = join if member.heeds(join, asked.packet.request) else None
        member.be_called(asked.packet.request, asked.is_heartbeat)
        member.last_seen = asked.now
        member.has_spoken = not join.flags & FLAG_NEW
        sends: list[Outgoing] = []
        if isinstance(join, TreeJoin):
            self.ranks.state(job, member, join, states, asked.now)
        if isinstance(told, SwitchJoin):
            sends = self._recount(job, member, told, asked.now)
        if anew and job.is_beyond(join):
            sends += self.lifecycle.begin_anew(job, None, asked.now)
        return [*self._joined(asked, job, member), *sends]

    def _follow_sums(self, job: Job, asked: Asked, seat: int) -> None:
        """Count nothing of open sums or versions that a process before at this address has sent."""
        job.assemblies.forget(seat)
        sums, number = job.accelerator, self.record.former.get(asked.peer, job.number).number
        if not isinstance(sums, NumberedAccelerator):
            return
        if asked.type is MemberType.SWITCH:
            sums.count_from(seat, asked.packet.request)
        elif number is not None:
            sums.follow(seat, number)

    def _recount(self, job: Job, switch: Member, join: SwitchJoin, now: float) -> list[Outgoing]:
        """Update the number of workers for which a switch below stands."""
        self.record.throttle.count(switch.address, join.workers)
        switch.listening = join.listening
        opens = recount(job, switch, join.workers, join.expected)
        sends = self.lifecycle.gate_opened(job, None, now) if opens else []
        return sends + (self.hierarchy.changed(job, now) if self.hierarchy else [])

    def _joined(self, asked: Asked, job: Job, member: Member) -> list[Outgoing]:
        """Answer the Join of a member; a settled member that rejoins keeps its round.

        While the job awaits a Reset by the switch above, send nothing: no first round is known yet.
        """
        join, now = asked.join, asked.now
        note_join(self.record, job, member, join)
        if job.awaits_reset and not asked.is_heartbeat:
            return []
        sends = self.lifecycle.number(job, now)
        there = member.told(self.record.workers(job, now))
        ack = Request(job, member, Action.JOIN, None, now).ack(there)
        of_member = join.flags & (FLAG_HEARTBEAT | FLAG_STANDS_AT) and not join.flags & FLAG_NEW
        # `of_member` may come before its process was replaced by one with the same number.
        in_turns = job.takes_turns or (job.turns_above and member.type is MemberType.SWITCH)
        ack = replace(ack, known=bool(of_member) | IN_TURNS * in_turns)
        stays = bool(join.flags & FLAG_STANDS_AT) and member.first_round is None
        if stays and job.synchronous and join.round in job.window:
            ack = replace(ack, round=join.round)
        stated = member.stated
        if isinstance(join, TreeJoin) and stated is not None:
            told = stated.decided, stated.given, member.ranks
            # A forged source is sent no more bytes than its forger sent. A late copy is ignored.
            ack = ack.telling(*told if join.takes_answer(member.ranks) else (0, 0, 0))
        packet = Control(Action.ACK, asked.packet.job, asked.packet.request, ack)
        return [Outgoing.control(asked.peer, packet.build()), *sends]

    # New members

    @staticmethod
    def _refuse_misfit(job: Job, asked: Asked) -> None:
        """Refuse a Join that does not match the job.

        Raises:
            Refusal: the Join names another shape, or rank order where the job sums otherwise; or
                only one of its sender and the job numbers rounds by program.
        """
        if asked.shape is None or job.shape is None:
            return
        otherwise = asked.contributes and asked.is_partial != job.partial
        if otherwise or asked.shape != job.shape or asked.wants_rank_order > job.reproducible:
            raise Refusal(Status.MISMATCH)

    def _make_room(
        self, job: Job, asked: Asked, ended: list[Outgoing]
    ) -> tuple[Member | None, list[Member]]:
        """Find the silent members that leave if this Join is let in.

        If they are all the contributors of the job, end their leases now, as the timer would.

        Returns:
            The silent owner of the wanted rank, or None; and the list of all leaving members.

        Raises:
            Refusal: the owner of the rank is alive, or no place is free and no member silent.
        """
        silent, leaving = self._silent(job, asked)
        if leaving and len(leaving) == len(job.contributors()):
            ended += self.lifecycle.end_leases(job, leaving, asked.now)
            leaving = []
        return silent, leaving

    def _silent(self, job: Job, asked: Asked) -> tuple[Member | None, list[Member]]:
        now = asked.now
        owner = self.ranks.vacated_by(job, asked.peer, asked.join.wanted, now)
        leaving = [owner] if owner is not None else []
        if owner is not None and self.hierarchy:
            self.hierarchy.reserve(job.number, owner.ranks)
        full = job.members.keeps_places and job.members.places() + len(leaving) <= 0
        if not asked.contributes or not full:
            return owner, leaving
        for member in job.contributors():
            if member is not owner and member.last_seen + self.record.limits.lease <= now:
                return owner, [*leaving, member]
        raise Refusal(Status.FULL, contributors=job.members.workers)

    def _admit(self, asked: Asked, former: Member | None, leaving: list[Member]) -> list[Outgoing]:
        """Take in a new member, and end the leases of the silent members that make room for it.

        Args:
            asked: its Join.
            former: the member whose place it takes; None: it takes a new place.
            leaving: the silent members.

        Raises:
            Refusal: the new member cannot be taken in; nothing has changed.
        """
        now = asked.now
        job = self.record.jobs.get(asked.packet.job) or self.record.new_job(asked.packet.job)
        self._refuse_job(job, asked)
        seat = self._seat(job, asked, leaving)
        member = self._new_member(asked, seat, former)
        was_gathered = job.members.gathered
        if asked.contributes:
            window, sends_parts = None, False
            if self.hierarchy:
                uplink = self.hierarchy.uplinks[job.number]
                window, job.parent, sends_parts = uplink.window(), uplink.parent, uplink.sends_parts
            reserve(self.record, job, asked, seat, window, sends_parts)
            if self.hierarchy:
                self.hierarchy.upward |= begin(job, uplink, self.record.limits.hold)
            self._follow_sums(job, asked, seat)
        sends = self.lifecycle.end_leases(job, leaving, now)
        fills_up = asked.contributes and job.members.keeps_places and job.members.places() == 1
        self._take_in(job, member, asked.join, former)
        if job.members.gathered and not was_gathered:
            sends += self.lifecycle.gate_opened(job, member, now)
        if fills_up:
            sends += self.lifecycle.begin_anew(job, member, now)
        if self.hierarchy and member.contributes:
            sends += self.hierarchy.changed(job, now)
        if job.awaits_reset:
            job.members.await_reset(member)
        return [*self._joined(asked, job, member), *sends]

    def _refuse_job(self, job: Job, asked: Asked) -> None:
        """Refuse to begin a job without room for it, or with a rank order that cannot be kept.

        Raises:
            Refusal: the job cannot begin.
        """
        if job.number not in self.record.jobs and len(self.record.jobs) >= self.record.limits.jobs:
            raise Refusal(Status.FULL)
        begins = asked.shape if job.shape is None else None
        if begins and asked.wants_rank_order and not job.data_plane.tells_ranks_apart(begins.mode):
            raise Refusal(Status.BAD_REQUEST)

    def _seat(self, job: Job, asked: Asked, leaving: list[Member]) -> int:
        """Return a free seat; before the first completion, avoid seats whose bit is in a held sum.

        Raises:
            Refusal: no seat is free.
        """
        early = asked.contributes and job.rounds.is_early(asked.join)
        taken = job.bits_held() if early else 0
        seat = job.members.free_seat(asked.type, taken, asked.join.wanted, leaving)
        if seat is None or len(job.members) - len(leaving) >= MAX_MEMBERS:
            raise Refusal(Status.FULL, rank=len(job.members))
        return seat

    def _new_member(self, asked: Asked, seat: int, former: Member | None) -> Member:
        packet, join, now = asked.packet, asked.join, asked.now
        before = self.record.former.get(asked.peer, packet.job).answers
        member = Member(asked.peer, asked.type, seat, packet.request, None, now)
        member.replaces = former is not None
        member.answers = Answers(packet.request, before)
        member.has_spoken = not join.flags & FLAG_NEW
        member.expected, member.since = join.expected, now
        member.note_standing(join)
        if isinstance(join, SwitchJoin):
            member.workers, member.listening = join.workers, join.listening
        return member

    def _take_in(self, job: Job, member: Member, join: Join, former: Member | None) -> None:
        """Enter the member into the job and the record; needs no memory beyond what is reserved."""
        record, peer, now = self.record, member.address, member.last_seen
        record.jobs[job.number] = job
        job.dormant_since = None
        record.former.pop(peer, job.number)
        record.enter(peer, member.workers, now)
        record.expect_expiry(now + record.limits.lease)
        if not member.contributes:
            job.add(member)
            return
        if join.flags & FLAG_STANDS_AT:
            job.come_back(join)
        if job.synchronous:
            job.rounds.place(member, join, job.rounds.is_early(join), former)
        self.ranks.enter(job, member, join.wanted, former)
        job.add(member, bool(join.flags & FLAG_WHOLE))
        job.partial = bool(join.flags & FLAG_PARTIAL)  # as that of all contributors
        if isinstance(join, TreeJoin):
            self.ranks.state(job, member, join, False, now)
        record.by_source[peer] = (job, member)
