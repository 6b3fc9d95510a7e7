"""Section 4: SetH, FBcast, Reset and Halt."""

from tests.conformance import wire
from tests.conformance.case import Bench, case, first_round, play, vectors
from tests.conformance.client import Peer
from tests.conformance.expectations import expect_no_data, expect_quiet, expect_segment, expect_sum
from tests.conformance.packets import expect_equal, is_relay
from tests.conformance.wire import Action, Shape, Status


def force(peer: Peer, round_: int, index: int, count: int) -> int:
    """FBcast these segments; the contributors its Ack tells."""
    return peer.command(Action.FBCAST, wire.range_value(round_, index, count)).contributors


@case("4")
def threshold_one_of_two(bench: Bench) -> None:
    """With H = 1 of 2 the first contribution completes a segment, whoever sends it."""
    shape = Shape()
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    workers[1].set_threshold(1)
    controller = bench.controller(shape)
    expect_equal(controller.joined and controller.joined.threshold, 1, "H in force")
    for step in range(3):
        vector = vectors(1, shape, seed=step)[0]
        workers[step % 2].contribute(start + step, vector)
        expect_sum(workers, start + step, vector)


@case("4")
def threshold_two_of_three(bench: Bench) -> None:
    """With H = 2 of 3 any two contributions complete a segment."""
    shape = Shape(segments=2)
    workers = bench.workers(3, shape)
    start = first_round(workers[0])
    inputs = vectors(3, shape)
    workers[0].set_threshold(2)
    workers[2].contribute(start, inputs[2])
    workers[0].contribute(start, inputs[0], [0])
    workers[1].contribute(start, inputs[1], [1])
    expect_segment(workers, start, 0, shape.fold(inputs[2], inputs[0]))
    expect_segment(workers, start, 1, shape.fold(inputs[2], inputs[1]))


@case("4")
def threshold_acts_on_open_sets(bench: Bench) -> None:
    """A change of H acts at once: open sets that reach the new H complete, others stay open."""
    shape = Shape(segments=2)
    workers = bench.workers(3, shape)
    start = first_round(workers[0])
    inputs = vectors(3, shape)
    workers[0].contribute(start, inputs[0])
    workers[1].contribute(start, inputs[1], [0])
    expect_no_data(workers, "completed with a worker missing")
    workers[2].set_threshold(2)
    expect_segment(workers, start, 0, shape.fold(*inputs[:2]))
    expect_no_data(workers, "completed below H")
    workers[2].contribute(start, inputs[2], [1])
    expect_segment(workers, start, 1, shape.fold(inputs[0], inputs[2]))


@case("3, 4")
def threshold_zero_is_automatic(bench: Bench) -> None:
    """SetH 0 makes H every current member again."""
    shape = Shape()
    workers = bench.workers(3, shape)
    start = first_round(workers[0])
    first, *inputs = vectors(4, shape)
    workers[0].set_threshold(1)
    workers[0].contribute(start, first)
    expect_sum(workers, start, first)
    workers[0].set_threshold(0)
    for worker, vector in zip(workers[:2], inputs, strict=False):
        worker.contribute(start + 1, vector)
    expect_no_data(workers, "H automatic, but completed with a worker missing")
    workers[2].contribute(start + 1, inputs[2])
    expect_sum(workers, start + 1, shape.fold(*inputs))


@case("4")
def forced_broadcast_is_partial(bench: Bench) -> None:
    """FBcast completes open sets as they are, tells the least contributors; the rest is late."""
    shape = Shape(segments=3)
    workers = bench.workers(3, shape)
    start = first_round(workers[0])
    inputs = vectors(3, shape)
    workers[0].contribute(start, inputs[0], [0, 1, 2])
    workers[1].contribute(start, inputs[1], [0, 2])
    expect_equal(force(workers[0], start, 0, 2), 1, "least contributors over the range")
    partial = (shape.fold(*inputs[:2]), inputs[0])
    for index, want in enumerate(partial):
        expect_segment(workers, start, index, want)
    expect_no_data(workers, "FBcast of segments not named")
    workers[2].contribute(start, inputs[2])
    expect_segment(workers, start, 2, shape.fold(*inputs))
    for index, want in enumerate(partial):
        expect_segment(workers[2:], start, index, want)
    expect_no_data(workers, "a late contribution changed something")


@case("4")
def forced_broadcast_leaves_empty_sets(bench: Bench) -> None:
    """FBcast of a segment nobody has contributed to broadcasts nothing and closes nothing."""
    shape = Shape()
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    workers[0].request(Action.FBCAST, wire.range_value(start, 0, 1))
    expect_no_data(workers, "FBcast of an empty set")
    play(workers, start)


