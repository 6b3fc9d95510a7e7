"""Random histories, played to a switch in Python and to one with a kernel: all must be equal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from iswitch.core.format.keys import Key
from iswitch.core.format.wire import (
    FLAG_PARTIAL,
    TOS_CONTROL,
    TOS_DATA,
    Action,
    Control,
    DType,
    Join,
    MemberType,
    Op,
    Shape,
    Threshold,
    Value,
)
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.asynchronous import AsynchronousAccelerator
from iswitch.core.sums.by_round import ByRound
from iswitch.core.sums.numbered import NumberedAccelerator
from iswitch.core.sums.owned import OwnedAccelerator
from iswitch.core.sums.partial import PartialAccelerator
from iswitch.core.sums.slotted import Positions, SlottedAccelerator
from iswitch.core.sums.synchronous import SynchronousAccelerator
from iswitch.core.switch import Switch

from .below import Above, FrameBelow, UdpBelow
from .sides import FrameSide, Sent, Side, UdpSide

FIRST_REQUEST = 1000
MOST = 40  # packets in one super-datagram
ANSWERS = ("tx_packets", "tx_bytes", "tx_frames", "retransmitted")
KINDS = (
    (DType.FLOAT32, Op.SUM),
    (DType.FLOAT32, Op.SUM),
    (DType.FLOAT64, Op.SUM),
    (DType.INT32, Op.SUM),
    (DType.INT64, Op.MIN),
    (DType.UINT8, Op.SUM),
    (DType.FLOAT32, Op.MAX),
    (DType.FLOAT16, Op.SUM),
    (DType.BFLOAT16, Op.PROD),
    (DType.BOOL, Op.LAND),
    (DType.FLOAT32_INT32, Op.MAXLOC),
)


@dataclass
class Plan:
    """A job of a history, and where each of its workers stands."""

    number: int
    shape: Shape
    workers: Sequence[int]
    partial: bool
    flags: int = 0  # of its Joins
    round: dict[int, int] = field(default_factory=dict)  # by worker
    at: dict[int, int] = field(default_factory=dict)  # by worker: the next segment


def state_of(switch: Switch, answers: bool) -> list[object]:
    """All of a switch's state that data can change; `answers`: also how often it was repeated."""
    counters = switch.counters.items()
    found: list[object] = [{name: n for name, n in counters if answers or name not in ANSWERS}]
    for number, job in sorted(switch.jobs.items()):
        window, begun = job.window, job.rounds.completed_any
        if begun and not job.synchronous:  # its base is not used; Python lowers it for late answers
            window = replace(window, base=0)
        found.append((number, job.phase, window, begun, job.rounds.told))
        found.append(sum(job.rounds.pace.counts))
        for m in job.contributors():
            found.append((m.seat, m.contributed, m.first_round, m.met, m.has_spoken, m.named))
            found.append((m.answers.last, list(m.answers._payloads.items())))
            found.append(
                (m.standing, m.tally.packets, m.tally.nbytes, m.tally.rounds, m.tally.last)
            )
        found += sums_of(job)
    return found


def sums_of(job: Job) -> list[object]:
    """The states of all segments, and the elements of those that have begun."""
    match job.accelerator:
        case OwnedAccelerator() as sums:
            parts = [part for slot in range(len(sums.state)) for part in set_of(job, sums, slot)]
            return [*parts, *counted_by(sums)]
        case SynchronousAccelerator() as sums:
            return [part for slot in range(len(sums.state)) for part in set_of(job, sums, slot)]
        case SlottedAccelerator(positions=sums):
            return [part for slot in range(len(sums.state)) for part in set_of(job, sums, slot)]
        case AsynchronousAccelerator() as sums:
            return versions_of(job, sums)
        case PartialAccelerator() as sums:
            return partial_sums_of(job, sums)
        case ByRound() as apart:
            found: list[object] = []
            for round_, one in apart._rounds():
                sums = one if isinstance(one, SynchronousAccelerator) else one.positions
                found += [round_, sums.shape.segments, *set_of(job, sums, 0)]
            return found
    return []


