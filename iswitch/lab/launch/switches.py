"""Starts the switch processes of a world, from the root down, and ends them for their counters.

A switch that dies by itself is restarted with its options, at its address.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iswitch.fast import loading
from iswitch.system.boundary import INCOMPLETE, OUTSIDE
from iswitch.system.logs import is_logged
from iswitch.watch.places import SOCKET, Watch

from .processes import TERM_GRACE, Child, Fleet
from .restarts import Restarts
from .watching import network_of

if TYPE_CHECKING:
    from .world import World

START_TIMEOUT = 20.0  # seconds for a switch to listen
STOP_TIMEOUT = 10.0  # seconds for a switch to tell its counters
MOST_RESTARTS = 5  # of a switch, in a row
REMEMBERED = 1000  # lines of logs: what switches say alike, they say soon after each other


class SwitchFailed(Exception):
    """A switch ended, or did not listen or tell its counters in time; the message names it.

    Attributes:
        status: exit status of the command: OUTSIDE if the switch ended with it, else 1.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = OUTSIDE if status == OUTSIDE else 1


class Switches:
    """One process per switch of the world's tree.

    With `capture`, a folder, each writes the frames at its ports to SWITCH.pcapng there, and after
    its first restart to SWITCH.2.pcapng, and so on.

    Args:
        fleet: gets the processes.
        world: world in which switches are started.
        capture: the folder for captures; None: there are none.
        say: tells the user of a restart, and what the switches log, each line once.
        options: more options of `iswitch switch`, for all of them.
        watch: where they show what they do; None: nowhere.
    """

    def __init__(
        self,
        fleet: Fleet,
        world: World,
        capture: Path | None = None,
        say: Callable[[str], None] = lambda _: None,
        options: Sequence[str] = (),
        watch: Watch | None = None,
    ) -> None:
        self.options = options
        self.watch = watch
        self.fleet = fleet
        self.world = world
        self.capture = capture
        self.say = say
        self.listening: dict[str, str] = {}  # by name: HOST:PORT
        self.ranks: Sequence[str] = []  # the host of each rank, as far as watchers know
        self.processes_to_come = 0  # of programs
        self.counters: dict[str, dict[str, int]] = {}  # by name, when they have ended
        self._incomplete: list[str] = []  # captures, and why; when they have ended
        self.restarts: dict[str, Restarts] = {}  # by name
        self._names: dict[Child, str] = {}  # of all that were ever started
        self._up: dict[str, Child] = {}  # those that listen
        self._told: dict[str, Any] = {}
        self._logged: deque[str] = deque(maxlen=REMEMBERED)  # lines that the user has been told

    def start(self) -> None:
        """Start the switches, parents before children.

        Raises:
            SwitchFailed: a switch does not listen in time.
        """
        if loading.available() and not loading.is_compiled():
            self._compile()
        level = [self.world.topology.root.name]
        while level:
            for name in level:
                self.restarts[name] = Restarts(MOST_RESTARTS)
                self._launch(name)
            self._await_listening(level)
            level = [child.name for name in level for child in self.world.topology.children(name)]

    def _compile(self) -> None:
        """Wait until the kernels are compiled: switches and workers are given less time."""
        loading.say(loading.COMPILING)
        compiler = self.fleet.start("compiler", ["-m", "iswitch.fast"])
        ended = False
        while not ended:
            ended = compiler.status() is not None
            for _ in self.fleet.listen(0.0 if ended else 0.1):
                pass
            for line in compiler.news():
                if loading.is_progress(line):
                    loading.say(line)
        self.fleet.dismiss(compiler)

    def _launch(self, name: str) -> Child:
        options = [*self.world.switch_options(name, self.listening), *self.options]
        options += self.world.of.get(name, ())
        count = self.restarts[name].count
        if self.capture is not None:
            file = f"{name}.{count + 1}.pcapng" if count else f"{name}.pcapng"
            options += ["--capture", str(self.capture / file)]
        if self.watch is not None:
            options += ["--watch", str(self.watch.folder / f"{name}{SOCKET}")]
        command = ["-m", "iswitch", "switch", "--json", *options]
        child = self.fleet.start(self.called(name), command, place=self.world.place(name))
        self._names[child] = name
        return child

    def hear(self, child: Child, line: str | None) -> None:
        """Handle a line that a switch printed; None: the switch died, so plan its restart.

        Raises:
            SwitchFailed: the switch has died too often, or cannot start.
        """
        name = self._names[child]
        now = time.monotonic()
        if line is not None:
            self._listens(child, line)
            return
        self._up.pop(name, None)
        restarts = self.restarts[name]
        ending = self._ending(child)
        self._tell_news(child)
        status = child.status()
        if name not in self.listening and (status is None or status >= 0):
            raise SwitchFailed(ending, status)
        if not restarts.plan(now):
            said = f"{ending}, after {restarts.row} restarts in a row"
            raise SwitchFailed(said, status)
        self.say(f"{ending}; starting it again")

    def ended(self, number: int) -> None:
        """Heed that a process of a program has ended for good."""

    @property
    def in_order(self) -> bool:
        """Return whether lines of processes wait until it is their turn, see `printed`."""
        return False

    @property
    def stands(self) -> bool:
        """Return whether the clock of lines `in_order` stands until they are `shown`."""
        return False

    def printed(self) -> tuple[list[int], list[int]]:
        """Return the numbers of processes whose turn it is, and of those that end.

        Only where lines are `in_order` does anybody wait for that.
        """
        return [], []

    def shown(self, for_good: bool = False) -> None:
        """Heed that these lines are shown; `for_good`: from now on nobody waits for them."""

    def tend(self) -> None:
        """Restart the switches that are due, and tell what the others log."""
        for name, restarts in self.restarts.items():
            if restarts.is_due(time.monotonic()):
                self._launch(name)
        self.tell_news()

    def tell_news(self) -> None:
        """Tell the user what the switches that listen have logged since, each line once."""
        for child in self._up.values():
            self._tell_news(child)

    def _tell_news(self, child: Child) -> None:
        for line in child.news():
            if is_logged(line) and line not in self._logged:
                self._logged.append(line)
                self.say(f"{child.name}: {line}")

    def restarted(self) -> dict[str, int]:
        """Count the restarts of each switch that had any, by name."""
        return {name: r.count for name, r in self.restarts.items() if r.count}

    def at(self, host: str) -> str:
        """Return the address of a host's switch."""
        return self.listening[self.world.topology.switch_of(host)]

    def addresses(self) -> str:
        """Say where each switch listens, parents first."""
        return ", ".join(f"{self.called(name)} at {at}" for name, at in self.listening.items())

    def processes(self) -> list[int]:
        """List the process numbers of the switches that listen."""
        return [child.process.pid for child in self._up.values()]

    def has(self, child: Child) -> bool:
        """Tell whether a child is a switch."""
        return child in self._names

    def stop(self) -> dict[str, dict[str, int]]:
        """End the switches and return the counters of the last process of each, by name.

        A switch that is just being restarted has none.

        Raises:
            SwitchFailed: a switch does not tell its counters.
        """
        for child in self._up.values():
            child.process.terminate()
        limit = time.monotonic() + STOP_TIMEOUT
        while silent := [c for name, c in self._up.items() if name not in self.counters]:
            if time.monotonic() > limit:
                raise SwitchFailed(
                    f"the {silent[0].name} (process {silent[0].process.pid}) did not tell its "
                    f"counters within {STOP_TIMEOUT:.0f} s"
                )
            for child, line in self.fleet.listen(0.1):
                if child in silent and line is None:
                    raise SwitchFailed(
                        f"the {child.name} {child.ending()} before it told its counters"
                    )
                if child in silent and line:
                    self.counters[self._names[child]] = json.loads(line)
                    silent.remove(child)
        self.tell_news()
        for child in self._up.values() if self.capture is not None else ():
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(TERM_GRACE)
            if child.process.returncode == INCOMPLETE:
                self._incomplete.append(child.complaint().removeprefix("iswitch switch: "))
        return self.counters

    def tell_incomplete(self) -> int:
        """Name the incomplete captures; return the exit status for them, 0 if there are none."""
        for said in self._incomplete:
            self.say(said)
        return INCOMPLETE if self._incomplete else 0

    def called(self, name: str) -> str:
        """Name a switch in messages: by its name, if there are several."""
        return f"switch {name}" if len(self.world.topology.tree) > 1 else "switch"

    def _await_listening(self, names: list[str]) -> None:
        limit = time.monotonic() + START_TIMEOUT
        while silent := [name for name in names if name not in self._up]:
            if time.monotonic() > limit:
                called = self.called(silent[0])
                raise SwitchFailed(f"the {called} did not listen within {START_TIMEOUT:.0f} s")
            for child, line in self.fleet.listen(0.1):
                self.hear(child, line)
            self.tend()

    def _listens(self, child: Child, line: str) -> None:
        name = self._names[child]
        told = json.loads(line)
        if "listening" not in told:  # its counters: somebody has asked it to end
            return
        self.listening[name] = told["listening"]
        self.restarts[name].began(time.monotonic())
        self._up[name] = child
        self.tell_news()
        if self.watch is not None:
            network_of(self.watch, self.world, self.listening, self.ranks).write(self.watch.folder)

    def _ending(self, child: Child) -> str:
        return f"the {child.name} (process {child.process.pid}) {child.ending()}"
