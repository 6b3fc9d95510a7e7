"""Joins that ask for ranks, what switches below state of theirs, and the answers."""

from __future__ import annotations

from iswitch.core.format.wire import (
    NO_RANK,
    Ack,
    AckRanks,
    Action,
    DType,
    Join,
    MemberType,
    Shape,
    Status,
    TreeJoin,
)
from tests.support.parts import JOB, Bench, peer

SHAPE = Shape.of(3, DType.FLOAT32, elements=3)
OTHER = Shape.of(99, DType.FLOAT32, elements=3)
OK, TAKEN, MISMATCH = Status.OK, Status.RANK_TAKEN, Status.MISMATCH


def ask(
    bench: Bench, who: int, rank: int = NO_RANK, expected: int = 0, request: int = 1000, **kw: int
) -> tuple[Status, Ack]:
    join = Join.for_shape(SHAPE, MemberType.WORKER, expected, kw.get("flags", 0)).asking(rank)
    status, ack, _ = bench.control(who, Action.JOIN, join, request=request)
    return status, ack


def ranks(bench: Bench) -> dict[int, int]:
    """By worker, as the switch has them."""
    members = bench.switch.jobs[JOB].members.by_address
    return {who: members[peer(who)].rank for who in range(20) if peer(who) in members}


def tree_join(statement: int, ranks: int, unranked: int = 0) -> TreeJoin:
    """The Join of a switch of one worker, with its statement."""
    join = Join.for_shape(SHAPE, MemberType.SWITCH)
    fields = [getattr(join, name) for name in Join.__match_args__]
    fields += [0, 1, statement, unranked, ranks]
    return TreeJoin(*fields)


def state(
    bench: Bench, who: int, statement: int, ranks: int, unranked: int = 0, request: int = 1000
) -> AckRanks:
    value = tree_join(statement, ranks, unranked)
    status, ack, _ = bench.control(who, Action.JOIN, value, request=request)
    assert status is OK
    assert isinstance(ack, AckRanks)
    return ack
