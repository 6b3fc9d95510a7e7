"""What a switch knows of its jobs: which there are, who is in them, and what they have reserved.

The parts of the control plane (ranks, hierarchy, lifecycle, leases, admission, questions, showing)
take this record and return what is to be sent. Each of them knows only those before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from iswitch.core.format.counters import Counters
from iswitch.core.format.keys import Keys
from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import MAX_MEMBERS, Ack, Action, Control, Header, Status
from iswitch.core.sums.plane import DataPlane

from .answers import FormerMembers
from .job import Job
from .limits import Limits, Throttle
from .member import Member
from .sources import Sources
from .table import Jobs


@dataclass
class Record:
    """The jobs of a switch and their members.

    Attributes:
        counters: of the switch.
        limits: what its operator allows.
        keys: of the keyed jobs.
        reproducible: every synchronous job is summed in rank order.
        parent: the switch above.
        data_plane: what adds up.
        jobs: by number.
        reserved: bytes of buffers, by members of all jobs.
        by_source: the job to which data from an address belongs, and the member there.
        former: the members that went last.
        sources: where members, and the parent, speak from.
        throttle: how many control packets each source may still send.
        next_expiry: no lease runs out before.
        make_job: makes a job, of what `Job` takes.
        retry_at: when what was given up for want of memory is tried again; infinite: nothing was.
    """

    counters: Counters
    limits: Limits
    keys: Keys
    data_plane: DataPlane
    reproducible: bool = False
    parent: Address | None = None
    jobs: Jobs = field(init=False)
    reserved: int = 0
    by_source: dict[Address, tuple[Job, Member]] = field(default_factory=dict)
    former: FormerMembers = field(default_factory=FormerMembers)
    sources: Sources = field(default_factory=Sources)
    throttle: Throttle = field(init=False)
    make_job: Callable[..., Job] = Job
    next_expiry: float = inf
    retry_at: float = inf

    def __post_init__(self) -> None:
        self.jobs = Jobs(self.keys)
        self.throttle = Throttle(self.limits.control_rate)
        if self.parent:
            self.enter(self.parent, MAX_MEMBERS, 0.0)

    def new_job(self, number: int) -> Job:
        """Make a job without members, which is not in the record yet."""
        return self.make_job(number, self.counters, self.data_plane, self.parent)

    def find(self, number: int, peer: Address) -> tuple[Job | None, Member | None]:
        """Return a job, and the member at an address if it has one there."""
        job = self.jobs.get(number)
        return job, job.member(peer) if job is not None else None

    def is_keyed(self, number: int) -> bool:
        """Return whether a job has a key."""
        return self.keys.of(number) is not None

    def workers(self, job: Job, now: float) -> int:
        """Return how many workers are there: with a parent, as that tells of the whole tree."""
        above = job.members.above
        return job.members.workers_there(now, self.limits.lease) if above is None else above

    def lost(self, job: Job, now: float) -> int:
        """Return the bitmap of the contributors whose lease has run out; they are members still."""
        return job.members.lost(now, self.limits.lease)

    def enter(self, peer: Address, workers: int, now: float) -> None:
        """Listen to this address, which stands for a number of workers.

        Args:
            peer: the address.
            workers: for how many it speaks.
            now: the time.
        """
        if self.sources.enter(peer):
            self.throttle.admit(peer, workers, now)

    def leave(self, peer: Address) -> None:
        """Listen to this address no more, unless it is a member elsewhere."""
        if self.sources.leave(peer):
            self.throttle.dismiss(peer)

    def expect_expiry(self, at: float) -> None:
        """Expect that a lease may run out then."""
        self.next_expiry = min(self.next_expiry, at)


def bare_answer(peer: Address, packet: Header | Control, status: Status, **told: int) -> Outgoing:
    """Make an Ack that says the status, and of the job no more than the fields given.

    Args:
        peer: who asked.
        packet: the request.
        status: the answer.
        told: fields of the Ack.
    """
    ack = Ack(packet.action, **told)
    return Outgoing.control(
        peer, Control(Action.ACK, packet.job, packet.request, ack, status).build()
    )
