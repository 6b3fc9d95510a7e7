"""Drives a `Session` over a UDP socket by blocking calls: join, ask, and get a vector summed."""

from __future__ import annotations

import secrets
import select
import time
from contextlib import suppress
from dataclasses import replace

from iswitch.core.format.wire import (
    NO_RANK,
    ROUND_MASK,
    Ack,
    AckJob,
    Action,
    Shape,
    Show,
    Status,
    Value,
    Vector,
)
from iswitch.ports.udp import UdpPort
from worker_lib.protocol.session import Answered, Dropped, Gone, Halted, Session, WasReset
from worker_lib.protocol.terms import RoundTerms

from . import arguments, showing
from .errors import (
    JobReset,
    MembershipLost,
    Refused,
    RoundGone,
    SwitchUnreachable,
    TooFewWorkers,
    WorkerError,
    as_if_lost,
)
from .opening import REFUSED_PATIENCE, no_answer, refused
from .waiting import OnMemberLost, Waiting

LOOK_AGAIN = 0.001  # seconds since something came after which to look before an allreduce
WHO_PATIENCE = 0.5  # seconds for an answer that names members, or those waited for
WHO_PAUSE = 0.01  # seconds before asking again, when switches further away have to be heard
TAKEN_PAUSE = 0.5  # seconds before asking again for a place in a job that has all its workers
LEAST_ELEMENTS = 16  # of a packet; no switch takes as few
QUIET = 1.0  # seconds without a newcomer after which to ask the switch who has joined
JOIN_PAUSE = 0.02  # seconds between two looks whether everybody has joined


