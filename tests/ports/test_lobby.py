"""The lobby of a UDP port: strangers wait there, and their data is counted, many at once."""

from __future__ import annotations

import errno
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address
from iswitch.core.format.wire import Shape
from iswitch.core.jobs.sources import Sources
from iswitch.faults.impairment import Impairment
from iswitch.ports.impaired import ImpairedDatagrams
from iswitch.ports.kernel import lobby as lobby_module
from iswitch.ports.kernel.lobby import MOST_NAMED, Lobby, program
from iswitch.ports.udp import UdpPort
from tests.bench.flood import MISFIT_JOB, Flood, Pace
from tests.conftest import PATIENCE, pending, running_switch
from tests.support.parts import assert_accounted
from worker_lib import Worker

HERE = "127.0.0.1"
CONTROL, DATA = 0x0C, 0x1C


class Bench:
    """A port with a lobby, whose clocks stand still, and senders."""

    def __init__(self, stack: ExitStack, listen: str = HERE) -> None:
        self.now = 100.0
        self.spent = 0.0
        self.members = Sources()
        self.counters = Counters()
        self.port = UdpPort((listen, 0), counters=self.counters, members=self.members)
        stack.callback(self.port.close)
        assert self.port.lobby is not None
        self.lobby: Lobby = self.port.lobby
        self.lobby.clock = lambda: self.now
        self.lobby.spent = lambda: self.spent
        self.stack = stack
        self.to = (HERE, self.port.address.port)

    def sender(self, member: bool = False) -> socket.socket:
        sock = self.stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sock.bind((HERE, 0))
        if member:
            self.members.enter(Address(*sock.getsockname()))
        return sock

    def send(self, sock: socket.socket, tos: int, *payloads: bytes) -> None:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        for payload in payloads:
            sock.sendto(payload, self.to)

    def pull(self) -> list[tuple[int, int, bytes]]:
        """From which port, of which ToS, what."""
        return [
            (burst.peer.port, burst.tos, bytes(packet))
            for burst in self.port.pull()
            for packet in [*burst.rows[:-1], burst.rows[-1, : burst.tail]]
        ]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.mark.parametrize("listen", [HERE, "0.0.0.0"])
def test_members_and_strangers(stack: ExitStack, listen: str) -> None:
    bench = Bench(stack, listen)
    member, stranger = bench.sender(member=True), bench.sender()
    bench.pull()  # the kernel is told
    bench.send(stranger, DATA, b"x" * 12, b"x" * 9, b"", b"1234567")
    bench.send(stranger, 0x40, b"ordinary", b"")
    bench.send(stranger, CONTROL, b"control!", b"short")
    bench.send(member, DATA, b"12345678")
    s, m = stranger.getsockname()[1], member.getsockname()[1]
    assert bench.pull() == [
        (m, DATA, b"12345678"), (s, CONTROL, b"control!"), (s, CONTROL, b"short"),
    ]  # fmt: skip
    counted = {name: n for name, n in bench.counters.items() if n}
    assert counted == {
        "rx_packets": 6, "rx_bytes": 12 + 9 + 7 + 8, "data": 2, "stranger": 2, "short": 2,
        "ordinary": 2,
    }  # fmt: skip
    assert_accounted(bench.counters)


def test_who_becomes_a_member_is_one_at_once(stack: ExitStack) -> None:
    """Also what waits in the lobby is then a member's."""
    bench = Bench(stack)
    someone = bench.sender()
    bench.pull()
    bench.send(someone, DATA, b"12345678")
    address = Address(*someone.getsockname())
    bench.members.enter(address)
    assert bench.pull() == [(address.port, DATA, b"12345678")]
    bench.members.leave(address)
    bench.pull()
    bench.send(someone, DATA, b"12345678")
    assert bench.pull() == []
    assert bench.counters["stranger"] == 1


