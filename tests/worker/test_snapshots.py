"""States from worker to worker: who gets one, and what is no answer."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from worker_lib.asynchronous import giving, snapshots
from worker_lib.asynchronous.giving import Server
from worker_lib.asynchronous.snapshots import (
    ANSWER,
    DIGEST,
    MAGIC,
    REQUEST,
    NotThere,
    Offer,
    Unreachable,
    ask,
    digest,
)
from worker_lib.asynchronous.standing import Standing
from worker_lib.asynchronous.state import State

STATE = bytes(range(256)) * 1000
HERE = ("127.0.0.1", 0)


def offer(wanted: bool) -> Offer:
    return Offer(Standing(77, 2**32 - 1, False), b"abcdef", STATE if wanted else b"")


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(job: int = 7, key: bytes | None = None, port: int = 0) -> Server:
        servers.append(Server(HERE[0], port, job, key, offer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize("key", [None, b"a key"])
def test_a_state(serve: Callable[..., Server], key: bytes | None) -> None:
    where = serve(key=key).where
    assert ask(where, 7, key) == Offer(Standing(77, 2**32 - 1, False))
    assert ask(where, 7, key, len(STATE)) == offer(True)


def test_its_port_is_the_workers_if_that_is_free(serve: Callable[..., Server]) -> None:
    port = serve().where[1]
    assert serve(port=port).where[1] != port


@pytest.mark.parametrize(("job", "key"), [(8, b"a key"), (7, None), (7, b"another")])
def test_strangers_get_nothing(serve: Callable[..., Server], job: int, key: bytes | None) -> None:
    where = serve(key=b"a key").where
    with pytest.raises(NotThere):
        ask(where, job, key, len(STATE))


def test_who_is_no_more(serve: Callable[..., Server]) -> None:
    server = serve()
    server.close()
    with pytest.raises(NotThere):
        ask(server.where, 7, None)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda answer: answer[:-1] + bytes([answer[-1] ^ 1]), Unreachable),
        (lambda answer: answer[:20] + bytes([answer[20] ^ 1]) + answer[21:], Unreachable),
        (lambda answer: answer[:5000], Unreachable),
        (lambda answer: b"HTTP/1.1 400 Bad Request\r\nServer: another\r\n\r\n" + answer, NotThere),
        (lambda _: b"", Unreachable),  # it may only have been slow, and have a state
        (lambda answer: answer[:20] + b"\x40" + answer[21:], Unreachable),
        (lambda answer: answer[:24] + b"\x40" + answer[25:], Unreachable),
    ],
    ids=["checksum", "version", "short", "another protocol", "nothing", "addresses", "size"],
)
def test_a_bad_answer(
    serve: Callable[..., Server], spoil: Callable[[bytes], bytes], error: type[Exception]
) -> None:
    server = serve()
    with closing(socket.create_server(HERE)) as between:

        def relay() -> None:
            asker, _ = between.accept()
            with asker, socket.create_connection(server.where) as there:
                there.sendall(asker.recv(4096))
                answer = bytearray()
                while more := there.recv(65536):
                    answer += more
                asker.sendall(spoil(bytes(answer)))

        thread = threading.Thread(target=relay)
        thread.start()
        with pytest.raises(error):
            ask(between.getsockname(), 7, None, len(STATE))
        thread.join()


def test_strangers_who_dawdle_keep_nobody_out(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request has so long, be it in bytes that trickle; who goes at once does no harm."""
    monkeypatch.setattr(giving, "PATIENCE", 0.3)
    monkeypatch.setattr(giving, "AT_ONCE", 2)
    server = serve()
    socket.create_connection(server.where).close()
    dawdling = [socket.create_connection(server.where) for _ in range(2)]
    until = time.monotonic() + 10
    while True:
        for stranger in dawdling:
            with suppress(OSError):  # it has been closed there
                stranger.send(b"i")
        try:
            assert ask(server.where, 7, None).standing.identity == 77
            break
        except Unreachable:
            assert time.monotonic() < until
            time.sleep(0.05)
    for stranger in dawdling:
        stranger.close()


def test_more_than_can_be_is_not_taken(serve: Callable[..., Server]) -> None:
    where = serve().where
    with pytest.raises(Unreachable, match="bytes"):
        ask(where, 7, None, len(STATE) - 1)


