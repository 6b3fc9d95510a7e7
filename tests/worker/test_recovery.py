"""What is called lost, and when: by what came of other segments, on a clock of the test's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_lib.protocol.recovery import AGAIN_FLOOR, MOST_COPIES, SLACK_FLOOR, Losses

pytestmark = pytest.mark.unit

RTT = 0.010


def sent(segments: int = 8, at: float = 0.0) -> Losses:
    losses = Losses(segments)
    losses.sent(slice(0, segments), segments, at, again=False)
    return losses


def lost(losses: Losses, now: float) -> tuple[list[int], list[int], Any]:
    first, second, again_at = losses.overdue(now)
    return first.tolist(), second.tolist(), again_at


def test_nothing_is_lost_while_nothing_has_come() -> None:
    """It is silence, and says nothing about which."""
    losses = sent()
    assert not losses.doubtful
    assert lost(losses, 1000.0) == ([], [], None)


def test_in_order_nothing_is_doubtful() -> None:
    losses = sent()
    for i in range(8):
        losses.came(slice(i, i + 1), RTT)
        assert not losses.doubtful
    assert losses.in_flight == 0
    assert losses.measured == losses.round_trip == RTT


def test_what_others_overtake_is_lost_after_half_a_round_trip() -> None:
    losses = sent()
    losses.came(np.array([0, 1, 3, 4]), RTT)
    assert losses.doubtful
    due = RTT + losses.slack
    assert lost(losses, due - 1e-6) == ([], [], pytest.approx(due - 1e-6 + losses.slack))
    assert lost(losses, due) == ([2], [], None)
    assert losses.in_flight == 3
    assert lost(losses, due) == ([], [], None)  # once


def test_one_that_is_only_late_is_not_lost() -> None:
    losses = sent()
    losses.came(np.array([1, 2]), RTT)
    losses.came(slice(0, 1), RTT * 1.2)
    assert not losses.doubtful
    assert losses.round_trip == RTT  # the late one waited for somebody else


def test_sent_again_and_lost_again() -> None:
    """Given twice as long with every copy, and no longer after some."""
    losses = sent(2)
    losses.came(slice(1, 2), RTT)
    now = RTT + losses.slack
    assert lost(losses, now)[0] == [0]
    waits = []
    for _ in range(MOST_COPIES + 2):
        losses.sent(np.array([0]), 1, now, again=True)
        assert losses.doubtful
        again_at = lost(losses, now)[2]
        assert again_at is not None
        waits.append(again_at - now)
        now = again_at
        assert lost(losses, now)[:2] == ([], [0])
    ratios = np.divide(waits[1:], waits[:-1])
    assert ratios[: MOST_COPIES - 1] == pytest.approx(2.0)
    assert ratios[MOST_COPIES - 1 :] == pytest.approx(1.0)
    assert waits[0] >= AGAIN_FLOOR


def test_an_aggregate_of_what_was_sent_again_says_nothing_of_others() -> None:
    """Another worker may have sent it again long before."""
    losses = sent(4)
    losses.came(slice(1, 2), RTT)
    assert lost(losses, 2 * RTT)[0] == [0]
    losses.sent(np.array([0]), 1, 2 * RTT, again=True)
    losses.came(slice(0, 1), 2 * RTT + 1e-4)
    assert not losses.doubtful  # 2 and 3 were sent before it
    assert losses.round_trip == RTT
    assert losses.measured == RTT


def test_what_was_sent_again_hides_nothing() -> None:
    """Though it was sent after the newest of which something is known."""
    losses = sent(10)
    losses.came(slice(5, 6), RTT)
    now = 2 * RTT
    assert lost(losses, now)[0] == [0, 1, 2, 3, 4]
    losses.sent(np.arange(5), 5, now, again=True)
    losses.came(np.arange(5), now + RTT)
    assert not losses.doubtful  # all that is in flight was sent after 5
    losses.came(slice(9, 10), now + RTT)
    assert losses.doubtful
    assert lost(losses, now + 3 * RTT)[0] == [6, 7, 8]


def test_forgotten_segments_are_in_flight_no_more() -> None:
    losses = sent()
    losses.forget(np.array([2, 3]))
    losses.forget(np.array([3, 4]))
    assert losses.in_flight == 5
    losses.came(np.array([3, 7]), RTT)
    assert losses.in_flight == 4
    assert lost(losses, 1.0)[0] == [0, 1, 5, 6]


def test_a_round_trip_is_as_long_as_the_queue() -> None:
    losses = sent(100)
    losses.came(slice(0, 50), RTT)
    assert losses.expected == pytest.approx(RTT)  # the only one known
    losses.sent(np.array([7]), 1, RTT, again=True)
    half = losses.expected
    losses.came(slice(50, 90), 2 * RTT)
    assert losses.expected < half
    losses.came(slice(90, 100), 2 * RTT)
    assert losses.slack == pytest.approx(max(SLACK_FLOOR, losses.expected / 2))


some = st.sets(st.integers(0, 9), min_size=1).map(sorted)
acts = st.lists(st.tuples(st.sampled_from(("again", "came", "forget", "overdue")), some))


@settings(max_examples=200, deadline=None)
@given(acts)
def test_what_is_in_flight_is_what_was_sent_and_neither_came_nor_was_given_up(
    history: list[tuple[str, list[int]]],
) -> None:
    """Whatever is sent again, also what is in flight already: else the window would close."""
    losses = sent(10)
    flying = set(range(10))
    for step, (what, which) in enumerate(history, 1):
        now = step * RTT
        if what == "again":
            losses.sent(np.array(which), len(which), now, again=True)
            flying |= set(which)
        elif what == "came":
            losses.came(np.array(which), now)
            flying -= set(which)
        elif what == "forget":
            losses.forget(np.array(which))
            flying -= set(which)
        else:
            first, second, _ = losses.overdue(now)
            assert {*first.tolist(), *second.tolist()} <= flying
            flying -= {*first.tolist(), *second.tolist()}
        assert losses.in_flight == len(flying)
