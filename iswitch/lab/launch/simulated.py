"""The world in virtual time: one process simulates all links and switches, and owns the clock."""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from iswitch.faults.units import QuantityError
from iswitch.lab.options import quantity, whole
from iswitch.outside import UsageError, reading
from iswitch.sim.grain import AUTO, Grain, grain_of
from iswitch.sim.handling import Handling
from iswitch.sim.published import host_handling, switch_handling
from iswitch.system.boundary import OUTSIDE
from iswitch.virtual import site
from iswitch.virtual.channel import say
from iswitch.virtual.computing import ComputingError, Plan, read_plan
from iswitch.virtual.install import NUMBER, VARIABLE
from iswitch.watch.places import Watch

from .processes import Child, Fleet
from .restarts import Restarts
from .switches import STOP_TIMEOUT, Switches, SwitchFailed
from .world import World

if TYPE_CHECKING:
    from topologies import Topology
    from topologies.simulated import Simulation

LOCALHOST = "127.0.0.1"
TORCHRUN = "torch.distributed.run"  # its module
FIRST_PORT = 45000  # of processes that keep their address when they are restarted


class Virtual(NamedTuple):
    """How virtual time passes.

    Attributes:
        plan: how long processes compute.
        real_clock: whether programs see real time.
        grain: how much may be one event of the network.
        hosts, switches: the time that each takes for packets.
    """

    plan: Plan = Plan()
    real_clock: bool = False
    grain: Grain = AUTO
    hosts: Handling = Handling()
    switches: Handling = Handling()


def simulated(topology: Topology, virtual: Virtual) -> Simulation:
    """Make a network for threads of this process, whose links delay nothing of their own accord."""
    from topologies.simulated import Simulation  # which is slow to load

    return Simulation(
        topology,
        latency=0.0,
        grain=virtual.grain,
        hosts=virtual.hosts,
        switches=virtual.switches,
    )


class Simulated(World):
    """Nodes are simulated; programs on hosts are real processes in virtual time."""

    def __init__(self, topology: Topology, virtual: Virtual) -> None:
        super().__init__(topology, offload=True)
        self.virtual = virtual
        self._folder = tempfile.TemporaryDirectory(prefix="iswitch-sim-")
        self.path = str(Path(self._folder.name) / "socket")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def watched(self, title: str) -> AbstractContextManager[Watch | None]:  # noqa: ARG002
        """Make no folder: no switch here has a socket."""
        return nullcontext()

    def switch_options(self, name: str, listening: Mapping[str, str]) -> list[str]:
        """Refuse: no switch here is a process of its own."""
        raise NotImplementedError

    def address(self, host: str) -> str:
        """Return its address in the topology's subnet."""
        return str(self.topology.address(host))

    def environment(self, host: str) -> dict[str, str]:
        """Make hashes of strings repeatable, too."""
        return {**super().environment(host), "PYTHONHASHSEED": "0"}

    def necessary(self, host: str, number: int) -> dict[str, str]:
        """Return the variables by which a process enters virtual time.

        They also name a place of this machine to torch's store, which is outside virtual time.
        """
        (folder,) = site.__path__
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH", ""))))
        return {
            VARIABLE: self.path,
            "ISWITCH_HOST": host,
            NUMBER: str(number),
            "PYTHONPATH": path,
            "MASTER_ADDR": LOCALHOST,
        }

    def meeting(self, host: str) -> str:  # noqa: ARG002
        """Return this machine's address: torch's store is outside virtual time."""
        return LOCALHOST

    def reserve(self, hosts: Sequence[str]) -> list[tuple[str, int]]:
        """Choose an address for a process on each of these hosts."""
        return [(self.address(host), FIRST_PORT + i) for i, host in enumerate(hosts)]


