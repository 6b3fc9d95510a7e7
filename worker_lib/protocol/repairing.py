"""Repairs the losses of the transfer under way.

There are three ways, each for losses that the one before cannot repair:

- Later segments have their aggregates: segments without theirs are sent again (`recovery.py`),
  whether the contribution was lost or the aggregate. The switch counts the contribution, or answers
  with the aggregate that it keeps. If another worker's contribution was lost, that worker notices
  it in this way, too.
- Nothing comes for two round trips: if few segments are missing, they are sent again. Many of them
  are probably only waiting in a queue, of a switch or of a slow worker; then the worker asks the
  switch for the last segment, and sends nothing again before something shows a loss.
- Nothing comes until the retransmission timer expires: the worker asks for Help. The switch then
  asks exactly the workers whose contributions are missing, which may be at work on another round.
  It also says for whom the round waits, or that it has forgotten this worker.
"""

from __future__ import annotations

from math import ceil, inf

from iswitch.core.format.packets import Indices, index_ranges
from iswitch.core.format.wire import Segments

from .events import Disagreed, Dropped, Gone, WasReset
from .exchange import Exchange
from .member import RANGES_PER_HELP, Member
from .ranges import bridged
from .terms import RoundTerms
from .window import probe_pause

FEW = 8  # segments at most, and at most an eighth of a window, that are sent again as a probe


