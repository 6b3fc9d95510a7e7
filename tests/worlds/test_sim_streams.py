"""TCP sockets in virtual time: what programs see of them, what they cost, and who uses them."""

from __future__ import annotations

import errno
import selectors
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iswitch.sim.segments import HEAD, OFFERS
from iswitch.virtual.computing import Plan
from iswitch.virtual.sockets import NotVirtual
from topologies import Topology, simulate
from topologies.simulated import Simulation
from topologies.virtual.notebook import Floor, Seat
from worker_lib import AsynchronousWorker, Worker

PORT = 7000
FIRST = "10.26.0.1"  # the host of rank 0
FRAME = 1514


def between(
    serve: Callable[[socket.socket], Any],
    call: Callable[[socket.socket], Any],
    form: str = "star:2,rate=1Gbit,delay=1ms",
) -> list[Any]:
    """Connect rank 1 to rank 0; return what each function returns."""

    def work(seat: Seat) -> Any:
        if not seat.rank:
            with socket.create_server(("", PORT)) as door:
                sock, peer = door.accept()
                assert peer == sock.getpeername()
                with sock:
                    return serve(sock)
        with socket.create_connection((FIRST, PORT)) as sock:
            assert sock.getpeername() == (FIRST, PORT)
            return call(sock)

    return list(simulate(form, work))


def test_bytes_come_in_order_after_the_time_of_their_frames() -> None:
    """All frames on one line, one on the next, and the delays of both."""
    told = bytes(range(256)) * 4000  # 1,024,000 bytes
    most = FRAME - HEAD
    frames = -(-len(told) // most)

    def serve(sock: socket.socket) -> tuple[bytes, float]:
        held = bytearray(len(told))
        assert sock.recv_into(held, 0, socket.MSG_WAITALL) == len(told)
        return bytes(held), time.monotonic()

    def call(sock: socket.socket) -> float:
        began = time.monotonic()
        assert sock.sendmsg([told[:100], told[100:]]) == len(told)
        return began

    (held, ended), began = between(serve, call)
    assert held == told
    line = (len(told) + HEAD * frames) * 8 / 1e9
    last = FRAME * 8 / 1e9  # of the second line: the one before the last, which is shorter
    assert ended - began == pytest.approx(line + last + 2e-3, abs=1e-9)
    # SYN and its answer: a frame without payload on two lines each way
    assert began == pytest.approx(4 * ((HEAD + OFFERS) * 8 / 1e9 + 1e-3), abs=1e-9)


def test_the_end_of_a_stream_and_bytes_after_it() -> None:
    def serve(sock: socket.socket) -> list[Any]:
        seen: list[Any] = [sock.recv(3), sock.recv(3, socket.MSG_PEEK), sock.recv(100)]
        seen += [sock.recv(100), sock.recv(100)]  # the other side sends no more, but still reads
        sock.sendall(b"late")
        time.sleep(1.0)
        sock.sendall(b"too late")  # the other side has closed
        time.sleep(1.0)
        for act in (lambda: sock.send(b"x"), lambda: sock.recv(1)):
            with pytest.raises(ConnectionError) as caught:
                act()
            seen.append(type(caught.value))
        return seen

    def call(sock: socket.socket) -> bytes:
        sock.sendall(b"hello")
        sock.shutdown(socket.SHUT_WR)
        return sock.recv(100)

    seen, answer = between(serve, call)
    assert seen == [b"hel", b"lo", b"lo", b"", b"", BrokenPipeError, ConnectionResetError]
    assert answer == b"late"


def test_waits_are_virtual_and_end() -> None:
    def serve(sock: socket.socket) -> list[float]:
        began = time.monotonic()
        sock.settimeout(0.25)
        with pytest.raises(TimeoutError):
            sock.recv(1)
        times = [time.monotonic() - began]
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, np.array([0, 500_000]).tobytes())
        with pytest.raises(BlockingIOError):
            sock.recv(1)
        times.append(time.monotonic() - began)
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1)
        for kind in (selectors.EpollSelector, selectors.PollSelector, selectors.SelectSelector):
            with kind() as selector:
                selector.register(sock, selectors.EVENT_READ)
                assert not selector.select(0.25)
                times.append(time.monotonic() - began)
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            ((key, _),) = selector.select()
            assert key.fileobj is sock
        for kind in (selectors.EpollSelector, selectors.PollSelector, selectors.SelectSelector):
            with kind() as selector:
                selector.register(sock, selectors.EVENT_READ)
                ((key, events),) = selector.select()
                assert (key.fileobj, events) == (sock, selectors.EVENT_READ)
                selector.modify(sock, selectors.EVENT_WRITE)
                assert selector.select(0)
        times.append(time.monotonic() - began)
        return times

    def call(sock: socket.socket) -> None:
        time.sleep(3600)
        sock.sendall(b"x")

    times, _ = between(serve, call)
    assert times == pytest.approx([0.25, 0.75, 1.0, 1.25, 1.5, 3600], abs=0.01)


