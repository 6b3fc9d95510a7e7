"""Measures where the time of a job's rounds goes: how long each takes here, and who comes last.

Nothing here changes what the switch does. The totals only grow, so that a reader gets the rate or
the mean of any interval as a difference. A compiled kernel notes what it handles, and that is added
when it returns. A round that an FBcast or a change of H completes, or another data plane, is left
out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from iswitch.core.format.histogram import Histogram
from iswitch.core.sums.runs import Run

RECENT = 64  # rounds that are remembered one by one


@dataclass(slots=True)
class Tally:
    """Counts what a member has sent and needed since it joined.

    Attributes:
        packets: data packets that came from it.
        nbytes: bytes of their payloads.
        late: its contributions to segments that were complete already.
        resent: aggregates sent to it again.
        asked: missing contributions for which Help asked it.
        rounds: rounds that it began.
        behind: the sum over these of the time from the first member's first contribution to its
            own first, in seconds.
        last: rounds of which its contribution was the last.
    """

    packets: int = 0
    nbytes: int = 0
    late: int = 0
    resent: int = 0
    asked: int = 0
    rounds: int = 0
    behind: float = 0.0
    last: int = 0


@dataclass(slots=True)
class _Open:
    """A round under way: when it began, its complete segments, and the last contribution."""

    round: int
    began: float
    done: int = 0
    last: Tally | None = None
    ended: float = 0.0


class Measured(NamedTuple):
    """A round: when its last contribution came, how long it took, and whose that was."""

    round: int
    ended: float
    seconds: float
    last: Tally


@dataclass(slots=True)
class Pace(Histogram):
    """The durations of a job's rounds, from the first contribution to the last.

    A round whose vector is shorter than the job's is counted when a member begins the round after
    the next.

    Attributes:
        longest: the longest duration, in seconds.
        recent: the newest rounds.
    """

    longest: float = 0.0
    recent: deque[Measured] = field(default_factory=lambda: deque(maxlen=RECENT))
    _open: dict[int, _Open] = field(default_factory=dict)  # by round mod 2

    def begin(self, tally: Tally, round_: int, now: float) -> None:
        """Note a member's first contribution to a round.

        Args:
            tally: the member's.
            round_: the round.
            now: the time, in seconds.
        """
        open_ = self._open.get(round_ & 1)
        if open_ is None or open_.round != round_:
            if open_ is not None:
                self._close(open_)
            open_ = self._open[round_ & 1] = _Open(round_, now)
        tally.rounds += 1
        tally.behind += now - open_.began

    def complete(self, tally: Tally, runs: Sequence[Run], segments: int, now: float) -> None:
        """Note runs that a member's contribution has completed; the last ends its round.

        Args:
            tally: the member's.
            runs: the runs.
            segments: the number of segments of the job.
            now: the time, in seconds.
        """
        for run in runs:
            open_ = self._open.get(run.round & 1)
            if open_ is None or open_.round != run.round:
                continue
            open_.done += run.stop - run.start
            if now >= open_.ended:  # a replay may hand over the segments of a round in any order
                open_.last, open_.ended = tally, now
            if open_.done == segments:
                self._close(open_)

    def _close(self, open_: _Open) -> None:
        """Count a round that ended with a member's contribution, unless it is counted already."""
        if open_.last is None:
            return
        took = open_.ended - open_.began
        self.add(took)
        self.longest = max(self.longest, took)
        open_.last.last += 1
        self.recent.append(Measured(open_.round, open_.ended, took, open_.last))
        open_.last = None

    def forget(self) -> None:
        """Measure no round that is under way: a Reset has made it void."""
        self._open.clear()
