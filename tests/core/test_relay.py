"""Relayed control: when it is repeated, when it stops, what is not sent twice."""

from __future__ import annotations

from itertools import pairwise

import pytest

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import Action, Control, Round, Segments
from iswitch.core.jobs.relay import FIRST_PAUSE, MAX_PER_MEMBER, MAX_SENDS, Relays
from tests.support.parts import packets_of, peer

pytestmark = pytest.mark.unit

HELP = Segments(4, 0, 2)


def sent(sends: list[Outgoing]) -> list[tuple[int, Control]]:
    """To which worker which packet."""
    found = []
    for out in sends:
        (to,) = out.peers
        (payload,) = packets_of(out)
        found.append((to.port - 40000, Control.parse(payload)))
    return found


def test_table_of_times() -> None:
    """20 ms, each pause twice the last, ten in all, as docs/protocol.md says; then given up."""
    relays = Relays(Counters())
    ((_, packet),) = sent(relays.send(peer(0), Action.HELP, 7, HELP, 100.0))
    times, now = [100.0], 100.0
    while (deadline := relays.deadline()) is not None:
        assert relays.handle_timer(deadline - 1e-6) == []
        now = deadline
        repeats = sent(relays.handle_timer(now))
        assert repeats in ([(0, packet)], [])
        times += [now] * len(repeats)
    pauses = [b - a for a, b in pairwise(times)]
    assert pauses == pytest.approx([0.02 * 2**n for n in range(9)])
    assert len(times) == MAX_SENDS == 10
    assert times[-1] - times[0] == pytest.approx(10.22)
    assert now - times[-1] == pytest.approx(0.02 * 2**9)
    assert relays.counters["relays_given_up"] == 1
    assert not relays.acked(peer(0), packet.request)


def test_a_late_timer_sends_once_and_counts_pauses_from_then() -> None:
    relays = Relays(Counters())
    relays.send(peer(0), Action.HALT, 7, None, 0.0)
    assert len(relays.handle_timer(5.0)) == 1
    assert relays.deadline() == 5.0 + 2 * FIRST_PAUSE


def test_deadline_is_the_earliest() -> None:
    relays = Relays(Counters())
    assert relays.deadline() is None
    relays.send(peer(0), Action.HALT, 7, None, 0.51)
    relays.send(peer(1), Action.HALT, 7, None, 0.5)
    assert relays.deadline() == 0.5 + FIRST_PAUSE
    assert [to for to, _ in sent(relays.handle_timer(0.5 + FIRST_PAUSE))] == [1]
    assert relays.deadline() == 0.51 + FIRST_PAUSE
    assert [to for to, _ in sent(relays.handle_timer(1.0))] == [0, 1]


def test_ack_ends_it_once() -> None:
    relays = Relays(Counters())
    ((_, packet),) = sent(relays.send(peer(0), Action.RESET, 7, Round(2), 0.0))
    assert packet == Control(Action.RESET, 7, 1, Round(2))
    assert not relays.acked(peer(1), 1)
    assert not relays.acked(peer(0), 2)
    assert relays.acked(peer(0), 1)
    assert not relays.acked(peer(0), 1)
    assert relays.deadline() is None
    assert relays.handle_timer(99.0) == []
    assert relays.counters["relays_given_up"] == 0


def test_requests_are_numbered_over_all_members_and_jobs() -> None:
    relays = Relays(Counters())
    sends = relays.send(peer(0), Action.HALT, 7, None, 0.0)
    sends += relays.send(peer(1), Action.HALT, 7, None, 0.0)
    sends += relays.send(peer(0), Action.HALT, 8, None, 0.0)
    assert [(to, p.job, p.request) for to, p in sent(sends)] == [(0, 7, 1), (1, 7, 2), (0, 8, 3)]


@pytest.mark.parametrize(
    ("action", "job", "value", "to", "goes"),
    [
        (Action.HELP, 7, HELP, 0, False),  # the very same
        (Action.HELP, 7, Segments(4, 0, 3), 0, True),
        (Action.HELP, 7, Segments(5, 0, 2), 0, True),
        (Action.HELP, 8, HELP, 0, True),
        (Action.HELP, 7, HELP, 1, True),
        (Action.HALT, 7, None, 0, True),
    ],
)
def test_the_same_is_not_sent_twice(
    action: Action, job: int, value: Segments | None, to: int, goes: bool
) -> None:
    relays = Relays(Counters())
    assert len(relays.send(peer(0), Action.HELP, 7, HELP, 0.0)) == 1
    assert len(relays.send(peer(to), action, job, value, 0.001)) == goes
    assert len(relays.handle_timer(1.0)) == 1 + goes


def test_the_same_goes_again_after_its_ack() -> None:
    relays = Relays(Counters())
    ((_, first),) = sent(relays.send(peer(0), Action.HELP, 7, HELP, 0.0))
    relays.acked(peer(0), first.request)
    ((_, second),) = sent(relays.send(peer(0), Action.HELP, 7, HELP, 0.1))
    assert second.request == first.request + 1


def test_sixty_four_helps_at_most() -> None:
    relays = Relays(Counters())
    asked = [relays.send(peer(0), Action.HELP, 7, Segments(4, i, 1), 0.0) for i in range(100)]
    assert [len(sends) for sends in asked] == [1] * 64 + [0] * 36
    assert MAX_PER_MEMBER == 64
    assert len(relays.send(peer(1), Action.HELP, 7, HELP, 0.0)) == 1
    for action, value in [(Action.HALT, None), (Action.RESET, Round(5))]:
        assert len(relays.send(peer(0), action, 7, value, 0.0)) == 1
    assert relays.acked(peer(0), 1)
    assert relays.send(peer(0), Action.HELP, 7, HELP, 0.0) == []  # 65 are left
    assert relays.acked(peer(0), 2)
    assert relays.acked(peer(0), 3)
    assert len(relays.send(peer(0), Action.HELP, 7, HELP, 0.0)) == 1


def test_cancel_is_of_one_member_and_job() -> None:
    relays = Relays(Counters())
    for to, job in [(0, 7), (0, 8), (1, 7)]:
        relays.send(peer(to), Action.HELP, job, HELP, 0.0)
    relays.cancel(peer(0), 7)
    relays.cancel(peer(5), 7)
    left = sent(relays.handle_timer(1.0))
    assert [(to, p.job) for to, p in left] == [(0, 8), (1, 7)]
    assert not relays.acked(peer(0), 1)
    relays.cancel(peer(0), 8)
    relays.cancel(peer(1), 7)
    assert relays.deadline() is None
    assert relays.counters["relays_given_up"] == 0


def test_nothing_is_kept_of_members_all_of_whose_relays_ended() -> None:
    relays = Relays(Counters())
    for to in range(3):
        relays.send(peer(to), Action.HALT, 7, None, 0.0)
    relays.acked(peer(0), 1)
    relays.cancel(peer(1), 7)
    assert list(relays._unanswered) == [peer(2)]
