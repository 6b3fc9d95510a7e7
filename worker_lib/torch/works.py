"""Runs collectives one after the other in a separate thread, while the caller continues."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.futures import Future

from iswitch.virtual.process import current


class Work(distributed.Work):
    """One collective that was issued: torch's handle of it.

    Args:
        run: does the collective, in the thread.
        result: value of the future once it is done.
        tensors: the tensors that it reads and writes.
        whom: describes the workers for which it waits.
    """

    def __init__(
        self,
        run: Callable[[], None],
        result: Any,
        tensors: Sequence[torch.Tensor],
        whom: Callable[[], str],
    ) -> None:
        super().__init__()
        self._run = run
        self._result = result
        self._whom = whom
        self._error: BaseException | None = None
        self._done = threading.Event()
        devices = {tensor.device for tensor in tensors if tensor.device.type != "cpu"}
        # torch's C++ would take an exception that is set for a tensor; what a callback raises is an
        # error there, too.
        self._ended: Future[Any] = Future(devices=list(devices))
        self._future: Future[Any] = self._ended.then(self._outcome)

    def run(self) -> None:
        """Do the collective; keep its exception for `wait` and the future."""
        try:
            self._run()
        except Exception as error:
            self._error = error
        del self._run
        self._done.set()
        self._ended.set_result(self._result)

    def _outcome(self, _: Any) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the collective is done, at most `timeout`; zero: without limit.

        Raises:
            torch.distributed.DistBackendError: a rank is lost, or the time is up. After this
                wait's own timeout the collective continues.
        """
        seconds = timeout.total_seconds()
        if not self._done.wait(seconds if seconds > 0 else None):
            raise distributed.DistBackendError(f"not done within {seconds:g} s: {self._whom()}")
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """Wait until the collective is done."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the collective has ended, with or without an error."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Return whether the collective has ended without an error."""
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Return the exception of the collective; None: there is none."""
        return self._error

    def result(self) -> Any:
        """Wait until the collective is done; return its result, the tensors."""
        self.wait()
        return self._result

    def get_future(self) -> Future[Any]:
        """Return a future of the tensors."""
        return self._future

    getFuture = get_future  # C++ looks it up


class Works:
    """Takes works from one thread or several and runs them in the order in which they came."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # nothing comes after the end
        self._ended = False
        self._thread = threading.Thread(
            target=_run_all, args=(self._queue,), name=name, daemon=True
        )
        self._thread.start()

    def issue(self, work: Work) -> Work:
        """Queue a work; it runs when all earlier ones are done.

        Raises:
            torch.distributed.DistBackendError: `stop` has been called: nobody would run it.
        """
        with self._lock:
            if self._ended:
                raise distributed.DistBackendError(
                    "this group has ended; issue collectives before its shutdown() or close(), or "
                    "make another one"
                )
            if current() is None:
                self._queue.put(work)
                return work
        work.run()  # in virtual time at once: C++ waits for futures without telling the clock
        return work

    def stop(self, timeout: float | None = None) -> bool:
        """Run the issued works, then end the thread; return whether it ended in time.

        A call in that thread returns at once: it comes when the last reference to a group dies.
        Issued works refer to the group, so none is left then.
        """
        with self._lock:
            self._ended = True
            self._queue.put(None)
        if threading.current_thread() is self._thread:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()


def _run_all(works: queue.SimpleQueue[Work | None]) -> None:
    while (work := works.get()) is not None:
        work.run()
        del work  # and the tensors with it
