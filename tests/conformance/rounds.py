"""Section 4: exactly once, late contributions, the window of rounds, Help."""

import itertools

from tests.conformance.case import Bench, case, first_round, play, vectors
from tests.conformance.client import Peer
from tests.conformance.expectations import expect_no_data, expect_quiet, expect_segment, expect_sum
from tests.conformance.packets import expect_equal, is_data, is_relay
from tests.conformance.wire import Action, Shape, Status

SERIAL_MASK = 0xFFFF_FFFF
HALF_WAY = 0x7FFF_FFFF  # the furthest a serial number can be ahead of 0


def expect_helped(peer: Peer, round_: int, want: set[int]) -> None:
    """The peer is asked by Help for exactly these segments of the round, in one or more ranges."""
    asked: set[int] = set()
    while not want <= asked:
        what = f"Help for {round_}:{sorted(want - asked)}"
        relay = peer.wait_relay(Action.HELP, what)
        expect_equal(relay.round, round_, "round in the relayed Help")
        asked |= set(range(relay.index, relay.index + min(relay.count, peer.shape.segments + 1)))
    expect_equal(sorted(asked), sorted(want), f"segments {peer.describe()} is asked for")
    expect_quiet([peer], is_relay(Action.HELP), "more Help than segments missing")


@case("4")
def sum_of_two(bench: Bench) -> None:
    """A segment completes when every member has contributed, and goes to every member."""
    shape = Shape(segments=3)
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    for round_ in range(start, start + 6):
        inputs = vectors(2, shape, seed=round_)
        workers[round_ % 2].contribute(round_, inputs[0])
        expect_no_data(workers, "completed with one of two contributions", round_)
        workers[1 - round_ % 2].contribute(round_, inputs[1])
        expect_sum(workers, round_, shape.fold(*inputs))
    expect_no_data(workers, "an aggregate sent twice")


@case("4")
def duplicates_count_once(bench: Bench) -> None:
    """At most one contribution per member, round and index counts: the first."""
    shape = Shape(segments=2)
    workers = bench.workers(3, shape)
    start = first_round(workers[0])
    *inputs, other = vectors(4, shape)
    workers[0].contribute(start, inputs[0])
    workers[0].contribute(start, inputs[0])
    workers[1].contribute(start, inputs[1])
    workers[0].contribute(start, other)
    workers[1].contribute(start, inputs[1])
    expect_no_data(workers, "duplicates counted as contributions")
    workers[2].contribute(start, inputs[2])
    expect_sum(workers, start, shape.fold(*inputs))


@case("4")
def late_contribution_gets_kept_aggregate(bench: Bench) -> None:
    """A late contribution changes nothing and is answered with the kept aggregate."""
    shape = Shape(segments=2)
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    a, b = vectors(2, shape)
    workers[0].set_threshold(1)
    workers[0].contribute(start, a)
    expect_sum(workers, start, a)
    workers[1].contribute(start, b, [1])
    expect_segment(workers[1:], start, 1, a)
    expect_no_data(workers, "only the late sender is answered, only for that segment")
    workers[0].contribute(start, b, [0])
    expect_segment(workers[:1], start, 0, a)
    expect_no_data(workers, "only the late sender is answered, only for that segment")


@case("4")
def one_round_ahead(bench: Bench) -> None:
    """Two rounds are held at once: a worker may be a round ahead of another."""
    shape = Shape(segments=2)
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    early, later = vectors(2, shape, seed=1), vectors(2, shape, seed=2)
    workers[0].contribute(start, early[0])
    workers[0].contribute(start + 1, later[0])
    workers[1].contribute(start, early[1])
    expect_sum(workers, start, shape.fold(*early))
    workers[1].contribute(start + 1, later[1])
    expect_sum(workers, start + 1, shape.fold(*later))


@case("4")
def window_of_three_rounds(bench: Bench) -> None:
    """Rounds high - 1 to high + 1 are taken; all other data is dropped."""
    shape = Shape()
    high = 1000
    workers = [bench.stranger(shape) for _ in range(2)]
    for worker in workers:
        expect_equal(worker.join(expected=2, round_=high).round, high, "round named and raised")
    for worker in workers:
        for outside in (high - 2, high + 2, high - 3, high + 3, high + HALF_WAY, 0):
            worker.contribute(outside, vectors(1, shape)[0])
    expect_no_data(workers, "data outside the window counted")
    for round_ in (high - 1, high, high + 1):
        play(workers, round_)
    for worker in workers:  # high has been raised by the last of these
        for outside in (high - 1, high + 3):
            worker.contribute(outside, vectors(1, shape)[0])
    expect_no_data(workers, "data outside the moved window counted or answered")
    play(workers, high + 2)


@case("4")
def open_set_recycled(bench: Bench) -> None:
    """A set that holds an older round is recycled for the newer one, though it was open."""
    shape = Shape()
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    ahead, behind = vectors(3, shape, seed=1), vectors(3, shape, seed=2)
    for step in range(3):
        workers[0].contribute(start + step, ahead[step])
    workers[1].contribute(start, behind[0])
    expect_no_data(workers, "a contribution to a recycled round counted")
    workers[0].help(start, want=Status.GONE)
    workers[1].contribute(start + 2, behind[2])
    expect_sum(workers, start + 2, shape.fold(ahead[2], behind[2]))
    workers[1].contribute(start + 1, behind[1])
    expect_sum(workers, start + 1, shape.fold(ahead[1], behind[1]))


