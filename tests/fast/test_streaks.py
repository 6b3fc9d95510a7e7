"""Rounds in a row, played with one call of the kernel each: as if each were begun and ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.wire import TOS_CONTROL, Shape
from iswitch.fast import loading
from iswitch.fast.worker_table import At
from iswitch.ports.kernel.mmsg import address_of
from tests.commands.test_switch_command import PATIENCE, end, switch
from worker_lib import JobReset, Worker, WorkerError
from worker_lib.kernel import DONE, NANO, NOT_BEGUN, RoundKernel
from worker_lib.membership import Membership

from .rounds import TURN, Rig, Schedule
from .test_worker_rounds import SHAPES, WAYS

pytest.importorskip("numba")

SEEDS = int(os.environ.get("ISWITCH_FAST_SEEDS", "1"))
STREAKS = 4
NEVER = 1 << 62  # nanoseconds
PlayNext = Callable[[int, int, int], int]
NUMEL = 3000


@pytest.fixture(autouse=True)
def _switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loading.SWITCH, "1")


# The session and the kernel


class Rounds:
    """Draws the rounds of a rig, and plays them by a kernel in a row and in Python."""

    def __init__(self, shape: Shape, python: Rig, compiled: Rig, seed: int) -> None:
        self.shape = shape
        self.python, self.compiled = python, compiled
        self.rng = np.random.default_rng(seed)
        self.schedule = Schedule(shape, self.rng)
        self.in_a_row = 0  # rounds that the kernel has finished so

    def vector(self) -> Any:
        return self.rng.integers(0, 100, self.shape.numel).astype(self.shape.dtype.numpy)

    def play(self) -> bool:
        """Play a streak: whole rounds, and one with faults; False: the job was halted or reset."""
        python, compiled, kernel = self.python, self.compiled, self.compiled.kernel
        assert kernel is not None
        self._both_whole()
        play_next = self._next_rounds(kernel)
        before = [dict(one.session.stats) for one in (python, compiled)]
        for _ in range(int(self.rng.integers(6))):
            vector, total = self.vector(), self.vector()
            compiled.say(self._sums(python.session.round, total))
            self._whole(python, vector, total)
            out = np.zeros_like(total)
            found = self._next(play_next, vector, out)
            if found == DONE:
                self.in_a_row += 1
            else:  # there was no time for all of it
                compiled.session.played_streak(kernel.streak())
                compiled.begin(vector, out, found)
                compiled.session.finish()
                play_next = self._next_rounds(kernel)
            assert np.array_equal(out, total)
            assert kernel.ahead + compiled.session.round == python.session.round
        return self._play_last(kernel, play_next, before)

    def _play_last(
        self, kernel: RoundKernel, play_next: PlayNext, before: list[dict[str, int]]
    ) -> bool:
        """Play the last round of a streak, with faults; the result is that of `play`."""
        python, compiled = self.python, self.compiled
        round_, total, vector = python.session.round, self.vector(), self.vector()
        sends = self.schedule.draw(round_, total)
        outs = [np.zeros_like(total), np.zeros_like(total)]
        for one in (python, compiled):
            one.say(sends)
        python.begin(vector.copy(), outs[0])
        given = vector.copy()
        found = self._next(play_next, given, outs[1])
        compiled.session.played_streak(kernel.streak())
        if found == DONE:
            assert compiled.session.round == round_ + 1
            assert python.missing == []
            python.session.finish()
            compiled.drain()
        else:
            assert compiled.session.round == round_
            compiled.begin(given, outs[1], found)
        for one, stats in zip((python, compiled), before, strict=True):
            one.before = stats
        helped = any(tos == TOS_CONTROL for tos, _, _ in sends)
        assert python.state(helped) == compiled.state(helped)
        assert python.heard() == compiled.heard()
        assert outs[0].tobytes() == outs[1].tobytes()
        if python.session.round == round_ and not python.session.halted:
            for one in (python, compiled):
                one.say(self.schedule.rest(round_, total, one.missing))
                one.drain()
                assert one.missing == []
                one.session.finish()
        return python.session.round == round_ + 1 and not python.session.has_events

    def _next_rounds(self, kernel: RoundKernel) -> PlayNext:
        """Return what plays the next rounds.

        Where the kernel had no time for a round, Python may have read a kind of datagram that it
        does not know: it learns it in a round that it begins itself.
        """
        for _ in range(STREAKS):
            if (play_next := kernel.next_rounds(self.compiled.session)) is not None:
                return play_next
            self._both_whole()
        pytest.fail("no rounds in a row, although whole ones were played")

    def _both_whole(self) -> None:
        """Play a round all of whose sums are there, both ways."""
        vector, total = self.vector(), self.vector()
        for one in (self.python, self.compiled):
            self._whole(one, vector, total)

    def _sums(self, round_: int, total: Any) -> list[tuple[int, Any, int]]:
        whole = [(0, self.shape.segments)]
        return self.schedule.rest(round_, total, whole)

    def _whole(self, one: Rig, vector: Any, total: Any) -> None:
        """Play a round all of whose sums are there, to its end."""
        one.say(self._sums(one.session.round, total))
        out = np.zeros_like(total)
        one.begin(vector, out)
        assert one.missing == []
        assert np.array_equal(out, total)
        one.session.finish()

    def _next(self, play_next: PlayNext, vector: Any, out: Any) -> int | None:
        """Play the next round, although its sums are there already; None: it did not begin."""
        kernel = self.compiled.kernel
        assert kernel is not None
        kernel._table[At.CAME_AT] = time.monotonic_ns()  # else it would look first
        kernel._table[[At.STOP_AT, At.DUE]] = NEVER
        found = play_next(address_of(vector), address_of(out), int(TURN * NANO))
        return None if found == NOT_BEGUN else found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [name for name in SHAPES if name != "none"])
def test_random_streaks(name: str, way: str) -> None:
    shape, rounds = SHAPES[name], 0
    for seed in range(SEEDS):
        with (
            WAYS[way](shape, compiled=False) as python,
            WAYS[way](shape, compiled=True) as compiled,
        ):
            both = Rounds(shape, python, compiled, seed)
            streaks = 0
            while streaks < STREAKS and both.play():
                streaks += 1
            rounds += both.in_a_row
    assert rounds


# Workers


def twins(where: tuple[str, int], **options: Any) -> tuple[Worker, Worker]:
    """Make two workers of a job, each in a thread."""
    with ThreadPoolExecutor(2) as pool:
        made = [
            pool.submit(Worker, where, 7, NUMEL, 2, rank=i, timeout=PATIENCE, **options)
            for i in range(2)
        ]
        return made[0].result(), made[1].result()


@pytest.fixture(params=["udp", "shm"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ISWITCH_SHM", str(int(request.param == "shm")))
    return str(request.param)


def sum_up(one: Worker, other: Worker, value: float, **options: Any) -> Any:
    """Sum up a vector of equal numbers in both; return the first one's result."""
    vector = np.full(NUMEL, value, np.float32)
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(other.allreduce, vector.copy())
        mine = one.allreduce(vector, **options)
        assert (others.result() == 2 * value).all()
    assert (mine == 2 * value).all()
    return mine


