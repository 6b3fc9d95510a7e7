"""Section 4, owned segments: who contributes one, who gets its aggregate, how a round closes."""

from __future__ import annotations

import numpy as np

from tests.conformance import wire
from tests.conformance.case import Bench, case
from tests.conformance.client import Peer
from tests.conformance.expectations import expect_elements, expect_no_data
from tests.conformance.packets import expect_equal, expect_status
from tests.conformance.wire import Action, DType, Mode, Shape, Status

RANKS = 2


def shape_of(mode: Mode, segments: int = 5) -> Shape:
    """The layout of blocks of two segments, or one, of two int32 each, and a closing segment."""
    return Shape(segments, 2, 1, DType.INT32, mode=mode)


def gathered(bench: Bench, mode: Mode) -> list[Peer]:
    """Two workers, by rank, that know that both have joined."""
    bench.new_job()
    workers = [bench.stranger(shape_of(mode)) for _ in range(RANKS)]
    for rank, worker in enumerate(workers):
        worker.join(expected=RANKS, rank=rank)
    return workers


def contribute(worker: Peer, segments: dict[int, int], count: int | None = None) -> None:
    """Contribute segments of two equal elements, then close the round, by default rightly."""
    vector = np.zeros(worker.shape.size, np.int32)
    for index, value in segments.items():
        vector[2 * index : 2 * index + 2] = value
    closing = worker.shape.segments - 1
    vector[2 * closing] = len(segments) if count is None else count
    worker.contribute(0, vector, [*segments, closing])


def expect(worker: Peer, segments: dict[int, int], total: int) -> None:
    """The worker gets these aggregates, the closing one, and no others."""
    for index, value in segments.items():
        what = f"aggregate 0:{index} at {worker.describe()}"
        expect_elements(worker.aggregate(0, [index]), np.full(2, value, np.int32), what)
    closing = worker.aggregate(0, [worker.shape.segments - 1])
    expect_equal(int(closing[0]), total, f"aggregates counted at {worker.describe()}")


@case("4")
def sums_go_to_their_owners(bench: Bench) -> None:
    """In a reduce_scatter each rank gets the sums of its own segments, and no others."""
    workers = gathered(bench, Mode.REDUCE_SCATTER)
    contribute(workers[0], {0: 1, 1: 2, 2: 3, 3: 4})
    expect_no_data(workers, "a sum of one contribution")
    contribute(workers[1], {0: 10, 1: 20, 2: 30, 3: 40})
    expect(workers[0], {0: 11, 1: 22}, 4)
    expect(workers[1], {2: 33, 3: 44}, 4)
    expect_no_data(workers, "a sum for another rank")


@case("4")
def everybody_gets_what_each_owns(bench: Bench) -> None:
    """In an all_gather each rank's segments go to all as they are, at once; one may give fewer."""
    workers = gathered(bench, Mode.ALL_GATHER)
    contribute(workers[1], {2: 7})
    for worker in workers:
        got = worker.aggregate(0, [2])
        expect_elements(got, np.full(2, 7, np.int32), f"aggregate 0:2 at {worker.describe()}")
    expect_no_data(workers, "a round closed by one of two")
    contribute(workers[0], {0: 5, 1: 6})
    for worker in workers:
        expect(worker, {0: 5, 1: 6}, 3)


@case("4")
def blocks_change_hands(bench: Bench) -> None:
    """In an all_to_all a block of one rank goes to one rank."""
    workers = gathered(bench, Mode.ALL_TO_ALL)
    contribute(workers[0], {0: 1, 1: 2})
    contribute(workers[1], {2: 3, 3: 4})
    expect(workers[0], {0: 1, 2: 3}, 4)
    expect(workers[1], {1: 2, 3: 4}, 4)
    expect_no_data(workers, "a block for another rank")


