"""Shows the learning curve of a training that runs to whoever watches its network."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from iswitch.watch.curve import Curve
from iswitch.watch.places import Watch

from .record import Record

PAUSE = 1.0  # seconds between two points


class Showing:
    """Writes the learning curve into the folder in which a network shows itself.

    Args:
        watch: the folder; None: nobody can watch.
        record: the training.
    """

    def __init__(self, watch: Watch | None, record: Record[Any]) -> None:
        self._watch = watch
        self._record = record
        self._curve = Curve(record.title, record.target)
        self._due = -math.inf
        self._shown = -1

    def tick(self, now: float) -> None:
        """Add a point if it is time to; called some times a second."""
        point = self._record.point()
        if self._watch is None or now < self._due or point[1] <= self._shown:
            return
        self._due = now + PAUSE
        self._shown = point[1]
        if not math.isnan(point[2]):
            self._curve.add(point)
        with suppress(OSError):  # a training does not end because it cannot be watched
            self._curve.write(self._watch.folder)
