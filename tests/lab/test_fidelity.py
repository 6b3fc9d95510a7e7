"""`iswitch doctor --fidelity`: which rates are tried, which is the limit, and what is printed."""

from __future__ import annotations

import json

import pytest

from iswitch.cli import main
from iswitch.faults.units import RATE
from iswitch.lab.bench import fidelity
from iswitch.lab.bench.fidelity import FORMS, LADDER, SIZE, climb
from iswitch.lab.bench.plan import Size
from iswitch.lab.bench.result import wire_bound

pytestmark = pytest.mark.unit

LIMITS = {"star:4": "1Gbit", "rack:2x3": "50Mbit"}


def bound(rate: str) -> float:
    return wire_bound(SIZE, float(RATE.parse(rate)))


def machine(form: str, rate: str) -> float:
    """A machine for which a round takes no less than 1.05 of the bound at its limit."""
    return max(1.01 * bound(rate), 1.05 * bound(LIMITS[form]))


@pytest.mark.parametrize("limit", LADDER)
def test_every_limit_is_found(limit: str) -> None:
    found = climb("star:4", lambda _, rate: max(bound(rate), bound(limit)))
    assert found.highest == limit
    assert [one.rate for one in found.rungs] == sorted(
        (one.rate for one in found.rungs), key=lambda rate: float(RATE.parse(rate))
    )


def test_a_machine_may_be_too_slow_for_any_rate() -> None:
    found = climb("star:4", lambda *_: 100.0)
    assert found.highest is None
    assert [one.rate for one in found.rungs] == ["20Mbit", "50Mbit", "100Mbit"]


def test_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(fidelity, "rounds", lambda form, rate, _: [machine(form, rate)] * 3)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert main(["doctor", "--fidelity"]) == 0
    shown = capsys.readouterr().out
    for form in FORMS:
        assert f"{form}: real time is within 10 % of the wire up to {LIMITS[form]}/s." in shown
    assert main(["doctor", "--fidelity", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    star, rack = told["fidelity"]
    assert (star["topology"], star["highest"], rack["highest"]) == ("star:4", 1e9, 5e7)
    assert star["rates"][0] == {
        "rate": 1e8,
        "median": pytest.approx(1.01 * bound("100Mbit")),
        "wire": bound("100Mbit"),
        "ratio": pytest.approx(1.01),
    }


def test_it_needs_root(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert main(["doctor", "--fidelity"]) == 2
    assert "run it as root" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.root(reason="network namespaces need root")
def test_rounds_in_namespaces() -> None:
    """They take the wire's time at least."""
    size = Size.parse("400kB")
    took = fidelity.rounds("star:2", "100Mbit", size, seconds=0.1)
    assert len(took) == fidelity.LEAST
    assert sum(took) > 0.9 * fidelity.LEAST * wire_bound(size, 1e8)
