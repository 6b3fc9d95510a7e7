"""`--world sim`: real programs in virtual time, with real sums."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from argparse import ArgumentParser, Namespace
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from iswitch.cli import train
from iswitch.lab.launch.simulated import Virtual, virtual_of
from iswitch.lab.training.choosing import plan_of
from iswitch.outside import UsageError
from iswitch.virtual.computing import Computing, ComputingError, Plan, read_plan
from tests.worlds.test_run import run
from topologies import Topology

SUMS = """
    import hashlib, os, socket, sys, time
    import numpy as np
    from worker_lib import Worker
    sums = hashlib.sha256()
    with Worker.from_env(numel=3000, reproducible=True) as worker:
        chance = np.random.default_rng(worker.rank)
        for _ in range(4):
            total = worker.allreduce(chance.standard_normal(3000, dtype=np.float32))
            sums.update(total.tobytes())
            if "clock" in sys.argv:
                print(worker.rank, time.time(), worker.allreduce_seconds[-1])
                print("rank", worker.rank, file=sys.stderr)
    if "clock" in sys.argv:
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if os.environ["RANK"] == "0":
            with socket.create_server(place) as door:
                [door.accept()[0].close() for _ in range(3)]
        else:
            time.sleep(0.1)
            socket.create_connection(place).close()
    print("sums", sums.hexdigest())
"""


def program(folder: Path, text: str) -> str:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_a_fixed_run_repeats_to_the_byte_and_sums_like_loopback(tmp_path: Path) -> None:
    """Output, captures and counters of two runs are equal; sums and counters are loopback's."""
    path = program(tmp_path, SUMS)
    seen = []
    for i in range(2):
        to, told = tmp_path / str(i), tmp_path / f"{i}.json"
        options = ["--world", "sim", "--compute", "fixed:3ms", "--jitter", "lognormal:0.3"]
        options += ["--topology", "rack:2x2,rate=1Gbit", "--slow", "1=2", "--json", str(told)]
        status, out, err = run("--to", str(to), *options, "--", sys.executable, path, "clock",
                               command="record")  # fmt: skip
        assert status == 0, err
        traces = {file.name: file.read_bytes() for file in to.glob("*.pcapng")}
        assert sorted(traces) == ["core1.pcapng", "tor1.pcapng", "tor2.pcapng"]
        seen.append((out, traces, told.read_text(), err.replace(str(to), "")))
    assert seen[0] == seen[1]
    seconds = json.loads(seen[0][2])["seconds"]
    assert seconds > 3 * 0.003
    assert f"ended at {seconds:.6g} s of virtual time" in seen[0][3]
    told = tmp_path / "loopback.json"
    status, out, err = run(
        "--topology", "rack:2x2", "--json", str(told), "--", sys.executable, path
    )
    assert status == 0, err
    own = [line for line in seen[0][0].splitlines() if "sums" in line]
    assert sorted(out.splitlines()) == sorted(own)
    real, virtual = json.loads(told.read_text())["switches"], json.loads(seen[0][2])["switches"]
    for name in ("accumulated", "aggregates", "completed", "duplicate", "late"):
        assert {s: c.get(name) for s, c in real.items()} == {
            s: c.get(name) for s, c in virtual.items()
        }


def test_packets_that_move_one_by_one_are_told_of(tmp_path: Path) -> None:
    """From the moment on at which what is under way could fill a queue."""
    path = program(tmp_path, SUMS)
    for queue, is_told in (("5packets", True), ("100packets", False)):
        topology = f"star:2,rate=1Gbit,queue={queue}"
        options = ["--world", "sim", "--compute", "zero", "--topology", topology]
        status, _, err = run(*options, "--", sys.executable, path)
        assert status == 0, err
        assert ("of virtual time: packets move one by one from now on" in err) is is_told


def test_lines_come_by_virtual_time_and_rank_until_the_first_rank_fails(tmp_path: Path) -> None:
    """However long computing really takes, and whoever writes: Python, or a child of it."""
    path = program(tmp_path, """
        import os, random, subprocess, time
        rank = int(os.environ["RANK"])
        hurry = random.SystemRandom()
        def compute():
            until = time.thread_time() + hurry.choice((0.0, 0.03))
            while time.thread_time() < until:
                pass
        for step in range(3):
            compute()
            print("step", step, "x" * 50_000)
            if rank == step == 1:
                subprocess.run(["echo", "a child's"])
            time.sleep(0.25 if rank == 2 else 0.125)
        compute()
        if rank in (1, 3):
            raise SystemExit("no more")
        time.sleep(0.125)
        print("is never shown")
    """)  # fmt: skip
    status, out, err = run("--world", "sim", "--topology", "star:4", "--compute", "zero",
                           "--", sys.executable, path)  # fmt: skip
    assert status == 1
    assert [line.replace("x", "").rstrip() for line in out.splitlines()] == [
        "h1 | step 0", "h2 | step 0", "h3 | step 0", "h4 | step 0",
        "h1 | step 1", "h2 | step 1", "h2 | a child's", "h4 | step 1",
        "h1 | step 2", "h2 | step 2", "h3 | step 1", "h4 | step 2",
    ]  # fmt: skip
    assert [line for line in err.splitlines() if " | " in line] == ["h2 | no more", "h4 | no more"]
    assert "h2 (rank 1" in err.splitlines()[-1]


