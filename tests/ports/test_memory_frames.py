"""No memory at the ports of a switch: what is lost is counted, and all others go on."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from iswitch.bmv2.link import CpuLink
from iswitch.bmv2.pipeline import Own, Pipeline
from iswitch.bmv2.switch import PipelineChassis, PipelineSwitch
from iswitch.core.format.packets import Outgoing
from iswitch.ethernet.bridge import Bridge
from iswitch.ethernet.forwarding import Forwarder
from iswitch.ethernet.frame import Frames, Transmission
from iswitch.ethernet.guard import SourceGuard
from iswitch.ethernet.issuing import Issuer
from iswitch.ports import engine
from iswitch.ports.engine import LONGEST_PAUSE, SHORT_OF_MEMORY, Engine
from iswitch.ports.kernel import lobby
from iswitch.ports.reading import BurstReader
from iswitch.ports.sending import DatagramSender
from iswitch.ports.udp import UdpPort
from tests.ethernet.test_forwarding import A, B, Bench, C, data, plain, super_datagram
from tests.p4.test_bmv2_wire import Registers, Tables
from tests.ports.test_lobby import DATA
from tests.ports.test_lobby import Bench as LobbyBench
from tests.support import frames as slow

pytestmark = pytest.mark.unit

FRAME = plain(B, A)


def lacking(patch: pytest.MonkeyPatch, owner: Any, name: str, *fails: int) -> None:
    """Calls of these numbers, from 0 on, find no memory."""
    real, calls = getattr(owner, name), iter(range(1 << 30))

    def scarce(*arguments: Any, **named: Any) -> Any:
        if next(calls) in fails:
            raise MemoryError
        return real(*arguments, **named)

    patch.setattr(owner, name, scarce)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Bridge, "learn"), (Bridge, "egress"), (SourceGuard, "spoofed"), (Forwarder, "_pass")],
)
def test_frames_for_which_a_chassis_has_no_memory(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """Of two that come together with others, or alone: the accounts balance, the next ones pass."""
    bench = Bench()
    lacking(monkeypatch, owner, name, 0)
    assert bench.put(0, FRAME, FRAME) == []
    n = bench.switch.counters
    assert n["given_up"] == 1
    # Before it is decided where they go they are lost on their way in, else on their way out.
    lost = bench.drops()
    assert lost in ({"rx_no_memory": 2}, {"tx_failed": 4})
    assert len(bench.put(0, FRAME, FRAME)) == 4
    assert bench.drops() == lost


def test_what_stands_for_many_frames_counts_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    lacking(monkeypatch, SourceGuard, "spoofed", 0)
    row = super_datagram(0, [b"x" * 1472] * 5 + [b"y"], 1472)
    assert bench.put(0, row[:10] + B + row[16:]) == []
    assert bench.drops() == {"rx_no_memory": 6}


def test_frames_of_before_are_not_lost_with_those_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """They came at once, and what they led to had been sent."""
    bench = Bench()
    lacking(monkeypatch, Bridge, "egress", 1)
    assert len(bench.put(0, FRAME, plain(C, A), FRAME)) == 2
    assert bench.drops() == {"rx_no_memory": 2}


@pytest.mark.parametrize("known", [False, True], ids=["first", "express"])
def test_sums_that_cannot_be_sent_are_counted(monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """And sent when a member that lacks them contributes once more."""
    bench = Bench()
    shape = bench.join(0, 1, numel=1000)
    packets = [data(shape, round_, np.ones(1000)) for round_ in range(2)]
    for round_ in range(1 + known):
        if round_ == known:
            lacking(monkeypatch, Issuer, "issue", 0)
        for host in (0, 1):
            sent = bench.put(host, super_datagram(host, packets[round_], 1472))
    assert sent == []
    assert bench.drops() == {"tx_failed": 6}
    again = bench.put(0, super_datagram(0, packets[known], 1472))
    assert len(again) == 3
    assert bench.drops() == {"tx_failed": 6, "late": 3}


def test_what_a_timer_cannot_send_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    lacking(monkeypatch, Issuer, "issue", 0)
    assert list(bench.chassis.handle_timer(1.0)) == []
    assert bench.switch.counters["given_up"] == 1
    assert len(list(bench.chassis.handle_timer(1.0))) == 1


@pytest.mark.slow
def test_strangers_for_whom_a_lobby_has_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        bench = LobbyBench(stack)
        stranger, member = bench.sender(), bench.sender(member=True)
        assert bench.pull() == []  # the kernel is told who is a member
        lacking(monkeypatch, lobby, "Guests", 0)
        bench.send(stranger, DATA, b"x" * 20, b"y" * 20)
        bench.send(member, DATA, b"z" * 20)
        assert [packet for _, _, packet in bench.pull()] == [b"z" * 20]
        assert bench.counters["rx_no_memory"] == 2
        assert bench.counters["rx_packets"] == 0
        bench.send(stranger, DATA, b"x" * 20)
        assert bench.pull() == []
        assert (bench.counters["rx_packets"], bench.counters["stranger"]) == (1, 1)


@pytest.mark.slow
def test_datagrams_for_which_a_socket_has_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two to be sent, and of two that come, one each is lost."""
    with ExitStack() as stack:
        here, there = (UdpPort(("127.0.0.1", 0)) for _ in range(2))
        for port in (here, there):
            stack.callback(port.close)
        lacking(monkeypatch, DatagramSender, "_group", 0)
        first = Outgoing.control(there.address, b"x" * 20)
        here.push([first, first])
        assert here.counters["tx_failed"] == 1
        lacking(monkeypatch, BurstReader, "cut", 0)
        assert list(there.pull()) == []
        assert there.counters["rx_no_memory"] == 1
        here.push([first])
        (burst,) = there.pull()
        assert burst.rows.tobytes() == b"x" * 20


