"""Judges the aggregates that a switch sends: that they never change, and who gets them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import SEG_SIZE, round_distance
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member
from iswitch.core.sums.asynchronous import AsynchronousAccelerator
from iswitch.core.sums.owned import OwnedAccelerator
from iswitch.core.sums.partial import PartialAccelerator
from iswitch.core.switch import Switch

from .blocks import owners_of
from .said import Endpoint, endpoint, packets_to
from .violation import Violation

KEPT = 4  # rounds (or versions: four times as many) whose aggregates are compared

State = npt.NDArray[np.uint64]


class Delivery:
    """Judges the aggregates that a switch process sends.

    Args:
        name: name of its node.
        switch: the process.
        made: by job, receives the newest version, if the switch has no parent.
    """

    def __init__(self, name: str, switch: Switch, made: dict[int, int]) -> None:
        self.name = name
        self.switch = switch
        self.made = made
        self._aggregates: dict[int, OrderedDict[int, dict[bytes, bytes]]] = {}  # by job and round
        self._before: dict[int, State] = {}  # of segments that have owners, by job

    def comes(self) -> None:
        """Note the machine's state before it takes packets."""
        self._before = self._states()

    def _states(self) -> dict[int, State]:
        """Return how far the segments of both sets are, (2, segments), where they have owners."""
        sums = {job.number: job.accelerator for job in self.switch.jobs.values()}
        return {
            number: np.stack([one.state[slot].words[:, 0] for slot in (0, 1)])
            for number, one in sums.items()
            if isinstance(one, OwnedAccelerator)
        }

    def look_for_the_new(
        self, sends: Sequence[Outgoing], stay: Mapping[Endpoint, Member], above: Endpoint | None
    ) -> None:
        """Check that new aggregates go to the ranks that get them, and new sums to the parent.

        Args:
            sends: the packets sent.
            stay: the members that were there before.
            above: the parent; None: there is none.
        """
        for number, now in self._states().items():
            job, before = self.switch.jobs[number], self._before.get(number)
            owners, sums = owners_of(job.shape), job.accelerator
            if before is None or before.shape != now.shape or owners is None:
                continue
            assert isinstance(sums, OwnedAccelerator)
            changed = np.where(now != before, now >> np.uint64(32), np.uint64(0))
            if above and packets_to(sends, above) < int((changed == sums.SENT).sum()):
                raise Violation("not sent", f"{self.name} sends not all sums to its parent")
            new = changed == sums.COMPLETE
            for peer, member in stay.items():
                is_ours = job.members.by_address.get(member.address) is member
                wanted = int(new[:, owners.reach(member.ranks)].sum())
                if is_ours and packets_to(sends, peer) < wanted:
                    raise Violation(
                        "not sent", f"{self.name} does not send {wanted} aggregates to {peer}"
                    )

    def look_at(self, out: Outgoing, members: Mapping[Endpoint, Member]) -> None:
        """Check that an aggregate has equal bytes whenever it is sent, and goes to those it is for.

        Args:
            out: packets of data.
            members: the members of all jobs.
        """
        member = members.get(endpoint(out.peers[0]))
        if member is None:
            return
        job = self.switch.record.by_source[member.address][0]
        self._look_at_receivers(out, job, members)
        rounds = self._aggregates.setdefault(job.number, OrderedDict())
        last = len(out.rows) - 1
        newest = self._version(job)
        for i, row in enumerate(out.rows):
            packet = (row[: out.tail] if i == last else row).tobytes()
            round_, seg = int.from_bytes(packet[:4], "big"), packet[:SEG_SIZE]
            if newest is not None and round_distance(round_, newest) > 0:
                raise Violation(
                    "not made", f"{self.name} sends version {round_}; the newest is {newest}"
                )
            kept = rounds.get(round_)
            if kept is None:
                kept = rounds[round_] = {}
                if len(rounds) > (KEPT if job.synchronous else 4 * KEPT):
                    rounds.popitem(last=False)
            if kept.setdefault(seg, packet) != packet:
                raise Violation(
                    "changed",
                    f"{self.name} sends {round_}.{int.from_bytes(seg[4:], 'big')} to {out.peers} "
                    "otherwise than before",
                )

    def _look_at_receivers(
        self, out: Outgoing, job: Job, members: Mapping[Endpoint, Member]
    ) -> None:
        """Check that an aggregate that is for one rank goes to that rank only."""
        owners = owners_of(job.shape)
        if owners is None:
            return
        indices = out.rows[:, 4:SEG_SIZE].copy().view(">u4")[:, 0].astype(np.int64)
        for peer in out.peers:
            member = members.get(endpoint(peer))
            if member is not None and not owners.reach(member.ranks)[indices].all():
                raise Violation(
                    "astray", f"{self.name} sends {peer} the aggregates of others: {indices}"
                )

    def note_versions(self) -> None:
        """Note the newest version of each asynchronous job."""
        for job in self.switch.jobs.values():
            if (version := self._version(job)) is not None:
                self.made[job.number] = max(version, self.made.get(job.number, 0))

    def _version(self, job: Job) -> int | None:
        """Return the newest version that the switch knows; None: the job counts in rounds."""
        sums = job.accelerator
        if isinstance(sums, AsynchronousAccelerator | PartialAccelerator):
            return sums.version
        return None