def test_a_rank_that_does_not_come_is_named_with_the_virtual_time(tmp_path: Path) -> None:
    path = program(tmp_path, """
        import numpy as np
        from worker_lib import Worker
        with Worker.from_env(numel=100) as worker:
            worker.allreduce(np.ones(100, np.float32))
            if worker.rank == 1:
                raise SystemExit
            worker.allreduce(np.ones(100, np.float32))
    """)  # fmt: skip
    status, _, err = run("--world", "sim", "--topology", "star:2", "--", sys.executable, path)
    assert status == 1
    assert "rank 1 is missing" in err
    assert re.search(r"rank 0 failed at 60\.\d{6} s of virtual time", err)


def test_a_program_ends_though_a_daemon_of_its_own_waits_forever(tmp_path: Path) -> None:
    """As do the threads of torch's process groups that nobody destroys; others are waited for."""
    path = program(tmp_path, """
        import queue, threading, time
        threading.Thread(target=queue.Queue().get, daemon=True).start()
        threading.Thread(target=lambda: (time.sleep(60), print("slept", flush=True))).start()
    """)  # fmt: skip
    status, out, err = run("--world", "sim", "--topology", "star:1", "--", sys.executable, path)
    assert status == 0, err
    assert "slept" in out


def test_threads_sleep_and_clock_are_virtual_and_a_deadlock_ends(tmp_path: Path) -> None:
    """An hour of sleep takes no time; sockets are refused; who waits forever is named."""
    path = program(tmp_path, """
        import queue, socket, threading, time
        from time import monotonic
        words = queue.Queue()
        began = monotonic()
        def work(seconds):
            time.sleep(seconds)
            words.put((seconds, time.monotonic() - began))
        threads = [threading.Thread(target=work, args=(s,)) for s in (3600.0, 1.5)]
        [thread.start() for thread in threads]
        print(words.get(), words.get(timeout=4000.0))
        try:
            words.get(timeout=2.0)
        except queue.Empty:
            threads[0].join()
            print(time.perf_counter() - began, threading.Event().wait(0.5))
        while time.time_ns() < (1_767_225_600 + 3603) * 10**9:
            pass
        try:
            socket.create_connection(("10.0.0.1", 80))
        except OSError as error:
            print(error)
        try:
            socket.socket(type=socket.SOCK_DGRAM).sendto(b"unconnected", ("10.0.0.1", 80))
        except OSError as error:
            print(error)
        try:
            socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b"unconnected", ("::1", 80))
        except OSError as error:
            print(error)
        try:
            from mpi4py import MPI
        except OSError as error:
            print(error)
        from worker_lib.strategies import collectives, make
        for name in ("mpi", "gloo"):
            for call in (make, lambda name, n: collectives.make_exchange(name, "gather", n)):
                try:
                    call(name, 10)
                except OSError as error:
                    print(error)
        threading.Event().wait()
    """)  # fmt: skip
    status, out, err = run("--world", "sim", "--topology", "star:2", "--compute", "zero",
                           "--", sys.executable, path)  # fmt: skip
    assert status == 1
    assert out.count("(1.5, 1.5) (3600.0, 3600.0)") == 2
    assert out.count("3602.0 False") == 2
    assert out.count("10.0.0.1 is no host of the simulated network") == 2
    assert out.count("a socket of datagrams knows no virtual time") == 2
    assert out.count("a socket of ('::1', 80) knows no virtual time") == 2
    assert out.count("MPI knows no virtual time") == 2
    assert out.count("mpi knows no virtual time") == 4
    assert out.count("gloo knows no virtual time") == 4
    assert re.search(r"deadlock at 3603\.\d+ s of virtual time: ranks 0, 1 wait for some", err)


