"""Sections 3 and 6: Join and its answers, incarnations, Leave, who may speak, limits."""

from dataclasses import replace

from tests.conformance import wire
from tests.conformance.case import Bench, case, first_round, play, vectors
from tests.conformance.client import Peer
from tests.conformance.expectations import expect_no_data, expect_sum
from tests.conformance.packets import expect_equal, expect_status
from tests.conformance.wire import Action, DType, MemberType, Mode, Op, Shape, Status

MEMBERS_ONLY: tuple[tuple[Action, bytes], ...] = (
    (Action.LEAVE, b""),
    (Action.RESET, b""),
    (Action.SET_H, wire.threshold_value(1)),
    (Action.FBCAST, wire.range_value(0, 0, 1)),
    (Action.HELP, wire.range_value(0, 0, 1)),
    (Action.HALT, b""),
)


def refused_everything(peer: Peer) -> None:
    """Each command only a member may give is answered NOT_MEMBER."""
    for action, value in MEMBERS_ONLY:
        peer.command(action, value, Status.NOT_MEMBER)


@case("5")
def rounds_left_are_a_hint(bench: Bench) -> None:
    """A Join may tell how many rounds are left, more or fewer; nobody begins elsewhere for that."""
    workers = [bench.stranger(Shape()) for _ in range(2)]
    for worker, left in zip(workers, (7, 0xFFFFFFFF), strict=True):
        value = wire.join_value(worker.shape, MemberType.WORKER, round_=left, flags=0)
        ack = worker.join_with(value, None, Status.OK, wire.TOS_CONTROL)
    play(workers, ack.round)
    for left in (1, 0, 9):
        value = wire.join_value(workers[0].shape, MemberType.WORKER, round_=left, flags=16)
        again = workers[0].join_with(value, None, Status.OK, wire.TOS_CONTROL)
        expect_equal(again.rank, workers[0].heartbeat().rank, "rank of a member")
    play(workers, (ack.round + 1) & 0xFFFFFFFF)


@case("3")
def join_answers(bench: Bench) -> None:
    """The Ack to a Join tells each member its own rank, the H in force and the first round."""
    shape = Shape()
    workers = [bench.stranger(shape) for _ in range(3)]
    acks = [worker.join() for worker in workers]
    expect_equal(len({ack.rank for ack in acks}), 3, f"different ranks in {acks}")
    expect_equal([ack.threshold for ack in acks], [1, 2, 3], "H automatic at each Join")
    expect_equal(len({ack.round for ack in acks}), 1, f"one first round in {acks}")
    play(workers, acks[0].round)


@case("4")
def new_job_starts_at_zero(bench: Bench) -> None:
    """`high` is 0 in a new job, and nothing contributed yet, so the first round is 0."""
    (worker,) = bench.workers(1, Shape())
    expect_equal(first_round(worker), 0, "round in the first Join's Ack (is the job number new?)")
    play([worker], 0)


@case("3")
def repeated_join_is_heartbeat(bench: Bench) -> None:
    """A repeated Join is answered again and changes nothing: no new member, no lost data."""
    shape = Shape()
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    inputs = vectors(2, shape)
    expect_equal(workers[1].heartbeat(), workers[1].joined, "Ack to the repeated Join")
    workers[0].contribute(start, inputs[0])
    for worker in (*workers, *workers):
        again = worker.heartbeat()
        expect_equal(again.rank, worker.joined and worker.joined.rank, "rank")
    expect_no_data(workers, "a repeated Join completed a round")
    workers[1].contribute(start, inputs[1])
    expect_sum(workers, start, shape.fold(*inputs))


@case("3")
def smaller_incarnation_denied(bench: Bench) -> None:
    """A Join of a smaller incarnation is DENIED, told a number to outdo, and the member stays."""
    workers = bench.workers(2, Shape())
    start = first_round(workers[0])
    play(workers, start)
    former = workers[0].incarnation
    value = wire.join_value(Shape(), MemberType.WORKER)
    ack = workers[0].request(Action.JOIN, value, request=former - 1)
    expect_status(ack, Status.DENIED, "stale Join")
    expect_equal(ack.round >= former, True, "the number to outdo is the member's, or larger")
    expect_equal(ack.threshold, former, "incarnation of the member")
    play(workers, start + 1)


@case("3")
def larger_incarnation_joins_one_further(bench: Bench) -> None:
    """A larger incarnation is Leave and Join, with a round one further than a newcomer's."""
    shape = Shape()
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    play(workers, start)
    again = workers[0].join(incarnation=workers[0].incarnation + 1)
    expect_equal(again.round, start + 2, "round of the new incarnation (a newcomer's is one less)")
    expect_equal(again.threshold, 2, "H in force")
    straggler, alone = vectors(2, shape)
    workers[0].contribute(start + 1, straggler)  # what the old one still had under way
    workers[1].contribute(start + 1, alone)
    expect_sum(workers[1:], start + 1, alone)
    workers[0].pump()
    play(workers, start + 2)


