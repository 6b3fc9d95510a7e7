"""Lends the lanes of links with a rate to the kernel over rings, for one call."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from iswitch.ports.rings.pacing import Lane, sizes_of

from . import ring_table as r
from .tables import Table


class LentLanes:
    """The rows of some lanes.

    Args:
        lanes: the lanes; each has one row, however often it is named.
    """

    def __init__(self, lanes: Iterable[Lane] = ()) -> None:
        self._rows = {lane: i for i, lane in enumerate(dict.fromkeys(lanes))}
        self.table: Table = np.zeros((len(self._rows), r.LANE), np.int64)
        self._times = self.table.view(np.float64)

    def row_of(self, lane: Lane) -> int:
        """Return the row of a lane."""
        return self._rows[lane]

    def lend(self, now: float) -> None:
        """Write what the lanes hold at present, in seconds of their clock."""
        for lane, i in self._rows.items():
            line, row, times = lane.line, self.table[i], self._times[i]
            row[r.ROOM] = lane.link.queue
            row[r.EARLIER] = line.waiting(now)
            row[r.WAITING] = row[r.SENT_NEXT] = row[r.SENT_STOP] = 0
            times[r.EACH_BYTE], times[r.DELAY] = 8 / lane.rate, lane.link.delay
            times[r.BUSY] = times[r.EARLIER_UNTIL] = line.busy
            times[r.PASSED] = -np.inf

    def settle(self) -> bool:
        """Send into the lanes what a kernel has sent, as far as it may still be in their queues.

        Returns:
            whether each lane is then as busy as the kernel left it. One that is not keeps the later
            of the two times.
        """
        agrees = True
        for lane, i in self._rows.items():
            start, stop = self.table[i, [r.SENT_NEXT, r.SENT_STOP]].tolist()
            lane.line.pass_by(float(self._times[i, r.PASSED]))
            for n in range(start, stop):
                at = r.SENT + n % r.MOST_SENT * r.SENT_COLUMNS
                columns = slice(at + r.SENT_PACKETS, at + r.SENT_DONE)
                sizes = sizes_of(*self.table[i, columns].tolist())
                lane.line.fates(sizes, float(self._times[i, at + r.SENT_AT]))
            busy = float(self._times[i, r.BUSY])
            agrees = agrees and lane.line.busy == busy
            lane.line.pass_by(busy)
        return agrees