class Membership:
    """A session and its socket. One thread calls it at a time.

    Args:
        port: the socket, which it takes over.
        terms: terms of the session.
        on_member_lost: reaction to the loss of a worker.
        hosts: names of hosts by address, for messages.

    Raises:
        MemoryError: there is no memory for such vectors; the socket is closed.
    """

    def __init__(
        self, port: UdpPort, terms: RoundTerms, on_member_lost: OnMemberLost, hosts: dict[str, str]
    ) -> None:
        self.port = port
        self._on_member_lost = on_member_lost
        self._hosts = hosts
        try:
            self._begin(terms, arguments.incarnation())
        except MemoryError:
            port.close()
            raise arguments.too_large(terms.shape) from None
        self._poller = select.poll()
        self._poller.register(port, select.POLLIN)
        self._notice: WorkerError | None = None  # for the next allreduce to raise

    def _begin(self, terms: RoundTerms, incarnation: int) -> None:
        self.session = Session(terms, incarnation)
        self.waiting = Waiting(self.session, terms.expected, self._on_member_lost, self._hosts)

    # Joining

    def join(self, timeout: float, may_shorten: bool) -> None:
        """Join the job, and wait for `expected` workers and for a rank.

        Args:
            timeout: seconds.
            may_shorten: try shorter packets if the switch does not take such long ones.

        Raises:
            Refused, SwitchUnreachable, TooFewWorkers: the job was not joined.
        """
        limit = time.monotonic() + timeout
        most = 0  # workers seen at once: one that gives up leaves
        who, ask_who = "", limit  # of these; and when to ask for them
        while True:
            self.session.join(time.monotonic())
            try:
                self._await(None, limit)
            except Refused as error:
                if error.status is Status.BAD_REQUEST and may_shorten and self._shorten_packets():
                    continue
                # The places of workers that were killed become free.
                if not error.taken or time.monotonic() + TAKEN_PAUSE >= limit:
                    raise
                time.sleep(TAKEN_PAUSE)
                continue
            except SwitchUnreachable:
                if not most:  # else it has answered before, and only the time is up
                    raise
            if self.session.joined > most:
                most, who = self.session.joined, ""
                ask_who = time.monotonic() + min(QUIET, timeout / 2)
            if most >= self.session.terms.expected and self.session.rank != NO_RANK:
                self._notice = None  # a reset while all were gathering: nothing was under way
                arguments.tell_of_clock(self.session.clock_behind, self.session.incarnation)
                return
            if not who and self.session.joined == most and time.monotonic() >= ask_who:
                self._ask_for_list(time.monotonic() + WHO_PATIENCE)
                who, ask_who = self.waiting.who_joined(), limit
            if time.monotonic() + JOIN_PAUSE >= limit:
                raise self._too_few(most, who, timeout)
            time.sleep(JOIN_PAUSE)

    def _too_few(self, most: int, who: str, timeout: float) -> TooFewWorkers:
        job, expected = self.session.job, self.session.terms.expected
        if most >= expected:
            return TooFewWorkers(
                f"joined job {job}, but no rank was free within {timeout:g} s: a worker that died "
                "keeps its rank until its lease ends; try again after that, or with a longer "
                "timeout"
            )
        return TooFewWorkers(
            f"only {most} of {expected} workers joined job {job} within {timeout:g} s{who}; are "
            "all of them running, with the same job number, switch and num_workers?"
        )

    def _shorten_packets(self) -> bool:
        """Join again with shorter packets, which the switch may take; False: none are shorter.

        Every worker tries descending powers of two, so all end at one size. Each try has a Request
        number of its own, so a late copy of one refusal is not taken for the next.
        """
        shape = self.session.shape
        elements = 1 << (shape.elements - 1).bit_length() - 1 if shape.elements > 1 else 0
        if elements < LEAST_ELEMENTS:
            return False
        shorter = Shape.of(shape.numel, shape.dtype, shape.op, shape.mode, elements)
        incarnation = (self.session.incarnation + 1) & ROUND_MASK
        self._begin(replace(self.session.terms, shape=shorter), incarnation)
        return True

    # Sums

    def allreduce(
        self, vector: Vector, out: Vector, timeout: float, own: bool, round_: int | None
    ) -> None:
        """Sum a vector over all workers.

        Args:
            vector: flat, (numel,).
            out: array of the vector's shape, for the sum.
            timeout: seconds.
            own: whether nothing else writes to `out`.
            round_: the round of the program; None: the current one.

        Raises:
            WorkerError: the sum could not be had in that time.
        """
        began = time.monotonic()
        limit = began + timeout
        session = self.session
        if began - session.heard > LOOK_AGAIN and self._poller.poll(0):
            self._receive()  # since the last call: Help for that round, a Reset, a Halt
        if session.has_events or self._notice is not None:
            self._raise_notice()
        if round_ is not None and not session.skip_to(round_):
            raise RoundGone(round_, session.round, named=True, done=session.finished)
        try:
            express = session.begin_express(vector, out, began, own)
            if not (express and self._express(limit)):
                if session.transfer is None:
                    session.begin(vector, out, began, own)
                self._transfer(began, timeout)
        except BaseException:
            session.abandon()
            raise
        session.finish()
        self._flush(time.monotonic())

    def _express(self, limit: float) -> bool:
        """Send a small vector and take its aggregate; False: the slow path finishes the round."""
        session = self.session
        now = time.monotonic()
        self._flush(now)
        while (express := session.express) is not None:
            deadline = session.deadline()
            until = limit if deadline is None else min(limit, deadline)
            if not self._poller.poll(max(0.0, until - now) * 1000):
                break
            self._receive()
            if express.done and session.express is express:  # else there was a Reset behind it
                return True
            now = time.monotonic()
        session.go_slow()
        self._raise_notice()
        return False

    def _transfer(self, began: float, timeout: float) -> None:
        """Send and receive until all aggregates have come."""
        transfer = self.session.transfer
        assert transfer is not None
        self.waiting.begin(began)
        while not transfer.done:
            in_time = self._step(began + timeout)
            if not in_time:
                self._ask_for_whom()
                self._ask_who_is_there()
            self._raise_notice()
            now = time.monotonic()
            if (lost := self.waiting.lost(now)) is not None:
                if not lost.awaited:
                    self._ask_who_is_there()
                raise self.waiting.named(lost)
            self.waiting.look(now)
            if not in_time and not transfer.done:
                failed = self.port.counters["tx_failed"]
                raise self.waiting.too_late(timeout, now, failed)

    def _ask_for_whom(self) -> None:
        """Learn whose contributions are missing, from all switches of the tree."""
        waiting, session = self.waiting, self.session
        question, limit = secrets.randbits(32), time.monotonic() + WHO_PATIENCE
        with suppress(SwitchUnreachable, Refused):
            while not (waiting.knows or session.halted or session.transfer is None):
                now = time.monotonic()
                if session.transfer.done or now >= limit:
                    return
                request = waiting.ask_for_whom(question, now)
                try:
                    self._await(request, limit)
                finally:
                    session.forget(request)
                if not waiting.knows:
                    time.sleep(WHO_PAUSE)

    def _ask_who_is_there(self) -> None:
        with suppress(SwitchUnreachable, Refused):
            self.session.join(time.monotonic())
            limit = time.monotonic() + WHO_PATIENCE
            self._await(None, limit)
            if self.session.terms.expected:
                self._ask_for_list(limit)

    def _ask_for_list(self, limit: float) -> None:
        with suppress(SwitchUnreachable, Refused):
            self.waiting.there = showing.members(lambda show: self._show(show, limit))

    def _show(self, show: Show, limit: float) -> Ack:
        number = self.session.request(Action.SHOW, show, time.monotonic())
        try:
            ack = self._await(number, limit)
        finally:
            self.session.forget(number)
        if isinstance(ack, AckJob):
            self.waiting.expected = ack.expected
        return ack

    # Requests

    def request(self, action: Action, value: Value, timeout: float) -> Ack:
        """Have the switch execute an action once; join again first if the membership was lost.

        Raises:
            Refused, SwitchUnreachable: the action was not executed.
        """
        limit = time.monotonic() + timeout
        while True:
            number = self.session.request(action, value, time.monotonic())
            try:
                return self._await(number, limit)
            except Refused as error:
                if error.status is not Status.NOT_MEMBER or action is Action.LEAVE:
                    raise
            # The switch was restarted, or the lease had run out: once more as a member.
            self._await(None, limit)

    def _await(self, request: int | None, limit: float) -> Ack:
        """Wait for the answer to the request with number `request`; None: to any Join."""
        began = time.monotonic()
        self.port.refused = False
        while True:
            more = self._step(limit)
            for answer in self._events():
                self.waiting.answered(answer)
                is_join = answer.action is Action.JOIN
                if is_join if request is None else answer.request == request:
                    if answer.status is not Status.OK:
                        raise self._refused(answer)
                    return answer.ack
            seconds = time.monotonic() - began
            if not more or (self.port.refused and seconds > REFUSED_PATIENCE):
                raise no_answer(self.session, self.port, seconds)

    def _refused(self, answer: Answered) -> Refused:
        return refused(self.session, answer.action, answer.status, answer.ack, self._hosts)

    # Events

    def _events(self) -> list[Answered]:
        """Return the answers among the events; keep an error for the next allreduce to raise."""
        answers = []
        while (event := self.session.next_event()) is not None:
            match event:
                case Answered():
                    answers.append(event)
                case WasReset(round_):
                    self._notice = JobReset(round_)
                case Gone(round_, now_at):
                    self._notice = RoundGone(round_, now_at, named=self.session.partial)
                case Dropped(round_, now_at):
                    self._notice = MembershipLost(round_, now_at)
                case Halted():
                    pass  # an allreduce waits, and says so if it waits too long
        return answers

    def _note_refusal(self) -> None:
        """If the switch refused to resume the membership, let the next allreduce raise Refused."""
        for answer in self._events():
            self.waiting.answered(answer)
            if answer.action is Action.JOIN and answer.status is not Status.OK:
                self._notice = self._refused(answer)

    def _raise_notice(self) -> None:
        self._note_refusal()
        if self._notice is not None:
            notice, self._notice = self._notice, None
            raise notice

    # Packets

    def attend(self) -> None:
        """Do what is due between two calls: heartbeats, Help for others, Acks."""
        self._receive()
        now = time.monotonic()
        deadline = self.session.deadline()
        if deadline is not None and deadline <= now:
            with as_if_lost(self.session.stats):
                self.session.handle_timer(now)
        self._flush(now)
        self._note_refusal()

    def _step(self, limit: float) -> bool:
        """Send what may be sent, then wait for packets and handle them; False: time is up."""
        session = self.session
        now = time.monotonic()
        self._flush(now)
        deadline = session.deadline()
        until = limit if deadline is None else min(limit, deadline)
        if self._poller.poll(0.0 if session.may_send else max(0.0, until - now) * 1000):
            self._receive()
        now = time.monotonic()
        if until <= now:
            with as_if_lost(session.stats):
                session.handle_timer(now)
        return now < limit

    def _receive(self) -> None:
        now = time.monotonic()
        with as_if_lost(self.session.stats):
            for burst in self.port.pull():
                self.session.receive(burst, now)

    def _flush(self, now: float) -> None:
        with as_if_lost(self.session.stats):
            self.port.push(self.session.transmissions(now))
