"""Lends a switch's jobs to a kernel for one call, and takes up what has changed."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import MAX_MEMBERS, TOS_DATA
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member
from iswitch.core.sums.by_round import OneRound
from iswitch.core.sums.resized import ResizedAccelerator
from iswitch.core.sums.runs import Run
from iswitch.core.sums.synchronous import SynchronousAccelerator
from iswitch.core.switch import Switch
from iswitch.ports.kernel.mmsg import address_of

from . import asking, owners
from . import tables as t
from .answering import marks_of
from .lent import Lent, Outlet, Way, form_of
from .plain import Versions, fed, is_plain, members_of, receivers, sets_of
from .seals import seal_of
from .tables import Form, signed

MOST_JOBS, MOST_MEMBERS, MOST_FLOWS = 256, 256, 512  # more go the Python way


class Lending:
    """Keeps the tables of a switch's jobs for a kernel.

    Args:
        switch: owns the jobs.
        words: 64-bit words of a flow's key.
        way: says how packets of a form reach receivers; None: not in a plain way.
        parts: parts receivers that are reached in different ways.

    Attributes:
        landed: the jobs of which the last call has ended rounds, if others may be next.
    """

    def __init__(
        self,
        switch: Switch,
        words: int,
        way: Callable[[Form, tuple[Address, ...]], Way | None],
        parts: Callable[[tuple[Address, ...]], list[tuple[Address, ...]]],
    ) -> None:
        self.switch = switch
        self.tables = t.Tables(
            np.zeros(t.PARAMETERS, np.int64),
            np.zeros(t.COUNTS, np.int64),
            np.zeros((MOST_FLOWS, words), np.int64),
            np.full(words, -1, np.int64),
            np.zeros((MOST_FLOWS, t.FLOW), np.int64),
            np.zeros((MOST_JOBS, t.JOB_COLUMNS), np.int64),
            np.zeros((MOST_MEMBERS, t.MEMBER_COLUMNS), np.int64),
            np.zeros((t.MOST_RUNS, t.RUN), np.int64),
            np.zeros((t.MOST_EVENTS, t.EVENT), np.int64),
            np.zeros((t.MOST_PIECES, t.PIECE_COLUMNS), np.int64),
            np.zeros(MAX_MEMBERS, np.int64),
        )
        self.landed: list[int] = []
        self._way, self._parts = way, parts
        self._lent: dict[int, Lent] = {}  # by number of the job
        self._members: dict[int, tuple[Job, int]] = {}  # by identity, with the row
        self._rows = self._job_rows = 0  # of members, and of jobs
        self._keys: set[tuple[int, bytes]] = set()
        self._orders: dict[int, tuple[dict[int, int], npt.NDArray[np.int64]]] = {}  # by row

    # Which jobs are plain

    def forget(self) -> None:
        """Forget all flows and jobs."""
        self.tables.parameters[t.FLOWS] = 0
        self._lent.clear()
        self._members.clear()
        self._keys.clear()
        self._orders.clear()
        self._rows = self._job_rows = 0

    def prepare(self, now: float) -> bool:
        """Lend all plain jobs at this time, in seconds; return whether there is one."""
        if self.switch.record.retry_at != inf:
            return False
        jobs = self.switch.jobs
        if not all(lent.still(jobs.get(number)) for number, lent in self._lent.items()):
            self.forget()
        found = False
        for number, job in jobs.items():
            lent = self._lent.get(number) or self._lend(number, job)
            found |= lent is not None and self._refresh(lent, now)
        self.tables.parameters[t.JOBS], self.tables.parameters[t.UP_AT] = self._job_rows, 0
        return found

    def _lend(self, number: int, job: Job) -> Lent | None:
        """Give a job a row, and one to each way of its packets, if a kernel can add up for it."""
        sums, row = job.accelerator, self._job_rows
        if sums is None or job.data_plane.counts_packets:
            return None
        sets = sets_of(self.switch, job)
        if sets is None or not is_plain(job):  # whose ways may not be known yet
            return None
        members, below = job.contributors(), job.parent is not None
        outlets = self._outlets(job, row, from_above=False)
        if not outlets or self._rows + len(members) > MOST_MEMBERS:
            return None
        down = self._outlets(job, row + len(outlets), from_above=True) if below else {}
        if below and not down and isinstance(sets, Versions):
            return None
        to_members = down if below else outlets
        outlets |= down
        for at, outlet in outlets.items():
            self._lay_out(at, job, outlet.way, sets.columns(job, outlet.from_above))
        ranks = None
        if to_members:
            ranks = owners.ranks(job, {out.peers: at for at, out in to_members.items()})
        if ranks is not None:
            self._fill(min(to_members), ranks.columns)
        self._job_rows += len(outlets)
        kept = None
        if isinstance(sets, Versions):
            key = self.switch.record.keys.of(number)
            seal = None if key is None else seal_of(key)
            kept = sets.kept(), seal
            self._fill(row, {t.KEPT_AT: address_of(kept[0]), t.SEAL: seal.address if seal else 0})
            if seal or key is None:
                used = [out.way.kept for out in outlets.values()]
                outlets |= self._lend_singles(job, members, bool(key), used)
        rows = list(enumerate(members, self._rows))
        self._rows += len(members)
        places = sets.places()
        for at, member in rows:
            self.tables.members[at] = 0
            self.tables.members[at, t.SEAT] = member.seat
            self.tables.members[at, t.CONTRIBUTIONS] = places.get(member.seat, 0)
            self._members[id(member)] = (job, at)
        down_row = min(down, default=-1)
        self._lent[number] = lent = Lent(row, job, sums, sets, rows, outlets, down_row, ranks, kept)
        return lent

    def _outlets(self, job: Job, row: int, from_above: bool) -> dict[int, Outlet]:
        """Say who gets what leaves by this row and the next ones; nobody: not in a plain way.

        Args:
            job: the job.
            row: by which that leaves which goes to all, or to the switch above; of two ways to all
                receivers, the other has the next row.
            from_above: aggregates of that switch leave by these rows.
        """
        peers = members_of(job) if from_above else receivers(job)
        singly = owners.apart(job) if peers == members_of(job) else []
        parts = self._parts(peers)
        found: dict[int, Outlet] = {}
        for at, some in enumerate(dict.fromkeys((*parts, *singly)), row):
            way = self._way(form_of(job), some)
            if way is None or at == MOST_JOBS:
                return {}
            if at == row and len(parts) > 1:
                way.columns[t.ALSO] = row + 1
            found[at] = Outlet(some, from_above, way)
        return found

    def _lend_singles(
        self, job: Job, members: list[Member], keyed: bool, used: list[object]
    ) -> dict[int, Outlet]:
        """Give rows to the answers to members' marks, and to marks, where they go a plain way.

        Args:
            job: the job.
            members: its contributors.
            keyed: its control packets have a MAC.
            used: what its sums' ways point to. The ring of a worker that is alone can have one row.
        """
        found: dict[int, Outlet] = {}
        for one in asking.singles_of(job, members, keyed):
            way, row = self._way(one.form, (one.peer,)), self._job_rows
            if way is not None and row < MOST_JOBS and not any(way.kept is other for other in used):
                found[row] = Outlet((one.peer,), False, way, one)
                self.tables.jobs[row] = 0
                self._fill(row, one.columns() | way.columns)
                self._job_rows += 1
        return found

    def _lay_out(self, row: int, job: Job, way: Way, places: dict[int, int]) -> None:
        """Fill in what stays of a job's row: its layout, where its packets lie, and their way."""
        shape = job.sums.shape
        self.tables.jobs[row] = 0
        layout = {
            t.TOS: TOS_DATA,
            t.SIZE: shape.packet_size,
            t.SEGMENTS: shape.segments,
            t.FULL_SEGMENTS: shape.full_segments,
            t.LAST_SIZE: shape.last_size,
            t.COMBINE: t.way_of(shape.op, shape.dtype),
        }
        self._fill(row, layout | owners.columns(job) | places | way.columns)

    def _fill(self, row: int, columns: dict[int, int]) -> None:
        for column, value in columns.items():
            self.tables.jobs[row, column] = value

    def _refresh(self, lent: Lent, now: float) -> bool:
        """Lend a job's window and rules of the present; return whether it is plain at present."""
        job, columns = lent.job, self.tables.jobs[lent.row]
        sets = sets_of(self.switch, job) if is_plain(job) else None
        self._lent[job.number] = lent._replace(sets=sets)
        if sets is None:
            columns[t.SEGMENTS] = 0
            return False
        if lent.sets is None or sets[:2] != lent.sets[:2]:  # rounds have moved on to others
            for at, outlet in lent.outlets.items():
                if outlet.singles is None:
                    self._fill(at, sets.columns(job, outlet.from_above))
        window = job.window
        columns[t.SEGMENTS], columns[t.LEFT] = lent.sums.shape.segments, sets.left
        columns[t.HIGH], columns[t.BASE] = window.high, window.base
        columns[t.WHOLE] = signed(job.members.participants(window.high))
        columns[t.THRESHOLD] = job.threshold
        columns[t.COMPLETED] = columns[t.TOLD_AT] = 0
        columns[t.DOWN] = lent.down if fed(self.switch, job) else -1
        for row, member in lent.members:
            contributed = member.contributed
            self.tables.members[row, t.CONTRIBUTED] = -1 if contributed is None else contributed
        if isinstance(sets, Versions):
            self._fill(lent.row, sets.present(job) | marks_of(self.switch, job))
            if sets.upward is not None:
                self._fill(lent.row, asking.lend(self.switch, sets.upward, lent.marks_row, now))
            lent.lend_numbers(self.switch, self.tables.members, sets, now)
        elif sets.sums.reproducible:
            self._lend_order(lent.row, sets.sums)
        return True

    def _lend_order(self, row: int, sums: SynchronousAccelerator) -> None:
        """Lend the order of a job's seats in its sums, and where their contributions lie."""
        order, places = dict(sums.order), sums.in_order()
        if self._orders.get(row, (None,))[0] != order:
            pairs = [(seat, address_of(part)) for seat, part in places]
            self._orders[row] = order, np.array(pairs, np.int64)
        found = self._orders[row][1]
        columns = self.tables.jobs[row]
        columns[t.ORDER], columns[t.ORDERED] = address_of(found), len(found)

    def kept(self) -> dict[int, object]:
        """Return what was kept of the jobs' ways, by their rows."""
        lent = self._lent.values()
        return {at: outlet.way.kept for one in lent for at, outlet in one.outlets.items()}

    # Flows

    def row_of(self, member: Member) -> tuple[int, int] | None:
        """Return the rows of a member and of its job; None: it has none."""
        found = self._members.get(id(member))
        if found is None:
            return None
        job, row = found
        lent = self._lent.get(job.number)
        return None if lent is None or lent.job is not job else (row, lent.row)

    def _rows_from(self, peer: Address) -> tuple[int, int, bool] | None:
        """Return the rows of a sender and of its job, and whether it is the switch above.

        None: it is neither a member of a lent job nor that switch.
        """
        found = self.switch.record.by_source.get(peer)
        if found is not None:
            rows = self.row_of(found[1])
            return None if rows is None else (*rows, False)
        hierarchy = self.switch.control.hierarchy
        if hierarchy is None or not hierarchy.is_parent(peer):
            return None
        job = hierarchy.fed(peer.line)
        lent = None if job is None else self._lent.get(job.number)
        return None if lent is None or lent.job is not job else (0, lent.row, True)

    def add_flow(self, key: bytes, peer: Address, columns: dict[int, int]) -> None:
        """Note a flow, if it is new and its job has a row; of control, if a kernel answers marks.

        Args:
            key: its head or control messages; bits beyond the mask are nothing.
            peer: the sender: a member, or the switch above.
            columns: what else is known of the flow.
        """
        rows, n = self._rows_from(peer), int(self.tables.parameters[t.FLOWS])
        which = columns.get(t.FROM_SOCKET, 0), key
        if rows is None or which in self._keys:
            return
        if columns.get(t.ASKS, 0) and not self.tables.jobs[rows[1], t.VERSIONS]:
            return
        if n == MOST_FLOWS:
            self._keys.clear()
            n = 0
        self._keys.add(which)
        self.tables.keys[n] = np.frombuffer(key, np.int64)
        self.tables.flows[n] = 0
        for column, value in zip((t.MEMBER, t.JOB, t.FROM_ABOVE), rows, strict=True):
            self.tables.flows[n, column] = value
        for column, value in columns.items():
            self.tables.flows[n, column] = value
        self.tables.parameters[t.FLOWS] = n + 1

    # What a call has done

    def settle(self) -> list[tuple[Address, float]]:
        """Take up what a call has done; return who was heard, and when, in seconds."""
        counts, counters = self.tables.counts, self.switch.counters
        packets, nbytes, aggregates, tx_packets, tx_bytes, _, kept, marks = counts.tolist()
        for name, more in (
            ("rx_packets", packets),
            ("rx_bytes", nbytes),
            ("data", packets - marks),
            ("accumulated", packets - kept - marks),
            ("from_parent", kept),
            ("aggregates", aggregates),
            ("tx_packets", tx_packets),
            ("tx_bytes", tx_bytes),
        ):
            counters[name] += more
        counts[:] = self.tables.parameters[t.OVER] = 0
        self.landed.clear()
        heard: list[tuple[Address, float]] = []
        if packets:
            self._note_pace()
        for lent in self._lent.values():
            if packets or lent.goes_up:
                heard += self._settle(lent)
        return heard

    def _note_pace(self) -> None:
        """Take up the events that the durations of rounds are made of."""
        parameters = self.tables.parameters
        by_row = {lent.row: lent for lent in self._lent.values()}
        members = {at: member for lent in by_row.values() for at, member in lent.members}
        for kind, row, at, round_, segments, when in self.tables.events[
            : parameters[t.NOTED]
        ].tolist():
            lent, now = by_row[row], when / t.SECOND
            tally, pace = members[at].tally, lent.job.rounds.pace
            if kind == t.BEGINS:
                pace.begin(tally, round_, now)
            else:
                run = Run(round_ & 1, round_, 0, segments)
                pace.complete(tally, [run], lent.sums.shape.segments, now)
        parameters[t.NOTED] = 0

    def _settle(self, lent: Lent) -> list[tuple[Address, float]]:
        job, columns = lent.job, self.tables.jobs[lent.row]
        if lent.sets is None:
            return []
        heard = lent.hear(self.switch, self.tables.members)
        high, completed = int(columns[t.HIGH]), int(columns[t.COMPLETED])
        if isinstance(lent.sets, Versions):
            if lent.sets.upward is not None:
                heard += asking.take_up(self.switch, lent.sets.upward, columns)
            lent.sets.take_up(job, columns)
        elif high != job.high:
            if isinstance(lent.sums, ResizedAccelerator):
                lent.sums.begin_upto(high)
            job.window.high, job.window.base = high, int(columns[t.BASE])
            job.members.move_on(high)
        job.rounds.completed_any |= bool(completed)
        if isinstance(lent.sets.sums, OneRound):
            lent.sets.sums.left -= completed
            if not lent.sets.sums.left:
                self.landed.append(job.number)
        if job.parent is not None:
            self.switch.counters["to_parent"] += completed
            if columns[t.TOLD_AT]:
                if job.synchronous:
                    job.rounds.hear_of(int(columns[t.TOLD]))
                job.rounds.completed_any = True
                heard.append((job.parent, int(columns[t.TOLD_AT]) / t.SECOND))
        return heard

    def unsent(self) -> list[tuple[Outgoing, int]]:
        """Return the packets that the kernel did not take, and empty the queue.

        Each comes with 0, or with the error for which the kernel refused them.
        """
        parameters = self.tables.parameters
        if parameters[t.UNSENT] < 0:
            return []
        runs = self.tables.queue[: parameters[t.QUEUED]].tolist()[parameters[t.UNSENT] :]
        left: list[tuple[Outgoing, int]] = []
        by_row = {row: lent for lent in self._lent.values() for row in lent.outlets}
        for i, (row, slot, start, stop) in enumerate(runs):
            lent = by_row[row]
            if not i:
                start, some, first, error = parameters[t.UNSENT_FROM : t.ERROR + 1].tolist()
                out = lent.packets(row, slot, start, some)
                left.append((out._replace(peers=out.peers[first:]), error))
                start = some
            if start < stop:
                left.append((lent.packets(row, slot, start, stop), 0))
        parameters[t.UNSENT], parameters[t.QUEUED] = -1, 0
        return left
