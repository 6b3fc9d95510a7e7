"""Topologies, results and counters show themselves in notebooks and in terminals."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from iswitch.core.format.counters import COUNTERS, DROPS, Counters
from iswitch.tables import LONGEST, Table
from topologies import Topology, simulate
from topologies.virtual.notebook import Results, Seat
from worker_lib import Worker

pytestmark = pytest.mark.unit

N = 1000


def in_terminal(thing: object) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(thing)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rows(html: str) -> list[list[str]]:
    """The texts of the cells of a table, by row."""
    found = ElementTree.fromstring(html).iter("tr")
    return [["".join(cell.itertext()) for cell in row] for row in found]


@pytest.fixture(scope="module")
def ran() -> Results[str]:
    def work(seat: Seat) -> str:
        with Worker(numel=N, **seat.arguments) as worker:
            total = worker.allreduce(np.ones(N, np.float32))
            return f"<{total[0]:g}>"

    return simulate("star:3,rate=1Gbit", work)


@pytest.mark.slow
def test_results(ran: Results[str]) -> None:
    html = ran._repr_html_()
    assert rows(html) == [["rank", "returned"], *([str(rank), "<3>"] for rank in range(3))]
    assert f"{ran.seconds:.6g} s of virtual time" in html
    shown = in_terminal(ran)
    assert shown.count("<3>") == 3
    assert "of virtual time" in " ".join(shown.split())


@pytest.mark.slow
def test_counters_of_a_run(ran: Results[str]) -> None:
    counters = ran.counters["s1"]
    shown = rows(counters._repr_html_())[1:]
    meanings = COUNTERS | DROPS
    assert {name: int(n.replace(",", "")) for name, n, _ in shown} == {
        name: count for name, count in counters.items() if count
    }
    assert all(meaning.removeprefix("drop: ") == meanings[name] for name, _, meaning in shown)
    assert int(in_terminal(counters).split("accumulated")[1].split()[1]) == 9  # 3 segments each


def test_no_counts_are_an_empty_table() -> None:
    assert rows(Counters()._repr_html_()) == [["counter", "count", "meaning"]]
    assert "meaning" in in_terminal(Counters())


def test_topology() -> None:
    network = Topology.parse("rack:2x2,rate=1Gbit")
    assert ElementTree.fromstring(network._repr_html_()).text == network.describe()
    lines = [line.rstrip() for line in in_terminal(network).splitlines()]
    assert lines == network.describe().splitlines()


def test_cells_are_escaped_and_short() -> None:
    table = Table(("a<b", "n"), [("[red]&", 1234567), ("x" * 200, 0.5), ([1, 2], True)], "<c>")
    assert rows(table._repr_html_()) == [
        ["a<b", "n"],
        ["[red]&", "1,234,567"],
        ["x" * (LONGEST - 3) + "...", "0.5"],
        ["[1, 2]", "True"],
    ]
    shown = in_terminal(table)
    assert "[red]&" in shown
    assert "1,234,567" in shown


@pytest.mark.slow
def test_paper_counting_in_virtual_time_counts_packets() -> None:
    """Where a contribution comes twice, the paper's counter takes it for another worker's."""

    def work(seat: Seat) -> float:
        with Worker(numel=N, **seat.arguments) as worker:
            return float(worker.allreduce(np.full(N, 10.0**seat.rank, np.float32))[0])

    twice = "star:3,rate=1Gbit,duplicate=50%,seed=1"
    assert set(simulate(twice, work)) == {111.0}
    assert set(simulate(twice, work, counting="paper")) != {111.0}
