"""The window of rounds, when a segment is complete, and what memory a job takes."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Cutter, Rows
from iswitch.core.format.wire import SEG_SIZE, DType, MemberType, Mode, Shape
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member
from iswitch.core.jobs.phases import Named
from iswitch.core.jobs.way import Way
from iswitch.core.jobs.window import Window
from iswitch.core.sums.accelerator import NumPyAccelerator
from iswitch.core.sums.numpy_plane import NumPyPlane, memory_needed
from iswitch.core.sums.plane import Accelerator
from iswitch.core.sums.runs import Outcome
from tests.support.parts import peer, rows_of, seg, segments_of

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("quiet")]

TOP = 2**32
SHAPE = Shape.of(10, DType.INT32, elements=4)  # 4, 4 and 2 elements
ASYNC = Shape.of(10, DType.INT32, mode=Mode.ASYNCHRONOUS, elements=4)


def empty_job() -> Job:
    counters = Counters()
    return Job(7, counters, NumPyPlane(counters))


def take(job: Job, member: Member, rows: Rows, outcome: Outcome) -> None:
    for stretch in job.stretches(rows, rows.shape[1]):
        job.contribute(member, stretch, outcome)


def a_job(workers: int = 1, shape: Shape = SHAPE, expected: int = 0) -> Job:
    job = empty_job()
    job.begin(shape, 0)
    assert job.accelerator is not None
    for rank in range(workers):
        one = Member(peer(rank), MemberType.WORKER, rank, 1000, None, 0.0, expected=expected)
        job.add(one)
        job.accelerator.join(rank)
    return job


def worker(job: Job, rank: int) -> Member:
    return job.members.by_address[peer(rank)]


def contribute(job: Job, rank: int, round_: int, *indices: int) -> list[tuple[int, int]]:
    """One packet at a time; the rounds and indices that became complete."""
    outcome = Outcome([], [])
    for index in indices or range(SHAPE.segments):
        payload = segments_of(SHAPE, round_, np.ones(10, np.int32))[index]
        take(job, worker(job, rank), rows_of([payload]), outcome)
    return [(run.round, i) for run in outcome.completed for i in range(run.start, run.stop)]


# Window


@pytest.mark.parametrize("high", [100, 0, 1, TOP - 1, 2**31])
def test_three_rounds(high: int) -> None:
    window = Window(high=high)
    inside = [step for step in range(-5, 6) if (high + step) % TOP in window]
    past = [step for step in range(-5, 6) if window.is_past((high + step) % TOP)]
    assert inside == [-1, 0, 1]
    assert past == [-5, -4, -3, -2]


def test_nothing_before_the_lowest() -> None:
    window = Window(high=100, lowest=100)
    assert [r for r in range(95, 105) if r in window] == [100, 101]
    assert window.is_past(99)


def test_contributions_raise_high() -> None:
    window = Window()
    assert (window.is_sure, window.newcomers) == (False, 0)
    window.contribute(0)
    assert (window.high, window.is_sure, window.contributed, window.newcomers) == (0, True, True, 1)
    window.contribute(1)
    assert (window.high, window.contributed, window.newcomers) == (1, True, 2)
    window.contribute(0)
    assert (window.high, window.newcomers) == (1, 2)


def test_skip_wraps_and_shuts_out_what_was() -> None:
    window = Window(high=TOP - 1, named=Named.SURE)
    window.skip()
    assert (window.high, window.lowest, window.base, window.newcomers) == (1, 1, 1, 1)
    assert [r for r in (TOP - 1, 0, 1, 2, 3) if r in window] == [1, 2]
    window.contribute(2)
    assert window.lowest is None or 1 in window
    assert 1 in window
    assert 0 not in window


def test_lowest_is_dropped_when_it_is_past() -> None:
    window = Window(high=10, named=Named.SURE)
    window.skip()
    for round_ in range(12, 16):
        window.contribute(round_)
    assert window.lowest is None
    assert 14 in window


NAMES = [
    # what was named before, (round, first) named now; high, base, named then
    ([], (41, False), (41, 41, True)),
    ([], (TOP - 5, False), (TOP - 5, TOP - 5, True)),
    ([], (41, True), (41, 41, False)),
    ([(41, True)], (40, True), (40, 40, False)),  # gives way to a lower one
    ([(41, True)], (42, True), (41, 41, False)),
    ([(41, True)], (40, False), (40, 41, True)),
    ([(41, True)], (42, False), (42, 41, True)),
    ([(41, False)], (42, False), (42, 41, True)),  # the high of before is in the window
    ([(41, False)], (43, False), (43, 43, True)),
    ([(41, False)], (40, False), (41, 40, True)),  # an older one in the window
    ([(41, False)], (39, False), (41, 41, True)),
    ([(41, False)], (50, True), (41, 41, True)),
    ([(41, False)], (40, True), (41, 41, True)),
    ([(TOP - 1, False)], (0, False), (0, TOP - 1, True)),
]


@pytest.mark.parametrize(("before", "now", "then"), NAMES)
def test_naming(
    before: list[tuple[int, bool]], now: tuple[int, bool], then: tuple[int, int, bool]
) -> None:
    window = Window()
    for round_, first in before:
        window.name(round_, first)
    window.name(*now)
    assert (window.high, window.base, window.is_sure) == then


# Data


def test_questions_in_their_order() -> None:
    """Each packet has every fault that comes after the one it is dropped for."""
    job = a_job(3)
    job.members.begin_at(worker(job, 1), 3)
    job.halted = True
    outcome = Outcome([], [])
    take(job, worker(job, 1), rows_of([seg(9, 3) + bytes(16)]), outcome)
    assert job.counters.drops() == {"malformed": 1}
    contribute(job, 1, 2, 0)
    assert job.counters.drops() == {"malformed": 1, "halted": 1}
    job.halted = False
    contribute(job, 1, 2, 0)
    assert job.counters.drops() == {"malformed": 1, "halted": 1, "before_join": 1}
    contribute(job, 0, 2, 0)
    contribute(job, 0, TOP - 2, 0)
    assert job.counters["out_of_window"] == 2
    assert (job.window.high, job.window.is_sure) == (0, False)
    assert job.counters["accumulated"] == 0
    contribute(job, 0, 0, 0)
    contribute(job, 0, 0, 0)
    assert (job.counters["accumulated"], job.counters["duplicate"]) == (1, 1)


@pytest.mark.parametrize(
    ("index", "size", "sound"),
    [
        (0, 24, True),
        (1, 24, True),
        (2, 16, True),
        (2, 24, False),
        (0, 16, False),
        (1, 16, False),
        (0, 23, False),
        (0, 25, False),
        (2, 15, False),
        (0, 8, False),
        (3, 24, False),
        (3, 16, False),
        (2**32 - 1, 24, False),
        (2**31, 16, False),
    ],
)
def test_length_goes_with_the_index(index: int, size: int, sound: bool) -> None:
    job = a_job(2)
    payload = seg(0, index) + bytes(size - 8)
    take(job, worker(job, 0), rows_of([payload]), Outcome([], []))
    assert job.counters["accumulated"] == sound
    assert job.counters["malformed"] == (not sound)


def test_a_stretch_past_the_end_counts_up_to_it() -> None:
    job = a_job(2, Shape.of(8, DType.INT32, elements=4))
    rows = rows_of([seg(0, i) + bytes(16) for i in range(5)])
    take(job, worker(job, 0), rows, Outcome([], []))
    assert (job.counters["accumulated"], job.counters["malformed"]) == (2, 3)


# Completion


@pytest.mark.parametrize(
    ("threshold", "held", "complete"),
    [
        (0, 0b0111, True),
        (0, 0b0011, False),
        (0, 0b1111, True),  # also of one that has left
        (0, 0b1011, False),
        (2, 0b0011, True),
        (2, 0b1001, True),
        (2, 0b0100, False),
        (4, 0b0111, False),
    ],
)
def test_is_complete(threshold: int, held: int, complete: bool) -> None:
    job = a_job(3)
    job.threshold = threshold
    assert job.is_complete(0, held) is complete
    assert job.members.threshold_in_force == (threshold or 3)


def test_nothing_is_complete_before_all_expected_have_joined() -> None:
    job = a_job(2, expected=3)
    for threshold in (0, 1):
        job.threshold = threshold
        assert not job.is_complete(0, 0b11)
    job.add(Member(peer(2), MemberType.WORKER, 2, 1000, None, 0.0))
    assert job.is_complete(0, 0b11)


@pytest.mark.parametrize(("threshold", "need"), [(0, 3), (2, 2), (5, 5)])
def test_asynchronous_counts_contributions(threshold: int, need: int) -> None:
    job = a_job(3, ASYNC)
    job.threshold = threshold
    assert [job.is_complete(0, count) for count in (need - 1, need, need + 1)] == [
        False,
        True,
        True,
    ]


def test_rounds_follow_one_another() -> None:
    job = a_job(2)
    for round_ in range(5):
        assert contribute(job, 0, round_) == []
        assert contribute(job, 1, round_) == [(round_, i) for i in range(3)]
        assert job.window.high == round_
    contribute(job, 0, 3)
    assert job.counters.drops() == {"late": 3}
    contribute(job, 0, 2)
    assert job.counters.drops() == {"late": 3, "out_of_window": 3}


def test_reset_goes_two_rounds_further_and_empties() -> None:
    job = a_job(2)
    job.halted = True
    job.window.name(6, False)
    job.halted = False
    contribute(job, 0, 6)
    job.halted = True
    job.reset()
    assert (job.window.high, job.halted) == (8, False)
    assert job.accelerator is not None
    assert job.accelerator.bits_held() == 0
    assert contribute(job, 1, 6) == []
    assert job.counters["out_of_window"] == 3
    assert contribute(job, 1, 8) == []
    assert contribute(job, 0, 8) == [(8, 0), (8, 1), (8, 2)]


def test_end_frees_and_keeps_the_place() -> None:
    job = a_job(1)
    contribute(job, 0, 0)
    job.threshold = 3
    job.end()
    assert (job.shape, job.accelerator, job.reserved) == (None, None, {})
    assert (job.window.high, job.rounds.completed_any, job.threshold) == (2, False, 3)
    job.halted = True
    job.sleep(9.0)
    assert (job.threshold, job.halted, job.dormant_since) == (0, False, 9.0)


def test_asynchronous_job_goes_on_from_its_place() -> None:
    job = empty_job()
    job.window.name(41, False)
    job.begin(ASYNC, 0)
    assert job.accelerator is not None
    job.add(Member(peer(0), MemberType.WORKER, 0, 1000, None, 0.0))
    job.accelerator.join(0)
    outcome = Outcome([], [])
    payload = segments_of(ASYNC, 1, np.ones(10, np.int32))[0]
    take(job, worker(job, 0), rows_of([payload]), outcome)
    assert [run.round for run in outcome.completed] == [42]
    assert [out.peers for out in job.deliver(outcome.completed)] == [(peer(0),)]
    assert (job.window.high, job.rounds.completed_any) == (42, True)


# Memory


def arrays_of(accelerator: Accelerator) -> int:
    """Bytes of all that grows with the number of segments, headers of rounds aside."""
    assert isinstance(accelerator, NumPyAccelerator)
    return accelerator.nbytes()


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize(
    ("mode", "reproducible"),
    [(Mode.SYNCHRONOUS, False), (Mode.SYNCHRONOUS, True), (Mode.ASYNCHRONOUS, False)],
)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize(("numel", "elements"), [(0, 366), (1, 1), (3000, 1), (9999, 10), (9, 366)])
def test_memory_needed_is_what_is_allocated(
    numel: int, elements: int, dtype: DType, mode: Mode, reproducible: bool, members: int
) -> None:
    """Never less than the sums, states, headers and copies take, and little more."""
    shape = Shape.of(numel, dtype, mode=mode, elements=elements)
    job = empty_job()
    job.begin(shape, 0, Way(reproducible))
    assert job.accelerator is not None
    for rank in range(members):
        job.accelerator.join(rank)
    reserved = sum(memory_needed(shape, reproducible, rank == 0) for rank in range(members))
    headers = Cutter.ROUNDS * SEG_SIZE * shape.segments
    spare = reserved - headers - arrays_of(job.accelerator)
    assert 0 <= spare <= (4 + 16 * members) * shape.segments


@pytest.mark.parametrize("shape", [Shape.of(1000, elements=1), Shape.of(9999)])
def test_memory_needed_covers_headers(shape: Shape) -> None:
    job = a_job(1, shape)
    accelerator = job.accelerator
    assert accelerator is not None
    for round_ in range(20):
        accelerator.cutter.headers(round_, 0, 1)
    headers = sum(sys.getsizeof(kept) for kept in accelerator.cutter._headers.values())
    assert arrays_of(accelerator) + headers <= memory_needed(shape, False, True) + 1024
