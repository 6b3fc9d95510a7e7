"""Conducts the workers of one strategy: tells them when a round begins, and takes their times."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from .plan import ALLREDUCE, FORWARD, Way

PAUSE = 0.002  # seconds in which all workers can reach their timers
LONGEST_PAUSE = 0.2
LOOK = 0.5  # seconds between two checks that all processes still run
ENDING = 10.0  # seconds in which a worker that hangs up must end, and so says why
JOINING = 120.0  # seconds for all workers to report
UNDER_WAY = 2  # contributions that a worker may have sent before it knows the next version
TIMEOUT = 120.0  # seconds for an allreduce


class BenchFailed(Exception):
    """A process died or failed at its task; the message says which."""


class WrongSum(BenchFailed):
    """A strategy has added up wrongly."""


class Done(NamedTuple):
    """One worker's report on the rounds that it has run. Times are monotonic, in seconds."""

    late: float  # seconds by which it began too late
    ends: list[float]  # when it had the sum of each round
    updated: float  # when it had updated
    cpu: float  # CPU seconds of its process in all rounds
    received: int  # bytes at its network interfaces; 0 in the loopback world
    sent: int


class Free(NamedTuple):
    """One worker's iterations without a common start: when each ended, and CPU seconds in all."""

    times: list[float]
    cpu: float


class Round(NamedTuple):
    """One round of a group, in seconds.

    `aggregate` lasts from the common start of the allreduce, or from the last worker's end of the
    round before, to the last worker's end. `update` lasts from then to the end of the last update.
    CPU seconds are those of all workers, and of the processes of switches or servers; bytes are the
    average of a worker's link. If several rounds were measured in a row, each gets an equal share
    of both.
    """

    compute: float
    aggregate: float
    update: float
    workers_cpu: float
    switch_cpu: float
    received: float
    sent: float

    @property
    def iteration(self) -> float:
        """Return the seconds of the whole round."""
        return self.compute + self.aggregate + self.update


class Lobby:
    """A socket, in a folder of its own, at which workers report; a context.

    The folder is gone once they have, so that a benchmark that is killed later leaves none.

    Args:
        watch: called while waiting; raises if a process has died.
    """

    def __init__(self, watch: Callable[[], None]) -> None:
        self.watch = watch
        self._stack = ExitStack()

    def __enter__(self) -> Lobby:
        self._folder = TemporaryDirectory(prefix="iswitch-bench-")
        self.path = str(Path(self._stack.enter_context(self._folder)) / "conductor")
        self._socket = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self._socket.bind(self.path)
        self._socket.listen(1024)
        self._socket.settimeout(LOOK)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def gather(self, groups: Sequence[Group]) -> None:
        """Wait until all workers of these groups have reported.

        Raises:
            BenchFailed: a worker does not report in time.
        """
        limit = time.monotonic() + JOINING
        missing = {(i, rank) for i, group in enumerate(groups) for rank in range(group.size)}
        while missing:
            self.watch()
            if time.monotonic() > limit:
                i, rank = min(missing)
                raise BenchFailed(
                    f"worker {rank} of {groups[i].way.label} did not start within {JOINING:.0f} s"
                )
            try:
                sock, _ = self._socket.accept()
            except TimeoutError:
                continue
            sock.setblocking(True)
            connection = Connection(sock.detach())
            i, rank = connection.recv()
            groups[i].connections[rank] = self._stack.enter_context(connection)
            missing.remove((i, rank))
        self._folder.cleanup()
        for group in groups:
            group.watch = self.watch