def test_scripts_of_the_cookbook_and_of_torch_run_unchanged(tmp_path: Path) -> None:
    """Stable-Baselines3 names a switch of this machine: here that is the host's. DDP names none."""
    from tests.docs.test_cookbook import RECIPES
    from tests.torch.test_torch_doc import TRAIN

    learn = RECIPES["learn.py"].replace("num_workers=4", "num_workers=2").replace("500", "20")
    path = program(tmp_path, learn)
    options = "--world", "sim", "--topology", "star:2,rate=10Gbit", "--compute", "fixed:1ms"
    status, out, err = run(*options, "--", sys.executable, path)
    assert status == 0, err
    assert len({line.partition(" | ")[2] for line in out.splitlines()}) == 1
    known = entry_points(group="torch.backends", name="iswitch")  # else as docs/torch.md says
    gloo = "\ndistributed.init_process_group('gloo')\n"
    path = program(tmp_path, ("" if known else "import worker_lib.torch\n") + TRAIN + gloo)
    status, out, err = run(*options, "--", sys.executable, path)
    assert status == 1
    assert "gloo knows no virtual time" in err
    assert sorted(re.findall("rank (.) of 2 is done", out)) == ["0", "1"]


def test_computing_takes_the_times_that_are_given() -> None:
    def charges(plan: Plan, rank: int = 0) -> list[float]:
        computing = Computing(plan, rank)
        found = [computing.charge()]
        for _ in range(3):
            computing.mark()
            found += [computing.charge(), computing.charge()]
        return found

    assert charges(read_plan("zero")) == [0.0] * 7
    assert read_plan("fixed:3e-3") == read_plan("fixed:3ms") == Plan("fixed", seconds=0.003)
    assert charges(read_plan("fixed:3ms")) == [0.0, 0.003, 0.0, 0.003, 0.0, 0.003, 0.0]
    slow = Plan("fixed", seconds=1.0, slow={"1": 2.5})
    assert charges(slow)[1] == 1.0
    assert charges(slow, 1)[1] == 2.5
    times = Plan("file", times=[[0.1, 0.2], [0.5]])
    assert charges(times)[1::2] == [0.1, 0.2, 0.1]
    assert charges(times, 1)[1::2] == [0.5, 0.5, 0.5]
    drawn = Plan("fixed", seconds=1.0, sigma=0.5, seed=3)
    assert charges(drawn) == charges(drawn) != charges(drawn, 1)
    measured, sampled = charges(read_plan("measured")), charges(read_plan("sample:1"))
    assert all(seconds > 0.0 for seconds in measured[1::2])
    assert sampled[1] == sampled[3] == sampled[5] > 0.0


@pytest.mark.parametrize(
    "text", ["", "fixed", "fixed:-1ms", "sample:0", "fixed:3years", "fixed:1e99"]
)
def test_a_wrong_computing_time_is_refused(text: str) -> None:
    with pytest.raises(ComputingError):
        read_plan(text)


def test_a_wrong_time_in_a_file_is_found(tmp_path: Path) -> None:
    times = tmp_path / "times"
    times.write_text("3ms 2.5ms  # rank 0\n\n0.004 soon\n")
    with pytest.raises(ComputingError, match=r"times, line 3: 'soon' is not a time; .*such as 3ms"):
        read_plan(f"file:{times}")
    times.write_bytes(b"\xff\x00")
    with pytest.raises(ComputingError, match="line 1: "):
        read_plan(f"file:{times}")


@pytest.mark.parametrize("option", ["--strategy gloo", "--strategy mpi"])
def test_training_with_sockets_is_refused(option: str) -> None:
    parser = ArgumentParser()
    train.configure(parser)
    args = parser.parse_args(["ppo", "--env", "CartPole-v1", "--world", "sim", *option.split()])
    with pytest.raises(UsageError, match=f"{option} has .* no virtual time"):
        plan_of(args, Topology.parse("star:2"))


def test_options_of_virtual_time() -> None:
    plain = Namespace(
        world="sim", chosen="run", compute=None, host_speed=None, jitter=None, real_clock=False,
        slow=[], grain=None, host_overhead=None, switch_latency=None, switch_rate=None,
    )  # fmt: skip
    assert virtual_of(plain, 2) == Virtual(Plan(seed=1))
    for wrong in (
        {"world": "loopback", "compute": "zero"},
        {"world": "netns", "slow": ["1=2"]},
        {"jitter": "normal:1"},
        {"jitter": "lognormal:x"},
        {"compute": "file:/no/such"},
        {"compute": "zero", "host_speed": 2.0},
        {"slow": ["1"]},
        {"slow": ["2=3"]},
        {"grain": "0"},
        {"host_overhead": "x"},
        {"switch_latency": "x"},
        {"switch_latency": "-1us"},
        {"host_overhead": "-1us"},
        {"host_overhead": "1us+-1ns/B"},
        {"switch_rate": "x"},
        {"switch_rate": "0"},
        {"switch_rate": "-1Gbit"},
        {"world": "netns", "switch_rate": "1Gbit"},
    ):
        with pytest.raises(UsageError):
            virtual_of(Namespace(**{**vars(plain), **wrong}), 2)
