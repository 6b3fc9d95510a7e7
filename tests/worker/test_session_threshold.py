"""Sessions of a job whose H is below the number of workers."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.packets import Cutter
from iswitch.core.format.wire import (
    SEG_SIZE,
    Action,
    Shape,
    Threshold,
)
from tests.support.parts import rows_of, seg
from tests.support.scene import Scene, in_round
from tests.support.world import worker_address
from worker_lib.protocol.session import Gone, Session
from worker_lib.protocol.transfer import Contribution, Transfer

pytestmark = pytest.mark.unit


def test_slow_worker_gets_aggregates_without_having_contributed() -> None:
    scene = threshold_of_two()
    outs = scene.begin(0, 1)
    scene.end(0, 1)
    assert all((out == scene.total(0, 0, 1)).all() for out in outs.values())
    # C was sent the aggregates too, but had no round under way.
    scene.let_pass(0.01)
    assert scene.told().count("C< seg 0.0") == 1
    assert scene.workers[2].stats["useless"] == 5
    scene.quiet()
    out = scene.begin(2)[2]
    scene.end(2)
    assert (out == scene.total(0, 0, 1)).all()
    assert scene.switch.counters.drops() == {"late": 5}
    assert sorted(scene.told()) == in_round(0, "C")


def test_a_sum_over_a_vector_in_place_does_not_get_into_its_contribution() -> None:
    """Of a slow worker: the sum comes before it has laid out what it contributes."""
    shape = Shape.of(6, elements=2)
    contribution = Contribution(shape)
    contribution.begin(0)
    vector = np.arange(6, dtype=np.float32)
    right = vector.copy()
    transfer = Transfer(contribution, vector, vector)
    total = rows_of([seg(0, i) + np.full(2, 9, np.float32).tobytes() for i in range(3)])
    assert transfer.take(total, total.shape[1], Cutter(shape), 0.0) == (3, 0)
    assert vector.tolist() == [9] * 6
    rows, _ = contribution.rows(0, 3)
    assert rows[:, SEG_SIZE:].tobytes() == right.tobytes()


def test_slow_worker_takes_what_comes_before_it_has_sent_all() -> None:
    """What has its aggregate need not be sent any more."""
    scene = threshold_of_two()
    slow = scene.workers[2]
    slow.window.size = slow.window.ceiling = 0  # one burst at a time, and only when all is back
    slow._burst = 2
    outs = scene.begin(0, 1, 2)
    scene.pump()
    scene.end(0, 1, 2)
    assert all((out == scene.total(0, 0, 1)).all() for out in outs.values())
    sent = [line for line in scene.told() if line.startswith("C> seg")]
    assert sent == ["C> seg 0.0", "C> seg 0.1"]


def fall_behind(scene: Scene, rounds: int) -> Session:
    """C begins its round, and sends nothing of it while the others do some."""
    slow = scene.workers[2]
    scene.begin(2)
    del scene.sessions[worker_address(2)]
    for _ in range(rounds):
        scene.begin(0, 1)
        scene.end(0, 1)
    scene.quiet()
    scene.sessions[worker_address(2)] = slow
    scene.news(2)
    scene.let_pass(0.2)
    return slow


def threshold_of_two() -> Scene:
    scene = Scene(3).start()
    scene.workers[0].request(Action.SETH, Threshold(2), scene.now)
    scene.let_pass(0.01)
    return scene


def test_worker_too_slow_is_told_so() -> None:
    scene = threshold_of_two()
    scene.begin(0, 1)
    scene.end(0, 1)
    scene.begin(2)
    scene.end(2)
    slow = fall_behind(scene, 4)
    assert scene.news(2) == [Gone(1, 4)]
    assert (slow.transfer, slow.round) == (None, 4)
    assert [line for line in scene.told() if "C> seg" not in line] == [
        "C> help 1.0+5", "C< ack help GONE"
    ]  # fmt: skip
    out = scene.begin(2)[2]
    scene.end(2)
    assert (out == scene.total(4, 0, 1)).all()
    assert slow.round == 5


def test_worker_too_slow_from_the_start_is_told_so() -> None:
    """It has never contributed, so that its first round is not settled."""
    scene = threshold_of_two()
    slow = fall_behind(scene, 4)
    assert scene.news(2) == [Gone(0, 3)]
    out = scene.begin(2)[2]
    scene.end(2)
    assert (out == scene.total(3, 0, 1)).all()
    assert slow.round == 4