class Network(Switches):
    """The process that simulates all switches; it stands where their processes would."""

    world: Simulated
    _due: tuple[list[int], list[int]] = ([], [])  # what `printed` returns next
    _waits = False  # the clock does, until lines are shown
    seconds = 0.0  # of virtual time when the last process had ended; known after `stop`

    @property
    def in_order(self) -> bool:
        """Return whether what processes print can repeat: their times are given."""
        return not self.world.virtual.plan.is_measured

    @property
    def stands(self) -> bool:
        """Return whether the clock stands until lines are shown."""
        return self._waits

    def start(self) -> None:
        """Start it.

        Raises:
            SwitchFailed: it does not start.
        """
        world = self.world
        settings = {
            "path": world.path,
            "topology": world.topology.to_toml(),
            "processes": self.processes_to_come,
            "computing": asdict(world.virtual.plan),
            "real_clock": world.virtual.real_clock,
            "grain": world.virtual.grain,
            "hosts": world.virtual.hosts,
            "switches": world.virtual.switches,
            "of": world.of,
            "capture": None if self.capture is None else str(self.capture),
        }
        command = ["-m", "topologies.virtual.coordinator", json.dumps(settings)]
        child = self.fleet.start("simulated network", command)
        self._names[child] = child.name
        self.restarts[child.name] = Restarts(0)
        self._up[child.name] = child
        self._await(child, "listening")
        self.listening = self._told["listening"]

    def hear(self, child: Child, line: str | None) -> None:
        """Handle a line of the process: who computes for long, or why the run cannot continue.

        Raises:
            SwitchFailed: it cannot continue, or the process has ended.
        """
        if line is None:
            raise SwitchFailed(self._ending(child), child.status())
        self._told |= json.loads(line)
        if (computes := self._told.pop("computes", None)) is not None:
            self.say(computes)
            self._due = list(range(self.processes_to_come)), []
        if (told := self._told.pop("tells", None)) is not None:
            self.say(told)
        if "printed" in self._told:
            self._due = self._told.pop("printed"), self._told.pop("left")
            self._waits = True
        if "stuck" in self._told:
            raise SwitchFailed(self._told["stuck"])
        self._check_written()

    def ended(self, number: int) -> None:
        """Tell the clock that a process has ended, perhaps before it came."""
        self._say("ended", number)

    def printed(self) -> tuple[list[int], list[int]]:
        """Return the numbers of processes whose turn it is, and of those that end."""
        due, self._due = self._due, ([], [])
        return due

    def shown(self, for_good: bool = False) -> None:
        """Let the clock move on; `for_good`: it waits no longer for lines to be shown."""
        if self._waits or (for_good and self.in_order):
            self._waits = False
            self._say("shown", for_good)

    def _say(self, word: str, about: int) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            try:
                sock.connect(self.world.path)
                say(sock, [word, about])
            except OSError:
                pass  # the coordinator has ended

    def stop(self) -> dict[str, dict[str, int]]:
        """End the process and return the counters of all switches, by name.

        Raises:
            SwitchFailed: it does not tell them.
        """
        for child in self._up.values():
            child.process.terminate()
            self._await(child, "counters")
        self.counters = self._told["counters"]
        self.seconds = self._told["seconds"]
        return self.counters

    def _check_written(self) -> None:
        if (said := self._told.get("unwritten")) is not None:
            self._incomplete = [said]
            raise SwitchFailed(said, OUTSIDE)

    def _await(self, child: Child, word: str) -> None:
        for _ in range(round(10 * STOP_TIMEOUT)):
            for speaker, line in self.fleet.listen(0.1):
                if speaker is child and line is None and word not in self._told:
                    raise SwitchFailed(self._ending(child), child.status())
                if speaker is child and line is not None:
                    self._told |= json.loads(line)
            self._check_written()
            if word in self._told:
                return
        raise SwitchFailed(f"the {child.name} said nothing within {STOP_TIMEOUT:.0f} s")


def make_switches(fleet: Fleet, world: World, *args: Any, **kwargs: Any) -> Switches:
    """Make the switches of a world, not yet started; the arguments are those of `Switches`."""
    made = Network if isinstance(world, Simulated) else Switches
    return made(fleet, world, *args, **kwargs)


