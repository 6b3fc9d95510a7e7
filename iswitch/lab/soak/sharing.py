"""Histories in which jobs share a tree, and the memory of its switches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

from iswitch.core.format.wire import LEAST_SLOTS, MAX_MEMBERS
from iswitch.core.jobs.policies import POLICIES
from iswitch.core.jobs.shares import Pool
from iswitch.core.sums.numpy_plane import memory_needed
from iswitch.core.sums.resized import ResizedAccelerator
from iswitch.core.sums.turns import TurnAccelerator

from .drawing import STARS
from .scenario import ELASTIC, WHOLE, Job, Scenario

CALM = {"pause", "cut", "echo", "stutter", "stranger", "spoof", "garble", "forge"}


def with_company(scenario: Scenario) -> Scenario:
    """Give some of a tree's workers a job of their own, so that two or three jobs share the tree.

    Leave out scenarios in which workers come and go: leaders of one job may not lead another.
    """
    rng = Random(f"company {scenario.seed}")
    if scenario.topology in STARS or not _may_be_split(scenario) or rng.random() < 0.3:
        return scenario
    return split(scenario, rng, (WHOLE, ELASTIC))


def _may_be_split(scenario: Scenario) -> bool:
    """Return whether the workers of a history may have several jobs."""
    (job, *others), kinds = scenario.jobs, {event.what for event in scenario.events} - CALM
    unfit = others or job.asynchronous or job.collective or scenario.lease
    unfit = unfit or len(job.hosts) < 2 or {"restart", "halt"} <= kinds  # the plan `halted_again`
    return not unfit and kinds <= {"restart", "reset", "halt"}


def split(scenario: Scenario, rng: Random, modes: tuple[str, ...]) -> Scenario:
    """Give the workers of a history, two or more, two or three jobs."""
    (job,) = scenario.jobs
    hosts = list(job.hosts)
    rng.shuffle(hosts)
    cuts = sorted(rng.sample(range(1, len(hosts)), min(len(hosts) - 1, rng.randint(1, 2))))
    jobs = []
    for number, (start, stop) in enumerate(pairwise((0, *cuts, len(hosts))), 1):
        mine = tuple(sorted(hosts[start:stop]))
        mode = rng.choice(modes)
        keyed = rng.random() < 0.25 or (job.keyed and number == 1)  # strangers may forge in one
        numel = max(1, job.numel // number)
        jobs.append(replace(job, number=number, mode=mode, hosts=mine, numel=numel, keyed=keyed))
    return replace(scenario, jobs=tuple(jobs))


def with_slots(scenario: Scenario) -> Scenario:
    """Let whole jobs have fewer slots than segments, in some histories in which nobody sets H."""
    rng = Random(f"slots {scenario.seed}")
    unfit = scenario.policy or scenario.has("seth", "fbcast")
    unfit = unfit or any(job.threshold for job in scenario.jobs)
    if unfit or not any(_may_have_slots(job) for job in scenario.jobs) or rng.random() < 0.4:
        return scenario
    return _through_slots(scenario, rng)


def _through_slots(scenario: Scenario, rng: Random) -> Scenario:
    jobs = tuple(_longer(job, rng) if _may_have_slots(job) else job for job in scenario.jobs)
    most = max(job.shape().segments for job in jobs if _may_have_slots(job))
    return replace(scenario, jobs=jobs, slots=1 << rng.randint(1, (most - 1).bit_length() - 1))


def _may_have_slots(job: Job) -> bool:
    return job.mode == WHOLE and not job.collective


def _longer(job: Job, rng: Random) -> Job:
    """Give a job more segments than the fewest slots, if it has not."""
    if job.shape().segments > LEAST_SLOTS:
        return job
    segments = rng.randint(LEAST_SLOTS + 1, 4 * LEAST_SLOTS)
    return replace(job, numel=job.elements * segments - rng.randrange(job.elements))


POLICY = 0.35  # of the histories with jobs that can take turns


def with_policy(scenario: Scenario) -> Scenario:
    """Let whole jobs take turns, in some histories without slots in which nobody sets H."""
    rng = Random(f"policy {scenario.seed}")
    unfit = scenario.slots or scenario.has("seth", "fbcast")
    if unfit or any(job.threshold for job in scenario.jobs) or rng.random() > POLICY:
        return scenario
    if scenario.topology in STARS and _may_be_split(scenario) and rng.random() < 0.8:
        scenario = split(scenario, rng, (WHOLE,))
    return in_turns(scenario, rng)


def in_turns(scenario: Scenario, rng: Random) -> Scenario:
    """Let whole jobs take turns; the root has memory for one vector under way, or some more."""
    lends = [job for job in scenario.jobs if _may_have_slots(job) and not job.reproducible]
    if not lends:
        return scenario
    parts = [TurnAccelerator.ephemeral(job.shape()) for job in lends]
    memory = _least_of_turns(lends)
    for job in scenario.jobs:
        if job not in lends:
            first, each = (memory_needed(job.shape(), True, first) for first in (True, False))
            memory += first + each * MAX_MEMBERS
    most = sum(parts) - max(parts)
    memory += max(0, 2 * rng.randint(0, most) - most)  # in half of the histories, nothing more
    policy = rng.choice([name for name, kind in POLICIES.items() if kind.takes_turns])
    return replace(scenario, policy=policy, memory=memory)


def _least_of_turns(jobs: Sequence[Job]) -> int:
    """Return the bytes that jobs need together that lend each other the vector under way."""
    shapes = [job.shape() for job in jobs]
    persistent = sum(TurnAccelerator.persistent(shape) for shape in shapes)
    return persistent + max(TurnAccelerator.ephemeral(shape) for shape in shapes)


FALLBACK = 0.6  # of the histories in trees with jobs whose contributions can come in parts


def with_fallback(scenario: Scenario) -> Scenario:
    """Let the switches below the root have few slots, and pass on what finds none."""
    rng = Random(f"fallback {scenario.seed}")
    unfit = scenario.topology in STARS or scenario.has("seth", "fbcast")
    unfit = unfit or any(job.threshold for job in scenario.jobs)
    if unfit or rng.random() > FALLBACK:
        return scenario
    if _may_be_split(scenario) and rng.random() < 0.8:
        scenario = split(scenario, rng, (WHOLE,))
    return below_a_fallback(scenario, rng)


def below_a_fallback(scenario: Scenario, rng: Random) -> Scenario:
    """Let segments of whole jobs go on where the switches below the root have no slots for them."""
    fit = [_may_have_slots(job) and not job.reproducible for job in scenario.jobs]
    if not any(fit):
        return scenario
    policy = rng.choice([name for name, kind in POLICIES.items() if kind.passes_on])
    jobs = tuple(
        _longer(job, rng) if fits else job for job, fits in zip(scenario.jobs, fit, strict=True)
    )
    most = sum(job.shape().segments for job, fits in zip(jobs, fit, strict=True) if fits)
    slots = 1 << rng.randint(1, max(1, most.bit_length() - 1))
    return replace(scenario, jobs=jobs, policy=policy, slots=slots)


POOLED = 0.6  # of the histories with slots


def with_pool(scenario: Scenario) -> Scenario:
    """Let jobs share a pool of slots, in some histories with slots."""
    rng = Random(f"pool {scenario.seed}")
    if not scenario.slots or scenario.policy or rng.random() > POOLED:
        return scenario
    if scenario.topology in STARS and _may_be_split(scenario) and rng.random() < 0.8:
        scenario = split(scenario, rng, (WHOLE,))
        scenario = replace(scenario, jobs=tuple(_longer(job, rng) for job in scenario.jobs))
    return in_a_pool(scenario, rng)


def in_a_pool(scenario: Scenario, rng: Random) -> Scenario:
    """Let jobs share a pool; the root has memory for the fewest slots of all, or for some more."""
    if not scenario.slots:
        scenario = _through_slots(scenario, rng)
    least, most = pool_of(scenario)
    return replace(scenario, policy=Pool.name, memory=rng.randint(least, max(least, most)))


def pool_of(scenario: Scenario) -> tuple[int, int]:
    """Return the bytes for the fewest slots of all jobs, and those for as many as are of use."""
    least = most = 0
    for job in scenario.jobs:
        shape, slots = job.shape(), scenario.slots if _may_have_slots(job) else 0
        first, each = (memory_needed(shape, True, one, slots=slots) for one in (True, False))
        if slots and not job.reproducible and slots < shape.segments:
            least += max(ResizedAccelerator.memory(shape, slots), first)
            most += ResizedAccelerator.memory(shape, shape.segments)
        else:
            least += first + each * MAX_MEMBERS
            most += first + each * MAX_MEMBERS
    return least, most


def least_memory(scenario: Scenario, jobs: Sequence[Job]) -> int:
    """Return the bytes that these jobs need together, so that the others may wait meanwhile.

    If some job needs memory with each of its workers, no job waits: then what there is.
    """
    resizes = POLICIES[scenario.policy].resizes
    for job in scenario.jobs:
        short = not resizes or scenario.slots < job.shape().segments
        if not (_may_have_slots(job) and short) or job.reproducible:
            return scenario.memory
    if resizes:
        return pool_of(replace(scenario, jobs=tuple(jobs)))[0]
    return _least_of_turns(jobs)
