"""The door to a switch's rings: who gets in, and what other processes can hand over."""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import TOS_DATA, Action, Control, DType, Join, Shape
from iswitch.ports.rings import channel, meeting, memory
from iswitch.ports.rings.channel import LocalPort
from iswitch.ports.rings.memory import HEAD, BrokenRing
from iswitch.ports.rings.ring import RECORD, WRITTEN
from iswitch.ports.udp import UdpPort
from tests.support import ROOT, open_files

from .bench import HOME, bench, whole_group
from .test_rings import SHAPE, WAYS, joined, vector


def test_memory_has_one_writer() -> None:
    fd, own = memory.create(4096)
    own[HEAD] = 7
    with pytest.raises(PermissionError):
        mmap.mmap(fd, HEAD + 4096)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)  # it is the user's own file, after all
    with pytest.raises(PermissionError):
        mmap.mmap(again, HEAD + 4096)
    with pytest.raises(PermissionError):
        os.write(again, b"x")
    os.close(again)
    read = memory.attach(fd)
    assert read[HEAD] == 7
    with pytest.raises(TypeError):
        read[HEAD] = 8


def unsealed() -> int:
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, HEAD + 4096)
    return fd


def huge() -> int:
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, HEAD + memory.LARGEST + 64)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, memory.SEALS)
    return fd


@pytest.mark.parametrize("make", [unsealed, huge, lambda: os.open("/dev/null", os.O_RDWR)])
def test_other_memory_is_refused(make: object) -> None:
    with pytest.raises(BrokenRing):
        memory.attach(make())  # type: ignore[operator]


def test_only_a_socket_connected_to_the_switch_gets_rings(path: Path) -> None:
    with bench(path) as made:
        for target in (("127.0.0.1", 9), None):
            connection = meeting.connect(path)
            assert connection is not None
            with connection, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                if target:
                    sock.connect(target)
                fd, _ = memory.create(4096)
                bell = os.eventfd(0)
                meeting.say(connection, meeting.HELLO, [sock.fileno(), fd, bell])
                made.settle()
                with pytest.raises(BrokenRing):
                    meeting.hear(connection)
                os.close(fd)
                os.close(bell)


def test_what_is_not_hello_is_refused(path: Path) -> None:
    before = open_files()
    with bench(path) as made:
        for text, fds in ((b"hello", []), (meeting.HELLO, [0]), (b"1", [0, 0, 0])):
            connection = meeting.connect(path)
            assert connection is not None
            with connection:
                meeting.say(connection, text, fds)
                made.settle()
                with pytest.raises(BrokenRing):
                    meeting.hear(connection)
    assert open_files() == before


def test_a_hello_that_is_refused_leaves_no_descriptor(path: Path) -> None:
    with bench(path) as made:
        made.plug(1)
        fd, _ = memory.create(4096)
        ears, mouth = os.pipe()
        udp = made.workers[0].socket.fileno()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stray:
            given = (
                (b"", [0, 1, 2]),
                (meeting.HELLO, [fd, fd, ears]),
                (meeting.HELLO, [stray.fileno(), fd, ears]),
                (meeting.HELLO, [udp, ears, ears]),
                (meeting.HELLO, [udp, fd, mouth]),  # a write to it could wait for ever
            )
            for text, fds in given:
                before = open_files()
                connection = meeting.connect(path)
                assert connection is not None
                with connection:
                    meeting.say(connection, text, fds)
                    made.settle()
                    with pytest.raises(BrokenRing):
                        meeting.hear(connection)
                assert open_files() == before
        for one in (fd, ears, mouth):
            os.close(one)


def test_workers_that_write_without_end_leave_the_switch_time(path: Path) -> None:
    """For its timers, for signals, and for those who have no rings."""
    with bench(path) as made:
        made.plug(2)
        flood = Outgoing.control(made.address, b"\1" * 8)
        made.workers[0].push([flood])
        for count, _ in enumerate(made.port.pull()):
            assert count < 1000
            for worker in made.workers:
                worker.push([flood])
        assert made.port.deadline() == 0
        made.settle()
        assert made.port.deadline() is None


