"""Writes the packets at the ports of one simulated switch to a capture, as they pass.

Unlike a `Trace` it keeps nothing in memory and handles whole bursts: it serves for long traces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO

import numpy as np

from iswitch.core.format.packets import Address, Burst
from iswitch.core.format.pcapng import Direction, blocks, interface, section
from iswitch.ethernet.made_up import frames

from .host import FRAME
from .network import VirtualNetwork
from .runs import Times
from .trace import RECEIVED, SENT


class Tape:
    """Captures all ports of a switch; the network calls it as its tap.

    Args:
        network: the network of the switch.
        switch: the switch's address.
        neighbours: the address behind each port, by the port's name, in the order of the ports.
        file: the file to write to.
    """

    def __init__(
        self,
        network: VirtualNetwork,
        switch: Address,
        neighbours: Mapping[str, Address],
        file: BinaryIO,
    ) -> None:
        self.frames = 0
        self._network = network
        self._switch = switch
        self._file = file
        self._ports = {address.host: i for i, address in enumerate(neighbours.values())}
        file.write(section() + b"".join(map(interface, neighbours)))
        network.tap = self._note

    def _note(self, what: str, burst: Burst, node: Address, times: Times) -> None:
        if what == RECEIVED and node == self._switch:
            own = self._network.speaking(node, burst.peer.line)
            self._write(Direction.IN, burst.peer, burst, own, times)
        elif what == SENT and self._network.home(burst.peer) == self._switch:
            self._write(Direction.OUT, node, burst, node, times)

    def _write(
        self, direction: Direction, other: Address, burst: Burst, target: Address, times: Times
    ) -> None:
        port, at = self._ports[other.host], 0
        stamps = np.rint(np.full(len(burst.rows), times) * 1e9).astype(np.int64)  # ns
        for rows in burst.by_size():
            is_whole = burst.tos == FRAME
            whole = rows if is_whole else frames(burst.peer, target, burst.tos, rows)
            self._file.write(blocks(port, stamps[at : at + len(rows)], direction, whole).tobytes())
            at += len(rows)
        self.frames += at