def test_connections_that_nobody_accepts_are_reset() -> None:
    """Whether the listening process has seen them or not; and one that has given up never comes."""

    def work(seat: Seat) -> Any:
        if not seat.rank:
            with socket.create_server(("", PORT)) as door:
                time.sleep(0.1)
                door.settimeout(10.0)
                with pytest.raises(TimeoutError):
                    door.accept()
                time.sleep(10.0)
            return time.monotonic()
        with socket.socket() as sock:
            sock.settimeout(1e-3)
            with pytest.raises(TimeoutError):
                sock.connect((FIRST, PORT))
        time.sleep(12.0 if seat.rank == 1 else 20.1 - time.monotonic() - 5e-3)
        with socket.create_connection((FIRST, PORT)) as sock:
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
            return time.monotonic()

    closed, *ends = simulate("star:3,delay=1ms", work)
    assert ends == pytest.approx([closed + 2e-3] * 2, abs=1e-9)


def parted(work: Callable[[Seat], Any], down: float, up: float | None) -> list[Any]:
    """Run with the cable of rank 1 pulled out at a time, and plugged in again."""
    simulation = Simulation(Topology.parse("star:2,rate=1Gbit"), latency=0.0)
    network = simulation.network
    ends = simulation.address("h2"), simulation.address("s1")
    network.at(down, lambda: network.plug(*ends, up=False))
    if up is not None:
        network.at(up, lambda: network.plug(*ends, up=True))
    return list(Floor[Any](simulation, Plan("zero")).run(work))


def test_frames_wait_for_a_cable_and_come_in_their_order() -> None:
    told = np.random.default_rng(1).bytes(3_000_000)  # 24 ms and more on each line

    def work(seat: Seat) -> Any:
        if not seat.rank:
            with socket.create_server(("", PORT)) as door, door.accept()[0] as sock:
                sock.sendall(told)
                return sock.recv(len(told), socket.MSG_WAITALL) == told, time.monotonic()
        with socket.create_connection((FIRST, PORT)) as sock:
            for part in (told[: 10**6], told[10**6 :]):
                sock.sendall(part)
            return sock.recv(len(told), socket.MSG_WAITALL) == told, time.monotonic()

    for same, ended in parted(work, 0.01, 1.0):
        assert same
        assert 1.4 < ended < 1.5  # tried after 0.2, 0.6 and 1.4 s


def test_a_cable_that_stays_out_ends_connections_with_a_sentence() -> None:
    def work(seat: Seat) -> Any:
        if not seat.rank:
            with socket.create_server(("", PORT)) as door, door.accept()[0] as sock:
                return [said(lambda: sock.recv(1)), said(lambda: sock.send(b"x"))]
        with socket.create_connection((FIRST, PORT)) as sock:
            time.sleep(1.0)
            sock.sendall(b"x")
            found = [said(lambda: sock.recv(1)), said(lambda: sock.sendall(b"x"))]
        return [*found, said(lambda: socket.create_connection((FIRST, PORT)))]

    def said(act: Callable[[], Any]) -> tuple[str, float]:
        with pytest.raises(TimeoutError) as caught:
            act()
        return str(caught.value), round(time.monotonic(), 3)

    sentence = "[Errno 110] the link between h2 and s1 has been down for 30 s"
    first, second = parted(work, 0.5, None)
    assert first == [(sentence, 31.0)] * 2
    assert second == [(sentence, 31.0), (sentence, 31.0), (sentence, 61.0)]


