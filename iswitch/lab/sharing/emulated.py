"""Plays an experiment on this machine: processes on hosts that are namespaces, or on loopback."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np

from iswitch.core.format.counters import share_added
from iswitch.lab.launch.launch import Crew, how
from iswitch.lab.launch.processes import Fleet
from iswitch.lab.launch.programs import Program, WorkerProcess
from iswitch.lab.launch.switches import Switches
from iswitch.lab.launch.worlds import make_world
from iswitch.system.files import write
from iswitch.watch.places import SOCKET, Watch
from iswitch.watch.reader import Reader

from .plan import Experiment, Sharing
from .played import Failed, Played, Ran, Tell
from .watched import Record
from .worker import READY

HEAD_START = 0.1  # seconds from the last process' word that it is there to the first job
LIMIT = 300.0  # seconds


def play(experiment: Experiment, sharing: Sharing, tell: Tell, world: str) -> Played:
    """Play an experiment with one way to share memory.

    Args:
        experiment: the jobs and the network.
        sharing: how memory is shared.
        tell: told of rounds that are done.
        world: the world: "netns" or "loopback".

    Raises:
        Failed: a job fails, or does not end.
        SwitchFailed: a switch fails.
    """
    hosts = sum(len(task.hosts) for task in experiment.tasks)
    number = 1 << sharing.slots.bit_length() >> 1  # a power of two
    slots = ["--slots", str(number)] if number else []
    core = experiment.topology.root.name
    of_core = ["--policy", sharing.policy, "--memory", repr(sharing.memory / 2**20)]
    options, of_core = ([], of_core + slots) if sharing.passes_on else (slots, of_core)
    network = make_world(world, experiment.network(sharing))
    network.of = {core: of_core}
    with (
        TemporaryDirectory() as folder, network as built, Fleet() as fleet,
        built.watched(experiment.title) as watch,
    ):  # fmt: skip
        switches = Switches(fleet, built, options=options, watch=watch)
        switches.start()
        file = Path(folder) / "start"
        programs = [
            Program(
                (sys.executable, "-m", "iswitch.lab.sharing.worker", json.dumps(asdict(task)),
                 str(file), str(task.priority * sharing.has_priorities)),
                task.number, task.hosts, 1, task.name,
            )
            for task in experiment.tasks
        ]  # fmt: skip
        with Looks(experiment, watch, file, hosts, tell) as looks:
            crew = Crew(switches, programs, hear=looks.hear)
            crew.start()
            crew.run(looks.enough)
        failed = crew.failed
        crew.end()
        switches.stop()
    if failed is not None:
        why = looks.last_words.get(failed.name, "")
        raise Failed(f"{sharing.label}: {failed.called} {how(failed)}: {why}")
    jobs = {}
    for task in experiment.tasks:
        own = looks.told.get(task.name, [])
        if len(own) < len(task.hosts):
            raise Failed(f"{sharing.label}: {task.name} does not end within {LIMIT:.0f} s")
        jobs[task.number] = ran_of(task.comes, own)
    tell(experiment.rounds)
    return Played(experiment, sharing, jobs, looks.record, share_added(switches.counters[core]))


class Looks:
    """Hears processes, starts them at one time, and looks at the root's memory: a context.

    Args:
        experiment: what is played.
        watch: where the switches show themselves; None: nowhere.
        file: the file for which the processes wait.
        processes: how many there are.
        tell: told of rounds that are done.

    Attributes:
        record: what was seen.
        told: what processes have told, by job.
        last_words: the last line of each process on stderr, by its name.
    """

    def __init__(
        self, experiment: Experiment, watch: Watch | None, file: Path, processes: int, tell: Tell
    ) -> None:
        self.record = Record()
        self.told: dict[str, list[dict[str, Any]]] = {}
        self.last_words: dict[str, str] = {}
        self._experiment, self._file, self._tell = experiment, file, tell
        self._to_come = processes
        self._start = inf
        root = experiment.topology.root.name
        self._reader = None if watch is None else Reader(watch.folder / f"{root}{SOCKET}")

    def hear(self, worker: WorkerProcess, line: str, is_error: bool) -> None:
        """Take a line of a process."""
        if is_error:
            self.last_words[worker.name] = line
        elif line != READY:
            self.told.setdefault(worker.program.name, []).append(json.loads(line))
        else:
            self._to_come -= 1
            if not self._to_come:
                self._start = time.monotonic() + HEAD_START
                write(self._file, repr(self._start))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()

    def enough(self) -> bool:
        """Look; return whether the jobs have had their time."""
        now = time.monotonic() - self._start
        seen = None if self._reader is None or now < 0 else self._reader.read()
        if seen is not None:
            self.record.memory.append((now, seen["memory"]["reserved"]))
            part = seen["counters"]["aggregates"] / self._experiment.segments
            self._tell(int(part * self._experiment.rounds))
        return now > LIMIT


def ran_of(comes: float, told: Sequence[dict[str, Any]]) -> Ran:
    """Make of what a job's workers tell what became of the job."""
    spans = np.array([one["rounds"] for one in told])  # [workers, rounds, 2]
    rounds = zip(spans[..., 0].min(0).tolist(), spans[..., 1].max(0).tolist(), strict=True)
    return Ran(comes, max(one["ends"] for one in told), list(rounds))
