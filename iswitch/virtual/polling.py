"""`select.poll`, `select.epoll` and `selectors` for threads in virtual time."""

from __future__ import annotations

import select
import selectors
from collections.abc import Iterable
from typing import Any

from .patches import Patches, chosen, either
from .process import Process, current
from .streams import VirtualSocket

_real_poll, _real_select = select.poll, select.select
_EVENTS = select.POLLIN, select.POLLOUT, select.POLLPRI  # of the lists of `select.select`


class Poll:
    """Waits for ports and sockets in virtual time; files are looked at before the process waits."""

    def __init__(self) -> None:
        self._ports: set[int] = set()  # numbers
        self._sockets: dict[int, tuple[VirtualSocket, int]] = {}  # by descriptor: events, too
        self._files = _real_poll()
        self._count = 0  # of files

    def register(self, thing: Any, events: int = select.POLLIN | select.POLLOUT) -> None:
        """Watch a port, a socket or a file, or the descriptor of one."""
        task = current()
        assert task is not None
        if isinstance(thing, VirtualSocket):
            self._sockets[thing.fileno()] = thing, events
        elif (number := getattr(thing, "virtual", None)) is not None:
            self._ports.add(number)
        elif (sock := task.process.sockets.get(thing)) is not None:
            self._sockets[thing] = sock, events
        else:
            self._files.register(thing, events)
            self._count += 1

    def modify(self, thing: Any, events: int) -> None:
        """Watch a socket or a file for something else."""
        fd = _descriptor(thing)
        if fd in self._sockets:
            self._sockets[fd] = self._sockets[fd][0], events
        else:
            self._files.modify(thing, events)

    def unregister(self, thing: Any) -> None:
        """Watch a socket or a file no more."""
        fd = _descriptor(thing)
        if self._sockets.pop(fd, None) is None:
            self._files.unregister(thing)
            self._count -= 1

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """Wait at most `timeout` milliseconds; return what is ready."""
        task = current()
        assert task is not None
        process = task.process
        limit = None if timeout is None or timeout < 0 else process.now + timeout / 1000
        look = task, self._is_readable
        while not (ready := self._look(process)):
            if limit is not None and process.now >= limit:
                break
            if self._count:
                process.looks.append(look)
            heard = [
                one.virtual
                for one, events in self._sockets.values()
                if events & select.POLLIN or one.awaits
            ]
            process.wait(limit, {port: 1 for port in (*self._ports, *heard) if port is not None})
            if self._count:
                process.looks.remove(look)
        return ready

    def _look(self, process: Process) -> list[tuple[int, int]]:
        ready = [(number, select.POLLIN) for number in self._ports if process.inbox.get(number)]
        for fd, (sock, events) in self._sockets.items():
            found = select.POLLOUT * sock.can_write | select.POLLIN * sock.can_read
            if found & events:
                ready.append((fd, found & events))
        return ready + self._files.poll(0) if self._count else ready

    def _is_readable(self) -> bool:
        return bool(self._files.poll(0))


class Epoll(Poll):
    """Waits as `select.epoll` does, whose times are in seconds; level-triggered."""

    def __init__(self, sizehint: int = -1, flags: int = 0) -> None:  # noqa: ARG002
        super().__init__()
        self.closed = False

    def poll(
        self,
        timeout: float | None = None,
        maxevents: int = -1,  # noqa: ARG002
    ) -> list[tuple[int, int]]:
        """Wait at most `timeout` seconds; return what is ready."""
        return super().poll(None if timeout is None else timeout * 1000)

    def close(self) -> None:
        """Forget all."""
        self.__init__()  # type: ignore[misc]
        self.closed = True

    def __enter__(self) -> Epoll:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SelectorsPoll(Poll):
    """Waits for selectors; in real time where there is no socket, but pipes of other processes."""

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """Wait at most `timeout` milliseconds; return what is ready."""
        return super().poll(timeout) if self._sockets else self._files.poll(timeout)


def _selectors_select(
    readable: Iterable[int],
    writable: Iterable[int],
    others: Iterable[int],
    timeout: float | None = None,
) -> tuple[list[int], ...]:
    """Wait as `SelectorsPoll` does."""
    task = current()
    lists = list(readable), list(writable), list(others)
    if task is None or not any(task.process.sockets.get(fd) for fds in lists for fd in fds):
        return _real_select(*lists, timeout)
    return _select(*lists, timeout)


def _select(
    readable: Iterable[Any],
    writable: Iterable[Any],
    others: Iterable[Any],
    timeout: float | None = None,
) -> tuple[list[Any], ...]:
    """Wait as `select.select` does."""
    lists = list(readable), list(writable), list(others)
    if current() is None:
        return _real_select(*lists, timeout)
    poll, events = Poll(), dict[int, int]()
    for things, event in zip(lists, _EVENTS, strict=True):
        for fd in map(_descriptor, things):
            events[fd] = events.get(fd, 0) | event
    for fd, some in events.items():
        poll.register(fd, some)
    ready = dict(poll.poll(None if timeout is None else timeout * 1000))
    hung = select.POLLHUP | select.POLLERR  # of a file: both reading and writing tell
    return tuple(
        [thing for thing in things if ready.get(_descriptor(thing), 0) & (event | more)]
        for things, event, more in zip(lists, _EVENTS, (hung, hung, 0), strict=True)
    )


def _descriptor(thing: Any) -> int:
    return thing if isinstance(thing, int) else thing.fileno()


def install(patches: Patches) -> None:
    """Give threads in virtual time these in place of Python's own."""
    epoll, poll = either(select.epoll, Epoll), chosen(_real_poll, SelectorsPoll)
    patches.put(select, "select", _select)
    patches.put(select, "poll", chosen(_real_poll, Poll))
    patches.put(select, "epoll", epoll)
    # Classes of selectors have kept Python's own.
    patches.put(selectors.EpollSelector, "_selector_cls", epoll)
    patches.put(selectors.PollSelector, "_selector_cls", staticmethod(poll))
    patches.put(selectors.SelectSelector, "_select", staticmethod(_selectors_select))
