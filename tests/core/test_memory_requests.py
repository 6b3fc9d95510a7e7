"""No memory for requests and timers: they are done wholly or not at all, and no sum is wrong.

Whole histories of `iswitch soak` are played, stars and trees, against its oracle of the sums; at
random lines that handle arrays, or look whether a request has room, memory lacks. What requests
need besides is small, and there is room for it once they have begun: that is measured.
"""

from __future__ import annotations

import os
import random
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from math import inf
from types import FrameType
from typing import Any

import pytest

from iswitch.core.format import packets
from iswitch.core.format.counters import Counters
from iswitch.core.format.keys import Keys
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import (
    TOS_CONTROL,
    Action,
    Control,
    Join,
    Mode,
    Shape,
    Status,
    Threshold,
)
from iswitch.core.jobs.control import ControlPlane
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums import accelerator, asynchronous, buffers, plane, runs, states, synchronous
from iswitch.core.sums.buffers import HEADROOM, PASSING, REQUEST, Buffers
from iswitch.core.switch import Switch
from iswitch.lab.soak import run as playing
from iswitch.lab.soak.generate import generate
from iswitch.lab.soak.oracle import Rounds
from iswitch.lab.soak.run import History, outcome
from iswitch.lab.soak.sessions import SessionConduct
from iswitch.lab.soak.switches import SwitchConduct
from tests.fuzz.invariants import check_state
from tests.support.lines import INDIVISIBLE
from tests.support.parts import packets_of, peer

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MEMORY_SEEDS", "12"))  # `make fuzz` takes more
GAP = 300  # lines between two shortages, at most
SUMS = (accelerator, asynchronous, synchronous, plane, runs, states)
ARRAYS = {module.__file__ for module in (*SUMS, packets, buffers)}
# Those that only assign, or take what lasts: test_memory.py has these fail at each buffer.
ATOMIC = INDIVISIBLE | {
    "begin",
    "join",
    "rank",
    "end",
    "__init__",
    "prepare",
    "reset",
    "clear",
    "_write_headers",
}


