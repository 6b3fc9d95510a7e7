"""Questions and orders from the control plane to the data plane, in order with the packets.

Frames from the control plane pass the pipeline after all earlier packets, so an answer tells the
state at that point. Frames may be lost in both directions, when a burst finds a receiver's ring
full. Therefore only a few frames are under way at a time. Each question has a number and is
repeated until it is answered. Orders have consecutive numbers: the data plane carries out only the
next one, once, and its answers name the number that it expects (Go-Back-N).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from .cpu import CpuHeader, CpuOp

AT_ONCE = 32  # frames under way to the data plane: with their answers they fit all rings
TRIES = 25
MASK = 0xFFFFFFFF


class PipelineSilent(Exception):
    """Raised when the data plane does not answer."""


class Wire(Protocol):
    """Moves frames to and from the CPU port."""

    def send(self, frame: bytes) -> None:
        """Send a frame into the data plane."""

    def receive(self, seconds: float) -> bytes | None:
        """Return the next frame from the data plane; None: none came within `seconds`."""


class CpuLink:
    """Asks the data plane and gives it orders.

    Args:
        wire: moves frames to and from the CPU port.
        patience: seconds to wait for an answer before the question is repeated.
    """

    def __init__(self, wire: Wire, patience: float = 0.2) -> None:
        self.wire = wire
        self.patience = patience
        self.is_holding = False
        self._came: deque[tuple[int, bytes]] = deque()  # for the control plane
        self._held: deque[tuple[int, bytes]] = deque()  # data, for after the hold
        self._question = 0
        self._next = 0  # order
        self._orders: deque[tuple[int, bytes]] = deque()  # not known to be carried out

    @property
    def has_frames(self) -> bool:
        """Return whether `pull` has work even if nothing new came to the CPU port."""
        return bool(self._came or self._orders or (self._held and not self.is_holding))

    def tell(self, header: CpuHeader, frame: bytes = b"") -> None:
        """Give an order; the answer to the next question shows that it was carried out.

        Raises:
            PipelineSilent: earlier orders are not carried out.
        """
        if len(self._orders) >= AT_ONCE:
            self.settle()
        order = header._replace(number=self._next).build() + frame
        self._orders.append((self._next, order))
        self._next = (self._next + 1) & MASK
        self.wire.send(order)

    def settle(self) -> None:
        """Wait until all orders are carried out.

        Raises:
            PipelineSilent: an order was not carried out in time.
        """
        if self._orders:
            self.ask([CpuHeader(CpuOp.LOOK)])

    def ask(self, headers: Sequence[CpuHeader]) -> list[CpuHeader]:
        """Ask LOOK and HOLD, after all orders; return the answers in the questions' order.

        Raises:
            PipelineSilent: no answers came.
        """
        answers: list[CpuHeader] = []
        for start in range(0, len(headers), AT_ONCE):
            answers += self._ask(headers[start : start + AT_ONCE])
        return answers

    def _ask(self, headers: Sequence[CpuHeader]) -> list[CpuHeader]:
        for again in range(TRIES):
            if again:
                for _, order in self._orders:
                    self.wire.send(order)
            numbers = [(self._question + i) & MASK for i in range(len(headers))]
            self._question = (self._question + len(headers)) & MASK
            for number, header in zip(numbers, headers, strict=True):
                self.wire.send(header._replace(number=number).build())
            found = self._answers(set(numbers))
            if len(found) == len(headers):
                self._orders.clear()
                return [found[number] for number in numbers]
        raise PipelineSilent(
            f"no answer at the CPU port within {TRIES * self.patience:.0f} s: has the switch ended?"
        )

    def _answers(self, wanted: set[int]) -> dict[int, CpuHeader]:
        """Return the answers with these numbers; none if an order was not yet carried out."""
        found: dict[int, CpuHeader] = {}
        while len(found) < len(wanted):
            frame = self.wire.receive(self.patience)
            if frame is None:
                return found
            answer, rest = CpuHeader.parse(frame)
            if answer.op not in (CpuOp.LOOK, CpuOp.HOLD):
                self._take(answer, rest)
            elif answer.number in wanted:  # else to a question that was asked again
                while self._orders and self._orders[0][0] != answer.next:
                    self._orders.popleft()
                if self._orders:
                    return {}
                found[answer.number] = answer
        return found

    def hold(self) -> None:
        """Stop the data plane's handling of data, once it has handled all that came before."""
        self.is_holding = True
        self.ask([CpuHeader(CpuOp.HOLD)])

    def go(self) -> None:
        """End a hold; the data plane now handles the data that came meanwhile.

        The next `pull` waits until this and all later orders are carried out.
        """
        self.tell(CpuHeader(CpuOp.GO))
        self.is_holding = False
        self._tell_held()

    def pull(self, most: int) -> Iterable[tuple[int, bytes]]:
        """Yield up to `most` frames that have come for the control plane, with their ports."""
        self._tell_held()
        self.settle()
        for _ in range(most):
            if not self._came:
                packed = self.wire.receive(0)
                if packed is None:
                    return
                self._take(*CpuHeader.parse(packed))
                self._tell_held()
            if self._came:
                yield self._came.popleft()

    def _take(self, header: CpuHeader, frame: bytes) -> None:
        """Keep a frame that is no answer; drop late answers."""
        if header.op is CpuOp.CONTROL:
            self._came.append((header.port, frame))
        elif header.op is CpuOp.HELD:  # or was on its way when the hold ended
            self._held.append((header.port, frame))

    def _tell_held(self) -> None:
        """Order the data plane to handle the data that was held back."""
        while self._held and not self.is_holding:
            port, frame = self._held.popleft()
            self.tell(CpuHeader(CpuOp.RECEIVE, port=port), frame)