class Giver:
    """A worker's state that is packed when it is asked for, and how often it was."""

    def __init__(self, nbytes: int) -> None:
        self.state = State([np.arange(nbytes, dtype=np.uint8)])
        self.version = 1
        self.packed = 0
        self.fails = False

    def __call__(self, wanted: bool) -> Offer:
        standing, mark = Standing(77, self.version, False), self.state.mark
        if not wanted:
            return Offer(standing, mark=mark)
        if self.fails:
            raise MemoryError
        self.packed += 1
        return Offer(standing, b"", self.state.pack(), mark)

    def move_on(self) -> None:
        """The next version."""
        self.state.touch()
        self.state.arrays[0] += 1
        self.version += 1


def asking(where: tuple[str, int], key: bytes | None = None) -> socket.socket:
    """A client that asks for the state, and takes none of it by itself."""
    request = REQUEST.pack(MAGIC, 7, True, bytes(16))
    client = socket.create_connection(where)
    client.sendall(request + digest(key or b"", request))
    return client


def anonymous_memory() -> int:
    """Bytes of this process that are in memory and of no file."""
    (line,) = (
        one for one in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in one
    )
    return int(line.split()[1]) * 1024


def eventually(what: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_those_who_never_read_cost_one_copy() -> None:
    """Forty of them, of which each has begun to be given a state, over two versions of it."""
    size = 24 << 20
    giver = Giver(size)
    with closing(Server(*HERE, 7, None, giver)) as server:
        assert ask(server.where, 7, None, size).state == giver.state.pack()  # all is warm
        eventually(lambda: not server.packed)
        before = anonymous_memory()
        idle = [asking(server.where) for _ in range(40)]
        for client in idle:
            assert client.recv(ANSWER.size)
        assert giver.packed == 2
        assert anonymous_memory() - before < size + (4 << 20)
        # A newcomer of the next version has them dropped, and gets its own.
        giver.move_on()
        most, done = 0, threading.Event()

        def watch() -> None:
            nonlocal most
            while not done.wait(0.005):
                most = max(most, server.packed)

        watcher = threading.Thread(target=watch)
        watcher.start()
        offer = ask(server.where, 7, None, size)
        done.set()
        watcher.join()
        assert offer.standing.version == 2
        assert offer.state == giver.state.pack()
        assert most == size
        assert giver.packed == 3
        assert server.dropped == 40
        eventually(lambda: not server.packed)
        for client in idle:
            client.close()


def test_a_state_of_one_version_is_packed_once() -> None:
    giver = Giver(1 << 20)
    with closing(Server(*HERE, 7, None, giver)) as server:
        for _ in range(5):
            assert ask(server.where, 7, None, 1 << 20).state == giver.state.pack()
        assert giver.packed == 1
        giver.move_on()
        assert ask(server.where, 7, None, 1 << 20).state == giver.state.pack()
        assert giver.packed == 2
        assert not server.dropped


def test_a_version_made_while_somebody_asks_is_no_second_copy() -> None:
    """The state moves on after each look at it, as it does where versions are made all the time."""
    giver = Giver(24 << 20)

    def moving(wanted: bool) -> Offer:
        offer = giver(wanted)
        if not wanted:
            giver.move_on()
        return offer

    copies: list[int] = []
    with closing(Server(*HERE, 7, None, giver)) as server:
        reader = asking(server.where)
        eventually(lambda: server.packed > 0)
        copies.append(giver.packed)
        server._offer = moving
        late = asking(server.where)
        assert late.recv(ANSWER.size)  # it waits in vain for this version: it has the packed one
        copies.append(giver.packed)
        assert copies == [1, 1]
        for client in (reader, late):
            client.close()


def test_only_who_takes_all_of_a_state_was_given_one() -> None:
    giver = Giver(24 << 20)
    with closing(Server(*HERE, 7, None, giver)) as server:
        quitter = asking(server.where)
        assert quitter.recv(ANSWER.size)
        quitter.close()
        assert ask(server.where, 7, None).standing.version == 1
        assert ask(server.where, 7, None, 24 << 20).state == giver.state.pack()
        eventually(lambda: not server.connections)
        assert server.given == 1


@pytest.mark.parametrize("trickle", [0, 4096])
def test_slow_readers_are_dropped(monkeypatch: pytest.MonkeyPatch, trickle: int) -> None:
    """One that takes nothing, and one that takes a little now and then."""
    monkeypatch.setattr(giving, "PATIENCE", 0.3)
    monkeypatch.setattr(giving, "STATE_PATIENCE", 1.5)
    size = 24 << 20
    with closing(Server(*HERE, 7, None, Giver(size))) as server, asking(server.where) as slow:
        begin, came = time.monotonic(), 0
        while not server.dropped:
            came += len(slow.recv(trickle)) if trickle else 0
            assert time.monotonic() < begin + 20
            time.sleep(0.01)
        assert came < size
        eventually(lambda: not server.connections)


def test_a_reader_that_takes_its_time_is_served_to_the_end() -> None:
    """While others ask for the same version, and for the next one, which wait for it."""
    size = 6 << 20
    giver = Giver(size)
    with closing(Server(*HERE, 7, None, giver)) as server, asking(server.where) as slow:
        expected, came = giver.state.pack(), bytearray()
        head = ANSWER.size
        while len(came) < head + size + DIGEST:
            came += slow.recv(1 << 18)
            time.sleep(0.02)
            if len(came) > size // 2 and giver.version == 1:
                giver.move_on()
                waits = asking(server.where)
        assert came[head:-DIGEST] == expected
        assert ask(server.where, 7, None, size).standing.version == 2
        assert len(waits.recv(head)) == head
        waits.close()
        assert giver.packed == 2


def test_a_full_house_makes_room_for_newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who have not asked go first, then those who take nothing; the rest stay."""
    monkeypatch.setattr(giving, "AT_ONCE", 8)
    monkeypatch.setattr(giving, "STALL", 0.2)
    size = 24 << 20
    with closing(Server(*HERE, 7, None, Giver(size))) as server:
        idle = [socket.create_connection(server.where) for _ in range(8)]
        eventually(lambda: server.connections == 8)
        assert ask(server.where, 7, None).standing.identity == 77
        idle += [asking(server.where) for _ in range(8)]
        eventually(lambda: server.dropped >= 9)
        time.sleep(0.3)
        assert len(ask(server.where, 7, None, size).state) == size
        assert server.connections <= 8
        for client in idle:
            client.close()


def test_a_full_house_keeps_those_that_wait_for_a_newer_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They take nothing since nothing was offered to them."""
    monkeypatch.setattr(giving, "AT_ONCE", 1)
    monkeypatch.setattr(giving, "STALL", 0.2)
    with closing(Server(*HERE, 7, None, Giver(1000))) as server:
        ours, theirs = socket.socketpair()
        waits = giving.Connection(theirs, time.monotonic() - 1)
        waits.request = bytes(REQUEST.size + DIGEST)
        server._there = {theirs.fileno(): waits}
        monkeypatch.setattr(server, "_look", lambda _: None)
        idle = [socket.create_connection(server.where) for _ in range(3)]
        eventually(lambda: server.dropped >= 2)
        assert waits in server._there.values()
        for client in (*idle, ours):
            client.close()


def test_closing_it_while_its_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread closes the descriptor that wakes it as soon as it sees that all is closed."""
    server = Server(*HERE, 7, None, Giver(1000))
    real = os.eventfd_write

    def late(fd: int, value: int) -> None:
        time.sleep(0.3)
        real(fd, value)

    with closing(socket.create_connection(server.where)):
        eventually(lambda: server.connections == 1)  # so it looks around ten times a second
        monkeypatch.setattr(os, "eventfd_write", late)
        server.close()


def test_no_memory_for_a_copy() -> None:
    """Whoever asked is cut off; others are told where this worker stands; then it works again."""
    giver = Giver(1000)
    giver.fails = True
    with closing(Server(*HERE, 7, None, giver)) as server:
        with pytest.raises(Unreachable):
            ask(server.where, 7, None, 1000)
        assert ask(server.where, 7, None).standing.version == 1
        assert server.dropped == 1
        giver.fails = False
        assert ask(server.where, 7, None, 1000).state == giver.state.pack()


def test_no_memory_for_what_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    def receive(connection: socket.socket, size: int, until: float) -> bytearray:
        if size == len(STATE):
            raise MemoryError
        return receive_(connection, size, until)

    receive_ = snapshots._receive
    monkeypatch.setattr(snapshots, "_receive", receive)
    with (
        closing(Server(*HERE, 7, None, offer)) as server,
        pytest.raises(Unreachable, match="memory"),
    ):
        ask(server.where, 7, None, len(STATE))
