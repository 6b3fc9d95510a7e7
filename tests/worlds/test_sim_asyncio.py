"""asyncio in virtual time: its servers, its clients, and sockets that do not wait."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import threading
import time
from typing import Any

import pytest

from topologies import simulate
from topologies.virtual.notebook import Seat

PORT = 7000
FORM = "star:3,rate=1Gbit,delay=1ms"


async def serve(seat: Seat) -> list[str]:
    """Answer every line of each other worker; return what came."""
    came: list[str] = []
    ended = asyncio.Semaphore(0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            came.append(line.decode().strip())
            await asyncio.sleep(1.0)
            writer.write(line.upper())
            await writer.drain()
        writer.close()
        ended.release()

    async with await asyncio.start_server(answer, None, PORT):
        for _ in range(seat.num_workers - 1):
            await ended.acquire()
    return came


async def call(seat: Seat) -> list[Any]:
    """Say something to rank 0, twice; return the answers and when they came."""
    await asyncio.sleep(0.1)
    reader, writer = await asyncio.open_connection("h1", PORT)
    found: list[Any] = []
    for i in range(2):
        writer.write(f"rank {seat.rank}, line {i}\n".encode())
        found.append((await reader.readline()).decode().strip())
        found.append(round(time.monotonic(), 2))
    writer.close()
    await writer.wait_closed()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("h1", 1)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 5.0)
    return found


def test_servers_and_clients_of_asyncio() -> None:
    """Two clients at once, whose answers take a virtual second each."""

    def work(seat: Seat) -> Any:
        return asyncio.run(serve(seat) if not seat.rank else call(seat))

    first = simulate(FORM, work)
    came, *answers = first
    assert sorted(came) == [f"rank {rank}, line {i}" for rank in (1, 2) for i in (0, 1)]
    for rank, found in enumerate(answers, 1):
        assert found == [f"RANK {rank}, LINE 0", 1.11, f"RANK {rank}, LINE 1", 2.11]
    assert simulate(FORM, work) == first


def test_a_socket_connects_without_waiting() -> None:
    def work(seat: Seat) -> Any:
        if not seat.rank:
            with socket.create_server(("", PORT)) as door, door.accept()[0] as sock:
                return sock.recv(100)
        if seat.rank == 1:
            with socket.socket() as sock:
                sock.setblocking(False)
                assert sock.connect_ex(("h1", PORT)) == errno.EINPROGRESS
                assert sock.connect_ex(("h1", PORT)) == errno.EALREADY
                with pytest.raises(OSError, match="not connected"):
                    sock.send(b"early")
                poll = select.poll()
                poll.register(sock, select.POLLOUT)
                assert poll.poll() == [(sock.fileno(), select.POLLOUT)]
                assert time.monotonic() > 4e-3  # there and back
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
                sock.send(b"hello")
                assert select.select([sock], [sock], []) == ([], [sock], [])
                assert select.select([sock], [], [], 60.0) == ([sock], [], [])  # its end
                assert time.monotonic() < 1.0
        with socket.socket() as sock:
            sock.setblocking(False)
            assert sock.connect_ex(("h1", 1)) == errno.EINPROGRESS
            assert select.select([sock], [sock], [], 0) == ([], [], [])
            assert select.select([], [sock.fileno()], [], None) == ([], [sock.fileno()], [])
            errors = [sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for _ in range(2)]
            assert errors == [errno.ECONNREFUSED, 0]
        return None

    assert simulate(FORM, work)[0] == b"hello"


def test_select_waits_in_virtual_time_for_nothing_and_for_files() -> None:
    def work(_: Seat) -> list[float]:
        times = []
        assert select.select([], [], [], 3600.0) == ([], [], [])
        times.append(time.monotonic())
        out, into = os.pipe()
        with os.fdopen(out, "rb") as read, os.fdopen(into, "wb", 0) as written:

            def writes() -> None:
                time.sleep(60.0)
                written.write(b"x")

            writer = threading.Thread(target=writes)
            writer.start()
            assert select.select([], [into], []) == ([], [into], [])
            assert select.select([read], [], [], 1.0) == ([], [], [])
            assert select.select([read], [], [], 3600.0) == ([read], [], [])
            times.append(time.monotonic())
            writer.join()
        return times

    for times in simulate("star:2", work):
        assert times == pytest.approx([3600.0, 3660.0], abs=1e-3)
