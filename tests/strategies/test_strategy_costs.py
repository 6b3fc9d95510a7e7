"""All strategies in a network of two levels: exact, and on its links what they say they cost.

The bytes are those that the kernel counts at the ports, less the headers of the packets that it
counts there; frames are as on a wire (no offload), so each has its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import ROOT
from tests.support.carried import PATIENCE, Counts, Popen, settled, until
from tests.support.groups import bytes_on_links
from tests.support.machine import judged
from topologies import Topology
from worker_lib.strategies import STRATEGIES
from worker_lib.strategies.collectives import NEEDS
from worker_lib.strategies.iswitch import carried as iswitch_carried
from worker_lib.strategies.iswitch import cost as iswitch_cost
from worker_lib.strategies.packing import Network, pack
from worker_lib.strategies.ps import cost as ps_cost
from worker_lib.strategies.ring import cost as ring_cost
from worker_lib.strategies.tree import cost as tree_cost

NUMEL = 50_003
ROUNDS = 3
WORKERS = 4
TCP = 14 + 20 + 20 + 12  # Ethernet, IPv4, TCP, and its time stamps
UDP = 14 + 20 + 8
MSS = 1514 - TCP
COSTS = ["ring", "ps", "ps:2", "tree", "iswitch", "gloo", "mpi"]  # ps:2 has two servers
COLLECTIVES = [f"iswitch/{name}" for name in NEEDS]
BLOCKS = NUMEL // WORKERS * WORKERS  # elements of a vector of equal blocks

pytestmark = [pytest.mark.root(reason="building namespaces needs root"), pytest.mark.serial]

SCRIPT = """
import os, sys, time
from pathlib import Path
import numpy as np
from iswitch.lab.bench.vectors import exact, given
from tests.support.groups import sum_of, vector_of
from worker_lib.strategies import make
from worker_lib.strategies.collectives import make_exchange, sizes

folder, numel, rounds, names = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]

def meet(what):  # without a byte on the links
    (folder / f"{what}.{os.environ['RANK']}").touch()
    while not (folder / what).exists():
        time.sleep(0.01)

for neighbours in Path("/proc/sys/net/ipv4/neigh").glob("h*-eth0"):  # no ARP meanwhile
    (neighbours / "base_reachable_time_ms").write_text("3600000")
    (neighbours / "delay_first_probe_time").write_text("3600")

def exchange(name, job, numel):
    strategy, _, collective = name.partition("/")
    with make_exchange(strategy, collective, numel, timeout=60, job=job) as member:
        rank = member.rank
        gives, gets = sizes(collective, numel, 4, rank)
        for call in range(1 + rounds):
            if call == 1:
                meet(f"{collective}.ready")
            vector, out = given(rank, gives), np.full(gets, np.nan, np.float32)
            member.exchange(collective, vector, out)
            wanted = exact(collective, numel, 4, rank)
            if wanted is not None:
                assert np.array_equal(out if gets else vector, wanted), name
        meet(f"{collective}.done")
        stats = member.stats()
        again = stats["sent_again"] + stats["useless"] + stats["helped"]
    print(collective, "again", again, flush=True)

