"""The places of the current members: by address, and by host and ingress port."""

from __future__ import annotations

from collections.abc import Iterator

from iswitch.core.format.packets import Address


class Sources:
    """The addresses of members, and of the switch above.

    Attributes:
        hosts: number of addresses at a host behind an ingress port.
        changes: grows with each change of the addresses, so that users of results derived from
            them can tell whether these still hold.
        version: grows with each change of the keys of `hosts`.
    """

    def __init__(self) -> None:
        self.hosts: dict[tuple[str, int], int] = {}  # members at a host behind an ingress port
        self.changes = 0
        self.version = 0
        self._memberships: dict[Address, int] = {}

    def __iter__(self) -> Iterator[Address]:
        return iter(self._memberships)

    def __contains__(self, peer: Address) -> bool:
        return peer in self._memberships

    def __len__(self) -> int:
        return len(self._memberships)

    def enter(self, peer: Address) -> bool:
        """Note one more membership of an address; return whether it had none before."""
        self._memberships[peer] = before = self._memberships.get(peer, 0) + 1
        if before > 1:
            return False
        self.changes += 1
        where = (peer.host, peer.ingress)
        self.hosts[where] = self.hosts.get(where, 0) + 1
        self.version += self.hosts[where] == 1
        return True

    def leave(self, peer: Address) -> bool:
        """Note one membership less of an address; return whether it has none now."""
        self._memberships[peer] -= 1
        if self._memberships[peer]:
            return False
        del self._memberships[peer]
        self.changes += 1
        where = (peer.host, peer.ingress)
        self.hosts[where] -= 1
        if not self.hosts[where]:
            del self.hosts[where]
            self.version += 1
        return True
