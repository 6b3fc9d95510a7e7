"""Random histories of a worker's Session, whose switch says anything.

Invariant, of `targets.SessionWorld`: no exception; nothing is written but in `out`, and there only
what came as an aggregate of the round under way; an allreduce is done only when all segments have
come; the timer is not due again at once; it does not send without end. Besides, whatever a bad
switch has said, a good one can still serve: after a Reset the next allreduce ends, right.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from iswitch.core.exchange.requests import is_heartbeat
from iswitch.core.format.packets import Burst
from iswitch.core.format.wire import (
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    Join,
    Round,
    Segments,
    Status,
    Threshold,
    Value,
)
from tests.fuzz.profile import FUZZ
from tests.fuzz.targets import SHAPE, SessionWorld
from tests.support.parts import JOB, rows_of, seg

pytestmark = pytest.mark.unit

ROUNDS = 1 << 32
near = st.integers(-3, 3)
statuses = st.sampled_from((*[0] * 5, *Status, 8, 255))
indexes = st.one_of(st.integers(0, 5), st.just(ROUNDS - 1))
counts = st.one_of(st.integers(0, 5), st.just(ROUNDS - 1))


class AnySwitch(RuleBasedStateMachine):
    """A session at work."""

    def __init__(self) -> None:
        super().__init__()
        self.world = SessionWorld()
        self.session = self.world.session

    def data(self, payloads: list[bytes], tail: int | None = None) -> None:
        rows = rows_of(payloads)
        size = rows.shape[1]
        self.world.receive(Burst(self.session.switch, TOS_DATA, rows, tail or size))

    def control(self, packet: Control) -> None:
        payload = packet.build()
        self.world.receive(Burst.single(self.session.switch, TOS_CONTROL, payload))

    def at(self, further: int) -> int:
        return (self.session.round + further) % ROUNDS

    def welcome(self, further: int = 0, status: int = 0) -> None:
        ack = Ack(Action.JOIN, 0, 1, 2, self.at(further), 2)
        self.control(Control(Action.ACK, JOB, self.session.incarnation, ack, status))

    @rule(further=near, status=statuses)
    def answer_join(self, further: int, status: int) -> None:
        self.welcome(further, status)

    @rule(
        action=st.sampled_from(list(Action)),
        back=st.integers(0, 5),
        status=statuses,
        further=near,
        missing=st.sampled_from((0, 1, ROUNDS - 1)),
    )
    def answer(
        self, action: Action, back: int, status: int, further: int, missing: int
    ) -> None:  # fmt: skip
        """An Ack to one of the last requests."""
        request = (self.session.requests.numbers.last - back) % ROUNDS
        ack = Ack(action, 0, 1, missing, self.at(further), missing)
        self.control(Control(Action.ACK, JOB, request, ack, status))

    @rule(
        action=st.sampled_from(list(Action)),
        job=st.sampled_from((JOB, JOB, JOB, 8)),
        request=st.integers(0, 5),
        further=near,
        index=indexes,
        count=counts,
    )
    def command(
        self, action: Action, job: int, request: int, further: int, index: int, count: int
    ) -> None:  # fmt: skip
        values: dict[Action, Value] = {
            Action.JOIN: Join(0),
            Action.RESET: Round(self.at(further)),
            Action.SETH: Threshold(count),
            Action.FBCAST: Segments(self.at(further), index, count),
            Action.HELP: Segments(self.at(further), index, count),
            Action.ACK: Ack(Action.HELP),
        }
        self.control(Control(action, job, request, values.get(action)))

    @rule(action=st.sampled_from((Action.LEAVE, Action.RESET, Action.SETH, Action.HALT)))
    def request(self, action: Action) -> None:
        """The application asks for something, too; it does not leave here."""
        if action is not Action.LEAVE:
            value = Threshold(1) if action is Action.SETH else None
            self.session.request(action, value, self.world.now)
            self.world.check()

    @rule(
        further=near,
        start=st.integers(0, 4),
        n=st.integers(1, 6),
        fill=st.integers(0, 255),
        tail=st.sampled_from((None, None, 8, 11, 12)),
    )
    def aggregates(
        self, further: int, start: int, n: int, fill: int, tail: int | None
    ) -> None:  # fmt: skip
        """Consecutive segments, of which the last may be shorter."""
        body = bytes([fill]) * 8
        self.data([seg(self.at(further), start + i) + body for i in range(n)], tail)

    @rule(named=st.lists(st.tuples(near, st.integers(0, 4)), min_size=1, max_size=6))
    def scattered(self, named: list[tuple[int, int]]) -> None:
        self.data([seg(self.at(further), index) + b"\7" * 8 for further, index in named])

    @rule(tos=st.sampled_from((TOS_CONTROL, TOS_DATA, 0)), payload=st.binary(min_size=1))
    def garbage(self, tos: int, payload: bytes) -> None:
        self.world.receive(Burst.single(self.session.switch, tos, payload))

    @rule(seconds=st.sampled_from((0.0, 0.02, 0.06, 1.0, 4.0)), begin=st.booleans())
    def wait(self, seconds: float, begin: bool) -> None:
        self.world.pass_time(seconds, begin)

    def teardown(self) -> None:
        """A good switch serves it."""
        session, world = self.session, self.world
        round_ = (session.round + 2) % ROUNDS
        for _ in range(20):  # until it is a member, and nothing it asked for is open
            world.pass_time(2.0, begin=False)
            for packet in session.requests.packets():
                action, request = packet.action, packet.request
                ack = Ack(action, 0, 1, 2, session.round, 2)
                self.control(Control(Action.ACK, JOB, request, ack))
                assert is_heartbeat(packet) or not session.requests.has(request)
            if not session.requests:
                if session.member:
                    break
                session.join(world.now)  # it was refused: the application tries again
        assert session.member
        self.control(Control(Action.RESET, JOB, 1000, Round(round_)))
        assert not session.halted
        round_ = session.round
        world.pass_time(0.0, begin=True)
        assert session.transfer is not None
        wanted = np.arange(SHAPE.numel, dtype=np.int32) * 2
        for i in range(SHAPE.segments):
            self.data([seg(round_, i) + wanted[2 * i : 2 * i + 2].tobytes()])
        assert session.transfer.done
        assert (world.out == wanted).all()


TestAnySwitch = AnySwitch.TestCase
TestAnySwitch.settings = FUZZ