class Group:
    """The workers of one strategy.

    Args:
        way: strategy that the workers use.
        size: number of workers.
        serving: numbers of the processes that serve them: switches, servers.
        options: options of the strategy that the way does not set.
    """

    def __init__(self, way: Way, size: int, serving: Sequence[int] = (), **options: object) -> None:
        self.way = way
        self.size = size
        self.serving = serving
        self.joins = "iswitch" if way.name == FORWARD else way.name
        self.options = {"timeout": TIMEOUT, **way.options, **options}
        self.connections: dict[int, Connection] = {}
        self.watch: Callable[[], None] = lambda: None
        self._pause = PAUSE

    def order(self, *order: Any) -> list[Any]:
        """Order all workers to do something; return their answers by rank.

        Raises:
            BenchFailed: a worker has died.
        """
        try:
            for rank in range(self.size):
                self.connections[rank].send(order)
            answers: dict[int, Any] = {}
            waiting = {self.connections[rank]: rank for rank in range(self.size)}
            while waiting:
                for ready in wait(list(waiting), LOOK):
                    assert isinstance(ready, Connection)
                    answers[waiting.pop(ready)] = ready.recv()
                if waiting:
                    self.watch()
        except (EOFError, ConnectionError):
            limit = time.monotonic() + ENDING
            while time.monotonic() < limit:  # its connection ends before it does
                self.watch()
                time.sleep(PAUSE)
            raise BenchFailed(f"a worker of {self.way.label} has gone") from None
        return [answers[rank] for rank in range(self.size)]

    def join(self, collective: str, numel: int, job: int) -> None:
        """Have all workers join a group for a collective.

        Args:
            collective: the collective.
            numel: elements of the vector.
            job: the number of the job, at a switch.
        """
        if collective == ALLREDUCE:
            self.order("join", self.joins, numel, job, self.options)
        else:
            self.order("join_exchange", self.joins, collective, numel, job, self.options)

    def round(self, compute: float = 0.0, update: bool = False) -> Round:
        """Measure a round: emulated computing, allreduce, and update if asked to."""
        (one,) = self.row(1, compute=compute, update=update)
        return one

    def row(
        self, count: int, warm: int = 0, compute: float = 0.0, update: bool = False
    ) -> list[Round]:
        """Measure rounds in a row from a common start.

        If a worker was not ready in time, none of the rounds counts, and all are run again.

        Args:
            count: rounds.
            warm: rounds before them that do not count.
            compute: seconds of emulated computing in each.
            update: whether each ends with an update.
        """
        while True:
            self.order("prepare")
            if warm:
                self.order("go", time.monotonic() + self._pause, 0.0, False, warm)
            cpu = self._cpu()
            at = time.monotonic() + self._pause
            done: list[Done] = self.order("go", at, compute, update, count)
            cpu = self._cpu() - cpu
            if not any(one.late for one in done) or self._pause >= LONGEST_PAUSE:
                break
            self._pause *= 2
        return rounds_of(done, at, compute, update, cpu)

    def free(self, count: int, compute: float) -> Round:
        """Run iterations asynchronously; return their mean as a `Round` (see `round_of`)."""
        cpu = self._cpu()
        done: list[Free] = self.order("run", time.monotonic() + self._pause, count, compute)
        return round_of(done, count, compute, self._cpu() - cpu)

    def check(self) -> None:
        """Check that the last sums were exact.

        Raises:
            WrongSum: a sum was not exact.
        """
        check_sums(self.way, self.order("check"))

    def _cpu(self) -> float:
        return sum(cpu_seconds(process) for process in self.serving)


def rounds_of(
    done: Sequence[Done], at: float, compute: float, update: bool, cpu: float
) -> list[Round]:
    """Make rounds of what all workers have reported.

    Args:
        done: their reports.
        at: when they began.
        compute: seconds of emulated computing in the first round.
        update: whether they updated in the end.
        cpu: CPU seconds of switches or servers.
    """
    ends = [max(one) for one in zip(*(worker.ends for worker in done), strict=True)]
    updated = max(one.updated for one in done) - ends[-1] if update else 0.0
    count = len(ends)
    cost = (
        sum(one.cpu for one in done) / count,
        cpu / count,
        sum(one.received for one in done) / len(done) / count,
        sum(one.sent for one in done) / len(done) / count,
    )
    seconds = np.diff([at + compute, *ends]).tolist()
    return [Round(compute, one, updated, *cost) for one in seconds]


def round_of(done: Sequence[Free], count: int, compute: float, cpu: float) -> Round:
    """Return the mean of asynchronous iterations as a `Round`.

    An iteration applies as many gradients as there are workers. The first iterations do not count,
    since they may apply gradients of an earlier run. The time of an iteration beyond its computing
    counts as aggregation.

    Args:
        done: the workers' reports.
        count: iterations.
        compute: seconds of emulated computing in each.
        cpu: CPU seconds of switches or servers.
    """
    spans = [(one.times[-1] - one.times[UNDER_WAY]) / (count - 1 - UNDER_WAY) for one in done]
    seconds = sum(spans) / len(done)
    workers = sum(one.cpu for one in done) / count
    return Round(compute, max(0.0, seconds - compute), 0.0, workers, cpu / count, 0.0, 0.0)


def check_sums(way: Way, wrong: Sequence[int]) -> None:
    """Check that no worker's last sum was wrong.

    Args:
        way: the strategy.
        wrong: number of wrong elements of each rank.

    Raises:
        WrongSum: a sum was not exact.
    """
    for rank, count in enumerate(wrong):
        if count:
            raise WrongSum(f"{way.label}: {count} elements of rank {rank}'s sum are wrong")


def cpu_seconds(process: int) -> float:
    """Read the CPU seconds of a process: all threads, user and system.

    The kernel has a clock for each process: number ~pid << 3 | 2 is the precise one
    (clock_getcpuclockid(3)). The files in /proc count in steps of 10 ms.
    """
    return time.clock_gettime(~process << 3 | 2)
