"""A worker of a job: one UDP socket and blocking calls around a `Session`."""

from __future__ import annotations

import functools
import os
import secrets
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import (
    HEARTBEAT,
    NO_RANK,
    ROUND_MASK,
    Ack,
    AckWho,
    Action,
    Awaited,
    Segments,
    Shape,
    Show,
    Shown,
    Status,
    Threshold,
    Value,
    Vector,
)
from worker_lib.protocol.session import Answered, Dropped, Gone, Halted, Session, WasReset
from worker_lib.protocol.terms import RoundTerms
from worker_lib.protocol.window import CEILING, TOGETHER

from . import arguments, arrays, environment, naming
from .errors import (
    JobReset,
    MembershipLost,
    Refused,
    RoundGone,
    SwitchUnreachable,
    TooFewWorkers,
    WorkerError,
    as_if_lost,
)
from .waiting import LOOK_PAUSE, OnMemberLost, Waiting

LOOK_AGAIN = 0.001  # seconds since something came after which to look before an allreduce
ATTEND_PAUSE = 1.0  # seconds between two looks at the socket while no call is under way
WHO_PATIENCE = 0.5  # seconds for an answer to the question who is in the job, or is waited for
WHO_PAUSE = 0.01  # seconds before asking again, when switches further away have to be heard
TAKEN_PAUSE = 0.5  # seconds before asking again for a place in a job that has all its workers
LEAST_ELEMENTS = 16  # of a packet; no switch takes as few
JOIN_PAUSE = 0.02  # seconds between two looks whether everybody has joined
TIMES_KEPT = 100_000  # durations, for the percentiles
REFUSED_PATIENCE = 5.0  # seconds to wait where no process listens; the switch may be starting

V = TypeVar("V")  # an array, or a tensor on the CPU


