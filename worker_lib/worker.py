"""A worker of a job: one UDP socket and blocking calls around a `Session`."""

from __future__ import annotations

import os
from collections import deque
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from iswitch.core.format.wire import MILLION, Action, Present, Segments, Show, Shown, Threshold

from . import arguments, arrays, showing, telling
from .kernel import DONE, LATEST, NANO, NOT_BEGUN
from .opening import Opening
from .rounds import RoundWorker
from .waiting import OnMemberLost

V = TypeVar("V")  # an array, or a tensor on the CPU


class Worker(RoundWorker):
    """A member of a job that contributes vectors and gets their sums.

    Calls from several threads take turns. Between calls a thread of its own keeps the membership
    alive and answers the switch.

    Args:
        switch: (host, port) of the switch.
        job: the job's number, 0..65535, equal in all workers.
        numel: elements of every vector.
        num_workers: wait until this many have joined, and take no sum of fewer contributions;
            None: join alone, and sum whatever others contribute.
        rank: this worker's number in the job, unique and below `num_workers`. None: the switch
            gives a free one. RANK is not read here, since a process may have several Workers;
            `from_env` reads it.
        on_member_lost: when a worker of `num_workers` leaves or dies: "wait" until another takes
            its place; "continue" with the sums of the others; "raise" `MemberLost` in each of them.
        dtype: element type: float32, float16, bfloat16 (from ml_dtypes), float64, int32, int64,
            uint8 or bool, as NumPy's dtype, PyTorch's, or a name; for "maxloc" and "minloc" a pair,
            such as "float32_int32".
        op: "sum", "prod", "max", "min"; of integers and bool also "land", "lor", "lxor" (logical)
            and "band", "bor", "bxor" (bitwise); of pairs "maxloc" and "minloc".
        reproducible: sum in rank order rather than in order of arrival, so that a run can be
            repeated bit for bit.
        timeout: seconds that joining, a request and a round may take. Those of joining count once
            the compiled kernels are loaded: the first worker of a process waits longer for these.
        elements_per_segment: E; by default packets fill an MTU of 1500 bytes (366 float32), or the
            smaller MTU of the route.
        restart_safe: keep a copy of the last vector for a switch that loses its state.
        offload: use segmentation offload where the machine has it.
        bind: local (host, port).
        key: key of a keyed job, 1 to 64 bytes.
        shorter: vectors may have fewer elements than `numel`, equally many in all workers each
            time; only as many segments travel as they fill.
        partial: a worker may leave rounds out: every allreduce names its round of the program, and
            `set_threshold` may go below the number of workers.
        first_round: the first round of the program, for a `partial` worker that continues another
            run; equal in all workers, except in those that join later.
        rounds: how many allreduces the program is going to do, if it knows: a switch that shares
            its memory may let short jobs go first (docs/sharing.md). More or fewer do no harm.
        priority: of the job, 0 to 7: where jobs wait for memory, those of a higher one go first.
            The first worker's counts, unless the switch's operator has set one.

    Raises:
        SwitchUnreachable: nobody answers there.
        BindError: `bind` cannot be had.
        Refused: the switch does not take this worker into the job.
        TooFewWorkers: fewer than `num_workers` joined in time, or no rank became free.
        ValueError: an argument out of its range.
    """

    OWN = (*RoundWorker.OWN, "rounds", "priority")

    def __init__(  # noqa: PLR0913 (options that users set by name)
        self,
        switch: tuple[str, int],
        job: int,
        numel: int,
        num_workers: int | None = None,
        *,
        rank: int | None = None,
        on_member_lost: OnMemberLost = "wait",
        dtype: arguments.ElementType = np.float32,
        op: arguments.OpName = "sum",
        reproducible: bool = False,
        timeout: float = arguments.TIMEOUT,
        elements_per_segment: int | None = None,
        restart_safe: bool = True,
        offload: bool = True,
        bind: tuple[str, int] = ("0.0.0.0", 0),
        key: bytes | None = None,
        shorter: bool = False,
        partial: bool = False,
        first_round: int = 0,
        rounds: int | None = None,
        priority: int = 0,
    ) -> None:
        opening = Opening(
            switch, job, num_workers, rank, timeout, bind, key, elements_per_segment, offload
        )
        layout = arguments.shape(numel, dtype, op, elements_per_segment)
        self._element_type, self._numel = layout.dtype.numpy, layout.numel
        self._share: float | None = None  # that was told last
        self.reproducible = bool(reproducible)
        self.shorter = bool(shorter)
        self.partial = bool(partial)
        if first_round != 0:
            arguments.named_round(first_round, self.partial, "first_round")
        super().__init__(
            opening,
            layout,
            arguments.resizing(layout),
            on_member_lost,
            whole=num_workers is not None and on_member_lost != "continue",
            reproducible=self.reproducible,
            restart_safe=bool(restart_safe),
            partial=self.partial,
            first_round=first_round,
            rounds=arguments.rounds(rounds),
            priority=arguments.priority(priority),
        )

    @property
    def allreduces(self) -> int:
        """Return the number of allreduces that this worker has done."""
        return self._calls.count

    @property
    def allreduce_seconds(self) -> deque[float]:
        """Return how long the last allreduces took, in seconds."""
        return self._calls.last

    @property
    def round(self) -> int:
        """Return the number of the next allreduce; of a partial Worker, the least that it can name.

        It depends on when this worker joined, so a program must not count its own rounds from it.
        """
        return super().round

    # Collectives

    def allreduce(
        self,
        vector: V,
        out: V | None = None,
        timeout: float | None = None,
        round_: int | None = None,
    ) -> V:
        """Combine the vectors of all workers, element by element, in the switch.

        Args:
            vector: `numel` elements of the worker's dtype, in any shape; from one to `numel`
                elements if `shorter`: a NumPy array, or a tensor of PyTorch on the CPU.
            out: one like `vector` to take the result (may be `vector` itself).
            timeout: seconds; default: the worker's.
            round_: for a `partial` Worker, the round of the program: a number equal in all workers,
                also in late and restarted ones, such as the step of a checkpoint. Never count it
                from `worker.round`. Rounds before it are left out.

        Returns:
            `out`, or a new array (or tensor) of the vector's shape. Floating-point sums are rounded
            after every addition, in the order of arrival (in rank order if `reproducible`).

        Raises:
            TypeError, ValueError: wrong dtype or size.
            MemoryError: there is no memory for a new array; nothing has been sent.
            AllreduceTimeout: the round was not done in time; the message names whom it waits for.
            JobHalted, JobReset, MemberLost, MembershipLost, RoundGone: see worker_lib.errors.
        """
        alike = self._play_next is not None and round_ is None
        if alike and timeout is None and self._repeat(vector, out, self.timeout):
            assert out is not None
            return out
        array, result, out_ = arrays.operands(vector, out, self.shape, self.shorter)
        wait = self.timeout if timeout is None else arguments.seconds("timeout", timeout)
        arguments.named_round(round_, self.partial, "round_")
        if alike and self._repeat(array, result, wait, own=out is None):
            return out_
        flat = np.ascontiguousarray(array).reshape(-1), result.reshape(-1)
        with self._call():
            self._membership.allreduce(*flat, wait, own=out is None, round_=round_)
            if self._spans is None:
                self._play_next = self._membership.begin_streak(len(flat[0]))
        return out_

    def _repeat(self, vector: Any, out: Any, timeout: float, own: bool = False) -> bool:
        """Play a round like the last one; False: it is not like that, and nothing was done.

        This is all the Python around the kernel's call. Its caches are another's after each wait,
        so that a line here costs several times of what it costs in a loop.

        Args:
            vector, out: as for `allreduce`.
            timeout: seconds.
            own: whether nothing else writes to `out`.
        """
        places = arrays.places(vector, out, self._element_type, self._numel)
        if places is None or self._is_amid():
            return False
        nanoseconds = int(min(timeout, LATEST) * NANO)  # no signal may come between `try` and call
        with self._lock:
            play_next = self._play_next
            if play_next is None or os.getpid() != self._process:
                return False
            try:
                end = play_next(*places, nanoseconds)
            except BaseException:  # of a signal's handler
                self._end_streak(returned=True)
                self._membership.stop(vector, out, own)
                raise
            if end == DONE:
                return True
            self._end_streak()
            if end == NOT_BEGUN:
                return False
            self._timed.add([self._membership.go_on(vector, out, end, timeout, own)])
        return True

    def receive(
        self, out: npt.NDArray[Any], round_: int, timeout: float | None = None
    ) -> npt.NDArray[Any]:
        """Receive the sum of a round to which this worker contributes nothing.

        It costs the switch a question now and then while the round has not begun. A round counts as
        received afterwards, as if this worker had taken part in it.

        Args:
            out: takes the result: `numel` elements of the worker's dtype, C-contiguous, in any
                shape; fewer if `shorter`.
            round_: the round of the program; see `allreduce`.
            timeout: seconds; default: the worker's.

        Returns:
            `out`.

        Raises:
            TypeError, ValueError: wrong dtype or size, or this Worker is not `partial`.
            AllreduceTimeout: the sum did not come in time.
            JobHalted, JobReset, MembershipLost, RoundGone: see worker_lib.errors.
        """
        result = arrays.destination(out, self.shape, self.shorter)
        wait = self.timeout if timeout is None else arguments.seconds("timeout", timeout)
        arguments.named_round(round_, self.partial, "round_")
        with self._call(counts=False):
            self._membership.receive(result.reshape(-1), wait, round_)
        return out

    def newest_round(self) -> int:
        """Return the newest round of any worker that the switch knows of; else this worker's."""
        ack = self._request(Action.SHOW, Show(Shown.JOBS, self.job))
        return ack.round if ack.rank == self.job else self.round  # of another job, if ours is gone

    def members(self) -> list[Present]:
        """List the contributors at this worker's switch: workers by rank, then switches below."""
        return showing.members(lambda show: self._request(Action.SHOW, show))

    def has_parent(self) -> bool:
        """Return whether this worker's switch has one above it."""
        return bool(self._request(Action.SHOW, Show(Shown.SWITCH)).contributors)

    def share_added(self) -> float:
        """Return the part of this job's contributions that its switch has added up itself, 0 to 1.

        Less than 1 only at a switch with few slots that passes others on to a fallback.
        """
        has = self._request(Action.SHOW, Show(Shown.MEMORY, self.job))
        self._share = has.contributors / MILLION
        return self._share

    # Requests

    def set_threshold(self, threshold: int) -> int:
        """Set H, the contributions that complete a segment; 0: every current member.

        Returns:
            the H in force.

        Raises:
            ValueError: H would leave out a worker that is present, and this Worker is not
                `partial`: sums could mix rounds of the program.
        """
        hint = "pass a number of contributions, or 0 for everybody's"
        threshold = arguments.whole("threshold", threshold, 0, 0xFFFFFFFF, hint)
        if threshold and not self.partial:
            self._check_threshold(threshold)
        in_force = self._request(Action.SETH, Threshold(threshold)).threshold
        if in_force > self._session.joined:  # as it has heard so far
            job = self._request(Action.SHOW, Show(Shown.JOBS, self.job))
            telling.of_threshold(in_force, job.contributors)
        return in_force

    def _check_threshold(self, threshold: int) -> None:
        """Refuse an H that leaves out more workers than are lost or late in this round.

        A worker that may be left out of a round can fall behind, so that its n-th call no longer
        belongs to the others' n-th calls.
        """
        nothing = Segments(self.round, 0, 0)  # so that the answer names lost workers
        absent = self._request(Action.HELP, nothing).missing | (self._session.waiting_for or 0)
        there = len(self.members())
        if threshold < there - absent.bit_count():
            raise ValueError(
                f"threshold = {threshold}: {there} workers are in the job, and rounds of some of "
                "them could mix vectors of different rounds of the program; make the Workers with "
                "partial=True, and say in each allreduce which round it is"
            )

    def force_broadcast(
        self, start: int = 0, stop: int | None = None, round_: int | None = None
    ) -> int:
        """Make the switch broadcast segments start..stop-1 now, with the contributions they hold.

        Args:
            start: the first segment.
            stop: one past the last segment; None: the vector's end.
            round_: the round; None: the current one.

        Returns:
            the least number of contributions in one of them; 0: nothing was forced.
        """
        stop = self.shape.segments if stop is None else stop
        if not 0 <= start < stop <= self.shape.segments:
            raise ValueError(f"segments {start}..{stop}: the vector has {self.shape.segments}")
        named = Segments(self.round if round_ is None else round_, start, stop - start)
        return self._request(Action.FBCAST, named).contributors

    def stats(self) -> dict[str, Any]:
        """Return counts since the start, and the present state of timer and window.

        Segments `sent`, `sent_again`, `received` and of no use (`useless`); `probes` of a silence;
        `helps` asked for and `helped`; `rejoins`; `round_trip` and `timer` in seconds; `window` in
        segments; kernel drops at this socket (`rx_overflow`); median and 99th percentile of
        `allreduce` in seconds; what `share_added` has returned last (None: nothing yet).
        """
        own = {"share_added": self._share}
        return {**super().stats(), **self._timing("allreduces", "allreduce"), **own}
