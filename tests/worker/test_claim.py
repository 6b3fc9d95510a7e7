"""A rank that another worker has: how long a session asks for it, and when it gives up."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.packets import Burst
from iswitch.core.format.wire import (
    ELSEWHERE,
    FLAG_NEW,
    TOS_CONTROL,
    Ack,
    Action,
    Control,
    DType,
    Join,
    Shape,
    Status,
)
from tests.support.world import SWITCH
from worker_lib.protocol.claim import LONGEST_WAIT, TAKEN_PAUSE
from worker_lib.protocol.events import Answered
from worker_lib.protocol.session import Session
from worker_lib.protocol.terms import RoundTerms

JOB = 7


class Refused:
    """A session that asks for rank 2, which the switch says another worker has."""

    def __init__(self, was_member: bool) -> None:
        self.now = 0.0
        self.session = Session(RoundTerms(SWITCH, JOB, Shape.of(8, DType.INT32), rank=2), 1000)
        self.session.join(self.now)
        if was_member:
            self.answer(Status.OK, Ack(Action.JOIN, rank=2, contributors=1))
            assert self.session.member
            self.now = self.session.deadline() or 0.0
            self.session.handle_timer(self.now)
            self.answer(Status.NOT_MEMBER, Ack(Action.JOIN))
            while self.session.next_event() is not None:
                pass

    def answer(self, status: Status, ack: Ack) -> bool:
        """Answer what the session asks for; whether it asks for anything."""
        packets = [
            Control.parse(out.rows[0].tobytes()) for out in self.session.transmissions(self.now)
        ]
        for packet in packets:
            reply = Control(Action.ACK, JOB, packet.request, ack, status).build()
            self.session.receive(Burst.single(SWITCH, TOS_CONTROL, reply), self.now)
        return bool(packets)

    def until_told(self, silence: int, most: float) -> float | None:
        """Refuse until the session tells its owner; after how many seconds it does."""
        began, ack = self.now, Ack(Action.JOIN, rank=2, contributors=silence)
        while self.now < began + most:
            self.answer(Status.RANK_TAKEN, ack)
            event = self.session.next_event()
            if event is not None:
                assert isinstance(event, Answered)
                assert event.status is Status.RANK_TAKEN
                return self.now - began
            self.now = max(self.now, self.session.deadline() or self.now)
            self.session.handle_timer(self.now)
        return None


@pytest.mark.parametrize("was_member", [False, True])
def test_an_owner_that_is_heard_keeps_its_rank(was_member: bool) -> None:
    told = Refused(was_member).until_told(0, 10.0)
    assert told is not None
    assert told <= 3 * TAKEN_PAUSE


def test_a_worker_that_comes_back_learns_that_another_keeps_its_rank_elsewhere() -> None:
    """It used to ask for ever, and told nobody."""
    told = Refused(True).until_told(ELSEWHERE, 10 * LONGEST_WAIT)
    assert told is not None
    assert LONGEST_WAIT < told <= LONGEST_WAIT + 2 * TAKEN_PAUSE


def test_a_first_join_asks_as_long_as_its_constructor_waits() -> None:
    assert Refused(False).until_told(ELSEWHERE, 3 * LONGEST_WAIT) is None


def test_it_asks_anew_with_the_next_round() -> None:
    refused = Refused(True)
    refused.until_told(ELSEWHERE, 2 * LONGEST_WAIT)
    session = refused.session
    assert not session.requests
    session.begin(np.ones(8, np.int32), np.zeros(8, np.int32), refused.now)
    (packet,) = session.requests.packets()
    assert isinstance(packet.value, Join)
    assert not packet.value.flags & FLAG_NEW
