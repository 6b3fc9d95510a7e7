"""The demo's worker processes: started, heard, and started again if they die."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from iswitch.lab.launch.launch import bindings
from iswitch.lab.launch.processes import Child, Fleet
from iswitch.lab.launch.restarts import Restarts
from iswitch.lab.launch.switches import Switches

from .demo_training import JOB, DemoFailed, Training, WorkerProcess

if TYPE_CHECKING:
    from .demo_report import Screen

SILENCE_PATIENCE = 60.0  # seconds without a word from any worker
END_PATIENCE = 3.0  # seconds for workers to end when all are done
MOST_RESTARTS = 5  # of a worker, in a row


class DemoCrew:
    """A worker on each host.

    Args:
        fleet: has the processes.
        switches: what they talk to, started.
        training: takes what they say.
        say: tells the user of a restart.
    """

    def __init__(
        self, fleet: Fleet, switches: Switches, training: Training, say: Callable[[str], None]
    ) -> None:
        self.fleet = fleet
        self.switches = switches
        self.training = training
        self.say = say
        self._members: dict[Child, WorkerProcess] = {}
        self._commands: dict[str, list[str]] = {}  # by host

    def start(self) -> None:
        """Start them."""
        training, topology = self.training, self.switches.world.topology
        hosts = [host.name for host in topology.hosts]
        for rank, (host, bind) in enumerate(
            zip(hosts, bindings(self.switches.world, hosts), strict=True)
        ):
            options = {
                "job": JOB,
                "workers": training.workers,
                "seed": training.seed,
                "iterations": training.iterations,
                "switch": self.switches.at(host),
                "rank": rank,
                "bind": bind["ISWITCH_BIND"],
                "any-order": int(training.any_order),
            }
            self._commands[host] = ["-m", "worker_lib.rl.demo_worker"]
            for name, value in options.items():
                self._commands[host] += [f"--{name}", str(value)]
            child = self._launch(host)
            member = WorkerProcess(child, host, restarts=Restarts(MOST_RESTARTS))
            member.restarts.began(time.monotonic())
            self._members[child] = member
            training.members.append(member)

    def _launch(self, host: str) -> Child:
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        place = self.switches.world.place(host)
        return self.fleet.start(f"worker on {host}", self._commands[host], one_thread, place)

    def run(self, screen: Screen) -> None:
        """Hear them, until all are done and have ended.

        Raises:
            DemoFailed: one died too often, or was refused something, or none says anything.
            SwitchFailed: a switch died too often.
        """
        training = self.training
        heard = time.monotonic()
        while not training.done or (self._running() and time.monotonic() < heard + END_PATIENCE):
            for child, line in self.fleet.listen(0.1):
                heard = time.monotonic()
                if self.switches.has(child):
                    self.switches.hear(child, line)
                elif line is not None:
                    with suppress(json.JSONDecodeError):  # what it said when it was killed
                        training.hear(self._members[child], json.loads(line))
                else:
                    self._ended(self._members[child])
            self.switches.tend()
            self._tend()
            if time.monotonic() - heard > SILENCE_PATIENCE:
                raise DemoFailed(f"no worker has said anything for {SILENCE_PATIENCE:.0f} s")
            training.keep_time(time.monotonic())
            screen.refresh()

    def _running(self) -> bool:
        return any(member.child.status() is None for member in self.training.members)

    def _ended(self, member: WorkerProcess) -> None:
        """A worker has ended: well, or it is to be started again.

        One that is done stays for the others until they are, so it is started again, too.
        """
        if self.training.done or member.child.status() == 0:
            return
        ending = f"worker {member.called} {member.child.ending()}"
        if not member.restarts.plan(time.monotonic()):
            raise DemoFailed(f"{ending}, after {member.restarts.row} restarts in a row")
        self.say(f"{ending}; starting it again")

    def _tend(self) -> None:
        for member in self.training.members:
            if member.restarts.is_due(time.monotonic()):
                member.child.signal(signal.SIGKILL)
                member.child = self._launch(member.host)
                member.restarts.began(time.monotonic())
                self._members[member.child] = member
