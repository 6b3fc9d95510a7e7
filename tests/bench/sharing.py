"""What jobs that share a switch's memory are promised: `python -m tests.bench.sharing [WHAT ...]`.

WHAT is of `fair`, `pack`, `waiting`, `reasons` (docs/bench-sharing.md); all by default. All times
are virtual: the same on every machine. Each play also checks every sum, and that no more memory is
reserved than there is. On a quiet core `fair` takes 10 seconds, `reasons` two minutes, and the
others some minutes; `--experiments long,tree` leaves out the longest of these.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from iswitch.core.format.packets import Address
from iswitch.core.jobs.policies import POLICIES
from iswitch.core.sums.passing import PassingAccelerator
from iswitch.core.sums.pool import FREE, SPENT
from iswitch.lab.sharing import plan, simulated
from iswitch.lab.sharing.plan import EXPERIMENTS, Experiment, Sharing, Task, lent, star
from iswitch.lab.sharing.played import Played
from iswitch.sim.grain import SINGLE
from iswitch.sim.link import VirtualLink
from iswitch.sim.network import VirtualNetwork
from iswitch.sim.runs import Run
from topologies import Topology
from topologies.description import FALLBACK

# Two jobs in turns: elements of the vectors, and seconds to compute, of either.
PAIRS = [
    ((200_000, 200_000), (0.1e-3, 0.1e-3)),
    ((200_000, 50_000), (0.1e-3, 0.02e-3)),
    ((200_000, 800_000), (0.1e-3, 0.1e-3)),
    ((200_000, 200_000), (0.1e-3, 0.4e-3)),
    ((400_000, 100_000), (0.4e-3, 0.02e-3)),
]


def play(experiment: Experiment, sharing: Sharing) -> Played:
    """Play without a progress bar."""
    return simulated.play(experiment, sharing, lambda _: None)


def fair() -> Iterator[str]:
    """Measure the shares of the time in which either of two jobs has the lane."""
    yield "FAIR: two jobs in one lane, shares of the time in which one has it, while both are there"
    for sizes, computes in PAIRS:
        tasks = tuple(
            Task(i + 1, f"job {i + 1}", ("h1", "h2"), sizes[i], 400, computes[i]) for i in (0, 1)
        )
        experiment = Experiment("fair", "two jobs", star(2, False), tasks, lent(tasks))
        record = play(experiment, experiment.way("lanes:fair")).record
        assert record is not None
        last = {job: max(end for j, _, end in record.turns if j == job) for job in (1, 2)}
        first = {job: min(begin for j, begin, _ in record.turns if j == job) for job in (1, 2)}
        a, b = max(first.values()), min(last.values())
        had = [
            sum(end - begin for j, begin, end in record.turns if j == job and a <= begin < b)
            for job in (1, 2)
        ]
        share = had[0] / sum(had)
        yield (
            f"  {4 * sizes[0] / 1e3:5.0f} and {4 * sizes[1] / 1e3:5.0f} kB, computing "
            f"{1e3 * computes[0]:.2f} and {1e3 * computes[1]:.2f} ms: {100 * share:.1f} and "
            f"{100 - 100 * share:.1f} % ({200 * abs(share - 0.5):.1f} % from equal), the lane busy "
            f"for {100 * sum(had) / (b - a):.0f} % of the time"
        )


def pack(names: list[str]) -> Iterator[str]:
    """Compare the makespan of lanes:pack with that of static partitions."""
    yield "PACK: makespan beside static partitions, ms"
    for name in names:
        experiment = EXPERIMENTS[name](False)
        partitions = [experiment.way("static"), *experiment.extra]
        partitions = [one for one in partitions if one.policy == "static"]
        for one in partitions:
            ours = replace(
                one, label=f"lanes:pack{one.label[len('static') :]}", policy="lanes:pack"
            )
            static, packed = play(experiment, one).makespan, play(experiment, ours).makespan
            yield (
                f"  {experiment.name}: {one.label} {1e3 * static:.1f}, {ours.label} "
                f"{1e3 * packed:.1f}: {packed / static:.4f}"
            )


def waiting(names: list[str]) -> Iterator[str]:
    """Measure how long a place is free before the job that waits for it begins to compute."""
    yield "WAITING: from a place's becoming free until its job begins, in its own rounds"
    for name in names:
        for policy in POLICIES:
            if policy == "static" or POLICIES[policy].passes_on:
                continue  # nobody waits in a queue
            experiment = EXPERIMENTS[name](False)
            played = play(experiment, experiment.way(policy))
            assert played.record is not None
            delays = []
            for task in experiment.tasks:
                ran = played.jobs[task.number]
                free = played.record.freed[task.number]
                if free <= ran.comes + 1e-9 or played.let_in(task.number) - ran.comes < 1e-4:
                    continue  # it has not waited
                computes = [task.pauses(rank)[0] for rank in range(len(task.hosts))]
                begins = ran.rounds[0][0] - min(computes)
                each = np.diff([begin for begin, _ in ran.rounds]).mean()
                delays.append((begins - free) / each)
            if not delays:
                continue
            half, most = np.percentile(delays, [50, 100])
            yield (
                f"  {name}, {policy}: {len(delays)} jobs waited; median {half:.3f}, most "
                f"{most:.3f} rounds"
            )


class Hashed(PassingAccelerator):
    """Takes for a segment only the slot that its number chooses, as ATP and ESA do.

    Attributes:
        leaves: whether a slot may go once its sum has gone up (ESA), before the aggregate comes.
    """

    leaves = True

    def _clear(self, _) -> None:  # type: ignore[no-untyped-def]
        """Leave that to `_take`."""

    def _accumulate_run(self, seat, round_, start, stop, rows, outcome) -> None:  # type: ignore[no-untyped-def]
        for i in range(start, stop):
            packet = rows[i - start : i - start + 1]
            super()._accumulate_run(seat, round_, i, i + 1, packet, outcome)

    def _take(self, run):  # type: ignore[no-untyped-def]
        pool = self.pool
        slot = hash((self.job, run.start)) % pool.slots
        has = int(pool._priorities[slot])
        if has != FREE:
            if not (self.leaves if has == SPENT else pool._outranks(self.priority, has)):
                return np.zeros(0, np.int64)
            pool._owners[int(pool._jobs[slot])].push_out(np.array([slot]))
        free = pool._free[: pool.free]
        at = np.flatnonzero(free == slot)
        free[at], free[-1] = free[-1], slot
        return pool.take(self, 1)


def apart(network: VirtualNetwork, link: VirtualLink, peer: Address, run: Run) -> None:
    """Give each job a link of its own to the fallback, together as fast as the one."""
    ends = next(ends for ends, one in network.links.items() if one is link)
    if FALLBACK in {network.nodes[end].name for end in ends}:
        jobs = network.__dict__.setdefault("of_jobs", {})
        if (peer, run.burst.peer) not in jobs:
            assert link.impairment.rate is not None
            own = replace(link.impairment, rate=link.impairment.rate // JOBS)
            jobs[peer, run.burst.peer] = VirtualLink(own, (0, len(jobs)), link.latency)
        link = jobs[peer, run.burst.peer]
    for arrival in link.send(*run):
        network.at(arrival.due, partial(network._arrive, link, peer, arrival))


JOBS = 8  # of `tree`


class Reason(NamedTuple):
    """What may make preempting worth more or less: a change of `tree`.

    Attributes:
        what: the change.
        slots: that all jobs share.
        hashed: a segment's number chooses its slot.
        sizes: elements of vectors, in turns.
        jitter: by which computing times vary.
        link: how much faster than a rack's the link to the fallback is.
        rounds: of the jobs, in turns.
        leaves: with `hashed`, the policies under which a slot may go once its sum has gone up.
        apart: each job has a link of its own to the fallback.
    """

    what: str
    slots: int = 32
    hashed: bool = True
    sizes: tuple[int, ...] = plan.ACROSS
    jitter: float = plan.JITTER
    link: int = 1
    rounds: tuple[int, ...] = (10,)
    leaves: tuple[str, ...] = ("preempt",)
    apart: bool = False

    def accelerator(self, policy: str) -> type[PassingAccelerator]:
        """Return what adds under a policy."""
        base = Hashed if self.hashed else PassingAccelerator
        return type("Chosen", (base,), {"leaves": policy in self.leaves})


BOTH = "besteffort", "preempt"
REASONS = [
    Reason("any free slot serves", 8, False),
    Reason("any free slot serves", 32, False),
    Reason("the link to the fallback is 8 times as fast", 8, False, link=8),
    Reason("vectors of 20 and 164 kB, not 41 and 82", 8, False, sizes=(5_120, 40_988)),
    Reason("hash; ATP keeps a slot until the aggregate comes", 16),
    Reason("hash; ATP keeps a slot until the aggregate comes", 32),
    Reason("hash; ATP keeps a slot until the aggregate comes", 64),
    Reason("the same, but ATP does not", leaves=BOTH),
    Reason("the same, computing varies by 100 %, not 10", jitter=1.0),
    Reason("the same, vectors of 20 and 164 kB", sizes=(5_120, 40_988)),
    Reason("the same, a link to the fallback for each job", apart=True),
    Reason("the same, jobs of 4, 8, 16 and 32 rounds", rounds=(4, 8, 16, 32)),
]


@dataclass(frozen=True)
class Linked(Experiment):
    """An experiment whose link to the fallback is faster than others."""

    faster: int = 1

    def network(self, sharing: Sharing) -> Topology:
        """Return the network with the fallback."""
        links = super().network(sharing).links
        top = links[-1]
        assert top.rate is not None
        faster = replace(top, rate=self.faster * top.rate)
        return replace(super().network(sharing), links=(*links[:-1], faster))


def reasons() -> Iterator[str]:
    """Measure what preempting is worth over best effort, as its set-up is changed."""
    yield "REASONS: mean completion of `tree` with besteffort and preempt, ms"
    plane = "iswitch.core.sums.numpy_plane.PassingAccelerator"
    for reason in REASONS:
        with (
            patch.object(plan, "ACROSS", reason.sizes),
            patch.object(plan, "JITTER", reason.jitter),
        ):
            tree = plan.tree()
            turns = zip(tree.tasks, cycle(reason.rounds), strict=False)
            tasks = tuple(replace(task, rounds=rounds) for task, rounds in turns)
            experiment = Linked(**{**vars(tree), "tasks": tasks}, faster=reason.link)
            kept = []
            for name in BOTH:
                kind = reason.accelerator(name)
                with patch(plane, kind), ExitStack() as stack:
                    if reason.apart:
                        stack.enter_context(patch.object(VirtualNetwork, "_put_on", apart))
                        stack.enter_context(patch.object(simulated, "AUTO", SINGLE))
                    kept.append(play(experiment, Sharing(name, name, tree.memory, reason.slots)))
        best, preempt = (1e3 * one.completions.mean() for one in kept)
        shares = " and ".join(f"{100 * one.share:.0f} %" for one in kept)
        yield (
            f"  {reason.what}, {reason.slots} slots: {best:.1f} and {preempt:.1f}: "
            f"{best / preempt:.3f}; added in the switch {shares}"
        )


WHAT: dict[str, Callable[..., Iterator[str]]] = {
    "fair": fair,
    "pack": pack,
    "waiting": waiting,
    "reasons": reasons,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help=f"of {', '.join(WHAT)}; all by default")
    parser.add_argument("--experiments", default=",".join(EXPERIMENTS), help="those to play")
    args = parser.parse_args()
    for name in args.what or WHAT:
        for line in WHAT[name](*[args.experiments.split(",")] * (name in ("pack", "waiting"))):
            print(line, flush=True)


if __name__ == "__main__":
    main()