def counted_by(sums: OwnedAccelerator) -> list[object]:
    """What the closing segments count that are here."""
    bits = [int(table.words[sums.division.closing, 1]) for table in sums.state]
    return [
        int(sums.counted[slot, seat])
        for slot, bitmap in enumerate(bits)
        for seat in range(bitmap.bit_length())
        if bitmap >> seat & 1
    ]


def versions_of(job: Job, sums: AsynchronousAccelerator) -> list[object]:
    """The states of all segments, what was counted of whom, and the elements of what is kept."""
    found = numbered_of(sums)
    for index in range(sums.shape.segments):
        _, slot, count, kept = sums.state.get(index)
        size = job.shape.tail(index + 1) if job.shape else 0
        if count:
            found.append(sums.rows[slot, index, 8:size].tobytes())
        for back in range(1, kept + 1):
            found.append(sums.rows[(slot - back) % sums.SLOTS, index, :size].tobytes())
    return found


def numbered_of(sums: NumberedAccelerator) -> list[object]:
    """The newest version, the states of all segments, and what was counted of whom."""
    counted = [(seat, table.words.tobytes()) for seat, table in sorted(sums.last.items())]
    return [sums.version, sums.state.words.tobytes(), *counted]


def partial_sums_of(job: Job, sums: PartialAccelerator) -> list[object]:
    """All of a switch below: what is open, what is uncounted above, and versions from there."""
    found = [*numbered_of(sums), sums.number, sums.unasked, sums.cut_off]
    found += [table.words.tobytes() for table in sums.kept]
    for index in range(sums.shape.segments):
        _, slot, count, uncounted = sums.state.get(index)
        size = job.shape.tail(index + 1) if job.shape else 0
        if count:
            found.append(sums.rows[slot, index, 8:size].tobytes())
        if uncounted:
            found.append(sums.rows[1 - slot, index, :size].tobytes())
        for at, table in enumerate(sums.kept):
            if table.get(index)[1] == sums.HERE:
                found.append(sums.aggregates[at, index, :size].tobytes())
    return found


def set_of(job: Job, sums: SynchronousAccelerator, slot: int) -> list[object]:
    """The states of all positions of a set, and the elements of those that have begun."""
    words = sums.state[slot].words.copy()
    begun = words[:, 1] != 0
    words[~begun] = 0
    found: list[object] = [words.tobytes()]
    segments = np.arange(len(words))
    if isinstance(sums, Positions):
        segments += sums.laps[slot].astype(np.int64) * len(words)
        found.append((segments * begun).tobytes())
    complete = begun & (words[:, 0] >> np.uint64(32) != 0)
    which = complete if sums.reproducible else begun
    for index in np.flatnonzero(which).tolist():
        size = job.shape.tail(int(segments[index]) + 1) if job.shape else 0
        found.append(sums.rows[slot, index, 8:size].tobytes())
        if words[index, 0] >> np.uint64(32) == sums.COMPLETE:
            found.append(sums.aggregates[slot, index, :size].tobytes())
    return found


