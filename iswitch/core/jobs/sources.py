"""Where the current members are: by address, and by host and ingress port."""

from __future__ import annotations

from collections.abc import Iterator

from iswitch.core.format.packets import Address


class Sources:
    """Who may speak as a member of some job, or as the switch above: their addresses.

    `changes` is another number after every change of these, and `version` after every change of
    `hosts`, so that what was found out about the members of before can be told from what still
    holds.
    """

    def __init__(self) -> None:
        self.hosts: dict[tuple[str, int], int] = {}  # members at a host behind an ingress port
        self.changes = 0
        self.version = 0
        self._memberships: dict[Address, int] = {}

    def __iter__(self) -> Iterator[Address]:
        return iter(self._memberships)

    def __len__(self) -> int:
        return len(self._memberships)

    def enter(self, peer: Address) -> bool:
        """It has become a member of a job; whether it was one of none before."""
        self._memberships[peer] = before = self._memberships.get(peer, 0) + 1
        if before > 1:
            return False
        self.changes += 1
        where = (peer.host, peer.ingress)
        self.hosts[where] = self.hosts.get(where, 0) + 1
        self.version += self.hosts[where] == 1
        return True

    def leave(self, peer: Address) -> bool:
        """It is a member of one job less; whether it is one of none now."""
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
