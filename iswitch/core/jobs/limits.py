"""What an operator allows: memory, jobs, silence, and control packets per second and source.

Of control packets every source has an allowance (a token bucket: so many a second, as many at
once). A member has its own, so that nobody else can use it up. Those who are no members have one
for each host; when there are more hosts than are kept apart, which needs forged addresses, the
rest share one. So what strangers can make a switch do is bounded, whatever addresses they use.
"""

from __future__ import annotations

from dataclasses import dataclass

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import MAX_MEMBERS
from iswitch.core.sums.buffers import PLAIN, Buffers

STRANGERS = 1024  # hosts without a member that are told apart


@dataclass(frozen=True)
class Limits:
    """What an operator allows: bytes of buffers, jobs, control packets a second of one source.

    A member that has said nothing for `lease` seconds is out; a job without members is forgotten
    after as long. As many control packets as a second allows may come at once.
    """

    memory: int = 1 << 30
    jobs: int = 1024
    lease: float = 30.0
    control_rate: float = 2000.0
    buffers: Buffers = PLAIN  # what is reserved is taken from


class Bucket:
    """Tokens that come at a rate and are kept up to a second's worth.

    Args:
        rate: tokens a second.
        now: when it begins, full.
    """

    __slots__ = ("_at", "_tokens", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._tokens = max(rate, 1.0)
        self._at = now

    def take(self, wanted: int, now: float) -> int:
        """Take this many tokens, or as many as there are; return how many."""
        self._fill(now)
        taken = min(wanted, int(self._tokens))
        self._tokens -= taken
        return taken

    def give_back(self, tokens: int) -> None:
        """Put tokens back that were not needed."""
        self._tokens = min(self._tokens + tokens, max(self.rate, 1.0))

    def is_full(self, now: float) -> bool:
        """Return whether it is as full as a new one."""
        self._fill(now)
        return self._tokens >= self.rate

    def _fill(self, now: float) -> None:
        self._tokens = min(self._tokens + max(now - self._at, 0.0) * self.rate, max(self.rate, 1.0))
        self._at = now


class Throttle:
    """Counts how many control packets each source may still send.

    Args:
        rate: packets a second of one source.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._members: dict[Address, Bucket] = {}
        self._strangers: dict[tuple[str, int], Bucket] = {}  # by host and ingress port
        self._rest = Bucket(rate, 0.0)

    @property
    def strangers(self) -> int:
        """The number of hosts without a member that have an allowance of their own."""
        return len(self._strangers)

    def admit(self, peer: Address, workers: int, now: float) -> None:
        """Give a new member an allowance of its own; a switch has one for each of its workers.

        Args:
            peer: the member.
            workers: for how many it stands.
            now: the time.
        """
        self._members[peer] = Bucket(self._rate(workers), now)

    def count(self, peer: Address, workers: int) -> None:
        """Change for how many workers a switch has an allowance."""
        self._members[peer].rate = self._rate(workers)

    def dismiss(self, peer: Address) -> None:
        """Take the allowance of a member away, which is none any more."""
        self._members.pop(peer, None)

    def take(self, peer: Address, wanted: int, now: float) -> int:
        """Return how many control packets of a source may be handled now.

        Args:
            peer: the source.
            wanted: how many have come.
            now: the time.
        """
        return self._bucket(peer, now).take(wanted, now)

    def give_back(self, peer: Address) -> None:
        """Give a member back what a packet cost it for which the switch had asked."""
        if peer in self._members:
            self._members[peer].give_back(1)

    def _rate(self, workers: int) -> float:
        return self.rate * min(max(workers, 1), MAX_MEMBERS)

    def _bucket(self, peer: Address, now: float) -> Bucket:
        member = self._members.get(peer)
        if member is not None:
            return member
        source = (peer.host, peer.ingress)
        bucket = self._strangers.get(source)
        if bucket is not None:
            return bucket
        if len(self._strangers) >= STRANGERS:
            oldest = next(iter(self._strangers))
            longest_known = self._strangers.pop(oldest)
            if not longest_known.is_full(now):
                self._strangers[oldest] = longest_known  # look at another one next time
                return self._rest
        bucket = self._strangers[source] = Bucket(self.rate, now)
        return bucket
