"""Looks at a network again and again: each look is a scene, compared with the look before."""

from __future__ import annotations

import time

from .change import Change
from .judging import Scene
from .reader import Observer, Snapshot


class Eye:
    """Turns what an observer reads into scenes.

    Args:
        observer: reads the snapshots.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self._before: dict[str, Snapshot] = {}
        self._seen: dict[str, float] = {}  # when each switch last answered

    def look(self) -> Scene:
        """Read all snapshots; compare them with the former ones.

        Raises:
            OutsideError: what answers is no switch of this version.
        """
        now = time.monotonic()
        scene = Scene(self.observer.network())
        for name, snapshot in self.observer.read().items():
            if snapshot is None:
                scene.gone[name] = now - self._seen.setdefault(name, now)
                continue
            self._seen[name] = now
            called = snapshot["name"] or name
            scene.changes[called] = Change.of(snapshot, self._before.get(name))
            self._before[name] = snapshot
        return scene