def test_what_cannot_be_is_refused_with_a_sentence() -> None:
    def work(seat: Seat) -> list[str]:
        said = []
        door = socket.create_server(("127.0.0.1", PORT))
        datagrams = socket.socket(type=socket.SOCK_DGRAM)
        apart = socket.socket()
        datagrams.connect((FIRST, PORT))
        assert datagrams.getsockname()[0] == f"10.26.0.{seat.rank + 1}"
        for act in (
            lambda: socket.create_connection((FIRST, 1)),
            lambda: socket.create_server(("", PORT)),
            lambda: socket.create_connection(("10.9.9.9", 1)),
            lambda: socket.create_server(("10.9.9.9", 1)),
            lambda: datagrams.send(b"x"),
            lambda: datagrams.sendto(b"x", (FIRST, PORT)),
            lambda: door.detach(),
            lambda: apart.send(b"x"),
        ):
            try:
                act()
            except OSError as error:
                said.append(f"{type(error).__name__} {error}")
        assert len(said) == 8
        datagrams.close()
        apart.close()
        with socket.create_connection(("127.0.0.1", PORT)) as sock:  # at this host
            assert sock.getpeername()[0].startswith("127.")
        door.close()
        socket.create_server(("", PORT)).close()  # the port is free again
        return said

    for said in simulate("star:2", work):
        assert said[0].startswith("ConnectionRefusedError")
        assert f"[Errno {errno.EADDRINUSE}]" in said[1]
        assert "10.9.9.9 is no host of the simulated network" in said[2]
        assert "10.9.9.9 is not the address of h" in said[3]
        assert [one.split()[0] for one in said[4:7]] == [NotVirtual.__name__] * 3
        assert "knows no virtual time" in said[4]
        assert f"[Errno {errno.ENOTCONN}]" in said[7]


def test_names_of_hosts_are_known() -> None:
    """Of the network, and localhost; what another machine is called is asked outside."""

    def work(seat: Seat) -> list[Any]:
        own = f"h{seat.rank + 1}"
        with socket.socket() as door:
            door.bind(("localhost", 0))
            door.listen()
            with socket.socket() as sock:
                sock.connect(("localhost", door.getsockname()[1]))
            with socket.socket() as sock:
                sock.connect(("", door.getsockname()[1]))
                assert sock.getpeername()[0] == "127.0.0.1"
        assert socket.gethostname() == own
        with socket.create_server((socket.gethostname(), PORT)) as door:
            time.sleep(1.0)
            with socket.create_connection(("h1", PORT)) as sock:
                peers = [sock.getpeername()]
            time.sleep(1.0)
            assert door.getsockname() == (socket.gethostbyname(own), PORT)
        with Worker(numel=10, **seat.arguments | {"switch": ("localhost", 26963)}) as worker:
            worker.allreduce(np.ones(10, np.float32))
        return [*peers, socket.getfqdn(FIRST), socket.gethostbyaddr("h2")[2]]

    assert simulate("star:2", work) == [[(FIRST, PORT), "h1", ["10.26.0.2"]]] * 2


def test_connections_share_a_line_and_lose_nothing() -> None:
    """Four at once take four times as long as one, on links that lose every tenth packet."""

    def work(seat: Seat) -> float:
        if not seat.rank:
            with socket.create_server(("", PORT)) as door:
                socks = [door.accept()[0] for _ in range(seat.num_workers - 1)]
                for sock in socks:
                    with sock:
                        assert len(sock.recv(10**6, socket.MSG_WAITALL)) == 10**6
                return time.monotonic()
        with socket.create_connection((FIRST, PORT)) as sock:
            sock.sendall(bytes(10**6))
            sock.recv(1)
            return time.monotonic()

    one = simulate("star:2,rate=1Gbit,loss=10%,queue=10", work)
    four = simulate("star:5,rate=1Gbit,loss=10%,queue=10", work)
    wire = 1e6 / (FRAME - HEAD) * FRAME * 8 / 1e9
    assert one[0] == pytest.approx(wire, rel=0.01)
    assert four[0] == pytest.approx(4 * wire, rel=0.01)
    assert min(four[1:]) > 0.95 * max(four[1:])  # they share it evenly


