"""Plays rounds of owned segments by the compiled kernel, as far as these are plain."""

from __future__ import annotations

import time

import numpy as np

from iswitch.fast.worker_table import LOOK_PAUSE, OWNED_STRUCT, ROUND_STRUCT, At, End
from iswitch.ports.kernel.mmsg import address_of
from worker_lib.protocol.lent import Exchanged
from worker_lib.protocol.own import Blocks
from worker_lib.protocol.owned import OwnedTransfer
from worker_lib.protocol.owned_session import OwnedSession
from worker_lib.protocol.session import Session

from .errors import as_if_lost
from .kernel import NANO, ROUND_AT, Place, RoundKernel, Words

OWNED_AT = 8 * At.POSITIONS  # bytes of the table


class OwnedKernel(RoundKernel):
    """Plays the rounds of one socket, those of owned segments, too.

    Args:
        port: the socket.
        kernels: the module of kernels.
    """

    def exchange(self, session: OwnedSession, limit: float) -> bool:
        """Continue the round under way as far as it is plain; False: the session has to.

        Args:
            session: the session, which has begun it.
            limit: time of CLOCK_MONOTONIC, in seconds, to return at.
        """
        transfer = session.plain
        if transfer is None:
            return False
        self._prepare(session)
        packets = len(transfer.plan.given)
        place = self._placed(session, transfer.contribution, packets)
        now, due = time.monotonic(), session.deadline()
        until = limit if due is None or limit < due else due
        if place is None or until <= now:
            return False
        kept = self._write_exchange(session, transfer, place)
        self._set(
            UNTIL=int(min(until, now + LOOK_PAUSE / NANO) * NANO), SILENT_AT=int(until * NANO)
        )
        try:
            end = self._run()
        finally:  # also if a signal's handler raises an error
            self._note_exchange(session)
            del kept
        if end == End.UNUSUAL:
            self._hand_over(session)
        elif end == End.ASKS:
            with as_if_lost(session.stats):
                self._port.push(session.transmissions(time.monotonic()))
        elif end == End.NOT_RECEIVED:
            self._fail()
        goes_on = end in (End.DONE, End.UNUSUAL, End.ASKS)
        return goes_on or (end == End.PAUSED and time.monotonic() < until)

    def _write_exchange(
        self, session: OwnedSession, transfer: OwnedTransfer, place: Place
    ) -> object:
        """Write a round into the table; return what has to be kept while it is played."""
        plan, contribution, window = transfer.plan, transfer.contribution, session.window
        gets = Lying(transfer.gets)
        gives = Lying([] if contribution.blocks is None else contribution.blocks)
        lent = transfer.lend(gives.is_apart(gets))
        filled, n = contribution.filled, len(plan.given)
        ROUND_STRUCT.pack_into(
            self._memory,
            ROUND_AT,
            n,
            session.shape.last_size,
            gives.size,
            transfer.round,
            place.rows,
            gives.start,
            gets.start,
            place.headers,
            place.packets,
            session.burst,
            window.burst,
            window.ceiling,
            filled,
            lent.sent,
            lent.answered,
            lent.taken,
            transfer.remaining,
            0,
            0,
            window.threshold,
            window.size,
        )
        sources = plan.sources.placed(gives.begins) if filled < n else None
        targets = plan.targets.placed(gets.begins)
        OWNED_STRUCT.pack_into(
            self._memory,
            OWNED_AT,
            len(plan.gets),
            address_of(plan.gets),
            address_of(plan.places),
            address_of(plan.is_first),
            address_of(lent.has),
            address_of(self._found),
            0 if sources is None else address_of(sources),
            address_of(targets),
            gets.size,
            address_of(plan.tells),
            lent.marked,
            lent.marks,
        )
        if lent.sent:
            times = (transfer.sent_at(session.burst) * NANO).astype(np.int64)
            self._sent_at[: len(times)] = times
        self._set(ROUND_TRIP=int(session.round_trip.typical * NANO), STEPS_DONE=0)
        return sources, targets

    def _note_exchange(self, session: OwnedSession) -> None:
        """Have the session take up what the kernel did."""
        table, remaining = self._table, int(self._table[At.REMAINING])
        play = self._played(remaining == 0)
        session.exchanged(
            Exchanged(
                play.progress,
                int(table[At.FILLED]),
                int(table[At.TAKEN]),
                remaining,
                int(table[At.TOTAL]),
                play.round_trip,
                play.window,
            )
        )

    def _lay_out(self, session: Session) -> None:
        """Make room for a session's rounds, as `RoundKernel` does."""
        super()._lay_out(session)
        self._found: Words = np.zeros(session.shape.segments, np.int64)


class Lying:
    """Where blocks lie in memory.

    Args:
        blocks: the blocks, each contiguous.

    Attributes:
        start: address of the first byte of all; 0: there are no elements.
        size: bytes from there to the last one.
        begins: where each block begins, in bytes from `start`.
    """

    def __init__(self, blocks: Blocks) -> None:
        filled = [i for i, block in enumerate(blocks) if len(block)]
        self.begins: Words = np.zeros(len(blocks), np.int64)
        self.start = self.size = 0
        if filled:
            places = [address_of(blocks[i]) for i in filled]
            self.start = min(places)
            self.begins[filled] = np.array(places) - self.start
            ends = (place + blocks[i].nbytes for place, i in zip(places, filled, strict=True))
            self.size = max(ends) - self.start

    def is_apart(self, other: Lying) -> bool:
        """Return whether others lie in other memory, before all of these or behind them."""
        return self.start + self.size <= other.start or other.start + other.size <= self.start
