"""Threads, locks and clocks for threads in virtual time; `polling.py` waits for sockets.

`install` puts them in place of those of Python's modules. Each decides by the calling thread: what
a thread in real time makes, and what it calls, is real.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .patches import Patches, chosen, either
from .process import EPOCH, Task, current

_real_lock = threading.Lock
_real_join = threading.Thread.join
_real_start = threading._start_new_thread  # type: ignore[attr-defined]
_REAL = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter", "sleep")}

OURS = ("worker_lib", "iswitch", "threading", "queue")  # read virtual time in any case


class Lock:
    """A lock between threads of a virtual process; threads in real time may wait for it, too."""

    def __init__(self) -> None:
        self._lock = _real_lock()
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; wait for it in virtual time if `blocking`, at most `timeout` seconds."""
        task = current()
        if task is None:
            return self._lock.acquire(blocking, timeout)
        process = task.process
        limit = None if timeout is None or timeout < 0 else process.now + timeout
        while not self._lock.acquire(blocking=False):
            if not blocking or (limit is not None and process.now >= limit):
                return False
            self._waiting.append(task)
            try:
                process.wait(limit)
            except SystemExit:  # the run is over; who held the lock may have let it go first
                if not self._lock.acquire(blocking=False):
                    raise
                return True
            finally:
                if task in self._waiting:
                    self._waiting.remove(task)
        return True

    def release(self) -> None:
        """Free the lock."""
        self._lock.release()
        if self._waiting:
            task = self._waiting.popleft()
            task.process.wake(task)

    def locked(self) -> bool:
        """Return whether a thread holds it."""
        return self._lock.locked()

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def install(patches: Patches, real_clock: bool = False) -> None:
    """Give threads in virtual time these in place of Python's own.

    Args:
        patches: puts them in place.
        real_clock: whether `time` shows programs real time; the library reads virtual time still.
    """
    _install_time(patches, real_clock)
    lock = chosen(_real_lock, Lock)
    simple = queue.SimpleQueue
    patches.put(threading, "Lock", lock)
    patches.put(threading, "_allocate_lock", lock)
    patches.put(threading, "RLock", chosen(threading.RLock, threading._PyRLock))  # type: ignore
    patches.put(threading, "_start_new_thread", _start_new_thread)
    patches.put(threading.Thread, "join", _join)
    patches.put(threading, "_time", time.monotonic)
    patches.put(queue, "time", time.monotonic)
    patches.put(queue, "SimpleQueue", either(simple, queue._PySimpleQueue, (simple,)))  # type: ignore


def _install_time(patches: Patches, real_clock: bool) -> None:
    for name, offset in (("time", EPOCH), ("monotonic", 0), ("perf_counter", 0)):
        shown = _clock(_REAL[name], offset, real_clock)
        patches.put(time, name, shown)
        patches.put(time, f"{name}_ns", lambda shown=shown: round(shown() * 1e9))
    patches.put(time, "sleep", _sleeping(real_clock))


def _is_virtual(real_clock: bool) -> bool:
    """Return whether the caller's caller is shown virtual time."""
    if current() is None:
        return False
    if not real_clock:
        return True
    caller = sys._getframe(2).f_globals.get("__name__", "")
    return caller.partition(".")[0] in OURS


def _clock(real: Callable[[], float], offset: int, real_clock: bool) -> Callable[[], float]:
    def read() -> float:
        task = current()
        if task is None or not _is_virtual(real_clock):
            return real()
        return offset + task.process.clock()

    return read


def _sleeping(real_clock: bool) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        task = current()
        if task is None or not _is_virtual(real_clock):
            _REAL["sleep"](seconds)
        else:
            task.process.sleep(seconds)

    return sleep


def _start_new_thread(function: Callable[..., Any], args: tuple[Any, ...], *more: Any) -> Any:
    task = current()
    if task is None:
        return _real_start(function, args, *more)
    thread = getattr(function, "__self__", None)
    if thread is not None:
        thread.run = _ending(thread.run)
    return task.process.spawn(
        thread, lambda: function(*args, *more), lambda run: _real_start(run, ())
    )


def _ending(run: Callable[[], None]) -> Callable[[], None]:
    """Let a thread end by SystemExit without a word, whatever hook shows exceptions of threads."""

    def quiet() -> None:
        with suppress(SystemExit):
            run()

    return quiet


def _join(self: threading.Thread, timeout: float | None = None) -> None:
    own = current()
    found = None if own is None else own.process.task_of(self)
    if own is not None and found is not None:
        own.process.join(found, None if timeout is None else own.process.now + max(0.0, timeout))
        if not found.is_done:
            return
    _real_join(self, timeout)
