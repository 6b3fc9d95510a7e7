"""Sends the contributions in a trace at a network interface, to drive a switch under test.

Frames leave with their recorded addresses. Answers of the switch are ignored, and lost frames are
not repeated; so frames leave at the recorded speed unless another one is given.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Self

from iswitch.ethernet.frame import ETH, HEAD, Frames
from iswitch.ports.frames import SOCKADDR_LL, FrameSender
from iswitch.ports.interface import BUFFER, interface, packet_socket
from iswitch.ports.kernel.mmsg import Block

from .groups import TO_SWITCH, PacketGroup
from .reader import Reader
from .replay import Replayer
from .survey import TraceSetting


class Injector(Replayer):
    """Sends the packets to the switch of a trace.

    Args:
        reader: the trace.
        setting: where the trace was captured.
        ifname: the interface.
        pace: called before each group with its time, in seconds from the first packet.

    Raises:
        RawPortError: no such interface, or no privilege.
    """

    def __init__(
        self,
        reader: Reader,
        setting: TraceSetting,
        ifname: str,
        pace: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__(reader, setting, pace=pace)
        self.in_layers = False
        self.sent = 0
        self.sent_bytes = 0
        self.refused = 0
        index = interface(ifname)
        self._out = packet_socket(BUFFER)
        self._name = Block(SOCKADDR_LL.pack(socket.AF_PACKET, 0, index, 0, 0, 0, bytes(8)))
        self._sender = FrameSender()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._out.close()

    def _handle(self, group: PacketGroup, time_ns: int) -> None:  # noqa: ARG002
        if group.what == TO_SWITCH:
            self._emit(self._frames(group))

    def _emit(self, frames: Frames) -> None:
        rest = [length - HEAD for length in frames.lengths]
        self._sender.add(self._name.address, frames.heads, frames.bodies, rest)
        refused = len(self._sender.send(self._out.fileno()))
        self.refused += refused
        self.sent += len(rest) - refused
        self.sent_bytes += sum(frames.lengths) - ETH * len(rest)
