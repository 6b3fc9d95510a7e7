"""What a case expects of packets, and how it says so."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from tests.conformance.client import Peer, wait_readable
from tests.conformance.packets import CaseFailure, Predicate, expect_equal, is_data

QUIET = 0.15  # seconds in which a packet that must not come would have come


def expect_elements(got: np.ndarray, want: np.ndarray, what: str) -> None:
    """Raise `CaseFailure` unless both hold the same numbers, any NaN counting as any other."""
    expect_equal(got.shape, want.shape, f"shape of {what}")
    same = (got == want) | ((got != got) & (want != want))
    if not bool(np.all(same)):
        raise CaseFailure(f"{what}: expected {want.tolist()}, got {got.tolist()}")


def expect_sum(peers: Sequence[Peer], round_: int, want: np.ndarray) -> None:
    """Every peer receives the whole aggregate of the round, and it is this one."""
    for peer in peers:
        what = f"aggregate of round {round_} at {peer.describe()}"
        expect_elements(peer.aggregate(round_), want, what)


def expect_segment(peers: Sequence[Peer], round_: int, index: int, want: np.ndarray) -> None:
    """Every peer receives this segment of the aggregate of the whole vector `want`."""
    for peer in peers:
        start = index * peer.shape.per_segment
        got = peer.aggregate(round_, [index])
        what = f"aggregate {round_}:{index} at {peer.describe()}"
        expect_elements(got, want[start : start + len(got)], what)


def expect_quiet(
    peers: Sequence[Peer], predicate: Predicate, what: str, seconds: float = QUIET
) -> None:
    """No such packet has come to any of the peers, nor comes in a short time.

    Peers that are members first repeat their Join and wait for the answer, so that the switch has
    certainly worked off what was sent before. On a lossy path, copies of what was waited for come
    rightly: the path doubles packets, and the switch answers what was sent again.
    """
    for peer in peers:
        if peer.joined is not None:
            peer.heartbeat()
    deadline = time.monotonic() + seconds
    while True:
        for peer in peers:
            peer.pump()
            while (packet := peer.take(predicate)) is not None:
                if peer.lossy and packet in peer.known:
                    continue
                raise CaseFailure(f"{what}: expected nothing at {peer.describe()}, got {packet}")
        if (remaining := deadline - time.monotonic()) <= 0:
            return
        wait_readable(peers, remaining)


def expect_no_data(peers: Sequence[Peer], what: str, round_: int | None = None) -> None:
    """No aggregate (of this round, where given) comes to any of the peers."""
    expect_quiet(peers, is_data(round_), what)
