"""The asynchronous algorithm of the paper's section 4: gradients and updates run concurrently.

The user's thread computes gradients (LGC), a second thread updates the local weights (LWU) with
every aggregate in the order of versions, and a third moves packets. No thread waits for another as
long as gradients are not older than the staleness allows.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from iswitch.core.format.wire import NO_RANK, Mode, Vector, round_distance
from iswitch.virtual.process import called, computed
from iswitch.watch.spans import spans
from worker_lib import arguments, environment, telling
from worker_lib.errors import TooFewWorkers, VersionTimeout
from worker_lib.opening import REFUSED_PATIENCE, Joining, Opening, no_answer
from worker_lib.protocol.terms import VersionTerms

from .directory import Directory
from .membership import LOOK_PAUSE, Membership
from .peers import Peers
from .state import State

Update = Callable[[Vector, int, int], object]

JOIN_PAUSE = 0.02  # seconds between two requests for a rank
WHO_PAUSE = 0.5  # seconds between two requests for the number of joined workers


class AsynchronousWorker(Joining):
    """A member of an asynchronous job.

    Args:
        switch: (host, port) of the switch.
        job: the job's number, 0..65535, equal in all workers.
        numel: elements of every gradient.
        num_workers: number of workers in the job; summing begins when all have joined.
        update: called as `update(total, contributions, version)` once for every version, in order,
            by the LWU thread under the worker's lock; it changes the arrays of `state` in place.
            `total` is the sum of `contributions` gradients, [numel], valid during the call only.
            The result must depend on these arguments and `state` alone.
        state: C-contiguous arrays, all that `update` reads and writes: weights first, then
            optimizer moments and so on. At the start all workers get the state of one of them.
        rank: this worker's number among all, see `Worker`; None: any.
        threshold: H, the number of contributions that make a version; None: one per member.
        staleness: S, the most versions that a gradient may be older than the current one.
        timeout: seconds that joining and every call may take.
        bind: local (host, port).
        key: the key of a keyed job, 1 to 64 bytes; None: no key.
        elements_per_segment: E; `Worker` has the default.
        offload: use segmentation offload where the machine supports it.
        dtype: element type of gradients: any of `Worker`'s except bool and pairs.
        check: keep a digest of the state at every version, for `stats()["digests"]`.

    Raises:
        SwitchUnreachable, BindError, Refused, TooFewWorkers: see `Worker`.
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
        dtype: arguments.ElementType = np.float32,
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
        self._state = State(state, check)
        if not callable(update):
            raise TypeError(f"update = {update!r}: pass a function (total, contributions, version)")
        self._update = update
        self._failed_update: BaseException | None = None
        self._spans = spans()
        self._directory = Directory(self.num_workers)
        whole = self.numel + self._directory.size
        shape = arguments.shape(whole, dtype, "sum", elements_per_segment, Mode.ASYNCHRONOUS)
        port, terms = opening.open(shape)
        self.shape = terms["shape"]
        self._dtype = shape.dtype.numpy
        ways = VersionTerms(**terms, threshold=threshold or 0, watch=self.numel)
        self._membership = Membership(port, ways, self._directory)
        self._session = self._membership.session
        self._changed = self._membership.changed
        self._stale = self._applied = self._contributions = 0
        self._staleness: Counter[int] = Counter()
        try:
            self._peers = Peers(self._membership, self._state, self._directory, self.num_workers)
        except OSError:
            self._membership.close()
            raise
        try:
            self._join()
        except BaseException:
            self.leave()
            raise

    # Called by the user's thread

    @property
    def rank(self) -> int:
        """Return this worker's number in the job, see `Worker.rank`."""
        return self._session.rank

    @property
    def version(self) -> int:
        """Return the version of the local weights."""
        return self._state.version or 0

    def read(self, into: Sequence[npt.NDArray[Any]] | None = None) -> int:
        """Copy the first arrays of the state to `into`, all at one version; return that version.

        Args:
            into: arrays with the shapes and dtypes of the state's first ones; None: copy nothing.

        Raises:
            TypeError, ValueError: `into` holds other arrays than the state begins with.
            WorkerError: the worker has left; or whatever `update` has raised.
        """
        with self._state.lock:
            self._membership.ensure_open()  # under the lock: a failed update breaks the state
            self._state.copy_to([] if into is None else into)
            called(again=False)
            return self.version

    def contribute(self, gradient: Vector, version: int) -> bool:
        """Send a gradient unless it is too old; return whether it was sent.

        A gradient is too old if the current version is later than `version` + the staleness; if the
        weights are still of that version, this waits up to 50 ms for newer ones. It also waits
        while two contributions are under way, or while this worker catches up with the others.

        Args:
            gradient: numel elements of the worker's dtype, in any shape; copied.
            version: version of the weights it was computed from, as returned by `read`.

        Raises:
            TypeError, ValueError: wrong dtype or size, or no version.
            VersionTimeout: it could not be sent within the timeout; the message says why.
            WorkerError: the worker has left; or whatever `update` has raised.
        """
        if not isinstance(gradient, np.ndarray) or gradient.dtype != self._dtype:
            what = getattr(gradient, "dtype", type(gradient).__name__)
            raise TypeError(f"gradient is {what}, this worker's dtype is {self._dtype}: convert it")
        if gradient.size != self.numel:
            raise ValueError(f"gradient has {gradient.size} elements, this worker's {self.numel}")
        version = arguments.version(version)
        computed()
        began = time.monotonic()
        try:
            sent = self._contribute(gradient, version, began + self.timeout)
            if sent and self._spans is not None:
                self._spans.end("contribute", (self.job, version), began, rank=self.rank)
            return sent
        finally:
            called()

    def _contribute(self, gradient: Vector, version: int, limit: float) -> bool:
        with self._changed:
            while True:
                self._membership.ensure_open()
                if round_distance(version, self.version) > 0:
                    hint = (
                        f"the weights are of version {self.version}; pass what read() has returned"
                    )
                    raise ValueError(f"version = {version}: {hint}")
                if not self._session.behind:
                    late = self._membership.lateness(version)
                    if late > self.staleness:
                        self._stale += 1
                        self._await_newer(version)
                        return False
                    if self._session.can_contribute:
                        break
                if not self._changed.wait(limit - time.monotonic()):
                    raise VersionTimeout(self._why(f"not sent within {self.timeout:g} s"))
            self._staleness[late] += 1
            entry = self._peers.entry(counts=True)
            self._membership.contribute(gradient.reshape(-1), entry)
        return True

    def _await_newer(self, version: int) -> None:
        """Wait a little while the weights are still of this version.

        A gradient of them would be too old, too, and computing it would take time from the threads
        that bring the next version.
        """
        ended = self._membership.has_ended
        self._changed.wait_for(lambda: self._state.version != version or ended(), LOOK_PAUSE)
        self._membership.ensure_open()

    def wait_for(self, version: int, timeout: float | None = None) -> int:
        """Wait until the local weights have reached a version; return the version they have.

        Args:
            version: version to wait for; a later one is accepted.
            timeout: seconds to wait; None: the worker's timeout.

        Raises:
            VersionTimeout: the weights did not reach the version in time.
            ValueError: an argument out of its range.
        """
        version = arguments.version(version, more=1)
        wait = self.timeout if timeout is None else arguments.seconds("timeout", timeout)
        limit = time.monotonic() + wait
        with self._changed:
            while self._state.version is None or round_distance(self.version, version) < 0:
                self._membership.ensure_open()
                if not self._changed.wait(limit - time.monotonic()):
                    raise VersionTimeout(self._why(f"version {version} not made within {wait:g} s"))
            return self.version

    def stats(self) -> dict[str, Any]:
        """Return counts since the start.

        Gradients: `contributed`, `stale` ones that were not sent, and a histogram of the
        `staleness` of those sent. Versions `applied`, and the `contributions` in them. Snapshots:
        `snapshots_taken`, `snapshots_given`, and `snapshots_dropped` (peers cut off). How often
        this worker was `behind`, and `resets` of the job. Segments: `sent`, `received`, and
        `useless` ones. Requests: `helps`, `marks`, `rejoins`. With `check`, `digests` of the state
        by version.
        """
        membership, session, port = self._membership, self._session, self._membership.port
        with self._changed:
            port.count_dropped()
            return {
                **session.stats,
                **membership.counts,
                "contributed": self._staleness.total(),
                "stale": self._stale,
                "staleness": dict(sorted(self._staleness.items())),
                "applied": self._applied,
                "contributions": self._contributions,
                "rank": self.rank,
                "version": self.version,
                "round_trip": session.round_trip.smoothed,
                "way": port.way,
                "rx_overflow": port.counters["rx_overflow"],
                "tx_failed": port.counters["tx_failed"],
                "snapshots_taken": self._peers.taken,
                "snapshots_given": self._peers.server.given,
                "snapshots_dropped": self._peers.server.dropped,
                "digests": dict(self._state.digests),
            }

    def leave(self) -> None:
        """Leave the job and close this worker; other workers can no longer take its state.

        So it waits before, up to the timeout, until those that are far behind have taken it, unless
        an error ends its `with` block.

        Raises:
            BaseException: whatever `update` has raised, if no call has raised it yet.
        """
        membership = self._membership
        try:
            if not membership.is_told:
                self._peers.see_off(time.monotonic() + self.timeout)
        finally:
            if membership.leave():
                self._peers.server.close()
                membership.close()
        if self._failed_update is not None and not membership.is_told:
            membership.is_told = True
            raise self._failed_update

    close = leave

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:  # the program's own error is the one to tell
            self._membership.is_told = True
        super().__exit__(*error)

    def _why(self, what: str) -> str:
        return f"{what}: {self._membership.why(self.version)}"

    # Joining

    def _join(self) -> None:
        asked = began = time.monotonic()
        limit = began + self.timeout
        is_told = False  # that another worker has the rank
        session, port = self._session, self._membership.port
        self._membership.start(self._update_weights)
        with self._changed:
            session.join(began)
            self._membership.wake()
            while self._state.version is None or session.rank == NO_RANK:
                self._membership.ensure_open()
                now = time.monotonic()
                if session.taken is not None and now >= began + telling.SILENT and not is_told:
                    is_told = True
                    hosts = environment.hosts(os.environ)
                    telling.of_rank(self.job, session.taken, hosts, limit - now)
                refused = port.refused and now - began > REFUSED_PATIENCE
                if not session.member and (now >= limit or refused):
                    raise no_answer(session, port, now - began)
                if now >= limit and self._state.version is not None:
                    raise TooFewWorkers.without_rank(self.job, self.timeout)
                if now >= limit:
                    raise TooFewWorkers(
                        f"{session.joined} of {self.num_workers} workers joined job {self.job} "
                        f"within {self.timeout:g} s, and no state to begin with was found; are all "
                        "of them running, with the same job, switch and num_workers?"
                    )
                pause = JOIN_PAUSE if session.rank == NO_RANK else WHO_PAUSE
                if session.member and now >= asked + pause:  # how many there are
                    session.join(asked := now)
                self._changed.wait(min(LOOK_PAUSE, limit - now))
        telling.of_clock(session.clock_behind, session.incarnation)
        # A quick first worker could finish and leave before the others have taken its state.
        peers = self._peers
        while peers.is_first and time.monotonic() < limit and not peers.all_have_begun():
            with self._changed:
                self._membership.ensure_open()
                peers.greet()  # some may not know its address yet
                self._changed.wait(LOOK_PAUSE)

    # The thread that updates the weights

    def _update_weights(self) -> None:
        session, has_left = self._session, self._membership.left.is_set
        while True:
            with self._changed:
                while not (has_left() or (session.member and (session.behind or session.backlog))):
                    self._changed.wait()
                if has_left():
                    return
                behind = session.behind
                made = None if behind else session.next_made()
            if behind:
                self._peers.catch_up()
            elif made is not None:
                self._apply(*made)

    def _apply(self, version: int, vector: Vector) -> None:
        contributions = self._directory.contributions(vector[self.numel :])
        with self._state.lock:
            if contributions:  # otherwise the version holds only greetings
                self._state.touch()
                began = time.monotonic()
                try:
                    self._update(vector[: self.numel], contributions, version)
                except BaseException as error:
                    self._failed_update = self._membership.failure = error
                    raise
                if self._spans is not None:
                    self._spans.end("update", (self.job, version), began, rank=self.rank)
                self._applied += 1
                self._contributions += contributions
            self._state.reach(version)
        self._membership.notify()
