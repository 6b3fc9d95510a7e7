"""One list of counters and drop reasons."""

from __future__ import annotations

import pytest

from iswitch.core.format.counters import COUNTERS, DATA_DROPS, DROPS, Counters

pytestmark = pytest.mark.unit


def test_all_names_from_the_start() -> None:
    assert Counters() == dict.fromkeys([*COUNTERS, *DROPS], 0)
    assert not set(COUNTERS) & set(DROPS)


def test_data_drops_are_drops() -> None:
    assert set(DATA_DROPS) < set(DROPS)
    assert len(set(DATA_DROPS)) == len(DATA_DROPS)


def test_an_unknown_name_fails() -> None:
    counters = Counters()
    with pytest.raises(KeyError):
        counters["droped"] += 1
    assert "droped" not in counters


def test_drops_that_occurred() -> None:
    counters = Counters()
    assert counters.drops() == {}
    counters["late"] += 3
    counters["ordinary"] += 1
    counters["accumulated"] += 5
    assert list(counters.drops().items()) == [("ordinary", 1), ("late", 3)]


def test_counters_are_of_their_own() -> None:
    counters = Counters()
    counters["data"] += 1
    assert Counters()["data"] == 0


@pytest.mark.parametrize("name", [*COUNTERS, *DROPS])
def test_every_counter_is_explained(name: str) -> None:
    text = {**COUNTERS, **DROPS}[name]
    assert len(text.split()) >= 2
    assert not text.endswith(".")
