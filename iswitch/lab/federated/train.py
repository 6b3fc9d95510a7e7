"""`iswitch train fedavg|fedprox`: records a training, shows it, and checks it in one process."""

from __future__ import annotations

import argparse
import hashlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console

from iswitch.lab.launch.simulated import Virtual, nodes_of
from iswitch.lab.launch.worlds import make_world
from iswitch.lab.progress import Bar
from iswitch.lab.training.conduct import Launch, conduct
from iswitch.lab.training.record import Learner, Record
from iswitch.lab.training.screen import Check, TrainingScreen
from iswitch.system.files import check_writable, json_text, write
from iswitch.system.interrupts import Signals, Stopped
from topologies import Topology
from topologies.virtual.hub import Stuck
from worker_lib.errors import WorkerError
from worker_lib.fedprox.data import DATASETS, title
from worker_lib.fedprox.members import Played
from worker_lib.fedprox.models import model_of
from worker_lib.fedprox.process import Plan, told
from worker_lib.fedprox.rounds import train as alone

from .choosing import plan_of
from .places import racks_of
from .simulated import How, Row, play

if TYPE_CHECKING:
    from iswitch.lab.launch.programs import WorkerProcess

COMPARING = "training in one process, to compare"
ENDING = 10.0  # seconds for devices to end after their coordinator, if it may leave some out
PORTS = 2  # of a device: it has two memberships
LOOK = 0.2  # seconds between two looks at a simulation