def test_the_lobby_has_a_share_of_the_time(stack: ExitStack) -> None:
    bench = Bench(stack)
    stranger, member = bench.sender(), bench.sender(member=True)
    for _ in bench.port.pull():
        pass
    bench.send(stranger, CONTROL, *[b"%08d" % i for i in range(100)])
    came = 0
    for burst in bench.port.pull():
        came += len(burst.rows)
        bench.spent += 0.001 * (came == lobby_module.AT_ONCE)  # what its answers cost
        bench.now += 0.001 * (came == lobby_module.AT_ONCE)
    assert came == lobby_module.AT_ONCE
    assert bench.port.deadline() == pytest.approx(100 + 0.001 / lobby_module.SHARE)
    impaired = ImpairedDatagrams(bench.port, {(0, "in"): Impairment(loss=0.1)}, 1, bench.counters)
    assert impaired.deadline() == bench.port.deadline()
    assert bench.pull() == []
    bench.send(member, CONTROL, b"12345678")
    assert [tos for _, tos, _ in bench.pull()] == [CONTROL]  # members are heard meanwhile
    bench.now = bench.port.deadline() or 0.0
    assert len(bench.pull()) == lobby_module.AT_ONCE


def test_the_lobby_is_not_closed_for_what_others_do_with_the_core(stack: ExitStack) -> None:
    """On a busy machine its answers take long, and cost no more than ever."""
    bench = Bench(stack)
    stranger = bench.sender()
    bench.send(stranger, CONTROL, *[b"%08d" % i for i in range(lobby_module.AT_ONCE)])
    for burst in bench.port.pull():
        bench.spent += 1e-5 * len(burst.rows)
        bench.now += 0.1 * len(burst.rows)
    closed_for = 1e-5 * lobby_module.AT_ONCE / lobby_module.SHARE
    assert bench.port.deadline() == pytest.approx(100 + closed_for)
    bench.send(stranger, CONTROL, b"a Leave!")
    assert [what for _, _, what in bench.pull()] == [b"a Leave!"]


def test_members_lose_a_share_of_what_the_switch_gets(stack: ExitStack) -> None:
    """Other processes leave it a twentieth of the core: members have nine tenths of that."""
    bench = Bench(stack)
    stranger, member = bench.sender(), bench.sender(member=True)
    bench.pull()
    cost = {CONTROL: 2e-5, DATA: 1e-3}  # of an answer, and of a contribution
    spent = dict.fromkeys(cost, 0.0)
    for _ in range(200):
        bench.send(stranger, CONTROL, *[b"%08d" % i for i in range(lobby_module.AT_ONCE)])
        bench.send(member, DATA, b"12345678")
        for burst in bench.port.pull():
            took = cost[burst.tos] * len(burst.rows)
            spent[burst.tos] += took
            bench.spent += took
            bench.now += 20 * took
    assert spent[CONTROL] <= 1.1 * lobby_module.SHARE * bench.spent
    assert bench.pull() != []  # no member waits: strangers have the core


def test_a_full_lobby_does_not_fill_the_members_queue(stack: ExitStack) -> None:
    bench = Bench(stack)
    stranger, member = bench.sender(), bench.sender(member=True)
    bench.pull()
    n = 5000
    bench.send(stranger, DATA, *[bytes(1400)] * n)
    bench.send(member, DATA, *[bytes(1400)] * 50)
    came = 0
    for _ in range(n):
        came += len(bench.pull())
        bench.now += 1
    assert came == 50
    bench.port.close()
    assert bench.counters["rx_overflow"] > 0
    assert bench.counters["stranger"] + bench.counters["rx_overflow"] == n


def test_the_program_names_only_so_many() -> None:
    members = [Address("10.1.2.3", port) for port in range(1, MOST_NAMED + 1)]
    assert len(program(members)) == 8 * (3 + 5 * MOST_NAMED + 1) < 8 * 4096


