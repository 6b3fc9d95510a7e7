"""Requests of non-blocking collectives."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

T = TypeVar("T")


class Request:
    """A collective that has been issued: wait for it, or ask whether it is done.

    Buffers belong to the collective until then. A status, which mpi4py would fill, is ignored.

    Args:
        future: the collective in its thread; None: the null request, which is done.
    """

    def __init__(self, future: Future[None] | None = None) -> None:
        self._future = future

    def Wait(self, status: object = None) -> bool:
        """Wait until the collective is done; return True.

        Raises:
            MpiError, TypeError, ValueError: it has failed.
        """
        del status
        if self._future is not None:
            self._future.result()
        return True

    def Test(self, status: object = None) -> bool:
        """Return whether the collective is done; raise its error if it has failed."""
        del status
        return self._future is None or (self._future.done() and self.Wait())

    def wait(self, status: object = None) -> None:
        """Wait until the collective is done."""
        self.Wait(status)

    def test(self, status: object = None) -> tuple[bool, None]:
        """Return whether the collective is done, and None, as buffers hold its result."""
        return self.Test(status), None

    def Free(self) -> None:
        """Let the collective finish by itself."""
        self._future = None

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: object = None) -> bool:
        """Wait until all are done; return True."""
        del statuses
        return all(request.Wait() for request in requests)

    @classmethod
    def Testall(cls, requests: Sequence[Request], statuses: object = None) -> bool:
        """Return whether all are done."""
        del statuses
        return all(request.Test() for request in requests)

    @classmethod
    def Waitany(cls, requests: Sequence[Request], status: object = None) -> int:
        """Wait until one is done; return its index."""
        futures = [one._future for one in requests if one._future is not None]
        if len(futures) == len(requests):
            wait(futures, return_when=FIRST_COMPLETED)
        index = next(i for i, request in enumerate(requests) if request.Test())
        requests[index].Wait(status)
        return index

    def __bool__(self) -> bool:
        return self._future is not None


class Turns:
    """Runs the non-blocking collectives of a communicator in their order, in a thread of its own.

    The thread begins with the first of them; from then on blocking ones take their turn there, too.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._queue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # one call at a time

    def issue(self, run: Callable[[], None]) -> Request:
        """Queue a collective; it runs when all earlier ones are done."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_run_all, args=(self._queue,), name="mpi", daemon=True
                )
                self._thread.start()
            future: Future[None] = Future()
            self._queue.put((future, run))
            return Request(future)

    def do(self, run: Callable[[], T]) -> T:
        """Run a collective after all earlier ones; return its result."""
        with self._lock:
            if self._thread is None:
                return run()
            future: Future[T] = Future()
            self._queue.put((future, run))
        return future.result()

    def stop(self, timeout: float) -> bool:
        """Run what has been issued, then end the thread; return whether it ended in time."""
        if self._thread is None:
            return True
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()


def _run_all(issued: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (one := issued.get()) is not None:
        future, run = one
        try:
            future.set_result(run())
        except Exception as error:
            future.set_exception(error)
        del future, run, one