@case("3")
def larger_incarnation_keeps_old_contribution(bench: Bench) -> None:
    """What the old incarnation contributed stays counted."""
    shape = Shape()
    workers = bench.workers(3, shape)
    start = first_round(workers[0])
    inputs = vectors(3, shape)
    workers[0].contribute(start, inputs[0])
    again = workers[0].join(incarnation=workers[0].incarnation + 1)
    expect_equal(again.round, start + 2, "round of the new incarnation")
    for worker, vector in zip(workers[1:], inputs[1:], strict=True):
        worker.contribute(start, vector)
    expect_sum(workers[1:], start, shape.fold(*inputs))


@case("3")
def mismatched_joins_refused(bench: Bench) -> None:
    """A Join that differs in dtype, op, mode, E, last or segments gets MISMATCH, and is not in."""
    shape = Shape(segments=3, per_segment=8, last=5)
    workers = bench.workers(2, shape)
    others = {
        "dtype": replace(shape, dtype=DType.INT32),
        "op": replace(shape, op=Op.MAX),
        "mode": replace(shape, mode=Mode.ASYNCHRONOUS),
        "E": replace(shape, per_segment=9),
        "last": replace(shape, last=4),
        "segments": replace(shape, segments=4),
    }
    for field, other in others.items():
        peer = bench.stranger(other)
        ack = peer.request(
            Action.JOIN,
            wire.join_value(other, MemberType.WORKER),
            request=peer.incarnation,
        )
        expect_status(ack, Status.MISMATCH, f"Join with another {field}")
        refused_everything(peer)
    play(workers, first_round(workers[0]))


@case("3")
def controller_commands_and_counts_not(bench: Bench) -> None:
    """A controller joins with all zeros, may command, and counts in no H."""
    shape = Shape()
    workers = bench.workers(2, shape)
    controller = bench.controller(shape)
    start = first_round(workers[0])
    threshold = controller.joined and controller.joined.threshold
    expect_equal(threshold, 2, "H automatic of two workers beside a controller")
    play(workers, start)
    a, b = vectors(2, shape)
    controller.set_threshold(1)
    workers[0].contribute(start + 1, a)
    expect_sum(workers, start + 1, a)
    controller.set_threshold(0)
    workers[1].contribute(start + 2, b)
    expect_no_data(workers, "H automatic again, one of two contributed", start + 2)
    forced = controller.command(Action.FBCAST, wire.range_value(start + 2, 0, 1))
    expect_equal(forced.contributors, 1, "contributors in the Ack to FBcast")
    expect_sum(workers, start + 2, b)
    controller.command(Action.HALT)
    resumed = controller.command(Action.RESET)
    controller.leave()
    play(workers, resumed.round)


@case("3")
def controller_contributes_nothing(bench: Bench) -> None:
    """Data from a controller never counts, neither in a sum nor towards H."""
    shape = Shape()
    workers = bench.workers(2, shape)
    controller = bench.controller(shape)
    start = first_round(workers[0])
    a, b, foreign = vectors(3, shape)
    controller.set_threshold(2)
    workers[0].contribute(start, a)
    controller.contribute(start, foreign)
    expect_no_data(workers, "a controller's data counted towards H")
    workers[1].contribute(start, b)
    expect_sum(workers, start, shape.fold(a, b))


@case("3, 4")
def expected_holds_first_worker(bench: Bench) -> None:
    """No segment completes before `expected` members have joined; the first is in all rounds."""
    shape = Shape()
    first, second = (bench.stranger(shape) for _ in range(2))
    start = first.join(expected=2).round
    a, b = vectors(2, shape)
    first.contribute(start, a)
    expect_no_data([first], "completed before the expected members had joined")
    expect_equal(second.join(expected=2).round, start, "round of a member within `expected`")
    expect_no_data([first, second], "completed without the second member")
    second.contribute(start, b)
    expect_sum([first, second], start, shape.fold(a, b))


@case("3")
def largest_expected_counts(bench: Bench) -> None:
    """Of several `expected` the largest holds, also against members that name none."""
    shape = Shape()
    workers = [bench.stranger(shape) for _ in range(3)]
    start = workers[0].join(expected=3).round
    workers[1].join(expected=2)
    inputs = vectors(3, shape)
    for worker, vector in zip(workers[:2], inputs, strict=False):
        worker.contribute(start, vector)
    expect_no_data(workers[:2], "completed before the largest `expected` had joined")
    expect_equal(workers[2].join().round, start, "round of a member within `expected`")
    workers[2].contribute(start, inputs[2])
    expect_sum(workers, start, shape.fold(*inputs))


