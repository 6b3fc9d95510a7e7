"""No answer to a Join is longer than the Join: so it serves nobody who forges a source."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import (
    FLAG_HEARTBEAT,
    RANKS,
    TOS_CONTROL,
    Ack,
    AckRanks,
    Action,
    Control,
    Join,
    MemberType,
    Shape,
    TreeJoin,
)
from tests.support.parts import JOB, PARENT, Below, Bench, controls, packets_of, peer

pytestmark = pytest.mark.unit

SHAPE = Shape.of(3, elements=3)
SWITCHES = range(4)


class Senders:
    """Switches and workers that join with whatever they like, and repeat what they sent before."""

    def __init__(self, seed: int, bench: Bench) -> None:
        self.draw, self.bench = random.Random(seed), bench
        self.sent: list[tuple[int, bytes]] = []
        self.longest = 0  # bytes of an answer that tells ranks
        self.short = 0  # answers that tell none, as the Join has no room for them

    def join(self, who: int) -> Join:
        draw = self.draw
        plain = Join.for_shape(SHAPE, MemberType.WORKER, draw.choice([0, 8]))
        if who not in SWITCHES:
            return plain.asking(draw.choice([0, 300, 4095, 0xFFFF]))
        fields: dict[str, int] = {name: getattr(plain, name) for name in plain.__match_args__}
        ranks = sum(1 << draw.randrange(draw.choice([8, 256, RANKS])) for _ in range(3))
        fields |= {"statement": draw.randrange(1, 40), "unranked": draw.choice([0, 0, 1, 300])}
        value = TreeJoin(**fields, workers=2, ranks=draw.choice([0, ranks]))
        flags = draw.choice([0, FLAG_HEARTBEAT])
        return replace(value, type=MemberType.SWITCH, flags=flags)

    def step(self) -> None:
        self.bench.now += self.draw.choice([0.0, 0.1, 9.0])
        who = self.draw.randrange(7)
        request = self.draw.choice([1000, 1000, 1001, 1000 + len(self.sent)])
        payload = Control(Action.JOIN, JOB, request, self.join(who)).build()
        if self.sent and self.draw.random() < 0.3:
            who, payload = self.draw.choice(self.sent)
        self.sent.append((who, payload))
        self.look(self.bench.send(who, TOS_CONTROL, payload), who, payload)

    def look(self, sends: list[Outgoing], who: int, payload: bytes) -> None:
        for out in sends:
            for answer in packets_of(out) if out.peers == (peer(who),) else ():
                packet = Control.parse(answer)
                if packet.action is not Action.ACK:
                    continue
                assert len(answer) <= len(payload)
                if isinstance(packet.value, AckRanks):
                    self.longest = max(self.longest, len(answer))
                    self.short += packet.value.statement == 0


def test_no_answer_is_longer_than_its_join() -> None:
    longest = short = 0
    for seed in range(30):
        senders = Senders(seed, Bench())
        for _ in range(150):
            senders.step()
        longest, short = max(longest, senders.longest), short + senders.short
    assert longest > 500
    assert short > 20


class Granting(Below):
    """A switch whose parent grants all ranks at once, and gives one to each worker without."""

    def send(self, who: int, tos: int, payload: bytes) -> list[Outgoing]:
        sends = super().send(who, tos, payload)
        above = [out for out in sends if out.peers[0]._replace(line=0) == PARENT]
        for packet in controls(above):
            join = packet.value
            if isinstance(join, TreeJoin):
                free = (r for r in range(RANKS) if not join.ranks >> r & 1)
                given = sum(1 << next(free) for _ in range(join.unranked))
                ack = Ack(Action.JOIN, contributors=8)
                ack = ack.telling(join.statement, join.unranked, join.ranks | given)
                answer = Control(Action.ACK, JOB, packet.request, ack).build()
                sends += self.hears(TOS_CONTROL, [answer])
        return sends


def test_nor_at_a_switch_with_a_parent() -> None:
    longest = 0
    for seed in range(20):
        senders = Senders(seed, Granting())
        for _ in range(60):
            senders.step()
        longest = max(longest, senders.longest)
    assert longest > 500
