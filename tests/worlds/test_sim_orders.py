"""`--world sim`: what processes do at one virtual instant has one order, whichever was faster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from iswitch.core.format.packets import Outgoing
from iswitch.virtual.words import CONNECTING, RESET
from iswitch.virtual.world import ANY, Idle
from tests.worlds.test_run import run
from topologies import Topology
from topologies.simulated import Simulation
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
