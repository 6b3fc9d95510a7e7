"""Section 5: versions instead of rounds."""

from tests.conformance import wire
from tests.conformance.case import Bench, case, play, vectors
from tests.conformance.expectations import expect_no_data, expect_segment, expect_sum
from tests.conformance.packets import expect_equal
from tests.conformance.wire import Mode, Shape, Status

KEPT_VERSIONS = 8
ONE = Shape(mode=Mode.ASYNCHRONOUS)
TWO = Shape(segments=2, mode=Mode.ASYNCHRONOUS)


@case("5")
def versions_count_from_one(bench: Bench) -> None:
    """H contributions to an index, from whomever, make its next version; the first is 1."""
    workers = bench.workers(2, TWO)
    inputs = vectors(5, TWO)
    workers[0].contribute(1, inputs[0], [0])
    expect_no_data(workers, "a version of one contribution, H automatic of two workers")
    workers[1].contribute(1, inputs[1], [0])
    expect_segment(workers, 1, 0, TWO.fold(*inputs[:2]))
    workers[0].contribute(2, inputs[2], [0])
    workers[0].contribute(3, inputs[3], [0])
    expect_segment(workers, 2, 0, TWO.fold(*inputs[2:4]))
    workers[1].contribute(2, inputs[4], [1])
    workers[0].contribute(3, inputs[3], [1])
    expect_segment(workers, 1, 1, TWO.fold(inputs[4], inputs[3]))
    expect_no_data(workers, "an aggregate sent twice")


@case("5")
def only_newer_numbers_count(bench: Bench) -> None:
    """A contribution counts only if newer than the last counted of that member at that index."""
    workers = bench.workers(2, TWO)
    a, b, other = vectors(3, TWO)
    workers[0].contribute(5, a, [0])
    for number in (5, 4, 1):
        workers[0].contribute(number, other, [0])
    expect_no_data(workers, "duplicates counted")
    workers[0].contribute(4, a, [1])  # the other index has counted nothing yet
    workers[1].contribute(1, b)
    expect_sum(workers, 1, TWO.fold(a, b))
    workers[0].contribute(5, other, [0])
    workers[1].contribute(1, other, [0])
    expect_no_data(workers, "duplicates counted in the next version")
    workers[0].contribute(100, b, [0])
    workers[1].contribute(7, a, [0])
    expect_segment(workers, 2, 0, TWO.fold(b, a))


@case("5")
def threshold_of_versions(bench: Bench) -> None:
    """SetH says how many contributions make a version; 0 is the number of members again."""
    workers = bench.workers(3, ONE)
    workers[0].set_threshold(1)
    first, *inputs = vectors(6, ONE)
    workers[2].contribute(1, first)
    expect_sum(workers, 1, first)
    workers[0].set_threshold(2)
    for number, vector in enumerate(inputs[:2], start=2):
        workers[2].contribute(number, vector)
    expect_sum(workers, 2, ONE.fold(*inputs[:2]))
    workers[0].set_threshold(0)
    for worker, vector in zip(workers[:2], inputs[2:], strict=False):
        worker.contribute(2, vector)
    expect_no_data(workers, "a version of two contributions, H automatic of three workers")
    workers[2].contribute(4, inputs[4])
    expect_sum(workers, 3, ONE.fold(*inputs[2:]))


@case("5")
def eight_versions_kept(bench: Bench) -> None:
    """Help resends any of the last 8 versions of an index to the asker; older ones are GONE."""
    asker, sender = workers = bench.workers(2, ONE)
    asker.set_threshold(1)
    newest = KEPT_VERSIONS + 2
    inputs = vectors(newest, ONE)
    for version, vector in enumerate(inputs, start=1):
        sender.contribute(version, vector)
        expect_sum(workers, version, vector)
    for version in range(newest - KEPT_VERSIONS + 1, newest + 1):
        asker.help(version)
        expect_sum([asker], version, inputs[version - 1])
    for version in range(1, newest - KEPT_VERSIONS + 1):
        asker.help(version, want=Status.GONE)
    expect_no_data(workers, "more resent than asked for, or to others")


@case("3, 5")
def newcomer_learns_current_version(bench: Bench) -> None:
    """The Ack to a Join of an asynchronous job names the current version."""
    workers = bench.workers(2, ONE)
    for version in (1, 2, 3):
        play(workers, version)
    newcomer = bench.stranger(ONE)
    expect_equal(newcomer.join().round, 3, "current version in the Ack to Join")


@case("5")
def a_switch_is_told_what_was_counted(bench: Bench) -> None:
    """Help without segments tells a switch below from which segments its sum is missing."""
    shape = Shape(segments=4, mode=Mode.ASYNCHRONOUS)
    (worker,) = bench.workers(1, shape)
    below = bench.stranger(shape)
    value = wire.below_value(shape, workers=2)
    below.join_with(value, None, Status.OK, wire.TOS_CONTROL)
    first = below.incarnation + 1
    mine, old = vectors(2, shape)
    below.contribute(first, mine, [0, 1, 3])
    for start, counted, missing in [(0, 2, 1), (1, 1, 1), (2, 0, 1), (3, 1, 0)]:
        told = below.help(first, start, 0)
        expect_equal((told.contributors, told.threshold), (counted, missing), "counted, missing")
    told = below.help(first + 1, 0, 0)
    expect_equal((told.contributors, told.threshold), (0, 4), "counted of a later number")
    below.contribute(first - 1, old, [2])  # no later than its Join
    worker.contribute(1, old, [2])
    expect_no_data([worker, below], "a sum of before the Join counted")
    worker.contribute(1, old, [0])
    expect_segment([worker, below], 1, 0, shape.fold(mine, old))
