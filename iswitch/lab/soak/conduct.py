"""Judges the packets that each machine sends: their receivers, and what they answer.

Recovery hides mistakes: a packet that was not sent is asked for, and one sent to the wrong receiver
does no harm. So packets are judged when they are sent, by the rules of docs/protocol.md. The judges
trust the state of a switch, and judge the packets that it sends in that state.
"""

from __future__ import annotations

from collections.abc import Sequence

from iswitch.core.format.keys import Key
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.switch import Switch
from iswitch.sim.network import VirtualNetwork
from iswitch.sim.node import Node
from iswitch.sim.plugged import Plugged
from worker_lib.protocol.session import Session

from .sessions import SessionConduct
from .switches import SwitchConduct


class Conduct:
    """Watches all machines of a network, each process from its start.

    Args:
        network: the network.
        halts: the number of Halts in the history.
        keys: the keys of the keyed jobs.
    """

    def __init__(self, network: VirtualNetwork, halts: int, keys: Sequence[Key]) -> None:
        self.network = network
        self.halts = halts
        self.keys = keys
        self._watches: dict[Address, SwitchConduct | SessionConduct] = {}
        self.made: dict[int, int] = {}  # by job: the newest version that a root has known

    def comes(self, node: Node, burst: Burst | None) -> None:
        """Note that a machine is about to handle packets, or its timer."""
        watch = self._watch(node)
        if watch is not None:
            watch.comes(burst, self.network.now)

    def says(self, node: Node, burst: Burst | None, sends: Sequence[Outgoing]) -> None:
        """Judge the packets that a machine sends."""
        watch = self._watch(node)
        if watch is not None:
            watch.says(burst, sends, self.network.now)

    def _watch(self, node: Node) -> SwitchConduct | SessionConduct | None:
        machine = node.machine
        if isinstance(machine, Plugged):
            machine = machine.switch
        watch = self._watches.get(node.address)
        if watch is None or watch.machine is not machine:
            if isinstance(machine, Switch):
                watch = SwitchConduct(node.name, machine, self.halts, self.made)
            elif isinstance(machine, Session):
                watch = SessionConduct(node.name, machine, self.opened)
            else:
                return None
            self._watches[node.address] = watch
        return watch

    def opened(self, payload: bytes) -> bytes:
        """Strip the MAC from a control packet, if it has one."""
        packets = (key.opened(payload) for key in self.keys)
        return next((packet for packet in packets if packet is not None), payload)
