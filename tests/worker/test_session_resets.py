"""Sessions that are halted and reset, in mid round, idle and twice."""

from __future__ import annotations

import pytest

from iswitch.core.format.wire import (
    Ack,
    Action,
    Control,
    Segments,
    Status,
)
from tests.support.scene import Scene, outgoing
from tests.support.world import SWITCH
from worker_lib.protocol.session import Answered, Halted, WasReset

pytestmark = pytest.mark.unit


def controller_scene() -> Scene:
    """Three workers that have done round 0; C halts and resets."""
    scene = Scene(3).start()
    scene.round_of_all()
    scene.quiet()
    for i in range(3):
        scene.news(i)
    return scene


def test_halt_then_reset_in_mid_round() -> None:
    scene = controller_scene()
    a, b, c = scene.workers
    scene.begin(0, 1)
    scene.let_pass(0.001)
    halt = c.request(Action.HALT, None, scene.now)
    scene.let_pass(0.001)
    assert scene.told()[10:] == [
        "C> halt", "C< ack halt", "A< halt", "B< halt", "C< halt",
        "A> ack halt", "B> ack halt", "C> ack halt",
    ]  # fmt: skip
    assert scene.news(0) == scene.news(1) == [Halted()]
    news = scene.news(2)
    assert [type(event) for event in news] == [Answered, Halted]
    assert isinstance(news[0], Answered)
    assert (news[0].request, news[0].status) == (halt, Status.OK)
    # Until the Reset only a question a second, whether it still holds, also of who begins now.
    scene.lines.clear()
    scene.begin(2)
    scene.let_pass(30.0)
    for name in "ABC":
        asked = [line for line in scene.told() if line.startswith(f"{name}> ")]
        assert set(asked) == {f"{name}> help 1.0+1"}
        assert 29 <= len(asked) <= 32
    told = [line for line in scene.told() if "< " in line]
    assert set(told) == {f"{name}< ack help HALTED" for name in "ABC"}
    scene.lines.clear()
    c.request(Action.RESET, None, scene.now)
    scene.let_pass(0.001)
    assert scene.told() == [
        "C> reset", "C< ack reset", "A< reset 3", "B< reset 3", "C< reset 3",
        "A> ack reset", "B> ack reset", "C> ack reset",
    ]  # fmt: skip
    assert scene.news(0) == scene.news(1) == [WasReset(3)]
    for session in (a, b):
        assert (session.transfer, session.round, session.halted) == (None, 3, False)
    (answer,) = scene.news(2)  # who asked for it needs no other event
    assert isinstance(answer, Answered)
    assert answer.ack.round == c.round == 3
    for _ in range(3):
        scene.round_of_all()
    assert {s.round for s in scene.workers} == {6}
    assert scene.switch.counters.drops() == {}


@pytest.mark.parametrize("lost", ["B< halt", "B> ack halt", "B< reset 3", "B> ack reset"])
def test_lost_halt_or_reset(lost: str) -> None:
    """The switch repeats both after 20 ms; a repeat is acked and not executed again."""
    scene = controller_scene()
    c = scene.workers[2]
    scene.lose(lost)
    scene.begin(0, 1)
    scene.let_pass(0.001)
    c.request(Action.HALT, None, scene.now)
    scene.let_pass(1.0)
    c.request(Action.RESET, None, scene.now)
    scene.let_pass(1.0)
    assert scene.to_lose == []
    again = 2 if "halt" in lost else 1
    assert scene.told().count("B< halt") == again
    assert scene.told().count("B< reset 3") == 3 - again
    first, second = scene.times("B< halt" if "halt" in lost else "B< reset 3")
    assert second - first == pytest.approx(20)
    assert scene.news(0) == scene.news(1) == [Halted(), WasReset(3)]
    assert scene.told().count("A< halt") == scene.told().count("A< reset 3") == 1
    scene.round_of_all()
    scene.round_of_all()


def test_data_sent_while_halted_is_void() -> None:
    """A Halt that has not reached B yet: what B sends is dropped, and B learns it by asking."""
    scene = controller_scene()
    scene.lose(*["B< halt"] * 10)
    scene.workers[2].request(Action.HALT, None, scene.now)
    scene.let_pass(0.001)
    scene.begin(1)
    scene.let_pass(0.5)
    assert scene.switch.counters.drops() == {"halted": 5}
    assert scene.told().count("B> help 1.0+5") == 1
    assert scene.told().count("B< ack help HALTED") == 1
    assert scene.news(1) == [Halted()]
    scene.workers[0].request(Action.RESET, None, scene.now)
    scene.let_pass(0.1)
    assert scene.news(1) == [WasReset(2)]  # nothing had been contributed to round 1
    scene.round_of_all()


