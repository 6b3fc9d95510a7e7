"""Joins a job, and plays rounds of it, by blocking calls: a vector summed, blocks exchanged."""

from __future__ import annotations

import time
from collections.abc import Callable
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
    Shown,
    Status,
    Vector,
    round_distance,
)
from iswitch.fast.worker_table import LOOK_AGAIN
from iswitch.virtual.process import fresh_bytes
from worker_lib.protocol.own import Blocks
from worker_lib.protocol.owned import OwnedTransfer
from worker_lib.protocol.owned_session import OwnedSession
from worker_lib.protocol.reception import Reception

from . import showing, telling
from .errors import AllreduceTimeout, Refused, RoundGone, SwitchUnreachable, TooFewWorkers
from .kernel import NANO, RoundKernel
from .streaks import Streaks

WHO_PATIENCE = 0.5  # seconds for an answer that names members, or those waited for
WHO_PAUSE = 0.01  # seconds before asking again, when switches further away have to be heard
TAKEN_PAUSE = 0.5  # seconds before asking again for a place in a job that has all its workers
LEAST_ELEMENTS = 16  # of a packet; no switch takes as few
QUIET = 1.0  # seconds without a newcomer after which to ask the switch who has joined
NEWS_PAUSE = 0.1  # seconds without an aggregate after which to ask whether its round has begun
NEWS_CEILING = 2.0  # the pause doubles up to this
JOIN_PAUSE = 0.02  # seconds between two looks whether everybody has joined


