"""What memory a benchmark is reckoned to need, and what is said if there is less."""

from __future__ import annotations

import argparse
import tracemalloc

import pytest

from iswitch.cli.bench import configure
from iswitch.lab.bench.choosing import plan_of
from iswitch.lab.bench.memory import PROCESS, check_memory, checked, reckoned, shown
from iswitch.lab.bench.plan import ALLREDUCE, BARRIER, ELEMENT, Plan, Setting, Size, Way
from iswitch.lab.bench.vectors import exact
from iswitch.outside import UsageError
from worker_lib.strategies.collectives import NEEDS, ROOT, sizes

pytestmark = pytest.mark.unit

RING, SWITCH, SERVER = (Way.parse(name) for name in ("ring", "iswitch", "ps"))
LARGE = Size.parse("100MB")


def vectors(*ways: Way, collective: str = "allreduce", workers: int = 4) -> float:
    """Return what is reckoned of some strategies, in vectors, without the processes."""
    there = reckoned(ways, collective, LARGE, workers) - PROCESS * workers * len(ways)
    return there / LARGE.bytes


def test_vectors_of_all_strategies_count_and_the_check_of_one() -> None:
    assert vectors(RING) == 4 * 8
    assert vectors(RING, workers=8) == 8 * 8
    assert vectors(SERVER) == 4 * 8 + 2
    assert vectors(SWITCH) == 4 * 9 + 2
    assert vectors(RING, SWITCH) == 4 * (4 + 5 + 4) + 2
    # In an all-gather each has a quarter twice, and the whole once; it draws quarters.
    assert vectors(RING, collective="all_gather") == 4 * (0.5 + 1 + 0.75 + 1)
    # In a scatter only the root has the whole, but all draw it to check their quarters.
    assert vectors(RING, collective="scatter") == 2 + 4 * 0.25 + 4 * 3
    # Only the root checks a reduce.
    assert vectors(RING, collective="reduce") == 4 * 2 + 3 + 1
    assert vectors(RING, collective="barrier", workers=2) == 0


@pytest.mark.parametrize("collective", [ALLREDUCE, *NEEDS])
def test_a_check_takes_what_is_reckoned(collective: str) -> None:
    numel = 80_000 * (collective != BARRIER)
    drawn = numel if collective == ALLREDUCE else sizes(collective, numel, 8, ROOT)[0]
    exact(collective, 8, 8, ROOT)  # imports what it needs
    tracemalloc.start()
    try:
        exact(collective, numel, 8, ROOT)
        peak = tracemalloc.get_traced_memory()[1] / ELEMENT
    finally:
        tracemalloc.stop()
    reckons = checked(collective, numel, drawn)
    assert 0.7 * reckons <= peak <= 1.1 * reckons + 2_000


def test_virtual_time_has_one_strategy_at_a_time() -> None:
    both = reckoned([RING, SWITCH], "allreduce", LARGE, 4, in_turn=True)
    assert both == reckoned([SWITCH], "allreduce", LARGE, 4, in_turn=True) == 26 * LARGE.bytes


def test_more_than_there_is_is_refused_before_anything_starts() -> None:
    plan = Plan([Size.parse("4kB"), LARGE], [Setting("star:4")], [RING, SWITCH])
    check_memory(plan, [4], 5.6e9)
    with pytest.raises(UsageError) as refused:
        check_memory(plan, [4], 2.86e9)
    assert str(refused.value) == (
        "--sizes 100MB: ring, iswitch, each with 4 workers, need together 5.56 GB of memory, and "
        "2.86 GB are free; take --sizes up to 50MB or fewer workers or fewer --strategies"
    )
    check_memory(Plan([Size.parse("50MB")], plan.settings, plan.ways), [4], 2.86e9)
    with pytest.raises(UsageError, match=r"; take fewer workers or fewer --strategies$"):
        check_memory(plan, [4], 100e6)


def test_no_mend_is_named_that_cannot_be() -> None:
    plan = Plan([LARGE], [Setting("star:1")], [RING])
    with pytest.raises(UsageError, match=r"ring with 1 worker needs .* up to 47MB$"):
        check_memory(plan, [1], 400e6)
    with pytest.raises(UsageError, match=r"take a machine with more$"):
        check_memory(plan, [1], -1e6)
    paper = Plan([LARGE], [Setting("star:4")], [RING, SWITCH], free=20)
    with pytest.raises(UsageError, match=r"MB or fewer workers$"):
        check_memory(paper, [4], 1e9)


def test_bytes_for_people_have_three_digits_or_are_whole() -> None:
    written = [shown(nbytes) for nbytes in (-1, 4e6, 999.6e6, 64.13e9, 999.6e9, 1.28e14)]
    assert written == ["0 MB", "4 MB", "1 GB", "64.1 GB", "1,000 GB", "128,000 GB"]


def test_the_command_asks_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    configure(parser)
    args = parser.parse_args(["--sizes", "40kB,2GB", "--strategies", "ring"])
    monkeypatch.setattr("iswitch.lab.bench.memory.room", lambda: 70 << 30)
    plan_of(args)
    monkeypatch.setattr("iswitch.lab.bench.memory.room", lambda: 32 << 30)
    with pytest.raises(UsageError, match=r"2GB: ring .* 64\.1 GB .* 34\.4 GB are free; .*1071MB"):
        plan_of(args)
