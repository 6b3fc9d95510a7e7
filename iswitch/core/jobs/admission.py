"""Who is let into a job: what a Join says, and from which round on its sender takes part.

Rules of docs/protocol.md, "Joining".
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_HEARTBEAT,
    FLAG_NEW,
    FLAG_REPRODUCIBLE,
    FLAG_STANDS_AT,
    FLAG_WHOLE,
    MAX_MEMBERS,
    Action,
    Control,
    Join,
    MemberType,
    Mode,
    Shape,
    Status,
    SwitchJoin,
    TreeJoin,
    WireError,
    kib,
    later,
    round_distance,
)
from iswitch.core.sums.numpy_plane import memory_needed

from .answers import Answers
from .job import Job
from .membership import Member
from .requests import Refusal, Request

if TYPE_CHECKING:
    from .control import ControlPlane


class Admission:
    """Takes members into the jobs of a control plane."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    def join(self, peer: Address, packet: Control, join: Join, now: float) -> list[Outgoing]:
        """Take a member in, or keep it; with a parent, when that has taken us."""
        try:
            type_, shape = join.checked()
        except ValueError:
            return [self.plane.bare_answer(peer, packet, Status.BAD_REQUEST)]
        job = self.plane.jobs.get(packet.job)
        begins = job is None or job.shape is None
        refusal = self.plane.data_plane.refusal(shape, begins) if shape is not None else None
        if refusal is not None:
            return [self.plane.bare_answer(peer, packet, refusal)]
        sends: list[Outgoing] = []
        try:
            return self._join(peer, packet, join, type_, shape, sends, now)
        except WireError:
            return [*sends, self.plane.bare_answer(peer, packet, Status.BAD_REQUEST)]
        except Refusal as refused:
            self.plane.counters["ranks_refused"] += refused.status is Status.RANK_TAKEN
            return [*sends, self.plane.bare_answer(peer, packet, refused.status, **refused.told)]
        finally:
            if self.plane.hierarchy:
                self.plane.hierarchy.reserve(packet.job, 0)

    def _join(
        self,
        peer: Address,
        packet: Control,
        join: Join,
        type_: MemberType,
        shape: Shape | None,
        sends: list[Outgoing],
        now: float,
    ) -> list[Outgoing]:
        """Take in who may join; `sends` is what ends memberships, be it let in or not.

        Raises:
            Refusal, WireError: it is not let in.
        """
        job = self.plane.jobs.get(packet.job)
        member = job.members.by_address.get(peer) if job else None
        self._refuse_outdated(peer, packet, join, member, now)
        former: Member | None = None
        if job is not None and member is not None:
            same = packet.request == member.incarnation
            if same or type_ is member.type is MemberType.SWITCH:
                if type_ is not member.type or (job.shape and shape not in (None, job.shape)):
                    raise Refusal(Status.MISMATCH)
                return self._join_again(packet, join, job, member, now)
            above = self.plane.hierarchy
            if above and type_ is not MemberType.CONTROLLER:
                if above.must_ask(job.number, join):
                    # Until then the old one keeps its place: so we know whom the new one follows.
                    return above.admit(peer, packet, join, now) or []
                above.reserve(job.number, member.ranks)
            former = member if member.contributes else None
            sends += self.plane.remove(job, member, now)
            if job.shape is None:  # it was the last: the job goes on beyond all it has sent
                former = None
        if join.flags & FLAG_HEARTBEAT:
            raise Refusal(Status.NOT_MEMBER)
        if type_ is not MemberType.CONTROLLER:
            sends += self._take_over(peer, packet, now)
        leaving: list[Member] = []
        if job is not None:
            self._refuse_misfit(job, join, shape)  # before it is told who has which rank
            silent, leaving = self._who_makes_room(job, peer, join, type_, now)
            former = former or silent
            if leaving and len(leaving) == len(job.members.contributor_addresses()):
                # With them the job ends, as by the timer.
                sends += self._end_leases(job, leaving, now)
                leaving = []
        if self.plane.hierarchy and type_ is not MemberType.CONTROLLER:
            waits = self.plane.hierarchy.admit(peer, packet, join, now)
            if waits is not None:
                return [*sends, *waits]
        job, member, more = self._admit(peer, packet, join, type_, shape, former, leaving, now)
        if self.plane.hierarchy and member.contributes:
            more += self.plane.hierarchy.changed(job, now)
        return [*sends, *self._joined(peer, packet, join, job, member, now), *more]

    def _refuse_outdated(
        self, peer: Address, packet: Control, join: Join, member: Member | None, now: float
    ) -> None:
        """Refuse the Join of a process that is older than the last, or seems to be.

        A new one asks anew with a number above the one that it is told; nobody waits for the
        answer to a late copy.

        Raises:
            Refusal: its number is too small.
        """
        known = member or self.plane.former.get(peer, packet.job)
        if known.incarnation is None:
            return
        new = bool(join.flags & FLAG_NEW)
        outdated = new and not known.answers.has_grown(packet.request)
        if isinstance(known, Member):
            ahead = round_distance(packet.request, known.incarnation)
            outdated &= ahead != 0 or known.has_spoken  # else it is a repeat
            outdated |= ahead < 0
        else:
            keyed = self.plane.keys.of(packet.job) is not None
            outdated |= known.outdates(packet.request, keyed, now)
        if not outdated:
            return
        self.plane.counters["stale_join"] += 1
        if join.flags & FLAG_HEARTBEAT:
            raise Refusal(Status.NOT_MEMBER)
        raise _outdone_by(known.incarnation, known.answers.last)

    def _take_over(self, peer: Address, packet: Control, now: float) -> list[Outgoing]:
        """End what a process before had at this address and port, in another job, as by a Leave.

        Data names no job: an address and port can contribute to one only. Who has not the key of
        that job can end nothing there.

        Raises:
            Refusal: the other job's member is no older, or its job is keyed.
        """
        job, member = self.plane.by_source.get(peer, (None, None))
        if job is None or member is None:
            return []
        key = self.plane.keys.of(job.number)
        if key is not None and key != self.plane.keys.of(packet.job):
            raise Refusal(Status.DENIED)
        if round_distance(packet.request, member.incarnation) <= 0:
            raise _outdone_by(member.incarnation, member.answers.last)
        return self.plane.remove(job, member, now, now)

    def _join_again(
        self, packet: Control, join: Join, job: Job, member: Member, now: float
    ) -> list[Outgoing]:
        """A member is one still; of a switch, a new process continues the membership."""
        same = packet.request == member.incarnation
        anew = not same and not join.flags & FLAG_HEARTBEAT  # a new process
        if anew:  # its Request numbers begin anew, and its first worker may be new, too
            member.answers = Answers(member.answers.last)
            member.note_standing(join)
        member.answers.grow(packet.request)
        if not same and member.met is not None:  # others stand behind it than when all were there
            member.met = 0
        member.incarnation = packet.request
        member.last_seen = now
        member.has_spoken = not join.flags & FLAG_NEW
        # Fewer come with a Request of their own; else it is a late copy, or replayed.
        least = member.workers if same else 0
        sends: list[Outgoing] = []
        if isinstance(join, TreeJoin):
            self.plane.ranks.state(job, member, join, anew, now)
        if isinstance(join, SwitchJoin) and join.workers >= least:
            sends = self._recount(job, member, join, now)
        if anew and job.is_beyond(join):
            sends += self._begin_anew(job, None, now)
        return [*self._joined(member.address, packet, join, job, member, now), *sends]

    @staticmethod
    def _refuse_misfit(job: Job, join: Join, shape: Shape | None) -> None:
        """Refuse a Join that does not fit the job.

        Raises:
            Refusal: it names another shape, or asks for a rank order that the job has not.
        """
        if shape is None or job.shape is None:
            return
        if shape != job.shape or bool(join.flags & FLAG_REPRODUCIBLE) > job.reproducible:
            raise Refusal(Status.MISMATCH)

    def _who_makes_room(
        self, job: Job, peer: Address, join: Join, type_: MemberType, now: float
    ) -> tuple[Member | None, list[Member]]:
        """Name the silent owner of the rank asked for, and all who leave if this Join is let in.

        A job that keeps places takes in nobody else; who died makes room for another.

        Raises:
            Refusal: the owner is alive, or all are.
        """
        silent = self.plane.ranks.vacated_by(job, peer, join.wanted, now)
        leaving = [silent] if silent is not None else []
        if silent is not None and self.plane.hierarchy:
            self.plane.hierarchy.reserve(job.number, silent.ranks)
        full = job.keeps_places and job.places() + len(leaving) <= 0
        if type_ is MemberType.CONTROLLER or not full:
            return silent, leaving
        for member in job.members.contributors():
            if member is not silent and member.last_seen + self.plane.limits.lease <= now:
                return silent, [*leaving, member]
        raise Refusal(Status.FULL, contributors=job.members.workers)

    def _end_leases(self, job: Job, leaving: list[Member], now: float) -> list[Outgoing]:
        """Take out the silent ones that make room."""
        sends: list[Outgoing] = []
        for member in leaving:
            # What completes next may take over the sets that are to be sent: copy them.
            sends += [out.copy() for out in self.plane.end_lease(job, member, now)]
        return sends

    def gate_opened(self, job: Job, newcomer: Member | None, now: float) -> list[Outgoing]:
        """As many workers have come as are expected: go on, all from the same round."""
        sends = self.plane.ranks.number(job, now)
        if job.is_out_of_step():
            return sends + self._begin_anew(job, newcomer, now)
        return sends + self.plane.reevaluate(job, now)

    def _begin_anew(self, job: Job, newcomer: Member | None, now: float) -> list[Outgoing]:
        """A place in a whole job was taken again: all go on from a round of their own."""
        comes_back = newcomer is not None and newcomer.named is not None
        if self.plane.hierarchy:
            job.awaits_reset = True
            return self.plane.hierarchy.tell(job, Action.RESET, None, now)
        sends = self.plane.reset(job, None, now)
        if newcomer is None or comes_back:
            return sends
        self.plane.relays.cancel(newcomer.address, job.number)  # its Ack says it
        return [out for out in sends if newcomer.address not in out.peers]

    def _recount(self, job: Job, switch: Member, join: SwitchJoin, now: float) -> list[Outgoing]:
        """A switch below says for how many workers it stands now."""
        self.plane.throttle.count(switch.address, join.workers)
        members = job.members
        members.are_fewer(switch.workers - join.workers)
        switch.workers = join.workers
        members.expected = max(members.expected, join.expected)
        sends = self.gate_opened(job, None, now) if members.count() else []
        return sends + (self.plane.hierarchy.changed(job, now) if self.plane.hierarchy else [])

    def _joined(
        self, peer: Address, packet: Control, join: Join, job: Job, member: Member, now: float
    ) -> list[Outgoing]:
        """The Ack; a member that comes back and takes part in every round stays where it is.

        Until the switch above has reset the job, nobody can be told where to begin.
        """
        if job.awaits_reset and not join.flags & FLAG_HEARTBEAT:
            return []
        sends = self.plane.ranks.number(job, now)
        there = member.told(self.plane.workers(job, now))
        ack = Request(job, member, Action.JOIN, None, now).ack(there)
        of_member = join.flags & (FLAG_HEARTBEAT | FLAG_STANDS_AT) and not join.flags & FLAG_NEW
        if of_member:  # maybe before its process was replaced by one with the same number
            ack = replace(ack, known=1)
        stays = bool(join.flags & FLAG_STANDS_AT) and member.first_round is None
        if stays and job.synchronous and join.round in job.window:
            ack = replace(ack, round=join.round)
        stated = member.stated
        if isinstance(join, TreeJoin) and stated is not None:
            ack = ack.telling(stated.decided, stated.given, member.ranks)
        payload = Control(Action.ACK, packet.job, packet.request, ack).build()
        return [Outgoing.control(peer, payload), *sends]

    def _admit(
        self,
        peer: Address,
        packet: Control,
        join: Join,
        type_: MemberType,
        shape: Shape | None,
        former: Member | None,
        leaving: list[Member],
        now: float,
    ) -> tuple[Job, Member, list[Outgoing]]:
        """Take in a new member, and end the leases of those `leaving`, who make room for it.

        Raises:
            Refusal: it cannot be taken in; nothing has changed.
        """
        job = self.plane.jobs.get(packet.job) or self.plane.new_job(packet.job)
        contributes = type_ is not MemberType.CONTROLLER
        if packet.job not in self.plane.jobs and len(self.plane.jobs) >= self.plane.limits.jobs:
            raise Refusal(Status.FULL)
        asks_rank_order = bool(join.flags & FLAG_REPRODUCIBLE)
        begins = shape if job.shape is None else None
        if begins and asks_rank_order and not job.data_plane.tells_ranks_apart(begins.mode):
            raise Refusal(Status.BAD_REQUEST)
        taken = 0
        if contributes and job.accelerator is not None and self._is_early(job, join):
            taken = job.accelerator.bits_held()
        seat = job.members.free_seat(type_, taken, join.wanted, leaving)
        if seat is None or len(job.members) - len(leaving) >= MAX_MEMBERS:
            raise Refusal(Status.FULL, rank=len(job.members))
        last = self.plane.former.get(peer, packet.job).answers.last
        member = Member(peer, type_, seat, packet.request, None, now, replaces=former is not None)
        member.answers = Answers(later(last, packet.request))
        member.has_spoken = not join.flags & FLAG_NEW
        member.expected, member.since = join.expected, now
        member.note_standing(join)
        if isinstance(join, SwitchJoin):
            member.workers = join.workers
        was_gathered = job.members.gathered
        if contributes:
            assert shape is not None
            self._reserve(job, shape, seat, asks_rank_order or self.plane.reproducible)
        sends = self._end_leases(job, leaving, now)
        fills_up = contributes and job.keeps_places and job.places() == 1
        self._take_in(job, member, join, former)
        if job.members.gathered and not was_gathered:
            sends += self.gate_opened(job, member, now)
        if fills_up:
            sends += self._begin_anew(job, member, now)
        return job, member, sends

    def _take_in(self, job: Job, member: Member, join: Join, former: Member | None) -> None:
        """Do what was found possible; it takes no memory but what a Join has left room for."""
        peer, now = member.address, member.last_seen
        self.plane.jobs[job.number] = job
        job.dormant_since = None
        self.plane.former.pop(peer, job.number)
        self.plane.enter(peer, member.workers, now)
        self.plane.expect_expiry(now + self.plane.limits.lease)
        if not member.contributes:
            job.members.add(member)
            return
        if join.flags & FLAG_STANDS_AT:
            job.name(join.round, first=bool(join.flags & FLAG_FIRST))
        if job.synchronous:
            job.place(member, join, self._is_early(job, join), former)
        self.plane.ranks.enter(job, member, join.wanted, former)
        job.members.add(member, join.expected, bool(join.flags & FLAG_WHOLE))
        if isinstance(join, TreeJoin):
            self.plane.ranks.state(job, member, join, False, now)
        self.plane.by_source[peer] = (job, member)

    @staticmethod
    def _is_early(job: Job, join: Join) -> bool:
        """Whether nothing can have completed without the member this Join brings."""
        expected = max(job.members.expected, join.expected)
        return expected > job.members.met and not job.completed_any

    def _reserve(self, job: Job, shape: Shape, seat: int, reproducible: bool) -> None:
        """Reserve, and have, all the memory that a contributor on this seat needs.

        Raises:
            Refusal: there is not enough; nothing has changed.
        """
        begins = job.shape is None
        if not begins:
            reproducible = job.reproducible
        elif not self.plane.data_plane.has_room(shape):
            raise Refusal(Status.FULL)
        needed = 0
        if seat not in job.reserved:
            needed = memory_needed(shape, reproducible, begins, job.data_plane.has_parent)
            if self.plane.reserved + needed > self.plane.limits.memory:
                raise self._lacks_memory(needed)
        window = job.window
        try:
            self.plane.limits.buffers.see(needed)
            if begins:
                if self.plane.hierarchy:
                    job.window = self.plane.hierarchy.uplinks[job.number].window()
                job.begin(shape, reproducible and shape.mode is Mode.SYNCHRONOUS, seat)
            else:
                assert job.accelerator is not None
                job.accelerator.join(seat)
        except MemoryError:
            job.window = window
            self.plane.counters["joins_without_memory"] += 1
            self.plane.limits.buffers.refused(job.number, needed)
            raise self._lacks_memory(needed, machine=True) from None
        job.reserved.setdefault(seat, needed)
        self.plane.reserved += needed

    def _lacks_memory(self, needed: int, machine: bool = False) -> Refusal:
        """Tell what was asked for, and what members may reserve still; both in KiB.

        If the machine lacks it, no less is said to be free than was asked for; that is something,
        though what a member needs beside its job's buffers is not reserved.
        """
        asked = max(1, kib(needed))
        free = kib(max(0, self.plane.limits.memory - self.plane.reserved), whole=True)
        return Refusal(Status.FULL, threshold=asked, round=max(free, asked) if machine else free)


def _outdone_by(incarnation: int, last: int | None) -> Refusal:
    """Tell a process to take a number above all that the one before it has used."""
    last = later(last, incarnation) or 1  # 0 would say that none helps
    return Refusal(Status.DENIED, round=last, threshold=incarnation)