class Shortages:
    """Lacks memory now and then."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"memory {seed}")
        self.left = self.rng.randint(1, GAP)
        self.count = 0
        self.over: Callable[[], bool] = lambda: False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in ARRAYS or code.co_name in ATOMIC:
            return None
        if event == "line":
            self.left -= 1
            if self.left <= 0:
                self.left = self.rng.randint(1, GAP)
                self.count += 1
                raise MemoryError
        return self

    def watching(self, method: Callable[..., list[Outgoing]], timer: bool) -> Any:
        def watched(switch: Switch, *arguments: Any) -> list[Outgoing]:
            if self.over():
                return method(switch, *arguments)
            before, trace = self.count, sys.gettrace()
            sys.settrace(self)
            try:
                sends = method(switch, *arguments)
            finally:
                sys.settrace(trace)
            if self.count > before:
                check_state(switch, arguments[-1], timer)
            return sends

        return watched

    def sparing(self, method: Callable[..., None]) -> Any:
        def spared(*arguments: Any) -> None:
            trace = sys.gettrace()
            sys.settrace(None)
            method(*arguments)
            sys.settrace(trace)

        return spared


def only_versions_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge no answers: packets for which memory lacks get none."""

    def says(conduct: SwitchConduct, *_: object) -> None:
        if conduct.machine.record.parent is None:
            conduct._delivery.note_versions()

    for which in (SwitchConduct, SessionConduct):
        for what in ("comes", "says"):
            monkeypatch.setattr(which, what, lambda *_: None)
    monkeypatch.setattr(SwitchConduct, "says", says)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_memory_that_lacks_for_requests(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members, ranks, reservations and sums are right; and all finish once there is memory."""
    shortages = Shortages(seed)
    for name in ("receive", "handle_timer"):
        watched = shortages.watching(getattr(Switch, name), name == "handle_timer")
        monkeypatch.setattr(Switch, name, watched)
    # A Join cannot be given up there, and 64 kB are enough: see the test below.
    sums = asynchronous.AsynchronousAccelerator
    monkeypatch.setattr(sums, "name", shortages.sparing(sums.name))
    monkeypatch.setattr(playing, "AllOrNothing", Buffers)  # here the machines are what lacks it
    scenario = generate(seed)
    # What a switch had no memory for may be sent again by a stranger: that is the first copy then.
    sound = tuple(event for event in scenario.events if event.what != "replay")
    history = History(replace(scenario, events=sound))
    only_versions_are_noted(monkeypatch)
    for oracle in history.stage.oracles.values():
        if isinstance(oracle, Rounds):
            oracle.is_quiet = False  # packets for which memory lacks are as good as lost
    shortages.over = lambda: history.network.now > history.scenario.horizon + 0.5
    result = outcome(history)
    assert not result.violation, result.message
    assert result.rounds
    assert shortages.count


class Narrow(Buffers):
    """Has no room for requests until it is told to."""

    def __init__(self) -> None:
        self.has_room = True

    def leave_room(self, segments: int, nbytes: int = HEADROOM) -> None:  # noqa: ARG002
        if not self.has_room:
            raise MemoryError


def asked(switch: Switch, who: Address, action: Action, request: int, value: Any) -> list[Status]:
    packet = Control(action, 7, request, value).build()
    sends = switch.receive(Burst.single(who, TOS_CONTROL, packet), 1.0)
    return [Status(Control.parse(packets_of(out)[0]).status) for out in sends if who in out.peers]


def a_job(buffers: Buffers, workers: int = 2) -> Switch:
    switch = Switch(Limits(buffers=buffers))
    for who in range(workers):
        join = Join.for_shape(Shape.of(1000), expected=workers)
        assert asked(switch, peer(who), Action.JOIN, 1000, join) == [Status.OK]
    return switch


def test_a_packet_that_nobody_with_the_key_wrote_needs_no_room() -> None:
    narrow = Narrow()
    narrow.has_room = False
    switch = Switch(Limits(buffers=narrow), keys=Keys(default=bytes(16)))
    assert asked(switch, peer(0), Action.HALT, 1, None) == [Status.DENIED]
    assert (switch.counters["bad_mac"], switch.counters["given_up"]) == (1, 0)


def test_a_join_that_takes_an_address_over_needs_the_room_of_both_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    narrow = Narrow()
    switch = a_job(narrow)
    small = Join.for_shape(Shape.of(1))
    packet = Control(Action.JOIN, 8, 2000, small).build()
    seen: list[int] = []
    monkeypatch.setattr(narrow, "leave_room", lambda segments, _=0: seen.append(segments))
    switch.receive(Burst.single(peer(0), TOS_CONTROL, packet), 1.0)
    assert seen[0] == switch.jobs[7].shape.segments  # type: ignore[union-attr]
    assert peer(0) in switch.jobs[8].members.by_address


@pytest.mark.parametrize(
    ("action", "value"),
    [
        (Action.JOIN, Join.for_shape(Shape.of(1000), expected=2)),
        (Action.LEAVE, None),
        (Action.RESET, None),
        (Action.SETH, Threshold(1)),
        (Action.HALT, None),
    ],
)
def test_a_request_without_room_changes_nothing(action: Action, value: Any) -> None:
    """It is given up before it begins, and executed when it is repeated."""
    narrow = Narrow()
    switch = a_job(narrow)
    before = repr(switch.jobs[7].members.by_address), switch.jobs[7].threshold
    who, request = (peer(2), 1000) if action is Action.JOIN else (peer(1), 1001)
    narrow.has_room = False
    for _ in range(3):
        assert asked(switch, who, action, request, value) == []
        assert (repr(switch.jobs[7].members.by_address), switch.jobs[7].threshold) == before
        check_state(switch, 1.0)
    assert switch.counters["given_up"] == 3
    narrow.has_room = True
    assert Status.OK in asked(switch, who, action, request, value)
    check_state(switch, 1.0)


def test_a_timer_without_room_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not due again at once, which would burn a core as long as memory lacks."""
    narrow = Narrow()
    switch = a_job(narrow)
    narrow.has_room = False
    assert switch.handle_timer(40.0) == []
    due = switch.deadline()
    assert due is not None
    assert due > 40.0
    assert len(switch.jobs[7].members) == 2  # no lease has run out half way
    narrow.has_room = True
    switch.handle_timer(due)
    monkeypatch.undo()
    assert switch.record.retry_at == inf


def test_naming_a_version_needs_little_memory_however_many_segments_there_are() -> None:
    shape = Shape.of(400_000, elements=1, mode=Mode.ASYNCHRONOUS)
    sums = asynchronous.AsynchronousAccelerator(shape, lambda *_: False, Counters())
    sums.name(3)
    sums.state.set(5, 70_000, 1, 0, 0, 0)
    tracemalloc.start()
    try:
        sums.name(7)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sums.version == 7
    assert {sums.state.get(i)[0] for i in (0, 5, 69_999, 70_000, 399_999)} == {7}
    assert peak < 512 << 10


@pytest.mark.slow
def test_requests_need_less_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured is the peak above what was there before, in bytes; joins reserve more."""
    peaks: list[tuple[float, int]] = []
    handle = ControlPlane.handle

    def measured(plane: ControlPlane, *arguments: Any) -> list[Outgoing]:
        before = tracemalloc.get_traced_memory()[0]
        reserved = plane.record.reserved
        tracemalloc.reset_peak()
        sends = handle(plane, *arguments)
        peak = tracemalloc.get_traced_memory()[1] - before - (plane.record.reserved - reserved)
        segments = max((j.shape.segments for j in plane.record.jobs.values() if j.shape), default=0)
        peaks.append((peak / (REQUEST + PASSING * segments), peak))
        return sends

    monkeypatch.setattr(ControlPlane, "handle", measured)
    monkeypatch.setattr(Buffers, "leave_room", lambda *_: None)
    tracemalloc.start()
    try:
        for seed in (7, 19, 22):
            assert not outcome(History(generate(seed))).violation
    finally:
        tracemalloc.stop()
    assert len(peaks) > 30
    assert max(peaks)[0] < 0.5, max(peaks)
