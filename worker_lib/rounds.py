"""What workers of rounds have in common: a membership, and requests to the switch."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from iswitch.core.format.histogram import Histogram
from iswitch.core.format.packets import Address
from iswitch.core.format.wire import HEARTBEAT, Ack, Action, Awaited, Shape, Value
from iswitch.virtual.process import called, computed
from iswitch.watch.spans import spans
from worker_lib.protocol.session import Session
from worker_lib.protocol.terms import RoundTerms

from . import arguments, environment
from .errors import Refused, SwitchUnreachable, WorkerError
from .membership import Membership
from .opening import Joining, Opening
from .timing import Calls
from .waiting import LOOK_PAUSE

ATTEND_PAUSE = 1.0  # seconds between two looks at the socket while no call is under way


class RoundWorker(Joining):
    """A member of a job of rounds.

    Calls from several threads take turns. Between calls a thread of its own keeps the membership
    alive and answers the switch.

    Args:
        opening: what every worker is given.
        shape: layout of the vectors.
        resized: returns that layout with other elements per segment.
        on_member_lost: reaction to the loss of a worker.
        terms: further arguments of `RoundTerms`.
    """

    def __init__(
        self,
        opening: Opening,
        shape: Shape,
        resized: Callable[[int], Shape],
        on_member_lost: object,
        **terms: Any,
    ) -> None:
        self.job = opening.job
        self.num_workers = opening.num_workers
        self.timeout = opening.timeout
        self.on_member_lost = arguments.on_member_lost(on_member_lost, self.num_workers)
        self._timed = Calls()
        self._process = os.getpid()
        self._play_next: Callable[[int, int, int], int] | None = None  # while rounds are alike
        self._spans = spans()
        self._port, common = opening.open(shape, resized)
        ways = RoundTerms(
            **common,
            heartbeat=LOOK_PAUSE if on_member_lost == "raise" else HEARTBEAT,
            **terms,
        )
        hosts = environment.hosts(os.environ)
        self._membership = Membership(self._port, ways, self.on_member_lost, hosts)
        self._left = threading.Event()
        self._lock = threading.RLock()  # around the membership
        # Whether this thread is amid a call, as a signal's handler may be (and Condition asks so).
        self._is_amid: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        try:
            self._membership.join(self.timeout, resized if opening.elements is None else None)
            threading.Thread(
                target=_attend,
                args=(weakref.ref(self), self._left),
                daemon=True,
                name="iswitch attend",
            ).start()
            called()
        except BaseException:
            self.leave()  # else it stays a member for whom the others wait
            raise

    @property
    def _session(self) -> Session:
        self._look_up()
        return self._membership.session

    @property
    def durations(self) -> Histogram:
        """Return how long all calls have taken."""
        return self._calls.durations

    @property
    def _calls(self) -> Calls:
        self._look_up()
        return self._timed

    # Rounds in a row

    def _look_up(self) -> None:
        """Take note of rounds in a row, unless another thread is at the next."""
        if self._play_next is not None and self._lock.acquire(blocking=False):
            try:
                self._end_streak()
            finally:
                self._lock.release()

    def _end_streak(self, returned: bool = False) -> None:
        """Take note of rounds in a row; call this with the lock.

        Args:
            returned: count only rounds whose results the program has.
        """
        if self._play_next is not None:
            took = self._membership.end_streak(returned)
            self._play_next = None  # behind it, in case that a signal's handler raises an error
            self._timed.add(took)

    @property
    def shape(self) -> Shape:
        """Return the layout of the vectors."""
        return self._membership.session.shape

    @property
    def rank(self) -> int:
        """Return this worker's number in the job, which no other worker of the tree has now.

        It is the rank asked for, or one that the switch gave. It changes in one case only: in a job
        without `num_workers`, if a switch that lost its state has given it to another worker.
        """
        return self._membership.session.rank

    @property
    def round(self) -> int:
        """Return the number of the next round.

        It depends on when this worker joined, so a program must not count its own rounds from it.
        """
        kernel = self._membership.kernel
        if self._play_next is None or kernel is None:
            return self._membership.session.round
        return kernel.until

    @property
    def address(self) -> Address:
        """Return the switch's address."""
        return self._session.switch

    @property
    def awaited(self) -> list[Awaited]:
        """Return the first 16 workers whose contribution to the round is known to be missing.

        The switch is asked for them when nothing has come for a quarter of a second.
        """
        return self._membership.waiting.awaited

    # Requests

    def reset(self) -> int:
        """Clear the job's buffers and end a Halt; return the round from which the job continues.

        The other workers' calls raise JobReset.
        """
        self._request(Action.RESET)
        return self._session.round

    def halt(self) -> None:
        """Suspend the job on all workers, until somebody calls `reset`."""
        self._request(Action.HALT)

    def leave(self) -> None:
        """Leave the job and close the Worker; rounds that waited only for it complete."""
        if os.getpid() != self._process:  # forked: the membership is the other process's
            self._port.detach()
            return
        self._ensure_no_call()
        with self._lock:
            self._end_streak()
            if self._left.is_set():
                return
            try:
                if self._session.member:
                    self._membership.request(Action.LEAVE, None, min(self.timeout, 1.0))
            except (SwitchUnreachable, Refused):
                pass  # nobody is there to be told
            finally:
                self._left.set()
                self._port.close()

    close = leave

    def stats(self) -> dict[str, Any]:
        """Return counts since the start, and the present state of timer and window.

        Segments `sent`, `sent_again`, `received` and of no use (`useless`); `probes` of a silence;
        `helps` asked for and `helped`; `rejoins`; `round_trip` and `timer` in seconds; `window` in
        segments; kernel drops at this socket (`rx_overflow`); `fast`, whether a compiled kernel
        plays the rounds; `apart`, seconds that its store into a ring takes to the switch, None if
        it has made none. While another thread is in a call, the rounds of its last quarter of a
        second may not be counted yet.
        """
        session, kernel = self._session, self._membership.kernel
        self._port.count_dropped()
        return {
            **session.stats,
            "rank": self.rank,
            "round": self.round,
            "round_trip": session.round_trip.smoothed,
            "timer": session.round_trip.timeout,
            "window": int(session.window.size),
            "offload": self._port.offload,
            "way": self._port.way,
            "fast": kernel is not None,
            "apart": None if kernel is None else kernel.apart,
            "rx_overflow": self._port.counters["rx_overflow"],
            "tx_failed": self._port.counters["tx_failed"],
        }

    def _timing(self, calls: str, each: str) -> dict[str, float]:
        """Return the number of calls, and median and 99th percentile of their seconds, by name."""
        timed = self._calls
        return {
            calls: timed.count,
            f"{each}_p50": timed.percentile(50),
            f"{each}_p99": timed.percentile(99),
        }

    @contextmanager
    def _call(self, counts: bool = True) -> Iterator[None]:
        """Hold the membership for a call; note how long it takes, if it `counts` and succeeds."""
        computed()
        self._ensure_no_call()
        with self._lock:
            self._end_streak()
            self._ensure_open()
            round_ = None if self._spans is None else self._session.round
            began = time.monotonic()
            yield
            ended = time.monotonic()
            if counts:
                self._timed.add([ended - began])
            if self._spans is not None and round_ is not None and self._spans.wants(round_):
                where = self.job, round_
                self._spans.add("call", where, (began, ended), rank=self.rank)
        called()

    def _request(self, action: Action, value: Value = None) -> Ack:
        self._ensure_no_call()
        with self._lock:
            self._end_streak()
            self._ensure_open()
            return self._membership.request(action, value, self.timeout)

    def _attend(self) -> None:
        """Do what is due, unless a call is under way, which does it itself."""
        if self._lock.acquire(blocking=False):
            try:
                self._end_streak()
                if not self._left.is_set():
                    self._membership.attend()
            finally:
                self._lock.release()

    def _ensure_no_call(self) -> None:
        """Refuse a signal's handler that interrupts a call of this worker."""
        if self._is_amid():
            raise WorkerError(
                "a call of this Worker is under way, which the signal's handler has interrupted: "
                "raise an error in the handler, which ends that call, and use the Worker then"
            )

    def _ensure_open(self) -> None:
        if os.getpid() != self._process:
            raise WorkerError(
                "this Worker belongs to the process that made it, of which this one was forked; "
                "make a Worker of its own here, with another socket and rank"
            )
        if self._left.is_set():
            raise WorkerError("this Worker has left its job; make a new one")


def _attend(worker_ref: weakref.ref[RoundWorker], left: threading.Event) -> None:
    """Call `_attend` regularly, in a thread, until the worker has left or is deleted."""
    while not left.wait(ATTEND_PAUSE):
        worker = worker_ref()
        if worker is None:
            return
        worker._attend()
        del worker
