"""The sockets of a switch with a parent: lines open with their jobs, and close with them."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Iterator

import pytest

from iswitch.core.format.counters import Counters
from iswitch.core.format.lines import port_of
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import TOS_CONTROL
from iswitch.core.jobs.sources import Sources
from iswitch.ports.lines import LinedPort
from iswitch.ports.udp import UdpPort

HERE = "127.0.0.1"


class Bench:
    """A lined port, and the socket of its parent."""

    def __init__(self) -> None:
        self.counters, self.sources = Counters(), Sources()
        self.parent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.parent.bind((HERE, 0))
        self.parent.settimeout(5.0)
        self.above = Address(*self.parent.getsockname())
        own = UdpPort((HERE, 0), counters=self.counters, members=self.sources)
        self.listening = own.address
        self.port = LinedPort(own, self.sources, self.counters)

    def line(self, number: int) -> Address:
        return self.above._replace(line=number)

    def says(self, line: int, payload: bytes) -> Address:
        """Send to the parent; the address from which it comes."""
        self.port.push([Outgoing.control(self.line(line), payload)])
        told, source = self.parent.recvfrom(100)
        assert told == payload
        return Address(*source)

    def hears(self) -> list[Burst]:
        """All that has come, in copies."""
        found: list[Burst] = []
        while select.select([self.port], [], [], 0.2)[0]:
            found += [burst._replace(rows=burst.rows.copy()) for burst in self.port.pull()]
        return found


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    with found.parent:
        yield found
        found.port.close()


def test_each_line_has_a_port_of_its_own(bench: Bench) -> None:
    for number in (0, 3, 8):
        bench.sources.enter(bench.line(number))
        source = bench.says(number, b"a request")
        assert source == (HERE, port_of(number, bench.listening.port), 0, 0)
        bench.parent.sendto(b"an answer", source[:2])
        (burst,) = bench.hears()
        assert burst.peer == bench.line(number)
        assert burst.rows.tobytes() == b"an answer"


def test_a_line_that_no_job_has_is_closed(bench: Bench) -> None:
    bench.sources.enter(bench.line(3))
    source = bench.says(3, b"a request")
    bench.sources.leave(bench.line(3))
    bench.hears()
    assert [*bench.port.pull()] == []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as another:
        another.bind(source[:2])
    bench.port.push([Outgoing.control(bench.line(3), b"too late")])
    assert bench.counters["tx_failed"] == 1


def test_a_line_hears_its_parent_only(bench: Bench) -> None:
    bench.sources.enter(bench.line(3))
    source = bench.says(3, b"a request")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS_CONTROL)
        stranger.sendto(b"a forged one", source[:2])
    assert bench.hears() == []


def test_a_port_that_another_program_has(bench: Bench) -> None:
    bench.sources.enter(bench.line(3))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as another:
        another.bind((HERE, port_of(3, bench.listening.port)))
        source = bench.says(3, b"a request")
    bench.parent.sendto(b"an answer", source[:2])
    (burst,) = bench.hears()
    assert burst.peer == bench.line(3)


def test_descriptors_that_run_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be sent is counted, and sent again when there are some."""
    bench.sources.enter(bench.line(3))

    def none_left(*_: object) -> UdpPort:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("iswitch.ports.lines.UdpPort", none_left)
        bench.port.push([Outgoing.control(bench.line(3), b"a request")])
    assert bench.counters["tx_failed"] == 1
    assert bench.says(3, b"a request").port == port_of(3, bench.listening.port)


@pytest.mark.parametrize("code", [errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.EACCES])
def test_what_icmp_says_of_the_parent_ends_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Anybody can forge it; what comes later is taken."""
    bench.sources.enter(bench.line(3))
    source = bench.says(3, b"a request")
    bench.parent.sendto(b"an answer", source[:2])
    assert select.select([bench.port], [], [], 5.0)[0]

    def unreachable(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(bench.port.lines[3]._receiver, "receive", unreachable)
        assert [*bench.port.pull()] == []
    (burst,) = bench.hears()
    assert burst.rows.tobytes() == b"an answer"
