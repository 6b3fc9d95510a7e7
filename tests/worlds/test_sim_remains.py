"""What `simulate` leaves of itself in the process that called it: nothing, however it ends."""

from __future__ import annotations

import os
import queue
import select
import selectors
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support import python
from topologies import simulate
from topologies.virtual.hub import Stuck
from topologies.virtual.notebook import Seat
from worker_lib import Worker

OWNERS = (os, queue, select, selectors, selectors.EpollSelector, socket, socket.socket, threading)
OWNERS += (threading.Thread, time)  # type: ignore[assignment]


def attributes() -> dict[tuple[str, str], Any]:
    """All that modules and classes have which virtual time puts something else in."""
    return {
        (getattr(owner, "__qualname__", owner.__name__), name): value
        for owner in OWNERS
        for name, value in vars(owner).items()
        if name not in ("_limbo", "__doc__", "_counter")
    }


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """The same modules and threads before and after each test."""
    before, running = attributes(), set(threading.enumerate())
    yield
    after = attributes()
    assert {at for at in before if before[at] is not after.get(at)} == set()
    assert after.keys() == before.keys()
    assert set(threading.enumerate()) <= running


def meets(seat: Seat) -> float:
    with Worker(numel=10, **seat.arguments) as worker:
        return float(worker.allreduce(np.ones(10, np.float32))[0])


def test_the_caller_uses_everything_as_before() -> None:
    assert simulate("star:2", meets) == [2.0, 2.0]
    with select.epoll(10), select.epoll(flags=select.EPOLL_CLOEXEC) as epoll:
        assert isinstance(epoll, select.epoll)
        with select.epoll.fromfd(os.dup(epoll.fileno())) as same:
            assert isinstance(same, select.epoll)

    class Own(selectors.DefaultSelector):
        pass

    with Own() as selector:
        assert isinstance(selector, selectors.EpollSelector)
    assert (os.environ | {"A": "1"})["A"] == "1"
    assert isinstance(queue.SimpleQueue(), queue.SimpleQueue)


class Starter(threading.Thread):
    """A thread in real time that starts others, so that they are in real time, too."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: queue.Queue[threading.Thread | None] = queue.Queue()

    def run(self) -> None:
        while (thread := self.wanted.get()) is not None:
            thread.start()
            thread.join()

    def __enter__(self) -> Starter:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.wanted.put(None)
        self.join()


def virtually(seat: Seat) -> dict[str, str]:
    """Use what stands for Python's own, as programs do."""

    class Own(selectors.DefaultSelector):
        pass

    class Mine(queue.SimpleQueue):  # type: ignore[type-arg]
        pass

    with Own() as selector, select.epoll(10) as epoll:
        assert isinstance(selector, selectors.DefaultSelector)
        assert isinstance(epoll, select.epoll)
        assert not selector.select(1.0)
    assert time.monotonic() == pytest.approx(1.0)
    assert isinstance(queue.SimpleQueue(), queue.SimpleQueue)
    assert not isinstance(queue.SimpleQueue(), Mine)
    assert issubclass(Mine, queue.SimpleQueue)
    os.environ["A"] = f"rank {seat.rank}"
    os.environ |= {"B": "2"}
    del os.environ["RANK"]
    return os.environ | {"C": "3"}


def test_what_stands_for_it_meanwhile_works_in_the_same_way() -> None:
    """In workers, and in other threads of the process."""
    said: list[bool] = []

    def really() -> None:
        with select.epoll(10) as epoll, selectors.DefaultSelector() as selector:
            said.append(isinstance(epoll, select.epoll))
            said.append(not selector.select(0))
        with select.epoll() as epoll:
            said.append(not select.epoll.fromfd(os.dup(epoll.fileno())).closed)
        said.append("B" not in os.environ | {})

    def work(seat: Seat) -> dict[str, str]:
        starter.wanted.put(threading.Thread(target=really))
        return virtually(seat)

    with Starter() as starter:
        found = simulate("star:2", work)
    assert said == [True] * 8
    for rank, variables in enumerate(found):
        assert (variables["A"], variables["B"], variables["C"]) == (f"rank {rank}", "2", "3")
        assert "RANK" not in variables
    assert "B" not in os.environ


def test_threads_that_wait_for_ever_end_with_the_run() -> None:
    """Those of a deadlock, those that a worker leaves, and what they hold."""
    ended: list[str] = []
    made: list[Any] = []

    def waits(name: str, event: threading.Event, lock: threading.Lock) -> None:
        with lock:
            try:
                event.wait()
            finally:
                ended.append(name)

    def listens() -> None:
        with socket.create_server(("", 7000)) as door:
            door.accept()

    def leaves(seat: Seat) -> int:
        lock, event = threading.Lock(), threading.Event()
        threading.Thread(target=waits, args=("waits", event, lock)).start()
        threading.Thread(target=waits, args=("wants", event, lock)).start()
        threading.Thread(target=listens).start()
        made.extend([lock, queue.Queue()])
        return seat.rank

    assert simulate("star:1", leaves) == [0]
    assert ended == ["waits", "wants"]  # in turn, as the lock says
    lock, things = made
    assert not lock.locked()
    things.put(1)
    assert things.get(timeout=1.0) == 1  # objects of virtual time work on in real time

    def stuck(seat: Seat) -> None:
        leaves(seat)
        waits(f"stuck {seat.rank}", threading.Event(), threading.Lock())

    ended.clear()
    with pytest.raises(Stuck, match="ranks 0, 1 wait"):
        simulate("star:2", stuck)
    assert {"stuck 0", "stuck 1"} <= set(ended)


def test_an_interrupted_run_ends_its_workers() -> None:
    ended: list[int] = []

    def work(seat: Seat) -> None:
        try:
            time.sleep(1.0)  # all have begun
            if seat.rank == 1:
                os.kill(os.getpid(), signal.SIGINT)
            while True:
                time.sleep(1.0)
        finally:
            ended.append(seat.rank)

    with pytest.raises(KeyboardInterrupt):
        simulate("star:3", work)
    assert sorted(ended) == [0, 1, 2]


def test_a_thread_that_will_not_end_is_stopped() -> None:
    """And Python ends, though it waits for the threads of pools."""
    done = python("-c", PROGRAM, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    assert "simulation is over" in done.stderr  # so says the pool's own thread


def test_a_worker_cannot_simulate() -> None:
    def work(_: Seat) -> None:
        simulate("star:1", meets)

    with pytest.raises(RuntimeError, match="outside of worker functions"):
        simulate("star:1", work)


PROGRAM = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
from topologies import simulate

pools = []

def stubborn():
    while True:
        try:
            time.sleep(1.0)
        except SystemExit:
            pass

def work(seat):
    pools.append(ThreadPoolExecutor())
    assert pools[-1].submit(pow, 2, 5).result() == 32
    threading.Thread(target=stubborn, daemon=True).start()

simulate("star:2", work)
print("done")
"""
