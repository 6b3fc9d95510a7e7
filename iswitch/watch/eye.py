"""Looks at a network again and again: each look is a scene, compared with the look before."""

from __future__ import annotations

import time
from collections import deque

from .change import Change
from .judging import Scene
from .reader import Observer, Snapshot


class Eye:
    """Turns what an observer reads into scenes.

    Args:
        observer: reads the snapshots.
        back: seconds over which rates are measured at least, once as many have passed; 0: since
            the look before.
    """

    def __init__(self, observer: Observer, back: float = 0.0) -> None:
        self.observer = observer
        self.back = back
        self._before: dict[str, deque[Snapshot]] = {}
        self._seen: dict[str, float] = {}  # when each switch last answered

    def look(self) -> Scene:
        """Read all snapshots; compare each with a former one of the same switch.

        Raises:
            OutsideError: what answers is no switch of this version.
        """
        now = time.monotonic()
        scene = Scene(self.observer.network(), others=self.observer.others())
        for name, snapshot in self.observer.read().items():
            if snapshot is None:
                scene.gone[name] = now - self._seen.setdefault(name, now)
                continue
            self._seen[name] = now
            called = snapshot["name"] or name
            scene.changes[called] = Change.of(snapshot, self._former(name, snapshot))
        return scene

    def _former(self, name: str, snapshot: Snapshot) -> Snapshot | None:
        """Return the newest former snapshot that is old enough, or the oldest; keep this one."""
        former = self._before.setdefault(name, deque())
        if former and snapshot["uptime"] < former[-1]["uptime"]:  # the switch was restarted
            former.clear()
        while len(former) > 1 and snapshot["clock"] - former[1]["clock"] >= self.back:
            former.popleft()
        found = former[0] if former else None
        former.append(snapshot)
        return found
