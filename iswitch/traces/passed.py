"""Compares what a switch has sent that keeps nothing: parts to the switch above, its aggregates.

A switch whose jobs pass segments on (docs/protocol.md, "Parts") gives sums away, and aggregates
from above as they come. So what the replaying switch sends is noted here, until captured packets of
the same name come.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from iswitch.core.format.packets import Address, Outgoing, Rows
from iswitch.core.format.wire import PART, SEG_SIZE, TOS_DATA, round_distance
from iswitch.core.jobs.job import Job
from iswitch.core.switch import Switch

ROUNDS = 2  # of a job, whose packets are kept
BITS = slice(SEG_SIZE + 4, SEG_SIZE + 12)  # of a part: the seats in it

Name = tuple[bytes, bytes]  # round and segment; seats, or nothing for an aggregate


class Passed:
    """The last packets that a switch has sent, by job and round."""

    def __init__(self) -> None:
        self._sent: dict[int, dict[int, dict[Name, bytes]]] = {}

    def note(self, switch: Switch, sends: Iterable[Outgoing]) -> None:
        """Note the data packets of jobs that pass segments on."""
        for out in sends:
            job, to_parent = job_of(switch, out.peers[0]) if out.tos == TOS_DATA else (None, False)
            if job is not None and job.passes_on:
                sizes = [out.rows.shape[1]] * (len(out.rows) - 1) + [out.tail]
                for row, size in zip(out.rows, sizes, strict=True):
                    self._keep(job.number, name_of(row, to_parent), row[:size].tobytes())

    def _keep(self, job: int, name: Name, packet: bytes) -> None:
        rounds = self._sent.setdefault(job, {})
        round_ = int.from_bytes(name[0][:4], "big")
        if round_ not in rounds:
            for old in [one for one in rounds if round_distance(round_, one) >= ROUNDS]:
                del rounds[old]
        rounds.setdefault(round_, {})[name] = packet

    def like(self, job: Job, name: Name) -> bytes | None:
        """Return the packet of this name that was sent last; None: there is none."""
        round_ = int.from_bytes(name[0][:4], "big")
        return self._sent.get(job.number, {}).get(round_, {}).get(name)


class PassingSwitch(Switch):
    """A switch that notes what it sends in jobs that pass segments on."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.passed = Passed()

    def _counted(self, sends: list[Outgoing]) -> list[Outgoing]:
        sends = super()._counted(sends)
        if self.record.pool is not None:
            self.passed.note(self, sends)
        return sends


def name_of(row: Rows, to_parent: bool) -> Name:
    """Return the name of a data packet."""
    return row[:SEG_SIZE].tobytes(), row[BITS].tobytes() if to_parent else b""


def job_of(switch: Switch, peer: Address) -> tuple[Job | None, bool]:
    """Return the job of a peer to which a switch sends data, and whether it is the switch above."""
    hierarchy = switch.control.hierarchy
    if hierarchy is not None and hierarchy.is_parent(peer):
        return hierarchy.job_on(peer.line), True
    found = switch.record.by_source.get(peer)
    return found[0] if found else None, False


def packet_size(switch: Switch, peer: Address, comes: bool) -> int:
    """Return the bytes of a full data packet that comes from a peer, or goes to it; 0: unknown."""
    job, is_parent = job_of(switch, peer)
    if job is None or job.shape is None:
        return 0
    member = job.member(peer)
    is_part = member.sends_parts if member and comes else job.passes_on and is_parent and not comes
    return job.shape.packet_size + PART.itemsize * is_part


def without_head(rows: Rows, to_parent: bool) -> Rows:
    """Return parts as contributions, without what makes them parts; other packets as they are."""
    if not to_parent:
        return rows
    return np.concatenate((rows[:, :SEG_SIZE], rows[:, SEG_SIZE + PART.itemsize :]), axis=1)
