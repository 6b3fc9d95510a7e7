"""A switch with a kernel does what one in Python does, to the bit."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from iswitch.core.format.wire import DType, Op
from iswitch.core.sums.combining import reduced
from iswitch.fast import loading

from .histories import play
from .sides import FrameSide, HostSide, RingSide, UdpSide

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
    with pytest.raises(IndexError):
        loading.load("worker_kernel").play(np.zeros(1, np.int64))


@pytest.mark.parametrize("first", range(0, SEEDS, 8))
@pytest.mark.parametrize(
    "kind",
    [UdpSide, FrameSide, RingSide, HostSide],
    ids=["datagrams", "frames", "rings", "rings of hosts"],
)
def test_same_batches_give_the_same_sends_counters_and_state(
    kind: type[UdpSide | FrameSide], first: int
) -> None:
    compiled = [play(kind, seed, 60) for seed in range(first, first + 8)]
    least = (
        500 if issubclass(kind, RingSide) else 2000
    )  # which leaves out jobs with a worker without rings
    assert sum(compiled) > least, "the histories do not test the kernel"


def drawn(rng: np.random.Generator, dtype: DType, n: int) -> np.ndarray:
    """Bytes of n random elements: small numbers and specials, as any bits are seldom equal."""
    if dtype.is_pair:
        pairs = np.zeros(n, dtype.numpy)
        for name in ("value", "index"):
            pairs[name] = rng.integers(-2, 3, n)
        if pairs["value"].dtype.kind == "f":
            pairs["value"][rng.random(n) < 0.1] = np.nan
        return pairs.view(np.uint8)
    if not dtype.is_float:
        bits = rng.integers(0, 256, n * dtype.itemsize, np.uint8)
        return bits * (rng.random(len(bits)) < 0.5)
    values = rng.standard_normal(n).astype(dtype.numpy)
    for special in (0.0, -0.0, np.nan, np.inf, -np.inf):
        values[rng.random(n) < 0.05] = special
    return values.view(np.uint8)


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.label)
def test_elements_are_combined_as_numpy_does(dtype: DType) -> None:
    adding = loading.load("adding")
    rng = np.random.default_rng(20)
    for op in Op:
        for n in (1, 7, 366) if op.takes(dtype) else ():
            ours, theirs = drawn(rng, dtype, n), drawn(rng, dtype, n)
            want = reduced(np.stack([ours, theirs]).view(dtype.numpy), op, dtype)
            adding.combine(adding.way_of(op, dtype), ours, theirs)
            assert want.tobytes() == ours.tobytes(), (op.label, n)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("op", [Op.SUM, Op.PROD, Op.MAX, Op.MIN], ids=lambda op: op.label)
def test_every_number_of_two_bytes_is_combined_as_numpy_does(op: Op, dtype: DType) -> None:
    adding = loading.load("adding")
    rng = np.random.default_rng(21)
    ours = np.arange(1 << 16, dtype=np.uint16)
    for _ in range(20):
        theirs = rng.permutation(ours)
        got = ours.copy()
        adding.combine(adding.way_of(op, dtype), got.view(np.uint8), theirs.view(np.uint8))
        want = reduced(np.stack([ours, theirs]).view(dtype.numpy), op, dtype).view(np.uint16)
        # Whose digits a NaN made of two has, processors decide.
        nan = np.isnan(ours.view(dtype.numpy)) & np.isnan(theirs.view(dtype.numpy))
        assert np.isnan(got.view(dtype.numpy)[nan]).all()
        assert (got[~nan] == want[~nan]).all()
