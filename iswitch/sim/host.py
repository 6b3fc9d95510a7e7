"""The network stack of a worker's host: handles bridged frames as Linux would.

In a simulated network packets travel without headers. Only frames that a stranger has had bridged
travel whole: FRAME stands in place of their ToS.
"""

from __future__ import annotations

import numpy as np

from iswitch.core.format.packets import Address, Burst
from iswitch.ethernet.frame import (
    BROADCAST,
    ETHERTYPE_ARP,
    ETHERTYPE_IP,
    UDP_PROTOCOL,
    parse_arp,
    parse_ip,
)
from iswitch.ethernet.made_up import ip, mac

FRAME = 0x100  # the payload of such a packet is an Ethernet frame
TAGS = (b"\x81\x00", b"\x88\xa8")  # that Linux takes with VLAN ID 0, however many there are


class HostStack:
    """Receives frames for a worker.

    Args:
        own: the worker's address.
        switch: the address of its switch, to which its socket is connected.
    """

    def __init__(self, own: Address, switch: Address) -> None:
        self.own = own
        self.switch = switch
        self.neighbour = mac(switch)  # the switch's MAC, as ARP knows it

    @property
    def is_turned(self) -> bool:
        """Return whether the host sends the switch's packets to another station."""
        return self.neighbour != mac(self.switch)

    def receive(self, frame: bytes) -> Burst | None:
        """Handle a frame; return the datagram for the worker's socket, or None."""
        to, rest = frame[:6], frame[12:]
        if to not in (mac(self.own), BROADCAST):
            return None
        while rest[:2] in TAGS and int.from_bytes(rest[2:4], "big") & 0xFFF == 0:
            rest = rest[4:]
        frame = frame[:12] + rest
        if rest[:2] == ETHERTYPE_ARP:
            self._learn(frame)
        return self._datagram(frame) if rest[:2] == ETHERTYPE_IP else None

    def _learn(self, frame: bytes) -> None:
        """Learn the switch's MAC from an ARP request or reply."""
        packet = parse_arp(frame)
        if packet is not None and packet.sender_ip == ip(self.switch):
            self.neighbour = packet.sender

    def _datagram(self, frame: bytes) -> Burst | None:
        packet = parse_ip(frame)
        if packet is None or not packet.sound or packet.fragment:
            return None
        if packet.protocol != UDP_PROTOCOL or len(packet.payload) <= 8:
            return None
        ports = self.switch.port.to_bytes(2, "big") + self.own.port.to_bytes(2, "big")
        between = packet.source, packet.destination, packet.payload[:4]
        if between != (ip(self.switch), ip(self.own), ports):
            return None
        rows = np.frombuffer(packet.payload[8:], np.uint8).reshape(1, -1)
        return Burst(self.switch, packet.tos, rows, rows.shape[1])
