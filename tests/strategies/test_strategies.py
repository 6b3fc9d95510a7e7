"""Every strategy: exact sums over workers x elements, the same bits everywhere, errors."""

from __future__ import annotations

import itertools
import math
import os
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.conftest import Where
from tests.support.groups import (
    ELEMENTS,
    MADE,
    add_up,
    exact,
    floats,
    group,
    servers,
    sum_of,
    vector_of,
)
from tests.support.machine import judged
from worker_lib.strategies import STRATEGIES, make
from worker_lib.strategies.base import bounds, pieces
from worker_lib.strategies.errors import PeerLost, PeerSilent, RendezvousError
from worker_lib.strategies.fusion import Fused, allreduce_many
from worker_lib.strategies.rendezvous import meet
from worker_lib.strategies.ring import cost as ring_cost

OWN = ["ring", "ps", "tree"]  # those whose connections are ours
SILENCE = 0.5  # seconds until a silent peer is given up
WITHOUT_A_SWITCH = [*OWN, "gloo", "mpi"]


def test_all_have_a_name() -> None:
    assert set(STRATEGIES) == {"iswitch", *WITHOUT_A_SWITCH}
    with pytest.raises(ValueError, match="no strategy 'rings'; there are iswitch, ring"):
        make("rings", 10)


@pytest.fixture(scope="module")
def server() -> Iterator[list[str]]:
    """For groups without one of their own."""
    with servers(1) as found:
        yield found


@pytest.mark.parametrize(
    ("name", "size"),
    [*itertools.product(OWN, (2, 3, 5)), *itertools.product(["gloo", "mpi"], (2, 3))],
)
def test_exact_sums(name: str, size: int, server: list[str]) -> None:
    found = group(exact, size, name, {"servers": server} if name == "ps" else {})
    if name in OWN:
        assert all(stats["rounds"] == 3 for one in found for stats in one)


@pytest.mark.parametrize("name", WITHOUT_A_SWITCH)
def test_all_ranks_get_the_same_bits(name: str) -> None:
    assert len(set(group(floats, 4, name, {}))) == 1


# The ring


@pytest.mark.parametrize("size", [3, 5])
def test_what_a_ring_sends(size: int) -> None:
    """As its cost says, in any number of pieces; 2(N - 1)/N of the vector, but for the rounding."""
    for options in ({"piece": 4}, {"piece": 4000}):
        if options.get("piece") == 4:
            counted = group(small, size, options)
        else:
            counted = group(exact, size, "ring", options)
        for rank, stats in enumerate(counted):
            for numel, found in zip(ELEMENTS, stats, strict=False):
                cost = ring_cost(numel, size)
                assert found["steps"] == 3 * cost.steps == 3 * 2 * (size - 1)
                assert found["bytes_sent"] == 3 * cost.sent(rank)
                assert found["bytes_received"] == 3 * cost.received(rank)
                share = 2 * (size - 1) / size * 4 * numel
                assert abs(cost.sent(rank) - share) <= 4 * cost.steps