class History:
    """Draws batches: plain ones, and all that is not.

    Args:
        seed: of the draws.
        steps: batches.
        alone: a batch comes from one process, as sockets of several are read in any order.
        below: the switch is below another one.
    """

    most = MOST  # packets in a datagram

    def __init__(self, seed: int, steps: int, alone: bool, below: bool) -> None:
        self.alone = alone
        self.rng = rng = np.random.default_rng(seed)
        self.steps = steps
        self.reproducible = bool(rng.random() < 0.25)
        # Datagrams that come together make one burst, whose late segments are answered once. With
        # a kernel there are other bursts. So only single datagrams are answered equally often.
        self.singly = bool(rng.random() < 0.5)
        self.offload = self.singly or bool(rng.random() < 0.5)
        self.wild = float(rng.choice([0.02, 0.15, 0.4]))  # share of what is not plain
        self.request = FIRST_REQUEST
        self.jobs: list[Plan] = []
        first = 0
        for number in range(1, int(rng.integers(1, 4)) + 1):
            workers = range(first, first + int(rng.integers(1, 5)))
            first = workers.stop
            dtype, op = KINDS[int(rng.integers(len(KINDS)))]
            elements = int(rng.choice([1, 7, 360])) if dtype is not DType.UINT8 else 361
            numel = int(rng.integers(1, 90 * elements))
            shape = Shape.of(numel, dtype, op, elements=elements)
            self.jobs.append(Plan(number, shape, workers, bool(rng.random() < 0.25)))
        self.stranger = first  # is in no job
        self.limits, self.keys = self.draw_limits(), self.draw_keys(seed)
        self.above = Above(first + 1, self.limits, self.keys) if below else None
        self.processes = first + 1 + below

    def draw_limits(self) -> Limits | None:
        """Draw what the operator of the switch has set."""
        return None

    def draw_keys(self, seed: int) -> dict[int, bytes]:  # noqa: ARG002
        """Draw the keys of the jobs that have some, by number."""
        return {}

    def joins(self) -> list[Sent]:
        """Let all workers join."""
        batch = []
        for plan in self.jobs:
            for who in plan.workers:
                plan.round[who] = plan.at[who] = 0
                batch.append(self.join(plan, who))
        return batch

    def join(self, plan: Plan, who: int) -> Sent:
        flags = FLAG_PARTIAL if plan.partial else plan.flags
        join = Join.for_shape(plan.shape, MemberType.WORKER, len(plan.workers), flags)
        return self.control(who, Action.JOIN, join, plan, FIRST_REQUEST + who)

    def control(self, who: int, action: Action, value: Value, plan: Plan, request: int = 0) -> Sent:
        self.request += 1
        return self.sent(who, Control(action, plan.number, request or self.request, value))

    def sent(self, who: int, control: Control) -> Sent:
        key, payload = self.keys.get(control.job), control.build()
        payload += Key(key).mac(payload) if key else b""
        rows = np.frombuffer(payload, np.uint8).reshape(1, -1)
        return Sent(who, TOS_CONTROL, rows, len(payload))

    def batch(self, switch: Switch) -> list[Sent]:
        """Draw what is sent at once; a worker's next round begins where the switch lets it."""
        sends: list[Sent] = []
        for n in range(1 if self.singly else int(self.rng.integers(1, 9))):
            if not n or not self.alone:
                plan = self.jobs[int(self.rng.integers(len(self.jobs)))]
                who = int(self.rng.choice(list(plan.workers)))
            if self.rng.random() < self.wild:
                sends.append(self.odd(plan, who))
            else:
                sends += self.plain(plan, who, switch)
        return sends

    def plain(self, plan: Plan, who: int, switch: Switch) -> list[Sent]:
        """A worker's next segments; none while it waits for the others."""
        job = switch.jobs.get(plan.number)
        if job is None or job.shape is None:
            return []
        begins = job.window.lowest
        if plan.partial and self.rng.random() < 0.1:  # the program leaves rounds out
            begins = job.high
        if self.above and job.waiting() and self.rng.random() < 0.9:
            return []
        if begins is not None and plan.round[who] < begins:
            plan.round[who], plan.at[who] = begins, 0
        if plan.at[who] == plan.shape.segments:
            others = [(plan.round[one], plan.at[one]) for one in plan.workers]
            slowest = min(others)
            waits = not (job.threshold or plan.partial)
            if slowest < (plan.round[who], plan.shape.segments) and waits:
                return []
            plan.round[who], plan.at[who] = plan.round[who] + 1, 0
        start = plan.at[who]
        most = int(self.rng.choice([1, 5, self.most] if self.singly else [1, 5, 44, 100]))
        stop = min(plan.shape.segments, start + int(self.rng.integers(1, most + 1)))
        plan.at[who] = stop
        return [self.data(plan, who, plan.round[who], start, stop)]

    def note(self, switch: Switch) -> None:
        """See what a batch has changed."""

    def ticks(self) -> bool:
        """Draw whether a switch below another one looks after a batch at what has to go up."""
        return False

    def answers(self, side: Side, results: list[list[bytes]]) -> list[list[Sent]]:
        """Let the switch above answer what it got: control at once, some of the aggregates."""
        if self.above is None:
            return []
        assert isinstance(side, UdpBelow | FrameBelow)
        control = self.above.hear([side.said(packet) for packet in results[self.above.who]])
        if control:
            return [[sent] for sent in control]
        some = self.above.draw(self.rng, self.wild)
        return [[sent] for sent in some] if self.singly else [some] if some else []

    def data(self, plan: Plan, who: int, round_: int, start: int, stop: int) -> Sent:
        """Segments of a contribution, with random elements."""
        shape = plan.shape
        rows = np.zeros((stop - start, shape.packet_size), np.uint8)
        packets = rows.reshape(-1).view(shape.packet)
        packets["seg"] = (round_ & 0xFFFFFFFF) << 32 | np.arange(start, stop, dtype=np.uint64)
        drawn = self.rng.integers(-100, 100, packets["data"].shape)
        if shape.dtype.is_pair:
            packets["data"]["value"] = packets["data"]["index"] = drawn
        else:
            packets["data"] = drawn.astype(shape.dtype.numpy)
        if shape.dtype.is_float:
            packets["data"] /= shape.dtype.numpy.type(3)
        return Sent(who, TOS_DATA, rows, shape.tail(stop))

    def odd(self, plan: Plan, who: int) -> Sent:
        """What is not plain: repeated, damaged, too early or late, of a stranger, or control."""
        rng, shape = self.rng, plan.shape
        start = int(rng.integers(shape.segments))
        stop = min(shape.segments, start + int(rng.integers(1, self.most)))
        round_ = plan.round[who]
        sent = self.data(plan, who, round_, start, stop)
        rows = sent.rows.copy()
        match int(rng.integers(9)):
            case 0:  # again, or ahead of the order
                return sent
            case 1:
                return Sent(who, TOS_DATA, rows, max(1, sent.tail - int(rng.integers(1, 9))))
            case 2:
                rows[:, int(rng.integers(8))] ^= 1 << int(rng.integers(8))
                return Sent(who, TOS_DATA, rows, sent.tail)
            case 3 if not self.alone or self.singly:
                return Sent(self.stranger, TOS_DATA, rows, sent.tail)
            case 4:
                return self.data(plan, who, (round_ - int(rng.integers(1, 4))) % 2**32, start, stop)
            case 5:
                return self.data(plan, who, round_ + int(rng.integers(1, 3)), start, stop)
            case 6:
                return self.join(plan, who)
            case 7 if rng.random() < 0.3:
                h = int(rng.integers(0, len(plan.workers) + 1))
                return self.control(who, Action.SETH, Threshold(h), plan)
            case 8 if rng.random() < 0.2:
                return self.control(who, Action.RESET, None, plan)
            case _:
                rng.shuffle(rows)  # packets in another order; a short one may be among them
                return Sent(who, TOS_DATA, rows, shape.packet_size)


