"""Ranks, who takes part in which rounds, and how first rounds settle."""

from __future__ import annotations

import pytest

from iswitch.core.format.wire import MAX_MEMBERS, MemberType
from iswitch.core.jobs.member import Member
from iswitch.core.jobs.membership import Membership
from tests.support.parts import peer

pytestmark = pytest.mark.unit

TOP = 2**32
W, S, C = MemberType.WORKER, MemberType.SWITCH, MemberType.CONTROLLER


def member(
    rank: int,
    type_: MemberType = W,
    first: int | None = None,
    contributed: int | None = None,
    expected: int = 0,
) -> Member:
    return Member(peer(rank), type_, rank, 1000, first, 0.0, contributed, expected=expected)


def group(*members: Member, expected: int = 0) -> Membership:
    found = Membership()
    for one in members:
        one.expected = expected
        found.add(one)
    return found


@pytest.mark.parametrize(
    ("first", "round_", "takes_part"),
    [
        (None, 0, True),
        (None, TOP - 1, True),
        (5, 4, False),
        (5, 5, True),
        (5, 6, True),
        (0, TOP - 1, False),
        (TOP - 1, 0, True),
    ],
)
def test_takes_part_from_its_first_round_on(
    first: int | None, round_: int, takes_part: bool
) -> None:
    assert member(0, first=first).takes_part_in(round_) is takes_part


@pytest.mark.parametrize(
    ("first", "contributed", "round_", "stands"),
    [
        (None, None, 5, False),
        (5, None, 5, True),
        (6, None, 5, True),
        (4, None, 5, False),
        (None, 5, 5, True),
        (None, 6, 5, True),
        (None, 4, 5, False),
        (2, 5, 5, True),
        (None, 0, TOP - 1, True),
        (0, None, TOP - 1, True),
    ],
)
def test_stands_at(first: int | None, contributed: int | None, round_: int, stands: bool) -> None:
    assert member(0, first=first, contributed=contributed).stands_at(round_) is stands


def test_contributors_by_seat() -> None:
    members = group(member(5), member(63, C), member(0, S), member(3))
    assert [m.seat for m in members.contributors()] == [0, 3, 5]
    assert members.contributor_addresses() == (peer(0), peer(3), peer(5))
    assert [m.seat for m in members.seated(0b101000 | 1 << 63)] == [3, 5]
    assert len(members) == 4
    members.remove(members.by_address[peer(3)])
    assert members.contributor_addresses() == (peer(0), peer(5))
    members.add(member(1))
    assert members.contributor_addresses() == (peer(0), peer(1), peer(5))


def test_who_has_a_rank_follows_every_change() -> None:
    """A switch stands for all ranks below it."""
    rack, old, new = member(0, S), member(3), member(5)
    members = group(rack, old)
    members.give(rack, 0b1011)
    members.give(old, 0b100)
    assert members.by_rank == {0: rack, 1: rack, 3: rack, 2: old}
    members.remove(old)
    assert members.by_rank == {0: rack, 1: rack, 3: rack}
    new.ranks = 0b100  # as one that keeps the rank of the process before it
    members.add(new)
    assert members.by_rank[2] is new
    members.give(rack, 0b1)
    assert members.by_rank == {0: rack, 2: new}


@pytest.mark.parametrize(
    ("ranks", "type_", "taken", "free"),
    [
        ([], W, 0, 0),
        ([], S, 0, 0),
        ([], C, 0, 63),
        ([0, 1, 3], W, 0, 2),
        ([0, 1, 3], C, 0, 63),
        ([63], C, 0, 62),
        ([0, 1], W, 0b1100, 4),
        (list(range(63)), W, 0, 63),
        (list(range(1, 64)), C, 0, 0),
        (list(range(MAX_MEMBERS)), W, 0, None),
        (list(range(MAX_MEMBERS)), C, 0, None),
        ([], W, 2**64 - 1, None),
    ],
)
def test_free_seat(ranks: list[int], type_: MemberType, taken: int, free: int | None) -> None:
    assert group(*map(member, ranks)).free_seat(type_, taken) == free


def test_expected_is_the_largest_named_by_contributors() -> None:
    members = Membership()
    assert members.gathered
    members.add(member(0, expected=3))
    members.add(member(1, expected=2))
    members.add(member(63, C, expected=9))
    assert (members.expected, members.gathered) == (3, False)
    members.remove(members.by_address[peer(1)])
    members.add(member(1))  # the same address again
    members.remove(members.by_address[peer(0)])
    assert not members.gathered  # never three at once, until the next one comes
    members.add(member(2))
    assert (members.expected, members.gathered) == (0, True)
    members.add(member(3, expected=3))
    assert members.gathered
    members.remove(members.by_address[peer(3)])
    assert members.gathered  # leaving does not count backwards
    members.add(member(4, expected=4))
    assert not members.gathered
    members.expect_nobody()
    assert (members.expected, members.gathered) == (0, True)


def test_participants_follow_every_change() -> None:
    members = group(member(0), member(1, first=5), member(63, C))
    assert [members.participants(r) for r in (4, 5, 4)] == [0b01, 0b11, 0b01]
    members.add(member(2, first=4))
    assert [members.participants(r) for r in (3, 4, 5)] == [0b001, 0b101, 0b111]
    members.remove(members.by_address[peer(0)])
    assert members.participants(5) == 0b110
    members.begin_at(members.by_address[peer(2)], 6)
    assert [members.participants(r) for r in (5, 6)] == [0b010, 0b110]
    members.all_begin_anew(7)
    assert members.participants(0) == 0b110
    for round_ in range(100):
        members.participants(round_)
    assert len(members._participants) <= 10


def test_begin_at_ends_being_held_back() -> None:
    one = member(0)
    one.begin_at(5, held_back=True)
    assert one.held_back
    group(one).begin_at(one, 9)
    assert (one.first_round, one.held_back) == (9, False)


@pytest.mark.parametrize(("reset_to", "first"), [(11, None), (9, None), (8, 9), (TOP, 9)])
def test_begin_anew(reset_to: int, first: int | None) -> None:
    """Nobody goes back behind a round that it has begun."""
    one = member(0, contributed=9)
    one.begin_at(9, held_back=True)
    group(one).all_begin_anew(reset_to)
    assert (one.first_round, one.contributed, one.held_back) == (first, None, False)


@pytest.mark.parametrize(
    ("first", "contributed", "high", "then"),
    [
        (5, 5, 6, None),
        (5, 5, 5, 5),  # not past yet
        (5, None, 6, 5),  # may still have to be told
        (5, None, 5 + 2**30, 5),
        (5, None, 6 + 2**30, None),  # before it looks like one to come
        (TOP - 1, TOP - 1, 0, None),
        (None, None, 9, None),
    ],
)
def test_move_on(first: int | None, contributed: int | None, high: int, then: int | None) -> None:
    one = member(0, first=first, contributed=contributed)
    members = group(one)
    before = members.participants(high)
    members.move_on(high)
    assert one.first_round == then
    assert members.participants(high) == before
    if first is not None and then is None:
        assert members.participants(first - 1) == 1


@pytest.mark.parametrize(("high", "then"), [(6, 5), (5 + 2**30, 5), (6 + 2**30, None)])
def test_what_was_named_is_forgotten_before_it_looks_like_one_to_come(
    high: int, then: int | None
) -> None:
    one = member(0, first=None, contributed=high)
    one.named = 5
    group(one).move_on(high)
    assert one.named == then