class Membership(Streaks):
    """A session and its socket: joins a job, and plays rounds. One thread calls it at a time."""

    # Joining

    def join(self, timeout: float, resized: Callable[[int], Shape] | None) -> None:
        """Join the job, and wait for `expected` workers and for a rank.

        Args:
            timeout: seconds.
            resized: returns the layout with shorter packets, to try these if the switch does not
                take such long ones; None: keep them.

        Raises:
            Refused, SwitchUnreachable, TooFewWorkers: the job was not joined.
        """
        limit = time.monotonic() + timeout
        most = 0  # workers seen at once: one that gives up leaves
        who, ask_who = "", limit  # of these; and when to ask for them
        is_told = False  # that all places are taken
        while True:
            self.session.join(time.monotonic())
            try:
                self._await(None, limit)
            except Refused as error:
                if error.status is Status.BAD_REQUEST and resized and self._shorten(resized):
                    continue
                # The places of workers that were killed become free.
                if not error.taken or time.monotonic() + TAKEN_PAUSE >= limit:
                    raise
                if not is_told:
                    telling.of_places(error, limit - time.monotonic())
                    is_told = True
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
                telling.of_clock(self.session.clock_behind, self.session.incarnation)
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
            return TooFewWorkers.without_rank(job, timeout)
        return TooFewWorkers(
            f"only {most} of {expected} workers joined job {job} within {timeout:g} s{who}; are "
            "all of them running, with the same job number, switch and num_workers?"
        )

    def _shorten(self, resized: Callable[[int], Shape]) -> bool:
        """Join again with shorter packets, as the switch may not take these; False: none are left.

        Every worker tries descending powers of two, so all end at one size. Each try has a Request
        number of its own, so a late copy of one refusal is not taken for the next.
        """
        shape = self.session.shape
        elements = 1 << (shape.elements - 1).bit_length() - 1 if shape.elements > 1 else 0
        if elements < LEAST_ELEMENTS:
            return False
        shorter = resized(elements)
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
        session = self.session
        began = self._look()
        if round_ is not None and not session.skip_to(round_):
            raise RoundGone(round_, session.round, named=True, done=session.finished)
        self._sum(vector, out, began, timeout, own)

    def _sum(
        self,
        vector: Vector,
        out: Vector,
        began: float,
        timeout: float,
        own: bool,
        end: int | None = None,
    ) -> None:
        session, kernel = self.session, self.kernel
        self._went_express = False
        try:
            express = session.begin_express(vector, out, began, own, kernel is not None)
            if express and self._express(kernel, began + timeout, end):
                self._went_express = kernel is not None
            else:
                if session.transfer is None:
                    session.begin(vector, out, began, own)
                self._transfer(began, timeout)
        except BaseException:
            session.abandon()
            raise
        session.finish()
        if session.speaks:
            self._flush(time.monotonic())

    def receive(self, out: Vector, timeout: float, round_: int) -> None:
        """Receive the sum of a round without contributing to it.

        Args:
            out: flat, (numel,) or shorter, for the sum.
            timeout: seconds.
            round_: the round of the program.

        Raises:
            WorkerError: the sum could not be had in that time.
        """
        session = self.session
        self._raise_notice()
        if not session.skip_to(round_):
            raise RoundGone(round_, session.round, named=True, done=session.finished)
        began = time.monotonic()
        try:
            reception = session.listen(out, began)
            self._receive()
            self._listen(reception, began, timeout)
        except BaseException:
            session.abandon()
            raise
        session.finish()
        self._flush(time.monotonic())

    def _listen(self, reception: Reception, began: float, timeout: float) -> None:
        """Receive until all aggregates have come; look now and then whether the round has begun."""
        limit, pause = began + timeout, NEWS_PAUSE
        look = began + pause
        while not reception.done:
            self._step(min(limit, look))
            self._raise_notice()
            now = time.monotonic()
            if now >= limit and not reception.done:
                what = "was not summed" if reception.begun else "has not begun"
                raise AllreduceTimeout(
                    f"round {reception.round} {what} within {timeout:g} s; do its workers run?",
                    reception.round,
                    reception.missing(),
                    None,
                )
            if now >= look:
                if not reception.begun and self._has_begun(reception.round, limit):
                    reception.begun = True
                    self.session.ask_soon(time.monotonic())
                pause = min(2 * pause, NEWS_CEILING)
                look = time.monotonic() + pause

    def _has_begun(self, round_: int, limit: float) -> bool:
        """Ask the switch whether its newest round is this one or a later one."""
        newest = self.newest(min(limit, time.monotonic() + WHO_PATIENCE))
        return newest is not None and round_distance(newest, round_) >= 0

    def newest(self, limit: float) -> int | None:
        """Return the newest round that the switch knows of; None: it does not answer."""
        with suppress(SwitchUnreachable, Refused):
            ack = self._show(Show(Shown.JOBS, self.session.job), limit)
            if ack.rank == self.session.job:
                return ack.round
        return None

    def exchange(self, gives: Blocks, gets: Blocks, total: int | None, timeout: float) -> int:
        """Give blocks to the others, and get theirs.

        Args:
            gives, gets, total: as for `OwnedSession.begin_blocks`.
            timeout: seconds.

        Returns:
            the number of segments that the round had, of all ranks together.

        Raises:
            WorkerError: the blocks could not be had in that time.
        """
        session = self.session
        began = self._look()
        assert isinstance(session, OwnedSession)
        try:
            session.begin_blocks(gives, gets, began, total)
            self._transfer(began, timeout)
        except BaseException:
            session.abandon()
            raise
        assert isinstance(session.transfer, OwnedTransfer)
        found = session.transfer.total
        assert found is not None
        session.finish()
        self._flush(time.monotonic())
        return found

    def _look(self) -> float:
        """Look for news since the last call, and raise the error if there is one; return the time.

        It may be Help for that round, a Reset, a Halt.
        """
        now, session = time.monotonic(), self.session
        if now - session.heard > LOOK_AGAIN / NANO and self.port.wait(0):
            self._receive()
        if session.has_events or self._notice is not None:
            self._raise_notice()
        return now

    def _express(self, kernel: RoundKernel | None, limit: float, end: int | None) -> bool:
        """Send a vector and take its aggregate; False: the slow path finishes the round.

        Args:
            kernel: plays the round; None: it is played here, the vector being small.
            limit: time to give up at, in seconds.
            end: as for `_sum`.
        """
        session = self.session
        if kernel is not None and kernel.play(session, limit, end):
            return True
        now = time.monotonic()
        self._flush(now)
        while kernel is None and (express := session.express) is not None:
            deadline = session.deadline()
            until = limit if deadline is None else min(limit, deadline)
            if not self.port.wait(max(0.0, until - now)):
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
            in_time = self._exchange(began + timeout) or self._step(began + timeout)
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

    def _exchange(self, limit: float) -> bool:
        """Have a kernel continue a round of owned segments; False: there is none, or it cannot."""
        session, kernel = self.session, self.kernel
        return (
            kernel is not None
            and isinstance(session, OwnedSession)
            and kernel.exchange(session, limit)
        )

    def _ask_for_whom(self) -> None:
        """Learn whose contributions are missing, from all switches of the tree."""
        waiting, session = self.waiting, self.session
        question, limit = int.from_bytes(fresh_bytes(4), "big"), time.monotonic() + WHO_PATIENCE
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
