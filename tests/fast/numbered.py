"""Random histories of asynchronous jobs: numbered contributions, marks, and what is not plain."""

from __future__ import annotations

from dataclasses import replace

from iswitch.core.format.wire import (
    ROUND_MASK,
    TOS_CONTROL,
    Action,
    Join,
    MemberType,
    Mode,
    Segments,
    SwitchJoin,
    Threshold,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from iswitch.fast.answering import VALUE_AT

from .histories import FIRST_REQUEST, History, Plan
from .sharing import FAR
from .sides import Sent, Side

NUMBERS = 4096  # from the first number of a process to that of the next
FIRST = ROUND_MASK - 3  # of the first contribution: numbers wrap
FEW = 3  # segments
ANSWER = bytes([Action.ACK, Action.HELP])
LATE, SOON = 0.2, 0.35  # how often an answer of the switch above comes late, and then comes
MANY = 100  # requests, beyond those of Joins


class NumberedHistory(History):
    """A history of asynchronous jobs, beside which some are synchronous.

    Some members are switches, whose marks ask what was counted.
    """

    def __init__(self, seed: int, steps: int, alone: bool, below: bool) -> None:
        self.times: dict[int, int] = {}  # by worker: how often it was replaced
        self.incarnation: dict[int, int] = {}  # by worker: of the process that took its place
        self.asked: dict[int, Sent] = {}  # by worker: its last mark
        self.late: list[list[Sent]] = []  # answers to marks that have not come
        super().__init__(seed, steps, alone, below)
        self.switches = {who for who in range(self.stranger) if self.rng.random() < 0.2}
        self.request += MANY
        self.jobs = [self.versions(plan) for plan in self.jobs[:-1]] + [
            plan if self.rng.random() < 0.3 and len(self.jobs) > 1 else self.versions(plan)
            for plan in self.jobs[-1:]
        ]

    def draw_limits(self) -> Limits:
        """Let no partial sum go up by itself before the switch looks (`below.look`)."""
        return Limits(hold=FAR)

    def draw_keys(self, seed: int) -> dict[int, bytes]:
        """Every second job has a key."""
        return {plan.number: b"%d" % seed for plan in self.jobs if (seed + plan.number) % 2}

    def ticks(self) -> bool:
        """Let a switch below another one look about as often as a worker has sent a vector."""
        return self.above is not None and bool(self.rng.random() < 0.2)

    def answers(self, side: Side, results: list[list[bytes]]) -> list[list[Sent]]:
        """Let answers to marks come late, or twice."""
        found: list[list[Sent]] = []
        for batch in super().answers(side, results):
            first = batch[0]
            answer = first.tos == TOS_CONTROL and bytes(first.rows[0, [0, VALUE_AT]]) == ANSWER
            late, twice = (self.rng.random(2) < LATE).tolist() if answer else (False, False)
            self.late += [batch] * (late or twice)
            found += [batch] * (not late)
        while self.late and self.rng.random() < SOON:
            found.append(self.late.pop(int(self.rng.integers(len(self.late)))))
        return found

    def versions(self, plan: Plan) -> Plan:
        """Return a job like this that counts in versions."""
        shape = replace(plan.shape, mode=Mode.ASYNCHRONOUS)
        return replace(plan, shape=shape, partial=False, round={}, at={})

    def is_numbered(self, plan: Plan) -> bool:
        """Return whether a job counts in versions."""
        return plan.shape.mode is Mode.ASYNCHRONOUS

    def joins(self) -> list[Sent]:
        """Let all workers join."""
        batch = super().joins()
        for plan in self.jobs:
            if self.is_numbered(plan):
                plan.round.update(dict.fromkeys(plan.workers, FIRST))
        return batch

    def plain(self, plan: Plan, who: int, switch: Switch) -> list[Sent]:
        """A worker's next segments, and often a mark behind them."""
        job = switch.jobs.get(plan.number)
        if not self.is_numbered(plan) or job is None or job.shape is None:
            return super().plain(plan, who, switch)
        if plan.at[who] == plan.shape.segments:
            plan.round[who], plan.at[who] = (plan.round[who] + 1) & ROUND_MASK, 0
        more = 2.0 if self.above else 1.0  # histories below another switch are shorter
        if self.singly and self.rng.random() < 0.3 * more:
            return [self.mark(plan, who)]
        start = plan.at[who]
        most = int(self.rng.choice([1, 5, self.most] if self.singly else [1, 5, 44, 100]))
        stop = min(plan.shape.segments, start + int(self.rng.integers(1, most + 1)))
        plan.at[who] = stop
        sends = [self.data(plan, who, plan.round[who], start, stop)]
        often = 0.5 if stop == plan.shape.segments else 0.2
        if not self.singly and self.rng.random() < often * more:
            sends.append(self.mark(plan, who))
        return sends

    def mark(self, plan: Plan, who: int) -> Sent:
        """A mark of a worker, or of a switch."""
        value = Segments(int(self.rng.integers(1 << 20)), 0, 0)
        if who in self.switches:
            number = (plan.round[who] - int(self.rng.integers(3))) & ROUND_MASK
            value = Segments(number, int(self.rng.integers(plan.shape.segments + 2)), 0)
        self.asked[who] = self.control(who, Action.HELP, value, plan)
        return self.asked[who]

    def damaged(self, mark: Sent) -> Sent:
        """A mark with a wrong bit, in itself or in its MAC."""
        rows = mark.rows.copy()
        rows[0, int(self.rng.integers(mark.tail))] ^= 1 << int(self.rng.integers(8))
        return replace(mark, rows=rows)

    def odd(self, plan: Plan, who: int) -> Sent:
        """What is not plain: old numbers, questions, commands, and what any job has."""
        if not self.is_numbered(plan):
            return super().odd(plan, who)
        rng, shape = self.rng, plan.shape
        start = int(rng.integers(shape.segments))
        stop = min(shape.segments, start + int(rng.integers(1, self.most)))
        match int(rng.integers(10)):
            case 0:  # the same number again, or ahead of the order
                return self.data(plan, who, plan.round[who], start, stop)
            case 1:
                number = (plan.round[who] - int(rng.integers(1, 4))) & ROUND_MASK
                return self.data(plan, who, number, start, stop)
            case 2 if who in self.asked:  # its answer was lost
                return self.asked[who]
            case 9 if plan.number in self.keys:
                return self.damaged(self.mark(plan, who))
            case 3:
                value = Segments(int(rng.integers(12)), start, stop - start)
                return self.control(who, Action.HELP, value, plan)
            case 4:
                value = Segments(int(rng.integers(6)), 0, int(rng.integers(shape.segments + 2)))
                return self.control(who, Action.FBCAST, value, plan)
            case 5 if rng.random() < 0.5:
                h = int(rng.integers(0, len(plan.workers) + 1))
                return self.control(who, Action.SETH, Threshold(h), plan)
            case 6 if rng.random() < 0.3:
                return self.control(who, Action.RESET, None, plan)
            case 7 if rng.random() < 0.3:  # another process in its place
                return self.replaced(plan, who)
            case 8:  # a question for which there is no room, or of too many segments
                value = Segments(0, int(rng.integers(shape.segments + 2)), 0)
                return self.control(who, Action.HELP, value, plan)
            case _:
                return super().odd(plan, who)

    def replaced(self, plan: Plan, who: int) -> Sent:
        """Another process takes a worker's place; its numbers begin beyond those before."""
        self.times[who] = times = self.times.get(who, 0) + 1
        plan.round[who], plan.at[who] = (plan.round[who] + times * NUMBERS) & ROUND_MASK, 0
        self.request += 1
        self.incarnation[who] = self.request
        return self.join(plan, who)

    def join(self, plan: Plan, who: int) -> Sent:
        """Return the Join of a worker's present process, or of a switch's."""
        join = Join.for_shape(plan.shape, MemberType.WORKER, len(plan.workers), plan.flags)
        if who in self.switches and self.is_numbered(plan):
            ours = SwitchJoin.for_shape(plan.shape, MemberType.SWITCH, len(plan.workers))
            join = replace(ours, workers=1)
        request = self.incarnation.get(who, FIRST_REQUEST + who)
        return self.control(who, Action.JOIN, join, plan, request)


class SmallHistory(NumberedHistory):
    """A history of vectors of few segments: partial sums go up whole, and are soon asked about.

    Little of it is not plain.
    """

    def versions(self, plan: Plan) -> Plan:
        """Return a job like this that counts in versions, of few segments."""
        self.wild = 0.02
        found = super().versions(plan)
        few = min(plan.shape.segments, FEW)
        return replace(found, shape=replace(found.shape, segments=few))

    def ticks(self) -> bool:
        """Let the switch look often."""
        return self.above is not None and bool(self.rng.random() < 0.5)
