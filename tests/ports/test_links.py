"""Bad links between namespaces: they do what docs/links.md says, and sums stay exact."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

from tests.bench.links import BEGIN, CASES, END, HEADER, Case, measured
from tests.ports.test_raw_tree import PATIENCE, Counters, start_workers, tree
from tests.support import ROOT
from tests.support.machine import Machine, judged, untold

pytestmark = pytest.mark.serial

PAGE = (ROOT / "docs" / "links.md").read_text()
as_root = pytest.mark.root(reason="raw ports need root")


def name(case: Case) -> str:
    return " ".join([case.setting, case.where, case.what])


def one_way() -> list[Case]:
    """Of those that are measured in and out, one of each, in turns; `make bench` has them all."""
    found: dict[tuple[str, str], list[Case]] = {}
    for case in CASES:
        found.setdefault((case.setting, case.what), []).append(case)
    return [cases[i % len(cases)] for i, cases in enumerate(found.values())]


@as_root
@pytest.mark.parametrize("case", one_way(), ids=name)
def test_fresh_measurements_are_within_the_bounds(case: Case) -> None:
    if case.unit == "%":  # counted, of seeded chances: no machine is too busy
        assert case.holds(found := measured(case)), found
    else:
        judged(lambda: measured(case), case.holds)


@as_root
def test_a_link_that_is_too_slow_is_seen() -> None:
    """Where the machine is fit, as it is taken to be here; half a millisecond too much."""
    case = next(case for case in CASES if case.unit == "ms" and "delay" in case.setting)
    faulty = case._replace(wanted=case.wanted - case.above - 0.5)
    found = measured(case)
    with untold(), pytest.raises(AssertionError, match="fit machine"):
        judged(lambda: found, faulty.holds, lambda: Machine(0.0, 1.0))


def test_the_documented_table_is_of_these_cases() -> None:
    table = PAGE[PAGE.index(BEGIN) + len(BEGIN) : PAGE.index(END)]
    rows = [re.split(r" *\| *", line)[1:-1] for line in table.splitlines()]
    assert rows[0] == HEADER
    assert [row[:-1] for row in rows[2:]] == [case.key for case in CASES]
    for case, row in zip(CASES, rows[2:], strict=True):
        found, _, unit = row[-1].partition(" ")
        assert unit == case.unit
        assert case.holds(float(found)), row


def totals(spec: str, numel: int, rounds: int) -> tuple[list[npt.NDArray[np.float32]], Counters]:
    """Sums of whole numbers that all workers agree on; all switches' counters together."""
    rng = np.random.default_rng(1)
    with tree(spec) as (network, counters):
        workers = start_workers(network, numel)
        vectors = rng.integers(-999, 999, (rounds, len(workers), numel)).astype(np.float32)
        found = []
        with ThreadPoolExecutor(len(workers)) as pool:
            for vector in vectors:
                sums = list(pool.map(lambda w, v: w.allreduce(v), workers, vector))
                assert all(np.array_equal(total, sums[0]) for total in sums)
                assert np.array_equal(sums[0], vector.sum(axis=0))
                found.append(sums[0])
            list(pool.map(lambda worker: worker.leave(), workers))
    together = {n: sum(each[n] for each in counters.values()) for n in counters["s1"]}
    return found, together


@as_root
@pytest.mark.parametrize(
    "faults",
    [
        "loss=1%",
        "loss=5%",
        "delay=2ms,jitter=1ms,loss=1%,duplicate=1%,reorder=1%,corrupt=1%",
        "rate=200Mbit,loss=1%,delay=1ms",
    ],
)
def test_sums_are_exact_on_bad_links(faults: str) -> None:
    _, n = totals(f"star:4,{faults}", 100_000, 3)
    for name, counter in (
        ("loss", "lost"),
        ("duplicate", "duplicated"),
        ("reorder", "reordered"),
        ("corrupt", "corrupted"),
    ):
        for direction in ("in", "out"):
            assert (n[f"{counter}_{direction}"] > 0) == (name in faults)
    assert (n["bad_checksum"] + n["bad_frame"] > 0) == ("corrupt" in faults)
    assert n["queue_in"] == n["queue_out"] == 0


@as_root
def test_sums_of_a_tree_on_bad_links_are_a_flat_stars() -> None:
    """Sixteen workers below four switches below one."""
    star, n = totals("star:16", 20_000, 3)
    assert n["lost_in"] == n["lost_out"] == 0
    below, n = totals("tree:4x4,loss=1%,delay=1ms,seed=3", 20_000, 3)
    assert n["lost_in"] > 0 < n["lost_out"]
    assert n["from_parent"] > 0
    assert all(np.array_equal(a, b) for a, b in zip(star, below, strict=True))


@as_root
def test_tcp_carries_its_bytes_over_bad_links() -> None:
    """What is spoiled its receiver drops; super-frames of TCP are cut where something befalls."""
    sent = np.random.default_rng(1).bytes(2_000_000)
    faults = "delay=1ms,loss=0.5%,duplicate=0.5%,reorder=0.5%,corrupt=0.5%"
    with tree(f"star:2,{faults}") as (network, counters):
        with network.inside("h2"):
            listener = socket.create_server(("0.0.0.0", 0))
        listener.settimeout(PATIENCE)
        address = (str(network.topology.address("h2")), listener.getsockname()[1])
        with network.inside("h1"):
            client = socket.create_connection(address, PATIENCE)
        with listener, client, listener.accept()[0] as server, ThreadPoolExecutor(1) as pool:
            server.settimeout(PATIENCE)
            done = pool.submit(client.sendall, sent)
            came = bytearray()
            while len(came) < len(sent):
                came += server.recv(1 << 16)
            done.result()
        assert came == sent
    for counter in ("lost", "duplicated", "reordered", "corrupted"):
        assert counters["s1"][f"{counter}_in"] > 0, counter
