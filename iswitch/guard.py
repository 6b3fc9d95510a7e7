"""Who claims to be a member that is behind another port: the addresses in frames, judged.

A current member is behind the port that it joined from, and its MAC is the one its frames come
from there. The same goes for the switch above. Nobody has the switch's own address.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt

from .frame import ETH, ETHERTYPE_ARP, ETHERTYPE_IP, IP, IP_HEADER, MAC_SIZE, Frames
from .sources import Sources

IP_SIZE = 4
IP_SOURCE = IP + 12
ARP_SENDER = IP + 8  # MAC, then IPv4 address
ARP_SIZE = 28

Verdict = npt.NDArray[np.bool_]


class SourceGuard:
    """Tells frames that claim somebody else's address.

    Args:
        sources: where the members are.
        mac_of: the MAC last heard of a host behind a port, if any.
        address: the switch's own IPv4 address.
    """

    def __init__(
        self, sources: Sources, mac_of: Callable[[str, int], bytes | None], address: bytes
    ) -> None:
        self._sources = sources
        self._mac_of = mac_of
        self._address = address
        self._members: dict[tuple[str, int], bytes | None] = {}
        self._ips: dict[bytes, Collection[int]] = {}  # the ports that each is behind
        self._macs: dict[bytes, Collection[int]] = {}
        self._version = -1

    def has_changed(self) -> bool:
        """Whether members have come or gone, so that what was found before may not hold."""
        if self._version == self._sources.version:
            return False
        self._version = self._sources.version
        self._members = {
            where: self._members.get(where) or self._mac_of(*where) for where in self._sources.hosts
        }
        self._index()
        return True

    def learn(self, host: str, ingress: int, mac: bytes) -> None:
        """This is the MAC of a host now; of a member it is remembered."""
        where = (host, ingress)
        if where in self._members and self._members[where] != mac:
            self._members[where] = mac
            self._index()

    def is_spoofed(self, mac: bytes, ip: bytes, ingress: int) -> bool:
        """Whether one of these addresses is a member's behind another port only."""
        here = (ingress,)
        return ingress not in self._macs.get(mac, here) or ingress not in self._ips.get(ip, here)

    def spoofed(self, group: Frames) -> Verdict | None:
        """Which of some frames with one Ethernet header are; None: none of them."""
        first = group.heads[0].tobytes()
        ingress, n = group.ingress, len(group.heads)
        if ingress not in self._macs.get(first[ETH + MAC_SIZE : ETH + 12], (ingress,)):
            return np.ones(n, np.bool_)
        kind = first[ETH + 12 : IP]
        if kind == ETHERTYPE_IP:
            return self._claimed(group, self._ips, IP_SOURCE, IP_SIZE, IP_HEADER)
        if kind == ETHERTYPE_ARP:
            macs = self._claimed(group, self._macs, ARP_SENDER, MAC_SIZE, ARP_SIZE)
            ips = self._claimed(group, self._ips, ARP_SENDER + MAC_SIZE, IP_SIZE, ARP_SIZE)
            return ips if macs is None else macs if ips is None else macs | ips
        return None

    @staticmethod
    def _claimed(
        group: Frames, owners: dict[bytes, Collection[int]], at: int, size: int, header: int
    ) -> Verdict | None:
        """Which frames have an address there that is somebody's behind another port."""
        heads, here = group.heads, (group.ingress,)
        n = len(heads)
        raw = heads[:, at : at + size].tobytes()
        if raw == raw[:size] * n:  # as it nearly always is
            if group.ingress in owners.get(raw[:size], here):
                return None
            wrong = np.ones(n, np.bool_)
        else:
            claims = (raw[i : i + size] for i in range(0, len(raw), size))
            found = [group.ingress not in owners.get(claim, here) for claim in claims]
            wrong = np.array(found, np.bool_)
        wrong &= np.array(group.lengths) >= IP + header  # else these bytes are no address
        return wrong if wrong.any() else None

    def _index(self) -> None:
        self._ips, self._macs = {self._address: ()}, {}
        for (host, ingress), mac in self._members.items():
            ip = bytes(map(int, host.split(".")))
            self._ips[ip] = (*self._ips.get(ip, ()), ingress)
            if mac is not None:
                self._macs[mac] = (*self._macs.get(mac, ()), ingress)