class FederatedRecord(Record[Learner]):
    """The record of a training; its last learner is the coordinator.

    Args:
        plan: what is trained.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__([Learner(rank) for rank in range(plan.setting.devices + 1)])
        self.plan = plan
        self.title = f"{plan.setting.algorithm} of {title(plan.setting.data)}"
        self.started: dict[str, Any] | None = None
        self.rounds: list[dict[str, Any]] = []
        self._now = self._ended = 0.0  # when the coordinator was seen to have ended; 0: it runs

    def tick(self, now: float) -> None:
        """Note the time, and when the coordinator has ended."""
        self._now = now
        if self.learners[-1].done is not None and not self._ended:
            self._ended = now

    def can_spare(self, rank: int) -> bool:
        """Return whether a deadline closes the rounds of a device, and another one is left."""
        devices = self.plan.setting.devices
        may = self.plan.deadline is not None and self.started is not None
        return may and rank != devices and len(self.lost) + 1 < devices

    def complaint(self, worker: WorkerProcess) -> str:
        """Quote its last words, and say how the others could have gone on."""
        found = super().complaint(worker)
        if self.plan.deadline is None and worker.rank != self.plan.setting.devices:
            found += "; with --deadline SECONDS the others go on without such a device"
        return found

    @property
    def done(self) -> bool:
        """Return whether all have ended but those that are lost, or stopped."""
        left = [one for one in self.learners if one.done is None and one.rank not in self.lost]
        late = bool(self._ended) and self._now >= self._ended + ENDING
        return not left or (late and self.plan.deadline is not None)

    def take(self, learner: Learner, message: dict[str, Any]) -> None:  # noqa: ARG002
        """Handle a message of a process."""
        match message.pop("event"):
            case "started":
                self.started = message
            case "round":
                self.rounds.append(message)

    def point(self) -> tuple[float, int, float]:
        """Return the newest point: seconds, round, test accuracy."""
        if not self.rounds:
            return 0.0, 0, float("nan")
        last = self.rounds[-1]
        return last["seconds"], last["round"], last["accuracy"]

    @property
    def iteration(self) -> int:
        """Return the number of rounds."""
        return self.point()[1]

    @property
    def rate(self) -> float | None:
        """Return the rounds per second; None before the first one."""
        seconds, rounds, _ = self.point()
        return rounds / seconds if rounds and seconds else None

    def share(self) -> dict[str, float]:
        """Return nothing: parts of a round are not timed."""
        return {}

    def report(self) -> dict[str, Any]:
        """Collect all that was measured."""
        setting = self.plan.setting
        return {
            "setting": asdict(setting) | {"steps": setting.steps._asdict()},
            "reproducible": self.plan.reproducible,
            **(self.started or {}),
            "rounds": self.rounds,
            "lost": self.lost,
            "failure": self.failure,
            "switches": self.counters,
        }


class FederatedScreen(TrainingScreen):
    """Shows the progress of a training, and compares its end with one process.

    Args:
        record: the training.
        world: where it is.
        check: whether to compare.
        console: where to print; None: standard output.
    """

    command = "train"
    digits = 4
    unit = "round"

    def __init__(
        self, record: FederatedRecord, world: str, check: bool, console: Console | None = None
    ) -> None:
        super().__init__(console)
        self.record = record
        self._world = world
        self._check = check
        self._is_equal = False

    def _awaited(self) -> str | None:
        record = self.record
        return f"{record.plan.setting.devices} devices" if record.started is None else None

    def _reached(self) -> tuple[int, int] | None:
        record = self.record
        return (record.iteration, record.plan.setting.rounds) if record.rounds else None

    def _introduce(self) -> None:
        setting, started = self.record.plan.setting, self.record.started
        assert started is not None
        self.console.print(
            f"{self.record.title}: {setting.devices} devices ({self._world}), {setting.picked} a "
            f"round, {100 * setting.stragglers:g} % stragglers, mu {setting.steps.mu:g}; "
            f"{started['parameters']:,} parameters, {sum(started['sizes']):,} samples",
            soft_wrap=True,
        )

    def _state(self) -> str:
        last = self.record.rounds[-1]
        return (
            f"loss {last['loss']:.3f}  accuracy {last['accuracy']:.3f}  dissimilarity "
            f"{last['dissimilarity']:.3g}  {len(last['in_sum'])} in the sum"
        )

    def verify(self) -> None:
        """Train in this process, too, and compare all models, to the last bit."""
        total = self.record.plan.setting.rounds
        if not self._check:
            return
        with Bar(total, COMPARING) as bar:
            for done, same in compared(self.record):
                bar.show(done, COMPARING)
                if not self.console.is_terminal and self._is_due():
                    self.line(done, total, COMPARING)
                self._is_equal = same
                if not same:
                    return

    def summarise(self) -> int:
        """Print the summary; return the exit status."""
        record = self.record
        rounds, picked = record.rounds[1:], record.plan.setting.picked
        if not rounds:
            return self.tell([("rounds", "none")], [])
        last = rounds[-1]
        time_ = "virtual seconds" if self._world == "sim" else "s"
        asked = picked * len(rounds)
        rows = [
            ("rounds", f"{last['round']} in {last['seconds']:.3g} {time_}"),
            ("loss", f"{last['loss']:.4f}"),
            ("accuracy", f"{last['accuracy']:.4f}"),
            ("in the sums", f"{sum(len(one['in_sum']) for one in rounds)} of {asked} picked"),
        ]
        if empty := sum(not one["in_sum"] for one in rounds):
            free = f"{empty} of {len(rounds)} rounds have no contribution"
            if empty == len(rounds):
                free += "; nobody ever trained, and the model is the first one"
            rows.append(("empty", f"{free} (rounds that nobody can finish take no time here)"))
        if record.lost:
            rows.append(("lost", ", ".join(f"rank {rank}" for rank in sorted(record.lost))))
        if "bytes" in last:
            rows.append(
                ("bytes", f"{last['bytes']:,} on all links, {last['busiest']:,} on the "
                 "coordinator's")
            )  # fmt: skip
        checks = []
        if self._check:
            said = "all models equal those of one process, to the last bit"
            checks.append(Check(self._is_equal, said))
        return self.tell(rows, checks)


def compared(record: FederatedRecord) -> Iterator[tuple[int, bool]]:
    """Train in this process, too; yield after each round whether the models are the same bits.

    Devices that a deadline has left out are left out here, too.
    """
    plan, told_ = record.plan, record.rounds
    racks = (record.started or {}).get("racks", ())
    in_sums = None if plan.deadline is None else [one["in_sum"] for one in told_[1:]]
    states = alone(plan.setting, racks=racks, in_sums=in_sums)
    for state, one in zip(states, told_, strict=False):
        same = hashlib.sha256(state.weights.tobytes()).hexdigest() == one["weights"]
        yield state.rounds, same and list(state.in_sum) == one["in_sum"]


def train(args: argparse.Namespace) -> int:
    """Train; return the exit status.

    Raises:
        OutsideError: the training cannot run here, or a file cannot be written.
    """
    plan, topology = plan_of(args)
    check_writable(args.json, args.topology)
    setting = plan.setting
    DATASETS[setting.data](setting.seed, setting.devices)  # a library that is missing is named now
    record = FederatedRecord(plan)
    screen = FederatedScreen(record, args.world, args.check)
    nodes = nodes_of(args, args.world)
    if nodes is not None:
        grain, hosts, switches = nodes
        status = simulate(
            record, screen, topology, Virtual(grain=grain, hosts=hosts, switches=switches)
        )
    else:
        command = [sys.executable, "-P", "-m", "worker_lib.fedprox.process", plan.to_json()]
        world = make_world(args.world, topology, switches=args.switch)
        launch = Launch(world, command, restarts=args.max_restarts, ports=PORTS)
        status = conduct(launch, record, screen)
    if args.json:
        write(args.json, json_text(record.report() | {"status": status}))
    return status


def simulate(
    record: FederatedRecord, screen: FederatedScreen, topology: Topology, virtual: Virtual
) -> int:
    """Train in virtual time, in this process; return the exit status."""
    plan = record.plan
    federation = plan.setting.federation()
    model = model_of(plan.setting.model, federation)
    record.started = {
        "parameters": model.numel,
        "sizes": federation.sizes.tolist(),
        "racks": list(racks_of(topology, lambda name: (name, 0)).values()),
    }

    def tell(row: Row) -> bool:
        message = told(Played(*row[:4]), model, federation)
        record.rounds.append(message | {"bytes": row.bytes, "busiest": row.busiest})
        return True

    with Signals() as signals:
        try:
            with screen, shown(screen):
                how = How(reproducible=plan.reproducible)
                play(plan.setting, federation, topology, virtual, tell, how)
            screen.verify()
        except Stopped as stopped:
            screen.fail(f"stopped by {stopped.name} after {record.iteration} rounds")
            return 128 + stopped.signum
        except (Stuck, WorkerError) as error:
            record.fail(str(error))
            screen.fail(str(error))
            return record.status
        signals.hold()
        return screen.summarise()


@contextmanager
def shown(screen: TrainingScreen) -> Iterator[None]:
    """Make a context in which a thread refreshes a screen, outside of virtual time."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK):
            screen.refresh()

    thread = threading.Thread(target=look, name="screen", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        screen.refresh()
