"""The switch as a pure object: packets and the time go in, packets to send come out.

    burst --arbiter--> control --> ControlPlane  --> Acks, relayed control, aggregates
                  \\--> data -----> Job.contribute --> aggregates of completed runs
                   \\-> ordinary: counted (forwarding is the business of a switch with ports)

The results are views of the switch's buffers: send or copy them before the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import copy_context
from math import inf

import numpy as np

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.counters import COUNTED, DATA_DROPS, Counters
from iswitch.core.format.keys import Keys
from iswitch.core.format.packets import Address, Burst, Outgoing, Rows
from iswitch.core.format.wire import SEG_SIZE
from iswitch.core.jobs.control import ControlPlane
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.limits import Limits
from iswitch.core.jobs.member import Member
from iswitch.core.jobs.parts import merge, stamped
from iswitch.core.jobs.record import Record
from iswitch.core.jobs.sources import Sources
from iswitch.core.sums.numpy_plane import NumPyPlane
from iswitch.core.sums.paper import Counting
from iswitch.core.sums.plane import DataPlane
from iswitch.core.sums.runs import Outcome


class Switch:
    """An iSwitch: adds up the contributions of each job's members, and broadcasts the sums.

    Args:
        limits: set by the operator: memory, jobs, silence, control packets.
        reproducible: sum every synchronous job in rank order instead of arrival order.
        parent: the switch above, which this one joins as one contributor of each job.
        incarnation: number of this switch process at the parent, larger in each new process, such
            as seconds since 1970.
        keys: the keys of keyed jobs, by job number, or `Keys`.
        counting: EXACT counts each member's contribution once; PAPER counts packets, as the paper
            does, and excludes `reproducible`.
        data_plane: adds up instead of NumPy arrays; the switch uses its counters.

    Raises:
        KeyUnusable: one of the keys cannot be used.
        ValueError: PAPER is combined with `reproducible`, or with slots.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        reproducible: bool = False,
        parent: Address | None = None,
        incarnation: int = 0,
        keys: Keys | Mapping[int, bytes] | None = None,
        counting: Counting = Counting.EXACT,
        data_plane: DataPlane | None = None,
    ) -> None:
        if reproducible and counting is Counting.PAPER:
            raise ValueError(
                "packets that are only counted cannot be summed in rank order; leave out "
                "reproducible, or count exactly"
            )
        limits = limits or Limits()
        if limits.slots and counting is Counting.PAPER:
            raise ValueError(
                "packets that are only counted do not show that everybody has contributed; leave "
                "out slots, or count exactly"
            )
        if data_plane is None:
            data_plane = NumPyPlane(Counters(), parent is not None, counting, limits.buffers)
        self.counters = data_plane.counters
        # Overflow, NaN and infinity are the members' business. (np.errstate would cost ten times as
        # much, on every burst.)
        quiet = copy_context()
        quiet.run(np.seterr, all="ignore")
        self._quietly = quiet.run
        keys = keys if isinstance(keys, Keys) else Keys(keys)
        self.record = Record(self.counters, limits, keys, data_plane, reproducible, parent)
        self.control = ControlPlane(self.record, incarnation)
        self._is_plain = self.control.turns is None and self.record.pool is None

    @property
    def jobs(self) -> dict[int, Job]:
        """Return the jobs, by number."""
        return self.record.jobs

    @property
    def sources(self) -> Sources:
        """Return the addresses of members and of the parent."""
        return self.record.sources

    def receive(self, burst: Burst, now: float) -> list[Outgoing]:
        """Handle packets of one sender; return the packets to send in response."""
        peer, tos, rows, tail = burst
        count, size = rows.shape
        self.counters["rx_packets"] += count
        try:
            self.counters["rx_bytes"] += (count - 1) * size + tail
            kind = classify(tos)
            if kind is Traffic.DATA and tail >= SEG_SIZE:  # as nearly always
                if self.record.retry_at != inf:
                    return self._counted(self._quietly(self._data_at_last, peer, rows, tail, now))
                if not self._is_plain:
                    return self._counted(self._quietly(self._shared, peer, rows, tail, now))
                sends: list[Outgoing] = self._quietly(self._data, peer, rows, tail, now)
                return self._counted(sends) if sends else sends
            if kind is Traffic.ORDINARY:
                self.counters["ordinary"] += count
                return []
            rows, tail = burst.not_below(SEG_SIZE)
            if len(rows) < count:
                self.counters["short"] += count - len(rows)
                if not len(rows):
                    return []
            handle = self._data_at_last if kind is Traffic.DATA else self._control
            return self._counted(self._quietly(handle, peer, rows, tail, now))
        except MemoryError:
            return self._given_up(now)

    def _given_up(self, now: float) -> list[Outgoing]:
        """Count the data packets dropped for lack of memory; the others are counted already.

        Nothing was sent for them: workers repeat requests, and ask with Help for missing results.
        """
        counters = self.counters
        door = counters["control"] + counters["ordinary"] + counters["short"]
        counters["data"] = counters["rx_packets"] - door
        handled = sum(counters[name] for name in (*COUNTED, *DATA_DROPS))
        counters["no_memory"] += counters["data"] - handled
        self.control.lacks_memory(now)
        return []

    def _control(self, peer: Address, rows: Rows, tail: int, now: float) -> list[Outgoing]:
        """Handle as many control packets as their source may send; count and drop the rest."""
        count, handled = len(rows), 0
        self.counters["control"] += count
        sends: list[Outgoing] = []
        while handled < count:
            allowed = self.record.throttle.take(peer, count - handled, now)
            if not allowed:
                break
            for row in rows[handled : handled + allowed]:
                handled += 1
                payload = row.tobytes() if handled < count else row[:tail].tobytes()
                try:
                    sends += self.execute(peer, payload, now)
                except MemoryError:  # the sender repeats the request
                    self.counters["given_up"] += 1
                    self.control.lacks_memory(now)
        self.counters["throttled"] += count - handled
        return sends

    def execute(self, peer: Address, payload: bytes, now: float) -> list[Outgoing]:
        """Execute one control packet. (A subclass overrides this to pause its data plane.)

        Args:
            peer: the sender.
            payload: the packet.
            now: the time, in seconds.
        """
        return self.control.handle(peer, payload, now)

    def _data_at_last(self, peer: Address, rows: Rows, tail: int, now: float) -> list[Outgoing]:
        """Finish the work that lacked memory before, then handle data: a sum may be complete."""
        settled = self.control.settle(now) if self.record.retry_at != inf else []
        return [*settled, *self._shared(peer, rows, tail, now)]

    def _shared(self, peer: Address, rows: Rows, tail: int, now: float) -> list[Outgoing]:
        """Handle data where jobs may take turns, or wait for memory: others may be next."""
        turns, found = self.control.turns, self.record.by_source.get(peer)
        sends = self._data(peer, rows, tail, now)
        return sends + turns.after(now, found[0]) if turns and found else sends

    def _data(self, peer: Address, rows: Rows, tail: int, now: float) -> list[Outgoing]:
        count = len(rows)
        self.counters["data"] += count
        found = self.record.by_source.get(peer)
        if found is None:
            if self.control.is_parent(peer):
                return self.control.aggregates(peer.line, rows, tail)
            self.counters["stranger"] += count
            return []
        job, member = found
        member.last_seen = now
        member.tally.packets += count
        member.tally.nbytes += (count - 1) * rows.shape[1] + tail
        outcome = Outcome([], [])
        sends_parts = member.sends_parts
        stretches = merge(job, member, rows, tail) if sends_parts else job.stretches(rows, tail)
        member.has_spoken |= bool(stretches)  # malformed packets may come from another process
        if len(stretches) == 1:
            job.contribute(member, stretches[0], outcome)
            return self._effects(job, member, outcome)
        sends: list[Outgoing] = []
        before: int | None = None
        for stretch in stretches:
            if before not in (None, stretch.round):
                # The next round may reuse the buffers of these packets: copy them.
                sends += [out.copy() for out in self._effects(job, member, outcome)]
                outcome = Outcome([], [])
            before = stretch.round
            job.contribute(member, stretch, outcome)
        return sends + self._effects(job, member, outcome)

    def after(self, number: int, now: float) -> list[Outgoing]:
        """Do what follows from data of a job that was added elsewhere; return what to send."""
        turns, job = self.control.turns, self.record.jobs.get(number)
        if turns is None or job is None:
            return []
        return self._due(turns.after, now, job)

    @staticmethod
    def _effects(job: Job, member: Member, outcome: Outcome) -> list[Outgoing]:
        """Return the packets to send in response to a member's contributions."""
        completed, late = outcome
        if not (completed or late):
            return []
        if completed and job.synchronous:
            assert job.shape is not None
            pace = job.rounds.pace
            pace.complete(member.tally, completed, job.shape.segments, member.last_seen)
        sends = job.deliver(completed)
        if not late:
            return sends
        member.tally.late += sum(run.segments for run in late)
        return sends + job.sent.answer(member, late)

    def deadline(self) -> float | None:
        """Return the time at which to call `handle_timer`, in seconds; None: not at all."""
        return self.control.deadline()

    def handle_timer(self, now: float) -> list[Outgoing]:
        """Do the work that is due now; return the packets to send."""
        return self._due(self.control.handle_timer, now)

    def _due(self, work: Callable[..., list[Outgoing]], now: float, *jobs: Job) -> list[Outgoing]:
        try:
            return self._counted(self._quietly(work, now, *jobs))
        except MemoryError:
            self.counters["given_up"] += 1
            self.control.lacks_memory(now)
            return []

    def _counted(self, sends: list[Outgoing]) -> list[Outgoing]:
        if not self._is_plain and self.record.pool and self.control.hierarchy:
            sends = sends + stamped(self.record, self.control.hierarchy)
        for out in sends:
            n, size = out.rows.shape
            self.counters["tx_packets"] += n * len(out.peers)
            self.counters["tx_bytes"] += ((n - 1) * size + out.tail) * len(out.peers)
        return sends
