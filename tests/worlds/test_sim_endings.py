"""`--world sim`: what the user is told of a run that does not get on, and how it ends."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
import threading
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.core.format.packets import Outgoing
from iswitch.lab.launch.simulated import check_command
from iswitch.virtual.channel import Channel
from iswitch.virtual.computing import Plan
from iswitch.virtual.world import ANY, Idle, Place
from tests.worlds.test_run import PATIENCE, start
from topologies import Topology
from topologies.simulated import Simulation
from topologies.virtual import coordinator
from topologies.virtual.coordinator import Coordinator, Settings
from topologies.virtual.hub import Hub

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


@pytest.mark.parametrize("ends", [False, True], ids=["closes", "ends"])
def test_what_is_sent_last_leaves_by_rank_whichever_process_was_faster(ends: bool) -> None:
    """Ports that close, and processes that end, at one moment; then the address is free again."""
    hub = Hub(Simulation(Topology.parse("star:3"), latency=0.0))
    members = [hub.join(rank, f"h{rank + 1}") for rank in range(3)]
    sent: list[str] = []
    hub.network.transmit = lambda source, *_, **__: sent.append(source.host)  # type: ignore[method-assign]
    out = Outgoing((), 0, np.zeros((1, 28), np.uint8), 28)
    switch = Place(*hub.simulation.switch_of("h1")[:2])
    for member in reversed(members[:2]):
        number, _ = hub.open(member, ANY, 41_000, switch)
        member.sends.append((number, out))
        if ends:
            hub.leave(member)
        else:
            hub.close(member, number)
            member.idle = Idle(None, None, {})
    members[2].idle = Idle(1.0, 1.0, {})
    assert sent == []
    assert hub.advance() == [members[2]]
    assert sent == [hub.simulation.address(name).host for name in ("h1", "h2")]
    assert hub.open(hub.join(0, "h1"), ANY, 41_000, switch)[1] == (sent[0], 41_000)


def test_torchrun_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    for launcher in (["/opt/bin/torchrun"], [sys.executable, "-u", "-m", "torch.distributed.run"]):
        assert main(["run", "--world=sim", "--topology=star:2", "--", *launcher, "ddp.py"]) == 2
        assert "give the script itself: iswitch run ... -- python" in capsys.readouterr().err
    check_command(["python", "torchrun", "-m"])
    check_command(["python", "-m", "trains", "torch.distributed.run"])
