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
from typing import Any

from .process import EPOCH, Task, chosen, current

_real_lock = threading.Lock
_real_rlock = threading.RLock
_real_join = threading.Thread.join
_real_start = threading._start_new_thread  # type: ignore[attr-defined]
_REAL = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter", "sleep")}

OURS = ("worker_lib", "iswitch", "threading", "queue")  # read virtual time in any case


class Lock:
    """A lock between threads of a virtual process."""

    def __init__(self) -> None:
        self._is_locked = False
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; wait for it in virtual time if `blocking`, at most `timeout` seconds."""
        task = current()
        if task is None:
            return self._acquire_really(blocking, timeout)
        process = task.process
        limit = None if timeout is None or timeout < 0 else process.now + timeout
        while self._is_locked:
            if not blocking or (limit is not None and process.now >= limit):
                return False
            self._waiting.append(task)
            process.wait(limit)
            if task in self._waiting:
                self._waiting.remove(task)
        self._is_locked = True
        return True

    def _acquire_really(self, blocking: bool, timeout: float) -> bool:
        """Take it from a thread in real time, such as one of C++."""
        limit = _REAL["monotonic"]() + timeout if timeout >= 0 else float("inf")
        while self._is_locked:
            if not blocking or _REAL["monotonic"]() >= limit:
                return False
            _REAL["sleep"](1e-4)
        self._is_locked = True
        return True

    def release(self) -> None:
        """Free the lock."""
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        if self._waiting:
            task = self._waiting.popleft()
            task.process.wake(task)

    def locked(self) -> bool:
        """Return whether a thread holds it."""
        return self._is_locked

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def install(real_clock: bool = False) -> None:
    """Give threads in virtual time these in place of Python's own.

    Args:
        real_clock: whether `time` shows programs real time; the library reads virtual time still.
    """
    if threading.Lock is not _real_lock:
        return  # it was called before
    _install_time(real_clock)
    threading.Lock = threading._allocate_lock = chosen(_real_lock, Lock)  # type: ignore
    threading.RLock = chosen(_real_rlock, threading._PyRLock)  # type: ignore
    threading._start_new_thread = _start_new_thread  # type: ignore[attr-defined]
    threading.Thread.join = _join  # type: ignore[method-assign]
    threading._time = queue.time = time.monotonic  # type: ignore[attr-defined]
    queue.SimpleQueue = chosen(queue.SimpleQueue, queue._PySimpleQueue)  # type: ignore


def _install_time(real_clock: bool) -> None:
    for name, offset in (("time", EPOCH), ("monotonic", 0), ("perf_counter", 0)):
        shown = _clock(_REAL[name], offset, real_clock)
        setattr(time, name, shown)
        setattr(time, f"{name}_ns", lambda shown=shown: round(shown() * 1e9))
    time.sleep = _sleeping(real_clock)  # type: ignore[assignment]


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
    return task.process.spawn(
        thread, lambda: function(*args, *more), lambda run: _real_start(run, ())
    )


def _join(self: threading.Thread, timeout: float | None = None) -> None:
    own = current()
    found = None if own is None else own.process.task_of(self)
    if own is not None and found is not None:
        own.process.join(found, None if timeout is None else own.process.now + max(0.0, timeout))
        if not found.is_done:
            return
    _real_join(self, timeout)