@WAYS
def test_a_worker_that_writes_without_end_keeps_no_other_waiting(path: Path, fast: bool) -> None:
    """Neither those with rings, which sum up, nor one that joins by UDP."""
    with bench(path) as made:
        made.plug(1)  # before the others, so that a turn could begin with it
        joined(made)
        if fast:
            made.compile()
        counters, flooding = made.switch.counters, made.workers[0]

        def turn() -> None:
            """Do what an engine does, while one ring is never empty."""
            flooding.push([Outgoing.control(made.address, b"\1" * 8)] * 100)
            if made.lane is None or not made.lane.ready() or made.look():
                for came, _ in zip(made.port.pull(), range(1000), strict=False):
                    made.port.push(made.switch.receive(came, 0.0))

        for round_ in range(3):
            for rank, worker in enumerate(made.workers[1:]):
                worker.push(
                    [vector(round_, rank, 0, SHAPE.segments)._replace(peers=(made.address,))]
                )
            for _ in range(5):
                turn()
            assert counters["aggregates"] == (round_ + 1) * SHAPE.segments
            for worker in made.workers[1:]:
                list(worker.pull())
        with closing(UdpPort(HOME, made.address[:2])) as other:
            join = Control(Action.JOIN, 8, 1000, Join.for_shape(SHAPE, expected=1)).build()
            other.push([Outgoing.control(made.address, join)])
            for _ in range(300):
                turn()
                if list(other.pull()):
                    break
            else:
                raise AssertionError("nobody looks at the socket")


