"""`kill -9` of real processes while they work: they are started again, and the work goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from iswitch.lab.launch.worlds import LOCALHOST
from tests.support import ROOT, python
from tests.training.test_demo import children, processes
from topologies import Topology

pytestmark = pytest.mark.serial

PATIENCE = 100.0  # seconds
as_root = pytest.mark.root(reason="only root can make namespaces")
LOOPBACK = pytest.param("loopback", "star:3")
WORLDS: list[Any] = [
    LOOPBACK,
    pytest.param("netns", "rack:2x3", marks=as_root),
    pytest.param("mininet", "rack:2x2", marks=as_root),
]
TRAIN = """
    import os, time
    import numpy as np
    from worker_lib import JobReset, Worker, catch_up
    total, step = np.zeros(300), 0
    with Worker.from_env(numel=1000, timeout=40) as worker:
        print("joined", flush=True)
        while True:
            try:
                step = catch_up(worker, [total], step, int(os.environ["RANK"]))
                while step < 60:
                    sums = worker.allreduce(np.full(1000, step, np.float32))
                    assert (sums == worker.num_workers * step).all(), sums
                    total += sums[:300]
                    step += 1
                    time.sleep(0.02)
                worker.allreduce(np.zeros(1000, np.float32))  # until all are done
                break
            except JobReset:
                pass
        print("total", total[0], flush=True)
"""


class Running:
    """An `iswitch demo` or `iswitch run` whose processes can be killed."""

    def __init__(self, command: str, world: str, form: str, report: Path, *end: str) -> None:
        self.topology = Topology.parse(form)
        self.world = world
        words = ["--world", world, "--topology", form, "--json", str(report)]
        self.report = report
        self.process = subprocess.Popen(
            [sys.executable, "-m", "iswitch", command, *words, *end],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def until(self, wanted: str, count: int = 1) -> None:
        """Read its lines until so many hold what is wanted."""
        assert self.process.stdout is not None
        for line in iter(self.process.stdout.readline, ""):
            count -= wanted in line
            if not count:
                return
        raise AssertionError(self.process.communicate()[1])

    def switch(self, name: str) -> int:
        """The process of a switch."""
        found = children(self.process.pid, "iswitch switch")
        if self.world == "loopback":
            (pid,) = found
            return pid
        address = str(self.topology.address(name))
        (pid,) = [p for p in found if f"--address {address} " in processes()[p][1]]
        return pid

    def worker(self, needle: str) -> int:
        """The process of the second worker."""
        return sorted(children(self.process.pid, needle))[1]

    def end(self) -> tuple[str, dict[str, Any]]:
        """Its messages and its report; it must end well."""
        out, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, out + err
        return out + err, json.loads(self.report.read_text())

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate()


VICTIMS = {  # on loopback, one by one: test_run, which restarts them in the same way
    "netns": [["child", "worker"], ["root", "worker"]],
    "mininet": [["root", "worker"]],
}
CASES = [
    pytest.param(world, form, killed, marks=marks, id=f"{world}-{'+'.join(killed)}")
    for world, form, marks in [(*param.values, param.marks) for param in WORLDS]
    for killed in VICTIMS.get(world, ())
]


@pytest.mark.parametrize(("world", "form", "killed"), CASES)
def test_demo(world: str, form: str, killed: list[str], tmp_path: Path) -> None:
    """It learns, to the same weights in all workers, by exact sums."""
    running = Running("demo", world, form, tmp_path / "report.json", "--iterations", "160")
    names = {"root": running.topology.root.name, "child": "tor1"}
    try:
        running.until("iteration ", 2)  # after a tenth of them
        for what in killed:
            pid = (
                running.worker("worker_lib.rl.demo_worker")
                if what == "worker"
                else running.switch(names[what])
            )
            os.kill(pid, signal.SIGKILL)
        said, report = running.end()
    finally:
        running.stop()
    assert report["checks"] == {"learned": True, "weights equal": True, "sum exact": True}
    assert said.count("was killed by SIGKILL; starting it again") == len(killed)
    assert report["restarts"]["switches"] == {names[w]: 1 for w in killed if w in names}
    assert list(report["restarts"]["workers"].values()) == [1] * killed.count("worker")


KILLED = {  # in networks the demo loses the others
    "loopback": ["worker", "root"],
    "netns": ["child"],
    "mininet": ["child"],
}
RUNS = [
    pytest.param(world, form, killed, marks=marks, id=f"{world}-{killed}")
    for world, form, marks in [(*param.values, param.marks) for param in WORLDS]
    for killed in KILLED[world]
]


@pytest.mark.parametrize(("world", "form", "killed"), RUNS)
def test_run(world: str, form: str, killed: str, tmp_path: Path) -> None:
    """A script of a user's, with `--max-restarts`; captures of both processes of a switch."""
    folder = tmp_path / "captures"
    captures = [] if world == "loopback" else ["--capture", str(folder)]
    code = textwrap.dedent(TRAIN)
    command = ["--max-restarts", "1", *captures, "--", sys.executable, "-c", code]
    running = Running("run", world, form, tmp_path / "report.json", *command)
    hosts = len(running.topology.hosts)
    name = {"root": running.topology.root.name, "child": "tor2"}.get(killed)
    try:
        running.until("joined", hosts)
        time.sleep(0.4)
        os.kill(running.worker("total") if name is None else running.switch(name), signal.SIGKILL)
        said, report = running.end()
    finally:
        running.stop()
    assert said.count("was killed by SIGKILL; starting it again") == 1
    totals = [line.partition("total ")[2] for line in said.splitlines() if "total " in line]
    assert totals == [str(float(hosts * sum(range(60))))] * hosts
    assert report["switch_restarts"] == ({} if name is None else {name: 1})
    assert sum(worker["restarts"] for worker in report["workers"]) == (name is None)
    if captures:
        wanted = {f"{switch.name}.pcapng" for switch in running.topology.tree}
        wanted |= {f"{name}.2.pcapng"} if name else set()
        assert {path.name for path in folder.iterdir()} == wanted


def test_a_command_that_fails_too_often_fails_the_run(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ["--topology", "star:2", "--max-restarts", "2", "--json", str(report), "--"]
    command = "echo $ISWITCH_BIND; exit $((RANK == 1 ? 7 : 0))"
    done = python("-m", "iswitch", "run", *words, "sh", "-c", command)
    assert done.returncode == 7
    said = [line for line in done.stderr.splitlines() if "h2 (rank 1, process" in line]
    assert [line.partition(") ")[2] for line in said] == [
        "ended with status 7; starting it again (1 of 2)",
        "ended with status 7; starting it again (2 of 2)",
        "ended with status 7",
    ]
    addresses = {line for line in done.stdout.splitlines() if line.startswith("h2")}
    assert len(addresses) == 1
    assert f"| {LOCALHOST}:" in addresses.pop()
    assert [w["restarts"] for w in json.loads(report.read_text())["workers"]] == [0, 2]


def test_without_restarts_no_address_is_given() -> None:
    words = ["--topology", "star:1", "--", "sh", "-c", "echo bind=$ISWITCH_BIND"]
    assert python("-m", "iswitch", "run", *words).stdout == "h1 | bind=\n"
