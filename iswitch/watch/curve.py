"""The learning curve of a training that runs: a file in its network's folder, written anew."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from iswitch.outside import OutsideError, reading

CURVE = "curve.json"
POINTS = 400  # at most; beyond, every second one is left out

Point = tuple[float, int, float]  # seconds, iteration, mean return


@dataclass
class Curve:
    """A learning curve.

    Attributes:
        title: what learns.
        target: the mean return at which it ends, or None.
        points: seconds, iteration and mean return, as far apart as `POINTS` demand.
    """

    title: str
    target: float | None = None
    points: list[Point] = field(default_factory=list)
    _every: int = 1
    _skipped: int = 0

    def add(self, point: Point) -> None:
        """Add a point behind the last one."""
        self._skipped += 1
        if self._skipped < self._every:
            return
        self._skipped = 0
        self.points.append(point)
        if len(self.points) > POINTS:
            del self.points[1::2]
            self._every *= 2

    def write(self, folder: Path) -> None:
        """Write the file of a folder, at once for its readers."""
        file = folder / f"{CURVE}.new"
        file.write_text(json.dumps(asdict(self)))
        file.replace(folder / CURVE)

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read the file of a folder; None: nothing is trained there.

        Raises:
            OutsideError: the file is damaged.
        """
        try:
            text = (folder / CURVE).read_text()
        except OSError:
            return None
        with reading(str(folder / CURVE), OutsideError):
            return cls(**json.loads(text))