@case("2, 4")
def rounds_wrap_around(bench: Bench) -> None:
    """Rounds are serial numbers of 32 bits: after 2^32 - 1 comes 0, in one running job."""
    shape = Shape(segments=2)
    near_end = SERIAL_MASK - 1
    ladder = bench.stranger(shape)
    ladder.join(round_=HALF_WAY)
    workers = [bench.stranger(shape) for _ in range(2)]
    workers[0].join(round_=near_end)  # newer than the ladder's, which is newer than 0
    ladder.leave()
    workers[1].join(round_=near_end)
    for worker in workers:
        expect_equal(first_round(worker), near_end, "round named and raised")
    for step in range(4):
        play(workers, (near_end + step) & SERIAL_MASK)
    workers[0].help(0)
    expect_segment(workers[:1], 0, 0, shape.fold(*vectors(2, shape, seed=0)))
    workers[0].help(SERIAL_MASK, want=Status.GONE)
    workers[0].contribute(SERIAL_MASK, vectors(1, shape)[0])
    expect_no_data(workers, "a round before the wrap still in the window")


@case("4")
def help_resends_complete_segment(bench: Bench) -> None:
    """Help for complete segments resends the kept aggregates to the asker only."""
    shape = Shape(segments=4)
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    want = [play(workers, start), play(workers, start + 1)]
    for step in range(2):
        workers[1].help(start + step, 1, 2)
        for index in (1, 2):
            expect_segment(workers[1:], start + step, index, want[step])
    expect_quiet(workers, is_data(), "more resent than asked for, or to others")
    expect_quiet(workers, is_relay(Action.HELP), "Help relayed for a complete segment")


@case("4")
def help_relayed_to_those_missing(bench: Bench) -> None:
    """Help over a range resends what is complete and asks exactly those who lack the rest."""
    shape = Shape(segments=4)
    workers = bench.workers(3, shape)
    start = first_round(workers[0])
    inputs = vectors(3, shape)
    want = shape.fold(*inputs)
    sent = (range(4), range(1), range(2))
    for worker, vector, indexes in zip(workers, inputs, sent, strict=True):
        worker.contribute(start, vector, indexes)
    expect_segment(workers, start, 0, want)
    workers[0].help(start, 0, 4)
    expect_segment(workers[:1], start, 0, want)
    expect_helped(workers[1], start, {1, 2, 3})
    expect_helped(workers[2], start, {2, 3})
    expect_quiet(workers[:1], is_relay(Action.HELP), "Help to one that has contributed")
    expect_no_data(workers, "anything else resent")
    workers[1].contribute(start, inputs[1], range(1, 4))
    workers[2].contribute(start, inputs[2], range(2, 4))
    for index in (1, 2, 3):
        expect_segment(workers, start, index, want)


@case("4")
def help_for_round_not_begun(bench: Bench) -> None:
    """Help for a segment nobody has begun asks the others for it."""
    shape = Shape(segments=2)
    workers = bench.workers(3, shape)
    start = first_round(workers[0])
    workers[0].help(start, 1)
    for worker in workers[1:]:
        expect_helped(worker, start, {1})
    expect_no_data(workers, "an aggregate nobody contributed to")


@case("4")
def help_gone(bench: Bench) -> None:
    """Help for a round that is no longer kept gets GONE; the two last rounds are kept."""
    shape = Shape()
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    want = [play(workers, start + step) for step in range(4)]
    for step in (0, 1):
        workers[0].help(start + step, want=Status.GONE)
    for step in (2, 3):
        workers[0].help(start + step)
        expect_segment(workers[:1], start + step, 0, want[step])
    if not workers[0].lossy:  # else a relay from when the round was under way may still be repeated
        expect_quiet(workers, is_relay(), "Help relayed for a round not kept")


@case("4", lossless="it is about when each repeat comes")
def relayed_help_repeated_until_acked(bench: Bench) -> None:
    """Relayed control is repeated, with a growing pause, until Acked."""
    shape = Shape()
    asker, silent = bench.workers(2, shape)
    start = first_round(asker)
    asker.contribute(start, vectors(1, shape)[0])
    silent.acks_relays = False
    asker.help(start)
    relays, times = [], []
    for repeat in range(5):
        what = f"repeat {repeat} of a Help not Acked"
        relays.append(silent.wait_relay(Action.HELP, what, timeout=6.0))
        times.append(silent.last_arrival)
    expect_equal(len(set(relays)), 1, f"one Request in all repeats of {relays}")
    pauses = [after - before for before, after in itertools.pairwise(times)]
    expect_equal(pauses[-1] > pauses[0], True, f"a growing pause in {pauses}")
    silent.ack(relays[-1])
    silent.heartbeat()
    while silent.take(is_relay()):  # what crossed the Ack
        pass
    quiet = min(10.0, 2.5 * pauses[-1])
    expect_quiet([silent], is_relay(), "Help repeated though Acked", seconds=quiet)
