"""Serves the snapshot of a switch at a UNIX socket, to those whom the file's permissions let in.

A thread waits for readers. It asks the engine to build: a piece between two turns, so that packets
never wait for more than a piece. A reader gets one line of JSON at once, and another whenever it
has sent something: with the parts of rounds if it sent PARTS. A line of JSON is an operator's order
(`orders.py`), and gets the answer to that. Nothing else is looked at in what a reader sends.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from iswitch.core.jobs.member import Member
from iswitch.outside import UsageError, reason
from iswitch.ports.engine import Engine
from iswitch.system.logs import log
from iswitch.system.private import bind, is_left_over

from .places import LONGEST, PARTS, Names, Network
from .snapshot import Building, Subject

Give = Callable[[bytes], str | None]  # gives an order, and returns the answer

PATIENCE = 5.0  # seconds for the engine to build
SLOW = 1.0  # seconds in which a reader must take its snapshot
READERS = 16  # at once; the connections of others are closed
PAUSE = 0.1  # seconds after which to accept again
FRESH = 0.1  # seconds for which a snapshot serves all readers


class Snapshots:
    """Has the engine build snapshots, and returns them as text; for other threads than its own.

    Args:
        engine: runs the switch.
        subject: the switch.
        names: the names in its network.
    """

    def __init__(self, engine: Engine[Any, Any], subject: Subject, names: Names) -> None:
        self._engine = engine
        self._subject = subject
        self._names = names
        self._lock = threading.Lock()
        self._last: dict[bool, tuple[float, str]] = {}  # with parts, and without

    def take(self, parts: bool = False) -> str | None:
        """Return a snapshot, at most FRESH old; None: the switch has no time, or has ended.

        Args:
            parts: whether to tell parts of rounds.
        """
        with self._lock:
            now = time.monotonic()
            last = self._last.get(parts)
            if last is not None and now - last[0] < FRESH:
                return last[1]
            try:
                text = self._built(parts)
            except MemoryError:  # packets need it more
                text = None
            if text is not None:
                self._last[parts] = now, text
            return text

    def _built(self, parts: bool) -> str | None:
        network = self._names.look()
        name_of = memoized(network)
        done = threading.Event()
        whole = False
        building = Building(self._subject, name_of, self._engine.clock(), time.time(), parts)
        pieces = building.pieces()
        given_up = False

        def step() -> None:
            nonlocal whole
            try:
                whole = next(pieces, done) is done
            except MemoryError:  # packets need it more
                done.set()
            except Exception as error:  # an error of ours must not end the switch
                log.error("a snapshot failed: %r; please report it", error)
                done.set()
            if whole or given_up:
                done.set()
            elif not done.is_set():
                self._engine.call(step)

        self._engine.call(step)
        given_up = not done.wait(PATIENCE)
        return building.text() if whole else None


def memoized(network: Network) -> Callable[[Member], str]:
    """Return a function that names members of a network."""

    def name_of(member: Member) -> str:
        rank = member.rank if member.rank < len(network.ranks) else None
        return network.name(member.type.name.lower(), *member.name, rank)

    return name_of


@contextmanager
def watched(
    path: str, snapshots: Callable[[bool], str | None], orders: Give | None = None
) -> Iterator[None]:
    """Serve snapshots at a UNIX socket during the `with` block, and take orders if there is a way.

    Raises:
        UsageError: the socket cannot be made.
    """
    server = listening_at(path)
    wake, waker = os.pipe()
    thread = threading.Thread(
        target=serve, args=(server, wake, snapshots, orders), name="watch", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
        os.write(waker, b"\0")
        thread.join(SLOW)
        for end in (wake, waker):
            os.close(end)
        server.close()


def listening_at(path: str) -> socket.socket:
    """Make a socket that only this user may connect to.

    A socket that nobody serves any more is replaced.

    Raises:
        UsageError: something else has the path, or the system refuses it.
    """
    if len(os.fsencode(path)) > LONGEST:
        raise UsageError(f"--watch {path}: {LONGEST} bytes at most; name a shorter path")
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if is_left_over(path, socket.SOCK_STREAM):
            os.unlink(path)
        bind(server, path)
        server.listen(READERS)
    except OSError as error:
        server.close()
        raise UsageError(
            f"--watch {path}: {reason(error)}; name a path that is free, in a folder of yours"
        ) from None
    server.setblocking(False)
    return server


def serve(
    server: socket.socket,
    wake: int,
    snapshots: Callable[[bool], str | None],
    orders: Give | None = None,
) -> None:
    """Answer readers until something comes from `wake`.

    An error of ours closes their connections; they are answered again when they connect again.
    """
    readers: set[socket.socket] = set()
    while True:
        try:
            return serve_all(server, wake, readers, snapshots, orders)
        except Exception as error:
            log.error("a snapshot was not sent: %r; please report it", error)
            time.sleep(PAUSE)
        finally:
            for one in readers:
                one.close()
            readers.clear()


def serve_all(
    server: socket.socket,
    wake: int,
    readers: set[socket.socket],
    snapshots: Callable[[bool], str | None],
    orders: Give | None,
) -> None:
    """Answer readers, and keep those who are connected in `readers`."""
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == wake:
                    return
                if key.fileobj is server:
                    try:
                        one, _ = server.accept()
                    except OSError:  # perhaps no descriptor is free: then it stays readable
                        time.sleep(PAUSE)
                        continue
                    readers.add(one)
                    if len(readers) > READERS or not answer(one, snapshots, b""):
                        readers.remove(one)
                        one.close()
                        continue
                    selector.register(one, selectors.EVENT_READ)
                    continue
                one = key.fileobj  # type: ignore[assignment]
                asked = asks(one)
                if not asked or not answer(one, snapshots, asked, orders):
                    selector.unregister(one)
                    readers.remove(one)
                    one.close()


def asks(reader: socket.socket) -> bytes:
    """Return what a reader sent to get another snapshot; nothing: it has gone."""
    try:
        return reader.recv(4096)
    except OSError:
        return b""


def answer(
    reader: socket.socket,
    snapshots: Callable[[bool], str | None],
    asked: bytes,
    orders: Give | None = None,
) -> bool:
    """Send what was asked for; return whether the reader took it in time."""
    is_order = orders is not None and asked.startswith(b"{")
    text = orders(asked) if orders is not None and is_order else snapshots(PARTS in asked)
    if text is None:
        return False
    try:
        reader.settimeout(SLOW)
        reader.sendall(text.encode())
    except OSError:
        return False
    return True
