"""Calls that a signal's handler ends by an error, at any line; the same call then finishes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from iswitch.core.format.wire import Mode, Shape
from tests.support.blocks import MODES, Ranks, even, expected
from tests.support.interrupting import Handler, Interrupted
from tests.support.world import World
from worker_lib.protocol.session import Session

pytestmark = pytest.mark.unit

SHAPE = Shape.of(20, elements=8)


def is_interrupted(session: Session, line: int, begin: Callable[[], object]) -> bool:
    """Begin a round and send the first packets, which get lost; an error ends that at a line."""
    handler = Handler(line)
    try:
        with handler.watching():
            begin()
            session.transmissions(session.heard)
    except Interrupted:
        session.abandon()
    return handler.was_called


@pytest.mark.parametrize("express", [False, True])
def test_an_allreduce_ended_at_any_line_is_finished_by_the_next_call(express: bool) -> None:
    world = World()
    sessions = [world.join(i, SHAPE) for i in range(2)]
    world.gather(sessions)
    one, line, goes_on = sessions[0], 0, True
    while goes_on:
        line += 1
        vectors = [np.arange(20, dtype=np.float32) * (line + i) for i in range(2)]
        vector, out = vectors[0].copy(), np.empty(20, np.float32)
        begin = one.begin_express if express else one.begin
        goes_on = is_interrupted(one, line, partial(begin, vector, out, world.now))
        one.abandon()
        vector[:] = np.nan
        for found in world.allreduce(sessions, vectors):
            assert found.tobytes() == (vectors[0] + vectors[1]).tobytes()
    assert line > 30


def test_an_allreduce_ended_as_it_ends_has_the_sum_in_out_or_is_finished_by_the_next_call() -> None:
    """Its number tells which: the round's, or one more."""
    world = World()
    sessions = [world.join(i, SHAPE) for i in range(2)]
    world.gather(sessions)
    one, line, goes_on, found = sessions[0], 0, True, set[int]()
    while goes_on:
        line += 1
        round_, handler = one.round, Handler(line)
        vectors = [np.arange(20, dtype=np.float32) * (line + i) for i in range(2)]
        out = np.empty(20, np.float32)
        for session, into in (one, out), (sessions[1], np.empty_like(out)):
            session.begin(vectors[session.rank], into, world.now)
        world.run(lambda: all(s.transfer is not None and s.transfer.done for s in sessions))
        sessions[1].finish()
        try:
            with handler.watching():
                one.finish()
        except Interrupted:
            one.abandon()
        found.add(one.round - round_)
        if one.round == round_:
            one.begin(vectors[0], out, world.now)
            world.run(lambda: one.transfer is not None and one.transfer.done)
            one.finish()
        assert one.round == round_ + 1
        assert out.tobytes() == (vectors[0] + vectors[1]).tobytes()
        goes_on = handler.was_called
    assert found == {0, 1}
    assert line > 10


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name.lower())
def test_an_exchange_ended_at_any_line_is_finished_by_the_next_call(mode: Mode) -> None:
    ranks = Ranks(2, mode=mode, numel=20)
    one, line, goes_on = ranks.ranks[0], 0, True
    while goes_on:
        line += 1
        gives = ranks.draw(even(mode, 2, 20 - line % 3), seed=line)
        first = [block.copy() for block in gives[0]]
        gets = [np.empty_like(block) for block in expected(mode, gives)[0]]
        goes_on = is_interrupted(one, line, partial(one.begin_blocks, first, gets, ranks.now))
        one.abandon()
        for block in first:
            block[:] = np.nan
        ranks.exchange(gives)
    assert line > 30