def play(
    kind: type[UdpSide | FrameSide], seed: int, steps: int, draws: type[History] = History
) -> int:
    """Play a history to both sides; return the number of packets that a kernel added.

    Args:
        kind: of switches.
        seed: of the history.
        steps: batches.
        draws: draws them.

    Raises:
        AssertionError: the sides differ.
    """
    below = issubclass(kind, UdpBelow | FrameBelow)
    history = draws(seed, steps, kind not in (UdpSide, UdpBelow), below)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # else packets might overtake each other
    limited = type(kind.__name__, (kind,), {"limits": history.limits, "keys": history.keys})
    sides: list[UdpSide | FrameSide] = [
        limited(history.processes, fast, history.reproducible, history.offload)
        for fast in (False, True)
    ]
    try:
        for step in range(steps):
            batches = [history.batch(sides[0].switch)] if step else [[j] for j in history.joins()]
            while batches:
                batch, ticks = batches.pop(0), history.ticks()
                results = [side.play(batch, ticks) for side in sides]
                if not history.singly:
                    results = [[sorted(set(packets)) for packets in result] for result in results]
                where = f"seed {seed}, batch {step}"
                assert results[0] == results[1], f"{where}: other packets were sent"
                python, compiled = (state_of(side.switch, history.singly) for side in sides)
                assert python == compiled, where
                history.note(sides[0].switch)
                batches = history.answers(sides[0], results[0]) + batches
    finally:
        os.sched_setaffinity(0, cores)
        for side in sides:
            side.stack.close()
    return sides[1].compiled
