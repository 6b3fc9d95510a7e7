"""`--world sim`: what processes do at one virtual instant has one order, whichever was faster."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import pytest

from iswitch.core.format.packets import Outgoing
from iswitch.virtual.computing import Plan
from iswitch.virtual.words import CONNECTING, RESET
from iswitch.virtual.world import ANY, Idle
from tests.worlds.test_run import PATIENCE, run
from topologies import Topology
from topologies.simulated import Simulation
from topologies.virtual import coordinator
from topologies.virtual.hub import Hub
from topologies.virtual.streams import FIRST_PORT, NOTHING

pytestmark = pytest.mark.serial

PROGRAM = """
import os, socket, sys, time
import numpy as np
from worker_lib import Worker
from worker_lib.strategies import make

def dawdle():  # computing takes what --compute says, which is nothing outside of a call
    while os.environ["RANK"] == sys.argv[1] and time.thread_time() < till:
        pass

open(f"{sys.argv[2]}/{os.environ['RANK']}", "w").close()
till = time.thread_time() + 0.3
dawdle()
with socket.socket() as door:
    door.bind(("", 0))
    door.listen()
    print(door.getsockname())
    till += 0.3
    dawdle()
    try:
        socket.create_server(("", 7000))
    except OSError as error:
        print(error)
with make("ring", 1000, timeout=60) as strategy:
    print(strategy.allreduce(np.ones(1000, np.float32))[0], time.monotonic())
with Worker.from_env(numel=1000) as worker:
    print(worker.allreduce(np.ones(1000, np.float32))[0], time.monotonic())
"""


def played(folder: Path, late: int) -> tuple[list[str], bytes]:
    """Run with one rank that is late: it begins after the others, and lingers before each call."""
    folder.mkdir()
    path = folder / "program.py"
    path.write_text(PROGRAM)
    others = " ".join(f"{folder}/{rank}" for rank in range(4) if rank != late)
    waits = f'[ "$RANK" != {late} ] || {{ until ls {others}; do sleep 0.1; done; sleep 0.5; }}'
    options = ["--world", "sim", "--topology", "star:2,rate=1Gbit", "--workers-per-host", "2"]
    options += ["--compute", "fixed:3ms", "--capture", str(folder / "captured")]
    command = ["sh", "-c", f'{waits} >/dev/null 2>&1; exec "$0" "$@"', sys.executable, str(path)]
    status, out, err = run(*options, "--", *command, str(late), str(folder))
    assert status == 0, err
    return out.splitlines(), (folder / "captured" / "s1.pcapng").read_bytes()


def test_a_process_that_is_late_in_real_time_changes_nothing(tmp_path: Path) -> None:
    """Who is there when others connect, ports that are chosen, and who gets one that two want."""
    lines, capture = played(tmp_path / "first", 0)
    assert (lines, capture) == played(tmp_path / "last", 3)
    refused = [line for line in lines if "Errno" in line]
    assert refused == [f"{host}.1 | [Errno 98] a process listens there" for host in ("h1", "h2")]
    sums = [line for line in lines if "| 4.0 " in line]
    assert len(sums) == 8
    assert float(sums[3].split()[-1]) < 0.02  # so nobody has tried twice to reach rank 0


PROCESS = """
import sys
from iswitch.virtual.channel import Channel
path, rank, asks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
channel = Channel(path, rank, f"h{rank + 1}")
print("has come", flush=True)
sys.stdin.readline()
for _ in range(asks):
    print(channel.listen("0.0.0.0", 0)[1].port, flush=True)
sys.stdin.readline()
"""


def test_a_rank_that_waits_in_real_time_for_others_is_not_awaited_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 2 has come, and 1 has not, when 0 opens what both wait for."""
    monkeypatch.setattr(coordinator, "LONG", 0.5)
    path, network = str(tmp_path / "socket"), Topology.parse("star:3").to_toml()
    settings = coordinator.Settings(path, network, 3, asdict(Plan("zero")))
    served = coordinator.Coordinator(settings)
    pipe, said = subprocess.PIPE, []

    def play() -> None:
        processes = []
        for rank, asks in (2, 0), (0, 2), (1, 1):
            words = [sys.executable, "-c", PROCESS, path, str(rank), str(asks)]
            process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
            assert process.stdin is not None
            assert process.stdout is not None
            processes.append(process)
            said.append(process.stdout.readline())
            if asks:
                process.stdin.write("ask\n")
                process.stdin.flush()
            said.extend(process.stdout.readline() for _ in range(asks))
        for process in processes:
            process.communicate("\n\n")
        served.end()

    player, guard = threading.Thread(target=play), threading.Timer(PATIENCE, served.end)
    player.start()
    guard.start()
    served.run()
    guard.cancel()
    for key in served._selector.get_map().values():
        key.fileobj.close()  # type: ignore[union-attr]
    player.join()
    come, ports = "has come\n", [f"{FIRST_PORT}\n", f"{FIRST_PORT + 1}\n"]
    assert said == [come, come, *ports, come, ports[0]]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {
            "tells": "at 0.000000 s of virtual time: no word from rank 1, 2 for 0.5 s; others get "
            "ports and connections first, so the run may not repeat"
        }
    ]


@pytest.mark.parametrize("ends", [False, True], ids=["closes", "ends"])
def test_connections_that_nobody_has_taken_are_reset_by_rank(ends: bool) -> None:
    """Listeners that close, and listening processes that end, at one moment."""
    hub = Hub(Simulation(Topology.parse("star:3"), latency=0.0))
    members = [hub.join(rank, f"h{rank + 1}") for rank in range(3)]
    doors = [hub.listen(member, ANY, 7000) for member in members[:2]]
    for _, place in doors:
        number, _ = hub.connect(members[2], ANY, 0, place)
        members[2].sends.append((number, Outgoing((), CONNECTING, NOTHING, 0)))
    for member in members:
        member.idle = Idle(1.0, 1.0, {})
    assert hub.advance() == members
    hub.wake(members[2], 1000)  # it is told of its connections; the others are not
    for member, (number, _) in zip(reversed(members[:2]), reversed(doors), strict=True):
        if ends:
            hub.leave(member)
        else:
            hub.close(member, number)
            member.idle = Idle(None, None, {})
    members[2].idle = Idle(2.0, 2.0, {})
    assert hub.advance() == [members[2]]
    told = [(burst.tos, burst.peer and burst.peer.port) for _, burst in members[2].inbox]
    assert told == [(RESET, FIRST_PORT), (RESET, FIRST_PORT + 1)]
