"""The switch processes of a world: started from the root down, ended for their counters."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .processes import Child, Fleet

if TYPE_CHECKING:
    from .worlds import World

START_PATIENCE = 20.0  # seconds for a switch to listen
STOP_PATIENCE = 10.0  # seconds for a switch to tell its counters


class SwitchFailed(Exception):
    """A switch died, or does not do what it should; the message names it."""


class Switches:
    """One process per switch of the world's tree.

    With `capture`, a folder, each writes the frames at its ports to SWITCH.pcapng there.
    """

    def __init__(self, fleet: Fleet, world: World, capture: Path | None = None) -> None:
        self.fleet = fleet
        self.world = world
        self.capture = capture
        self.listening: dict[str, str] = {}  # by name: HOST:PORT
        self.counters: dict[str, dict[str, int]] = {}  # by name, when they have ended
        self._names: dict[Child, str] = {}

    def start(self) -> None:
        """Start them, parents before children.

        Raises:
            SwitchFailed: one does not listen.
        """
        level = [self.world.topology.root.name]
        while level:
            for name in level:
                options = self.world.switch_options(name, self.listening)
                if self.capture is not None:
                    options += ["--capture", str(self.capture / f"{name}.pcapng")]
                command = ["-m", "iswitch", "switch", "--json", *options]
                place = self.world.place(name)
                self._names[self.fleet.start(self.called(name), command, place=place)] = name
            self._await_listening(level)
            level = [child.name for name in level for child in self.world.topology.children(name)]

    def at(self, host: str) -> str:
        """Where the switch listens that a host is plugged into."""
        return self.listening[self.world.topology.switch_of(host)]

    def has(self, child: Child) -> bool:
        """Whether a child is one of them."""
        return child in self._names

    def died(self, child: Child) -> SwitchFailed:
        """What to say of one that has ended unasked."""
        return SwitchFailed(f"the {child.name} (process {child.process.pid}) {child.ending()}")

    def stop(self) -> dict[str, dict[str, int]]:
        """End them, and return their counters by name.

        Raises:
            SwitchFailed: one does not tell.
        """
        for child in self._names:
            child.process.terminate()
        limit = time.monotonic() + STOP_PATIENCE
        while silent := [c for c, name in self._names.items() if name not in self.counters]:
            if time.monotonic() > limit:
                raise SwitchFailed(
                    f"the {silent[0].name} (process {silent[0].process.pid}) did not tell its "
                    f"counters within {STOP_PATIENCE:.0f} s"
                )
            for child, line in self.fleet.listen(0.1):
                if child in silent and line is None:
                    raise SwitchFailed(
                        f"the {child.name} {child.ending()} before it told its counters"
                    )
                if child in silent and line:
                    self.counters[self._names[child]] = json.loads(line)
                    silent.remove(child)
        return self.counters

    def called(self, name: str) -> str:
        """What a switch is called: by its name, if there are others."""
        return f"switch {name}" if len(self.world.topology.tree) > 1 else "switch"

    def _await_listening(self, names: list[str]) -> None:
        limit = time.monotonic() + START_PATIENCE
        while silent := [name for name in names if name not in self.listening]:
            if time.monotonic() > limit:
                called = self.called(silent[0])
                raise SwitchFailed(f"the {called} did not listen within {START_PATIENCE:.0f} s")
            for child, line in self.fleet.listen(0.1):
                if line is None:
                    raise SwitchFailed(f"the {child.name} {child.ending()}")
                self.listening[self._names[child]] = json.loads(line)["listening"]