def small(options: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for numel in ELEMENTS[:3]:
        with make("ring", numel, timeout=MADE, **options) as ring:
            add_up(ring, numel, 3)
            found.append(ring.stats())
    return found


def test_chunks_and_pieces() -> None:
    assert bounds(10, 4) == [0, 2, 5, 7, 10]
    assert bounds(0, 2) == [0, 0, 0]
    assert pieces(5, 12, 3) == [slice(5, 8), slice(8, 11), slice(11, 12)]
    assert pieces(5, 5, 3) == []


# Fusion


def fuse() -> None:
    shapes = [(3, 5), (), (7,), (0, 2), (2, 3, 4)]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    flat = vector_of(rank, 47)
    arrays = [part.reshape(s) for part, s in zip(np.split(flat, [15, 16, 23, 23]), shapes)]  # noqa: B905
    with make("ring", 47, timeout=MADE) as ring:
        fused = Fused(shapes)
        fused.allreduce(ring, arrays)
        assert np.array_equal(flat, sum_of(size, 47))
        flat[:] = vector_of(rank, 47, 1)
        allreduce_many(ring, arrays)
        assert np.array_equal(flat, sum_of(size, 47, 1))
        fused.vector[:] = vector_of(rank, 47, 2)
        fused.allreduce(ring)
        assert np.array_equal(fused.views[2], sum_of(size, 47, 2)[16:23])
        assert ring.stats()["rounds"] == 3
        with pytest.raises(ValueError, match=r"float32 \[5, 3\], and was to be float32 \[3, 5\]"):
            fused.allreduce(ring, [arrays[0].T, *arrays[1:]])
        for dtype in (np.float64, np.int64):  # which would be rounded
            with pytest.raises(ValueError, match=r"an array is \w+64 \[3, 5\], and was to be"):
                allreduce_many(ring, [arrays[0].astype(dtype), *arrays[1:]])
        with pytest.raises(ValueError, match="shorter"):
            fused.allreduce(ring, [])  # not what the views have


def test_many_arrays_in_one_allreduce() -> None:
    group(fuse, 3)
    assert Fused([]).vector.size == 0


# What can go wrong


def misuse(name: str) -> list[str]:
    told = []
    wrong: list[Any] = [
        np.zeros(7, np.float32),
        np.zeros(8),
        np.zeros((8, 2), np.float32)[:, 0],
        [0.0] * 8,
        np.broadcast_to(np.float32(0), 8),
    ]
    with make(name, 8, timeout=MADE) as strategy:
        for vector in wrong:
            with pytest.raises(ValueError, match="pass a writeable contiguous array") as caught:
                strategy.allreduce(vector)
            told.append(str(caught.value).partition(";")[0])
        add_up(strategy, 8)
    return told


@pytest.mark.parametrize("name", STRATEGIES)
def test_vectors_that_do_not_fit(name: str, switch: Where, job: int) -> None:
    where = {"ISWITCH_SWITCH": "{}:{}".format(*switch), "ISWITCH_JOB": str(job)}
    told = group(misuse, 2, name, **where)
    assert told[0] == told[1] == [
        "the vector is float32 [7]",
        "the vector is float64 [8]",
        "the vector is float32 [8], not contiguous",
        "the vector is a list",
        "the vector is float32 [8], not contiguous, not writeable",
    ]  # fmt: skip


def failing(name: str, numel: int, dies: bool) -> str:
    """The last rank takes part once; then it leaves, or does nothing."""
    if not dies:  # all come together, and what is imported is there, before the time is short
        with make(name, numel, timeout=MADE):
            pass
    with make(name, numel, timeout=SILENCE if not dies else MADE) as strategy:
        rank, size = strategy.rank, strategy.num_workers
        vector = vector_of(rank, numel)
        strategy.allreduce(vector)
        if rank == size - 1:
            if not dies:
                time.sleep(4 * SILENCE)
            return ""
        began = time.monotonic()
        with pytest.raises(PeerLost if dies else PeerSilent) as caught:
            strategy.allreduce(vector)
        assert time.monotonic() - began < 5
        return str(caught.value)


@pytest.mark.parametrize("numel", [1000, 4_000_000])
@pytest.mark.parametrize("dies", [True, False], ids=["dies", "hangs"])
@pytest.mark.parametrize("name", [*OWN, "gloo"])
def test_a_worker_that_fails_is_named(name: str, dies: bool, numel: int) -> None:
    peer = "a worker" if name == "gloo" else "rank 1"  # gloo knows addresses; both have the same
    said = f"{peer} is lost" if dies else f"{peer} said nothing for {SILENCE:g} s"

    def told() -> str:
        try:
            return str(group(failing, 2, name, numel, dies)[0])
        except AssertionError as error:  # somebody else was silent for so long, or before
            return str(error)

    if dies:
        assert group(failing, 2, name, numel, dies)[0].startswith(said)
    else:
        judged(told, lambda found: found.startswith(said))


def test_what_gloo_says() -> None:
    """Of a peer alone on its host the rank is found; of its sources nothing is told."""
    from worker_lib.strategies.gloo import fault

    said = "[/a/b/pair.cc:553] Connection closed by peer [10.26.0.2]:18608. This is typically so."
    hosts = ["10.26.0.1", "10.26.0.2", "10.26.0.3", "10.26.0.3"]
    lost = fault(said, hosts, 1.0)
    assert isinstance(lost, PeerLost)
    assert str(lost).startswith("rank 1 is lost (Connection closed by peer [10.26.0.2]:18608): it")
    for address in ("10.26.0.3", "10.26.0.4"):  # of two, of none
        assert fault(said.replace("10.26.0.2", address), hosts, 1.0).peer == "a worker"
    assert fault("strange", hosts, 1.0).peer == "a worker"
    for silence in ("Timed out waiting 500ms", "Application timeout caused pair closure"):
        assert isinstance(fault(silence, hosts, 1.0), PeerSilent)


def left_between() -> str:
    """Rank 1 comes to the meeting, and is gone then."""
    if os.environ["RANK"] == "1":
        meet("gloo of 3 elements", lambda here: (here, 1), MADE)
        return ""
    with pytest.raises(RendezvousError) as caught:
        make("gloo", 3, timeout=1.0)
    return str(caught.value)


def test_gloo_that_does_not_connect_says_so() -> None:
    said, _ = group(left_between, 2)
    assert said.startswith("gloo has not connected the workers; it says: wait timeout after 1000ms")
    assert said.endswith("or give more time: timeout=...")


def leading(name: str) -> tuple[int, str]:
    """Rank 2 leaves; what the others are told."""
    with make(name, 100_000, timeout=MADE) as strategy:
        vector = np.ones(100_000, np.float32)
        strategy.allreduce(vector)
        if strategy.rank == 2:
            return 2, ""
        time.sleep(0.3)
        with pytest.raises(PeerLost) as caught:
            strategy.allreduce(vector)
        return strategy.rank, str(caught.value)


@pytest.mark.parametrize("name", OWN)
def test_what_is_said_of_the_lost_leads_to_who_failed(name: str) -> None:
    """Who is named may have left for another's sake, and says for whose."""
    told = dict(group(leading, 4, name))
    for rank in (0, 1, 3):
        named, steps = rank, 0
        while named != 2:
            assert "or has left because another did; see what it says" in told[named]
            found = re.match(r"rank (\d) is lost", told[named])
            assert found, told
            named, steps = int(found[1]), steps + 1
            assert steps < 4, told


def impossible(name: str, options: dict[str, Any]) -> str:
    with pytest.raises(ValueError, match="pass") as caught:
        make(name, 10, **options)
    return str(caught.value)


@pytest.mark.parametrize("timeout", [0, -1, 1e-9, math.inf, math.nan, 1e300, "10", None])
@pytest.mark.parametrize("name", STRATEGIES)
def test_timeouts_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, name: str, timeout: object
) -> None:
    where = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    where |= {"ISWITCH_SWITCH": "127.0.0.1:1", "ISWITCH_JOB": "1"}
    for key, value in where.items():
        monkeypatch.setenv(key, value)
    assert impossible(name, {"timeout": timeout}).startswith(f"timeout = {timeout!r}: pass ")


@pytest.mark.parametrize("piece", [-4, 0, 3, 2.5, "64"])
@pytest.mark.parametrize("name", ["ring", "tree"])
def test_pieces_that_cannot_be(name: str, piece: object) -> None:
    assert impossible(name, {"piece": piece}) == (
        f"piece = {piece!r}: pass a whole number of bytes, 4 or more"
    )


def disagreeing(name: str) -> str:
    with pytest.raises(RendezvousError) as caught:
        make(name, 10 + int(os.environ["RANK"]), timeout=MADE)
    return str(caught.value)


@pytest.mark.parametrize("name", OWN)
def test_vectors_of_different_sizes(name: str) -> None:
    (said,) = set(group(disagreeing, 2, name))
    assert "11 elements, and rank 0 " in said
    assert "10 elements; mend one" in said
