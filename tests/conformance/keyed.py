"""Section 6: keyed jobs. Whatever the switch sends in one has a MAC, or is a violation."""

from collections.abc import Callable
from functools import partial

from tests.conformance import wire
from tests.conformance.case import Bench, case, first_round, play
from tests.conformance.client import Peer
from tests.conformance.expectations import expect_quiet
from tests.conformance.packets import expect_equal, expect_status, is_ack
from tests.conformance.wire import Ack, Action, Shape, Status

SHAPE = Shape(segments=2)
FORGERIES: list[Callable[[bytes, bytes], bytes]] = [
    lambda _, packet: packet,  # no MAC
    lambda _, packet: packet + bytes(wire.MAC_SIZE),
    lambda key, packet: packet + wire.mac(key, packet)[:-1],
    lambda key, packet: packet + wire.mac(key, packet)[::-1],
    lambda key, packet: packet + wire.mac(key + b"!"[: 64 - len(key)] or b"?", packet),
    lambda key, packet: packet + wire.mac(key, packet + b"\0"),
    lambda key, packet: packet + wire.mac(key, packet) + b"\0",
]


def sealed(ack: Ack, want: Status, what: str) -> Ack:
    """The Ack, which must have this status and the right MAC."""
    expect_status(ack, want, what)
    expect_equal(ack.sealed, True, f"right MAC in the Ack to {what}")
    return ack


def forge(peer: Peer, key: bytes, packet: bytes, request: int) -> None:
    """Send a packet with every wrong MAC; each has to be denied, without a MAC."""
    for number, forgery in enumerate(FORGERIES):
        forged = forgery(key, packet)
        peer.send_raw(forged, wire.TOS_CONTROL)
        ack = peer.wait(
            is_ack(request),
            f"Ack to forgery {number}",
            again=partial(peer.send_raw, forged, wire.TOS_CONTROL),
        )
        assert isinstance(ack, Ack)
        expect_status(ack, Status.DENIED, f"forgery {number}")
        expect_equal(ack.sealed, False, "a MAC in the answer to a forgery")


def help_nothing(peer: Peer) -> None:
    """A request that changes nothing must be answered OK: the job is not halted."""
    sealed(peer.help(first_round(peer), 0, 0), Status.OK, "Help for no segment")


@case("6")
def keyed_rounds(bench: Bench) -> None:
    """Members with the key sum as ever; control has MACs in both directions, data has none."""
    bench.keyed_job()
    workers = bench.workers(2, SHAPE)
    for worker in workers:
        expect_equal(worker.joined and worker.joined.sealed, True, "right MAC in the Ack to a Join")
    for step in range(3):
        play(workers, first_round(workers[1]) + step)


@case("6")
def keyed_join_of_a_stranger(bench: Bench) -> None:
    """A Join with a wrong or missing MAC is DENIED, and makes nobody a member."""
    key = bench.keyed_job()
    (member,) = bench.workers(1, SHAPE)
    stranger = bench.stranger(SHAPE)
    value = wire.join_value(SHAPE, wire.MemberType.WORKER)
    number = stranger.incarnation
    forge(stranger, key, wire.control(Action.JOIN, bench.job, number, value), number)
    expect_equal(member.heartbeat().contributors, 1, "workers after forged Joins")
    expect_status(stranger.request(Action.LEAVE), Status.NOT_MEMBER, "Leave of who was denied")
    play([member], first_round(member))


@case("6")
def keyed_commands_of_a_stranger(bench: Bench) -> None:
    """A member's Leave, Halt, Reset, SetH with a wrong MAC is DENIED and changes nothing."""
    key = bench.keyed_job()
    workers = bench.workers(2, SHAPE)
    start = first_round(workers[1])
    play(workers, start)
    values = {
        Action.LEAVE: b"",
        Action.HALT: b"",
        Action.RESET: b"",
        Action.SET_H: wire.threshold_value(1),
    }
    for action, value in values.items():
        number = workers[0].new_request()
        forge(workers[0], key, wire.control(action, bench.job, number, value), number)
    expect_equal(workers[0].heartbeat().threshold, 2, "H after forged commands")
    help_nothing(workers[0])
    play(workers, start + 1)


@case("6")
def keyed_denial_is_not_remembered(bench: Bench) -> None:
    """What was DENIED for its MAC is executed when it comes with the right one."""
    key = bench.keyed_job()
    (worker,) = bench.workers(1, SHAPE)
    number = worker.new_request()
    value = wire.threshold_value(5)
    forge(worker, key, wire.control(Action.SET_H, bench.job, number, value), number)
    ack = worker.request(Action.SET_H, value, request=number)
    expect_equal(sealed(ack, Status.OK, "SetH").threshold, 5, "H in force")


@case("6")
def keyed_numbers_grow(bench: Bench) -> None:
    """A request under a number that has not grown is not executed; one that has, is."""
    bench.keyed_job()
    (worker,) = bench.workers(1, SHAPE)
    unused, used = worker.new_request(), worker.new_request()
    two, three = wire.threshold_value(2), wire.threshold_value(3)
    sealed(worker.request(Action.SET_H, two, request=used), Status.OK, "SetH")
    old = worker.request(Action.SET_H, three, request=unused)
    expect_equal(sealed(old, Status.DENIED, "an old number").round, used, "number to go on from")
    expect_equal(worker.heartbeat().threshold, 2, "H after an old request")
    expect_equal(worker.set_threshold(3).threshold, 3, "H after a new one")


@case("6")
def keyed_repeat_is_answered(bench: Bench) -> None:
    """The repeat of the last request is answered as before and not executed."""
    bench.keyed_job()
    (worker,) = bench.workers(1, SHAPE)
    number = worker.new_request()
    first = sealed(worker.request(Action.RESET, request=number), Status.OK, "Reset")
    for _ in range(3):
        again = worker.request(Action.RESET, request=number)
        expect_equal(again, first, "Ack to a repeated Reset")
    play([worker], first.round)


@case("6")
def keyed_relay(bench: Bench) -> None:
    """What is relayed has a MAC, and is repeated until an Ack with the right MAC comes."""
    bench.keyed_job()
    asker, asked = bench.workers(2, SHAPE)
    asked.acks_relays = False
    asker.command(Action.HALT)
    relay = asked.wait_relay(Action.HALT, "Halt")
    asked.send_raw(wire.ack_of(relay), wire.TOS_CONTROL)  # no MAC: it does not count
    again = asked.wait_relay(Action.HALT, "Halt, repeated after an Ack without a MAC")
    expect_equal(again, relay, "repeated Halt")
    asked.ack(relay)
    asked.heartbeat()
    asked.pump()
    while asked.take(lambda packet: packet == relay):  # what was under way
        pass
    expect_quiet([asked], lambda packet: packet == relay, "Halt after its Ack", 0.5)


@case("6")
def keyed_join_of_before(bench: Bench) -> None:
    """A recorded Join of a process that has left is not taken; a new process is."""
    bench.keyed_job()
    member, other = bench.workers(2, SHAPE)
    member.leave()
    value = wire.join_value(SHAPE, wire.MemberType.WORKER)
    answer = member.request(Action.JOIN, value, request=member.incarnation)
    sealed(answer, Status.DENIED, "a Join of before")
    expect_equal(other.heartbeat().contributors, 1, "workers")
    member.join(incarnation=member.new_request())
    expect_equal(other.heartbeat().contributors, 2, "workers when a new one has come")
