"""The kernel plays a rank's rounds of owned segments as Python does: results, counters, state."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from iswitch.core.format.division import divided
from iswitch.core.format.packets import Rows
from iswitch.core.format.wire import (
    CLOSING_SIZE,
    TOS_CONTROL,
    TOS_DATA,
    DType,
    Mode,
    Shape,
    Vector,
)
from iswitch.fast import loading
from worker_lib.collective import _parted
from worker_lib.protocol.own import Blocks
from worker_lib.protocol.plan import Plan

from .rounds import FIRST, RANK, Rig, Schedule, Sent
from .test_worker_rounds import ALONE, WAYS, both

pytest.importorskip("numba")

SEEDS = int(os.environ.get("ISWITCH_FAST_SEEDS", "1"))
ROUNDS = 15
RANKS = 3

SHAPES = {  # at most four bursts, which both ways send before they look at what has come
    "scatter": divided(14_000, RANKS, Mode.REDUCE_SCATTER),
    "scatter bytes": divided(40, RANKS, Mode.REDUCE_SCATTER, DType.UINT8, most=7),
    "gather": divided(20_000, RANKS, Mode.ALL_GATHER),
    "gather bfloat16": divided(
        99, RANKS, Mode.ALL_GATHER, DType.of(np.dtype(ml_dtypes.bfloat16)), most=10
    ),
    "all": divided(9_000, RANKS, Mode.ALL_TO_ALL),
    "all int64": divided(30, RANKS, Mode.ALL_TO_ALL, DType.INT64, most=4),
}


@pytest.fixture(autouse=True)
def _switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loading.SWITCH, "1")


class OwnedSchedule(Schedule):
    """Draws what the switch sends in a round of owned segments.

    Args:
        plan: the segments that the worker gives and gets.
        rng: random numbers.
    """

    def __init__(self, plan: Plan, rng: np.random.Generator) -> None:
        super().__init__(plan.shape, rng)
        self.plan = plan
        index = plan.targets.within[:, 0] // (plan.shape.elements * plan.shape.dtype.itemsize)
        turn = rng.permutation(RANKS)[plan.targets.blocks]
        order = np.lexsort((index, turn, index // int(rng.choice([1, 5, 50]))))
        self.order = np.append(order, len(order))  # the positions, the closing one last

    def sums(self, round_: int, total: Vector) -> Rows:
        """Return the aggregates of a round, some of each block in turn."""
        return self.by_position(round_, total, self.order)

    def by_position(self, round_: int, total: Vector, positions: Any) -> Rows:
        """Return the aggregates at some positions."""
        shape = self.shape
        packets = np.zeros(shape.segments, shape.packet)
        packets["seg"] = self.plan.gets + (round_ << 32)
        packets["data"][:-1] = total[: -shape.last].reshape(-1, shape.elements)
        packets["data"][-1, : shape.last] = total[-shape.last :]
        return packets[list(positions)].view(np.uint8).reshape(len(positions), -1)

    def blocks(self, total: Vector) -> list[Vector]:
        """Return the elements of each block, and those that fill its last segment up."""
        rows, of = total[: -self.shape.last].reshape(-1, self.shape.elements), self.plan.targets
        return [rows[of.blocks == i].reshape(-1) for i in range(len(self.plan.sizes[1]))]

    def rest(self, round_: int, total: Vector, missing: list[tuple[int, int]]) -> list[Sent]:
        """Return the aggregates that are still missing, which ranges of segments name."""
        found = [np.arange(*np.searchsorted(self.plan.gets, some)) for some in missing]
        return [
            (TOS_DATA, self.by_position(round_, total, some), self.shape.tail(int(some[-1]) + 1))
            for some in found
        ]


class Drawn(NamedTuple):
    """A round: what the worker gives and gets, how that comes, and the aggregates, by position."""

    plan: Plan
    schedule: OwnedSchedule
    total: Vector


class Game:
    """Plays random rounds both ways.

    Args:
        shape: layout of the blocks.
        rigs: the worker in Python, and compiled.
        seed: of what is drawn.
    """

    def __init__(self, shape: Shape, rigs: list[Rig], seed: int) -> None:
        self.shape, self.rigs = shape, rigs
        self.rng = np.random.default_rng(seed)
        self.capacity = (shape.segments - 1) // shape.blocks * shape.elements
        self.following: Drawn | None = None  # the next round, of which something has come

    def numbers(self, count: int) -> Vector:
        return self.rng.integers(0, 100, count).astype(self.shape.dtype.numpy)

    def sizes(self) -> tuple[list[int], list[int]]:
        """Draw the elements of each block that the worker gives, and gets."""
        rng, most = self.rng, self.capacity
        gives, gets = rng.integers(most + 1, size=(2, RANKS)).tolist()
        if rng.random() < 0.6:
            gives = gets = [most] * RANKS
        elif rng.random() < 0.5:
            gives = [n * int(rng.integers(2)) for n in gives]
            gets = [n * int(rng.integers(2)) for n in gets]
        if self.shape.mode is Mode.REDUCE_SCATTER:
            return gives, [gives[RANK]]
        if self.shape.mode is Mode.ALL_GATHER:
            return [gets[RANK]], gets
        return gives, [gives[i] if i == RANK else n for i, n in enumerate(gets)]

    def draw(self) -> Drawn:
        gives, gets = self.sizes()
        plan = Plan(self.shape, RANK, gives, gets, 1, self.numbers(self.shape.numel))
        return Drawn(plan, OwnedSchedule(plan, self.rng), self.numbers(plan.shape.numel))

    def play(self) -> None:
        """Play a round."""
        rng, rigs, shape = self.rng, self.rigs, self.shape
        round_ = rigs[0].session.round
        (plan, schedule, total), self.following = self.following or self.draw(), None
        sends = schedule.draw(round_, total)
        if rng.random() < 0.5:  # nothing goes wrong
            rows = schedule.sums(round_, total)
            some = TOS_DATA, rows[:-1], shape.packet_size
            sends = [some, (TOS_DATA, rows[-1:], shape.last_size)]
        if rng.random() < 0.3:
            self.following = after = self.draw()
            rows = after.schedule.sums(round_ + 1, after.total)[:-1]
            sends.append((TOS_DATA, rows[: int(rng.integers(1, 50))], shape.packet_size))
        vector, in_place = self.numbers(shape.numel), bool(rng.random() < 0.3)
        count = int.from_bytes(total[-shape.last :].tobytes()[:CLOSING_SIZE], "little")
        wanted = {0: count, 1: count + 1}.get(int(rng.integers(8)))
        outs = []
        for one in rigs:
            given = vector.copy()
            outs.append(given if in_place else np.zeros_like(given))
            one.say([send for send in sends if len(send[1])])
            one.exchange(cut(given, plan.sizes[0]), cut(outs[-1], plan.sizes[1]), wanted)
        helped = any(tos == TOS_CONTROL for tos, _, _ in sends)
        assert rigs[0].state(helped) == rigs[1].state(helped)
        assert rigs[0].heard() == rigs[1].heard()
        if rigs[0].session.round == round_:
            for one in rigs:
                one.say(schedule.rest(round_, total, one.missing))
                one.drain()
                assert one.missing == []
                if one.session.round == round_:  # their numbers agree
                    one.session.finish()
            right = vector if in_place else np.zeros_like(vector)
            blocks = schedule.blocks(total)
            for block, elements in zip(cut(right, plan.sizes[1]), blocks, strict=True):
                block[...] = elements[: len(block)]
            assert [out.tobytes() for out in outs] == [right.tobytes()] * 2
        assert rigs[0].session.round == rigs[1].session.round
        for one in rigs:
            while one.session.next_event() is not None:
                pass


def cut(memory: Vector, sizes: tuple[int, ...]) -> Blocks:
    """Return blocks of these sizes, one after the other; in one array, if they are equal."""
    return _parted(memory[: sum(sizes)], sizes, len(set(sizes)) == 1)


def play(shape: Shape, way: str, seed: int, past: bool = False) -> list[int]:
    """Play the same rounds both ways; return how many the kernel finished without Python."""
    with both(shape, way, past) as rigs:
        game = Game(shape, rigs, seed)
        for _ in range(ROUNDS):
            game.play()
        return [one.wholly for one in rigs]


@pytest.mark.parametrize("way", [*WAYS, *ALONE])
@pytest.mark.parametrize("name", SHAPES)
def test_random_rounds(name: str, way: str) -> None:
    wholly = [play(SHAPES[name], way, seed) for seed in range(SEEDS)]
    assert all(python == 0 for python, _ in wholly)
    assert sum(compiled for _, compiled in wholly) >= 3 * SEEDS


@pytest.mark.parametrize("way", ["offload", "rings", "rings near by"])
def test_random_rounds_past_the_caches(way: str) -> None:
    """As those of large vectors are copied."""
    wholly = [play(SHAPES["gather"], way, seed, past=True) for seed in range(SEEDS)]
    assert sum(compiled for _, compiled in wholly) >= 3 * SEEDS


def test_blocks_in_place_are_sent_before_they_are_written_over() -> None:
    """More than is sent at once, where what another rank gives belongs."""
    shape = divided(5120, RANKS, Mode.ALL_GATHER, most=10)
    n = 5120 // 10  # segments of a block: eight bursts
    plan = Plan(shape, RANK, [5120], [5120] * RANKS, 64, np.zeros(shape.numel, np.float32))
    given = np.arange(5120, dtype=np.float32)
    total = np.full(plan.shape.numel, 7, np.float32)
    total[5120 : 2 * 5120] = given
    schedule = OwnedSchedule(plan, np.random.default_rng(0))
    rows, late = (
        schedule.by_position(round_, total, range(3 * n)) for round_ in (FIRST, FIRST - 1)
    )
    with WAYS["offload"](shape, compiled=True) as one:
        memory = given.copy()
        one.say([(TOS_DATA, late[:n], shape.packet_size)])
        one.drain()  # now the kernel knows such datagrams
        one.say([(TOS_DATA, rows[: n + n // 2], shape.packet_size)])
        one.exchange([memory], [memory, *np.zeros((2, 5120), np.float32)], None)
        assert (memory == 7).all()
        assert [payload for tos, payload in one.heard() if tos == TOS_DATA][:n] == [
            row.tobytes() for row in rows[n : 2 * n]
        ]