def test_the_switch_and_a_connection_share_a_line() -> None:
    """A round beside a bulk transfer on the lines of one of its workers takes longer, and ends."""

    def work(seat: Seat, bulk: bool) -> float:
        own = np.ones(200_000, np.float32)
        with Worker(numel=200_000, **seat.arguments) as worker, ExitStack() as stack:
            if not seat.rank:
                stack.enter_context(socket.create_server(("", PORT)))
            worker.allreduce(own)
            if bulk and seat.rank:
                sock = stack.enter_context(socket.create_connection((FIRST, PORT)))
                sock.sendall(bytes(10**7))
            assert (worker.allreduce(own) == 2).all()
            return worker.allreduce_seconds[-1]

    form = "star:2,rate=1Gbit"
    alone = max(simulate(form, lambda seat: work(seat, False)))
    beside = max(simulate(form, lambda seat: work(seat, True)))
    assert 1.3 * alone < beside < 3 * alone


def test_asynchronous_workers_take_states_and_repeat_to_the_last_bit() -> None:
    """The later ones begin with the first one's state, over a connection; versions are equal."""
    numel = 5000

    def work(seat: Seat) -> Any:
        weights = np.full(numel, seat.rank, np.float32)
        read = np.empty_like(weights)

        def update(total: np.ndarray, contributions: int, _: int) -> None:
            weights[:] -= total / contributions

        with AsynchronousWorker(
            numel=numel, update=update, state=[weights], check=True, **seat.arguments
        ) as worker:
            chance = np.random.default_rng(seat.rank)
            for _ in range(12):
                version = worker.read([read])
                time.sleep(0.002 * (1 + seat.rank))
                worker.contribute(chance.standard_normal(numel, np.float32), version)
            stats = worker.stats()
            return time.monotonic(), {
                name: stats[name]
                for name in ("digests", "staleness", "stale", "snapshots_taken", "contributed")
            }

    found = [simulate("star:3,rate=1Gbit,delay=10us", work) for _ in range(2)]
    assert found[0] == found[1]
    stats = [stats for _, stats in found[0]]
    assert sum(one["snapshots_taken"] for one in stats) >= 1
    both = stats[0]["digests"].keys() & stats[1]["digests"].keys() & stats[2]["digests"].keys()
    assert len(both) > 5
    assert all(len({one["digests"][version] for one in stats}) == 1 for version in both)


SCRIPT = """
import sys, time
import numpy as np
from worker_lib.strategies import make
for name in sys.argv[1:]:
    with make(name, 3000, timeout=60) as strategy:
        for i in range(2):
            total = strategy.allreduce(np.full(3000, strategy.rank + i, np.float32))
            print(name, total.sum(), time.monotonic())
"""


def test_unmodified_programs_of_ring_ps_and_tree_repeat(tmp_path: Path) -> None:
    """Processes of their own, which meet at MASTER_ADDR; each gradient is charged."""
    from tests.worlds.test_run import run

    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    options = "--world", "sim", "--topology", "star:3,rate=1Gbit", "--compute", "fixed:3ms"
    seen = []
    for _ in range(2):
        status, out, err = run(*options, "--", sys.executable, str(path), "ring", "ps", "tree")
        assert status == 0, err
        seen.append(sorted(out.splitlines()))
    assert seen[0] == seen[1]
    assert len(seen[0]) == 18
    for name in ("ring", "ps", "tree"):
        lines = [line.split() for line in seen[0] if f"| {name} " in line]
        assert {line[3] for line in lines} == {"9000.0", "18000.0"}
        ends = sorted(float(line[4]) for line in lines if line[0] == "h1")
        assert ends[1] - ends[0] > 0.003