@pytest.mark.parametrize(("count", "size"), [(0, 0), (1, 65508)])
def test_records_that_no_writer_writes_are_refused(path: Path, count: int, size: int) -> None:
    """Empty ones that fill nothing, and packets that are larger than UDP can carry."""
    with bench(path) as made:
        made.plug(1)
        worker = made.workers[0]
        assert isinstance(worker, LocalPort)
        assert worker.link is not None
        up = worker.link.up
        length = 64 + -(-count * size // 64) * 64
        RECORD.pack_into(up._heads, 0, length, count, size, size, TOS_DATA)
        up.words[WRITTEN] = length
        made.settle()
        assert worker.way == "udp"
        assert not made.switch.counters["rx_packets"]


def test_a_worker_that_is_stopped_is_invited_to_no_further_group(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("link", "members"):
        monkeypatch.setattr(f"iswitch.ports.rings.{module}.SIZE", 1 << 13)
    with bench(path) as made:
        made.plug(3)
        workers, made.workers = made.workers, made.workers[:2]
        out = Outgoing(
            tuple(w.address for w in workers), TOS_DATA, np.zeros((9, 400), np.uint8), 400
        )
        for _ in range(9):
            made.port.push([out])
            made.settle()
        invited = [m.number for m in made.port.rings._members.values()]  # type: ignore[attr-defined]
        assert invited == [2, 2, 1]
        assert len(made.came) == 2 * 81
        made.workers = workers
        made.settle()
        assert len(made.came) == 3 * 81
        made.port.push([out])
        assert whole_group(made)


def test_connections_that_cannot_be_accepted_wake_nobody(path: Path) -> None:
    with bench(path) as made:
        made.plug(1)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        waiting = meeting.connect(path)
        assert waiting is not None
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            for _ in range(3):  # the worker may have rung just before
                list(made.port.pull())
            assert not select.select([made.port], (), (), 0)[0]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        made.plug(1)
        assert made.workers[1].way == "shm"
        waiting.close()


def test_the_path_is_this_users_alone(path: Path, tmp_path: Path) -> None:
    listening = meeting.listen(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    listening.close()
    assert meeting.connect(path) is None  # nobody listens
    listening = meeting.listen(path)  # takes the place of the one that was killed
    listening.close()
    path.unlink()
    tmp_path.chmod(0o755)
    with pytest.raises(PermissionError):
        meeting.listen(tmp_path / "ring")
    assert meeting.connect(tmp_path / "ring") is None


def test_a_worker_may_have_many_descriptors(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "PATIENCE", 0.01)
    monkeypatch.setenv(meeting.VARIABLE, str(path))
    with bench(path) as made:
        many = [os.dup(1) for _ in range(1100)]
        try:
            port = LocalPort(("127.0.0.1", 0), made.address[:2])
        finally:
            for fd in many:
                os.close(fd)
        made.workers.append(port)
        made.settle()
        assert port.way == "shm"


def test_dead_sockets_of_switches_are_removed_and_no_others(path: Path) -> None:
    dead = [path.parent / name for name in (f"{meeting.PREFIX}dead-{os.getpid()}", "theirs")]
    for at in dead:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.bind(str(at))
    meeting.listen(path).close()
    path.unlink()
    assert [at.exists() for at in dead] == [False, True]
    dead[1].unlink()


@pytest.mark.root(reason="a namespace needs root")
def test_an_address_of_another_namespace_is_none_of_ours(path: Path) -> None:
    taker = f"""
import socket, sys, os, time
from pathlib import Path
from iswitch.ports.rings import meeting, memory
connection = meeting.connect(Path({str(path)!r}))
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.connect(("127.0.0.1", int(sys.argv[1])))
fd, _ = memory.create(4096)
meeting.say(connection, meeting.HELLO, [sock.fileno(), fd, os.eventfd(0)])
connection.setblocking(True)
sys.exit(connection.recv(10) != b"")
"""
    for enter, got_in in ((["unshare", "-n", "sh", "-c", 'ip link set lo up; "$@"', "sh"], False),
                          ([], True)):  # fmt: skip
        with bench(path) as made:
            command = [*enter, sys.executable, "-c", taker, str(made.address.port)]
            with subprocess.Popen(command, cwd=ROOT) as taking:
                while taking.poll() is None:
                    made.step()
                assert taking.returncode == got_in


def test_a_worker_that_is_closed_leaves_though_forked_processes_live(path: Path) -> None:
    with bench(path) as made:
        made.plug(1)
        worker = made.workers.pop()
        assert isinstance(worker, LocalPort)
        assert worker.link is not None
        inherited = os.dup(worker.link.connection.fileno())
        worker.close()
        made.settle()
        os.close(inherited)
        assert not made.port.rings._members  # type: ignore[attr-defined]


def test_a_process_without_rings_gets_its_packets_at_the_address_of_one_that_had_some(
    path: Path,
) -> None:
    """The former's sockets are open still, in a child that it has forked, say."""
    with bench(path) as made:
        made.plug(1)
        (former,) = made.workers
        assert isinstance(former, LocalPort)
        assert former.link is not None
        at = former.address[:2]
        former.socket.close()  # but its UNIX socket and its rings stay
        made.workers = [UdpPort(at, made.address[:2])]
        made.join(0, Shape.of(8, DType.INT32), 1)
        assert made.came, "the answer to its Join went into a ring that nobody reads"
        assert made.switch.sources
        former.link.hang_up()


def test_a_bell_that_would_block_keeps_the_switch_no_longer(path: Path) -> None:
    """A worker can make its eventfd block at any time, and fill it."""

    def too_long(*_: object) -> None:
        raise TimeoutError

    with bench(path) as made:
        made.plug(1)
        (worker,) = made.workers
        assert isinstance(worker, LocalPort)
        assert worker.link is not None
        os.eventfd_write(worker.link.bell, (1 << 64) - 2)
        worker.holds()
        os.set_blocking(worker.link.bell, True)
        out = Outgoing((worker.address,), TOS_DATA, np.zeros((1, 16), np.uint8), 16)
        before = signal.signal(signal.SIGALRM, too_long)
        signal.alarm(20)  # seconds, if it blocks
        made.port.push([out])
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        assert made.port.rings.in_turn  # type: ignore[attr-defined]
