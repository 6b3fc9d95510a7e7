"""Sections 3 and 6 under garbage: nothing a stranger sends may disturb a running job."""

import random

from tests.conformance import wire
from tests.conformance.case import Bench, case, first_round, play, vectors
from tests.conformance.client import Peer
from tests.conformance.expectations import expect_no_data, expect_sum
from tests.conformance.wire import Action, Shape, Status

GARBAGE = 3_000
PER_ANSWER = 25  # few enough that the switch's socket buffers drop none of them
SIZES = (0, 1, 7, 8, 9, 12, 16, 20, 24, 28, 44)  # about the lengths of real packets


def random_datagram(rng: random.Random) -> bytes:
    """Random bytes, half of them of a real packet's length."""
    size = rng.choice(SIZES) if rng.random() < 0.5 else rng.randrange(2_000)
    return rng.randbytes(size)


def stranger_garbage(rng: random.Random, job: int) -> bytes:
    """Random bytes, half of them behind a header that names a known action and this job."""
    if rng.random() < 0.5:
        return random_datagram(rng)
    header = wire.control(rng.randrange(10), job, rng.getrandbits(32))
    return header + rng.randbytes(rng.choice((0, 4, 12, 16, 20, 36)))


def send_garbage(rng: random.Random, stranger: Peer, member: Peer) -> None:
    """One datagram: from the stranger of any kind, from the member never control."""
    tos = rng.choice((wire.TOS_CONTROL, wire.TOS_DATA, rng.randrange(256)))
    if tos & wire.TOS_MASK == wire.TOS_CONTROL or rng.random() < 0.5:
        stranger.send(stranger_garbage(rng, stranger.job), tos)
    else:
        member.send(random_datagram(rng), tos)


@case("1, 6")
def garbage_survived(bench: Bench) -> None:
    """3,000 datagrams of random size, content and ToS change no sum of a running job."""
    shape = Shape(segments=3, per_segment=8, last=5)
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    play(workers, start)
    a, b = vectors(2, shape)
    workers[0].contribute(start + 1, a)
    stranger = bench.stranger(shape)
    rng = random.Random(0x6953)
    for sent in range(GARBAGE):
        send_garbage(rng, stranger, workers[sent % 2])
        if sent % PER_ANSWER == 0:  # which may have a buffer for members, and one for others
            workers[0].heartbeat()
            stranger.command(Action.LEAVE, want=Status.NOT_MEMBER)
    expect_no_data(workers, "garbage completed a round")
    workers[1].contribute(start + 1, b)
    expect_sum(workers, start + 1, shape.fold(a, b))
    play(workers, start + 2)
