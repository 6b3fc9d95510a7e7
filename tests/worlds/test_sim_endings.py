"""`--world sim`: what the user is told of a run that does not get on, and how it ends."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
import threading
from dataclasses import asdict
from pathlib import Path

import pytest

from iswitch.cli import main
from iswitch.lab.launch.simulated import check_command
from iswitch.virtual.channel import Channel
from iswitch.virtual.computing import Plan
from tests.worlds.test_run import PATIENCE, start
from topologies import Topology
from topologies.virtual import coordinator
from topologies.virtual.coordinator import Coordinator, Settings

pytestmark = pytest.mark.serial


def test_who_computes_for_long_is_named_ever_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "socket")
    network = Topology.parse("star:1").to_toml()
    served = Coordinator(Settings(path, network, 1, asdict(Plan("zero"))))
    seconds = 0.0

    class Clock:
        @staticmethod
        def monotonic() -> float:
            nonlocal seconds
            if served.hub.members:
                seconds += 3.0
            if seconds > 100.0:
                served.end()
            return seconds

    def computes() -> None:
        channel = Channel(path, 0, "h1")
        over.wait(PATIENCE)
        channel.hang_up()

    monkeypatch.setattr(coordinator, "time", Clock)
    monkeypatch.setattr(coordinator, "LOOK", 0.001)
    monkeypatch.setattr(coordinator, "LONGEST_LOOK", 0.001)
    over = threading.Event()
    thread = threading.Thread(target=computes)
    thread.start()
    served.run()
    over.set()
    thread.join()
    for key in served._selector.get_map().values():
        key.fileobj.close()  # type: ignore[union-attr]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {
            "computes": f"rank 0 (h1) has computed for {passed} s since its last call, at 0.000000 "
            "s of virtual time"
        }
        for passed in (10, 20, 40, 80)
    ]


STUCK = """
    import os
    import numpy as np
    from worker_lib import Worker
    print("begins")
    while os.environ["RANK"] == "2":
        pass
    with Worker.from_env(numel=1000) as worker:
        worker.allreduce(np.ones(1000, np.float32))
"""


def test_an_interrupted_run_says_one_line() -> None:
    """No tracebacks of workers, whether they compute, wait in virtual time or run on."""
    process = start("--world", "sim", "--topology", "star:4", "--",
                    sys.executable, "-c", textwrap.dedent(STUCK))  # fmt: skip
    assert process.stdout is not None
    for _ in range(4):
        assert process.stdout.readline().endswith("begins\n")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert err.splitlines()[1:] == ["iswitch run: stopped by SIGINT; all processes have ended"]


def test_torchrun_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    for launcher in (["/opt/bin/torchrun"], [sys.executable, "-u", "-m", "torch.distributed.run"]):
        assert main(["run", "--world=sim", "--topology=star:2", "--", *launcher, "ddp.py"]) == 2
        assert "give the script itself: iswitch run ... -- python" in capsys.readouterr().err
    check_command(["python", "torchrun", "-m"])
    check_command(["python", "-m", "trains", "torch.distributed.run"])
