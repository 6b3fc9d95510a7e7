"""Section 3: what a switch shows of its jobs and their members."""

from tests.conformance import wire
from tests.conformance.case import Bench, case
from tests.conformance.client import Peer
from tests.conformance.packets import expect_equal
from tests.conformance.wire import Ack, Action, Shape, Shown, Status

JOBS, MEMBERS, ROOM, QUEUE, MEMORY = 1, 2, 3, 4, 5
GATHERING, RUNNING, HALTED = 1, 2, 4


def show(peer: Peer, what: int, first: int = 0) -> tuple[Ack, Shown]:
    """Show, to be answered OK and with all that is told of a job."""
    ack = peer.command(Action.SHOW, wire.show_value(what, first))
    assert ack.shown is not None
    return ack, ack.shown


@case("3")
def job_is_shown_to_strangers(bench: Bench) -> None:
    """Anybody is told what a job waits for, and how many workers are to come; nobody's address."""
    stranger, *workers = (bench.stranger(Shape()) for _ in range(3))
    for there, state in ((1, GATHERING), (2, RUNNING)):
        workers[there - 1].join(expected=2)
        ack, shown = show(stranger, JOBS, stranger.job)
        expect_equal((ack.rank, ack.contributors), (stranger.job, there), "job, workers there")
        expect_equal((shown.expected, shown.state), (2, state), "expected, state")
        expect_equal(shown.members, (), "members")
    workers[0].command(Action.HALT)
    expect_equal(show(stranger, JOBS, stranger.job)[1].state, HALTED, "state during a Halt")
    workers[0].command(Action.RESET)
    expect_equal(show(stranger, JOBS, stranger.job)[1].state, RUNNING, "state after a Reset")
    stranger.command(Action.SHOW, wire.show_value(MEMBERS), Status.NOT_MEMBER)
    stranger.command(Action.SHOW, wire.show_value(QUEUE, 1), Status.NOT_MEMBER)  # nobody waits


@case("3")
def members_are_shown_to_members(bench: Bench) -> None:
    """Each contributor by address and rank, with the time since it was heard."""
    workers = bench.workers(3, Shape())
    ack, shown = show(bench.controller(Shape()), MEMBERS)
    expect_equal((ack.rank, ack.contributors), (64, 3), "seat to ask for next, workers there")
    told = {(one.host, one.port): one for one in shown.members}
    ranks = sorted(worker.heartbeat().rank for worker in workers)
    expect_equal(set(told), {worker.local for worker in workers}, "addresses")
    expect_equal(sorted(one.rank for one in told.values()), ranks, "ranks")
    for worker in workers:
        expect_equal(told[worker.local].silent < shown.lease, True, "silence below the lease")


@case("3")
def room_is_shown_to_strangers(bench: Bench) -> None:
    """How much can wait in the switch's socket, in KiB, or 0; there is no question beyond that."""
    stranger = bench.stranger(Shape())
    ack = stranger.command(Action.SHOW, wire.show_value(ROOM))
    expect_equal((ack.rank, ack.round, ack.contributors), (0, 0, 0), "rank, round, contributors")
    stranger.command(Action.SHOW, wire.show_value(MEMORY + 1), Status.BAD_REQUEST)


@case("3")
def memory_is_shown_to_strangers(bench: Bench) -> None:
    """What a job has of the memory; without a fallback all of its contributions are added here."""
    stranger, worker = bench.stranger(Shape()), bench.stranger(Shape())
    stranger.command(Action.SHOW, wire.show_value(MEMORY, worker.job), Status.NOT_MEMBER)
    worker.join()
    ack = stranger.command(Action.SHOW, wire.show_value(MEMORY, worker.job))
    expect_equal(ack.contributors, 1_000_000, "of a million contributions, those added here")
