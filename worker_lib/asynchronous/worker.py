"""The asynchronous algorithm of the paper's section 4: gradients and updates run concurrently.

The user's thread computes gradients (LGC), a second thread updates the local weights (LWU) with
every aggregate in the order of versions, and a third moves packets. No thread waits for another as
long as gradients are not older than the staleness allows.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from iswitch.core.format.wire import (
    NO_RANK,
    ROUND_MASK,
    VERSIONS_AHEAD,
    Action,
    Mode,
    Status,
    Vector,
    round_distance,
)
from worker_lib import arguments, environment
from worker_lib.errors import (
    TooFewWorkers,
    VersionTimeout,
    WorkerError,
    as_if_lost,
)
from worker_lib.opening import REFUSED_PATIENCE, Opening, no_answer, refused
from worker_lib.protocol.events import Answered, Told, WasReset
from worker_lib.protocol.terms import VersionTerms
from worker_lib.protocol.versions import AsynchronousSession

from .directory import Directory
from .peers import Peers
from .snapshots import Offer
from .standing import Standing, Way, choose
from .state import State

Update = Callable[[Vector, int, int], object]

LOOK_PAUSE = 0.05  # longest wait for packets or for another thread, in seconds
GREETING_PAUSE = 0.05  # seconds between two greetings; doubles
GREETING_CEILING = 1.0
AGAIN_PAUSE = 0.02  # seconds until a worker that is behind asks the others again
JOIN_PAUSE = 0.02  # seconds between two requests for a rank
WHO_PAUSE = 0.5  # seconds between two requests for the number of joined workers
LEAVE_PATIENCE = 1.0  # seconds for an answer to Leave


class AsynchronousWorker:
    """A member of an asynchronous job.

    Args:
        switch: (host, port) of the switch.
        job: the job's number, 0..65535, the same in all workers.
        numel: elements of every gradient.
        num_workers: number of workers in the job; summing begins when all have joined.
        update: called as `update(total, contributions, version)` once for every version, in order,
            by the LWU thread under the worker's lock; it changes the arrays of `state` in place.
            `total` is the sum of `contributions` gradients, [numel], valid during the call only.
            The result must depend on these arguments and `state` alone.
        state: C-contiguous arrays, all that `update` reads and writes: weights first, then
            optimizer moments and so on. At the start all workers get the state of one of them.
        rank: this worker's number among all, as for `Worker`; None: any.
        threshold: H, the number of contributions that make a version; None: one per member.
        staleness: S, the most versions that a gradient may be older than the current one.
        timeout: seconds that joining and every call may take.
        bind: local (host, port).
        key: the key of a keyed job, 1 to 64 bytes; None: no key.
        elements_per_segment: E; default as for `Worker`.
        offload: use segmentation offload where the machine supports it.
        dtype: element type of gradients: float32, float16, bfloat16 or int32.
        check: keep a digest of the state at every version, for `stats()["digests"]`.

    Raises:
        SwitchUnreachable, BindError, Refused, TooFewWorkers: as for `Worker`.
        TypeError, ValueError: an argument has a wrong type or value; the message names it.
    """

    def __init__(  # noqa: PLR0913 (options that users set by name)
        self,
        switch: tuple[str, int],
        job: int,
        numel: int,
        num_workers: int,
        *,
        update: Update,
        state: Sequence[npt.NDArray[Any]],
        rank: int | None = None,
        threshold: int | None = None,
        staleness: int = 3,
        timeout: float = arguments.TIMEOUT,
        bind: tuple[str, int] = ("0.0.0.0", 0),
        key: bytes | None = None,
        elements_per_segment: int | None = None,
        offload: bool = True,
        dtype: npt.DTypeLike = np.float32,
        check: bool = False,
    ) -> None:
        opening = Opening(
            switch, job, num_workers, rank, timeout, bind, key, elements_per_segment, offload
        )
        self.job, self.timeout = opening.job, opening.timeout
        self.num_workers = arguments.num_workers(num_workers)
        self.numel = arguments.whole("numel", numel, 1, 0xFFFFFFFF, "pass the gradient's elements")
        hint = f"pass 1 to num_workers ({num_workers}) contributions, or None for everybody's"
        if threshold is not None:
            threshold = arguments.whole("threshold", threshold, 1, num_workers, hint)
        hint = "pass the versions by which a gradient may be late, 0 or more"
        self.staleness = arguments.whole("staleness", staleness, 0, 2**31 - 1, hint)
        self._state = State(state)
        self._update = update
        self._check = check
        self._directory = Directory(self.num_workers)
        whole = self.numel + self._directory.size
        shape = arguments.shape(whole, dtype, "sum", elements_per_segment, Mode.ASYNCHRONOUS)
        self._process = os.getpid()
        self._port, self.shape, terms = opening.open(shape)
        self._dtype = shape.dtype.numpy
        ways = VersionTerms(**terms, threshold=threshold or 0, watch=self.numel)
        try:
            self._session = AsynchronousSession(ways, arguments.incarnation())
            self._vector = np.zeros(whole, self._dtype)
        except MemoryError:
            self._port.close()
            raise arguments.too_large(shape) from None
        self._version: int | None = None  # of the state; None: the state has no version yet
        self._is_first = False  # whether the others begin with this worker's state
        self._counts = dict.fromkeys(
            (
                "stale",
                "applied",
                "contributions",
                "snapshots_taken",
                "resets",
                "no_memory",
            ),
            0,
        )
        self._staleness: Counter[int] = Counter()
        self._digests: dict[int, str] = {}
        self._failure: BaseException | None = None  # to be raised in the user's thread
        self._greeted = (float("-inf"), GREETING_PAUSE)
        self._lock = threading.RLock()  # around the state and its version
        self._net = threading.RLock()  # around the session; taken after `_lock`, if both are
        self._changed = threading.Condition(self._net)
        self._left = threading.Event()
        self._is_leaving = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._poller = select.poll()
        self._poller.register(self._port, select.POLLIN)
        self._poller.register(self._wake, select.POLLIN)
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), daemon=True, name=f"iswitch {name}")
            for name, work in (("packets", self._move_packets), ("LWU", self._update_weights))
        ]
        here = self._port.address
        try:
            self._peers = Peers(
                self._directory,
                (here.host, here.port),
                self.job,
                key,
                self._offer,
                self._state.nbytes,
                self._left.is_set,
            )
        except OSError:
            self._port.close()
            os.close(self._wake)
            raise
        try:
            self._join()
        except BaseException:
            self.leave()
            raise

    @classmethod
    def from_env(
        cls, numel: int, *, update: Update, state: Sequence[npt.NDArray[Any]], **kwargs: Any
    ) -> Self:
        """Make a worker from the environment variables of `iswitch run`; see `Worker.from_env`.

        Raises:
            ValueError: a variable is missing or wrong; the message names it.
        """
        place = environment.read(os.environ)
        own = place.own | kwargs
        return cls(
            place.switch, place.job, numel, place.num_workers, update=update, state=state, **own
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Called by the user's thread

    @property
    def rank(self) -> int:
        """Return this worker's number in the job, see `Worker.rank`."""
        return self._session.rank

    @property
    def version(self) -> int:
        """Return the version of the local weights."""
        return self._version or 0

    def read(self, into: Sequence[npt.NDArray[Any]] | None = None) -> int:
        """Copy the first arrays of the state to `into`, all at one version; return that version.

        Args:
            into: arrays with the shapes and dtypes of the state's first ones; None: copy nothing.

        Raises:
            WorkerError: the worker has left; or whatever `update` has raised.
        """
        with self._lock:
            self._ensure_open()  # under the lock: a failed update leaves a broken state
            self._state.copy_to(into or [])
            return self.version

    def contribute(self, gradient: Vector, version: int) -> bool:
        """Send a gradient unless it is too old; return whether it was sent.

        A gradient is too old if the current version is later than `version` + the staleness. Waits
        while two contributions are under way, or while this worker catches up with the others.

        Args:
            gradient: numel elements of the worker's dtype, in any shape; copied.
            version: version of the weights it was computed from, as returned by `read`.

        Raises:
            TypeError, ValueError: wrong dtype or size.
            VersionTimeout: it could not be sent within the timeout; the message says why.
            WorkerError: the worker has left; or whatever `update` has raised.
        """
        if not isinstance(gradient, np.ndarray) or gradient.dtype != self._dtype:
            what = getattr(gradient, "dtype", type(gradient).__name__)
            raise TypeError(f"gradient is {what}, this worker's dtype is {self._dtype}: convert it")
        if gradient.size != self.numel:
            raise ValueError(f"gradient has {gradient.size} elements, this worker's {self.numel}")
        limit = time.monotonic() + self.timeout
        with self._changed:
            while True:
                self._ensure_open()
                if not self._session.behind:
                    late = self._lateness(version)
                    if late > self.staleness:
                        self._counts["stale"] += 1
                        return False
                    if self._session.can_contribute:
                        break
                if not self._changed.wait(limit - time.monotonic()):
                    raise VersionTimeout(self._why(f"not sent within {self.timeout:g} s"))
            self._staleness[late] += 1
            self._vector[: self.numel] = gradient.reshape(-1)
            self._send(counts=True)
        return True

    def wait_for(self, version: int, timeout: float | None = None) -> int:
        """Wait until the local weights have reached a version; return the version they have.

        Args:
            version: version to wait for; a later one is accepted.
            timeout: seconds to wait; None: the worker's timeout.

        Raises:
            VersionTimeout: the weights did not reach the version in time.
        """
        wait = self.timeout if timeout is None else arguments.seconds("timeout", timeout)
        limit = time.monotonic() + wait
        with self._changed:
            while self._version is None or round_distance(self._version, version) < 0:
                self._ensure_open()
                if not self._changed.wait(limit - time.monotonic()):
                    raise VersionTimeout(self._why(f"version {version} not made within {wait:g} s"))
            return self._version

    def stats(self) -> dict[str, Any]:
        """Return counts since the start.

        Gradients: `contributed`, `stale` ones that were not sent, and a histogram of the
        `staleness` of those sent. Versions `applied`, and the `contributions` in them. Snapshots:
        `snapshots_taken`, `snapshots_given`, and `snapshots_dropped` (peers cut off). How often
        this worker was `behind`, and `resets` of the job. Segments: `sent`, `received`, and
        `useless` ones. Requests: `helps`, `marks`, `rejoins`. With `check`, `digests` of the state
        by version.
        """
        with self._net:
            counts: dict[str, Any] = {**self._session.stats, **self._counts}
            counts["contributed"] = self._staleness.total()
            counts["staleness"] = dict(sorted(self._staleness.items()))
            counts["rank"], counts["version"] = self.rank, self.version
            counts["round_trip"] = self._session.round_trip.smoothed
            self._port.count_dropped()
            counts["rx_overflow"] = self._port.counters["rx_overflow"]
            counts["tx_failed"] = self._port.counters["tx_failed"]
            counts["snapshots_given"] = self._peers.given
            counts["snapshots_dropped"] = self._peers.dropped
            counts["digests"] = dict(self._digests)
        return counts

    def leave(self) -> None:
        """Leave the job and close this worker; other workers can no longer take its state."""
        if os.getpid() != self._process:
            return
        with self._changed:
            if self._is_leaving:
                return
            self._is_leaving = True
            if self._session.member and self._threads[0].is_alive():
                self._session.request(Action.LEAVE, None, time.monotonic())
                self._flush()
                self._changed.wait_for(lambda: not self._session.asks(Action.LEAVE), LEAVE_PATIENCE)
            self._left.set()
            self._changed.notify_all()
        os.eventfd_write(self._wake, 1)
        self._peers.close()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join()
        self._port.close()
        os.close(self._wake)

    close = leave

    # Internal: all called under `_net`

    def _lateness(self, version: int) -> int:
        """Return how many versions the current one is later than `version`; 0 if it is not.

        The current version is the last that has arrived in full here, applied or not. If the switch
        has made later ones, the current version is the last that is surely complete there. So a
        worker that lacks versions sends nothing until it has them, and does not drive the others
        further ahead of itself.
        """
        session = self._session
        whole = round_distance(session.version + session.backlog & ROUND_MASK, version)
        return max(0, whole, round_distance(session.newest, version) - VERSIONS_AHEAD)

    def _send(self, counts: bool) -> None:
        where = self._peers.where
        entry = self._directory.entry(self._session.rank, where, self._dtype, counts)
        self._vector[self.numel :] = entry
        self._session.contribute(self._vector)
        self._flush()
        os.eventfd_write(self._wake, 1)

    def _flush(self) -> None:
        with as_if_lost(self._counts):
            self._port.push(self._session.transmissions(time.monotonic()))

    def _ensure_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if os.getpid() != self._process:
            raise WorkerError("this worker belongs to the process that made it; make another here")
        if self._left.is_set():
            raise WorkerError("this AsynchronousWorker has left its job; make a new one")

    def _why(self, what: str) -> str:
        session = self._session
        silence = time.monotonic() - session.heard
        if session.halted:
            why = "the job is halted; a reset resumes it"
        elif silence > 2 * session.round_trip.ceiling:
            why = f"the switch at {self._session.switch} does not answer: is it running?"
        elif session.behind:
            why = "this worker is behind, and no other gives it a snapshot: are all running?"
        else:
            h = session.threshold
            why = f"at version {self.version}: do {h} contributions come? (H = {h})"
        return f"{what}: {why}"

    # Joining

    def _join(self) -> None:
        asked = began = time.monotonic()
        limit = began + self.timeout
        for thread in self._threads:
            thread.start()
        with self._changed:
            self._session.join(began)
            os.eventfd_write(self._wake, 1)
            while self._version is None:
                self._ensure_open()
                now = time.monotonic()
                refused = self._port.refused and now - began > REFUSED_PATIENCE
                if not self._session.member and (now >= limit or refused):
                    raise no_answer(self._session, self._port, now - began)
                if now >= limit:
                    raise TooFewWorkers(
                        f"{self._session.joined} of {self.num_workers} workers joined job "
                        f"{self.job} within {self.timeout:g} s, and no state to begin with was "
                        "found; are all of them running, with the same job number and switch?"
                    )
                pause = JOIN_PAUSE if self._session.rank == NO_RANK else WHO_PAUSE
                if self._session.member and now >= asked + pause:  # how many there are
                    self._session.join(asked := now)
                self._changed.wait(min(LOOK_PAUSE, limit - now))
        arguments.tell_of_clock(self._session.clock_behind, self._session.incarnation)
        # A quick first worker could finish and leave before the others have taken its state.
        while self._is_first and time.monotonic() < limit and not self._all_have_begun():
            with self._changed:
                self._ensure_open()
                self._greet()  # some may not know its address yet
                self._changed.wait(LOOK_PAUSE)

    def _all_have_begun(self) -> bool:
        """Whether all known workers have a state, taken from this worker or from one another."""
        found, all_asked = self._peers.survey()
        return all_asked and all(other.version is not None for other in found)

    # The thread that moves packets

    def _guard(self, work: Callable[[], None]) -> None:
        """Run a thread's work; keep its exception for the user's thread, which raises it."""
        try:
            work()
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()

    def _move_packets(self) -> None:
        session = self._session
        while not self._left.is_set():
            with self._net:
                deadline = session.deadline()
                more = session.may_send
            now = time.monotonic()
            until = now + LOOK_PAUSE if deadline is None else min(deadline, now + LOOK_PAUSE)
            ready = self._poller.poll(0.0 if more else max(0.0, until - now) * 1000)
            with self._changed:
                if self._left.is_set():
                    return
                if any(fd == self._wake for fd, _ in ready):
                    os.eventfd_read(self._wake)
                now = time.monotonic()
                with as_if_lost(self._counts):
                    for burst in self._port.pull():
                        session.receive(burst, now)
                deadline = session.deadline()
                if deadline is not None and deadline <= now:
                    with as_if_lost(self._counts):
                        session.handle_timer(now)
                self._flush()
                self._heed()
                self._changed.notify_all()

    def _heed(self) -> None:
        while (event := self._session.next_event()) is not None:
            match event:
                case Told(elements=elements):
                    self._directory.learn(elements)
                case Answered(action=Action.JOIN, status=status, ack=ack):
                    if status is not Status.OK:
                        hosts = environment.hosts(os.environ)
                        raise refused(self._session, Action.JOIN, status, ack, hosts)
                case WasReset():
                    self._counts["resets"] += 1

    # The thread that updates the weights

    def _update_weights(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_to_update)
                if self._left.is_set():
                    return
                behind = self._session.behind
                made = None if behind else self._session.next_made()
            if behind:
                self._catch_up()
            elif made is not None:
                self._apply(*made)

    def _has_to_update(self) -> bool:
        session = self._session
        if self._left.is_set():
            return True
        return session.member and (session.behind or session.backlog > 0)

    def _apply(self, version: int, vector: Vector) -> None:
        contributions = self._directory.contributions(vector[self.numel :])
        with self._lock:
            if contributions:  # otherwise the version holds only greetings
                self._state.touch()
                try:
                    self._update(vector[: self.numel], contributions, version)
                except BaseException as error:
                    self._failure = error
                    raise
                self._counts["applied"] += 1
                self._counts["contributions"] += contributions
            self._is_at(version)

    def _is_at(self, version: int) -> None:
        if self._check:
            self._digests[version] = self._state.digest()
        with self._changed:
            self._version = version
            self._changed.notify_all()

    # Behind

    def _catch_up(self) -> None:
        """Ask the others where they stand and take one step by the rules of `standing.py`."""
        with self._net:
            own = self._standing()
        found, all_asked = self._peers.survey()
        if own.version is None:  # only workers that greeted since the start are known
            all_asked &= len(found) >= self.num_workers - 1 and self._is_listed()
        way, whose = choose(own, found.keys(), all_asked)
        if way is Way.TAKE and self._take(found[whose]):
            return
        if way is Way.GO_ON:
            with self._lock, self._net:
                if self._session.behind:
                    self._is_first = own.version is None
                    version = self._session.newest
                    self._session.resume_at(version, time.monotonic())
                    self._is_at(version)
            return
        if own.version is None and self.rank != NO_RANK:
            self._greet()
        with self._changed:
            self._changed.wait_for(self._left.is_set, AGAIN_PAUSE)

    def _is_listed(self) -> bool:
        """Whether a version has listed this worker's address, so that others can take its state."""
        directory = self._directory
        if self.rank == NO_RANK:
            return False
        return self._peers.where in directory.addresses or self.rank >= directory.places

    def _greet(self) -> None:
        """Tell the others this worker's address by zeros that do not count as a contribution."""
        last, pause = self._greeted
        now = time.monotonic()
        with self._net:
            if now - last >= pause and self._session.can_contribute:
                self._vector[: self.numel] = 0
                self._send(counts=False)
                self._greeted = now, min(2 * pause, GREETING_CEILING)

    def _take(self, where: tuple[str, int]) -> bool:
        """Take the state of the worker at an address; return whether it could be had.

        Raises:
            WorkerError: the state there has another size.
        """
        offer = self._peers.state_of(where)
        if offer is None:
            return False
        version, state = offer.standing.version, offer.state
        assert version is not None
        if len(state) != self._state.nbytes:
            raise WorkerError(
                f"the state of the worker at {where} has {len(state)} bytes, this one's "
                f"{self._state.nbytes}; `state` must be of the same arrays in all workers"
            )
        with self._lock, self._net:
            self._state.unpack(state)
            self._session.resume_at(version, time.monotonic())
            self._counts["snapshots_taken"] += 1
            self._is_at(version)
        return True

    def _offer(self, wanted: bool) -> Offer:
        """Return this worker's standing and known addresses, and its packed state if `wanted`."""
        with self._lock, self._net:
            standing, mark = self._standing(), self._state.mark
            packs = wanted and standing.version is not None
            state = self._state.pack() if packs else b""
            return Offer(standing, self._directory.pack(), state, mark)

    def _standing(self) -> Standing:
        session = self._session
        # A version that has arrived and is not applied yet will still change its standing.
        at_rest = self._version is None or self._version == session.version
        if self._failure is not None:  # the state may be half of two versions
            return Standing(self._peers.identity, None, True)
        return Standing(self._peers.identity, self._version, session.behind and at_rest)
