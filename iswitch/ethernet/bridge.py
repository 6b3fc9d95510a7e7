"""Ordinary traffic: a learning bridge (IEEE 802.1D without spanning tree: no loops).

Where a frame comes from says where its sender is. Where nobody has been heard, or a group is
addressed, a frame goes to all ports but the one it came in at.
"""

from __future__ import annotations

AGEING = 300.0  # seconds; the standard's default
MOST = 65536  # stations that are remembered
LINK_LOCAL = b"\x01\x80\xc2\x00\x00"  # and 00..0F: groups that no bridge forwards


class Bridge:
    """Learns behind which port each station is.

    Args:
        ports: how many there are; they are numbered from 0.
        ageing: seconds after which a station that says nothing is forgotten.
    """

    def __init__(self, ports: int, ageing: float = AGEING) -> None:
        self.ageing = ageing
        self._stations: dict[bytes, tuple[int, float]] = {}  # who was heard last is last
        self.restart(ports)

    def restart(self, ports: int) -> None:
        """Serve this number of ports from now on, and forget all stations."""
        self._stations.clear()
        self._everywhere = tuple(range(ports))

    def __len__(self) -> int:
        return len(self._stations)

    def learn(self, source: bytes, ingress: int, now: float) -> None:
        """Note that a station's frame came in at this port. A full table learns no new station."""
        stations = self._stations
        if stations.pop(source, None) is None and len(stations) >= MOST:
            longest_silent, (_, seen) = next(iter(stations.items()))
            if now - seen <= self.ageing:
                return
            del stations[longest_silent]
        stations[source] = (ingress, now)

    def where(self, station: bytes, now: float) -> int | None:
        """Find the port behind which a station is, if that is known."""
        port, seen = self._stations.get(station, (None, 0.0))
        return None if port is None or now - seen > self.ageing else port

    def egress(self, destination: bytes, ingress: int, now: float) -> tuple[int, ...]:
        """List the ports that a frame goes to; none if it is at its destination already."""
        if destination[0] & 1:
            return () if is_link_local(destination) else self._flood(ingress)
        port = self.where(destination, now)
        if port is None:
            return self._flood(ingress)
        return () if port == ingress else (port,)

    def _flood(self, ingress: int) -> tuple[int, ...]:
        """List all ports but one. (A table of these would grow with the square of the ports.)"""
        return self._everywhere[:ingress] + self._everywhere[ingress + 1 :]


def is_link_local(mac: bytes) -> bool:
    """Whether a MAC is a group that stays on a link: spanning tree, PAUSE, LACP, LLDP."""
    return mac.startswith(LINK_LOCAL) and mac[5] < 0x10
