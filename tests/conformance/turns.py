"""Section 5: jobs that take turns with a switch's memory, and that wait for some."""

import time

import numpy as np

from tests.conformance import wire
from tests.conformance.case import Bench, case, vectors
from tests.conformance.client import TIMEOUT, Peer, wait_readable
from tests.conformance.expectations import expect_no_data, expect_segment, expect_sum
from tests.conformance.packets import CaseSkipped, expect_equal, is_ack, is_data, is_relay
from tests.conformance.wire import Ack, Action, MemberType, Relay, Shape, Status

WHOLE = 8  # flags of a Join: bit 3
SHAPE = Shape(segments=3)
LARGE = Shape(segments=100, per_segment=366, last=366)  # of which a switch of 1 MiB carries some
MOST = 24  # jobs


def whole(shape: Shape, expected: int) -> bytes:
    """The Value of the Join of a worker that waits for all."""
    return wire.join_value(shape, MemberType.WORKER, expected, flags=WHOLE)


def pair(bench: Bench, shape: Shape) -> tuple[list[Peer], int]:
    """Two workers of a job that takes turns, and its first round."""
    peers = [bench.stranger(shape) for _ in range(2)]
    for peer in peers:
        ack = peer.join_with(whole(shape, 2), None, Status.OK, wire.TOS_CONTROL)
    if not ack.in_turns:
        raise CaseSkipped("the switch lets no jobs take turns (--policy lanes:...)")
    return peers, ack.round


def crowd(bench: Bench) -> tuple[list[tuple[Peer, int]], Peer, int]:
    """Jobs of one worker, as many as come in, and one more, with the Request of its Join."""
    inside: list[tuple[Peer, int]] = []
    for _ in range(MOST):
        bench.new_job()
        peer = bench.stranger(LARGE)
        ack = peer.request(Action.JOIN, whole(LARGE, 1), request=peer.incarnation)
        peer.joined = ack  # so that it leaves in the end
        if ack.status == Status.WAITING:
            expect_equal((ack.threshold, ack.round), (1, 1), "place, jobs that wait")
            return inside, peer, peer.incarnation
        expect_equal(ack.status, Status.OK, "status of a Join with room, or without")
        if not ack.in_turns:
            raise CaseSkipped("the switch lets no jobs take turns (--policy lanes:...)")
        inside.append((peer, ack.round))
    raise CaseSkipped(f"the switch has memory for {MOST} jobs; start it with --memory 1")


def play(peers: list[Peer], round_: int) -> None:
    """A round in which everybody sends all again when asked for all."""
    inputs = vectors(len(peers), peers[0].shape, seed=round_)
    for peer, vector in zip(peers, inputs, strict=True):
        peer.contribute(round_, vector)
    end = time.monotonic() + TIMEOUT
    first, want = None, peers[0].shape.fold(*inputs)
    while first is None and time.monotonic() < end:
        wait_readable(peers, 0.1)
        for peer, vector in zip(peers, inputs, strict=True):
            peer.pump()
            if peer.take(is_relay(Action.HELP)) is not None:
                peer.contribute(round_, vector)
        first = peers[0].take(is_data(round_, 0))
    for index in range(1, peers[0].shape.segments):
        expect_segment(peers, round_, index, want)
    expect_segment(peers[1:], round_, 0, want)


@case("5")
def jobs_in_turns_sum(bench: Bench) -> None:
    """Several rounds of a job that may lose its turn between them; SetH and FBcast are refused."""
    peers, round_ = pair(bench, SHAPE)
    for after in range(3):
        play(peers, round_ + after)
    peers[0].command(Action.SET_H, wire.threshold_value(1), Status.BAD_REQUEST)
    peers[0].command(Action.FBCAST, wire.range_value(round_ + 3, 0, 1), Status.BAD_REQUEST)


@case("5", lossless="it says which packets find no memory")
def turn_is_given_with_help_for_all(bench: Bench) -> None:
    """While one job adds, others of its lane do not; each is asked for all when it has its turn."""
    ((first, at), *others), _, _ = crowd(bench)
    vector = np.arange(LARGE.size, dtype=np.float32)
    play([first], at)
    at += 1
    first.contribute(at, vector, range(LARGE.segments // 2))
    first.aggregate(at, range(LARGE.segments // 2))
    for peer, round_ in others:
        peer.contribute(round_, vector)
        peer.request(Action.JOIN, whole(LARGE, 1), request=peer.incarnation)  # all has been taken
        peer.pump()
    waits = [one for one in others if one[0].take(is_data()) is None]
    if not waits:
        raise CaseSkipped("all jobs have lanes of their own; start the switch with --memory 1")
    first.contribute(at, vector, range(LARGE.segments // 2, LARGE.segments))
    first.aggregate(at, range(LARGE.segments // 2, LARGE.segments))
    end = time.monotonic() + TIMEOUT
    while waits:
        expect_equal(time.monotonic() < end, True, f"Help for all segments, to {len(waits)} jobs")
        wait_readable([peer for peer, _ in waits], 0.1)
        for peer, round_ in list(waits):
            peer.pump()
            relay = peer.take(is_relay(Action.HELP))
            if isinstance(relay, Relay):
                named = relay.round, relay.index, relay.count
                expect_equal(named, (round_, 0, LARGE.segments), "segments asked for")
                peer.contribute(round_, vector)
                expect_sum([peer], round_, vector)
                waits.remove((peer, round_))


@case("5")
def job_without_room_waits(bench: Bench) -> None:
    """It is told its place, may leave the queue, and is answered OK the moment there is room."""
    inside, last, request = crowd(bench)
    value = whole(LARGE, 1)
    again = last.request(Action.JOIN, value, request=request)
    expect_equal((again.status, again.threshold), (Status.WAITING, 1), "status and place")
    bench.new_job()
    behind = bench.stranger(LARGE)
    ack = behind.request(Action.JOIN, value, request=behind.incarnation)
    expect_equal((ack.status, ack.threshold, ack.round), (Status.WAITING, 2, 2), "place")
    expect_equal(behind.request(Action.LEAVE).status, Status.NOT_MEMBER, "answer to its Leave")
    last.command(Action.HELP, wire.range_value(0, 0, 1), Status.NOT_MEMBER)
    inside[0][0].request(Action.LEAVE)
    came = last.wait(
        lambda packet: is_ack(request)(packet) and isinstance(packet, Ack) and not packet.status,
        "Ack with OK",
        again=lambda: last.send(
            wire.control(Action.JOIN, last.job, request, value), wire.TOS_CONTROL
        ),
    )
    assert isinstance(came, Ack)
    play([last], came.round)
    expect_no_data([behind], "who has left the queue")
