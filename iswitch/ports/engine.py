"""Moves packets between ports and a switch, by the real clock, until told to stop."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, Protocol, TypeVar

from iswitch.core.format.times import earlier

from .port import Port

SHORT_OF_MEMORY = 0.001  # seconds until a turn that lacked memory is tried again; doubles
LONGEST_PAUSE = 0.1

In = TypeVar("In")
Out = TypeVar("Out")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)


class Machine(Protocol[In_contra, Out_co]):
    """A sans-I/O object with time as an argument, such as a Switch or a Chassis.

    The caller must send each result before it asks the machine for more.
    """

    def receive(self, came: In_contra, now: float, /) -> Iterable[Out_co]:
        """Handle packets; yield the packets to send in response."""

    def deadline(self) -> float | None:
        """Return the time at which to call `handle_timer`, in seconds; None: not at all."""

    def handle_timer(self, now: float, /) -> Iterable[Out_co]:
        """Do the work that is due now; yield the packets to send."""


class Engine(Generic[In, Out]):
    """Runs a machine on a port.

    Args:
        machine: handles the packets.
        port: brings the packets, and sends the results.
        clock: returns monotonic seconds.
        spin: seconds to poll for packets before sleeping. This saves the time to wake up (10 us or
            more) at the price of a busy core.
    """

    def __init__(
        self,
        machine: Machine[In, Out],
        port: Port[In, Out],
        clock: Callable[[], float] = time.monotonic,
        spin: float = 0.0,
    ) -> None:
        self.machine = machine
        self.port = port
        self.clock = clock
        self.spin = spin

        self.given_up = 0  # turns of the loop that lacked memory
        self._stopping = False
        self._calls: deque[Callable[[], None]] = deque()
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def stop(self) -> None:
        """Make `run` return soon; may be called from a signal handler or another thread."""
        self._stopping = True
        self._rouse()

    def call(self, function: Callable[[], None]) -> None:
        """Have `run` call a function once, between two turns; for any thread."""
        self._calls.append(function)
        self._rouse()

    def _rouse(self) -> None:
        if self._waker >= 0:
            with suppress(OSError):  # the pipe is full, so `run` wakes up anyway; or it has ended
                os.write(self._waker, b"\0")

    def run(self) -> None:
        """Serve until stopped. An engine can run only once."""
        try:
            with self._woken_by_signals():
                self._serve()
        finally:
            for end in (self._wake, self._waker):
                os.close(end)
            self._wake = self._waker = -1

    @contextmanager
    def _woken_by_signals(self) -> Iterator[None]:
        """Make every signal in the `with` block end the main thread's wait for packets.

        Otherwise a signal just before that wait, or to a library's thread, would be handled only
        after the next packet.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)

    def _serve(self) -> None:
        port, clock = self.port, self.clock
        waited_for = (port.fileno(), self._wake)
        idle_since = clock()
        pause = 0.0
        while not self._stopping:
            for _ in range(len(self._calls)):
                self._calls.popleft()()
            now = clock()
            try:
                busy, deadline = self._move(now)
            except MemoryError:  # the packets under way are lost, as if by the network
                self.given_up += 1
                pause = min(max(2 * pause, SHORT_OF_MEMORY), LONGEST_PAUSE)
                self._sleep((self._wake,), pause)
                continue
            pause = 0.0
            if busy:
                idle_since = now
            elif now - idle_since >= self.spin:
                due = earlier(deadline, port.deadline())
                # To the microsecond; poll(2) would be up to a millisecond late.
                self._sleep(waited_for, None if due is None else max(0.0, due - now))

    def _sleep(self, waited_for: tuple[int, ...], seconds: float | None) -> None:
        """Wait until something can be read, for `seconds` at most."""
        if self._wake in select.select(waited_for, (), (), seconds)[0]:
            os.read(self._wake, 4096)

    def _move(self, now: float) -> tuple[bool, float | None]:
        """Move packets that have come; return whether any had, and when the timer is due."""
        machine, port = self.machine, self.port
        busy = False
        lacked = False
        for came in port.pull():
            busy = True
            try:
                port.push(machine.receive(came, now))
            except MemoryError:  # handle the other packets that have come
                lacked = True
        if lacked:
            raise MemoryError
        deadline = machine.deadline()
        if deadline is not None and deadline <= now:
            port.push(machine.handle_timer(now))
        return busy, deadline
