"""Sessions against a switch, each losing one chosen packet: what follows, packet by packet."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.wire import (
    NO_RANK,
    Ack,
    Action,
    Control,
    Join,
    Segments,
)
from tests.support.scene import SHAPE, Scene, burst_from_switch, in_round, outgoing, second_round
from tests.support.world import SWITCH, worker_address

pytestmark = pytest.mark.unit


def test_nothing_lost() -> None:
    scene = second_round()
    assert sorted(scene.told()) == in_round(1)
    assert scene.recovery() == []


# Data


@pytest.mark.parametrize("index", [0, 2, 4], ids=["first", "middle", "last"])
def test_lost_contribution(index: int) -> None:
    """Both ask after the timer's 20 ms; only A is asked, and sends only what was lost."""
    scene = second_round(f"A> seg 1.{index}")
    said = len(scene.told()) - 9
    assert sorted(scene.told()[:said]) == in_round(1, lost=index)
    assert scene.told()[said:] == scene.recovery() == [
        f"A> help 1.{index}+1",
        f"B> help 1.{index}+1",
        "A< ack help 1",
        f"A< help 1.{index}+1",
        "B< ack help 1",
        "A> ack help",
        f"A> seg 1.{index}",
        f"A< seg 1.{index}",
        f"B< seg 1.{index}",
    ]  # fmt: skip
    assert scene.times(f"A> help 1.{index}+1") == [20.1]  # 20 ms after the last aggregate
    assert scene.times(f"A> seg 1.{index}") == [0.0, 20.2]
    assert scene.workers[0].stats["sent_again"] == 1
    assert scene.workers[1].stats["sent_again"] == 0
    assert scene.switch.counters.drops() == {}


@pytest.mark.parametrize("index", [0, 2, 4], ids=["first", "middle", "last"])
def test_lost_aggregate(index: int) -> None:
    """The switch has it still: nobody contributes again."""
    scene = second_round(f"B< seg 1.{index}")
    assert sorted(scene.told()[:20]) == in_round(1)
    assert scene.told()[20:] == [f"B> help 1.{index}+1", "B< ack help", f"B< seg 1.{index}"]
    assert scene.switch.counters["retransmitted"] == 1
    assert scene.switch.counters.drops() == {}


def test_lost_contribution_and_the_rest_of_the_burst() -> None:
    """What lacks is named in ranges, and nothing between them is sent again."""
    scene = second_round("A> seg 1.0", "A> seg 1.1", "A> seg 1.3")
    lacking = ["1.0+2", "1.3+1"]
    assert scene.recovery() == [
        *(f"{w}> help {named}" for w in "AB" for named in lacking),
        "A< ack help 1", "A< help 1.0+2", "A< ack help 1", "A< help 1.3+1",
        "B< ack help 1", "B< ack help 1",
        "A> ack help", "A> seg 1.0", "A> seg 1.1", "A> ack help", "A> seg 1.3",
        "A< seg 1.0", "A< seg 1.1", "B< seg 1.0", "B< seg 1.1", "A< seg 1.3", "B< seg 1.3",
    ]  # fmt: skip
    assert scene.workers[0].stats["sent_again"] == 3


def test_everything_of_one_worker_lost() -> None:
    scene = second_round(*(f"B> seg 1.{i}" for i in range(5)))
    assert scene.recovery() == [
        "A> help 1.0+5", "B> help 1.0+5",
        "A< ack help 10", "B< help 1.0+5", "B< ack help 10",
        "B> ack help", *(f"B> seg 1.{i}" for i in range(5)),
        *(f"{w}< seg 1.{i}" for w in "AB" for i in range(5)),
    ]  # fmt: skip


def test_the_first_round_asks_after_50_ms() -> None:
    """Nothing is known of round trips yet."""
    scene = Scene(2).start()
    scene.lose("A> seg 0.4", *(f"B> seg 0.{i}" for i in range(4)))
    scene.round_of_all()
    assert scene.times("A> help 0.0+5") == scene.times("B> help 0.0+5") == [50.0]
    assert scene.times("A< help 0.4+1") == scene.times("B< help 0.0+4") == [50.05]
    assert [line for line in scene.recovery() if "> seg" in line] == [
        "A> seg 0.4", *(f"B> seg 0.{i}" for i in range(4))
    ]  # fmt: skip


# Help


def test_lost_help() -> None:
    """With a lost contribution: the others ask as well."""
    scene = second_round("A> seg 1.2", "A> help 1.2+1")
    assert scene.recovery() == [
        "A> help 1.2+1", "B> help 1.2+1",
        "B< ack help 1", "A< help 1.2+1", "A> ack help", "A> seg 1.2", "A< seg 1.2", "B< seg 1.2",
    ]  # fmt: skip


