"""The kernel plays a worker's rounds as Python does: results, counters, state and packets sent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA, DType, Shape
from iswitch.fast import loading
from iswitch.fast.worker_table import At
from iswitch.ports.rings.serving import RingPort
from tests.support import ROOT
from worker_lib.kernel import Words
from worker_lib.ring_rounds import RingRoundKernel

from .rounds import FIRST, Rig, Schedule, rig, ring_rig

pytest.importorskip("numba")

SEEDS = int(os.environ.get("ISWITCH_FAST_SEEDS", "1"))
ROUNDS = 25
PATIENCE = 20.0  # seconds for a round

SHAPES = {  # at most four bursts, which both ways send before they look at what has come
    "none": Shape.of(0),
    "one": Shape.of(1),
    "few": Shape.of(30, elements=4),
    "bursts": Shape.of(44 * 366 * 3 + 5),
    "full": Shape.of(366 * 44),
    "float16": Shape.of(1001, DType.FLOAT16, elements=5),
    "bfloat16": Shape.of(777, DType.of(np.dtype(ml_dtypes.bfloat16)), elements=10),
    "bytes": Shape.of(640, DType.UINT8, elements=3),
    "int64": Shape.of(9000, DType.INT64, elements=100),
}


@pytest.fixture(autouse=True)
def _switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loading.SWITCH, "1")


WAYS: dict[str, Callable[..., AbstractContextManager[Rig]]] = {
    "offload": partial(rig, offload=True),
    "singly": partial(rig, offload=False),
    "rings": ring_rig,
    "rings near by": partial(ring_rig, near=1 << 62),
}
ALONE = {"alone": partial(ring_rig, workers=1)}  # its sums come in the ring of its own


@contextmanager
def both(shape: Shape, way: str, past: bool) -> Iterator[list[Rig]]:
    """Make workers whose rounds Python plays and kernels, in this order.

    Args:
        shape: layout of the vectors.
        way: one of WAYS, or "alone".
        past: whether the kernel copies past the caches.
    """
    with ExitStack() as stack:
        rigs: list[Rig] = [
            stack.enter_context((WAYS | ALONE)[way](shape, compiled=compiled))
            for compiled in (False, True)
        ]
        for one in rigs if past else []:
            one.copy_past_caches()
        yield rigs


def play(shape: Shape, way: str, seed: int, past: bool = False) -> list[int]:
    """Play the same rounds both ways; return how many the kernel finished without Python.

    Args:
        shape: layout of the vectors.
        way: one of WAYS, or "alone".
        seed: of what is drawn.
        past: whether the kernel copies past the caches.
    """
    rng = np.random.default_rng(seed)
    schedule = Schedule(shape, rng)
    dtype = shape.dtype.numpy
    with both(shape, way, past) as rigs:
        for _ in range(ROUNDS):
            round_ = rigs[0].session.round
            shorter = shape.numel and rng.random() < 0.3
            numel = int(rng.integers(1, shape.numel + 1)) if shorter else shape.numel
            vector = rng.integers(0, 100, numel).astype(dtype)
            total = rng.integers(0, 100, numel).astype(dtype)
            in_place = rng.random() < 0.5
            sends = schedule.draw(round_, total)
            outs = []
            for one in rigs:
                given = vector.copy()
                outs.append(given if in_place else np.zeros_like(given))
                one.say(sends)
                one.begin(given, outs[-1])
            helped = any(tos == TOS_CONTROL for tos, _, _ in sends)
            assert rigs[0].state(helped) == rigs[1].state(helped)
            assert rigs[0].heard() == rigs[1].heard()
            assert outs[0].tobytes() == outs[1].tobytes()
            if rigs[0].session.round == round_:
                for one in rigs:
                    one.say(schedule.rest(round_, total, one.missing))
                    one.drain()
                    assert one.missing == []
                    one.session.finish()
                assert [np.array_equal(out, total) for out in outs] == [True, True]
            for one in rigs:
                while one.session.next_event() is not None:
                    pass
        assert rigs[0].session.round >= FIRST + ROUNDS
        assert rigs[1].kernel is not None
        has_rings = way in ALONE or "rings" in way
        assert shape.numel == 0 or (rigs[1].kernel.apart is not None) == has_rings
        return [one.wholly for one in rigs]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SHAPES)
def test_random_rounds(name: str, way: str) -> None:
    wholly = [play(SHAPES[name], way, seed) for seed in range(SEEDS)]
    assert all(python == 0 for python, _ in wholly)
    assert sum(compiled for _, compiled in wholly) >= 3 * SEEDS


@pytest.mark.parametrize("name", ["bursts", "float16"])
def test_random_rounds_of_a_worker_alone_with_rings(name: str) -> None:
    wholly = [play(SHAPES[name], "alone", seed) for seed in range(SEEDS)]
    assert sum(compiled for _, compiled in wholly) >= 3 * SEEDS


@pytest.mark.parametrize("way", ["offload", "rings", "rings near by"])
@pytest.mark.parametrize("name", ["bursts", "float16"])
def test_random_rounds_past_the_caches(name: str, way: str) -> None:
    """As those of large vectors are copied."""
    wholly = [play(SHAPES[name], way, seed, past=True) for seed in range(SEEDS)]
    assert sum(compiled for _, compiled in wholly) >= 3 * SEEDS


def test_copies_past_the_caches_hold_what_others_hold() -> None:
    """Of every length and alignment, with nothing around them changed."""
    loading.load("worker_kernel")  # so that Numba is imported the way kernels are
    copying = import_module("iswitch.fast.copying")
    rng = np.random.default_rng(1)
    source = rng.integers(0, 256, 4096).astype(np.uint8)
    for size in (0, 1, 63, 64, 128, 129, 191, 192, 193, 1000, 1464, 2048):
        for _ in range(20):
            at, start = rng.integers(0, 200, 2)
            target = rng.integers(0, 256, 2400).astype(np.uint8)
            expected = target.copy()
            expected[at : at + size] = source[start : start + size]
            copying.copy_past(target, at, source, start, size)
            assert np.array_equal(target, expected)


def test_a_round_whose_rings_are_lost_continues_by_udp() -> None:
    """From the headers of its datagrams, which rings need not have."""
    shape = SHAPES["bursts"]
    schedule = Schedule(shape, np.random.default_rng(3))
    vector, out = np.ones((2, shape.numel), np.float32)
    total = np.full(shape.numel, 5, np.float32)
    with ring_rig(shape, compiled=True) as one:
        kernel = one.kernel
        headers: list[int] = []
        assert isinstance(kernel, RingRoundKernel)
        assert isinstance(one.switch, RingPort)
        by_udp = kernel._play

        def noted(table: Words) -> int:
            if not headers:
                one.say([(TOS_DATA, schedule.sums(FIRST, total), shape.tail(shape.segments))])
            headers.append(int(table[At.HEADERS]))
            return by_udp(table)

        kernel._play = noted
        for member in one.switch.rings.in_turn:
            one.switch.rings._part(member)
        assert one.session.begin_express(vector, out, time.monotonic(), own=True, played=True)
        assert kernel.play(one.session, time.monotonic() + PATIENCE)
        assert headers
        assert all(headers)
        assert np.array_equal(out, total)


def test_indices_stay_within_bounds() -> None:
    """The kernel, compiled with checks, plays such rounds."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    owned = str(Path(__file__).with_name("test_owned_rounds.py"))
    some = "few or float16 or bursts and singly or bursts and rings or all and offload or all-rings"
    found = subprocess.run(
        [*command, owned, "-k", some],
        env={**os.environ, "NUMBA_BOUNDSCHECK": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout
