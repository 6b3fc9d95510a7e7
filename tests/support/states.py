"""A switch in chosen states of a job of three segments, and what a request changes there."""

from __future__ import annotations

import numpy as np

from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import (
    NO_RANK,
    TOS_DATA,
    Action,
    Control,
    DType,
    Join,
    MemberType,
    Mode,
    Round,
    Segments,
    Shape,
    Status,
)
from iswitch.core.jobs.limits import Limits
from tests.support.parts import Bench, packets_of, segments_of

SHAPE = Shape.of(6, DType.INT32, elements=2)  # three segments
ASYNC = Shape.of(6, DType.INT32, mode=Mode.ASYNCHRONOUS, elements=2)
ONES = np.ones(6, np.int32)
LEASE = Limits().lease
CONTROLLER = 9  # the address of the controller in the states below


def sums(round_: int, workers: int) -> list[bytes]:
    """The aggregates of a round to which so many have contributed ones."""
    return segments_of(SHAPE, round_, workers * ONES)


def nothing() -> Bench:
    return Bench()


def fresh() -> Bench:
    """Two workers and a controller, nothing contributed yet."""
    bench = Bench()
    bench.gather(SHAPE, 2)
    status, ack, _ = bench.join(CONTROLLER, None, MemberType.CONTROLLER)
    assert (status, ack.rank) == (Status.OK, NO_RANK)
    return bench


def half() -> Bench:
    """Worker 0 has contributed to round 0."""
    bench = fresh()
    assert bench.contribute(0, SHAPE, 0, ONES) == {}
    return bench


def third_round() -> Bench:
    """Rounds 0 to 2 are complete."""
    bench = fresh()
    for round_ in range(3):
        bench.contribute(0, SHAPE, round_, ONES)
        bench.contribute(1, SHAPE, round_, ONES)
    return bench


def halted() -> Bench:
    bench = half()
    assert bench.control(CONTROLLER, Action.HALT)[0] is Status.OK
    return bench


def commander() -> Bench:
    """A controller alone."""
    bench = Bench()
    bench.join(CONTROLLER, None, MemberType.CONTROLLER)
    return bench


def versions() -> Bench:
    """Two workers of an asynchronous job; 9 versions, and one contribution to the tenth."""
    bench = Bench()
    bench.gather(ASYNC, 2)
    for number in range(1, 20):
        bench.contribute(0, ASYNC, number, ONES)
    return bench


def effects(sends: list[Outgoing]) -> list[str]:
    """What goes out besides the Ack: "to whom: what"."""
    found = []
    for out in sends:
        to = ",".join(str(who.port - 40000) for who in out.peers)
        for packet in packets_of(out):
            if out.tos == TOS_DATA:
                round_, index = (int.from_bytes(packet[a : a + 4], "big") for a in (0, 4))
                number = int.from_bytes(packet[8:12], "little")
                found.append(f"{to}: {round_}.{index} = {number}")
                continue
            relayed = Control.parse(packet)
            value = relayed.value
            if isinstance(value, Segments):
                what = f" {value.round}.{value.index}+{value.count}"
            else:
                what = f" {value.round}" if isinstance(value, Round) else ""
            found.append(f"{to}: {relayed.action.name}{what}")
    return found


def all_three(to: str, round_: int, value: int) -> tuple[str, ...]:
    return tuple(f"{to}: {round_}.{index} = {value}" for index in range(3))


ALL = Segments(0, 0, 3)


def join(**fields: int) -> Join:
    named = {"type": 0, "dtype": DType.INT32, "elements": 2, "last": 2, "segments": 3}
    return Join(**(named | fields))
