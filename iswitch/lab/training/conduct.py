"""A training from its network to its summary."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from iswitch.lab.launch.launch import Crew, how
from iswitch.lab.launch.processes import Fleet
from iswitch.lab.launch.programs import WorkerProcess, everywhere
from iswitch.lab.launch.restarts import Restarts
from iswitch.lab.launch.simulated import make_switches
from iswitch.lab.launch.switches import Switches, SwitchFailed
from iswitch.lab.launch.world import World
from iswitch.system.boundary import OUTSIDE
from iswitch.system.interrupts import Signals, Stopped

from .curve import Showing
from .record import Record
from .screen import Screen

JOB = 1


@dataclass(frozen=True)
class Launch:
    """A network for a training, and the command of each worker.

    Args:
        world: the network, not yet built.
        command: command of a worker; one runs on each host.
        capture: folder for captures of the frames at each switch's ports; None: no captures.
        restarts: the most restarts in a row of a worker that dies.
        ports: UDP ports of a worker that is restarted.
        prepare: called once the workers have been started.
    """

    world: World
    command: Sequence[str]
    capture: Path | None = None
    restarts: int = 0
    ports: int = 1
    prepare: Callable[[], None] = lambda: None


def conduct(launch: Launch, record: Record[Any], screen: Screen) -> int:
    """Run a training to its end and print its summary; return the exit status.

    Args:
        launch: the network and the command.
        record: takes what the workers tell.
        screen: shows it.
    """
    with Signals() as signals, record:
        try:
            switches = _run(launch, record, screen, signals)
            if record.failure is None:
                signals.listen()  # nothing runs any more
                screen.verify()
                signals.hold()
        except Stopped as stopped:
            screen.fail(f"stopped by {stopped.name}{record.resumable()}")
            return 128 + stopped.signum
        if record.failure is not None:
            screen.fail(record.failure + record.resumable())
            return record.status
        status = screen.summarise()
        return switches.tell_incomplete() or status


def _run(launch: Launch, record: Record[Any], screen: Screen, signals: Signals) -> Switches:
    def over() -> bool:
        now = time.monotonic()
        record.tick(now)
        showing.tick(now)
        screen.refresh()
        return record.over

    def spares(worker: WorkerProcess) -> bool:
        if not record.can_spare(worker.rank):
            return False
        record.lost.append(worker.rank)
        screen.say(f"{ended_how(worker)}; the others go on without it")
        return True

    def ended_how(worker: WorkerProcess) -> str:
        row = worker.restarts.row
        after = f", after {row} restarts in a row" if row else ""
        return f"{worker.called} {how(worker)}{after}{record.complaint(worker)}"

    title = f"iswitch {screen.command}: {launch.world.title}"
    with launch.world as world, world.watched(title) as watch, Fleet() as fleet, screen:
        showing = Showing(watch, record)
        switches = make_switches(fleet, world, launch.capture, screen.say, watch=watch)
        restarts = partial(Restarts, launch.restarts)
        program = everywhere(world.topology, launch.command, JOB)
        crew = Crew(
            switches, [program], restarts, say=screen.say, hear=record.hear, spares=spares,
            ports=launch.ports,
        )  # fmt: skip
        try:
            switches.start()
            if watch is not None:
                screen.say(f"to watch: iswitch top {watch.folder}")
            crew.start()
            launch.prepare()
            crew.run(over)
            signals.hold()
            # Where the clock stands, nobody notices how processes end; so the counters repeat.
            crew.end(signal.SIGKILL if record.done and switches.in_order else signal.SIGTERM)
            if crew.failed is not None and not record.done:
                record.fail(ended_how(crew.failed))
            record.counters = switches.stop()
        except SwitchFailed as error:
            signals.hold()
            record.fail(str(error), error.status == OUTSIDE)
        except Stopped:
            crew.end()
            raise
        record.restarts = switches.restarted()
    return switches
