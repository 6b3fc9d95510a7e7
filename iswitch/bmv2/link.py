"""The wire between control plane and data plane: questions and answers, in order with the packets.

What the control plane sends into the CPU port goes through the pipeline after all that came before,
so an answer says how things stand at that point.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from .cpu import CpuHeader, Op

AT_ONCE = 128  # questions under way: with their answers they fit the queues
TRIES = 5


class PipelineSilent(Exception):
    """The data plane does not answer."""


class Wire(Protocol):
    """Moves frames to and from the CPU port."""

    def send(self, frame: bytes) -> None:
        """Into the data plane."""

    def receive(self, seconds: float) -> bytes | None:
        """The next frame from it, waited for at most so long."""


class Link:
    """Asks the data plane and tells it what to do.

    Args:
        wire: to the CPU port.
        patience: seconds for an answer, before it is asked again.
    """

    def __init__(self, wire: Wire, patience: float = 1.0) -> None:
        self.wire = wire
        self.patience = patience
        self.is_holding = False
        self.came: list[tuple[CpuHeader, bytes]] = []  # while an answer was waited for
        self._held: list[tuple[int, bytes]] = []

    def tell(self, header: CpuHeader, frame: bytes = b"") -> None:
        """Have something done; there is no answer."""
        self.wire.send(header.build() + frame)

    def ask(self, headers: Sequence[CpuHeader]) -> list[CpuHeader]:
        """The answers to LOOK and HOLD, in the same order.

        Raises:
            PipelineSilent: there are none.
        """
        answers: list[CpuHeader] = []
        for start in range(0, len(headers), AT_ONCE):
            answers += self._ask(headers[start : start + AT_ONCE])
        return answers

    def _ask(self, headers: Sequence[CpuHeader]) -> list[CpuHeader]:
        found: dict[tuple[Op, int, int, int], CpuHeader] = {}
        for _ in range(TRIES):
            for header in headers:
                if header.asked not in found:
                    self.tell(header)
            while any(header.asked not in found for header in headers):
                frame = self.wire.receive(self.patience)
                if frame is None:
                    break
                answer, rest = CpuHeader.parse(frame)
                if answer.op in (Op.LOOK, Op.HOLD):
                    found[answer.asked] = answer
                else:
                    self._take(answer, rest)
            else:
                return [found[header.asked] for header in headers]
        raise PipelineSilent(
            f"no answer at the CPU port within {TRIES * self.patience:.0f} s: has the switch ended?"
        )

    def hold(self) -> None:
        """From now on no data is handled but what is told here; all before has been."""
        self.is_holding = True
        self.ask([CpuHeader(Op.HOLD)])

    def go(self) -> None:
        """End a hold; what came meanwhile is handled now."""
        self.tell(CpuHeader(Op.GO))
        self.is_holding = False
        held, self._held = self._held, []
        for port, frame in held:
            self.tell(CpuHeader(Op.RECEIVE, port=port), frame)

    def pull(self, most: int) -> Iterable[tuple[int, bytes]]:
        """Frames for the control plane that have come, with the ports they came in at."""
        came, self.came = self.came, []
        for header, frame in came:
            yield header.port, frame
        for _ in range(most):
            packed = self.wire.receive(0)
            if packed is None:
                return
            self._take(*CpuHeader.parse(packed))
            came, self.came = self.came, []
            for header, frame in came:
                yield header.port, frame

    def _take(self, header: CpuHeader, frame: bytes) -> None:
        """Keep a frame that is no answer."""
        if header.op is Op.CONTROL:
            self.came.append((header, frame))
        elif header.op is Op.HELD and self.is_holding:
            self._held.append((header.port, frame))
        elif header.op is Op.HELD:  # was on its way when the hold ended
            self.tell(CpuHeader(Op.RECEIVE, port=header.port), frame)
