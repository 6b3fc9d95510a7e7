"""Random rounds of a worker: what comes to it, played by the kernel or in Python."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np

from iswitch.core.format.packets import Address, Burst, Outgoing, Rows
from iswitch.core.format.wire import (
    ROUND_MASK,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    Mode,
    Round,
    Segments,
    Shape,
    Status,
    Vector,
)
from iswitch.fast.ring_table import Its
from iswitch.fast.worker_table import At
from iswitch.ports.port import Port
from iswitch.ports.rings import channel, meeting
from iswitch.ports.rings.hub import Rings
from iswitch.ports.rings.serving import RingPort
from iswitch.ports.udp import UdpPort
from worker_lib import ring_rounds
from worker_lib.owned_kernel import OwnedKernel
from worker_lib.protocol.own import Blocks
from worker_lib.protocol.owned_session import OwnedSession, session_of
from worker_lib.protocol.session import Session
from worker_lib.protocol.terms import RoundTerms
from worker_lib.protocol.transfer import Contribution

HOME = ("127.0.0.1", 0)
JOB = 7
FIRST = 5  # round
RANK = 1
TURN = 0.02  # seconds that the kernel waits for more
MOST_HELPED = 8  # segments; more may be doubted, which depends on the time

Sent = tuple[int, Rows, int]  # ToS byte, rows and tail


@dataclass
class Rig:
    """A worker's session at a socket, and the socket of a switch that does what a test says."""

    shape: Shape
    port: UdpPort
    switch: Port[Burst, Outgoing]
    address: Address
    kernel: OwnedKernel | None
    others: list[UdpPort] = field(default_factory=list)
    session: Session = field(init=False)
    wholly: int = 0  # rounds that the kernel finished without Python
    before: dict[str, int] = field(default_factory=dict)  # stats when the round began

    def __post_init__(self) -> None:
        terms = RoundTerms(self.address, JOB, self.shape, most=self.port.most)
        self.session = session = session_of(terms, 1000)
        now = time.monotonic()
        session.join(now)
        request = Control.parse(session.transmissions(now)[0].rows[0].tobytes()).request
        ack = Ack(Action.JOIN, round=FIRST, contributors=1, rank=RANK)
        answer = Control(Action.ACK, JOB, request, ack, Status.OK).build()
        session.receive(Burst.single(self.address, TOS_CONTROL, answer), now)
        assert session.member
        for packet in session.requests.packets():  # for the switch's room, which it would repeat
            session.forget(packet.request)

    def copy_past_caches(self) -> None:
        """Let the kernel copy vectors of any size as it copies large ones."""
        if self.kernel is not None:
            self.kernel._set(LARGE=0)

    def say(self, sends: list[Sent]) -> None:
        """Send something as the switch: to all, or what is of one rank's to this worker alone."""
        peers = tuple(port.address for port in (self.port, *self.others))
        for_one = self.shape.mode in (Mode.REDUCE_SCATTER, Mode.ALL_TO_ALL)
        for tos, rows, tail in sends:
            alone = for_one and tos == TOS_DATA and tail == self.shape.packet_size
            self.switch.push([Outgoing(peers[:1] if alone else peers, tos, rows, tail)])
        for other in self.others:
            list(other.pull())

    def begin(self, vector: Vector, out: Vector, end: int | None = None) -> None:
        """Begin a round and play it as far as what has come goes.

        Args:
            vector: the vector.
            out: receives the sum.
            end: the `End` of the kernel that has begun it in a row with others; None: none has.
        """
        session, now = self.session, time.monotonic()
        self.before = dict(session.stats)
        played = self.kernel is not None
        if not session.begin_express(vector, out, now, own=True, played=played):
            session.begin(vector, out, now, own=True)
        elif self.kernel is not None:
            done = self.kernel.play(session, now + TURN, end)
            self.wholly += done
            if not done:
                session.go_slow()
        self.drain()

    def exchange(self, gives: Blocks, gets: Blocks, total: int | None) -> None:
        """Begin a round of owned segments and play it as far as what has come goes.

        Args:
            gives, gets, total: as for `OwnedSession.begin_blocks`.
        """
        session, now = self.session, time.monotonic()
        assert isinstance(session, OwnedSession)
        self.before = dict(session.stats)
        session.begin_blocks(gives, gets, now, total)
        if self.kernel is not None:
            self.kernel._set(REMAINING=1)
            while self.kernel.exchange(session, now + TURN):
                pass
            self.wholly += int(self.kernel._table[At.REMAINING] == 0)
        self.drain()

    def drain(self) -> None:
        """Handle in Python what has come."""
        while True:
            now = time.monotonic()
            self.port.push(self.session.transmissions(now))
            bursts = list(self.port.pull())
            if not bursts:
                return
            for burst in bursts:
                self.session.receive(burst, now)

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Return the ranges of segments that the round lacks."""
        if self.session.transfer is not None:
            return self.session.transfer.missing()
        express = self.session.express
        return [] if express is None or express.done else [(express.came, express.shape.segments)]

    def heard(self) -> list[tuple[int, bytes]]:
        """Return the packets that have come to the switch, sorted."""
        found = []
        while bursts := list(self.switch.pull()):
            for burst in bursts:
                for part in burst.by_size():
                    found += [(burst.tos, row.tobytes()) for row in part]
        return sorted(found)

    def state(self, helped: bool) -> dict[str, Any]:
        """Return what both ways must have in common.

        If the switch asked for Help, what counts as sent and as in flight depends on whether more
        came before this was answered.
        """
        session = self.session
        session.go_slow()
        transfer = session.transfer
        stats = {name: n - self.before[name] for name, n in session.stats.items()}
        own: dict[str, Any] = {}
        if helped:
            del stats["sent"]
        elif transfer is not None and not transfer.done:
            losses = transfer.losses
            own = {
                "in_flight": transfer.in_flight,
                "outstanding": transfer.outstanding,
                "must_resend": transfer.must_resend,
                "order": losses._order.tolist(),
                "copies": losses._copies.tolist(),
                "newest": losses._newest,
                "most": losses._most,
                "doubtful": losses.doubtful,
            }
        return own | {
            "round": session.round,
            "missing": self.missing,
            "stats": stats,
            "window": session.window,
            "halted": session.halted,
            "filled": [(one.round, one.filled) for one in session._contributions],  # type: ignore[attr-defined]
            "rows": session._contributions[0]._rows.tobytes(),
        }


@contextmanager
def rig(shape: Shape, offload: bool, compiled: bool) -> Iterator[Rig]:
    """Open a rig for a `with` block."""
    with (
        closing(UdpPort(HOME, offload=offload)) as switch,
        closing(UdpPort(HOME, connect=switch.address[:2], offload=offload)) as port,
    ):
        made = ring_rounds.load(port) if compiled else None
        assert (made is not None) == compiled
        yield Rig(shape, port, switch, switch.address, made)


@contextmanager
def ring_rig(shape: Shape, compiled: bool, near: int = 0, workers: int = 2) -> Iterator[Rig]:
    """Open a rig whose worker has rings for a `with` block: in a group with others, or alone.

    The kernel writes into them through the caches if it takes the switch for nearer than `near`.
    """
    with ExitStack() as stack:
        udp = UdpPort(HOME)
        path = Path(stack.enter_context(TemporaryDirectory()), "rings")
        switch = stack.enter_context(closing(RingPort(udp, Rings(path, udp.address, udp.fileno()))))
        ports = []
        for _ in range(workers):
            with (
                patch.dict(os.environ, {meeting.VARIABLE: str(path)}),
                patch.object(channel, "PATIENCE", 0.0),
            ):
                port = stack.enter_context(closing(channel.port(HOME, udp.address[:2])))
            while port.way == "udp":
                list(switch.pull())
                list(port.pull())
            ports.append(port)
        peers = tuple(port.address for port in ports)
        switch.push([Outgoing(peers, TOS_DATA, np.zeros((1, 8), np.uint8), 8)])
        for port in ports:  # it hears of its group, whose ring has that packet
            while not list(port.pull()):
                pass
        made = ring_rounds.load(ports[0]) if compiled else None
        assert (made is not None) == compiled
        if isinstance(made, ring_rounds.RingRoundKernel):
            made._rings[Its.NEAR] = near
        yield Rig(shape, ports[0], switch, udp.address, made, ports[1:])


class Schedule:
    """Draws what the switch sends in a round.

    Args:
        shape: layout of the vectors.
        rng: random numbers.
    """

    def __init__(self, shape: Shape, rng: np.random.Generator) -> None:
        self.shape = shape
        self.rng = rng
        self.requests = 0

    def sums(self, round_: int, total: Vector) -> Rows:
        """Return the aggregates of a round, in packets of one size."""
        contribution = Contribution(self.shape)
        contribution.begin(round_)
        segments = self.shape.shortened(len(total)).segments
        contribution.fill(total, segments)
        return contribution.rows(0, segments)[0]

    def draw(self, round_: int, total: Vector) -> list[Sent]:
        """Return what is sent in a round: everything in order, or with all sorts of faults."""
        rng, rows = self.rng, self.sums(round_, total)
        n = len(rows)
        inner = range(1, n)
        cuts = sorted(rng.choice(inner, min(int(rng.integers(4)), n - 1), replace=False).tolist())
        bounds = [0, *cuts, n]
        sends = [(TOS_DATA, rows[a:b], self.shape.tail(b)) for a, b in pairwise(bounds)]
        if rng.random() < 0.1:  # at the end: what was to be sent may be gone after it, or not
            ahead = Round((round_ + int(rng.integers(1, 4))) & ROUND_MASK)
            halt, reset = self._packet(Action.HALT, None), self._packet(Action.RESET, ahead)
            return [*sends[: int(rng.integers(len(sends)))], halt, reset]
        for _ in range(int(rng.integers(4)) if rng.random() < 0.7 else 0):
            at = int(rng.integers(len(sends) + 1))
            fault = int(rng.integers(7))
            if fault == 0 and at < len(sends):
                del sends[at]
            elif fault == 1 and at < len(sends):
                sends.insert(int(rng.integers(len(sends) + 1)), sends[at])
            elif fault == 2 and at < len(sends):
                sends.append(sends.pop(at))
            elif fault == 3:
                sends.insert(at, (TOS_DATA, self.sums(round_ - 1, total)[:3], self.shape.tail(3)))
            elif fault == 4 and at < len(sends) and len(sends[at][1]) > 2:  # one within is lost
                tos, some, tail = sends[at]
                gone = 1 + int(rng.integers(len(some) - 2))
                sends[at] = tos, np.delete(some, gone, axis=0), tail
            elif all(tos == TOS_DATA for tos, _, _ in sends):  # what is asked for twice at once is
                sends.insert(at, self._control(round_))  # sent once
        return [*self._damaged(rows), *sends]

    def _damaged(self, rows: Rows) -> list[Sent]:
        """Return perhaps a packet with a wrong length, or of a segment that there is not.

        It comes first: if others came before it at once, Python would drop these, too.
        """
        rng = self.rng
        some = rows[int(rng.integers(len(rows))) :][:1].copy()
        if rng.random() < 0.1:
            some[0, 4] = 0x7F
            return [(TOS_DATA, some, some.shape[1])]
        if rng.random() < 0.1:
            return [(TOS_DATA, some, int(rng.integers(1, some.shape[1] + 1)))]
        return []

    def _control(self, round_: int) -> Sent:
        rng = self.rng
        if rng.random() < 0.8:
            start, count = int(rng.integers(self.shape.segments)), int(rng.integers(MOST_HELPED))
            return self._packet(Action.HELP, Segments(round_, start, count + 1))
        return TOS_CONTROL, np.frombuffer(rng.bytes(30), np.uint8).reshape(1, -1), 30

    def _packet(self, action: Action, value: Any) -> Sent:
        self.requests += 1
        payload = Control(action, JOB, self.requests, value).build()
        return TOS_CONTROL, np.frombuffer(payload, np.uint8).reshape(1, -1), len(payload)

    def rest(self, round_: int, total: Vector, missing: list[tuple[int, int]]) -> list[Sent]:
        """Return the aggregates that are still missing."""
        rows = self.sums(round_, total)
        return [(TOS_DATA, rows[a:b], self.shape.tail(b)) for a, b in missing]
