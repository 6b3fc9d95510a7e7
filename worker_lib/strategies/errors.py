"""Errors of the strategies that sum without a switch; each message says what to do."""

from __future__ import annotations

from collections.abc import Collection

from worker_lib.errors import WorkerError


class RendezvousError(WorkerError):
    """The workers of a group have not found one another."""

    @classmethod
    def missing(cls, ranks: Collection[int], where: str, seconds: float) -> RendezvousError:
        """Make the error that some workers did not come.

        Args:
            ranks: ranks of the missing workers.
            where: address at which the group meets.
            seconds: time that the others have waited.
        """
        named = ", ".join(map(str, sorted(ranks)))
        plural = "s" * (len(ranks) > 1)
        return cls(
            f"rank{plural} {named} did not come to {where} within {seconds:g} s; start "
            f"{'them' if plural else 'it'} with the same MASTER_ADDR and MASTER_PORT, look whether "
            f"{'they have' if plural else 'it has'} failed, or give more time: timeout=..."
        )


class PeerLost(WorkerError):
    """A peer closed its connection, or it broke."""

    def __init__(self, peer: str, reason: str = "") -> None:
        self.peer = peer
        why = f" ({reason})" if reason else ""
        super().__init__(
            f"{peer} is lost{why}: it has failed, or has left because another did; see what it "
            "says, and start all workers of the group again"
        )


class PeerSilent(WorkerError):
    """A connected peer sent nothing for too long."""

    def __init__(self, peer: str, seconds: float) -> None:
        self.peer = peer
        self.seconds = seconds
        which = "one of them" if " and " in peer else "it"
        super().__init__(
            f"{peer} said nothing for {seconds:g} s: {which} computes, hangs, or the network is "
            "down; give more time with timeout=..., and start the group again"
        )


class Unavailable(WorkerError):
    """A package or program that a strategy needs is not installed."""