for job, name in enumerate(names, 1):
    if "/" in name:
        exchange(name, job, numel // 4 * 4)
        print(name, "is exact", flush=True)
        continue
    strategy, _, count = name.partition(":")
    options = {"servers": int(count)} if count else {}
    with make(strategy, numel, timeout=60, **options) as strategy:
        for call in range(1 + rounds):
            if call == 1:
                meet(f"{name}.ready")
            total = strategy.allreduce(vector_of(strategy.rank, numel, call))
            assert (total == sum_of(strategy.num_workers, numel, call)).all(), name
        meet(f"{name}.done")
    print(name, "is exact", flush=True)
"""


def start(folder: Path, world: str, *names: str, options: tuple[str, ...] = ()) -> Popen:
    command = [sys.executable, "-m", "iswitch", "run", "--topology", "rack:2x2", "--world", world]
    return subprocess.Popen(
        [*command, *options, "--", sys.executable, "-c", SCRIPT, str(folder), str(NUMEL),
         str(ROUNDS), *names],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


class Counted(NamedTuple):
    """What the links have carried, and how many packets the workers say went more than once."""

    counts: Counts
    again: int


def measure(folder: Path, *names: str) -> dict[str, Counted]:
    """What the links carry in ROUNDS calls of each strategy."""
    topology = Topology.parse("rack:2x2")
    process = start(folder, "netns", *names, options=("--no-offload",))
    counts = {}
    try:
        for name in names:
            what = name.rpartition("/")[2]
            until(process, folder, f"{what}.ready")
            before = settled(topology, process.pid, name)
            (folder / f"{what}.ready").touch()
            until(process, folder, f"{what}.done")
            counts[name] = settled(topology, process.pid, name) - before
            (folder / f"{what}.done").touch()
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        assert out.count("is exact") == WORKERS * len(names)
        again = dict.fromkeys(names, 0)
        for what, number in re.findall(r"(\w+) again (\d+)", out):
            again[f"iswitch/{what}"] += int(number)
        return {name: Counted(counts[name], again[name]) for name in names}
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Counted]:
    """What the links have carried in ROUNDS calls of a strategy, all measured in one run."""
    return measure(tmp_path_factory.mktemp("doors"), *COSTS, *COLLECTIVES).__getitem__


@pytest.fixture(scope="module")
def carried(measured: Callable[[str], Counted]) -> Callable[[str], Counts]:
    """What the links have carried in ROUNDS allreduces of a strategy."""
    return lambda name: measured(name).counts


def network() -> Network:
    topology = Topology.parse("rack:2x2")
    links = [(link.a, link.b, link.rate) for link in topology.links]
    return Network([host.name for host in topology.hosts], links)


@pytest.mark.parametrize("name", ["gloo", "mpi"])
def test_bytes_of_the_references(name: str, carried: Callable[[str], Counts]) -> None:
    """On the links of hosts as of a ring, to five per cent: they pad, and have headers."""
    cost, counts = ring_cost(NUMEL, WORKERS), carried(name)
    again = counts.of_hosts().again
    for (source, target), (size, packets, _, _) in counts.items():
        host = next((node for node in (source, target) if node.startswith("h")), None)
        if host is not None:
            payload = size - TCP * packets
            wanted = ROUNDS * cost.sent(int(host[1:]) - 1)
            assert 0.98 * wanted <= payload <= 1.05 * wanted + again * MSS, (source, target)


@pytest.mark.parametrize("name", ["ring", "ps", "ps:2", "tree"])
def test_bytes_on_links_over_tcp(name: str, carried: Callable[[str], Counts]) -> None:
    """To the byte, on all links of hosts and switches, both ways; unless TCP sends again."""
    costs = {
        "ring": ring_cost(NUMEL, WORKERS),
        "ps": ps_cost(NUMEL, WORKERS),
        "ps:2": ps_cost(NUMEL, WORKERS, servers=2),
        "tree": tree_cost(NUMEL, pack(network())),
    }
    wanted = bytes_on_links(network(), costs[name])
    counts = carried(name)
    assert counts.keys() == wanted.keys()
    _, _, again, resets = counts.of_hosts()
    unstamped = 12 * resets  # of the strategy before: they come late, and have no time stamps
    for at, (size, packets, _, _) in counts.items():
        payload = size - TCP * packets
        spare = again and again * MSS + 36 * packets  # and the option that says what has come
        least = ROUNDS * wanted[at]
        assert least - unstamped <= payload <= least + spare, (at, again, resets)
        # As few headers as the payload needs, and acknowledgements of at most as many.
        back = ROUNDS * (wanted[at] + wanted[at[::-1]])
        assert packets <= back / MSS + 40 * ROUNDS + again, at


def test_bytes_on_links_with_switches(carried: Callable[[str], Counts]) -> None:
    """A vector up and a vector down on every link, be it a host's or between two switches."""
    cost = iswitch_cost(NUMEL, WORKERS, levels=2)
    assert cost.steps == 4
    counts = carried("iswitch")
    size = ROUNDS * cost.sent(0)
    assert cost.received(3) == cost.sent(0)
    control = 30 * 64  # heartbeats and their answers, in a second or two
    assert {("tor1", "core1"), ("core1", "tor2")} <= counts.keys()
    for at, (carried_, packets, _, _) in counts.items():
        assert size <= carried_ - UDP * packets <= size + control, at


@pytest.mark.parametrize("name", COLLECTIVES)
def test_bytes_on_links_of_collectives(
    name: str, measured: Callable[[str], Counted], tmp_path: Path
) -> None:
    """On every link, be it a worker's or between two switches, what the formula says."""
    collective = name.rpartition("/")[2]
    control = 30 * 64  # heartbeats and their answers, in a second or two
    first = [measured(name)]

    def others() -> list[str]:
        """Links that carried something else; held-up switches, too, send some of it again."""
        counts, again = (
            first.pop() if first else measure(Path(tempfile.mkdtemp(dir=tmp_path)), name)[name]
        )
        found = []
        for (source, target), (size, packets, _, _) in counts.items():
            lower, up = (
                (source, True) if target == "core1" or source.startswith("h") else (target, False)
            )
            number = int(lower.lstrip("htor"))
            below = [number - 1] if lower.startswith("h") else [2 * number - 2, 2 * number - 1]
            wanted = iswitch_carried(collective, BLOCKS, WORKERS, below)[0 if up else 1]
            payload = size - UDP * packets
            least = ROUNDS * sum(wanted)
            most = least + control + again * max(wanted)
            if not least <= payload <= most or packets < ROUNDS * len(wanted):
                found.append(f"{source}->{target}: {payload} bytes, not {least} to {most}")
        return found

    judged(others, lambda found: not found)


def test_every_strategy_is_counted() -> None:
    """In netns, where its sums are compared, too."""
    assert {name.partition(":")[0] for name in COSTS} == set(STRATEGIES)


def test_every_strategy_in_mininet(tmp_path: Path) -> None:
    """In netns others have been measured; on loopback all run in test_strategies.py."""
    for name in STRATEGIES:
        (tmp_path / f"{name}.ready").touch()
        (tmp_path / f"{name}.done").touch()
    process = start(tmp_path, "mininet", *STRATEGIES)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    said = [f"h{rank + 1} | {name} is exact" for rank in range(WORKERS) for name in STRATEGIES]
    assert sorted(line for line in out.splitlines() if "exact" in line) == sorted(said)
