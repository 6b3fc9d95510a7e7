"""A worker of an asynchronous job without I/O: numbered contributions out, versions in.

It does as much as an oracle needs: joins and stays a member, sends what it is given once (a lost
contribution is lost, and the next is newer), and asks for Help where versions are missing.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ..asynchronous import AsynchronousAccelerator
from ..packets import Address, Burst, Outgoing
from ..wire import (
    FLAG_HEARTBEAT,
    SEG_SIZE,
    TOS_DATA,
    TOS_MASK,
    Ack,
    Action,
    Control,
    Join,
    MemberType,
    Segments,
    Shape,
    Status,
    Threshold,
    Vector,
    split_seg,
)

PAUSE = 0.02  # seconds between two looks at what is missing, and two Joins until all are there
HEARTBEAT = 0.1  # seconds


class Contributor:
    """One worker.

    Args:
        switch: where packets go.
        job: the job's number.
        shape: layout of the vectors.
        incarnation: Request of the Join.
        expected: how many workers the job has.
        threshold: H to be set before anything is sent; 0: none.
    """

    def __init__(
        self,
        switch: Address,
        job: int,
        shape: Shape,
        incarnation: int,
        expected: int,
        threshold: int = 0,
    ) -> None:
        self.switch = switch
        self.job = job
        self.shape = shape
        self.incarnation = incarnation
        self.expected = expected
        self.threshold = threshold
        self.member = False
        self.all_there = False
        self.new: deque[tuple[int, int, Vector]] = deque()  # version, segment, aggregate
        self._newest = [0] * shape.segments
        self._lacking: list[set[int]] = [set() for _ in range(shape.segments)]
        self._out: deque[Outgoing] = deque()
        self._request = incarnation
        self._threshold_request: int | None = None
        self._timer = 0.0

    @property
    def ready(self) -> bool:
        """Whether contributions count as they should: all are there, and H is set."""
        return self.member and self.all_there and not self.threshold

    @property
    def version(self) -> int:
        """The newest version that has come of every segment."""
        return min(self._newest)

    def contribute(self, number: int, vector: Vector) -> None:
        """Send contribution `number`, (numel,), all segments full."""
        rows = np.zeros(self.shape.segments, self.shape.packet)
        rows["seg"] = self.shape.headers(number)
        rows["data"] = vector.reshape(self.shape.segments, self.shape.elements)
        packets = rows.view(np.uint8).reshape(self.shape.segments, -1)
        self._out.append(Outgoing((self.switch,), TOS_DATA, packets, packets.shape[1]))

    def transmissions(self, now: float) -> list[Outgoing]:  # noqa: ARG002  (it has no window)
        """What is to be sent now."""
        sends = list(self._out)
        self._out.clear()
        return sends

    def deadline(self) -> float:
        """When something is to be asked."""
        return self._timer

    def handle_timer(self, now: float) -> None:
        """Join, be a member still, and ask for what is missing."""
        gathering = not (self.member and self.all_there)
        self._timer = now + PAUSE
        if gathering or int(now / HEARTBEAT) != int((now - PAUSE) / HEARTBEAT):
            flags = FLAG_HEARTBEAT if self.member else 0
            join = Join.for_shape(self.shape, MemberType.WORKER, self.expected, flags)
            self._send(Control(Action.JOIN, self.job, self.incarnation, join))
        if self.member and self.threshold:
            if self._threshold_request is None:
                self._request += 1
                self._threshold_request = self._request
            value = Threshold(self.threshold)
            self._send(Control(Action.SETH, self.job, self._threshold_request, value))
        for index, newest in enumerate(self._newest):
            self._lacking[index] = {
                v for v in self._lacking[index] if v > newest - AsynchronousAccelerator.KEPT
            }
            # And the one that may have been made since.
            for version in (*sorted(self._lacking[index]), newest + 1) if self.ready else ():
                self._request += 1
                named = Segments(version, index, 1)
                self._send(Control(Action.HELP, self.job, self._request, named))

    def receive(self, burst: Burst, now: float) -> None:
        """Take packets from the switch."""
        for rows in burst.pieces():
            for row in rows:
                if burst.tos & TOS_MASK == TOS_DATA:
                    self._take(row.tobytes())
                else:
                    self._control(row.tobytes(), now)

    def _take(self, payload: bytes) -> None:
        version, index = split_seg(int.from_bytes(payload[:SEG_SIZE], "big"))
        newest, lacking = self._newest[index], self._lacking[index]
        if version <= newest and version not in lacking:
            return
        lacking.update(range(newest + 1, version))
        lacking.discard(version)
        self._newest[index] = max(newest, version)
        total = np.frombuffer(payload, self.shape.dtype.numpy, offset=SEG_SIZE)
        self.new.append((version, index, total))

    def _control(self, payload: bytes, now: float) -> None:
        packet = Control.parse(payload)
        ack = packet.value
        if not isinstance(ack, Ack) or packet.status != Status.OK:
            return
        if ack.action == Action.JOIN:
            self.member = True
            self.all_there |= ack.contributors >= self.expected
            self._timer = min(self._timer, now + PAUSE)
        elif packet.request == self._threshold_request:
            self.threshold = 0

    def _send(self, packet: Control) -> None:
        self._out.append(Outgoing.control(self.switch, packet.build()))