class Repairing(Member[Disagreed | Dropped | Gone | WasReset]):
    """A member of a synchronous job that finds out what is lost, and repairs it.

    Args:
        terms: terms of the membership.
        incarnation: Request of the Join.
    """

    terms: RoundTerms

    def __init__(self, terms: RoundTerms, incarnation: int) -> None:
        super().__init__(terms, incarnation)
        self.resends = terms.resends
        self.transfer: Exchange | None = None
        self.waiting_for: int | None = None  # in this round: bitmap of seats, by the last answers
        self._asked_anew = True  # no answer has come to the last Help
        self._timer: float | None = None
        self._moved = 0.0  # when something came last, or the transfer began
        self._repair_at: float | None = None  # when something may have to be called lost
        self._last_loss = -inf
        self._taken = -inf  # packets sent before this time are at the switch, or lost

    def forget_who_is_missing(self) -> None:
        """Let only answers to a future Help say for whom the round waits."""
        self.waiting_for = None
        self._asked_anew = True
        self._help_requests.clear()

    def patience(self) -> int:
        """Return how many aggregates must come, at least, before more segments are sent."""
        transfer = self.transfer
        if transfer is None or not transfer.has_more:
            return self.shape.segments
        lacks = self._burst + transfer.outstanding - self.window.size
        return max(1, ceil(lacks / 2))  # each ends a segment, and widens the window by one at most

    # What is lost

    def _moves(self, now: float) -> None:
        """Restart the timer, since something has arrived or a transfer begins."""
        self._moved = now
        self.round_trip.backoff = 1.0
        transfer = self.transfer
        if transfer is None:
            return
        self._timer = now + self.round_trip.timeout
        if not self.resends:
            return
        if transfer.losses.round_trip is not None:
            self._timer = min(self._timer, now + probe_pause(transfer.losses.expected))
        if transfer.losses.doubtful:
            if self._repair_at is None:
                self._repair_at = now + transfer.losses.slack
        else:
            self._repair_at = None

    def _repair(self, now: float) -> None:
        """Send segments again that later aggregates show to be lost."""
        transfer = self.transfer
        self._repair_at = None
        if transfer is None or self.halted or not self.member:
            return
        lost, self._repair_at = transfer.lose(now)
        self._narrow(max((b - a for a, b in index_ranges(lost, 1)), default=0), now)
        self._ask(transfer, now)

    def _ask(self, transfer: Exchange, now: float) -> None:
        """Ask for Help with segments of others that are lost."""
        for start, stop in transfer.questions(RANGES_PER_HELP, now):
            self._help(Segments(transfer.round, start, stop - start), now)
            self.stats["helps"] += 1
            self._repair_at = min(self._repair_at or inf, now + transfer.losses.patience)

    def _narrow(self, lost: int, now: float) -> None:
        """Narrow the window if more than half a burst is lost, which suggests a full queue."""
        if 2 * lost > self._burst and now - self._last_loss > self.round_trip.timeout:
            self._last_loss = now
            self.window.lost()

    @property
    def _few(self) -> int:
        """Return how many segments may be sent again as a probe: a small part of a window.

        With slots the window is small anyway.
        """
        return min(FEW, self.window.ceiling if self.slots else self.window.ceiling // FEW)

    def _break_silence(self, now: float) -> None:
        """React to a long silence: probe, or ask for Help."""
        transfer = self.transfer
        patience = self._moved + self.round_trip.timeout
        if transfer is None or not self.member or self.halted or not self.resends:
            self._ask_for_help(now)
            return
        waiting, suspect = transfer.waited_for()
        few = len(waiting) <= self._few
        probed = transfer.probed(waiting, suspect) if few else suspect[: self._burst]
        if not len(probed):  # asking for the last one costs hardly anything
            patience = min(patience, self._moved + self.round_trip.typical)
        if now >= patience:
            self._ask_for_help(now, None if few else (waiting, suspect))
        elif len(probed):
            transfer.probe(probed)
            self._ask(transfer, now)
            self.stats["probes"] += 1
            self._timer = min(patience, now + 2 * (now - self._moved))
        else:
            self._timer = patience

    def _ask_for_help(self, now: float, many: tuple[Indices, Indices] | None = None) -> None:
        """Ask for missing aggregates.

        Args:
            now: the time, in seconds.
            many: the segments that wait, and those of them that are suspect; then ask for the
                suspect ones and the last one that waits. None: ask for all missing segments sent.
        """
        transfer = self.transfer
        if transfer is None or not self.member:
            self._timer = now + self.round_trip.timeout
            return
        self._asked_anew = True
        if many is None:
            transfer.losses.land()
            asked = bridged(transfer.missing(sent_only=True), RANGES_PER_HELP)
            if not asked and transfer.in_flight:  # of no interest to us: have they been taken?
                asked = [(0, 0)]
        else:
            waiting, suspect = many
            asked = transfer.named(suspect)[: RANGES_PER_HELP - 1] + transfer.named(waiting[-1:])
        if self.halted:  # nothing will come; but the Reset that ends it may have been lost
            asked = [(0, 1)]
        for start, stop in asked:
            self._help(Segments(transfer.round, start, stop - start), now)
            self.stats["helps"] += 1
        self.round_trip.backoff = min(self.round_trip.backoff * 2, 64.0)
        pause = self.round_trip.ceiling if self.halted else self.round_trip.timeout
        self._timer = now + pause

    def _send_what_is_lost(self, transfer: Exchange, start: int, stop: int, now: float) -> None:
        """Send segments again that the switch lacked; if they may be under way, ask once more."""
        count, last = transfer.sent_among(start, stop)
        if count <= 0:
            return
        if count <= self._few or not transfer.is_younger(start, stop, self._taken):
            self._send_again(transfer, start, stop, now)
            return
        transfer.doubted.append((start, stop))
        patience = self.round_trip.timeout
        if all(now - asked >= patience for _, asked in self._help_requests.values()):
            self._help(Segments(transfer.round, last, 1), now)
            self.stats["helps"] += 1

    def _send_again(self, transfer: Exchange, start: int, stop: int, now: float) -> None:
        again = transfer.resend(start, stop)
        self.stats["sent_again"] += again
        self._narrow(again, now)

    def _settle(self, transfer: Exchange, lacks: bool) -> None:
        """Send doubted segments again if the switch lacks some that were sent before our Help."""
        doubted, transfer.doubted = transfer.doubted, []
        for start, stop in doubted if lacks else ():
            if not transfer.is_younger(start, stop, self._taken):
                self.stats["sent_again"] += transfer.resend(start, stop)
