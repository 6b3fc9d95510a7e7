"""A job of two workers in the middle of rounds, and whether its sums are right."""

from __future__ import annotations

import numpy as np

from iswitch.core.format.wire import (
    FLAG_STANDS_AT,
    Action,
    DType,
    Join,
    Shape,
    Status,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.support.parts import (
    Bench,
    peer,
    segments_of,
)

SHAPE = Shape.of(11, DType.INT32, elements=4)
BASE = 3_000_000_000  # the job's round; junk rarely names one near it
LIMITS = Limits(memory=20_000, jobs=4, lease=1.6)  # honest workers speak every 0.5 s
WORKERS = (0, 1)


def vector(who: int, round_: int) -> np.ndarray:
    rng = np.random.default_rng([who, round_ % 1000])
    return rng.integers(-1000, 1000, SHAPE.numel).astype(np.int32)


def running_job() -> Bench:
    """Two workers that stand at BASE and have summed once."""
    bench = Bench(Switch(LIMITS))
    for who in WORKERS:
        join = Join(0, SHAPE.dtype, 0, 0, 4, SHAPE.last, SHAPE.segments, 2, FLAG_STANDS_AT, BASE)
        status, ack, _ = bench.control(who, Action.JOIN, join, request=1000)
        assert (status, ack.round) == (Status.OK, BASE)
    sums_are_right(bench, BASE)
    return bench


def sums_are_right(bench: Bench, round_: int) -> None:
    """The next allreduce gives both workers, and nobody else, the exact sums."""
    vectors = [vector(who, round_) for who in WORKERS]
    total = vectors[0] + vectors[1]
    first, second = (bench.contribute(who, SHAPE, round_, vectors[who]) for who in WORKERS)
    assert first == {}
    want = {payload: {peer(0), peer(1)} for payload in segments_of(SHAPE, round_, total)}
    assert second == want
