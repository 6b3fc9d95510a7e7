"""All contributors to a job number its rounds by program, or none does."""

from __future__ import annotations

import random

import pytest

from iswitch.core.format.wire import (
    FLAG_PARTIAL,
    FLAG_STANDS_AT,
    TOS_CONTROL,
    Action,
    Control,
    Join,
    MemberType,
    Shape,
    Status,
    TreeJoin,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.support.parts import JOB, Below, Bench, controls

pytestmark = pytest.mark.unit

SHAPES = [Shape.of(3, elements=3), Shape.of(6, elements=3)]
LEASE, CONTROLLER = 10.0, 60
OK, MISMATCH = Status.OK, Status.MISMATCH


@pytest.mark.parametrize("seed", range(20))
def test_who_joins_on_other_terms_is_refused(seed: int) -> None:
    """The first contributor sets shape and kind of rounds until the last has gone."""
    draw = random.Random(seed)
    bench = Bench(Switch(Limits(lease=LEASE)))
    bench.join(CONTROLLER, None, MemberType.CONTROLLER)
    terms: tuple[Shape, int] | None = None
    there: set[int] = set()
    said: list[tuple[bool, Status]] = []
    for number in range(200):
        who = draw.randrange(5)
        if who in there and draw.random() < 0.5:
            bench.control(who, Action.LEAVE)
            there.discard(who)
        elif who not in there:
            shape, partial = draw.choice(SHAPES), draw.choice([0, FLAG_PARTIAL])
            type_ = draw.choice([MemberType.WORKER, MemberType.SWITCH])
            flags = partial | draw.choice([0, FLAG_STANDS_AT])
            fits = not there or terms == (shape, partial)
            status, _, _ = bench.join(who, shape, type_, 0, flags, request=2000 + number)
            assert status is (OK if fits else MISMATCH)
            said.append((bool(there) and terms is not None and terms[1] != partial, status))
            if fits:
                terms = shape, partial
                there.add(who)
        if draw.random() < 0.02:  # all fall silent but the controller
            bench.now += LEASE
            bench.join(CONTROLLER, None, MemberType.CONTROLLER)
            bench.switch.handle_timer(bench.now)
            there.clear()
        assert bench.join(CONTROLLER, None, MemberType.CONTROLLER)[0] is OK
        # A controller may name the shape; its rounds are nobody's.
        if there and terms is not None:
            named = Join.for_shape(terms[0], MemberType.CONTROLLER)
            assert bench.control(61, Action.JOIN, named)[0] is OK
    assert (True, MISMATCH) in said
    assert (False, OK) in said


def test_a_switch_passes_it_on() -> None:
    """In its first Join, and in those that tell of its workers later."""
    below = Below()
    join = Join.for_shape(SHAPES[0], expected=2, flags=FLAG_PARTIAL)
    (first,) = below_sends(below, 0, join)
    below.answers(first)
    (later,) = (packet for packet in below_sends(below, 1, join) if packet.action is Action.JOIN)
    for packet in (first, later):
        assert isinstance(packet.value, TreeJoin)
        assert packet.value.flags & FLAG_PARTIAL


def below_sends(below: Below, who: int, join: Join) -> list[Control]:
    return controls(below.send(who, TOS_CONTROL, Control(Action.JOIN, JOB, 1000, join).build()))
