"""Questions and orders from the control plane to the data plane, in order with the packets.

What the control plane sends into the CPU port goes through the pipeline after all that came before,
so an answer says how things stand at that point. Either way frames may be lost, where a burst finds
a receiver's ring full. So little is under way at a time, each question has a number and is repeated
until that is answered, and orders are numbered in a row: the data plane carries out the next one
only, once, and its answers say which that is (Go-Back-N).
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
    """The data plane does not answer."""


class Wire(Protocol):
    """Moves frames to and from the CPU port."""

    def send(self, frame: bytes) -> None:
        """Send a frame into the data plane."""

    def receive(self, seconds: float) -> bytes | None:
        """Return the next frame from the data plane; None: none came within `seconds`."""


class CpuLink:
    """Asks the data plane and gives it orders.

    Args:
        wire: to the CPU port.
        patience: seconds for an answer, before it is asked again.
    """

    def __init__(self, wire: Wire, patience: float = 0.2) -> None:
        self.wire = wire
        self.patience = patience
        self.is_holding = False
        self.repeated = 0  # rounds of questions that were asked again
        self._came: deque[tuple[int, bytes]] = deque()  # for the control plane
        self._held: deque[tuple[int, bytes]] = deque()  # data, for after the hold
        self._question = 0
        self._next = 0  # order
        self._orders: deque[tuple[int, bytes]] = deque()  # not known to be carried out

    @property
    def has_frames(self) -> bool:
        """Whether `pull` has something to do without anything new at the CPU port."""
        return bool(self._came or self._orders or (self._held and not self.is_holding))

    def tell(self, header: CpuHeader, frame: bytes = b"") -> None:
        """Give an order; the answer to the next question shows that it was carried out.

        Raises:
            PipelineSilent: what was told before is not done.
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
            PipelineSilent: it is not.
        """
        if self._orders:
            self.ask([CpuHeader(CpuOp.LOOK)])

    def ask(self, headers: Sequence[CpuHeader]) -> list[CpuHeader]:
        """Ask LOOK and HOLD, after all orders; return the answers in the questions' order.

        Raises:
            PipelineSilent: there are none.
        """
        answers: list[CpuHeader] = []
        for start in range(0, len(headers), AT_ONCE):
            answers += self._ask(headers[start : start + AT_ONCE])
        return answers

    def _ask(self, headers: Sequence[CpuHeader]) -> list[CpuHeader]:
        for again in range(TRIES):
            self.repeated += again > 0
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
        """Collect the answers of these numbers, but not late ones, or those before the orders."""
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
        """Stop the data plane's handling of data, once it has handled all before."""
        self.is_holding = True
        self.ask([CpuHeader(CpuOp.HOLD)])

    def go(self) -> None:
        """End a hold; the data plane now handles what came meanwhile.

        Whether it has ended is asked by the next `pull`, together with what is told until then.
        """
        self.tell(CpuHeader(CpuOp.GO))
        self.is_holding = False
        self._tell_held()

    def pull(self, most: int) -> Iterable[tuple[int, bytes]]:
        """Give the frames that have come for the control plane, with their ports."""
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
        """Keep a frame that is no answer; a late answer is not kept."""
        if header.op is CpuOp.CONTROL:
            self._came.append((header.port, frame))
        elif header.op is CpuOp.HELD:  # or was on its way when the hold ended
            self._held.append((header.port, frame))

    def _tell_held(self) -> None:
        """Have the data plane handle the data that was held back."""
        while self._held and not self.is_holding:
            port, frame = self._held.popleft()
            self.tell(CpuHeader(CpuOp.RECEIVE, port=port), frame)
