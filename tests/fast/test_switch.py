"""A switch with a kernel does what one in Python does, to the bit."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from iswitch.core.format.wire import DType, Op
from iswitch.core.sums.combining import combine_of
from iswitch.fast import loading

from .histories import play
from .sides import FrameSide, UdpSide

pytestmark = pytest.mark.skipif(not loading.installed(), reason="Numba is not installed")

SEEDS = int(os.environ.get("ISWITCH_FAST_SEEDS", "24"))  # `make compiled` takes more


@pytest.fixture(scope="module", autouse=True)
def checked() -> Iterator[None]:
    """Kernels that check every index; switches in processes of their own have those that do not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_BOUNDSCHECK", "1")
        patch.delenv("ISWITCH_FAST", raising=False)
        yield


def test_indices_are_checked() -> None:
    adding = loading.load("adding")
    with pytest.raises(IndexError):
        adding.combine_sums(0, np.zeros(16, np.uint8), np.zeros(8, np.uint8))


@pytest.mark.parametrize("first", range(0, SEEDS, 8))
@pytest.mark.parametrize("kind", [UdpSide, FrameSide], ids=["datagrams", "frames"])
def test_same_batches_give_the_same_sends_counters_and_state(
    kind: type[UdpSide] | type[FrameSide], first: int
) -> None:
    compiled = [play(kind, seed, 60) for seed in range(first, first + 8)]
    assert sum(compiled) > 2000, "the histories do not test the kernel"


def drawn(rng: np.random.Generator, dtype: DType, n: int) -> np.ndarray:
    if not dtype.is_float:
        return rng.integers(0, 256, n * dtype.itemsize, np.uint8).view(dtype.numpy)
    values = rng.standard_normal(n).astype(dtype.numpy)
    for special in (0.0, np.nan, np.inf, -np.inf):
        values[rng.random(n) < 0.05] = special
    return values


def test_elements_are_combined_as_numpy_does() -> None:
    adding = loading.load("adding")
    rng = np.random.default_rng(20)
    for op, dtype in adding.WAYS:
        for n in (0, 1, 7, 366):
            ours, theirs = drawn(rng, dtype, n), drawn(rng, dtype, n)
            want, got = ours.copy(), ours.copy()
            with np.errstate(all="ignore"):
                combine_of(op, dtype)(want, theirs, out=want)
            adding.combine(adding.WAYS[op, dtype], got.view(np.uint8), theirs.view(np.uint8))
            assert want.tobytes() == got.tobytes(), (Op(op).label, dtype.label, n)
