"""Control packets of sound layout and any values: a switch answers them, or drops and counts them.

The bytes of the other fuzzers seldom make a packet that gets past the parser.
"""

from __future__ import annotations

import os
import random
import struct
from typing import Any

import pytest

from iswitch.core.format.lines import line_of
from iswitch.core.format.packets import Burst
from iswitch.core.format.wire import (
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    AckJob,
    Action,
    Awaited,
    Control,
    Join,
    Present,
    RankJoin,
    Round,
    Segments,
    Show,
    SwitchJoin,
    Threshold,
    TreeJoin,
    Who,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.fuzz.invariants import check_state
from tests.support.parts import packets_of, peer, seg

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_FUZZ_EXAMPLES", "300")) // 5
JOB = 7
PARENT = peer(9)
ABOVE = PARENT._replace(line=line_of(JOB))


class Values:
    """Values of control packets: mostly small, now and then the largest that there is room for."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def number(self, bits: int) -> int:
        top = (1 << bits) - 1
        return self.draw.choice([0, 1, 2, 3, 3, self.draw.getrandbits(bits), top, top - 1])

    def join(self) -> Join:
        draw, number = self.draw, self.number
        terms: dict[str, Any] = {
            "type": draw.choice([0, 0, 1, 1, 2]),
            "dtype": 0,
            "op": 0,
            "mode": draw.choice([0] * 9 + [1]),
            "elements": 3,
            "last": 3,
            "segments": draw.choice([1] * 9 + [number(32)]),
            "expected": draw.choice([0, 2, 3, number(16)]),
            "flags": draw.choice([0, 8, 8, 1, 5, 16, 32, 33, number(6)]),
            "round": number(32),
        }
        match draw.randrange(4):
            case 0:
                return Join(**terms)
            case 1:
                return RankJoin(**terms, rank=draw.choice([0, 1, 4095, 4096, number(16)]))
            case 2:
                return SwitchJoin(**terms, listening=number(16), workers=number(16))
        ranks = draw.choice([0, 1, 3, draw.getrandbits(200), 1 << 4095])
        return TreeJoin(
            **terms,
            listening=number(16),
            workers=number(16),
            statement=number(32),
            unranked=draw.choice([0, 1, 2, 4096, 4097, number(16)]),
            ranks=ranks,
        )

    def ack(self) -> Ack:
        draw, number = self.draw, self.number
        ack = Ack(
            draw.choice([1, 1, 2, 3, 6, number(8)]), draw.choice([0, 1]), number(16), number(32),
            number(32), number(32),
        )  # fmt: skip
        match draw.randrange(4):
            case 0:
                return ack
            case 3:
                there = (Present("1.2.3.4", number(16), number(16), number(32)),) * number(4)
                return AckJob(*ack._common(), number(16), number(32), number(8), there)
            case 1:
                named = Awaited("1.2.3.4", number(16), number(16))
                return ack.naming(number(32), (named,) * draw.randrange(17))
        ranks = draw.choice([0, 1, 7, draw.getrandbits(200), (1 << 4096) - 1])
        return ack.telling(number(32), number(16), ranks)

    def value(self, action: Action) -> Any:
        draw, number = self.draw, self.number
        match action:
            case Action.JOIN:
                return self.join()
            case Action.ACK:
                return self.ack()
            case Action.FBCAST:
                return Segments(draw.randrange(3), number(32), number(32))
            case Action.HELP:
                one = Segments(draw.randrange(3), 0, draw.randrange(2))
                return draw.choice([one, Who(draw.randrange(3), number(32), number(32), 5)])
            case Action.SETH:
                return Threshold(number(32))
            case Action.RESET:
                return draw.choice([None, Round(number(32))])
            case Action.SHOW:
                return Show(number(16), number(16))
        return None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_value(seed: int) -> None:
    """It ends no switch, with a parent or without; what it counts is right, and no rank double."""
    values = Values(seed)
    draw = values.draw
    parent = PARENT if draw.random() < 0.6 else None
    switch = Switch(Limits(lease=5.0), parent=parent, incarnation=500)
    requests, now = [1000], 0.0
    for _ in range(60):
        now += draw.choice([0.0, 0.0, 0.0, 0.03, 1.0, 6.0])
        above = parent is not None and draw.random() < 0.4
        action = draw.choice([Action.ACK, Action.HELP]) if above else draw.choice(list(Action))
        action = draw.choice([Action.JOIN, action])
        source = ABOVE if above else peer(draw.randrange(5))
        status = draw.choice([0] * 5 + [1, 2, 3, 5, 7, 8]) if action is Action.ACK else 0
        request = draw.choice([*requests[-8:], 1000, 1001])
        try:
            packet = Control(action, JOB, request, values.value(action), status).build()
        except struct.error:  # no sender can build it
            continue
        sends = switch.receive(Burst.single(source, TOS_CONTROL, packet), now)
        sends = [*sends, *switch.handle_timer(now)]
        switch.receive(Burst.single(source, TOS_DATA, seg(draw.randrange(3), 0) + bytes(12)), now)
        for send in sends:
            if send.tos == TOS_CONTROL and ABOVE in send.peers:
                requests += [Control.parse(each).request for each in packets_of(send)]
        check_state(switch, now)
        for job in switch.jobs.values():
            ranks = [member.ranks for member in job.members.contributors()]
            assert sum(one.bit_count() for one in ranks) == _union(ranks).bit_count()


def _union(bitmaps: list[int]) -> int:
    union = 0
    for bitmap in bitmaps:
        union |= bitmap
    return union