def test_lost_helps_are_asked_again_ever_more_rarely() -> None:
    """Twice the pause each time; each under a new number."""
    lost = ["A< seg 1.2", *["A> help 1.2+1"] * 6]
    scene = second_round(*lost)
    assert scene.recovery() == [*["A> help 1.2+1"] * 7, "A< ack help", "A< seg 1.2"]
    waits = np.diff([0.1, *scene.times("A> help 1.2+1")]).tolist()
    assert waits == pytest.approx([20, 40, 80, 160, 320, 640, 1000])
    assert scene.workers[0].stats["helps"] == 7
    # What came resets the pause.
    scene.quiet().lose("A< seg 2.0")
    scene.round_of_all()
    assert scene.times("A> help 2.0+1") == [20.1]


def test_lost_ack_of_help() -> None:
    """The aggregate comes all the same; nobody asks for the Ack."""
    scene = second_round("B< seg 1.1", "B< ack help")
    assert scene.recovery() == ["B> help 1.1+1", "B< ack help", "B< seg 1.1"]


def test_resent_aggregate_lost() -> None:
    scene = second_round("B< seg 1.1", "B< seg 1.1")
    assert scene.recovery() == ["B> help 1.1+1", "B< ack help", "B< seg 1.1"] * 2
    assert scene.times("B> help 1.1+1") == [20.1, 60.1]


def test_lost_relayed_help() -> None:
    """The switch repeats it after 20 ms; the askers need not."""
    scene = second_round("B> seg 1.4", "B< help 1.4+1")
    assert scene.recovery() == [
        "A> help 1.4+1", "B> help 1.4+1",
        "A< ack help 10", "B< help 1.4+1", "B< ack help 10",
        "B< help 1.4+1", "B> ack help", "B> seg 1.4", "A< seg 1.4", "B< seg 1.4",
    ]  # fmt: skip
    assert scene.times("B< help 1.4+1") == [20.15, 40.15]
    assert scene.switch.counters["helps_relayed"] == 1


def test_lost_ack_of_relayed_help() -> None:
    """The repeat is acked, and nothing is sent again for it."""
    scene = second_round("B> seg 1.4", "B> ack help")
    assert scene.recovery() == [
        "A> help 1.4+1", "B> help 1.4+1",
        "A< ack help 10", "B< help 1.4+1", "B< ack help 10",
        "B> ack help", "B> seg 1.4", "A< seg 1.4", "B< seg 1.4",
        "B< help 1.4+1", "B> ack help",
    ]  # fmt: skip
    assert scene.workers[1].stats["sent_again"] == scene.workers[1].stats["helped"] == 1
    assert scene.switch.counters.drops() == {}


def test_contribution_lost_twice() -> None:
    """A relay is acked, but what it asked for is lost: the askers ask again, under a new number."""
    scene = second_round("B> seg 1.4", "B> seg 1.4")
    once = [
        "A> help 1.4+1", "B> help 1.4+1",
        "A< ack help 10", "B< help 1.4+1", "B< ack help 10",
        "B> ack help", "B> seg 1.4",
    ]  # fmt: skip
    assert scene.recovery() == [*once, *once, "A< seg 1.4", "B< seg 1.4"]
    assert scene.times("A> help 1.4+1") == [20.1, 60.1]


def test_doubled_relay_is_acked_but_executed_once() -> None:
    scene = Scene(2).start()
    scene.begin(0)
    scene.let_pass(0.01)
    scene.quiet()
    help_ = Control(Action.HELP, 7, 99, Segments(0, 1, 2)).build()
    for _ in range(3):
        scene.network.transmit(SWITCH, [outgoing(0, help_)])
    scene.let_pass(0.001)
    assert scene.told() == [
        *["A< help 0.1+2"] * 3,
        "A> ack help", "A> seg 0.1", "A> seg 0.2", "A> ack help", "A> ack help",
    ]  # fmt: skip
    assert scene.workers[0].stats["helped"] == 1


def test_nonsense_from_the_switch_is_ignored() -> None:
    scene = Scene(2).start()
    scene.round_of_all()
    scene.quiet()
    scene.news(0)
    nonsense = [
        b"\xff" * 24,
        b"short",
        Control(Action.HELP, 8, 50, Segments(0, 0, 1)).build(),  # of another job
        Control(Action.JOIN, 7, 51, Join.for_shape(SHAPE)).build(),  # not a switch's to say
        Control(Action.ACK, 7, 4711, Ack(Action.HELP)).build(),  # answers nothing
        Control(Action.ACK, 7, 1000, Ack(Action.JOIN, rank=9)).build(),  # answered before
    ]
    scene.network.transmit(SWITCH, [outgoing(0, payload) for payload in nonsense[2:]])
    for payload in nonsense[:2]:
        scene.sessions[worker_address(0)].receive(burst_from_switch(payload), scene.now)
    scene.let_pass(0.001)
    assert [line for line in scene.told() if ">" in line] == []
    assert scene.workers[0].rank == NO_RANK  # before all were there, no Ack told one
    assert scene.news(0) == []
    # A Help for segments that the vector does not have is acked; nothing is sent.
    scene.quiet()
    beyond = Control(Action.HELP, 7, 52, Segments(0, 4, 2)).build()
    scene.network.transmit(SWITCH, [outgoing(0, beyond)])
    scene.let_pass(0.001)
    assert scene.told() == ["A< help 0.4+2", "A> ack help"]
    scene.round_of_all()
