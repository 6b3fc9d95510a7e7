"""The session of a job whose segments have owners: rounds in which ranks give and get blocks."""

from __future__ import annotations

import numpy as np

from iswitch.core.format.division import Division
from iswitch.core.format.memo import Memo
from iswitch.core.format.packets import Outgoing, Rows
from iswitch.core.format.wire import ROUND_MASK, Ack, Mode, Segments, Status

from .events import Disagreed
from .lent import Exchanged
from .own import Blocks, OwnContribution
from .owned import OwnedTransfer
from .plan import Plan
from .session import Session
from .terms import RoundTerms
from .transfer import ROUND_SIZE

PLANS = 4  # that are kept: a call has up to three kinds of rounds


class OwnedSession(Session):
    """One worker's membership in a job whose segments have owners.

    `begin_blocks` stands in place of `begin`.

    Args:
        terms: terms of the membership.
        incarnation: Request of the Join; larger in a new process at the same address.
    """

    def __init__(self, terms: RoundTerms, incarnation: int) -> None:
        super().__init__(terms, incarnation)
        self._plans: Memo[object, Plan] = Memo(PLANS)
        # Aggregates of a round that others have begun before this rank.
        self._early: list[tuple[Rows, int]] = []
        self._early_round: int | None = None
        self._early_packets = 0
        blocks = 1 if self.shape.mode is Mode.REDUCE_SCATTER else self.shape.owners
        self._most_early = blocks * Division(self.shape).per_block + 1
        elements = self._most_early * max(self.shape.elements, self.shape.last)
        self._memory = np.empty(elements, self.shape.dtype.numpy)  # of the round under way

    def _packets(self) -> OwnContribution:
        """Return an empty contribution."""
        return OwnContribution(self.shape)

    def begin_blocks(
        self, gives: Blocks, gets: Blocks, now: float, total: int | None = None
    ) -> None:
        """Begin the current round, or begin it again after it was given up.

        The second time the elements of `gives` do not count: the contribution to a round never
        changes.

        Args:
            gives: elements of each block that this rank may give: in a reduce_scatter those of
                every rank, in an all_gather its own, in an all_to_all those for every rank. An
                array of (blocks, n), or one of each block, which may be empty.
            gets: receives the elements of each block that this rank may get: in a reduce_scatter
                its own, else those of every rank.
            now: the time, in seconds.
            total: segments of all ranks together that the round must have, else `Disagreed` ends
                it; None: any number.

        Raises:
            ValueError: the round was begun with blocks of other sizes.
        """
        self._begin_round()
        self._come_back(now)
        contribution = self._own_contribution
        sizes = tuple(len(block) for block in gives), tuple(len(block) for block in gets)
        if contribution.plan is None:
            contribution.give(self._plan_of(*sizes), gives)
        plan = contribution.plan
        assert plan is not None
        if plan.sizes != sizes:
            raise ValueError(
                f"round {self.round} was begun with vectors of other sizes; call again as before, "
                "or reset() the job"
            )
        patience = self.round_trip.typical
        self.transfer = OwnedTransfer(contribution, plan, gets, total, patience)
        self.forget_who_is_missing()
        self._moves(now)
        if self._early_round == self.round:
            early, self._early = self._early, []
            self._early_round = None
            for rows, tail in early:
                self._take(rows, tail, now)

    def _plan_of(self, gives: tuple[int, ...], gets: tuple[int, ...]) -> Plan:
        """Return the plan of such a round."""
        chunk = max(1, min(self._burst, self.window.ceiling // (2 * self.shape.owners)))
        key = gives, gets, chunk, self.rank
        found = self._plans.get(key)
        if found is None:
            found = Plan(self.shape, self.rank, gives, gets, chunk, self._memory)
        return self._plans.keep(key, found)

    def abandon(self) -> None:
        """Give the transfer up; its contribution stays as it was given."""
        self._own_contribution.fill()  # even if an error has ended `begin_blocks` half way
        super().abandon()

    @property
    def plain(self) -> OwnedTransfer | None:
        """Return the round under way if a kernel may continue it."""
        transfer = self._owned()
        ready = self.member and self.resends and not self.halted and not self._out
        return transfer if transfer is not None and ready and transfer.is_plain else None

    def exchanged(self, news: Exchanged) -> None:
        """Note what a kernel has done for the round under way."""
        transfer = self._owned()
        assert transfer is not None
        sent, remaining = transfer.sent, transfer.remaining
        transfer.take_over(news)
        came = remaining - transfer.remaining
        self.stats["sent"] += transfer.sent - sent
        self.stats["received"] += came
        self.window.size = news.window
        if came:
            self.heard = news.progress[-1].at
            self._moves(self.heard)
        if transfer.done:
            self.round_trip.sample(news.round_trip)
        if transfer.disagrees:
            self._end_disagreed(transfer)

    @property
    def _own_contribution(self) -> OwnContribution:
        """Return the contribution to the round under way, or to the last one."""
        contribution = self._contributions[0]
        assert isinstance(contribution, OwnContribution)
        return contribution

    def _owned(self) -> OwnedTransfer | None:
        assert self.transfer is None or isinstance(self.transfer, OwnedTransfer)
        return self.transfer

    def transmissions(self, now: float) -> list[Outgoing]:
        """Return what to send now: control packets, and as much data as the window allows."""
        out = super().transmissions(now)
        transfer = self._owned()
        if transfer is not None and self.member and transfer.needs_mark(self.window.size):
            self._help(Segments(transfer.round, 0, 0), now)
            out += self._given_out()
        return out

    def _help(self, named: Segments, now: float) -> None:
        super()._help(named, now)
        if (transfer := self._owned()) is not None:
            transfer.asked(now)

    def _help_answered(
        self, named: Segments, asked: float, status: Status, ack: Ack, now: float
    ) -> None:
        transfer = self._owned()
        if transfer is not None and status is Status.OK and transfer.round == named.round:
            transfer.answered(asked)
            self.window.returned(transfer.freed(0))
            if not named.count:  # it says nothing of segments
                self._taken = max(self._taken, asked)
                return
            if ack.missing and asked >= transfer.closed_at:
                self._end_disagreed(transfer)  # all that anybody gives has been there
                return
        super()._help_answered(named, asked, status, ack, now)

    def _take(self, rows: Rows, tail: int, now: float) -> None:
        awaited = self.round if self.transfer is None else (self.round + 1) & ROUND_MASK
        last, rest = int.from_bytes(rows[-1, :ROUND_SIZE].tobytes(), "big"), len(rows)
        if last == awaited:  # the first ones may be of another round
            others = np.flatnonzero((rows[:, :ROUND_SIZE] != rows[-1, :ROUND_SIZE]).any(axis=1))
            rest = int(others[-1]) + 1 if len(others) else 0
            self._keep(awaited, rows[rest:], tail)
        if rest:
            super()._take(rows[:rest], tail if rest == len(rows) else rows.shape[1], now)
        if (transfer := self._owned()) is not None and transfer.disagrees:
            self._end_disagreed(transfer)

    def _keep(self, round_: int, rows: Rows, tail: int) -> None:
        """Keep aggregates of a round that this rank has not begun, no more than it can have."""
        if self._early_round != round_:
            self._early, self._early_round, self._early_packets = [], round_, 0
        if self._early_packets + len(rows) <= self._most_early:
            self._early.append((rows.copy(), tail))
            self._early_packets += len(rows)

    def _end_disagreed(self, transfer: OwnedTransfer) -> None:
        """End a round in which ranks give other numbers of elements than others expect."""
        self._events.append(Disagreed(transfer.round))
        self.finish()

    def _share(self, workers: int) -> None:
        """Narrow the window, also to what this worker's socket holds of what all others send."""
        super()._share(workers)
        size = self.shape.packet_size
        fair = max(1, self.terms.room // max(workers, 1) // size)
        if self.shape.mode is Mode.ALL_GATHER:  # everybody gets what everybody sends
            fair = min(fair, max(self._burst, self._ceiling // self.shape.owners))
        self.window.limit(min(self.window.ceiling, fair), min(self.window.burst, fair))
        self._burst = min(self._burst, fair)


def session_of(terms: RoundTerms, incarnation: int) -> Session:
    """Return a session for the mode of the terms' shape."""
    kind = OwnedSession if terms.shape.mode.has_owners else Session
    return kind(terms, incarnation)
