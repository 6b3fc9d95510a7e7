"""Drives a `Session` over a UDP socket by blocking calls: packets, requests and events."""

from __future__ import annotations

import time

from iswitch.core.format.wire import Ack, Action, Status, Value
from iswitch.ports.udp import UdpPort
from worker_lib.protocol.events import Answered, Disagreed, Dropped, Gone, Halted, WasReset
from worker_lib.protocol.owned_session import session_of
from worker_lib.protocol.session import Session
from worker_lib.protocol.terms import RoundTerms

from . import arguments, ring_rounds, telling
from .errors import (
    JobReset,
    MembershipLost,
    Refused,
    RoundGone,
    SizesDiffer,
    WorkerError,
    as_if_lost,
)
from .opening import REFUSED_PATIENCE, no_answer, refused
from .waiting import OnMemberLost, Waiting


class Driver:
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
        self.kernel = ring_rounds.load(port)
        self._notice: WorkerError | None = None  # for the next allreduce to raise

    def _begin(self, terms: RoundTerms, incarnation: int) -> None:
        self.session = session_of(terms, incarnation)
        # No round of a plain one ends before all that it sends is on its way.
        self._is_plain = type(self.session) is Session and not terms.partial
        self.waiting = Waiting(self.session, terms.expected, self._on_member_lost, self._hosts)

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
        place, is_told = 0, False
        while True:
            more = self._step(limit)
            waits = self.session.waits
            if waits is not None and waits.threshold != place:
                place = waits.threshold
                terms = self.session.terms
                telling.of_memory(terms.job, terms.rank, place, waits.round, terms.switch)
            taken, waited = self.session.taken, time.monotonic() - began
            if taken is not None and waited >= telling.SILENT and not is_told:
                is_told = True
                telling.of_rank(self.session.job, taken, self._hosts, limit - began - waited)
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
                case Disagreed(round_):
                    self._notice = SizesDiffer(round_)
                case Halted():
                    pass  # an allreduce waits, and says so if it waits too long
        return answers

    def _note_refusal(self) -> None:
        """If the switch refused to resume the membership, have the next allreduce raise that."""
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
        transfer = session.transfer
        more = 0
        if self._is_plain and transfer is not None and transfer.has_more:
            more = session.patience() * session.shape.packet_size
        if self.port.wait(0.0 if session.may_send else max(0.0, until - now), more):
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