@pytest.mark.usefixtures("way")
def test_what_a_worker_tells_amid_a_streak(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, begun = Membership.begin_streak, []

    def begin_streak(self: Membership, numel: int) -> PlayNext | None:
        begun.append(begin(self, numel))
        return begun[-1]

    monkeypatch.setattr(Membership, "begin_streak", begin_streak)
    with switch() as (process, where):
        one, other = twins(where)
        with one, other:
            for round_ in range(12):
                assert one.round == other.round == round_
                out = np.empty(NUMEL, np.float32) if round_ % 2 else None
                assert sum_up(one, other, round_, out=out) is not None
            assert one.round == 12
            assert any(begun)
            assert one.allreduces == len(one.allreduce_seconds) == 12
            stats = other.stats()
            assert stats["sent"] == stats["received"] == 12 * other.shape.segments
            assert stats["round"] == stats["allreduces"] == 12
            assert sum(other.durations.counts) == 12
            assert 0 < stats["allreduce_p50"] < PATIENCE
            sum_up(one, other, 5.0)
        end(process)


@pytest.mark.usefixtures("way")
def test_arrays_that_do_not_fit_are_refused_amid_a_streak() -> None:
    with switch() as (process, where):
        one, other = twins(where)
        with one, other:
            for value in range(4):
                sum_up(one, other, value)
            good, longer = np.ones(NUMEL, np.float32), np.ones(NUMEL + 1, np.float32)
            for vector, out, error in (
                (good.astype(np.float64), good, TypeError),
                (good, good.astype(np.int32), TypeError),
                (good[1:], good[1:], ValueError),
                (good, np.ones(2 * NUMEL, np.float32)[::2], ValueError),
                (good, np.ones((2, NUMEL // 2), np.float32), ValueError),
                (longer[:-1], longer[1:], ValueError),
            ):
                with pytest.raises(error):
                    one.allreduce(vector, out)
            fixed = good.copy()
            fixed.setflags(write=False)
            with pytest.raises(ValueError, match="writable"):
                one.allreduce(good, fixed)
            with ThreadPoolExecutor(1) as pool:  # read-only, and with gaps
                others = pool.submit(other.allreduce, np.ones(2 * NUMEL, np.float32)[::2])
                assert (one.allreduce(fixed) == 2).all()
                assert (others.result() == 2).all()
            assert one.round == 5
        end(process)


@pytest.mark.usefixtures("way")
def test_a_signal_amid_a_streak() -> None:
    """The round that it ends is the one that the next call continues."""
    with switch() as (process, where):
        one, other = twins(where)
        with one, other:
            for value in range(4):
                sum_up(one, other, value)
            timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))

            def interrupted() -> None:
                timer.start()
                one.allreduce(np.full(NUMEL, 7, np.float32), np.empty(NUMEL, np.float32))

            with pytest.raises(KeyboardInterrupt):
                interrupted()
            timer.join()
            assert one.round == 4
            for value in (7, 8, 9):
                sum_up(one, other, value)
            assert one.round == 7
        end(process)


@pytest.mark.usefixtures("way")
def test_a_handler_asks_amid_a_streak() -> None:
    """It ends the streak, and its error the call: no later round takes the steps of this one."""
    with switch() as (process, where):
        one, other = twins(where)
        kernel = one._membership.kernel
        assert kernel is not None
        repeated, armed = kernel._repeated, False

        def interrupted() -> PlayNext:
            play_next = repeated()

            def play(*places: int) -> int:
                end = play_next(*places)
                if armed:
                    one.stats()
                    raise InterruptedError
                return end

            return play

        kernel._repeated = interrupted  # type: ignore[method-assign]
        with one, other, ThreadPoolExecutor(1) as pool:
            for value in range(4):
                sum_up(one, other, value)
            vector, out = np.ones(NUMEL, np.float32), np.empty(NUMEL, np.float32)
            armed = True
            while armed:  # the thread that attends to the membership may have ended the streak
                round_, others = one.round, pool.submit(other.allreduce, vector)
                try:
                    one.allreduce(vector, out)
                except InterruptedError:
                    armed = False
                    if one.round == round_:  # it has been given up before its end
                        one.allreduce(vector, out)
                assert (others.result() == 2).all()
            for value in range(4):
                sum_up(one, other, value)
            assert one.round == other.round
        end(process)


@pytest.mark.usefixtures("way")
def test_a_handler_begins_no_call_amid_another() -> None:
    """Its vector would meet the one under way, whose round it would take."""
    with switch() as (process, where):
        one, other = twins(where)
        vector, out = np.ones(NUMEL, np.float32), np.empty(NUMEL, np.float32)
        calls: tuple[Callable[[], Any], ...] = (
            one.reset,
            one.leave,
            one.members,
            lambda: one.allreduce(vector),
            lambda: one.allreduce(vector, out),
        )
        with one, other:
            for value in range(4):
                sum_up(one, other, value)
            with one._lock:  # as it is amid a call, when a handler runs
                for call in calls:
                    with pytest.raises(WorkerError, match="signal's handler"):
                        call()
            for value in range(4):
                sum_up(one, other, value)
            assert one.round == 8
        end(process)


@pytest.mark.usefixtures("way")
def test_a_reset_and_a_pause_amid_a_streak() -> None:
    with switch() as (process, where):
        one, other = twins(where)
        with one, other:
            for value in range(4):
                sum_up(one, other, value)
            other.reset()
            with pytest.raises(JobReset):
                one.allreduce(np.ones(NUMEL, np.float32), np.empty(NUMEL, np.float32))
            for value in range(4):
                sum_up(one, other, value)
            with ThreadPoolExecutor(1) as pool:  # one waits for longer than the kernel does at once
                mine = pool.submit(one.allreduce, np.ones(NUMEL, np.float32))
                time.sleep(0.2)
                assert (other.allreduce(np.ones(NUMEL, np.float32)) == 2).all()
                assert (mine.result() == 2).all()
            for value in range(4):
                sum_up(one, other, value)
        end(process)


@pytest.mark.usefixtures("way")
def test_a_forked_process_does_not_go_on_with_a_streak() -> None:
    with switch() as (process, where):
        one, other = twins(where)
        with one, other:
            for value in range(4):
                sum_up(one, other, value)
            child = os.fork()
            if not child:
                try:
                    one.allreduce(np.ones(NUMEL, np.float32), np.empty(NUMEL, np.float32))
                except WorkerError:
                    os._exit(3)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
            for value in range(4):
                sum_up(one, other, value)
        end(process)
