"""`kill -9` of real processes while they work: they are started again, and the work goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from topologies import Topology

from .test_demo import children, processes

ROOT = Path(__file__).parent.parent
PATIENCE = 100.0  # seconds
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces")
LOOPBACK = pytest.param("loopback", "star:3")
WORLDS = [
    LOOPBACK,
    pytest.param("netns", "rack:2x3", marks=as_root),
    pytest.param("mininet", "rack:2x2", marks=as_root),
]
TRAIN = """
    import os
    import numpy as np
    from worker_lib import JobReset, Worker, catch_up
    state, step = np.zeros(300, np.float32), 0
    with Worker.from_env(numel=1000, timeout=40) as worker:
        print("joined", flush=True)
        while step < 40:
            try:
                step = catch_up(worker, [state], step, int(os.environ["RANK"]))
                while step < 40:
                    vector = np.full(1000, step, np.float32)
                    total = worker.allreduce(vector)
                    assert (total == worker.num_workers * step).all()
                    state += total[:300]
                    step += 1
                    import time
                    time.sleep(0.05)
                worker.allreduce(np.zeros(1000, np.float32))
            except JobReset:
                step = min(step, 39) if step < 40 else step
        print("sum", state[0], flush=True)
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

    def end(self) -> tuple[str, dict]:
        """Its messages and its report; it must end well."""
        out, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, out + err
        return out + err, json.loads(self.report.read_text())

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate()


def victims(world: str) -> list[list[str]]:
    child = [["child"], ["child", "worker"], ["root", "worker"]] if world != "loopback" else []
    return [["worker"], ["root"], *child]


CASES = [
    pytest.param(world, form, killed, marks=marks, id=f"{world}-{'+'.join(killed)}")
    for world, form, marks in [(*param.values, param.marks) for param in WORLDS]
    for killed in victims(world)
    if world != "mininet" or killed != ["child", "worker"]
]


@pytest.mark.parametrize(("world", "form", "killed"), CASES)
def test_demo(world: str, form: str, killed: list[str], tmp_path: Path) -> None:
    """It learns, to the same weights in all workers, by exact sums."""
    running = Running("demo", world, form, tmp_path / "report.json", "--iterations", "160")
    names = {"root": running.topology.root.name, "child": "tor1"}
    try:
        running.until("iteration   16 of")
        for what in killed:
            pid = (
                running.worker("worker_lib.rl.train")
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
