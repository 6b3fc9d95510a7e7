"""What reduce_scatter and all_gather cost at each worker's port, by the port's own counters.

A port counts whole frames without preamble and checksum: up to 1,464 bytes of elements, and 50 of
headers (Ethernet 14, IPv4 20, UDP 8, ours 8). X is so counted, too: its elements, and 50 bytes for
each packet that they fill. On top come the closing segment, heartbeats, Help, and whatever goes
twice; all of that is at most 2 %.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from iswitch.core.format.wire import SEG_SIZE, Shape
from iswitch.ethernet.frame import HEADERS
from tests.support import ROOT
from tests.support.carried import PATIENCE, Counts, settled, until
from tests.support.machine import judged
from topologies import Topology

WORKERS = 4
NUMEL = 1_000_000  # 4 MB
MOST = 1.02
CALLS = 4

pytestmark = [pytest.mark.root(reason="building namespaces needs root"), pytest.mark.serial]

SCRIPT = """
import os, sys, time
from pathlib import Path
import numpy as np
from iswitch.lab.bench.vectors import exact, given
from worker_lib.strategies.collectives import make_exchange, sizes

folder, collective = Path(sys.argv[1]), sys.argv[2]
numel, calls = map(int, sys.argv[3:])

def meet(what):  # without a byte on the links
    (folder / f"{what}.{os.environ['RANK']}").touch()
    while not (folder / what).exists():
        time.sleep(0.01)

with make_exchange("iswitch", collective, numel, timeout=60) as member:
    workers = int(os.environ["WORLD_SIZE"])
    gives, gets = sizes(collective, numel, workers, member.rank)
    vector, out = given(member.rank, gives), np.zeros(gets, np.float32)
    for call in range(1 + calls):
        if call == 1:
            meet("ready")
        member.exchange(collective, vector, out)
        assert np.array_equal(out, exact(collective, numel, workers, member.rank))
    meet("done")
"""


def counted(form: str, collective: str, folder: Path) -> Counts:
    """What every interface has sent in CALLS calls."""
    topology = Topology.parse(form)
    command = [
        sys.executable, "-m", "iswitch", "run", "--topology", form, "--world", "netns",
        "--no-offload", "--", sys.executable, "-c", SCRIPT, str(folder), collective, str(NUMEL),
        str(CALLS),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        until(process, folder, "ready", WORKERS)
        before = settled(topology, process.pid, "iswitch")
        (folder / "ready").touch()
        until(process, folder, "done", WORKERS)
        found = settled(topology, process.pid, "iswitch") - before
        (folder / "done").touch()
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        return found
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("form", ["star:4", "rack:2x2"])
@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather"])
def test_at_most_two_per_cent_more(form: str, collective: str, tmp_path: Path) -> None:
    """Of X on the one way, and of X/N on the other; N/2 times that between two switches."""
    shape = Shape.of(NUMEL)
    x = NUMEL * shape.dtype.itemsize + shape.segments * (HEADERS + SEG_SIZE)

    def ratios() -> dict[str, float]:
        """Of what each port has sent; where processes are held up, some of it goes twice."""
        found = {}
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        for (source, target), (size, *_) in counted(form, collective, folder).items():
            worker = next((node for node in (source, target) if node.startswith("h")), None)
            up = source == worker or target == "core1"
            below = 1 if worker else WORKERS // 2
            part = 1.0 if up == (collective == "reduce_scatter") else below / WORKERS
            found[f"{source}->{target}"] = round(size / CALLS / (x * part), 4)
        print(f"{form} {collective}, of their part of X: {found}")
        return found

    judged(ratios, lambda found: all(1 <= ratio <= MOST for ratio in found.values()))
