"""Limits set by the operator: memory, jobs, silence, and control packets per second and source.

Every source has an allowance of control packets: a token bucket that holds one second's worth. A
member has its own, so that no other source can use it up. Strangers share one per host. The number
of such allowances is bounded: when forged addresses use them up, all further hosts share one. So
the work that strangers can cause is bounded, whatever addresses they use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import MAX_MEMBERS
from iswitch.core.sums.buffers import PLAIN, Buffers

STRANGERS = 1024  # hosts without a member that are told apart


@dataclass(frozen=True)
class Grants:
    """What an operator grants single jobs, by number, and users of keys, by name.

    Attributes:
        quotas: bytes that a job, or all jobs of a user together, may reserve.
        each: bytes that any other job may reserve; None: as many as are free.
        priorities: replace those that Joins ask for.
    """

    quotas: Mapping[int | str, int] = field(default_factory=dict)
    each: int | None = None
    priorities: Mapping[int | str, int] = field(default_factory=dict)

    def quota_of(self, job: int) -> int | None:
        """Return the bytes that a job may reserve; None: as many as are free."""
        return self.quotas.get(job, self.each)

    def priority_of(self, job: int, user: str, asked: int) -> int:
        """Return the priority of a job: its own, its user's, or the one that it asks for."""
        return self.priorities.get(job, self.priorities.get(user, asked))


@dataclass(frozen=True)
class Limits:
    """Limits set by the operator: bytes of buffers, jobs, control packets a second per source.

    A member that is silent for `lease` seconds is taken out; a job without members is forgotten
    after `lease` seconds. One second's worth of control packets may come at once. A partial sum of
    an asynchronous job waits for more contributions for `hold` seconds; None: as a version takes. A
    job that can go through fewer slots than segments has `slots` at most; 0: one for each segment.
    The jobs share the memory as the `policy` of this name says (`policy.py`). What single jobs and
    users may have besides is in `grants`.
    """

    memory: int = 1 << 30
    jobs: int = 1024
    lease: float = 30.0
    control_rate: float = 2000.0
    buffers: Buffers = PLAIN  # allocates the reserved memory
    hold: float | None = None
    slots: int = 0
    policy: str = "static"
    grants: Grants = field(default_factory=Grants)


class Bucket:
    """A token bucket: fills at a rate, and holds up to one second's worth.

    Args:
        rate: tokens a second.
        now: the time at which it starts, full; in seconds.
    """

    __slots__ = ("_at", "_tokens", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._tokens = max(rate, 1.0)
        self._at = now

    def take(self, wanted: int, now: float) -> int:
        """Take up to `wanted` tokens; return how many were taken."""
        self._fill(now)
        taken = min(wanted, int(self._tokens))
        self._tokens -= taken
        return taken

    def left(self, now: float) -> int:
        """Return how many tokens there are."""
        self._fill(now)
        return int(self._tokens)

    def give_back(self, tokens: int) -> None:
        """Put unused tokens back."""
        self._tokens = min(self._tokens + tokens, max(self.rate, 1.0))

    def is_full(self, now: float) -> bool:
        """Return whether the bucket is as full as a new one."""
        self._fill(now)
        return self._tokens >= self.rate

    def _fill(self, now: float) -> None:
        self._tokens = min(self._tokens + max(now - self._at, 0.0) * self.rate, max(self.rate, 1.0))
        self._at = now


class Throttle:
    """Limits the control packets of each source.

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
        """Return the number of hosts that have an allowance as strangers."""
        return len(self._strangers)

    def admit(self, peer: Address, workers: int, now: float) -> None:
        """Give a new member an allowance of its own; a switch gets one for each of its workers.

        Args:
            peer: the member's address.
            workers: the number of workers for which it stands.
            now: the time, in seconds.
        """
        self._members[peer] = Bucket(self._rate(workers), now)

    def count(self, peer: Address, workers: int) -> None:
        """Change the number of workers for which a switch has an allowance."""
        self._members[peer].rate = self._rate(workers)

    def dismiss(self, peer: Address) -> None:
        """Remove the allowance of a former member."""
        self._members.pop(peer, None)

    def take(self, peer: Address, wanted: int, now: float) -> int:
        """Return how many control packets of a source may be handled now.

        Args:
            peer: the source.
            wanted: the number of packets that have come.
            now: the time, in seconds.
        """
        return self._bucket(peer, now).take(wanted, now)

    def left(self, peer: Address, now: float) -> int:
        """Return how many control packets of a source would be handled now.

        Args:
            peer: the source.
            now: the time, in seconds.
        """
        return self._bucket(peer, now).left(now)

    def give_back(self, peer: Address) -> None:
        """Refund a member the cost of one packet that answers a request of the switch."""
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
