"""`iswitch switch` as a process: what it prints, how it ends, what it may use."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.core.format.counters import COUNTERS, DROPS
from iswitch.core.format.wire import Shape
from iswitch.core.switch import Switch
from iswitch.ports.engine import Engine
from iswitch.ports.udp import UdpPort
from tests.conftest import heed_interrupts, pending
from tests.support import ROOT
from worker_lib import Worker

pytestmark = pytest.mark.serial

PATIENCE = 20.0  # seconds until a test is given up
COMMAND = [sys.executable, "-m", "iswitch", "switch"]


@contextmanager
def switch(
    *options: str, prefix: Sequence[str] = (), listen: str = "127.0.0.1:0"
) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    """A running switch: its process, and where it listens."""
    command = [*prefix, *COMMAND, "--listen", listen, *options]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    ) as process:
        try:
            assert process.stdout is not None
            address = r"(127\.0\.0\.1):(\d+)"
            as_json = rf'{{"listening": "{address}"}}\n'
            ready = as_json if "--json" in options else rf"listening {address}\n"
            found = re.fullmatch(ready, process.stdout.readline())
            assert found, process.communicate(timeout=PATIENCE)
            yield process, (found[1], int(found[2]))
        finally:
            process.kill()


def end(process: subprocess.Popen[str], signum: int = signal.SIGINT) -> str:
    """Stop it; what it printed after its first line."""
    process.send_signal(signum)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert err == ""
    return out


def rounds(
    where: tuple[str, int], workers: int, numel: int, count: int, **kwargs: object
) -> list[float]:
    """Do rounds of ones; the last sum that each worker got, which is one number throughout."""

    def work(_: int) -> float:
        with Worker(where, 7, numel, workers, timeout=PATIENCE, **kwargs) as worker:  # type: ignore[arg-type]
            out = np.empty(numel, np.float32)
            for _ in range(count):
                worker.allreduce(np.ones(numel, np.float32), out)
            (value,) = set(out.tolist())
            return float(value)

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, range(workers)))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_counters_as_json(signum: int) -> None:
    with switch("--json") as (process, where):
        assert rounds(where, 2, 1000, 10) == [2.0, 2.0]
        counters = json.loads(end(process, signum))
    assert set(counters) == {*COUNTERS, *DROPS}
    assert counters["data"] == counters["accumulated"] == 2 * 10 * 3
    assert counters["aggregates"] == 10 * 3
    assert counters["rx_packets"] == counters["data"] + counters["control"]
    assert {name: counters[name] for name in DROPS if counters[name]} == {}


@pytest.mark.parametrize("options", [["--json"], []])
def test_sigusr1_prints_the_counters_and_ends_nothing(options: list[str]) -> None:
    with switch(*options) as (process, where):
        assert process.stderr is not None
        said = ""
        for segments in (3, 6):
            assert rounds(where, 1, 1000, 1) == [1.0]
            process.send_signal(signal.SIGUSR1)
            wanted = rf"aggregates\"?:? +{segments}\b"
            while not re.search(wanted, said):
                said += os.read(process.stderr.fileno(), 1 << 16).decode()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


EARLY = """
import os, signal, sys
from iswitch import __main__
from iswitch.system import boundary
boundary.own_process = lambda: os.kill(os.getpid(), signal.SIGUSR1)
sys.exit(__main__.main())
"""


@pytest.mark.parametrize(("command", "status"), [("switch", 0), ("ctl", -signal.SIGUSR1)])
def test_sigusr1_ends_no_switch_that_is_still_loading(command: str, status: int) -> None:
    """Other commands leave it alone: the programs that they start would inherit it."""
    words = [sys.executable, "-c", EARLY, command, "--help"]
    assert subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL).returncode == status


def test_sigusr1_holds_up_nobody_where_nobody_reads() -> None:
    """Stderr is a pipe that is full; who reads it at last gets the counters, whole."""
    with switch("--json") as (process, where):
        assert process.stderr is not None
        pipe = process.stderr.fileno()
        other = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:
                os.write(other, b"\0")
        os.close(other)
        for _ in range(3):
            process.send_signal(signal.SIGUSR1)
            assert rounds(where, 2, 1000, 10) == [2.0, 2.0]
        said = b""
        while b"\n" not in said:
            said += os.read(pipe, 1 << 16).lstrip(b"\0")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert json.loads(said.splitlines()[0]).keys() == {*COUNTERS, *DROPS}


def test_a_signal_that_another_thread_takes_is_not_slept_over() -> None:
    """Only the kernel knows which one takes it; it interrupts the sleep of that one only."""
    port = UdpPort(("127.0.0.1", 0))
    engine = Engine(Switch(), port)
    before = signal.signal(signal.SIGUSR1, lambda *_: engine.stop())

    def take() -> None:
        time.sleep(0.1)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        if not ended.wait(2):
            engine.stop()
            late.append(engine)

    ended = threading.Event()
    late: list[object] = []
    thread = threading.Thread(target=take)
    thread.start()
    engine.run()
    ended.set()
    thread.join()
    assert not late
    signal.signal(signal.SIGUSR1, before)
    port.close()


def test_under_nohup_sighup_ends_nothing() -> None:
    with switch(prefix=["nohup"]) as (process, where):
        process.send_signal(signal.SIGHUP)
        assert rounds(where, 1, 1000, 1) == [1.0]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0


def test_counters_as_text() -> None:
    with switch() as (process, where):
        assert rounds(where, 1, 1000, 400) == [1.0]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"no iSwitch traffic", where)
        time_out = time.monotonic() + PATIENCE
        while pending(where[1]):
            assert time.monotonic() < time_out
        lines = end(process).splitlines()
    counts = {line.split()[0]: line.split()[1] for line in lines}
    assert counts["accumulated"] == counts["aggregates"] == "1,200"
    assert counts["ordinary"] == "1"
    assert "late" not in counts  # what is zero is not shown
    (ordinary,) = (line for line in lines if line.startswith("ordinary"))
    assert ordinary.endswith(f"drop: {DROPS['ordinary']}")


def test_stops_when_nobody_ever_came() -> None:
    with switch() as (process, _):
        assert [line.split()[:2] for line in end(process).splitlines()] == [
            ["rx_packets", "0"],
            ["tx_packets", "0"],
        ]


def test_a_policy_that_passes_on_without_a_switch_above_is_warned_of() -> None:
    with switch("--policy", "preempt", "--slots", "64") as (process, _):
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert "--policy preempt has no switch above" in err
    assert "--parent HOST:PORT" in err


def test_the_port_asked_for() -> None:
    with switch() as (process, where):
        end(process)
    with switch(listen="{}:{}".format(*where)) as (process, again):
        assert again == where
        assert rounds(where, 2, 10, 1) == [2.0, 2.0]
        end(process)


def test_address_in_use() -> None:
    with switch() as (process, where):
        address = "{}:{}".format(*where)
        done = subprocess.run(
            [*COMMAND, "--listen", address], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr == (
            f"iswitch switch: cannot listen at {address}: Address already in use; is another "
            "switch running there? --listen 127.0.0.1:0 takes any free port\n"
        )
        assert rounds(where, 1, 10, 1) == [1.0]  # the first goes on
        end(process)


def test_address_of_another_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["switch", "--listen", "203.0.113.1:5000"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "cannot listen at 203.0.113.1:5000: " in printed.err
    assert "no address of this machine" in printed.err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name not known"), "Name not known; mend the name"),
        (PermissionError(errno.EACCES, "Permission denied"), "ports below 1024 are for root"),
        (OSError(errno.ENOBUFS, "No buffer space"), "takes any free port"),
    ],
)
def test_address_that_cannot_be_listened_at(
    error: OSError,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("iswitch.serving.opening.UdpPort", Mock(side_effect=error))
    assert main(["switch"]) == 2
    complaint = capsys.readouterr().err
    assert words in complaint
    assert "another switch" not in complaint


@pytest.mark.parametrize(
    "words",
    [
        "--listen :",
        "--listen 127.0.0.1:x",
        "--listen 127.0.0.1:65536",
        "--listen 127.0.0.1:-1",
        "--memory much",
        "--memory 0",
        "--memory -3",
        "--memory inf",
        "--spin long",
        "--spin -1",
        "--spin nan",
        "--listen [::1]:5",
        "--listen ::1",
        "--dance",
    ],
)
def test_usage(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["switch", *words.split()])
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words.split()[0] in printed.err
    assert ("IPv4 only" in printed.err) == ("::1" in words)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--ports a,b,a --address 10.0.0.9", "--ports names a twice"),
        ("--ports a --address 10.0.0.9 --listen :5", "--listen is for a switch without --ports"),
        ("--ports a,b --address 10.0.0.9 --uplink a", "--uplink a leads to no --parent"),
        *(
            (f"{where} --parent {parent}", f"--parent {parent} is this switch; name the one above")
            for where, parent in (
                ("--ports a --address 10.0.0.9", "10.0.0.9:26963"),
                ("--ports a --address 10.0.0.9 --world bmv2", "10.0.0.9:26963"),
                ("--listen 127.0.0.9:26871", "127.0.0.9:26871"),
                ("--listen 0.0.0.0:26871", "127.0.0.9:26871"),
                ("--listen localhost:26871", "localhost:26871"),
            )
        ),
        ("--port 5", "--port is for a switch with ports: name them with --ports"),
        ("--seed 4", "--seed is of the chances of --impair; name one, or leave it out"),
        ("--seed 0", "--seed is of the chances of --impair; name one, or leave it out"),
        ("--address 10.0.0.9", "--address is for a switch with ports"),
        ("--no-replicate", "--no-replicate is for a switch with ports"),
        ("--listen 127.0.0.1:0 --cpu 4096", "--cpu 4096: the cores this process may use are 0"),
        ("--reproducible --counting paper", "--counting paper does not know whose packets"),
    ],
)
def test_options_that_do_not_go_together(
    words: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["switch", *words.split()]) == 2
    assert f"iswitch switch: {complaint}" in capsys.readouterr().err


def test_a_parent_that_is_the_switch_is_told_before_a_port_that_is_taken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The address is wrong whether or not somebody else listens there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.9", 0))
        port = other.getsockname()[1]
        words = f"--listen 0.0.0.0:{port} --parent 127.0.0.9:{port}"
        assert main(["switch", *words.split()]) == 2
    assert f"--parent 127.0.0.9:{port} is this switch" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--no-offload"], ["--spin", "0.001"], ["--cpu", "0"], ["--reproducible"]]
)
def test_options(options: list[str]) -> None:
    with switch(*options, "--json") as (process, where):
        assert rounds(where, 3, 50_000, 5) == [3.0] * 3
        assert rounds(where, 2, 50_000, 5, offload=False) == [2.0] * 2
        counters = json.loads(end(process))
    assert counters["accumulated"] == (3 + 2) * 5 * Shape.of(50_000).segments


def test_sums_in_rank_order() -> None:
    """1e8 - 1e8 + 1.5 is 1.5 in this order only."""
    values = [1e8, -1e8, 1.5]
    with switch("--reproducible") as (process, where), ThreadPoolExecutor(3) as pool:
        workers = [Worker(where, 7, 1, timeout=PATIENCE) for _ in values]
        vectors = [np.array([value], np.float32) for value in values]
        for order in itertools.permutations(range(3)):
            waiting = [pool.submit(workers[i].allreduce, vectors[i]) for i in order]
            assert [w.result(PATIENCE)[0] for w in waiting] == [1.5] * 3
        for worker in workers:
            worker.leave()
        end(process)


@pytest.mark.root(reason="only root can become nobody")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (util-linux)")
def test_as_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISWITCH_FAST", "0")  # it may not write where compiled code is kept
    # Reading everything stays allowed, or an interpreter in root's home could not start.
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    keep = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    with switch("--json", prefix=[*drop, *keep]) as (process, where):
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert re.search(r"^Uid:\s+65534\s+65534", status, re.MULTILINE)
        assert rounds(where, 3, 100_000, 3) == [3.0] * 3
        counters = json.loads(end(process))
    assert counters["accumulated"] == 3 * 3 * Shape.of(100_000).segments


def resident(process: subprocess.Popen[str], what: str = "VmRSS") -> int:
    """Bytes of memory of a process."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(rf"^{what}:\s+(\d+) kB", status, re.MULTILINE)
    assert found
    return int(found[1]) << 10
