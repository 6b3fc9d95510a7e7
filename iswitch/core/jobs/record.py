"""The record of a switch's jobs: their members, and the memory that is reserved for them.

The parts of the control plane (ranks, hierarchy, lifecycle, leases, admission, questions, showing)
take this record and return packets to send. Each part uses only the parts before it in this list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from iswitch.core.format.counters import Counters
from iswitch.core.format.keys import Keys
from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import (
    FLAG_REPRODUCIBLE,
    HERE,
    MAX_MEMBERS,
    Ack,
    Action,
    Control,
    Header,
    Join,
    Status,
)
from iswitch.core.sums.plane import DataPlane
from iswitch.core.sums.pool import Pool

from .answers import FormerMembers
from .job import Job
from .limits import Limits, Throttle
from .member import Member
from .policies import POLICIES
from .policy import Need, Policy, Static
from .queue import Queue
from .sources import Sources
from .table import Jobs


class Elsewhere(NamedTuple):
    """Another switch, to which an operator sends members; port 0: none is named."""

    host: str = HERE  # IPv4
    port: int = 0

    @classmethod
    def of(cls, ack: Ack) -> Elsewhere:
        """Return the switch that an Ack names."""
        return cls(".".join(map(str, ack.threshold.to_bytes(4, "big"))), ack.round & 0xFFFF)

    def told(self, evicted: bool = False) -> dict[str, int]:
        """Return the fields of an Ack that name it, and that tell whether a job was ended."""
        packed = int.from_bytes(map(int, self.host.split(".")), "big")
        return {"threshold": packed, "round": self.port, "contributors": int(evicted)}


NOWHERE = Elsewhere()
POOL = -1  # whose memory the slots of all jobs are, in place of a job's number


@dataclass
class Record:
    """The jobs of a switch and their members.

    Attributes:
        counters: the switch's counters.
        limits: set by its operator.
        keys: the keys of the keyed jobs.
        reproducible: every synchronous job is summed in rank order.
        parent: address of the switch above; None: there is none.
        data_plane: makes the accelerators that add up.
        jobs: the jobs, by number.
        room: bytes of packets that can wait in the switch's socket; 0: not known.
        listening: UDP port at which the switch listens; 0: not known.
        policy: shares the memory among the jobs.
        pool: the slots that all jobs share; None: segments do not go on without one.
        queue: the contributors that wait for memory.
        by_source: by address, the job to which its data belongs, and the member there.
        former: remembers the last former members.
        sources: the addresses of members and of the parent.
        throttle: limits the control packets of each source.
        next_expiry: no lease runs out, and no job is forgotten, before this time, in seconds.
        make_job: makes a job; takes the arguments of `Job`.
        retry_at: when to retry the work that lacked memory, in seconds; infinite: there is none.
        drained: where new jobs are to go, since none is taken here; None: they are taken.
        orders: an operator's `Order`s that are still to be carried out.
    """

    counters: Counters
    limits: Limits
    keys: Keys
    data_plane: DataPlane
    reproducible: bool = False
    parent: Address | None = None
    jobs: Jobs = field(init=False)
    room: int = 0
    listening: int = 0
    policy: Policy = field(init=False)
    pool: Pool | None = None
    queue: Queue = field(default_factory=Queue)
    by_source: dict[Address, tuple[Job, Member]] = field(default_factory=dict)
    former: FormerMembers = field(default_factory=FormerMembers)
    sources: Sources = field(default_factory=Sources)
    throttle: Throttle = field(init=False)
    make_job: Callable[..., Job] = Job
    next_expiry: float = inf
    retry_at: float = inf
    drained: Elsewhere | None = None
    orders: deque[Any] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.jobs = Jobs(self.keys)
        self.throttle = Throttle(self.limits.control_rate)
        kind = POLICIES[self.limits.policy]
        # Turns at two switches of a tree could wait for each other; and a root passes nothing on.
        if kind.takes_turns if self.parent else kind.passes_on:
            kind = Static
        self.policy = kind(self.limits.memory)
        if kind.passes_on and self.data_plane.passes_on:
            self.pool = self._begin_pool()
        if self.parent:
            self.enter(self.parent, MAX_MEMBERS, 0.0)

    def _begin_pool(self) -> Pool:
        """Take the memory of the slots that all jobs share.

        Raises:
            ValueError: it is more than the limit.
        """
        nbytes = Pool.memory(self.limits.slots)
        if not self.policy.admit(POOL, Need(nbytes)).admitted:
            raise ValueError(f"{self.limits.slots} slots take {nbytes:,} bytes, beyond the limit")
        return Pool(self.limits.slots, self.policy.outranks, self.limits.buffers)

    @property
    def reserved(self) -> int:
        """Return the bytes of buffers that are reserved for all jobs."""
        return self.policy.reserved

    def new_job(self, number: int) -> Job:
        """Make a job without members, which is not in the record yet."""
        return self.make_job(number, self.counters, self.data_plane)

    def passes_on(self, join: Join) -> bool:
        """Return whether segments go on without a slot, in a job that begins with this Join."""
        in_order = self.reproducible or join.flags & FLAG_REPRODUCIBLE
        return self.pool is not None and not (join.slots or in_order) and join.may_have_slots()

    def find(self, number: int, peer: Address) -> tuple[Job | None, Member | None]:
        """Return a job and its member at an address; None for either that does not exist."""
        job = self.jobs.get(number)
        return job, job.member(peer) if job is not None else None

    def is_keyed(self, number: int) -> bool:
        """Return whether a job has a key."""
        return self.keys.of(number) is not None

    def workers(self, job: Job, now: float) -> int:
        """Return the number of live workers: in the whole tree if a parent told it, else here."""
        above = job.members.above
        return job.members.workers_there(now, self.limits.lease) if above is None else above

    def lost(self, job: Job, now: float) -> int:
        """Return the bitmap of the contributors whose lease has run out; they are members still."""
        return job.members.lost(now, self.limits.lease)

    def enter(self, peer: Address, workers: int, now: float) -> None:
        """Note a member at an address, and give it an allowance of control packets.

        Args:
            peer: the address.
            workers: the number of workers for which it stands.
            now: the time, in seconds.
        """
        if self.sources.enter(peer):
            self.throttle.admit(peer, workers, now)

    def leave(self, peer: Address) -> None:
        """Forget a member at an address; its allowance ends unless it is in another job."""
        if self.sources.leave(peer):
            self.throttle.dismiss(peer)

    def expect_expiry(self, at: float) -> None:
        """Note that a lease may run out, or a job be forgotten, at this time, in seconds."""
        self.next_expiry = min(self.next_expiry, at)


def bare_answer(peer: Address, packet: Header | Control, status: Status, **told: int) -> Outgoing:
    """Make an Ack that tells the status, and nothing of the job but the given fields.

    Args:
        peer: the sender of the request.
        packet: the request.
        status: the answer.
        told: fields of the Ack.
    """
    ack = Ack(packet.action, **told)
    return Outgoing.control(
        peer, Control(Action.ACK, packet.job, packet.request, ack, status).build()
    )
