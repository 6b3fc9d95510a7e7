"""Section 3: ranks that workers ask for, and that those who ask for none are given."""

from tests.conformance.case import Bench, case, first_round, play
from tests.conformance.client import Peer
from tests.conformance.packets import expect_equal
from tests.conformance.wire import Ack, Shape, Status

NO_RANK = 65535


def ranks(peers: list[Peer]) -> list[int]:
    """What they are told now."""
    return [peer.heartbeat().rank for peer in peers]


def expect_owner(ack: Ack, owner: Peer, rank: int) -> None:
    """A refusal names who has the rank."""
    host, port = owner.local
    told = ".".join(str(byte) for byte in ack.threshold.to_bytes(4, "big"))
    expect_equal(
        (ack.rank, told, ack.round), (rank, host, port), "rank, host and port of its owner"
    )
    expect_equal(ack.contributors < 60_000, True, "milliseconds since the owner was heard")


@case("3")
def asked_rank_is_given(bench: Bench) -> None:
    """A worker gets the rank it asks for, whoever comes first, also one beyond 63."""
    peers = [bench.stranger(Shape()) for _ in range(3)]
    for peer, rank in zip(peers, (2, 0, 4095), strict=True):
        expect_equal(peer.join(rank=rank).rank, rank, "rank in the Ack")
    play(peers, first_round(peers[0]))
    expect_equal(ranks(peers), [2, 0, 4095], "ranks after a round")


@case("3")
def taken_rank_is_refused(bench: Bench) -> None:
    """A rank of a living worker is refused to another, who is told whose; left, it is free."""
    owner, other = bench.stranger(Shape()), bench.stranger(Shape())
    owner.join(rank=1)
    expect_owner(other.join(rank=1, want=Status.RANK_TAKEN), owner, 1)
    play([owner], first_round(owner))  # it is alone still
    owner.leave()
    again = other.join(rank=1, incarnation=other.incarnation + 1)  # no late refusal of the first
    expect_equal(again.rank, 1, "rank in the Ack")


@case("3")
def rank_outlasts_a_process(bench: Bench) -> None:
    """A new process at an address has the rank of the old one, whether it asks for it or not."""
    peers = [bench.stranger(Shape()) for _ in range(3)]
    for rank, peer in enumerate(peers):
        peer.join(rank=rank)
    for asked in (1, None):
        again = peers[1].join(rank=asked, incarnation=peers[1].incarnation + 1)
        expect_equal(again.rank, 1, f"rank of a new process that asks for {asked}")
    expect_equal(ranks(peers), [0, 1, 2], "ranks of all")


@case("3")
def unasked_ranks_are_the_free_ones(bench: Bench) -> None:
    """Who asks for none is given the lowest that is free, when as many have come as expected."""
    peers = [bench.stranger(Shape()) for _ in range(4)]
    for peer in peers[:2]:
        expect_equal(peer.join(expected=4).rank, NO_RANK, "rank before all have come")
    expect_equal(peers[2].join(expected=4, rank=0).rank, 0, "rank that was asked for")
    expect_equal(ranks(peers[:2]), [NO_RANK] * 2, "ranks before all have come")
    expect_equal(peers[3].join(expected=4, rank=2).rank, 2, "rank that was asked for")
    expect_equal(sorted(ranks(peers)), [0, 1, 2, 3], "ranks of all")
    play(peers, first_round(peers[0]))


@case("3")
def rank_beyond_expected_is_refused(bench: Bench) -> None:
    """A new process that asks for `expected` or more is refused, and whoever asks for 4,096.

    A worker that comes back keeps its rank.
    """
    for rank, expected, new in ((4, 4, True), (4096, 0, False), (65534, 0, False)):
        peer = bench.stranger(Shape())
        peer.join(rank=rank, expected=expected, new=new, want=Status.BAD_REQUEST)
    expect_equal(bench.stranger(Shape()).join(rank=4, expected=4).rank, 4, "rank of before")


@case("3")
def unasked_rank_keeps_an_asker_out(bench: Bench) -> None:
    """A rank that a worker was given without having asked is its own: who asks later is refused."""
    given, asker = bench.stranger(Shape()), bench.stranger(Shape())
    expect_equal(given.join().rank, 0, "rank of the only worker")
    expect_owner(asker.join(rank=0, want=Status.RANK_TAKEN), given, 0)
    again = asker.join(incarnation=asker.incarnation + 1)
    expect_equal(again.rank, 1, "rank of who asks for none then")