class Worker:
    """A member of a job that contributes vectors and gets their sums.

    Calls from several threads take turns. Between calls a thread of its own keeps the membership
    alive and answers the switch.

    Args:
        switch: (host, port) of the switch.
        job: the job's number, 0..65535, the same in all workers.
        numel: elements of every vector.
        num_workers: wait until so many have joined, and take no sum of fewer contributions; None:
            join alone, whoever else comes.
        rank: this worker's number among all of the job, which no other has; below `num_workers`.
            None: any, given by the switch, also where RANK is set: a process may have several
            Workers. `from_env` reads it.
        on_member_lost: when a worker of `num_workers` leaves or dies: "wait" until another takes
            its place; "continue" with the sums of the others; "raise" `MemberLost` in each of them.
        dtype: element type: float32, float16, bfloat16 (from ml_dtypes) or int32.
        op: "sum", "max" or "min".
        reproducible: sum in rank order rather than in order of arrival, so that a run can be
            repeated bit for bit.
        timeout: seconds that joining, a request and a round may take.
        elements_per_segment: E; the default fills a 1500-byte MTU (366 float32), or that of the
            way to the switch if it is smaller.
        restart_safe: keep a copy of the last vector for a switch that loses its state.
        offload: use segmentation offload where the machine has it.
        bind: local (host, port).
        key: of a keyed job, 1 to 64 bytes.
        shorter: vectors may have fewer elements than `numel`, equally many in all workers each
            time; only as many segments travel as they fill.
        partial: a worker may leave rounds out: every allreduce says which round of the program it
            is of, and `set_threshold` may go below the number of workers.
        first_round: the round of the program that it begins with, if it is `partial` and continues
            another run; the same in all workers, but in those that come later.

    Raises:
        SwitchUnreachable: nobody answers there.
        BindError: `bind` cannot be had.
        Refused: the switch does not take this worker into the job.
        TooFewWorkers: fewer than `num_workers` joined in time, or no rank became free.
        ValueError: an argument out of its range.
    """

    def __init__(
        self,
        switch: tuple[str, int],
        job: int,
        numel: int,
        num_workers: int | None = None,
        *,
        rank: int | None = None,
        on_member_lost: OnMemberLost = "wait",
        dtype: npt.DTypeLike = np.float32,
        op: Literal["sum", "max", "min"] = "sum",
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
    ) -> None:
        switch = arguments.address("switch", switch, least_port=1)
        bind = arguments.address("bind", bind)
        job = arguments.job_number(job)
        if num_workers is not None:
            num_workers = arguments.num_workers(num_workers)
        wanted = arguments.rank(rank, num_workers)
        shape = arguments.shape(numel, dtype, op, elements_per_segment)
        arguments.key(key)
        self.job = job
        self.num_workers = num_workers
        self.on_member_lost = arguments.on_member_lost(on_member_lost, num_workers)
        self.reproducible = bool(reproducible)
        self.shorter = bool(shorter)
        self.partial = bool(partial)
        if first_round:
            arguments.named_round(first_round, self.partial, "first_round")
        self.timeout = arguments.seconds("timeout", timeout)
        self.allreduces = 0
        self.allreduce_seconds: deque[float] = deque(maxlen=TIMES_KEPT)  # of the last
        self._hosts = environment.hosts(os.environ)
        self._process = os.getpid()
        incarnation = arguments.incarnation()
        self._port = arguments.port(switch, bind, offload)
        self.shape = shape = arguments.fitted(shape, self._port, elements_per_segment)
        self._dtype = shape.dtype.numpy
        self._address = Address(*self._port.socket.getpeername())  # `switch` may be a name
        terms = RoundTerms(
            self._address,
            job,
            shape,
            expected=num_workers or 0,
            rank=wanted,
            whole=num_workers is not None and on_member_lost != "continue",
            reproducible=self.reproducible,
            restart_safe=bool(restart_safe),
            ceiling=min(CEILING, self._port.buffer),
            room=min(TOGETHER, self._port.buffer),  # the switch's is no larger, by all we know
            most=self._port.most,
            key=key,
            heartbeat=LOOK_PAUSE if on_member_lost == "raise" else HEARTBEAT,
            partial=self.partial,
            first_round=first_round,
        )
        try:
            self._session = Session(terms, incarnation)
        except MemoryError:
            self._port.close()
            raise arguments.too_large(shape) from None
        self._waiting = Waiting(self._session, num_workers or 0, on_member_lost, self._hosts)
        self._may_shorten = elements_per_segment is None
        self._poller = select.poll()
        self._poller.register(self._port, select.POLLIN)
        self._notice: WorkerError | None = None  # to be raised by the next allreduce
        self._left = threading.Event()
        self._lock = threading.RLock()  # around the session
        try:
            self._join()
            threading.Thread(
                target=_attend, args=(weakref.ref(self), self._left), daemon=True
            ).start()
        except BaseException:
            self.leave()  # else it stays a member for whom the others wait
            raise

    @classmethod
    def from_env(cls, numel: int, **kwargs: Any) -> Self:
        """Make the worker that `iswitch run` started this process to be.

        The switch, the job and the number of workers are those in the environment variables
        ISWITCH_SWITCH, ISWITCH_JOB and WORLD_SIZE, the rank is that in RANK; or number and rank are
        those that mpirun or srun has set (docs/worker.md, "Ranks"). `bind` is ISWITCH_BIND: with it
        a process that is started again (`--max-restarts`) takes the place of the one that failed.
        The key, if there is one, is ISWITCH_KEY, or in the file ISWITCH_KEY_FILE.

        Args:
            numel: elements of every vector.
            kwargs: all else that `Worker` takes; `bind`, `rank` and `key` go before the variables.
                A process that makes several Workers in one job gives each another rank, or None.

        Raises:
            ValueError: one of the variables lacks or is wrong; the message names it.
        """
        place = environment.read(os.environ)
        return cls(place.switch, place.job, numel, place.num_workers, **place.own | kwargs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def rank(self) -> int:
        """This worker's number in the job: no other of the whole tree has it at the same time.

        The one it asked for; or one that the switch has given it, and that it keeps, but for one
        case: a switch that lost its state has meanwhile given it to another worker, in a job
        without `num_workers`.
        """
        return self._session.rank

    @property
    def round(self) -> int:
        """The number of the next allreduce; of a partial Worker, the least that it can name.

        It depends on when this worker joined, so no number of a round can be counted from it.
        """
        return self._session.round

    @property
    def address(self) -> Address:
        """The switch's."""
        return self._address

    @property
    def waits_for(self) -> list[int]:
        """Ranks whose contributions to the round under way are missing, as far as that is known."""
        return naming.ranks(self.awaited)

    @property
    def awaited(self) -> list[Awaited]:
        """The same workers with host and port: the first 16 of them.

        It is asked for when nothing has come for a quarter of a second.
        """
        return self._waiting.awaited

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
            vector: `numel` elements of the worker's dtype, in any shape; at least one and at most
                so many if `shorter`: a NumPy array, or a tensor of PyTorch on the CPU.
            out: one like `vector` to take the result (may be `vector` itself).
            timeout: seconds; default: the worker's.
            round_: which round of the program the vector is of, if the Worker is `partial`: a
                number that is the same in all workers, also in one that has joined later or was
                started again, such as the step that a checkpoint tells. Never count it from
                `worker.round`. Rounds before it are left out.

        Returns:
            `out`, or a new array (or tensor) of the vector's shape. Floating-point sums are rounded
            after every addition, in the order of arrival (in rank order if `reproducible`).

        Raises:
            TypeError, ValueError: wrong dtype or size.
            MemoryError: there is none for a new array; nothing has been sent.
            AllreduceTimeout: the round was not done in time; the message names whom it waits for.
            JobHalted, JobReset, MemberLost, MembershipLost, RoundGone: see worker_lib.errors.
        """
        own = out is None
        array = self._checked("vector", vector)
        if out is None:
            result = arguments.new_result(array.shape, self._dtype)
            out = arrays.like(vector, result)
        else:
            result = self._checked("out", out)
        if not (result.flags.c_contiguous and result.flags.writeable):
            raise ValueError("out must be writable and C-contiguous; leave it out for a new array")
        if result.shape != array.shape:
            raise ValueError(
                f"out has shape {result.shape}, vector {array.shape}; out = out.reshape("
                f"{array.shape}) is a view that fits"
            )
        if _overlap(array, result):
            raise ValueError(
                "out lies over a part of vector; pass the vector itself, an array of its own, or "
                "none"
            )
        wait = self.timeout if timeout is None else arguments.seconds("timeout", timeout)
        arguments.named_round(round_, self.partial, "round_")
        with self._lock:
            self._ensure_open()
            self._allreduce(array, result, wait, own, round_)
        return out

    def _allreduce(
        self, vector: Vector, result: Vector, timeout: float, own: bool, round_: int | None
    ) -> None:
        began = time.monotonic()
        limit = began + timeout
        session = self._session
        if began - self._session.heard > LOOK_AGAIN and self._poller.poll(0):
            self._receive()  # since the last call: Help for that round, a Reset, a Halt
        if session.has_events or self._notice is not None:
            self._raise_notice()
        if round_ is not None and not session.skip_to(round_):
            raise RoundGone(round_, session.round, named=True)
        flat = np.ascontiguousarray(vector).reshape(-1), result.reshape(-1)
        try:
            express = session.begin_express(*flat, began, own)
            if not (express and self._express(limit)):
                self._by_and_by(flat, began, limit, own)
        except BaseException:
            session.abandon()
            raise
        session.finish()
        now = time.monotonic()
        self._flush(now)
        self.allreduces += 1
        self.allreduce_seconds.append(now - began)

    def _express(self, limit: float) -> bool:
        """Send a small vector and take its aggregate; False: it has to be gone on with slowly."""
        session = self._session
        now = time.monotonic()
        self._flush(now)
        while (express := session.express) is not None:
            deadline = session.deadline()
            until = limit if deadline is None else min(limit, deadline)
            if not self._poller.poll(max(0.0, until - now) * 1000):
                break
            self._receive()
            if express.done and session.express is express:  # else there was a Reset behind it
                return True
            now = time.monotonic()
        session.go_slow()
        self._raise_notice()
        return False

    def _by_and_by(
        self, flat: tuple[Vector, Vector], began: float, limit: float, own: bool
    ) -> None:
        """Send and receive until all has come."""
        session = self._session
        if session.transfer is None:
            session.begin(*flat, began, own)
        transfer = session.transfer
        assert transfer is not None
        self._waiting.begin(began)
        while not transfer.done:
            in_time = self._step(limit)
            if not in_time:
                self._ask_for_whom()
                self._ask_who_is_there()
            self._raise_notice()
            now = time.monotonic()
            if (lost := self._waiting.lost(now)) is not None:
                raise lost
            self._waiting.look(now)
            if not in_time and not transfer.done:
                failed = self._port.counters["tx_failed"]
                raise self._waiting.too_late(limit - began, now, failed)

    def _checked(self, name: str, given: Any) -> Vector:
        """What is handed in, as an array of this worker's elements."""
        array = arrays.as_array(name, given)
        if array.dtype != self._dtype:
            how = ".to(torch.{})" if arrays.is_tensor(given) else ".astype({})"
            mend = f"convert it with {how.format(self._dtype)}"
            if name == "out":
                mend = f"make it with np.empty(vector.shape, {self._dtype})"
            raise TypeError(
                f"{name} is {array.dtype}, this worker's dtype is {self._dtype}: {mend}, or make "
                "the Worker with another dtype"
            )
        least = 1 if self.shorter else self.shape.numel
        if not min(least, self.shape.numel) <= array.size <= self.shape.numel:
            raise ValueError(
                f"{name} has {array.size} elements, this worker's vectors have "
                f"{self.shape.numel}; make the Worker with numel={array.size}"
            )
        return array

    # Requests

    def set_threshold(self, threshold: int) -> int:
        """Set H, the contributions that complete a segment; 0: every current member.

        Returns:
            the H in force.

        Raises:
            ValueError: it is below the number of workers for whom no round waits in vain, and
                this Worker is not `partial`: sums could mix rounds of the program.
        """
        hint = "pass a number of contributions, or 0 for everybody's"
        threshold = arguments.whole("threshold", threshold, 0, 0xFFFFFFFF, hint)
        if threshold and not self.partial:
            self._check_threshold(threshold)
        return self._request(Action.SETH, Threshold(threshold)).threshold

    def _check_threshold(self, threshold: int) -> None:
        """See that H leaves out only workers whose leases have run out, or that a round lacks.

        Where a worker may leave rounds out, the n-th calls of all do not belong together.
        """
        nothing = Segments(self.round, 0, 0)  # so that the answer says who is lost
        absent = self._request(Action.HELP, nothing).missing | (self._session.waiting_for or 0)
        shown = self._request(Action.SHOW, Show(Shown.MEMBERS))
        there = shown.total if isinstance(shown, AckWho) else 0
        if threshold < there - absent.bit_count():
            raise ValueError(
                f"threshold = {threshold}: {there} workers are in the job, and rounds of some of "
                "them could mix vectors of different rounds of the program; make the Workers with "
                "partial=True, and say in each allreduce which round it is"
            )

    def force_broadcast(
        self, start: int = 0, stop: int | None = None, round_: int | None = None
    ) -> int:
        """Have segments start..stop-1 broadcast now, with whatever contributions they hold.

        Args:
            start: the first segment.
            stop: one past the last; None: the vector's end.
            round_: the round; None: the current one.

        Returns:
            the least number of contributions in one of them; 0: nothing was forced.
        """
        stop = self.shape.segments if stop is None else stop
        if not 0 <= start < stop <= self.shape.segments:
            raise ValueError(f"segments {start}..{stop}: the vector has {self.shape.segments}")
        named = Segments(self.round if round_ is None else round_, start, stop - start)
        return self._request(Action.FBCAST, named).contributors

    def reset(self) -> int:
        """Clear the job's buffers and end a Halt; returns the round the job goes on from.

        The other workers' allreduce raises JobReset.
        """
        self._request(Action.RESET)
        return self._session.round

    def halt(self) -> None:
        """Suspend the job on all workers, until somebody calls `reset`."""
        self._request(Action.HALT)

    def leave(self) -> None:
        """Leave the job; what waited only for this worker completes. Then the Worker is closed."""
        if os.getpid() != self._process:  # forked: the membership is the other process's
            self._port.socket.detach()
            return
        with self._lock:
            if self._left.is_set():
                return
            try:
                if self._session.member:
                    self._request(Action.LEAVE, timeout=min(self.timeout, 1.0))
            except (SwitchUnreachable, Refused):
                pass  # nobody is there to be told
            finally:
                self._left.set()
                self._port.close()

    close = leave

    def stats(self) -> dict[str, Any]:
        """Counts since the start, and the present state of timer and window.

        Segments `sent`, `sent_again`, `received` and of no use (`useless`); `probes` of a silence;
        `helps` asked for and `helped`; `rejoins`; `round_trip` and `timer` in seconds; `window` in
        segments; kernel drops at this socket (`rx_overflow`); median and 99th percentile of
        `allreduce` in seconds.
        """
        session = self._session
        self._port.count_dropped()
        times = np.asarray(self.allreduce_seconds or [np.nan])
        return {
            **session.stats,
            "rank": self.rank,
            "round": self.round,
            "allreduces": self.allreduces,
            "allreduce_p50": float(np.percentile(times, 50)),
            "allreduce_p99": float(np.percentile(times, 99)),
            "round_trip": session.round_trip.smoothed,
            "timer": session.round_trip.timeout,
            "window": int(session.window.size),
            "offload": self._port.offload,
            "rx_overflow": self._port.counters["rx_overflow"],
            "tx_failed": self._port.counters["tx_failed"],
        }

    # Moving packets

    def _step(self, limit: float) -> bool:
        """Send what may be sent, wait for something to come, take it; False: out of time."""
        session = self._session
        now = time.monotonic()
        self._flush(now)
        deadline = session.deadline()
        until = limit if deadline is None else min(limit, deadline)
        if self._poller.poll(0.0 if session.may_send else max(0.0, until - now) * 1000):
            self._receive()
        now = time.monotonic()
        if until <= now:
            with as_if_lost(session.stats):
                session.handle_timer(now)
        return now < limit

    def _receive(self) -> None:
        now = time.monotonic()
        with as_if_lost(self._session.stats):
            for burst in self._port.pull():
                self._session.receive(burst, now)

    def _attend(self) -> None:
        """What is due while no call is under way: heartbeats, Help for others, Acks."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not self._left.is_set():
                self._receive()
                now = time.monotonic()
                deadline = self._session.deadline()
                if deadline is not None and deadline <= now:
                    with as_if_lost(self._session.stats):
                        self._session.handle_timer(now)
                self._flush(now)
                self._note_refusal()
        finally:
            self._lock.release()

    def _flush(self, now: float) -> None:
        with as_if_lost(self._session.stats):
            self._port.push(self._session.transmissions(now))

    def _events(self) -> list[Answered]:
        """The answers among the events; what an allreduce has to raise is noted."""
        answers = []
        while (event := self._session.next_event()) is not None:
            match event:
                case Answered():
                    answers.append(event)
                case WasReset(round_):
                    self._notice = JobReset(round_)
                case Gone(round_, now_at):
                    self._notice = RoundGone(round_, now_at, named=self.partial)
                case Dropped(round_, now_at):
                    self._notice = MembershipLost(round_, now_at)
                case Halted():
                    pass  # an allreduce waits, and says so if it waits too long
        return answers

    def _note_refusal(self) -> None:
        """Have the next allreduce raise it when a membership could not be taken up again."""
        for answer in self._events():
            self._waiting.answered(answer)
            if answer.action is Action.JOIN and answer.status is not Status.OK:
                self._notice = self._refused(answer)

    def _raise_notice(self) -> None:
        self._note_refusal()
        if self._notice is not None:
            notice, self._notice = self._notice, None
            raise notice

    def _request(self, action: Action, value: Value = None, timeout: float | None = None) -> Ack:
        with self._lock:
            self._ensure_open()
            limit = time.monotonic() + (self.timeout if timeout is None else timeout)
            while True:
                number = self._session.request(action, value, time.monotonic())
                try:
                    return self._await(functools.partial(_answers, number), limit)
                except Refused as refused:
                    if refused.status is not Status.NOT_MEMBER or action is Action.LEAVE:
                        raise
                # The switch was restarted, or the lease had run out: once more as a member.
                self._await(_answers_join, limit)

    def _await(self, wanted: Callable[[Answered], bool], limit: float) -> Ack:
        began = time.monotonic()
        self._port.refused = False
        while True:
            more = self._step(limit)
            for answer in self._events():
                self._waiting.answered(answer)
                if wanted(answer):
                    if answer.status is not Status.OK:
                        raise self._refused(answer)
                    return answer.ack
            if not more or (self._port.refused and time.monotonic() - began > REFUSED_PATIENCE):
                seconds = f"{time.monotonic() - began:.1f}"
                assigned = os.environ.get("ISWITCH_SWITCH", "")
                taken = self._session.taken
                if taken is not None:
                    raise self._refused(Answered(0, Action.JOIN, Status.RANK_TAKEN, taken))
                refused = self._port.refused
                denied = self._session.denied
                raise SwitchUnreachable.silent(self._address, seconds, refused, assigned, denied)

    def _refused(self, answer: Answered) -> Refused:
        detail = ""
        if answer.status is Status.MISMATCH:
            shape = self.shape
            detail = (
                f" (this worker's: {shape.numel} elements of {self._dtype}, {shape.op.name.lower()}"
                f", E = {shape.elements}{', reproducible' * self.reproducible})"
            )
        if answer.status is Status.RANK_TAKEN:
            detail = naming.owner(answer.ack, self._hosts)
        return Refused(answer.action, answer.status, self.job, detail, answer.ack)

    def _join(self) -> None:
        limit = time.monotonic() + self.timeout
        most = 0  # were seen at once: who gives up leaves
        while True:
            self._session.join(time.monotonic())
            try:
                self._await(_answers_join, limit)
            except Refused as refused:
                if refused.status is Status.BAD_REQUEST and self._shorten_packets():
                    continue
                # The places of workers that were killed become free.
                if not refused.taken or time.monotonic() + TAKEN_PAUSE >= limit:
                    raise
                time.sleep(TAKEN_PAUSE)
                continue
            except SwitchUnreachable:
                if not most:  # else it has answered before, and only the time is up
                    raise
            most = max(most, self._session.joined)
            if most >= (self.num_workers or 0) and self._session.rank != NO_RANK:
                self._notice = None  # a reset while all were gathering: nothing was under way
                arguments.tell_of_clock(self._session.clock_behind, self._session.incarnation)
                return
            if time.monotonic() + JOIN_PAUSE >= limit:
                if most >= (self.num_workers or 0):
                    raise TooFewWorkers(
                        f"joined job {self.job}, but no rank was free within {self.timeout:g} s: "
                        "a worker that died keeps its rank until its lease ends; try again after "
                        "that, or with a longer timeout"
                    )
                raise TooFewWorkers(
                    f"only {most} of {self.num_workers} workers joined job "
                    f"{self.job} within {self.timeout:g} s; are all of them running, with the "
                    "same job number and switch?"
                )
            time.sleep(JOIN_PAUSE)

    def _shorten_packets(self) -> bool:
        """Try the next shorter packets: this switch may not take so many elements in one.

        Every worker tries the same numbers, from the same one on, so they meet. Each try has a
        Request of its own: a late copy of one refusal must not pass for the next.
        """
        shape = self.shape
        elements = 1 << (shape.elements - 1).bit_length() - 1 if shape.elements > 1 else 0
        if not self._may_shorten or elements < LEAST_ELEMENTS:
            return False
        self.shape = Shape.of(shape.numel, shape.dtype, shape.op, shape.mode, elements)
        incarnation = (self._session.incarnation + 1) & ROUND_MASK
        self._session = Session(replace(self._session.terms, shape=self.shape), incarnation)
        self._waiting = Waiting(
            self._session, self.num_workers or 0, self.on_member_lost, self._hosts
        )
        return True

    def _ensure_open(self) -> None:
        if os.getpid() != self._process:
            raise WorkerError(
                "this Worker belongs to the process that made it, of which this one was forked; "
                "make a Worker of its own here, with another socket and rank"
            )
        if self._left.is_set():
            raise WorkerError("this Worker has left its job; make a new one")

    def _ask_for_whom(self) -> None:
        """Learn whose contributions are missing, from all switches of the tree."""
        waiting, session = self._waiting, self._session
        question, limit = secrets.randbits(32), time.monotonic() + WHO_PATIENCE
        with suppress(SwitchUnreachable, Refused):
            while not (waiting.knows or session.halted or session.transfer is None):
                now = time.monotonic()
                if session.transfer.done or now >= limit:
                    return
                request = waiting.ask_for_whom(question, now)
                try:
                    self._await(functools.partial(_answers, request), limit)
                finally:
                    session.forget(request)
                if not waiting.knows:
                    time.sleep(WHO_PAUSE)

    def _ask_who_is_there(self) -> None:
        with suppress(SwitchUnreachable, Refused):
            self._session.join(time.monotonic())
            self._await(_answers_join, time.monotonic() + WHO_PATIENCE)


def _attend(worker_ref: weakref.ref[Worker], left: threading.Event) -> None:
    """Attend to a worker from a thread of its own, for as long as somebody has it."""
    while not left.wait(ATTEND_PAUSE):
        worker = worker_ref()
        if worker is None:
            return
        worker._attend()
        del worker


def _answers(number: int, answer: Answered) -> bool:
    return answer.request == number


def _answers_join(answer: Answered) -> bool:
    return answer.action is Action.JOIN


def _overlap(vector: Vector, out: Vector) -> bool:
    """Whether they share memory without being the same."""
    if not vector.flags.c_contiguous:  # it is copied first
        return False
    if vector is out or not np.may_share_memory(vector, out):
        return False
    begin = vector.__array_interface__["data"][0] - out.__array_interface__["data"][0]
    return bool(begin)