@case("4")
def reset_starts_two_rounds_on(bench: Bench) -> None:
    """Reset empties all sets, names high + 2 to every worker, and drops stragglers."""
    shape = Shape()
    workers = bench.workers(3, shape)
    controller = bench.controller(shape)
    start = first_round(workers[0])
    play(workers, start)
    inputs = vectors(3, shape)
    workers[0].contribute(start + 1, inputs[0])
    fresh = controller.command(Action.RESET).round
    expect_equal(fresh, start + 3, "round in the Ack to Reset")
    for worker in workers:
        relay = worker.wait_relay(Action.RESET, "relayed Reset")
        expect_equal(relay.round, fresh, "round in the relayed Reset")
    for straggling in (start, start + 1, start + 2):
        for worker, vector in zip(workers, inputs, strict=True):
            worker.contribute(straggling, vector)
    expect_no_data(workers, "stragglers from before the Reset counted")
    play(workers, fresh)
    play(workers, fresh + 1)


@case("4")
def reset_empties_open_sets(bench: Bench) -> None:
    """What was contributed before a Reset is in no sum after it, in either set."""
    shape = Shape(segments=2)
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    for step in range(2):
        workers[0].contribute(start + step, vectors(1, shape, seed=step)[0])
    fresh = workers[0].command(Action.RESET).round
    expect_equal(fresh, start + 3, "round in the Ack to Reset")
    inputs = vectors(2, shape, seed=9)
    for round_ in (fresh, fresh + 1):
        workers[1].contribute(round_, inputs[1])
        expect_no_data(workers, "a contribution from before the Reset counted")
        workers[0].contribute(round_, inputs[0])
        expect_sum(workers, round_, shape.fold(*inputs))


@case("3, 4")
def halt_suspends_until_reset(bench: Bench) -> None:
    """Halt reaches all workers; data is dropped and requests get HALTED until Reset."""
    shape = Shape()
    workers = bench.workers(3, shape)
    controller = bench.controller(shape)
    start = first_round(workers[0])
    inputs = vectors(3, shape)
    workers[0].contribute(start, inputs[0])
    controller.command(Action.HALT)
    for worker in workers:
        worker.wait_relay(Action.HALT, "relayed Halt")
    for worker, vector in zip(workers, inputs, strict=True):
        worker.contribute(start, vector)
        worker.contribute(start + 1, vector)
    expect_no_data(workers, "data counted during a Halt")
    named = wire.range_value(start, 0, 1)
    for peer in (workers[0], controller):
        peer.command(Action.SET_H, wire.threshold_value(1), Status.HALTED)
        peer.command(Action.FBCAST, named, Status.HALTED)
        peer.command(Action.HELP, named, Status.HALTED)
    newcomer = bench.stranger(shape)
    newcomer.join()
    newcomer.leave()
    fresh = workers[1].command(Action.RESET).round
    expect_equal(fresh, start + 2, "round after the Halt, in which no data counted")
    for worker in (workers[0], workers[2]):
        relay = worker.wait_relay(Action.RESET, "relayed Reset")
        expect_equal(relay.round, fresh, "round in the relayed Reset")
    play(workers, fresh)


@case("4")
def halt_by_a_worker(bench: Bench) -> None:
    """A worker may command, too: its Halt and Reset reach the other workers."""
    workers = bench.workers(3, Shape())
    workers[0].command(Action.HALT)
    for worker in workers[1:]:
        worker.wait_relay(Action.HALT, "relayed Halt")
    fresh = workers[2].command(Action.RESET).round
    for worker in workers[:2]:
        relay = worker.wait_relay(Action.RESET, "relayed Reset")
        expect_equal(relay.round, fresh, "round in the relayed Reset")
    play(workers, fresh)


@case("4", lossless="it counts repeats, and a single Ack ends them")
def relayed_halt_repeated_until_acked(bench: Bench) -> None:
    """A Halt that a worker does not Ack is repeated to that worker."""
    workers = bench.workers(2, Shape())
    workers[1].acks_relays = False
    workers[0].command(Action.HALT)
    relays = [workers[1].wait_relay(Action.HALT, "repeated Halt", timeout=6.0) for _ in range(3)]
    expect_equal(len(set(relays)), 1, f"one Request in all repeats of {relays}")
    workers[1].acks_relays = True
    workers[1].ack(relays[-1])
    fresh = workers[0].command(Action.RESET).round
    workers[1].wait_relay(Action.RESET, "relayed Reset")
    play(workers, fresh)
    expect_quiet(workers[1:], is_relay(), "relayed control repeated though Acked")
