"""What `iswitch simulate` predicts: one network, one job, and the strategies to compare."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from iswitch.core.format.wire import IP_UDP_HEADERS, LEAST_SLOTS, DType, Shape
from iswitch.faults.impairment import READERS
from iswitch.faults.units import QuantityError, count
from iswitch.lab.bench.plan import ASYNC, SIZE, Size
from iswitch.lab.launch.simulated import with_stragglers
from iswitch.lab.launch.worlds import read_topology
from iswitch.lab.options import whole
from iswitch.outside import UsageError, reading
from iswitch.sim.handling import Handling
from iswitch.sim.model.fabric import Fabric
from iswitch.sim.published import host_handling, switch_handling
from iswitch.virtual.computing import FORMS, ComputingError, Plan, read_plan
from iswitch.workload.programs import AS_MADE, ELEMENT, Arrangement
from iswitch.workload.records import Workload, load
from topologies import Topology
from worker_lib.protocol.window import TOGETHER

from .shaping import MOST, accelerated, beside_others, naming, of_first_job, with_links

NO_TIME = Handling()
STRATEGIES = ("iswitch", "ring", "ps", "tree", ASYNC)
STALENESS = 3  # as of asynchronous workers, unless they say otherwise
DTYPES = {"float32": DType.FLOAT32, "float16": DType.FLOAT16}
GIVEN = "zero, fixed:3ms, or file:TIMES"  # of FORMS, what needs no program that runs
MOST_TREES = 64  # workers whose spanning trees are packed
DRAWN = 10  # iterations by default, where computing times differ
MOST_ITERATIONS = 100_000
MOST_LOSS = 0.05  # of packets; beyond, timers back off, which the model does not have


@dataclass(frozen=True)
class Scenario:
    """A job in a network.

    Attributes:
        topology: the network.
        fabric: what the workers use of it.
        size: the vector; of a workload, the longest.
        strategies: names, with options behind a colon.
        compute: how long workers compute before each allreduce.
        iterations: how many are predicted.
        hosts: the time that hosts take for each packet.
        latency: seconds for which switches delay each packet.
        room: bytes that all workers may have under way together.
        slots: as `iswitch switch --slots`.
        work: what the workers do; None: they compute, and have a vector of `size` summed.
        arrangement: of the workload's calls.
        threshold: contributions of a version of asynchronous workers; None: one of each.
        staleness: versions that such a contribution may be old.
        loss: part of the packets that each link loses, in each direction.
        world: "model", or "sim": played by real workers and switches in virtual time.
        dtype: of the elements; sizes count those of float32.
        shares: whether other jobs use some of the job's links; `fabric` has its part of them.
    """

    topology: Topology
    fabric: Fabric
    size: Size
    strategies: tuple[str, ...]
    compute: Plan = field(default_factory=lambda: Plan("zero"))
    iterations: int = 1
    hosts: Handling = NO_TIME
    latency: float = 0.0
    room: int = TOGETHER
    slots: int = 0
    work: Workload | None = None
    arrangement: Arrangement = AS_MADE
    loss: float = 0.0
    threshold: int | None = None
    staleness: int = STALENESS
    world: str = "model"
    dtype: DType = DType.FLOAT32
    shares: bool = False

    @property
    def workers(self) -> int:
        """Return the number of workers."""
        return len(self.fabric.hosts)

    @property
    def shape(self) -> Shape:
        """Return the layout of the vector in packets to a switch."""
        return self.shape_of(self.size.numel)

    def shape_of(self, numel: int) -> Shape:
        """Return the layout of elements, of as many bytes as `numel` float32, in packets."""
        count = numel * ELEMENT // self.dtype.itemsize
        return Shape.of(count, self.dtype, payload=self.fabric.mtu - IP_UDP_HEADERS)


def read(args: argparse.Namespace) -> Scenario:
    """Make the scenario of some options; those that are not given are None.

    Raises:
        UsageError: an option has a wrong value, or options contradict each other.
    """
    work, arrangement = _work(args)
    if args.topology is None:
        raise UsageError(
            "name a network with --topology, such as star:4, or some with --sweep topology=LIST"
        )
    topology = accelerated(args, _topology(args.topology))
    hosts = len(topology.hosts)
    workers = args.workers or (hosts if work is None else work.ranks)
    if workers > hosts and args.workers is None:
        raise UsageError(
            f"{args.workload} has {workers} ranks, {topology.name} {count(hosts, 'host')}; choose "
            f"a larger network, or leave the last ranks out with --workers {hosts}"
        )
    if workers > hosts:
        raise UsageError(
            f"--workers {workers}: {topology.name} has {hosts} hosts; write {hosts} or fewer, or "
            "choose a larger network"
        )
    fabric = with_links(args, topology.name, _fabric(topology, workers))
    fabric = beside_others(args, fabric)
    size, dtype = _size(args, work), _dtype(args)
    size = replace(size, numel=-(-size.numel * dtype.itemsize // ELEMENT))
    fabric, shares = _job(args, fabric)
    workers = len(fabric.hosts)
    with naming("host-overhead"):
        takes = host_handling(args.host_overhead) if args.host_overhead else Handling()
    with naming("switch-latency"):
        given = args.switch_latency
        latency = switch_handling(given).latency if given else 0.0
    room, slots = _windows(args)
    strategies = _strategies(args.strategy, workers)
    _check_async(args, strategies, fabric)
    compute = _compute(args, workers)
    loss = _loss(args, fabric, slots)
    if loss and "iswitch" not in strategies:
        raise UsageError("--loss is of iswitch's packets; add --strategy iswitch")
    drawn = bool(compute.sigma or loss) or compute.kind == "file"
    return Scenario(
        topology, fabric, size, strategies, compute,
        args.iterations or (DRAWN if drawn else 1), takes, latency, room,
        slots, work, arrangement, loss, args.threshold,
        STALENESS if args.staleness is None else args.staleness, args.world,
        dtype, shares,
    )  # fmt: skip


def _job(args: argparse.Namespace, fabric: Fabric) -> tuple[Fabric, bool]:
    """Return what the job uses of the network, and whether others use it, too."""
    if args.workload is not None or args.world == "sim":
        for name in ("jobs", "dtype"):
            if getattr(args, name) is not None:
                where = "--world sim" if args.workload is None else "a WORKLOAD"
                raise UsageError(f"--{name} does not go with {where}; leave one of them out")
    return of_first_job(fabric, args.jobs or 1)


def _dtype(args: argparse.Namespace) -> DType:
    found = DTYPES.get(args.dtype or "float32")
    if found is None:
        raise UsageError(f"--dtype {args.dtype}: choose of {', '.join(DTYPES)}")
    return found


def _work(args: argparse.Namespace) -> tuple[Workload | None, Arrangement]:
    """Read the workload, if one is named, and how its calls are carried."""
    arrangement = Arrangement.parse(args.schedule or AS_MADE.text)
    if args.workload is None:
        if args.schedule:
            raise UsageError("--schedule arranges the calls of a WORKLOAD; name one")
        return None, arrangement
    for name in ("size", "compute", "jitter", "slow", "iterations"):
        if getattr(args, name):
            raise UsageError(
                f"--{name}: {args.workload} says that already; leave it out, or change the records"
            )
    return _load(args.workload), arrangement


def _loss(args: argparse.Namespace, fabric: Fabric, slots: int) -> float:
    """Return the part of packets that links lose."""
    with naming("loss"):
        loss = float(READERS["loss"](args.loss)) if args.loss else 0.0
    if not 0 <= loss < MOST_LOSS:
        raise UsageError(f"--loss {args.loss}: write 0 up to {MOST_LOSS:.0%}, such as 0.1%")
    if loss and args.world == "model":
        if len(fabric.levels()) > 2:
            raise UsageError(
                "--loss: the model repairs losses at one switch; take a star, or --world sim"
            )
        if slots:
            raise UsageError("--loss: the model repairs no losses with --slots; take --world sim")
    return loss


def _windows(args: argparse.Namespace) -> tuple[int, int]:
    """Return what narrows windows: the room of all workers, in bytes, and the slots; 0: none."""
    if args.room and args.world == "sim":
        raise UsageError("--room: workers take 16 MiB in --world sim; leave it out")
    with naming("room"):
        room = int(SIZE.parse(args.room)) if args.room else TOGETHER
        if room < 1:
            raise QuantityError(f"{args.room!r} is no room; write a size such as 16MiB")
    slots = args.slots
    if slots is not None and (slots < LEAST_SLOTS or slots & (slots - 1)):
        raise UsageError(f"--slots {slots}: write a power of two of {LEAST_SLOTS} or more")
    return room, slots or 0


def _size(args: argparse.Namespace, work: Workload | None) -> Size:
    """Return the vector, or the longest of a workload."""
    if work is not None:
        longest = max(record.bytes for record in work.records)
        return Size(f"{work.name} of {count(work.ranks, 'rank')}", max(1, -(-longest // ELEMENT)))
    with naming("size"):
        return Size.parse(args.size or "dqn")


@lru_cache(4)
def _load(path: str) -> Workload:
    return load(path)


@lru_cache(4)
def _topology(text: str) -> Topology:
    topology = read_topology(text)
    faults = [link for link in topology.links if replace(link.impairment, delay=0.0)]
    if faults:
        raise UsageError(
            f"{text}: link {faults[0].a}-{faults[0].b} loses or changes packets; leave that out, "
            "and say --loss if all links lose some, or use --world sim of iswitch bench"
        )
    return topology


@lru_cache(4)
def _fabric(topology: Topology, workers: int) -> Fabric:
    return Fabric.of(topology, workers)


def _check_async(args: argparse.Namespace, names: tuple[str, ...], fabric: Fabric) -> None:
    """Refuse what asynchronous workers do not go with."""
    workers = len(fabric.hosts)
    if ASYNC not in names:
        for option in ("threshold", "staleness"):
            if getattr(args, option) is not None:
                raise UsageError(f"--{option} is of asynchronous workers; add --strategy async")
    elif args.workload is not None or args.world == "sim" or args.loss:
        other = "WORKLOAD" if args.workload is not None else "--world sim" if not args.loss else ""
        raise UsageError(f"--strategy async does not go with {other or '--loss'}; leave one out")
    elif len(fabric.levels()) > 2:
        raise UsageError("--strategy async is of one switch in the model; take a star")
    elif (args.threshold or 1) > workers:
        raise UsageError(f"--threshold {args.threshold}: there are {workers} workers; take fewer")


def _strategies(text: str, workers: int) -> tuple[str, ...]:
    names = tuple(word.strip() for word in text.split(",") if word.strip())
    if not names or len(set(names)) < len(names):
        raise UsageError(f"--strategy {text}: name some of {', '.join(STRATEGIES)}, each once")
    for name in names:
        kind, colon, _ = name.partition(":")
        if kind not in STRATEGIES or (colon and kind != "ps"):
            raise UsageError(
                f"--strategy {name}: choose of {', '.join(STRATEGIES)}; servers as in ps:servers=4"
            )
        if colon:
            servers_of(name, workers)
        if kind == "tree" and workers > MOST_TREES:
            raise UsageError(
                f"--strategy tree: trees are packed for {MOST_TREES} workers at most; leave it out"
            )
    return names


def servers_of(name: str, workers: int) -> int:
    """Return how many servers a strategy `ps` or `ps:servers=N` has.

    Raises:
        UsageError: there is no such number.
    """
    _, colon, rest = name.partition(":")
    option, _, number = rest.partition("=")
    try:
        if not colon:
            return 1
        return whole(1, workers)(number if option == "servers" else "")
    except argparse.ArgumentTypeError:
        raise UsageError(
            f"--strategy {name}: write ps:servers=N, with an N of 1..{workers}"
        ) from None


def _compute(args: argparse.Namespace, workers: int) -> Plan:
    text = "zero" if args.compute is None else args.compute
    with reading(text.partition(":")[2], lambda said: UsageError(f"--compute {text}: {said}")):
        try:
            plan = read_plan(text)
        except ComputingError as error:
            raise UsageError(f"--compute {str(error).replace(FORMS, GIVEN)}") from None
    if plan.is_measured:
        raise UsageError(f"--compute: nothing runs here; write {GIVEN}")
    slowed = with_stragglers(plan, args, workers)
    if args.compute is None and (args.jitter or args.slow):
        option = "jitter" if args.jitter else "slow"
        raise UsageError(
            f"--{option} needs --compute, such as fixed:3ms: without it workers compute in no time"
        )
    return replace(slowed, seed=args.seed or 0)


Reader = Callable[[str], Any]
# The options of a point, by the name of their values; how a sweep reads their text.
OPTIONS: Mapping[str, Reader] = {
    "topology": str,
    "workers": whole(1),
    "size": str,
    "strategy": str,
    "rate": str,
    "delay": str,
    "compute": str,
    "jitter": str,
    "seed": whole(),
    "iterations": whole(1, MOST_ITERATIONS),
    "host_overhead": str,
    "switch_latency": str,
    "room": str,
    "slots": whole(),
    "threshold": whole(1),
    "staleness": whole(),
    "loss": str,
    "background": str,
    "dtype": str,
    "accelerators": whole(1, MOST),
    "local_rate": str,
    "local_delay": str,
    "trunk_rate": str,
    "jobs": whole(1),
    "workload": str,
    "schedule": str,
    "world": str,
}
