"""Ordinary traffic: a learning bridge (IEEE 802.1D without spanning tree: no loops).

The bridge learns a station's port from the frames that it sends. A frame for an unknown station, or
for a group, goes to all ports but the one at which it came in.
"""

from __future__ import annotations

AGEING = 300.0  # seconds; the standard's default
MOST = 65536  # stations that are remembered
LINK_LOCAL = b"\x01\x80\xc2\x00\x00"  # and 00..0F: groups that no bridge forwards


class Bridge:
    """Learns behind which port each station is.

    Args:
        ports: number of ports; they are numbered from 0.
        ageing: seconds after which a silent station is forgotten.
    """

    def __init__(self, ports: int, ageing: float = AGEING) -> None:
        self.ageing = ageing
        self._stations: dict[bytes, tuple[int, float]] = {}  # in the order last heard
        self.restart(ports)

    def restart(self, ports: int) -> None:
        """Change the number of ports, and forget all stations."""
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
        """Return the port behind which a station is; None: unknown."""
        port, seen = self._stations.get(station, (None, 0.0))
        return None if port is None or now - seen > self.ageing else port

    def egress(self, destination: bytes, ingress: int, now: float) -> tuple[int, ...]:
        """Return the ports that a frame goes to; none if its destination is behind `ingress`."""
        if destination[0] & 1:
            return () if is_link_local(destination) else self._flood(ingress)
        port = self.where(destination, now)
        if port is None:
            return self._flood(ingress)
        return () if port == ingress else (port,)

    def _flood(self, ingress: int) -> tuple[int, ...]:
        """Return all ports but one. (A table of these would grow with the square of the ports.)"""
        return self._everywhere[:ingress] + self._everywhere[ingress + 1 :]


def is_link_local(mac: bytes) -> bool:
    """Return whether a MAC is a group that stays on a link: spanning tree, PAUSE, LACP, LLDP."""
    return mac.startswith(LINK_LOCAL) and mac[5] < 0x10
