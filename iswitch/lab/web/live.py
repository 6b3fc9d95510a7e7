"""Looks at what runs now: the network that was started last, or a place that is named."""

from __future__ import annotations

from typing import Any

from iswitch.outside import OutsideError
from iswitch.watch.curve import Curve
from iswitch.watch.eye import Eye
from iswitch.watch.reader import Observer, found

from .seen import seen

PATIENCE = 1.0  # seconds in which a switch must answer
BACK = 2.0  # seconds over which rates are measured


class Live:
    """Looks at a network; once it has ended, at the next one.

    Args:
        place: a switch's socket, or the folder of a network; None: the newest network.

    Raises:
        UsageError: there is no such place.
    """

    def __init__(self, place: str | None) -> None:
        self._place = place
        self._eye: Eye | None = None
        if place is not None:
            found(place)

    def look(self) -> dict[str, Any]:
        """Return what is seen now; `nothing` says why if there is nothing to be seen."""
        try:
            eye = self._eye = self._opened()
            told = seen(eye.look())
            curve = Curve.read(eye.observer.place)
        except OutsideError as error:
            self.close()
            return {"nothing": str(error)}
        shown = curve and {"title": curve.title, "target": curve.target, "points": curve.points}
        return {**told, "curve": shown}

    def _opened(self) -> Eye:
        """Return the eye; open another one if the network has ended."""
        if self._eye is not None:
            ended = self._place is None and not self._eye.observer.place.exists()
            if not ended:
                return self._eye
            self.close()
        return Eye(Observer(self._place, PATIENCE, parts=True), BACK)

    def close(self) -> None:
        """End all connections."""
        if self._eye is not None:
            self._eye.observer.close()
            self._eye = None
