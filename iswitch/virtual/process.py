"""A process in virtual time: its threads take turns, and its clock stands still while they compute.

One thread of a process runs at a time. It runs until it waits: for a time, for packets, or for
another thread. When all threads wait, the thread that waited last asks the `World` what happens
next: it gets a later time, and perhaps packets. So the order of everything depends on virtual time
alone, and a program with threads is as repeatable as one without.

    thread waits ── another is ready ──> that one runs
                 └─ none is ready ─────> World.idle ──> the clock moves; packets come; threads wake
"""

from __future__ import annotations

import _thread
import random
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .words import COMES, arrival
from .world import Home, Idle, Place, World

if TYPE_CHECKING:
    from iswitch.core.format.packets import Burst

    from .computing import Computing

EPOCH = 1_767_225_600  # seconds: time.time() when virtual time begins, 2026-01-01
HOUSEKEEPING = "iswitch "  # threads whose names begin so serve the library, not the program
PATIENT_READS = 1000  # readings of the clock, without a wait between, after which it moves on
PATIENT_ENDS = 100  # times that a thread may ignore that it has to end
PATIENCE = 5.0  # seconds of real time for threads to end at the end of a run
TICK = 1e-3  # seconds by which it moves then: programs that wait in a loop would never end

NOWHERE: Mapping[int, int] = {}  # no port is heard

_real_lock = _thread.allocate_lock
_local = threading.local()


class Task:
    """A thread of a virtual process."""

    def __init__(self, process: Process, thread: object) -> None:
        self.process = process
        self.thread = thread  # Python's object of it, if it has one
        self.gate = _real_lock()  # held while the thread must not run
        self.gate.acquire()
        self.until: float | None = None
        self.hears: Mapping[int, int] = {}
        self.is_waiting = False
        self.is_done = False
        self.asked = 0  # how often it was asked to end
        self.ends: list[Task] = []  # tasks that wait for the end of this one

    @property
    def is_program(self) -> bool:
        """Return whether this is a thread of the program, not one of the library's own."""
        return not getattr(self.thread, "name", "").startswith(HOUSEKEEPING)

    @property
    def is_daemon(self) -> bool:
        """Return whether Python ends without waiting for this thread."""
        return getattr(self.thread, "daemon", True)


def current() -> Task | None:
    """Return the calling thread's task; None: the thread runs in real time."""
    return getattr(_local, "task", None)


