"""The set-ups of the papers, worked out by the model and played in virtual time.

A task is a set-up in one of the two: what workers, links and nodes there are, and which strategies.
Its values are the same ones either way, by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from iswitch.core.format.wire import IP_UDP_HEADERS, SEG_SIZE, Shape
from iswitch.ethernet.frame import HEADERS
from iswitch.faults.units import RATE
from iswitch.lab.bench import paper, simulated
from iswitch.lab.bench.network import with_hosts
from iswitch.lab.bench.plan import ELEMENT, PAPER, Plan, Setting, Size, Way
from iswitch.lab.bench.result import Results
from iswitch.lab.launch.simulated import Virtual
from iswitch.sim.model import bounds, plans
from iswitch.sim.model.aggregation import GROWN, Window, aggregate
from iswitch.sim.model.fabric import Fabric, Floats
from iswitch.sim.model.messages import Exchange, Stream
from iswitch.sim.model.ring import go_round
from iswitch.sim.model.versions import play
from iswitch.sim.published import HOSTS, SWITCHES, host_handling, switch_handling
from iswitch.virtual.computing import Plan as Computing
from topologies import Topology
from topologies.virtual.notebook import Seat, simulate
from worker_lib import Worker

from .gpus import GPUS
from .published import ATP, ISWITCH, SWITCHML, Input

MODEL, SIM = "model", "sim"
MOST_FRAMES = 400_000  # of streams that the model works out one by one
VERSIONS = 40  # of asynchronous workers
STALENESS = 3  # versions that a contribution may be old, as by default
SEGMENTS = 1600  # of a vector that fills slots more than once
ROUNDS = 3  # in virtual time: from the second on, workers are in step
POOLS = {  # elements of a packet, and slots of which a worker fills as many at a time
    "10Gbit": (32, 128),
    "100Gbit": (256, 512),
}
BIG = PAPER["dqn"]  # long beside any way through the network
VGG = 138_357_544  # parameters
VGG_COMPUTE = 64 / 230  # seconds for a batch
SLOTS = 512  # of a job of ATP's
SCALE = 256  # of VGG's vector and computing in both worlds: ratios stay


class Nodes(NamedTuple):
    """What packets cost hosts and switches, by name, as --host-overhead has it."""

    host: str
    switch: str


KERNEL, DPDK, RDMA = Nodes("kernel-udp", "fpga"), Nodes("dpdk", "tofino"), Nodes("rdma", "tofino")


@dataclass(frozen=True)
class Setup:
    """Workers, links and nodes of a paper, and what is compared on them.

    Attributes:
        paper: the paper, a key of `published.TITLES`.
        network: form of the topology.
        rate: of all links.
        size: the vector.
        nodes: what packets cost hosts and switches.
        ways: the strategies.
        compute: seconds of computing before each allreduce.
        elements: of each packet; 0: as many as fit.
        slots: of the job at the switch; 0: whole vectors.
    """

    paper: str
    network: str
    rate: str
    size: Size
    nodes: Nodes
    ways: tuple[Way, ...]
    compute: float = 0.0
    elements: int = 0
    slots: int = 0

    @property
    def setting(self) -> Setting:
        """Return the network as a benchmark has it."""
        return Setting(self.network, self.rate)

    @property
    def name(self) -> str:
        """Name the set-up."""
        pool = f", {self.elements} elements a packet" if self.elements else ""
        pool += f", {self.slots} slots" if self.slots else ""
        return f"{self.network}, {self.rate}, {self.size.label}{pool}"


class Task(NamedTuple):
    """A set-up to work out, by the model or in virtual time."""

    setup: Setup
    world: str


class Times(NamedTuple):
    """Seconds of an iteration by strategy."""

    task: Task
    seconds: dict[str, float]


def setups(
    papers: Sequence[str], workers: Sequence[int], computing: Mapping[str, float], nodes: Nodes
) -> list[Setup]:
    """Return the set-ups of some papers.

    Args:
        papers: keys of `published.TITLES`.
        workers: how many iSwitch's comparisons have.
        computing: seconds of computing, by gradient.
        nodes: in place of each paper's own; "": its own.
    """
    found = []
    if ISWITCH in papers:
        ways = (*paper.SYNCHRONOUS, *paper.ASYNCHRONOUS)
        found += [
            Setup(ISWITCH, setting.form, "10Gbit", PAPER[name], KERNEL, ways, computing[name])
            for setting in paper.settings(workers, ["10Gbit"])
            for name in PAPER
        ]
    two = (paper.SWITCH, paper.RING)
    if SWITCHML in papers:
        for rate, (elements, pool) in POOLS.items():
            size = Size(f"{SEGMENTS} packets", SEGMENTS * elements)
            of_rate = DPDK if rate == "10Gbit" else RDMA
            found += [
                Setup(SWITCHML, f"star:{n}", rate, size, of_rate, two[:1], 0.0, elements, 2 * pool)
                for n in (8, 16)
            ]
        found.append(Setup(SWITCHML, "star:8", "100Gbit", BIG, RDMA, two))
    if ATP in papers:
        size, compute = Size(f"1/{SCALE} of VGG16", VGG // SCALE), VGG_COMPUTE / SCALE
        found += [
            Setup(ATP, f"star:{n}", rate, size, RDMA, two, compute, slots=SLOTS)
            for rate in POOLS
            for n in (8, 16)
        ]
    return [
        replace(one, nodes=Nodes(nodes.host or one.nodes.host, nodes.switch or one.nodes.switch))
        for one in found
    ]


def work_out(task: Task) -> Times:
    """Return the times of a task."""
    setup = task.setup
    if task.world == MODEL:
        return Times(task, modelled(setup))
    if not setup.slots:
        return Times(task, _played(setup, setup.ways))
    others = [way for way in setup.ways if way != paper.SWITCH]  # a benchmark has no slots
    seconds = {paper.SWITCH.label: setup.compute + _pool(setup)}
    return Times(task, {**seconds, **(_played(setup, others) if others else {})})


def modelled(setup: Setup) -> dict[str, float]:
    """Work out the strategies of a set-up that the model has."""
    hosts = host_handling(setup.nodes.host)
    latency = switch_handling(setup.nodes.switch).latency
    topology = Topology.parse(setup.setting.text)
    workers, numel = len(topology.hosts), setup.size.numel
    fabric = Fabric.of(topology)
    starts = np.full(workers, setup.compute)

    def iswitch() -> Floats:
        payload = fabric.mtu - IP_UDP_HEADERS
        if setup.elements:
            payload = SEG_SIZE + ELEMENT * setup.elements
        shape = Shape.of(numel, payload=payload)
        window = Window.of(shape, workers, GROWN, slots=setup.slots)
        return aggregate(fabric, shape, starts, window, hosts, latency)

    def ring() -> Floats:
        return go_round(fabric, plans.chunks(numel, workers), starts, hosts, latency)

    def server() -> Floats:
        apart = Fabric.of(with_hosts(topology, 1))
        streams: list[Stream] = plans.ps(numel, workers, 1, workers)
        begin = np.append(starts, 0.0)
        if bounds.of_streams(apart, streams).frames > MOST_FRAMES:
            found = bounds.pushed_and_answered(apart, streams, begin, hosts, latency)
        else:
            found = Exchange(apart, streams, hosts, latency).play(begin)
        return found[:workers]

    def versions() -> Floats:
        made = play(
            fabric, Shape.of(numel), [[setup.compute]] * workers, VERSIONS, workers, STALENESS,
            hosts, latency,
        )  # fmt: skip
        steady = made.came[VERSIONS // 4 :]  # before, workers are not yet spread over time
        apart: Floats = (steady[-1] - steady[0]) / (len(steady) - 1)
        return apart

    known: dict[str, Callable[[], Floats]] = {
        paper.SWITCH.label: iswitch, paper.RING.label: ring, paper.SERVER.label: server,
    }  # fmt: skip
    if len(fabric.levels()) == 2:
        known[paper.SWITCH_ASYNC.label] = versions
    names = [way.label for way in setup.ways if way.label in known]
    return {name: float(known[name]().max()) for name in names}


def _played(setup: Setup, ways: Sequence[Way]) -> dict[str, float]:
    """Play some strategies in virtual time, as `iswitch bench --world sim` does."""
    nodes = host_handling(setup.nodes.host), switch_handling(setup.nodes.switch)
    virtual = Virtual(Computing("zero"), hosts=nodes[0], switches=nodes[1])
    of_paper = setup.paper == ISWITCH
    plan = Plan(
        [setup.size], [setup.setting], ways, SIM, rounds=ROUNDS, least=ROUNDS,
        compute=setup.compute, free=paper.FREE if of_paper else 0,
        iterations=0 if of_paper else ROUNDS,
    )  # fmt: skip
    results = Results()
    simulated.measure(plan, setup.setting, virtual, results, lambda *_: None)
    (cell,) = results.cells()
    return {one.way.label: paper.median(one) for one in cell}


def _pool(setup: Setup) -> float:
    """Play rounds of a switch with slots in virtual time; return the seconds of the last."""
    numel = setup.size.numel
    mtu = f",mtu={IP_UDP_HEADERS + SEG_SIZE + ELEMENT * setup.elements}" * bool(setup.elements)

    def work(seat: Seat) -> float:
        vector = np.ones(numel, np.float32)
        took = 0.0
        with Worker(seat.switch, 1, numel, seat.num_workers) as worker:
            for _ in range(ROUNDS):
                before = time.monotonic()
                worker.allreduce(vector)
                took = time.monotonic() - before
        return took

    network, (host, switch) = f"{setup.setting.text}{mtu}", setup.nodes
    return max(simulate(network, work, slots=setup.slots, hosts=host, switches=switch))


def line_seconds(setup: Setup) -> float:
    """Return the seconds in which a link carries the vector's packets at its rate."""
    packets = -(-setup.size.numel // setup.elements)
    size = setup.size.bytes + packets * (SEG_SIZE + HEADERS)
    return size * 8 / float(RATE.parse(setup.rate))


def inputs(papers: Sequence[str], chosen: Sequence[Setup], computing: str) -> list[Input]:
    """Return what the values of some set-ups depend on."""
    found = []
    if ISWITCH in papers:
        found += [
            Input(ISWITCH, f"gradient of {name.upper()}", size.label, "paper", "its workloads")
            for name, size in PAPER.items()
        ]
        found.append(Input(ISWITCH, "links", "10 Gbit/s", "paper", "its testbed"))
        found.append(
            Input(ISWITCH, "server", "1, on a host of its own", "choice", "as bench has it")
        )
        for name, size in PAPER.items():
            gpu = GPUS[name]
            value = next(one.compute for one in chosen if one.size.label == size.label)
            kind, source = (
                (gpu.kind, gpu.source) if computing == "gpu"
                else ("measured", "iswitch train on one core of a small cloud machine")
                if computing == "core" else ("choice", "--compute")
            )  # fmt: skip
            found.append(
                Input(
                    ISWITCH, f"computing of {name.upper()}", f"{1e3 * value:.3g} ms", kind, source
                )
            )
    if SWITCHML in papers:
        found += [
            Input(SWITCHML, f"packet at {rate[:-4]} Gbit/s", f"{elements} elements", mark, source)
            for (rate, (elements, _)), (mark, source) in zip(
                POOLS.items(),
                [
                    ("memory", "180 bytes, of which 128 are elements"),
                    ("paper", "its P4 program (p4lang/p4app-switchML) has 64 or 256"),
                ],
                strict=True,
            )
        ]
        found += [
            Input(SWITCHML, f"slots at {rate[:-4]} Gbit/s", f"{pool}, and as many shadows",
                  "memory", "the paper chooses them by the delay of the network")
            for rate, (_, pool) in POOLS.items()
        ]  # fmt: skip
        found.append(Input(SWITCHML, "vector over NCCL", BIG.label, "choice", "long enough"))
    if ATP in papers:
        found += [
            Input(ATP, "vector", f"{VGG:,} elements", "derived", "VGG16 as torchvision has it"),
            Input(ATP, "computing", f"{1e3 * VGG_COMPUTE:.3g} ms", "estimate",
                  "a batch of 64 at 230 images a second on a V100 (float32)"),
            Input(ATP, "scale", f"1/{SCALE}", "choice", "of vector and computing: ratios stay"),
            Input(ATP, "slots of a job", f"{SLOTS}", "choice", "ATP lends its slots as jobs come"),
        ]  # fmt: skip
    rates: dict[tuple[str, Nodes], set[str]] = {}
    for one in chosen:
        rates.setdefault((one.paper, one.nodes), set()).add(f"{one.rate[:-4]} Gbit/s")
    for (name, nodes), some in rates.items():
        for what, given, known in (("host", nodes.host, HOSTS), ("switch", nodes.switch, SWITCHES)):
            kind, _, source = (
                known[given].source if given in known else "choice: an option"
            ).partition(": ")
            mark = {"published": "derived"}.get(kind, kind.partition(" ")[0])
            found.append(
                Input(name, f"{what} at {' and '.join(sorted(some))}", given, mark, source or kind)
            )
    return found
