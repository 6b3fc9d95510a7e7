"""Random histories of jobs that share memory: slots, pools and lanes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from iswitch.core.format.wire import (
    FLAG_WHOLE,
    Ack,
    Action,
    Control,
    Segments,
    Shape,
    Status,
    slots_flags,
)
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.limits import Limits
from iswitch.core.jobs.member import Member
from iswitch.core.sums.resized import ResizedAccelerator
from iswitch.core.sums.runs import Held
from iswitch.core.sums.turns import TurnAccelerator
from iswitch.core.switch import Switch

from .histories import FIRST_REQUEST, History, Plan
from .sides import FRAME_PACKETS, RingSide, Sent, Side

LEAST = (4, 16, 32)  # slots of a job
FAR = 1e9  # seconds that never pass


class MixedSide(RingSide):
    """A switch with rings: every other process has some."""

    without = 2


class SharingHistory(History):
    """A history whose workers keep to windows, and answer what the switch asks of them."""

    slots: int
    late = False  # the last job comes in the middle

    def __init__(self, seed: int, steps: int, alone: bool, below: bool) -> None:
        self.step = 0
        self.window: dict[int, int] = {}  # by worker: slots of its round
        self.keeps: dict[int, int] = {}  # and those to which it has said that it keeps
        self.complete: dict[tuple[int, int], np.ndarray] = {}  # by job and round: its segments
        super().__init__(seed, steps, alone, below)

    def draw_limits(self) -> Limits | None:
        """Draw what the operator of the switch has set."""
        self.slots = int(self.rng.choice(LEAST))
        for plan in self.jobs:
            plan.flags = FLAG_WHOLE
            plan.partial &= bool(self.rng.random() < 0.3)
            if not plan.partial:
                plan.flags |= slots_flags(self.slots_of(plan))
        return self.limits_of([plan.shape for plan in self.jobs])

    def slots_of(self, plan: Plan) -> int:
        """Return the slots that a job's Joins name; 0: none."""
        return self.slots if self.slots < plan.shape.segments and not plan.partial else 0

    def limits_of(self, shapes: list[Shape]) -> Limits:  # noqa: ARG002
        """Return what the operator has set, for jobs of these shapes."""
        return Limits(slots=self.slots)

    def joins(self) -> list[Sent]:
        """Let all workers join that come at once."""
        for plan in self.jobs:
            for who in plan.workers:
                plan.round[who] = plan.at[who] = 0
                self.window[who] = self.keeps[who] = self.slots_of(plan) or plan.shape.segments
        come = self.jobs[:-1] if self.late and len(self.jobs) > 1 else self.jobs
        return [self.join(plan, who) for plan in come for who in plan.workers]

    # What workers send

    def note(self, switch: Switch) -> None:
        """See of which segments all have aggregates now."""
        for plan in self.jobs:
            job = switch.jobs.get(plan.number)
            if job is None or job.shape is None or job.accelerator is None:
                continue
            for round_ in {plan.round[who] for who in plan.workers}:
                for run, what, _ in job.held(round_, 0, plan.shape.segments):
                    if what is Held.COMPLETE:
                        self.known(plan, round_)[run.start : run.stop] = True

    def known(self, plan: Plan, round_: int) -> np.ndarray:
        """Return whether each segment of a round is known to be complete, (segments,)."""
        return self.complete.setdefault((plan.number, round_), np.zeros(plan.shape.segments, bool))

    def done(self, plan: Plan, who: int) -> int:
        """Return how many segments, from the first on, a worker has the aggregates of."""
        known = self.known(plan, plan.round[who])
        return len(known) if known.all() else int(known.argmin())

    def batch(self, switch: Switch) -> list[Sent]:
        """Draw what is sent at once."""
        self.step += 1
        return super().batch(switch)

    def plain(self, plan: Plan, who: int, switch: Switch) -> list[Sent]:
        """A worker's next segments, as far as its window allows."""
        job = switch.jobs.get(plan.number)
        if job is None or job.shape is None or plan.partial:
            return super().plain(plan, who, switch)
        sends: list[Sent] = []
        done = self.done(plan, who)
        if plan.at[who] == plan.shape.segments:
            if done < plan.shape.segments:
                plan.at[who] = done if self.rng.random() < 0.2 else plan.at[who]
            else:
                sends = self.begin(plan, who, job)
                done = self.done(plan, who)
        before, stop = plan.at[who], self.limit(plan, who, done)
        if before >= stop:
            return sends
        found = super().plain(plan, who, switch)
        plan.at[who] = min(plan.at[who], stop)
        tail = plan.shape.tail(plan.at[who])
        return sends + [replace(one, rows=one.rows[: stop - before], tail=tail) for one in found]

    def limit(self, plan: Plan, who: int, done: int) -> int:
        """Return the first segment that a worker may not send."""
        slots = self.window[who]
        return min(
            plan.shape.segments, done + (slots // 2 if slots < plan.shape.segments else slots)
        )

    def begin(self, plan: Plan, who: int, job: Job) -> list[Sent]:
        """Begin a worker's next round; return what it asks."""
        plan.round[who], plan.at[who] = plan.round[who] + 1, 0
        lowest = job.window.lowest
        if lowest is not None and plan.round[who] < lowest:
            plan.round[who] = lowest
        return []

    def odd(self, plan: Plan, who: int) -> Sent:
        """What is not plain; but none of it changes what else the same burst does.

        What takes slots of others, which these lack for ever as nobody asks for Help, is rare.
        """
        if not self.singly or (self.slots_of(plan) and self.rng.random() < 0.8):
            return self.join(plan, who) if self.rng.random() < 0.2 else self.again(plan, who)
        return super().odd(plan, who)

    def again(self, plan: Plan, who: int) -> Sent:
        """Return segments that a worker has sent."""
        stop = max(1, plan.at[who])
        start = int(self.rng.integers(max(0, stop - 2), stop))
        return self.data(plan, who, plan.round[who], start, stop)

    # What they answer

    def answers(self, side: Side, results: list[list[bytes]]) -> list[list[Sent]]:
        """Let the workers answer what the switch has relayed to them."""
        found = super().answers(side, results)
        for plan, who, member in self.members(side.switch):
            asked = side.switch.control.relays._unanswered.get(member.address)
            if asked is None or found:
                continue
            packet = asked.packets()[0]
            ack = Control(Action.ACK, packet.job, packet.request, Ack(packet.action), Status.OK)
            found = [[self.sent(who, ack)]]
            if isinstance(packet.value, Segments):
                found += [[sent] for sent in self.helped(plan, who, packet.value)]
        return found

    def members(self, switch: Switch) -> Iterator[tuple[Plan, int, Member]]:
        """Yield the workers that are members of their jobs."""
        for plan in self.jobs:
            job = switch.jobs.get(plan.number)
            for member in job.contributors() if job is not None else ():
                yield plan, member.incarnation - FIRST_REQUEST, member

    def helped(self, plan: Plan, who: int, named: Segments) -> list[Sent]:
        """Return what a worker sends for a Help."""
        if named.count and named.round == plan.round[who]:
            plan.at[who] = min(plan.at[who], named.index)
        return []


class PoolHistory(SharingHistory):
    """Jobs of a pool, the last of which comes in the middle."""

    late = True

    def __init__(self, seed: int, steps: int, alone: bool, below: bool) -> None:
        self.told: dict[int, tuple[int, int]] = {}  # by worker: slots, and the newest round then
        self.asked_in: dict[int, int] = {}  # by worker: the step in which it was asked last
        super().__init__(seed, steps, alone, below)

    def limits_of(self, shapes: list[Shape]) -> Limits:
        """Return what the operator has set: memory for some slots more than the fewest."""
        most = [ResizedAccelerator.memory(shape, shape.segments) for shape in shapes]
        memory = sum(most) + (1 << 20) if self.rng.random() < 0.3 else max(most) + (1 << 16)
        return Limits(slots=self.slots, policy="pool", memory=memory)

    def batch(self, switch: Switch) -> list[Sent]:
        """Draw what is sent at once; in the middle, let the last job come."""
        sends = super().batch(switch)
        plan = self.jobs[-1]
        there = [who for _, who, _ in self.members(switch)]
        missing = [who for who in plan.workers if who not in there]
        if self.step > self.steps // 3 and missing and self.rng.random() < 0.5:
            return [self.join(plan, missing[0])]
        return sends

    def note(self, switch: Switch) -> None:
        """See what workers have, and what the switch has told them."""
        super().note(switch)
        for plan, who, member in self.members(switch):
            if member.bound is not None:
                self.told[who] = member.bound.told, switch.jobs[plan.number].high

    def begin(self, plan: Plan, who: int, job: Job) -> list[Sent]:
        """Begin a worker's next round, with as many slots as it knows of."""
        super().begin(plan, who, job)
        told, high = self.told.get(who, (self.window[who], 0))
        if told <= self.window[who] or plan.round[who] > high:
            self.window[who] = told
        if self.window[who] >= self.keeps[who]:
            self.keeps[who] = self.window[who]
            return []
        self.keeps[who] = self.window[who]
        return [self.ask(plan, who)]

    def ask(self, plan: Plan, who: int) -> Sent:
        """Ask how many slots there are, and name those that a worker keeps to."""
        value = Segments(plan.round[who], min(self.keeps[who], plan.shape.segments), 0)
        return self.control(who, Action.HELP, value, plan)

    def helped(self, plan: Plan, who: int, named: Segments) -> list[Sent]:
        """Return what a worker sends for a Help."""
        if named.count or self.asked_in.get(who) == self.step:
            return super().helped(plan, who, named)
        self.asked_in[who] = self.step  # a worker does not ask again at once
        return [self.ask(plan, who)]


class LanesHistory(SharingHistory):
    """Jobs that take turns.

    With a kernel there are other bursts, between which a job may get its turn. So each batch is one
    datagram, which fits into one frame.
    """

    most = FRAME_PACKETS

    def __init__(self, seed: int, steps: int, alone: bool, below: bool) -> None:
        super().__init__(seed, steps, alone, below)
        self.singly = self.offload = True

    def slots_of(self, plan: Plan) -> int:  # noqa: ARG002
        """Return no slots: each segment has one."""
        return 0

    def limits_of(self, shapes: list[Shape]) -> Limits:
        """Return what the operator has set: memory for one lane, or for more."""
        kept = sum(TurnAccelerator.persistent(shape) for shape in shapes)
        flying = [TurnAccelerator.ephemeral(shape) for shape in shapes]
        memory = kept + (sum(flying) if self.rng.random() < 0.3 else max(flying)) + (1 << 16)
        return Limits(policy="lanes:fifo", memory=memory)
