"""Joins for which a switch has no memory, no job or no seat left."""

from __future__ import annotations

import pytest

from iswitch.core.format.wire import (
    FLAG_REPRODUCIBLE,
    NO_RANK,
    Ack,
    MemberType,
)
from iswitch.core.format.wire import Action as A
from iswitch.core.format.wire import Status as S
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.numpy_plane import memory_needed
from iswitch.core.switch import Switch
from tests.support.parts import JOB, Bench, peer
from tests.support.states import ASYNC, CONTROLLER, LEASE, SHAPE

pytestmark = pytest.mark.unit


def test_full_by_memory() -> None:
    """To the byte; who is refused changes nothing, and the last to leave gives all back."""
    base, each = (memory_needed(SHAPE, True, first) for first in (True, False))
    bench = Bench(Switch(Limits(memory=base + 2 * each - 1)))
    assert bench.join(0, SHAPE, flags=FLAG_REPRODUCIBLE)[0] is S.OK
    assert bench.join(1, SHAPE, flags=FLAG_REPRODUCIBLE) == (S.OK, Ack(A.JOIN, 0, 1, 2, 0, 2), [])
    assert bench.switch.record.reserved == base + each
    told = Ack(A.JOIN, threshold=-(-each // 1024), round=(each - 1) // 1024)  # asked and free, KiB
    assert bench.join(2, SHAPE, flags=FLAG_REPRODUCIBLE) == (S.FULL, told, [])
    assert bench.join(2, SHAPE, job=8)[0] is S.FULL
    assert bench.switch.record.reserved == base + each
    assert set(bench.switch.jobs) == {JOB}
    assert len(bench.switch.jobs[JOB].members) == 2
    assert peer(2) not in bench.switch.record.by_source
    bench.control(0, A.LEAVE)
    assert bench.switch.record.reserved == base + each  # the buffers are still there
    bench.control(1, A.LEAVE)
    assert bench.switch.record.reserved == 0
    assert bench.join(2, SHAPE, job=8)[0] is S.OK


def test_memory_is_for_all_jobs_to_the_byte() -> None:
    need = memory_needed(SHAPE, False, True)
    for spare, status in [(0, S.OK), (-1, S.FULL)]:
        bench = Bench(Switch(Limits(memory=2 * need + spare)))
        assert bench.join(0, SHAPE, job=1)[0] is S.OK
        assert bench.join(1, SHAPE, job=2)[0] is status


def test_first_contributor_is_refused_for_memory() -> None:
    bench = Bench(Switch(Limits(memory=memory_needed(SHAPE, False, True) - 1)))
    assert bench.join(0, SHAPE)[0] is S.FULL
    assert (bench.switch.jobs, bench.switch.record.by_source) == ({}, {})
    assert bench.join(0, None, MemberType.CONTROLLER)[0] is S.OK


def test_a_rank_that_is_taken_again_reserves_nothing_more() -> None:
    bench = Bench()
    bench.gather(ASYNC, 3)
    before = bench.switch.record.reserved
    for incarnation in range(1001, 1010):
        bench.join(1, ASYNC, request=incarnation)
        assert bench.switch.record.reserved == before


def test_full_by_jobs() -> None:
    bench = Bench(Switch(Limits(jobs=2)))
    assert [bench.join(who, SHAPE, job=who)[0] for who in range(3)] == [S.OK, S.OK, S.FULL]
    assert bench.join(5, SHAPE, job=1)[0] is S.OK
    assert bench.join(CONTROLLER, None, MemberType.CONTROLLER, job=3)[0] is S.FULL
    bench.control(0, A.LEAVE, job=0)
    assert bench.join(2, SHAPE, job=2)[0] is S.FULL  # its place is kept for a while
    bench.now = LEASE / 2
    for who in (1, 5):
        bench.heartbeat(who, SHAPE, job=1)
    bench.switch.handle_timer(LEASE)
    assert bench.join(CONTROLLER, None, MemberType.CONTROLLER, job=3)[0] is S.OK
    bench.control(CONTROLLER, A.LEAVE, job=3)  # never had a contributor: forgotten at once
    assert bench.join(2, SHAPE, job=2)[0] is S.OK


@pytest.mark.parametrize("type_", [MemberType.WORKER, MemberType.CONTROLLER])
def test_full_by_seats(type_: MemberType) -> None:
    bench = Bench()
    for who in range(64):
        shape = None if who % 2 else SHAPE
        assert (
            bench.join(who, shape, MemberType.CONTROLLER if who % 2 else MemberType.WORKER)[0]
            is S.OK
        )
    assert bench.join(99, SHAPE, type_) == (S.FULL, Ack(A.JOIN, rank=64), [])  # members
    bench.control(10, A.LEAVE)
    assert bench.join(99, SHAPE, type_)[:2] == (
        S.OK,
        Ack(A.JOIN, 0, NO_RANK if type_ == 2 else 5, 32 - (type_ == 2), 0, 32 - (type_ == 2)),
    )