def test_reset_while_idle() -> None:
    """Everybody is between two rounds, or one has not begun the same round."""
    scene = controller_scene()
    scene.workers[0].request(Action.RESET, None, scene.now)
    scene.let_pass(0.001)
    assert scene.news(1) == scene.news(2) == [WasReset(2)]
    (answer,) = scene.news(0)
    assert isinstance(answer, Answered)
    assert answer.ack.round == 2
    assert {s.round for s in scene.workers} == {2}
    scene.round_of_all()


@pytest.mark.parametrize("lost", ["A< reset 2", "A< ack reset"])
def test_who_resets_is_told_once(lost: str) -> None:
    """By the Ack or by the relay, whichever comes first; what comes later disturbs nothing."""
    scene = controller_scene()
    scene.lose(lost)
    scene.workers[0].request(Action.RESET, None, scene.now)
    scene.let_pass(0.001)
    assert scene.workers[0].round == 2
    outs = scene.begin(0)
    scene.let_pass(0.3)  # the lost one is repeated in the middle of the round
    assert scene.told().count(lost) == 2
    outs |= scene.begin(1, 2)
    scene.end(0, 1, 2)
    assert all((out == scene.total(2, 0, 1, 2)).all() for out in outs.values())
    assert [type(event) for event in scene.news(0)] == [Answered]


def test_a_reset_that_is_told_again_after_its_round_leads_nobody_back() -> None:
    scene = controller_scene()
    scene.lose("A< reset 2")
    scene.workers[0].request(Action.RESET, None, scene.now)
    scene.let_pass(0.001)
    scene.round_of_all()
    assert scene.told().count("A< reset 2") == 1
    scene.let_pass(0.1)
    assert scene.told().count("A< reset 2") == 2
    assert {s.round for s in scene.workers} == {3}
    scene.round_of_all()


def test_a_newcomer_that_resets_to_its_own_first_round_is_told_once() -> None:
    """It was to begin where the Reset leads: the Ack tells it, and the relay nothing more."""
    scene = controller_scene()
    newcomer = scene.workers[0]
    newcomer.round = 2  # as one that takes a dead worker's place is told
    scene.begin(0)
    newcomer.request(Action.RESET, None, scene.now)
    scene.let_pass(0.001)
    assert [type(event) for event in scene.news(0)] == [Answered]
    assert newcomer.transfer is None
    scene.round_of_all()


def test_late_answer_halted_after_a_reset() -> None:
    """An Ack that overtakes the Reset's relay must not suspend the worker for good."""
    scene = controller_scene()
    b = scene.workers[1]
    scene.begin(1)
    scene.lose("B< ack help 101")
    scene.let_pass(0.03)
    (number,) = b._help_requests
    scene.workers[0].request(Action.RESET, None, scene.now)
    scene.let_pass(0.001)
    late = Control(Action.ACK, 7, number, Ack(Action.HELP), Status.HALTED).build()
    scene.network.transmit(SWITCH, [outgoing(1, late)])
    scene.let_pass(0.001)
    assert not b.halted
    scene.round_of_all()


def test_two_resets_in_a_row() -> None:
    scene = controller_scene()
    for _ in range(2):
        scene.workers[0].request(Action.RESET, None, scene.now)
    scene.let_pass(0.1)
    assert {s.round for s in scene.workers[1:]} == {4}
    scene.round_of_all()


def test_old_contributions_are_not_sent_after_a_reset() -> None:
    """Numbers may come again after many rounds; what was sent before a Reset is no round's."""
    scene = controller_scene()
    scene.workers[0].request(Action.RESET, None, scene.now)
    scene.let_pass(0.1)
    scene.quiet()
    old = Control(Action.HELP, 7, 77, Segments(0, 0, 5)).build()
    scene.network.transmit(SWITCH, [outgoing(1, old)])
    scene.let_pass(0.1)
    assert scene.told() == ["B< help 0.0+5", "B> ack help"]
