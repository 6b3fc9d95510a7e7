"""Cases of repeated and bad requests, strangers, and limits of a job."""

from __future__ import annotations

import itertools

from tests.conformance import wire
from tests.conformance.case import Bench, case, first_round, play, vectors
from tests.conformance.expectations import expect_no_data, expect_quiet, expect_sum
from tests.conformance.membership import refused_everything
from tests.conformance.packets import expect_equal, expect_status, is_relay
from tests.conformance.wire import Action, DType, MemberType, Op, Shape, Status

MAX_MEMBERS = 64


@case("3")
def bad_requests_refused(bench: Bench) -> None:
    """An unknown action or a wrong length gets BAD_REQUEST and changes nothing."""
    shape = Shape()
    workers = bench.workers(2, shape)
    requests: list[tuple[int, bytes]] = [(action, b"") for action in (0, 9, 10, 128, 255)]
    requests += [(Action.LEAVE, b"\0"), (Action.RESET, bytes(4)), (Action.HALT, b"\0")]
    requests += [(Action.SET_H, bytes(size)) for size in (0, 3, 5, 8)]
    requests += [(Action.FBCAST, bytes(size)) for size in (0, 8, 11, 13)]
    requests += [(Action.HELP, bytes(size)) for size in (0, 8, 11, 13)]
    for action, value in requests:
        ack = workers[0].request(action, value)
        what = f"action {action} with a Value of {len(value)} bytes"
        expect_status(ack, Status.BAD_REQUEST, what)
    whole = wire.join_value(shape, MemberType.WORKER)
    for value in (b"", whole[:-1], whole + b"\0"):
        stranger = bench.stranger(shape)
        ack = stranger.request(Action.JOIN, value, request=stranger.incarnation)
        expect_status(ack, Status.BAD_REQUEST, f"Join with a Value of {len(value)} bytes")
    play(workers, first_round(workers[0]))


@case("6")
def strangers_data_dropped(bench: Bench) -> None:
    """Data from an address and port that has not joined is dropped: not counted, not answered."""
    shape = Shape()
    workers = bench.workers(2, shape)
    stranger = bench.stranger(shape)
    start = first_round(workers[0])
    a, b, foreign = vectors(3, shape)
    stranger.contribute(start, foreign)
    workers[0].contribute(start, a)
    stranger.contribute(start, foreign)
    expect_no_data([*workers, stranger], "a stranger's data counted")
    workers[1].contribute(start, b)
    expect_sum(workers, start, shape.fold(a, b))
    stranger.contribute(start, foreign)
    expect_no_data([stranger], "a stranger was sent the aggregate")


@case("6")
def strangers_control_refused(bench: Bench) -> None:
    """Commands from outside the job get NOT_MEMBER and change nothing, also in an unknown job."""
    shape = Shape()
    workers = bench.workers(2, shape)
    refused_everything(bench.stranger(shape))
    expect_quiet(workers, is_relay(), "a stranger's command relayed")
    play(workers, first_round(workers[0]))
    bench.new_job()
    refused_everything(bench.stranger(shape))


@case("6")
def sixty_four_members_at_most(bench: Bench) -> None:
    """64 members sum right, a 65th gets FULL, and a place that is left can be taken again."""
    shape = Shape(segments=2, dtype=DType.INT32)
    workers = bench.workers(MAX_MEMBERS, shape)
    ranks = {worker.joined.rank for worker in workers if worker.joined}
    expect_equal(len(ranks), MAX_MEMBERS, "different ranks")
    start = first_round(workers[0])
    play(workers, start)
    bench.stranger(shape).join(want=Status.FULL)
    play(workers, start + 1)
    workers.pop(30).leave()
    newcomer = bench.stranger(shape)
    expect_equal(newcomer.join().round, start + 2, "round of the newcomer")
    play([*workers, newcomer], start + 2)


@case("6")
def memory_is_limited(bench: Bench) -> None:
    """A Join that would need more memory than the operator allows gets FULL; others still join."""
    vast = Shape(segments=0xFFFF_FFFF, per_segment=366, last=366)
    bench.stranger(vast).join(want=Status.FULL)
    bench.new_job()
    workers = bench.workers(2, Shape())
    play(workers, first_round(workers[0]))


@case("3")
def jobs_do_not_mix(bench: Bench) -> None:
    """Two jobs at once, with the same rounds and indexes, each get their own sums."""
    shapes = (Shape(segments=3), Shape(segments=2, dtype=DType.INT32, op=Op.MAX))
    jobs = []
    for shape in shapes:
        bench.new_job()
        jobs.append(bench.workers(2, shape))
    for turn in range(3):
        rounds = [first_round(workers[0]) + turn for workers in jobs]
        inputs = [vectors(2, shape, seed=turn) for shape in shapes]
        for rank, which in itertools.product(range(2), range(2)):
            jobs[which][rank].contribute(rounds[which], inputs[which][rank])
        for which, shape in enumerate(shapes):
            expect_sum(jobs[which], rounds[which], shape.fold(*inputs[which]))
    jobs[0][0].set_threshold(1)
    jobs[1][0].contribute(first_round(jobs[1][0]) + 3, vectors(1, shapes[1])[0])
    expect_no_data(jobs[1], "SetH of one job acted in another")
