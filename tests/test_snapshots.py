"""States from worker to worker: who gets one, and what is no answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

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
    assert ask(where, 7, key, state=False) == Offer(Standing(77, 2**32 - 1, False))
    assert ask(where, 7, key, state=True) == offer(True)


def test_its_port_is_the_workers_if_that_is_free(serve: Callable[..., Server]) -> None:
    port = serve().where[1]
    assert serve(port=port).where[1] != port


@pytest.mark.parametrize(("job", "key"), [(8, b"a key"), (7, None), (7, b"another")])
def test_strangers_get_nothing(serve: Callable[..., Server], job: int, key: bytes | None) -> None:
    where = serve(key=b"a key").where
    with pytest.raises(NotThere):
        ask(where, job, key, state=True)


def test_who_is_no_more(serve: Callable[..., Server]) -> None:
    server = serve()
    server.close()
    with pytest.raises(NotThere):
        ask(server.where, 7, None, state=False)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda answer: answer[:-1] + bytes([answer[-1] ^ 1]), Unreachable),
        (lambda answer: answer[:20] + bytes([answer[20] ^ 1]) + answer[21:], Unreachable),
        (lambda answer: answer[:5000], Unreachable),
        (lambda answer: b"HTTP/1.1 400 Bad Request\r\nServer: another\r\n\r\n" + answer, NotThere),
        (lambda _: b"", NotThere),
    ],
    ids=["checksum", "version", "short", "another protocol", "nothing"],
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
            ask(between.getsockname(), 7, None, state=True)
        thread.join()
