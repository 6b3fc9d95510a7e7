"""States from worker to worker: who gets one, and what is no answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from worker_lib import snapshots
from worker_lib.snapshots import NotThere, Offer, Server, Unreachable, ask
from worker_lib.standing import Standing

STATE = bytes(range(256)) * 1000
HERE = ("127.0.0.1", 0)


def offer(wanted: bool) -> Offer:
    standing = Standing(77, 2**32 - 1, False)
    return Offer(standing, b"abcdef", STATE) if wanted else Offer(standing)


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
    monkeypatch.setattr(snapshots, "PATIENCE", 0.3)
    monkeypatch.setattr(snapshots, "AT_ONCE", 2)
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
