"""Workers that find no switch, are not let in, or wait in vain."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA, Ack, Action, Control, Status
from tests.conftest import StartSwitch
from tests.support import ROOT
from tests.support.workers import NUMEL, PATIENCE, Make, Where, make, ones, pool, together
from worker_lib import (
    AllreduceTimeout,
    Refused,
    SwitchUnreachable,
    TooFewWorkers,
    Worker,
    WorkerError,
)
from worker_lib.membership import Membership

__all__ = ["make", "pool"]  # fixtures


# Nobody there, not let in


@pytest.mark.parametrize("deaf", [True, False])
def test_no_switch(deaf: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        where = silent.getsockname()
        if not deaf:
            silent.close()
        began = time.monotonic()
        with pytest.raises(SwitchUnreachable) as raised:
            Worker(where, 1, 10, timeout=0.3)
        assert 0.3 <= time.monotonic() - began < 3
    address = "{}:{}".format(*where)
    assert f"no answer from a switch at {address} within 0.3 s" in str(raised.value)
    assert ("nothing was heard" if deaf else "the connection was refused") in str(raised.value)
    assert f"iswitch switch --listen {address}" in str(raised.value)
    assert str(raised.value).endswith("--parent, look whether that runs") == deaf


def test_another_program_at_the_address_of_a_switch() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as echo:
        echo.bind(("127.0.0.1", 0))

        def answer() -> None:
            packet, peer = echo.recvfrom(2048)
            echo.sendto(packet, peer)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(SwitchUnreachable, match="another program may have that port"):
            Worker(echo.getsockname(), 1, 10, timeout=0.3)


def test_a_switch_that_has_lost_the_one_above_it_is_no_other_program(
    start_switch: StartSwitch, job: int
) -> None:
    process, root = start_switch()
    _, below = start_switch("127.0.0.1:0", "--parent", "{}:{}".format(*root))
    with Worker(below, job, NUMEL, 1, on_member_lost="raise", timeout=2) as worker:
        worker.allreduce(ones(1))
        process.kill()
        process.wait()
        with pytest.raises(SwitchUnreachable, match=r"other packets came .* --parent, look"):
            worker.reset()


def test_a_worker_of_iswitch_run_that_asks_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISWITCH_SWITCH", "10.26.255.254:26963")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
        nobody.bind(("127.0.0.1", 0))
        with pytest.raises(SwitchUnreachable, match="take Worker"):
            Worker(nobody.getsockname(), 1, 10, timeout=0.2)


def test_switch_by_name(switch: Where, job: int) -> None:
    with Worker(("localhost", switch[1]), job, NUMEL, 1, timeout=PATIENCE) as worker:
        assert (worker.allreduce(ones(2)) == 2).all()


@pytest.mark.parametrize(
    ("kwargs", "own"),
    [
        ({"numel": 999}, "999 elements of float32, sum, synchronous, E = 366;"),
        ({"dtype": np.int32}, "1000 elements of int32, sum, synchronous, E = 366;"),
        ({"op": "max"}, "1000 elements of float32, max, synchronous, E = 366;"),
        (
            {"op": "maxloc", "dtype": "float32_int32"},
            "1000 elements of float32_int32, maxloc, synchronous, E = 183;",
        ),
        ({"partial": True}, "1000 elements of float32, sum, synchronous, E = 366, partial;"),
    ],
)
def test_mismatch(switch: Where, job: int, make: Make, kwargs: dict[str, object], own: str) -> None:
    (alone,) = make(1)
    arguments = {"numel": NUMEL, "timeout": PATIENCE, **kwargs}
    with pytest.raises(Refused, match=rf"JOIN refused in job {job}: .*mend the odd one") as raised:
        Worker(switch, job, **arguments)  # type: ignore[arg-type]
    assert (raised.value.action, raised.value.status) == (Action.JOIN, Status.MISMATCH)
    assert f"this worker's: {own} the job's: `iswitch ctl snapshot`" in str(raised.value)
    assert (alone.allreduce(ones(3)) == 3).all()


def test_joining_has_its_whole_time_however_long_kernels_take_to_load(
    switch: Where, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    join = Membership.join

    def joined(self: Membership, timeout: float, resized: Any) -> None:
        given.append(timeout)
        join(self, PATIENCE, resized)

    monkeypatch.setattr(Membership, "join", joined)
    monkeypatch.setattr("worker_lib.driving.ring_rounds.load", lambda _: time.sleep(0.1))
    with Worker(switch, job, NUMEL, 1, timeout=0.05):
        assert given == [0.05]


def test_only_two_of_three(switch: Where, job: int, pool: ThreadPoolExecutor) -> None:
    joining = [pool.submit(Worker, switch, job, NUMEL, 3, timeout=0.5) for _ in range(2)]
    for future in joining:
        with pytest.raises(WorkerError, match=rf"only 2 of 3 workers joined job {job} within 0.5"):
            future.result(PATIENCE)


# Waiting in vain


def test_timeout_names_whom_it_waits_for(make: Make, pool: ThreadPoolExecutor) -> None:
    first, second, third = make(3)
    together(pool, [first, second, third], [ones()] * 3)
    for _ in range(2):
        with pytest.raises(AllreduceTimeout) as raised:
            first.allreduce(ones(5), timeout=0.3)
    error = raised.value
    at = ["{}:{}".format(*worker._port.socket.getsockname()) for worker in (second, third)]
    told, last = re.split(r"(?<=last heard )\d\.\d", str(error))
    assert told == (
        "round 1 not done within 0.3 s: 3 of 3 segments missing (0-2); waiting for the "
        f"contributions of rank 1 ({at[0]}), rank 2 ({at[1]}): ranks 1, 2 are in the job, last "
        "heard "
    )
    assert last == " s ago (heartbeats come every 3 s), and may only be late"
    assert (error.round, error.missing, error.ranks) == (1, [(0, 3)], [1, 2])
    # The round stays open: who calls again with the same vector goes on.
    outs = together(pool, [first, second, third], [ones(5), ones(6), ones(7)])
    assert all((out == 18).all() for out in outs)
    outs = together(pool, [first, second, third], [ones(1), ones(2), ones(3)])
    assert all((out == 6).all() for out in outs)


def test_timeout_without_a_switch(start_switch: StartSwitch) -> None:
    process, where = start_switch()
    with process:
        worker = Worker(where, 1, NUMEL, 1, timeout=PATIENCE)
        process.kill()
        process.wait(PATIENCE)
        with pytest.raises(AllreduceTimeout, match=r"does not answer: is it running") as raised:
            worker.allreduce(ones(), timeout=0.3)
        assert raised.value.ranks is None
        began = time.monotonic()
        worker.leave()  # nobody is there to be told
        assert time.monotonic() - began < 5


def test_a_flood_does_not_hold_off_the_timeout() -> None:
    """Whatever keeps coming: a call ends in time, and Help is asked for meanwhile."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as switch:
        switch.bind(("127.0.0.1", 0))
        switch.settimeout(PATIENCE)
        done = threading.Event()

        def play() -> None:
            packet, peer = switch.recvfrom(100)
            ack = Control(Action.ACK, 1, Control.parse(packet).request, Ack(Action.JOIN, 0, 0, 1))
            switch.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS_CONTROL)
            switch.sendto(ack.build(), peer)
            switch.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS_DATA)
            while not done.is_set():
                switch.sendto(bytes(8 + 4 * 366), peer)  # round 0, index 0, again and again

        thread = threading.Thread(target=play)
        thread.start()
        worker = Worker(switch.getsockname(), 1, NUMEL, timeout=PATIENCE)
        began = time.monotonic()
        try:
            with pytest.raises(AllreduceTimeout):
                worker.allreduce(ones(), timeout=0.5)
            assert time.monotonic() - began < 5
            assert worker.stats()["helps"] > 1
        finally:
            done.set()
            thread.join()
            worker.timeout = 0.1
            worker.leave()