@case("4")
def nobody_contributes_for_another(bench: Bench) -> None:
    """What a rank sends to a segment of another counts for nothing, in no sum and no count."""
    workers = gathered(bench, Mode.ALL_GATHER)
    contribute(workers[0], {2: 66}, count=0)
    expect_no_data(workers, "a contribution for another rank")
    contribute(workers[1], {2: 7})
    for worker in workers:
        expect(worker, {2: 7}, 1)


@case("4", lossless="a contribution is left out on purpose")
def a_round_closes_when_all_is_there(bench: Bench) -> None:
    """The closing segment waits for as many contributions as it counts; Help asks for them."""
    workers = gathered(bench, Mode.REDUCE_SCATTER)
    contribute(workers[0], {0: 1, 2: 3})
    contribute(workers[1], {0: 10}, count=2)
    got = workers[0].aggregate(0, [0])
    expect_elements(got, np.full(2, 11, np.int32), "aggregate 0:0")
    expect_no_data(workers, "a round closed with a contribution missing")
    closing = workers[0].shape.segments - 1
    ack = workers[0].help(0, closing)
    expect_equal(ack.contributors, 0b10, "who is missing from the closing segment")
    relay = workers[1].wait_relay(Action.HELP, "Help for the missing contribution")
    expect_equal((relay.round, relay.index), (0, 1), "first segment asked for")
    workers[1].contribute(0, np.full(workers[1].shape.size, 30, np.int32), [2])
    expect(workers[1], {2: 33}, 2)
    expect(workers[0], {}, 2)


@case("4")
def late_contributions_bring_back_own_sums(bench: Bench) -> None:
    """A contribution to a complete segment is answered if its aggregate goes to the sender."""
    workers = gathered(bench, Mode.REDUCE_SCATTER)
    for worker in workers:
        contribute(worker, {0: 1, 2: 3})
    expect(workers[0], {0: 2}, 2)
    expect(workers[1], {2: 6}, 2)
    vector = np.zeros(workers[0].shape.size, np.int32)
    workers[0].contribute(0, vector, [0, 2])
    got = workers[0].aggregate(0, [0])
    expect_elements(got, np.full(2, 2, np.int32), "aggregate 0:0, again")
    expect_no_data(workers, "an aggregate for another rank")


@case("3")
def owners_want_a_whole_job(bench: Bench) -> None:
    """A Join of a job whose segments have owners names the ranks, equal blocks, and all of them."""
    for mode, segments, expected in (
        (Mode.REDUCE_SCATTER, 5, 0),
        (Mode.REDUCE_SCATTER, 4, 2),
        (Mode.ALL_GATHER, 1, 2),
        (Mode.ALL_TO_ALL, 3, 2),
        (Mode.ALL_TO_ALL, 5, 5000),
    ):
        bench.new_job()
        stranger = bench.stranger(shape_of(mode, segments))
        stranger.join(expected=expected, want=Status.BAD_REQUEST)
    bench.new_job()
    partial = bench.stranger(shape_of(Mode.ALL_GATHER))
    value = wire.join_value(partial.shape, wire.MemberType.WORKER, 2, flags=0)
    ack = partial.request(Action.JOIN, value, request=partial.incarnation)
    expect_status(ack, Status.BAD_REQUEST, "Join without the flag of a whole job")


@case("3")
def owners_have_no_threshold(bench: Bench) -> None:
    """SetH and FBcast are refused where they would leave out contributions; others' N as well."""
    workers = gathered(bench, Mode.ALL_GATHER)
    workers[0].command(Action.SET_H, wire.threshold_value(1), Status.BAD_REQUEST)
    workers[0].command(Action.FBCAST, wire.range_value(0, 0, 1), Status.BAD_REQUEST)
    stranger = bench.stranger(shape_of(Mode.ALL_GATHER))
    stranger.join(expected=4, want=Status.MISMATCH)
    contribute(workers[0], {})
    expect_no_data(workers, "a round closed by one of two")
    contribute(workers[1], {})
    for worker in workers:
        expect(worker, {}, 0)
