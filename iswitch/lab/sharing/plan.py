"""What `iswitch bench sharing` plays: jobs that share the memory of a network's root.

Three experiments: a long job with short ones arriving, and hundreds of trials of a hyper-parameter
search, as the Salus paper (arXiv 1902.04610) has them; and jobs across a fat tree whose root has
too little memory, as those of ATP (NSDI 2021) and ESA (arXiv 2201.06398).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from iswitch.core.format.wire import LEAST_SLOTS, Shape, Vector
from iswitch.core.jobs.fallback import BestEffort, Preempt
from iswitch.core.jobs.policies import POLICIES
from iswitch.core.jobs.policy import Static
from iswitch.core.jobs.schedulers import Fifo
from iswitch.core.sums.numpy_plane import memory_needed
from iswitch.core.sums.passing import PassingAccelerator
from iswitch.core.sums.pool import Pool
from iswitch.core.sums.turns import TurnAccelerator
from topologies import Topology

SEED = 22
RATE = 10_000_000_000  # bit/s of a host's link
DELAY = 1e-6  # seconds
JITTER = 0.1  # by which computing times vary, uniformly, to either side
ONE_AT_A_TIME = "one at a time"
SLOW = 20e-3  # seconds to compute where hosts share the cores of this machine


Kind = tuple[int, int, float, int]  # elements, rounds, seconds to compute, workers


@dataclass(frozen=True)
class Task:
    """A job: when it comes, and what it does.

    Attributes:
        number: its number.
        name: what it is called.
        hosts: the hosts of its workers.
        numel: float32 elements of its vectors.
        rounds: how many rounds it has.
        compute: mean seconds that a worker computes before each.
        comes: when it comes, in seconds.
    """

    number: int
    name: str
    hosts: tuple[str, ...]
    numel: int
    rounds: int
    compute: float
    comes: float = 0.0

    @property
    def shape(self) -> Shape:
        """Return the layout of its vectors."""
        return Shape.of(self.numel)

    @property
    def parts(self) -> tuple[int, int]:
        """Return the bytes that it needs always, and those that it needs while it has its turn."""
        return TurnAccelerator.persistent(self.shape), TurnAccelerator.ephemeral(self.shape)

    @property
    def kind(self) -> Kind:
        """Return what makes it alike to other jobs."""
        return self.numel, self.rounds, self.compute, len(self.hosts)

    @property
    def priority(self) -> int:
        """Return its priority for slots, 0 to 7: the less there is to sum, the higher."""
        return min(max(0, 9 - (self.numel * self.rounds >> 15).bit_length()), 7)

    def total(self, numbers: Vector) -> Vector:
        """Return the sum, if the worker of each rank adds its rank to these whole numbers."""
        workers = len(self.hosts)
        return workers * numbers + np.float32(workers * (workers - 1) // 2)

    def pauses(self, rank: int) -> NDArray[np.float64]:
        """Draw the seconds that a worker computes before each round, [rounds]."""
        chance = np.random.default_rng((SEED, self.number, rank))
        return self.compute * chance.uniform(1 - JITTER, 1 + JITTER, self.rounds)


@dataclass(frozen=True)
class Sharing:
    """A way to share memory.

    Attributes:
        label: what it is called.
        policy: as `iswitch switch --policy`.
        memory: bytes that the root has for jobs.
        slots: as `iswitch switch --slots`; where segments go on without one, any number.
    """

    label: str
    policy: str
    memory: int
    slots: int = 0

    @property
    def passes_on(self) -> bool:
        """Return whether segments without a slot go on to a fallback."""
        return POLICIES[self.policy].passes_on

    @property
    def has_priorities(self) -> bool:
        """Return whether jobs of a higher priority push out sums of others."""
        return self.policy == Preempt.name


@dataclass(frozen=True)
class Experiment:
    """Jobs, a network, and several ways to share its root's memory.

    Attributes:
        name: what `--experiments` calls it.
        title: what it shows.
        topology: the network.
        tasks: the jobs.
        memory: bytes that the root has for jobs.
        extra: ways to share besides the policies.
    """

    name: str
    title: str
    topology: Topology
    tasks: tuple[Task, ...]
    memory: int
    extra: tuple[Sharing, ...] = ()

    def ways(self, policies: Sequence[str]) -> list[Sharing]:
        """List the ways to share: those besides the policies, then each policy."""
        return [*self.extra, *(self.way(name) for name in policies)]

    def way(self, policy: str) -> Sharing:
        """Return the way to share memory by a policy; what tables leave of it is slots."""
        slots = 0
        if POLICIES[policy].passes_on:
            tables = sum(PassingAccelerator.memory(task.shape) for task in self.tasks)
            slots = (self.memory - tables) // Pool.memory(1)
        return Sharing(policy, policy, self.memory, slots)

    def network(self, sharing: Sharing) -> Topology:
        """Return the network in which this is played: with a fallback, if there has to be one."""
        if not sharing.passes_on:
            return self.topology
        root = self.topology.root.name
        rates = [link.rate for link in self.topology.links if root in (link.a, link.b)]
        delay = max(link.delay for link in self.topology.links)
        fastest = max((rate for rate in rates if rate is not None), default=None)
        return self.topology.with_fallback(fastest, delay)

    @property
    def rounds(self) -> int:
        """Return the number of rounds of all jobs."""
        return sum(task.rounds for task in self.tasks)

    @property
    def segments(self) -> int:
        """Return the number of sums that these rounds hold."""
        return sum(task.rounds * task.shape.segments for task in self.tasks)


def kinds(experiment: Experiment) -> list[Experiment]:
    """Return experiments of one job each, with all the memory it needs: one of each kind."""
    found: dict[Kind, Task] = {}
    for task in experiment.tasks:
        found.setdefault(task.kind, replace(task, comes=0.0))
    return [
        replace(experiment, tasks=(task,), memory=sum(task.parts), extra=())
        for task in found.values()
    ]


def lent(tasks: Sequence[Task]) -> int:
    """Return the bytes with which these jobs fit into one lane."""
    each = [task.parts for task in tasks]
    return sum(persistent for persistent, _ in each) + max(ephemeral for _, ephemeral in each)


def pair(job: int, small: bool) -> tuple[str, str]:
    """Name the hosts of a job of two workers.

    In virtual time all jobs can have the same ones, since each worker has a link of its own.
    """
    return (f"h{2 * job + 1}", f"h{2 * job + 2}") if small else ("h1", "h2")


def star(jobs: int, small: bool) -> Topology:
    """Make a switch with hosts for jobs of two workers."""
    if small:
        return Topology.parse(f"star:{2 * jobs}")
    plain = Topology.parse("star:2")
    return replace(plain, links=tuple(replace(x, rate=RATE, delay=DELAY) for x in plain.links))


LONG = 200_000  # elements of all vectors


def long(small: bool = False) -> Experiment:
    """Make a long job, and short ones that arrive; memory for three of them in one lane."""
    count, gap = (4, 0.2) if small else (7, 8e-3)
    first, rounds = (60, 10) if small else (100, 12)
    tasks = tuple(
        Task(
            i + 1, f"short {i}" if i else "long", pair(i, small), LONG, rounds if i else first,
            SLOW if small else 0.3e-3, gap * i,
        )
        for i in range(count)
    )  # fmt: skip
    title = "A long job, and short ones that arrive"
    return Experiment("long", title, star(count, small), tasks, lent(tasks[:3]))


SIZES = 10_247, 20_494, 40_988, 81_976  # elements: of one, two, four and eight times a width
HALVINGS = 5  # a trial has 4 rounds, or up to 2^HALVINGS times as many


def search(small: bool = False, jobs: int | None = None) -> Experiment:
    """Make the trials of a hyper-parameter search, which come at once.

    After 4 rounds half of them are stopped, after 4 more half of the others, after 8 more, and so
    on (successive halving). Memory for ten of the largest in one lane.
    """
    jobs = jobs or (6 if small else 300)
    chance = np.random.default_rng(SEED)
    sizes = chance.choice(SIZES, jobs)
    halvings = np.minimum(chance.geometric(0.5, jobs) - 1, HALVINGS)
    tasks = tuple(
        Task(
            i + 1, f"trial {i + 1}", pair(i, small), int(sizes[i]), 4 << int(halvings[i]),
            SLOW if small else 0.5e-3,
        )
        for i in range(jobs)
    )  # fmt: skip
    largest = max(tasks, key=lambda task: task.numel)
    alone = Sharing(ONE_AT_A_TIME, Fifo.name, sum(largest.parts))
    return Experiment(
        "search", f"{jobs} trials of a hyper-parameter search", star(jobs, small), tasks,
        lent([largest] * (2 if small else 10)), (alone,),
    )  # fmt: skip


FEW = 8  # slots that all jobs share
PART = 0.4  # of the memory that all jobs across the tree need
ACROSS = 10_247, 20_494  # elements of their vectors, in turns
UPHILL = 100_000_000, 100e-6  # bit/s and delay of their hosts' links, in seconds


def tree(small: bool = False) -> Experiment:
    """Make jobs of two sizes across a fat tree, with a worker of each in every rack."""
    racks, jobs = (2, 4) if small else (4, 8)
    tasks = tuple(
        Task(
            j + 1, f"job {j + 1}", tuple(f"h{jobs * rack + j + 1}" for rack in range(racks)),
            ACROSS[j % len(ACROSS)], 10, SLOW if small else 5e-3,
        )
        for j in range(jobs)
    )  # fmt: skip
    memory = int(PART * sum(sum(task.parts) for task in tasks))
    slots = slots_within(tasks, racks, memory)
    extra = [Sharing(f"static, {slots} slots", Static.name, memory, slots)]
    extra += [
        Sharing(f"{kind.name}, {FEW} slots", kind.name, memory, FEW)
        for kind in (BestEffort, Preempt)
    ]
    title = f"{jobs} jobs across a fat tree with too little memory"
    return Experiment("tree", title, fat(racks, jobs, small), tasks, memory, tuple(extra))


def slots_within(tasks: Sequence[Task], racks: int, memory: int) -> int:
    """Return the most slots with which all jobs have room at a root at once."""

    def need(task: Task, slots: int) -> int:
        return sum(memory_needed(task.shape, False, not i, slots=slots) for i in range(racks))

    slots = LEAST_SLOTS
    while sum(need(task, 2 * slots) for task in tasks) <= memory:
        slots *= 2
    return slots


def fat(racks: int, hosts: int, small: bool) -> Topology:
    """Make racks whose uplinks carry as much as the links of all their hosts together.

    The product of rate and delay is that of 10 Gbit/s and 1 us. But rounds take a hundred times as
    long, so that the 20 ms that a job needs to begin in a tree do not count for much.
    """
    plain = Topology.parse(f"rack:{racks}x{hosts}")
    if small:
        return plain
    own = {host.name for host in plain.hosts}
    rate, delay = UPHILL
    links = [
        replace(link, rate=rate if {link.a, link.b} & own else hosts * rate, delay=delay)
        for link in plain.links
    ]
    return replace(plain, links=tuple(links))


EXPERIMENTS: dict[str, Callable[[bool], Experiment]] = {
    "long": long,
    "search": search,
    "tree": tree,
}