@pytest.mark.root(reason="only root can make a network namespace")
def test_a_way_with_a_small_mtu() -> None:
    """E is made to fit; a larger one, asked for, is cut by IP rather than lost."""
    code = """
        import fcntl, socket, struct, subprocess, sys
        import numpy as np
        from worker_lib import Worker
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, 0x8922, struct.pack("16si12x", b"lo", 1400))  # SIOCSIFMTU
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS: up
        switch = subprocess.Popen(
            [sys.executable, "-m", "iswitch", "switch", "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE, text=True,
        )
        port = int(switch.stdout.readline().split(":")[1])
        for given, used in [(None, 341), (366, 366)]:
            with Worker(
                ("127.0.0.1", port), 1, 20_000, 1, elements_per_segment=given, timeout=5
            ) as worker:
                assert worker.shape.elements == used, worker.shape
                assert (worker.allreduce(np.ones(20_000, np.float32)) == 1).all()
                assert worker.stats()["tx_failed"] == 0
        switch.terminate()
        switch.communicate()
        """
    run = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(
        ["unshare", "--net", *run], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_switch_whose_name_is_unknown() -> None:
    with pytest.raises(SwitchUnreachable, match=r"cannot reach no\.such\.host\.invalid:9 .*mend"):
        Worker(("no.such.host.invalid", 9), 1, 10)


@pytest.mark.parametrize("bind", [("0.0.0.0", 0), ("127.0.0.1", 0)])
def test_a_broadcast_address_is_that_of_no_switch(bind: tuple[str, int]) -> None:
    broadcast = r"cannot reach 127\.255\.255\.255:9 from \S+: it is a broadcast address.*mend"
    with pytest.raises(SwitchUnreachable, match=broadcast):
        Worker(("127.255.255.255", 9), 1, 10, bind=bind)


def test_workers_that_disagree_on_their_number_are_told(switch: Where, job: int) -> None:
    vector = np.ones(10, np.float32)
    both = r"made with num_workers=2, but the job expects 3: give all its workers one num_workers"
    with ThreadPoolExecutor() as pool:
        other = pool.submit(Worker, switch, job, 10, 3, timeout=5)
        with Worker(switch, job, 10, 2, timeout=5) as worker:
            with pytest.raises(AllreduceTimeout, match=both):
                worker.allreduce(vector, timeout=1)
            with pytest.raises(TooFewWorkers, match=r"only 2 of 3 .* num_workers"):
                other.result(20)
            with pytest.raises(AllreduceTimeout, match=f"rank . is missing.*{both}"):
                worker.allreduce(vector, timeout=1)


@pytest.mark.parametrize("ranked", [True, False])
def test_too_few_workers_are_named(switch: Where, job: int, ranked: bool) -> None:
    """Each names the missing ranks, also those whose time is up after others have left."""

    def join(rank: int) -> str:
        with pytest.raises(TooFewWorkers) as caught:
            Worker(switch, job, 10, 4, rank=rank if ranked else None, timeout=2 + rank / 4)
        return str(caught.value)

    with ThreadPoolExecutor() as pool:
        for said in pool.map(join, (0, 2, 3)):
            assert said.startswith(f"only 3 of 4 workers joined job {job} within ")
            if ranked:
                assert " s: rank 1 is missing; are all of them running" in said
            else:
                assert re.search(r" s, those at (127.0.0.1:\d+, ){2}127.0.0.1:\d+; are all", said)


def test_constructor_that_fails_leaves_the_job(switch: Where, job: int) -> None:
    """Else the next attempt in the same job would wait for the member that is no more."""
    with pytest.raises(WorkerError, match="only 1 of 2 workers joined"):
        Worker(switch, job, 10, 2, timeout=0.3)
    with Worker(switch, job, 10, timeout=5) as alone:
        assert (alone.allreduce(np.ones(10, np.float32)) == 1).all()
