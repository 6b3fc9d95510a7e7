"""Finds spoofed frames, which claim the address of a member behind another port.

A current member is behind the port from which it joined, and its MAC is the source MAC of its
frames there. This holds for the switch above, too. No frame may claim the switch's own address or
MAC.

Frames that came together are judged together if their innermost headers lie at one place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Rows
from iswitch.core.jobs.sources import Sources

from .claims import (
    INTERFACE_SIZE,
    IP6_NEXT,
    IP6_SIZE,
    IP6_SOURCE,
    LOOK,
    Inner,
    discovered,
    innermost,
    interface,
    is_plain,
)
from .frame import (
    ETH,
    ETHERTYPE_ARP,
    ETHERTYPE_IP,
    ETHERTYPE_IP6,
    HEAD,
    IP,
    IP_HEADER,
    MAC_SIZE,
    TCP,
    UDP_PROTOCOL,
    Frames,
)
from .sorting import same

IP_SIZE = 4
IP_SOURCE = 12
IP_PLAIN = IP + IP_SOURCE  # offset of the source address in an untagged frame
ARP_SENDER = 8  # MAC, then IPv4 address
ARP_SIZE = 28
UNDISCOVERING = bytes((TCP, UDP_PROTOCOL))  # most of IPv6, and never neighbour discovery
ANEW = -1  # a version that sources never have: the index must be made anew

Verdict = npt.NDArray[np.bool_]
Owners = dict[bytes, Collection[int]]  # the ports behind which each address may be


class SourceGuard:
    """Finds frames that claim a member's address behind another port.

    Args:
        sources: the addresses of the members.
        mac_of: returns the last known MAC of a host behind a port, or None.
        address: the switch's own IPv4 address.
        mac: its MAC.
    """

    def __init__(
        self,
        sources: Sources,
        mac_of: Callable[[str, int], bytes | None],
        address: bytes,
        mac: bytes,
    ) -> None:
        self._sources = sources
        self._mac_of = mac_of
        self._address = address
        self._mac = mac
        self._members: dict[tuple[str, int], bytes | None] = {}
        self._ips: Owners = {}
        self._macs: Owners = {}
        self._interfaces: Owners = {}  # by the identifier that each MAC makes
        self._version = ANEW

    def has_changed(self) -> bool:
        """Take up changes of members and MACs; return whether earlier verdicts may be wrong."""
        if self._version == self._sources.version:
            return False
        self._version = self._sources.version
        self._members = {
            where: self._members.get(where) or self._mac_of(*where) for where in self._sources.hosts
        }
        self._index()
        return True

    def learn(self, host: str, ingress: int, mac: bytes) -> None:
        """Note the MAC of a host behind a port; it matters only if the host has a member there."""
        where = (host, ingress)
        if where in self._members and self._members[where] != mac:
            self._members[where] = mac
            self._version = ANEW

    def is_spoofed(self, mac: bytes, ip: bytes, ingress: int) -> bool:
        """Return whether the MAC or the IPv4 address belongs to members behind other ports only."""
        here = (ingress,)
        return ingress not in self._macs.get(mac, here) or ingress not in self._ips.get(ip, here)

    def spoofed(self, group: Frames) -> Verdict | None:
        """Return which frames with one Ethernet header are spoofed, (n,); None: none of them.

        Frames whose innermost header lies too deep count as spoofed, since their claims are hidden.
        """
        heads, bodies = group.heads, group.bodies
        ingress, n = group.ingress, len(heads)
        first = heads[0].tobytes()
        if ingress not in self._macs.get(first[ETH + MAC_SIZE : ETH + 12], (ingress,)):
            return np.ones(n, np.bool_)
        kind = first[ETH + 12 : IP]
        if kind == ETHERTYPE_IP:  # as it nearly always is
            return self._claimed(group, heads, self._ips, IP_PLAIN, IP_SIZE, IP + IP_HEADER)
        if is_plain(kind):
            return self._judged(group, heads, Inner(kind, IP))
        tops = np.hstack((heads, bodies[:, : LOOK - HEAD]))
        first = tops[0, : group.lengths[0]].tobytes()
        inner = innermost(first)
        end = LOOK if inner is None else inner.at
        if n > 1 and (min(group.lengths) < end or not same(tops, first, slice(IP, end))):
            each = [self.spoofed(group.part(i, i + 1)) is not None for i in range(n)]
            return some(np.array(each, np.bool_))
        return np.ones(n, np.bool_) if inner is None else self._judged(group, tops, inner)

    def _judged(self, group: Frames, tops: Rows, inner: Inner) -> Verdict | None:
        """Return which frames are spoofed by their innermost header, of one kind and place."""
        kind, at = inner
        if kind == ETHERTYPE_IP:
            return self._claimed(group, tops, self._ips, at + IP_SOURCE, IP_SIZE, at + IP_HEADER)
        if kind == ETHERTYPE_ARP:
            end, mac = at + ARP_SIZE, at + ARP_SENDER
            macs = self._claimed(group, tops, self._macs, mac, MAC_SIZE, end)
            ips = self._claimed(group, tops, self._ips, mac + MAC_SIZE, IP_SIZE, end)
            return either(macs, ips)
        if kind == ETHERTYPE_IP6:
            end, source = at + IP6_SIZE, at + IP6_SOURCE + 16 - INTERFACE_SIZE
            sources = self._claimed(group, tops, self._interfaces, source, INTERFACE_SIZE, end)
            return either(sources, self._discovered(group, tops, at))
        return None

    @staticmethod
    def _claimed(
        group: Frames, tops: Rows, owners: Owners, at: int, size: int, end: int
    ) -> Verdict | None:
        """Return which frames have an address of a member behind another port, (n,); None: none.

        Args:
            group: the frames.
            tops: their first bytes, a row each.
            owners: the ports behind which each address may be.
            at: offset of the address in a row.
            size: bytes of the address.
            end: a frame shorter than this has no such address.
        """
        n, here = len(tops), (group.ingress,)
        raw = tops[:, at : at + size].tobytes()
        if raw == raw[:size] * n:  # as it nearly always is
            if group.ingress in owners.get(raw[:size], here):
                return None
            wrong = np.ones(n, np.bool_)
        elif tops.shape[1] < end:
            return None
        else:
            claims = (raw[i : i + size] for i in range(0, len(raw), size))
            found = [group.ingress not in owners.get(claim, here) for claim in claims]
            wrong = np.array(found, np.bool_)
        wrong &= np.array(group.lengths) >= end
        return some(wrong)

    def _discovered(self, group: Frames, tops: Rows, at: int) -> Verdict | None:
        """Return which frames are spoofed by neighbour discovery, or hide it, (n,); None: none."""
        if tops.shape[1] < at + IP6_SIZE:
            return None
        follows = tops[:, at + IP6_NEXT].tobytes()
        if not follows.translate(None, UNDISCOVERING):
            return None
        wrong = np.zeros(len(tops), np.bool_)
        for i, kind in enumerate(follows):
            if kind not in UNDISCOVERING:
                wrong[i] = self._is_false(group.row(i)[at:], group.ingress)
        return some(wrong)

    def _is_false(self, packet: bytes, ingress: int) -> bool:
        """Return whether an IPv6 packet claims the address of a member elsewhere, or hides it."""
        found, here = discovered(packet), (ingress,)
        return (
            found is None
            or any(ingress not in self._macs.get(mac, here) for mac in found.macs)
            or any(ingress not in self._interfaces.get(one, here) for one in found.interfaces)
        )

    def _index(self) -> None:
        self._ips, self._macs = {self._address: ()}, {self._mac: ()}
        for (host, ingress), mac in self._members.items():
            ip = bytes(map(int, host.split(".")))
            self._ips[ip] = (*self._ips.get(ip, ()), ingress)
            if mac is not None:
                self._macs[mac] = (*self._macs.get(mac, ()), ingress)
        self._interfaces = {interface(mac): ports for mac, ports in self._macs.items()}


def either(one: Verdict | None, other: Verdict | None) -> Verdict | None:
    """Merge two verdicts: the frames that one or the other names."""
    return other if one is None else one if other is None else one | other


def some(verdict: Verdict) -> Verdict | None:
    """Return the verdict; None if it is false for all frames."""
    return verdict if verdict.any() else None
