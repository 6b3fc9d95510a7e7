"""What bench makes of measured rounds."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from multiprocessing.connection import Client
from pathlib import Path

import pytest
from rich.console import Console

from iswitch.cli import parser
from iswitch.lab.bench import html
from iswitch.lab.bench.choosing import plan_of
from iswitch.lab.bench.figures import Pictures
from iswitch.lab.bench.group import Group, Lobby, Round
from iswitch.lab.bench.plan import PAPER, Plan, Setting, Way
from iswitch.lab.bench.report import (
    Report,
    as_csv,
    as_json,
    hint,
    iterations,
    limits,
    ms,
    note,
    rich_tables,
    table_of,
    title,
)
from iswitch.lab.bench.result import Results, wire_bound
from iswitch.lab.options import foot
from iswitch.outside import UsageError
from tests.lab.test_bench import SMALL, STAR, results, series

pytestmark = pytest.mark.serial


def test_ratios_are_of_pairs() -> None:
    first, other = series("iswitch", [1.0, 2.0, 4.0]), series("ring", [2.0, 2.0, 16.0])
    assert other.ratio(first) == (1.5, 2.0, 3.0)  # of 2, 1, 4
    assert first.ratio(first) == (1.0, 1.0, 1.0)
    assert other.quartiles.middle == 2.0


def test_cpu_is_per_gb_of_all_contributions() -> None:
    one = series("iswitch", [1.0, 1.0])  # 2 rounds x 4 workers x 4 MB = 0.032 GB
    assert one.cpu_per_gb() == pytest.approx((0.2 / 0.032, 0.4 / 0.032))
    assert one.link() == (32e6, 64e6)


def test_the_folder_of_a_lobby_is_gone_when_all_have_reported() -> None:
    group = Group(Way.parse("iswitch"), 2)
    with Lobby(lambda: None) as lobby:
        workers = [Client(lobby.path, "AF_UNIX") for _ in range(2)]
        for rank, worker in enumerate(workers):
            worker.send((0, rank))
        lobby.gather([group])
        assert not Path(lobby.path).parent.exists()
        for worker in workers:
            worker.close()


def test_no_more_cores_are_busy_than_there_are() -> None:
    """In rounds of microseconds (of a single worker, say) processes mostly wake and sleep."""
    assert series("ring", [1.0]).cores_busy(2) == pytest.approx(0.3)
    assert series("ring", [0.01]).cores_busy(2) == 2.0
    assert "ring 2.0 of 2 cores" in limits([series("ring", [0.01])], 2)


def test_bound_of_the_wire() -> None:
    """Each of 28 frames of 366 elements, but for the last, has 50 bytes beside them."""
    assert wire_bound(PAPER["ppo"], 1e9) == (10_247 * 4 + 28 * 50) * 8 / 1e9
    assert series("iswitch", [1.0]).bound is None
    of_form = replace(series("iswitch", [1.0]), setting=Setting("star:4,rate=100Mbit", slowest=1e8))
    assert of_form.bound == series("iswitch", [1.0], "100Mbit").bound
    assert series("iswitch", [1.0], "100Mbit").bound == pytest.approx(0.331, abs=0.001)


def test_packets_in_shared_memory_are_told_apart() -> None:
    """No interface counts them, so the share of the rate is of the time that links need."""
    setting, seconds = Setting("star:4", "100Mbit", cable="shm"), [331e-3, 331e-3]
    one = replace(series("iswitch", seconds, "100Mbit"), setting=setting)
    assert one.bound is not None
    assert one.wire_busy() == one.bound / 331e-3
    other = replace(series("ring", [1.0], "100Mbit"), setting=setting)  # goes over links
    assert other.wire_busy() == series("ring", [1.0], "100Mbit").wire_busy()
    plan = Plan([SMALL], [setting], [one.way], "netns")
    assert title([one], plan).endswith("star:4,rate=100Mbit, cable shm")
    assert "shm" not in title([series("iswitch", [1.0], "100Mbit")], plan)


def test_what_limits_it() -> None:
    """0.3 s of CPU time in a round, 64 Mbit on a worker's link, four times that on a server's."""
    first, slow = series("iswitch", [0.1]), series("ring", [0.6])
    assert [one.limit(4) for one in (first, slow)] == ["cores", ""]  # 3 and 0.5 of 4
    assert limits([first, slow], 4) == (
        "Limit: cores (iswitch 3.0 of 4 cores); neither, but the wait for others (ring 0.5 of 4 "
        "cores)"
    )
    on_links = [series("iswitch", [0.7], "100Mbit"), series("ring", [1.0], "100Mbit")]
    on_links.append(series("ps:servers=2", [1.5], "100Mbit"))
    assert [one.limit(4) for one in on_links] == ["wire", "", "wire"]
    assert limits(on_links, 4) == (
        "Limit: the wire (iswitch 91 % of the rate, ps:servers=2 85 % of the rate); neither, but "
        "the wait for others (ring 64 % of the rate, 0.3 of 4 cores)"
    )
    assert limits([series("iswitch", [0.2])], 1) == "Limit: cores (iswitch 1.0 of 1 core)"
    assert "iswitch bench --world netns --rate 100Mbit" in hint(Plan([SMALL], [STAR], []))
    assert hint(Plan([SMALL], [STAR], [], "netns")) == ""
    assert "packets a second" in hint(Plan([SMALL], [STAR], [], "bmv2"))


def test_links_at_the_foot_save_by_the_chosen_names() -> None:
    assert foot(None, "out/mine.html", "csv") == "mine.csv"
    assert foot("/tmp/all.txt", "out/mine.html", "csv") == "all.txt"
    found = html.page(
        Report(Plan([SMALL], [STAR], []), results(), {}, "", True), (), ["a.csv", "b.json"]
    )
    assert re.findall(r'<a download="([^"]*)"', found.html()) == ["a.csv", "b.json"]


def test_parts_of_an_iteration() -> None:
    one = series("iswitch", [1.0])
    assert one.split() is None
    one.iterations = [Round(1.0, 2.0, 3.0, 0, 0, 0, 0), Round(1.0, 4.0, 3.0, 0, 0, 0, 0)]
    assert one.split() == {"compute": 1.0, "aggregate": 3.0, "update": 3.0, "iteration": 7.0}
    other = series("ring", [1.0])
    assert iterations([other]) == ""
    assert iterations([one, other]) == (
        "Iterations, p50 in ms: iswitch 7000; 1000 of that is computing"
    )
    words = ["bench", "--sizes", "4kB,1MiB", "--iterations", "2"]
    with pytest.raises(UsageError, match=r"is known of ppo, .* only; say it with --compute MS"):
        plan_of(parser(["bench"]).parse_args(words))


def test_forms_that_differ_otherwise_are_other_lines() -> None:
    """In a plot against workers; what counts the workers is one line."""
    forms = ["star:2", "star:4", "star:2,delay=1ms", "star:4,delay=1ms", "rack:2x3", "rack:3x2"]
    found = Results()
    for form in forms:
        one = series("iswitch", [1.0, 2.0])
        workers = 6 if form.startswith("rack") else int(form[5])
        found.series.append(replace(one, setting=Setting(form), workers=workers))
    captions = [picture.caption for picture in Pictures(found).against_workers()]
    assert [text.partition("workers; ")[2].partition(". ")[0] for text in captions] == [
        "star:N",
        "star:N,delay=1ms",
    ]


def test_the_legend_is_of_the_columns_that_are_there() -> None:
    plan, found = Plan([SMALL], [STAR], []), results()
    columns = re.compile(r"\. (\w+): ")
    assert columns.findall(note(plan, found)) == ["ratio", "switch", "workers"]
    for one in found.series:
        one.setting = replace(one.setting, slowest=1e9)
    assert columns.findall(note(plan, found)) == ["ratio", "wire", "switch", "workers"]
    for one in found.series:
        one.rounds = [round_._replace(switch_cpu=0.0) for round_ in one.rounds]
    assert columns.findall(note(plan, found)) == ["ratio", "wire", "workers"]


@pytest.mark.parametrize("width", [30, 60, 80, 100])
def test_tables_are_as_narrow_as_the_terminal_and_whole(width: int) -> None:
    (cell,) = results().cells()
    head, *lines = table_of(cell)
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        for part in rich_tables("a name", head, lines, width):
            console.print(part)
    shown = capture.get()
    assert "\u2026" not in shown
    assert max(map(len, shown.splitlines())) <= width
    for text in (*head, *(text for line in lines for text in line)):
        assert re.search(rf"(?<!\S){re.escape(text)}(?!\S)", shown)
    assert (shown.count(head[0]) == 1) == (width == 100)


def test_reports() -> None:
    plan = Plan([SMALL], [STAR], [])
    told = as_json(Report(plan, results(), {"CPU": "x"}, "iswitch bench", False))
    assert (told["complete"], told["machine"], len(told["results"])) == (False, {"CPU": "x"}, 2)
    assert told["results"][1]["seconds"] == [0.002, 0.004]
    rows = list(csv.DictReader(as_csv(plan, results()).splitlines()))
    assert set(rows[0]) == told["results"][0].keys() - {"seconds", "iterations", "stats"}
    assert [row["strategy"] for row in rows] == ["iswitch", "ring"]
    assert [float(row["ratio_p50"]) for row in rows] == [1.0, 2.0]
    (cell,) = results().cells()
    head, *lines = table_of(cell)
    (shown,) = rich_tables("", head, lines, 100)
    assert shown.row_count == 2  # of nothing there is none
    assert [column.header for column in shown.columns] == [
        "strategy", "p50, ms", "quartiles, ms", "p99, ms", "rounds", "ratio", "switch, s/GB",
        "workers, s/GB",
    ]  # fmt: skip
    assert [ms(value) for value in (1e-4, 1e-3, 0.01234, 1.234)] == [
        "0.100",
        "1.00",
        "12.3",
        "1234",
    ]
