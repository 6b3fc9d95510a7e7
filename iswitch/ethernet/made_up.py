"""Makes up headers for packets that were in no frame: of a socket, or of the simulated network.

The headers are those of the raw world; a MAC is made of 02:69 and the IPv4 address.
"""

from __future__ import annotations

from ipaddress import IPv4Address

import numpy as np

from iswitch.core.format.packets import Address, Rows

from .frame import ETH, Route, sums

MAC_PREFIX = b"\x02\x69"  # locally administered unicast, and an "i"; the address follows


def ip(address: Address) -> bytes:
    """Return the IPv4 address as four bytes."""
    return IPv4Address(address.host).packed


def mac(address: Address) -> bytes:
    """Make up the MAC of a machine."""
    return MAC_PREFIX + ip(address)


def route(source: Address, target: Address, tos: int) -> Route:
    """Make up the headers between two machines."""
    return Route(mac(source), mac(target), ip(source), ip(target), source.port, target.port, tos)


def frames(source: Address, target: Address, tos: int, payloads: Rows) -> Rows:
    """Make Ethernet frames with finished checksums, a row each.

    Args:
        source: the sender.
        target: the receiver.
        tos: type of service.
        payloads: payloads of one size, (n, size) bytes.
    """
    payloads = np.ascontiguousarray(payloads)
    heads = route(source, target, tos).heads(payloads.shape[1], sums(payloads))[:, ETH:]
    return np.concatenate((heads, payloads), axis=1)