@case("3, 4")
def expected_holds_under_threshold(bench: Bench) -> None:
    """`expected` also holds a segment for which a set H would be reached."""
    shape = Shape()
    (worker,) = bench.workers(1, shape, expected=2)
    worker.set_threshold(1)
    worker.contribute(first_round(worker), vectors(1, shape)[0])
    expect_no_data([worker], "H = 1 completed before the expected members had joined")


@case("4")
def late_joiner_waits_for_next_round(bench: Bench) -> None:
    """A newcomer takes part from high + 1 on, and from there a segment waits for it."""
    shape = Shape(segments=2)
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    play(workers, start)
    late = bench.stranger(shape)
    expect_equal(late.join().round, start + 1, "round of a newcomer after a finished round")
    workers.append(late)
    inputs = vectors(3, shape)
    for worker, vector in zip(workers[:2], inputs, strict=False):
        worker.contribute(start + 1, vector)
    expect_no_data(workers, "the round did not wait for the newcomer", start + 1)
    late.contribute(start + 1, inputs[2])
    expect_sum(workers, start + 1, shape.fold(*inputs))


@case("4")
def late_joiner_not_in_open_round(bench: Bench) -> None:
    """A round that was begun before a newcomer joined completes without it."""
    shape = Shape()
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    a, b = vectors(2, shape)
    workers[0].contribute(start, a)
    workers[0].help(start)  # answered behind it: what newcomers send may be taken before
    late = bench.stranger(shape)
    expect_equal(late.join().round, start + 1, "round of a newcomer while a round is open")
    workers[1].contribute(start, b)
    expect_sum(workers, start, shape.fold(a, b))
    play([*workers, late], start + 1)


@case("4")
def newcomer_after_reset(bench: Bench) -> None:
    """A newcomer takes part in `high` itself if nothing was contributed to it yet."""
    shape = Shape()
    workers = bench.workers(2, shape)
    play(workers, first_round(workers[0]))
    fresh = workers[0].command(Action.RESET).round
    late = bench.stranger(shape)
    expect_equal(late.join().round, fresh, "round of a newcomer right after a Reset")
    play([*workers, late], fresh)


@case("4")
def leave_completes_what_waited(bench: Bench) -> None:
    """Leave takes the member out of H at once; sets that waited only for it complete."""
    shape = Shape(segments=2)
    workers = bench.workers(3, shape)
    start = first_round(workers[0])
    inputs = vectors(3, shape)
    for worker, vector in zip(workers[:2], inputs, strict=False):
        worker.contribute(start, vector)
    expect_no_data(workers, "completed with a worker missing")
    workers[2].leave()
    expect_sum(workers[:2], start, shape.fold(*inputs[:2]))
    play(workers[:2], start + 1)


@case("6")
def left_member_is_a_stranger(bench: Bench) -> None:
    """After Leave data is dropped and commands get NOT_MEMBER."""
    shape = Shape()
    workers = bench.workers(3, shape)
    start = first_round(workers[0])
    inputs = vectors(3, shape)
    workers[2].leave()
    refused_everything(workers[2])
    workers[2].contribute(start, inputs[2])
    workers[0].contribute(start, inputs[0])
    expect_no_data(workers, "data of a member that left counted")
    workers[1].contribute(start, inputs[1])
    expect_sum(workers[:2], start, shape.fold(*inputs[:2]))


@case("4")
def job_begun_again_goes_on(bench: Bench) -> None:
    """A job whose last member left and that is begun again goes on from high + 2."""
    shape = Shape()
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    play(workers, start)
    play(workers, start + 1)
    for worker in workers:
        worker.leave()
    again = bench.workers(2, shape)
    for worker in again:
        expect_equal(first_round(worker), start + 3, "round in the job begun again")
    play(again, start + 3)


@case("3")
def repeated_request_not_executed(bench: Bench) -> None:
    """A repeated Request of the same sender is answered again, not executed again."""
    shape = Shape()
    workers = bench.workers(2, shape)
    number = workers[0].new_request()
    first = workers[0].request(Action.RESET, request=number)
    expect_status(first, Status.OK, "Reset")
    for _ in range(2):
        again = workers[0].request(Action.RESET, request=number)
        expect_equal(again, first, "Ack to the repeated Reset")
    play(workers, first.round)

    number, value = workers[0].new_request(), wire.threshold_value(1)
    ack = workers[0].request(Action.SET_H, value, request=number)
    expect_status(ack, Status.OK, "SetH")
    workers[1].set_threshold(0)
    ack = workers[0].request(Action.SET_H, value, request=number)
    expect_status(ack, Status.OK, "repeated SetH")
    a, b = vectors(2, shape)
    workers[0].contribute(first.round + 1, a)
    expect_no_data(workers, "a repeated SetH was executed again", first.round + 1)
    workers[1].contribute(first.round + 1, b)
    expect_sum(workers, first.round + 1, shape.fold(a, b))