def test_a_kernel_without_memory_for_many(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many are named as it takes; the others are served all the same."""
    bench = Bench(stack)
    attach = Lobby._attach

    def tight(lobby: Lobby, code: bytes) -> bool:
        return len(code) <= 8 * 100 and attach(lobby, code)

    monkeypatch.setattr(Lobby, "_attach", tight)
    for port in range(100):
        bench.members.enter(Address("10.1.2.3", 1 + port))
    member = bench.sender(member=True)
    bench.pull()
    assert 0 < bench.lobby._named < 20
    bench.send(member, DATA, b"12345678")
    assert bench.pull() == [(member.getsockname()[1], DATA, b"12345678")]


def test_more_members_than_are_named(stack: ExitStack) -> None:
    """They are served through the lobby."""
    bench = Bench(stack)
    for port in range(MOST_NAMED):
        bench.members.enter(Address("10.1.2.3", 1 + port))
    member = bench.sender(member=True)
    bench.pull()
    bench.send(member, DATA, b"12345678")
    assert bench.pull() == [(member.getsockname()[1], DATA, b"12345678")]


def test_nobody_else_can_listen_there(stack: ExitStack) -> None:
    bench = Bench(stack)
    with pytest.raises(OSError, match="in use") as raised:
        UdpPort(bench.to, members=Sources())
    assert raised.value.errno == errno.EADDRINUSE


def test_without_a_lobby(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel takes no program, all are served alike."""
    monkeypatch.setattr(lobby_module, "SO_ATTACH_REUSEPORT_CBPF", 9999)
    port = UdpPort((HERE, 0), members=Sources())
    stack.callback(port.close)
    assert port.lobby is None
    sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    for _ in range(20):  # no second socket takes any of them
        sender.sendto(b"12345678", (HERE, port.address.port))
    assert sum(len(burst.rows) for burst in port.pull()) == 20


def flooded(where: tuple[str, int], stop: threading.Event, floods: list[Flood]) -> None:
    paces = [Pace(flood, 20_000) for flood in floods]
    while not stop.is_set():
        for pace in paces:
            pace.step(where)


def test_sums_under_a_flood() -> None:
    """Strangers send all there is: sums are exact, and every datagram is accounted for.

    They stay strangers: none is let into a job, where its flood would be a member's.
    """
    numel = 40_327
    shape = Shape.of(numel)
    stop = threading.Event()
    kinds = ("data", "malformed", "help", "garbage", "misfit")
    floods = [Flood(kind, shape, False, "127.0.0.9") for kind in kinds]
    sums: list[bool] = []
    with running_switch() as (process, where):
        elsewhere = Worker(where, MISFIT_JOB, 20, 1, timeout=PATIENCE)
        stranger = threading.Thread(target=flooded, args=(where, stop, floods))

        def work(rank: int) -> None:
            vector = np.arange(numel, dtype=np.float32) + rank
            with Worker(where, 7, numel, 3, timeout=PATIENCE) as worker:
                for _ in range(30):
                    got = worker.allreduce(vector)
                    sums.append(bool((got == 3 * np.arange(numel) + 3).all()))

        workers = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
        stranger.start()
        for thread in workers:
            thread.start()
        for thread in workers:
            thread.join()
        stop.set()
        stranger.join()
        elsewhere.leave()
        for flood in floods:
            flood.close()
        while pending(where[1]):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=PATIENCE)
    assert sums == [True] * 90
    counters = Counters()
    for line in printed.splitlines():
        name, number, *_ = line.split()
        counters[name] = int(number.replace(",", ""))
    assert_accounted(counters)
    sent = sum(flood.sent for flood in floods)
    assert sent > 1000
    of_workers = counters["accumulated"] + counters["late"] + counters["duplicate"]
    came = counters["rx_packets"] - of_workers + counters["rx_overflow"]
    assert sent <= came <= sent + 1000  # and the workers' control
    assert counters["stranger"] > 0