class Process:
    """The threads of a process, and its clock.

    Args:
        world: owns the clock and the network.
        computing: what computing costs.
        rank: number of the process, for messages.
        home: its host.
        now: the time in seconds.
        environment: `os.environ` for its threads; None: that of the real process.
    """

    def __init__(
        self,
        world: World,
        computing: Computing,
        rank: int,
        home: Home,
        now: float = 0.0,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.world = world
        self.computing = computing
        self.rank = rank
        self.home = home
        self.now = now
        self.environment = environment
        self.sockets: dict[int, Any] = {}  # `VirtualSocket`s by descriptor
        self.inbox: dict[int, deque[Burst]] = {}  # by number of the port
        self.is_over = False  # nothing will wake its threads any more: they have to end
        self.looks: list[tuple[Task, Callable[[], bool]]] = []  # ask the kernel before a wait
        self.chance = random.Random(f"fresh {rank}")
        self._ready: deque[Task] = deque()
        self._tasks: list[Task] = []
        self._reads = 0
        self._empty = _real_lock()  # held until the last thread has ended
        self._empty.acquire()

    # Time

    def clock(self) -> float:
        """Return the time in seconds since the beginning, with what this thread has computed."""
        self._reads += 1
        if self._reads >= PATIENT_READS:
            self.sleep(TICK)
        return self.now + self.computing.elapsed()

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.wait(self.now + max(0.0, seconds))

    # Threads

    def adopt(self) -> Task:
        """Make the calling thread one of this process, which now runs."""
        task = Task(self, threading.current_thread())
        self._tasks.append(task)
        _local.task = task
        return task

    def spawn(self, thread: object, work: Callable[[], Any], start: Callable[..., Any]) -> Any:
        """Start a thread that runs when its turn comes; return what `start` returns.

        Args:
            thread: Python's object of the thread; None: it has none.
            work: what it does.
            start: starts a real thread with a function.
        """
        task = Task(self, thread)

        def run() -> None:
            _local.task = task
            task.gate.acquire()
            try:
                work()
            finally:
                self.finish(task)

        self._tasks.append(task)
        self._ready.append(task)
        return start(run)

    def task_of(self, thread: object) -> Task | None:
        """Find the task of a thread; None: it has ended, or is none of this process."""
        return next((task for task in self._tasks if task.thread is thread), None)

    def finish(self, task: Task) -> None:
        """End a thread, and let another run."""
        task.is_done = True
        self._tasks.remove(task)
        for other in task.ends:
            self.wake(other)
        _local.task = None
        if self.is_over:
            self._end_next()
        elif self._tasks:
            self._next().gate.release()

    def wait(self, until: float | None, hears: Mapping[int, int] = NOWHERE) -> None:
        """Let other threads run until a time, packets at a port, or a `wake`.

        Args:
            until: time in seconds; None: no limit.
            hears: ports whose packets end the wait, and after how many bytes, by number. The wait
                may end before.

        Raises:
            SystemExit: the run is over, so this thread has to end.
        """
        task = current()
        assert task is not None
        task.until, task.hears, task.is_waiting = until, hears, True
        self._reads = 0
        if self.is_over:
            self.wake(task)  # after the others: one may hold a lock that this one needs to end
        following = self._next()
        if following is not task:
            following.gate.release()
            task.gate.acquire()
        if self.is_over:
            self._refuse(task)

    def _refuse(self, task: Task) -> None:
        """Ask a thread to end; stop one that will not."""
        task.asked += 1
        if task.asked > PATIENT_ENDS:
            self._end_next()
            task.gate.acquire()  # for good
        raise SystemExit("the simulation is over")

    def wake(self, task: Task) -> None:
        """End the wait of a thread."""
        if task.is_waiting:
            task.is_waiting = False
            task.hears = NOWHERE
            self._ready.append(task)

    def join(self, task: Task, until: float | None) -> None:
        """Wait for the end of a thread, or for a time."""
        own = current()
        assert own is not None
        while not task.is_done and (until is None or self.now < until):
            task.ends.append(own)
            self.wait(until)
            if own in task.ends:
                task.ends.remove(own)

    def drain(self) -> None:
        """Wait for the end of all other threads but daemons, for which Python does not wait."""
        own = current()
        for task in [t for t in self._tasks if t is not own and not t.is_daemon]:
            self.join(task, None)

    def retire(self, seconds: float) -> None:
        """Let the other threads end, for `seconds` at most, and then make them; leave the process.

        The calling thread is in real time afterwards.
        """
        own = current()
        assert own is not None
        limit = self.now + seconds
        with suppress(SystemExit):
            for task in [task for task in self._tasks if task is not own]:
                self.join(task, limit)
        self.end()
        self._tasks.remove(own)
        _local.task = None
        if self._ready:
            self._end_next()
            self._empty.acquire(timeout=PATIENCE)

    def _end_next(self) -> None:
        """Let the next thread run, which has to end; after the last one, `retire` returns."""
        if self._ready:
            self._ready.popleft().gate.release()
        else:
            self._empty.release()

    def end(self) -> None:
        """Wake all threads for good: whatever they wait for raises SystemExit."""
        self.is_over = True
        for task in self._tasks:
            self.wake(task)

    # Packets

    def open(self, host: str, port: int, peer: Place) -> tuple[int, Place]:
        """Open a port; return its number and address."""
        return self._opened(self.world.open(host, port, peer))

    def listen(self, host: str, port: int) -> tuple[int, Place]:
        """Open a port at which connections come; return its number and address."""
        return self._opened(self.world.listen(host, port))

    def connect(self, host: str, port: int, peer: Place) -> tuple[int, Place]:
        """Prepare a connection; return its number and address."""
        return self._opened(self.world.connect(host, port, peer))

    def _opened(self, one: tuple[int, Place]) -> tuple[int, Place]:
        self.inbox[one[0]] = deque()
        return one

    def close(self, number: int) -> None:
        """Close a port; what waits there is lost."""
        if self.inbox.pop(number, None) is not None:
            self.world.close(number)

    # Inside

    def _next(self) -> Task:
        """Return the thread that runs next; wait in virtual time until there is one."""
        while not self._ready:
            for task, look in self.looks:
                if task.is_waiting and look():
                    self.wake(task)
            if not self._ready:
                self._idle()
        return self._ready.popleft()

    def _idle(self) -> None:
        waiting = [task for task in self._tasks if task.is_waiting]
        hears: dict[int, int] = {}
        for task in waiting:
            for port, least in task.hears.items():
                hears[port] = min(least, hears.get(port, least))
        until = _earliest(task.until for task in waiting)
        program = _earliest(task.until for task in waiting if task.is_program)
        if not self.world.keeps:
            for number, bursts in self.inbox.items():
                if any(burst.rows.base is not None for burst in bursts):
                    self.inbox[number] = deque(b._replace(rows=b.rows.copy()) for b in bursts)
        try:
            self.now, came = self.world.idle(Idle(until, program, hears))
        except SystemExit:
            self.end()
            return
        for number, burst in came:
            if number in self.inbox:
                self.inbox[number].append(burst)
                if burst.tos == COMES:  # bytes may follow before the program takes the connection
                    self.inbox[arrival(burst)[0]] = deque()
        for task in waiting:
            due = task.until is not None and task.until <= self.now
            if due or any(self.inbox.get(port) for port in task.hears):
                self.wake(task)


def fresh_bytes(count: int) -> bytes:
    """Return bytes that nobody can foresee; in virtual time, those of a seed: runs repeat."""
    task = current()
    return secrets.token_bytes(count) if task is None else task.process.chance.randbytes(count)


def _earliest(times: Iterable[float | None]) -> float | None:
    return min((time for time in times if time is not None), default=None)


def computed() -> None:
    """Let pass in virtual time what this thread has computed since its last call.

    Does nothing in real time.
    """
    task = current()
    if task is not None and (seconds := task.process.computing.charge()) > 0.0:
        task.process.sleep(seconds)


def called(again: bool = True) -> None:
    """Begin to count what this thread computes; what a call itself costs is not counted.

    `again`: begin anew even if it is counted already.
    """
    task = current()
    if task is not None:
        task.process.computing.mark(again)