@pytest.mark.parametrize(
    ("owner", "name"), [(Transmission, "copy"), (Bridge, "egress"), (Pipeline, "commit")]
)
def test_frames_for_which_the_control_plane_of_a_p4_program_has_no_memory(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """The others go on, and the program is told in the end where stations are."""
    wire = Registers()
    wire.held = {}
    own = Own(slow.SWITCH_MAC, slow.SWITCH_IP, 26963)
    tables = Tables()
    pipeline = Pipeline(CpuLink(wire, 0.0), tables, own, 3)
    chassis = PipelineChassis(PipelineSwitch(pipeline), pipeline, 3)
    lacking(monkeypatch, owner, name, 0)
    frames = Frames.of(0, [FRAME])
    try:
        sent = list(chassis.receive(frames, 0.0))
    except MemoryError:  # the engine counts the turn, and does not look at what was pulled
        assert owner is Pipeline
    else:
        assert [step for step in sent if step] == []
        assert chassis.counters["tx_failed"] + chassis.counters["rx_no_memory"] >= 1
    (step,) = chassis.receive(frames, 0.0)
    assert sorted(send.port for send in step) == [1, 2]
    assert not chassis.switch.learned
    assert any("forward" in line for line in tables.lines)


def test_frames_behind_those_that_could_not_be_sent_are_counted() -> None:
    bench = Bench()
    steps = iter(bench.chassis.receive(Frames.of(0, [FRAME, plain(C, A), FRAME]), 0.0))
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert bench.drops() == {"rx_no_memory": 2}


class Starved:
    """A port whose turns lack memory; the machine, too, and the clock stands still."""

    def __init__(self, lacks: list[bool]) -> None:
        self.lacks = lacks
        self.stop: Callable[[], None] = lambda: None

    def fileno(self) -> int:
        return self.wake

    wake = 0

    def pull(self) -> Iterator[Any]:
        if not self.lacks:
            self.stop()
        elif self.lacks.pop(0):
            raise MemoryError
        return iter(())

    def push(self, _: Any, /) -> None:
        pass

    def deadline(self) -> float | None:
        return None

    def handle_timer(self, _: float) -> list[Any]:
        return []

    def receive(self, _came: Any, _now: float, /) -> Any:
        raise AssertionError("nothing has come")

    def close(self) -> None:
        pass


def test_an_engine_takes_the_others_that_have_come() -> None:
    """Of five bursts the second cannot be handled, the fourth not sent."""
    handled: list[int] = []
    sent: list[int] = []

    class Scarce(Starved):
        def pull(self) -> Iterator[Any]:
            yield from range(5)
            self.stop()

        def receive(self, came: Any, _: float, /) -> Any:
            if came == 1:
                raise MemoryError
            handled.append(came)
            return came

        def push(self, sends: Any, /) -> None:
            if sends == 3:
                raise MemoryError
            sent.append(sends)

    port = Scarce([])
    one: Engine[Any, Any] = Engine(port, port, clock=lambda: 0.0)
    port.stop = one.stop
    one.run()
    assert (handled, sent, one.given_up) == ([0, 2, 3, 4], [0, 2, 4], 1)


def test_a_signal_ends_one_pause_of_an_engine_without_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What woke it is taken; else every later pause would end at once, and burn a core."""
    woken: list[bool] = []

    class Recorded:
        @staticmethod
        def select(*arguments: Any) -> tuple[list[int], list[int], list[int]]:
            found, _, _ = select.select(arguments[0], (), (), 0.0)
            woken.append(bool(found))
            return found, [], []

    monkeypatch.setattr(engine, "select", Recorded)
    port = Starved([True] * 5)
    one: Engine[Any, Any] = Engine(port, port, clock=lambda: 0.0)
    port.wake = one._wake
    os.write(one._waker, b"\0")
    port.stop = one.stop
    one.run()
    assert woken[:5] == [True, False, False, False, False]


def test_an_engine_without_memory_waits_longer_and_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a bound, and from the start after a turn that had some; else it would burn a core."""
    waited: list[float | None] = []

    class Recorded:
        @staticmethod
        def select(*arguments: Any) -> tuple[tuple[int, ...], ...]:
            waited.append(arguments[3])
            return (), (), ()

    monkeypatch.setattr(engine, "select", Recorded)
    port = Starved([True] * 10 + [False] + [True] * 2)
    one: Engine[Any, Any] = Engine(port, port, clock=lambda: 0.0)
    port.stop = one.stop
    one.run()
    doubled = [min(SHORT_OF_MEMORY * 2**i, LONGEST_PAUSE) for i in range(10)]
    assert waited == [*doubled, None, *doubled[:2], None]
    assert doubled[-1] == LONGEST_PAUSE
    assert one.given_up == 12