def virtual_of(args: argparse.Namespace, ranks: int) -> Virtual | None:
    """Read the options of virtual time; None: the world is another one.

    Args:
        args: has the options.
        ranks: workers of a job.

    Raises:
        UsageError: an option has a wrong value, or is none of that world's.
    """
    given = {
        "--slow": None if args.chosen == "train" else args.slow or None,
        "--compute": args.compute,
        "--host-speed": args.host_speed,
        "--jitter": args.jitter,
        "--real-clock": args.real_clock or None,
    }
    nodes = nodes_of(args, args.world)
    if nodes is None:
        refuse(given)
        return None
    text = args.compute or "measured"
    with reading(text.partition(":")[2], lambda said: UsageError(f"--compute {text}: {said}")):
        try:
            plan = read_plan(text)
        except ComputingError as error:
            raise UsageError(f"--compute {error}") from None
    if args.host_speed is not None and not plan.is_measured:
        raise UsageError(f"--host-speed: {text} measures nothing; leave that out")
    plan = with_stragglers(replace(plan, speed=args.host_speed or 1.0), args, ranks)
    return Virtual(replace(plan, seed=getattr(args, "seed", 1)), args.real_clock, *nodes)


def with_stragglers(plan: Plan, args: argparse.Namespace, ranks: int) -> Plan:
    """Return a plan with what --slow and --jitter say of so many workers.

    Raises:
        UsageError: one of them has a wrong value.
    """
    kind, _, sigma = (args.jitter or "lognormal:0").partition(":")
    try:
        deviation = quantity(0.0)(sigma)
    except argparse.ArgumentTypeError:
        kind = ""
    if kind != "lognormal":
        raise UsageError(f"--jitter {args.jitter}: write lognormal:S, such as lognormal:0.2")
    return replace(plan, slow=stragglers(args.slow, ranks), sigma=deviation)


def check_command(command: Sequence[str]) -> None:
    """Refuse a launcher: the processes that it starts would run in real time.

    Raises:
        UsageError: the command is torchrun.
    """
    words = [Path(command[0]).name, *command[1:]]
    is_module = words[0].startswith("python") and ["-m", TORCHRUN] in map(list, pairwise(words))
    if words[0] == "torchrun" or is_module:
        raise UsageError(
            "--world sim: torchrun starts processes and sockets of its own, outside virtual time; "
            "give the script itself: iswitch run ... -- python ddp.py"
        )


def refuse(given: Mapping[str, object]) -> None:
    """Refuse options of virtual time that are given in another world."""
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"{option} is of virtual time; add --world sim")


def nodes_of(args: argparse.Namespace, world: str) -> tuple[Grain, Handling, Handling] | None:
    """Read --grain, --host-overhead, --switch-latency and --switch-rate.

    None: the world is another one.

    Raises:
        UsageError: an option has a wrong value, or is none of that world's.
    """
    if world != "sim":
        names = "grain", "host_overhead", "switch_latency", "switch_rate"
        refuse({f"--{name.replace('_', '-')}": getattr(args, name) for name in names})
        return None
    option = "--"
    try:
        grain = grain_of(args.grain or "auto")
        option = "--host-overhead: "
        hosts = host_handling(args.host_overhead) if args.host_overhead else Handling()
        option = "--switch-latency, --switch-rate: "
        return grain, hosts, switch_handling(args.switch_latency, args.switch_rate)
    except QuantityError as error:
        raise UsageError(f"{option}{error}") from None


def stragglers(texts: Sequence[str], ranks: int, least: float | None = None) -> dict[str, float]:
    """Read the texts of --slow: the factor of each rank.

    Args:
        texts: RANK=FACTOR each.
        ranks: workers of the job.
        least: the least factor; None: above 0.

    Raises:
        UsageError: a text is none, or there is no such rank.
    """
    slow = {}
    for text in texts:
        rank, given, factor = text.partition("=")
        try:
            number = whole(0, ranks - 1)(rank if given else "")
        except argparse.ArgumentTypeError:
            raise UsageError(
                f"--slow {text}: write RANK=FACTOR, with a RANK of 0..{ranks - 1}"
            ) from None
        try:
            slow[str(number)] = quantity(least)(factor)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"--slow {text}: {error}") from None
    return slow
