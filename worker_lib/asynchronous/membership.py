"""A session of versions and its socket, which a thread of its own serves."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

import numpy as np

from iswitch.core.format.wire import (
    ROUND_MASK,
    VERSIONS_AHEAD,
    Action,
    Status,
    Vector,
    round_distance,
)
from iswitch.ports.udp import UdpPort
from worker_lib import arguments, environment
from worker_lib.errors import WorkerError, as_if_lost
from worker_lib.opening import refused
from worker_lib.protocol.events import Answered, Told, WasReset
from worker_lib.protocol.terms import VersionTerms
from worker_lib.protocol.versions import AsynchronousSession

from .directory import Directory

LOOK_PAUSE = 0.05  # longest wait for packets or for another thread, in seconds
LEAVE_PATIENCE = 1.0  # seconds for an answer to Leave


class Membership:
    """Moves the packets of a session, in its own thread.

    Other threads use the session while they hold `changed`, and are notified by it.

    Args:
        port: the socket, which it takes over.
        terms: terms of the session.
        directory: learns the addresses of other workers from the versions.

    Attributes:
        changed: condition around the session; notified of packets, versions and failures.
        left: set when the worker has left.
        failure: the exception that ended a thread, for the user's thread to raise; None: both run.
        counts: number of `resets` of the job, and of times that memory ran out (`no_memory`).

    Raises:
        MemoryError: there is no memory for such vectors; the socket is closed.
    """

    def __init__(self, port: UdpPort, terms: VersionTerms, directory: Directory) -> None:
        self.port = port
        self._directory = directory
        try:
            self.session = AsynchronousSession(terms, arguments.incarnation())
        except MemoryError:
            port.close()
            raise arguments.too_large(terms.shape) from None
        self.changed = threading.Condition(threading.RLock())
        self.left = threading.Event()
        self.failure: BaseException | None = None
        self.is_told = False  # whether a call has raised that
        self.counts = {"resets": 0, "no_memory": 0}
        self._process = os.getpid()
        self._is_leaving = False
        self._looks_at = 0.0  # when the thread looks at the session, whatever comes
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._poller = select.poll()
        self._poller.register(port, select.POLLIN)
        self._poller.register(self._wake, select.POLLIN)
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[], None]) -> None:
        """Start the thread that moves packets, and another one for `work`."""
        for name, target in (("packets", self._move_packets), ("LWU", work)):
            thread = threading.Thread(
                target=self._guard, args=(target,), daemon=True, name=f"iswitch {name}"
            )
            self._threads.append(thread)
            thread.start()

    def _guard(self, work: Callable[[], None]) -> None:
        """Run a thread's work; keep its exception for the user's thread, which raises it."""
        try:
            work()
        except BaseException as error:
            with self.changed:
                self.failure = self.failure or error
                self.changed.notify_all()

    # Called by other threads

    def ensure_open(self) -> None:
        """Raise the exception that ended a thread, or a WorkerError if this worker has left."""
        if self.failure is not None:
            self.is_told = True
            raise self.failure
        if os.getpid() != self._process:
            raise WorkerError("this worker belongs to the process that made it; make another here")
        if self.left.is_set():
            raise WorkerError("this AsynchronousWorker has left its job; make a new one")

    def has_ended(self) -> bool:
        """Return whether this worker has left, a thread has failed, or this is another process."""
        gone = self.left.is_set() or os.getpid() != self._process
        return gone or self.failure is not None

    def wake(self) -> None:
        """Make the thread look at the session at once."""
        os.eventfd_write(self._wake, 1)

    def notify(self) -> None:
        """Tell all threads that something has changed."""
        with self.changed:
            self.changed.notify_all()

    def contribute(self, values: Vector | int, extra: Vector) -> None:
        """Send `values`, which are copied, and the extra elements behind them."""
        if not isinstance(values, np.ndarray):
            values = np.full(self.session.shape.numel - len(extra), values, extra.dtype)
        self.session.contribute(values, extra)
        self._flush()
        deadline = self.session.deadline()
        if self.session.may_send or (deadline is not None and deadline < self._looks_at):
            self.wake()

    def lateness(self, version: int) -> int:
        """Return how many versions the current one is later than `version`; 0 if it is not.

        The current version is the last that has arrived in full here, applied or not. If the switch
        has made later ones, the current version is the last that is surely complete there. So a
        worker that lacks versions sends nothing until it has them, and does not drive the others
        further ahead of itself.
        """
        session = self.session
        whole = round_distance(session.version + session.backlog & ROUND_MASK, version)
        return max(0, whole, round_distance(session.newest, version) - VERSIONS_AHEAD)

    def why(self, version: int) -> str:
        """Say why no new version comes after `version`, that of the local weights."""
        session = self.session
        silence = time.monotonic() - session.heard
        if session.halted:
            return "the job is halted; a reset resumes it"
        if silence > 2 * session.round_trip.ceiling:
            return f"the switch at {session.switch} does not answer: is it running?"
        if session.behind:
            return "this worker is behind, and no other gives it a snapshot: are all running?"
        h = session.threshold
        return f"at version {version}: do {h} contributions come? (H = {h})"

    def leave(self) -> bool:
        """Leave the job and end the threads; return False after a fork or an earlier call."""
        if os.getpid() != self._process:
            return False
        with self.changed:
            if self._is_leaving:
                return False
            self._is_leaving = True
            if self.session.member and self._threads and self._threads[0].is_alive():
                self.session.request(Action.LEAVE, None, time.monotonic())
                self._flush()
                self.changed.wait_for(lambda: not self.session.asks(Action.LEAVE), LEAVE_PATIENCE)
            self.left.set()
            self.changed.notify_all()
        self.wake()
        return True

    def close(self) -> None:
        """Wait for the threads to end, and close the socket."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self.port.close()
        os.close(self._wake)

    # The thread that moves packets

    def _move_packets(self) -> None:
        session = self.session
        while not self.left.is_set():
            with self.changed:
                deadline, now = session.deadline(), time.monotonic()
                until = now + LOOK_PAUSE if deadline is None else min(deadline, now + LOOK_PAUSE)
                self._looks_at = until
                at_once = session.may_send or self.port.holds()
            ready = self._poller.poll(0.0 if at_once else max(0.0, until - now) * 1000)
            with self.changed:
                if self.left.is_set():
                    return
                if any(fd == self._wake for fd, _ in ready):
                    os.eventfd_read(self._wake)
                before = self._awaited()
                now = time.monotonic()
                with as_if_lost(self.counts):
                    for burst in self.port.pull():
                        session.receive(burst, now)
                deadline = session.deadline()
                if deadline is not None and deadline <= now:
                    with as_if_lost(self.counts):
                        session.handle_timer(now)
                self._flush()
                self._heed()
                if self._awaited() != before:
                    self.changed.notify_all()

    def _awaited(self) -> tuple[object, ...]:
        """Return all for which other threads wait: most packets change nothing of it."""
        session = self.session
        place = session.member, session.rank, session.joined, session.gathered, session.halted
        versions = session.behind, session.version, session.backlog, session.newest
        return *place, *versions, session.can_contribute, session.asks(Action.LEAVE)

    def _flush(self) -> None:
        with as_if_lost(self.counts):
            self.port.push(self.session.transmissions(time.monotonic()))

    def _heed(self) -> None:
        while (event := self.session.next_event()) is not None:
            match event:
                case Told(elements=elements):
                    self._directory.learn(elements)
                case Answered(action=Action.JOIN, status=status, ack=ack):
                    if status is not Status.OK:
                        hosts = environment.hosts(os.environ)
                        raise refused(self.session, Action.JOIN, status, ack, hosts)
                case WasReset():
                    self.counts["resets"] += 1
