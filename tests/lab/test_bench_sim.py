"""`iswitch bench --world sim`: virtual time, which repeats to the last byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iswitch.cli import main
from iswitch.lab.bench.choosing import check_ways_of_sim
from iswitch.lab.bench.plan import ASYNC, PAPER, Plan, Setting, Way
from iswitch.lab.bench.result import Results, wire_bound
from iswitch.lab.bench.simulated import measure
from iswitch.lab.launch.simulated import Virtual
from iswitch.virtual.computing import Plan as Computing

ARGUMENTS = ["bench", "--world", "sim", "--sizes", "ppo", "--rate", "10Gbit"]


def bench(*arguments: str, to: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, Any]:
    """Run it; return what it prints and its JSON."""
    assert main([*ARGUMENTS, *arguments, "--json", str(to)]) == 0
    return capsys.readouterr().out, json.loads(to.read_text())


def test_two_runs_are_equal_to_the_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = [bench("--rounds", "2", to=Path("out.json"), capsys=capsys) for _ in range(2)]
    assert found[0] == found[1]
    out, told = found[0]
    assert "star:4,rate=10Gbit, virtual time" in " ".join(out.split())
    assert "Times are virtual" in out
    assert "ideal transport" in out
    assert "s/GB" not in out
    assert "core" not in out
    results = {one["strategy"]: one for one in told["results"]}
    assert list(results) == ["iswitch", "ring", "ps", "tree"]
    size = PAPER["ppo"]
    bound = wire_bound(size, 10e9)
    assert bound < results["iswitch"]["p50"] < 1.06 * bound
    for one in results.values():
        assert one["exact"]
        assert one["world"] == "sim"
        assert one["rounds"] == 2
        assert len(one["iterations"]) == 3
        assert one["compute"] == pytest.approx(size.compute)
        assert one["aggregate"] > bound
        assert one["iteration"] == pytest.approx(one["compute"] + one["aggregate"])
    ring = results["ring"]
    assert ring["link_sent_bytes"] == ring["link_received_bytes"]
    assert ring["link_sent_bytes"] == pytest.approx(1.5 * size.bytes * 1514 / 1448, rel=0.05)


@pytest.mark.parametrize(
    ("form", "size"),
    [("star:8,rate=10Gbit", "a2c"), ("rack:4x3,rate=100Gbit,delay=1us", "ddpg"),
     ("star:2,rate=1Gbit,delay=10us", "100B")],
)  # fmt: skip
def test_a_round_takes_the_wire_and_its_hops_and_the_table_says_so(
    form: str, size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--strategies", "iswitch", "--iterations", "0", "--rounds", "1", "--sizes", size
    arguments = ["bench", "--world", "sim", "--topologies", form, *options]
    assert main([*arguments, "--json", str(tmp_path / "out.json")]) == 0
    out = capsys.readouterr().out
    assert out.split("wire hops")[1].splitlines()[1].split()[-1] == "1.00"
    assert "hops: p50 over that and the time for the other links" in " ".join(out.split())
    (one,) = json.loads((tmp_path / "out.json").read_text())["results"]
    assert one["p50"] == pytest.approx(one["hops_bound"], rel=1e-9)


def test_nodes_take_the_time_that_options_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--strategies", "iswitch,ring", "--iterations", "0", "--rounds", "1"
    _, plain = bench(*options, to=tmp_path / "a", capsys=capsys)
    slow = *options, "--switch-latency", "100us", "--host-overhead", "1us"
    _, late = bench(*slow, to=tmp_path / "b", capsys=capsys)
    extra = [b["p50"] - a["p50"] for a, b in zip(plain["results"], late["results"], strict=True)]
    assert extra[0] == pytest.approx(100e-6, rel=0.1)  # once
    assert extra[1] > 6 * 100e-6  # each of the steps of a ring


def test_other_collectives_of_the_switch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = "--collective", "broadcast,all_gather,barrier", "--rounds", "1"
    _, told = bench(*options, "--strategies", "iswitch", to=tmp_path / "a", capsys=capsys)
    assert [one["collective"] for one in told["results"]] == ["broadcast", "all_gather", "barrier"]
    for one in told["results"][:2]:
        assert one["exact"]
        assert one["link_sent_bytes"] == pytest.approx(one["predicted_sent_bytes"], rel=0.01)


def test_asynchronous_ways_are_measured_as_in_the_papers_plan() -> None:
    ways = [Way.parse("iswitch"), Way.parse(ASYNC), Way.parse("ps:tau=inf")]
    setting = Setting("star:4", "10Gbit")
    plan = Plan([PAPER["ppo"]], [setting], ways, "sim", rounds=1, free=8)
    results = Results()
    measure(plan, setting, Virtual(Computing("zero")), results, lambda *_: None)
    compute = PAPER["ppo"].compute
    assert compute is not None
    for one in results.series:
        (found,) = one.iterations
        assert found.compute == compute
        assert compute <= found.iteration < 1.5 * compute, one.way.label


def test_peers_take_the_delay_of_their_links() -> None:
    """A ring of three sends four messages in turn, each over two links."""
    took = []
    for delay in ("", ",delay=1ms"):
        setting = Setting(f"star:3{delay}", "10Gbit")
        plan = Plan([PAPER["ppo"]], [setting], [Way.parse("ring")], "sim", rounds=2, free=0)
        check_ways_of_sim(plan)
        results = Results()
        measure(plan, setting, Virtual(Computing("zero")), results, lambda *_: None)
        (one,) = results.series
        took.append(one.quartiles[1])
    assert took[1] - took[0] == pytest.approx(0.008, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--strategies", "gloo"], "gloo has sockets of its own"),
        (["--strategies", "forward"], "forward shows what adding costs"),
        (["--strategies", "ring", "--loss", "1%"], "ring would lose nothing"),
        (["--seconds", "3"], "--seconds is of real time"),
        (["--pin"], "--pin is of real time"),
        (["--switch=--spin=0.1"], "--switch is of real time"),
        (["--world", "loopback", "--rate", "none", "--grain", "1"], "--grain is of virtual time"),
        (["--grain", "none"], "neither auto nor a number"),
    ],
)
def test_what_virtual_time_does_not_have_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ARGUMENTS, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_slow_worker_holds_up_iterations_and_chance_spreads_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rounds begin together, and take what they took; asynchronous iterations wait for nobody."""

    def measured(*arguments: str) -> Any:
        options = "--strategies", "iswitch", "--compute", "10", "--rounds", "1", *arguments
        return bench(*options, to=tmp_path / "out.json", capsys=capsys)[1]["results"][0]

    plain, slow = measured(), measured("--slow", "1=3")
    assert slow["iteration"] - plain["iteration"] == pytest.approx(0.020, abs=1e-6)
    assert slow["p50"] == pytest.approx(plain["p50"])
    spread = measured("--jitter", "lognormal:0.3", "--iterations", "5")
    assert spread == measured("--jitter", "lognormal:0.3", "--iterations", "5")
    took = [sum(one[part] for part in ("compute", "aggregate", "update"))
            for one in spread["iterations"]]  # fmt: skip
    assert len(set(took)) == 5
    assert max(took) > plain["iteration"]
    setting = Setting("star:4", "10Gbit")
    found = []
    for factor in (1.0, 3.0):
        plan = Plan([PAPER["ppo"]], [setting], [Way.parse(ASYNC)], "sim", rounds=1, free=20)
        virtual = Virtual(Computing("zero", slow={"3": factor}))
        results = Results()
        measure(plan, setting, virtual, results, lambda *_: None)
        (series,) = results.series
        found.append(series.iterations[0].compute + series.iterations[0].aggregate)
    assert 1.1 * found[0] < found[1] < 2.0 * found[0]


def test_a_network_that_takes_no_time_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless hosts do: then links may have no rate."""
    assert main(["bench", "--world", "sim", "--sizes", "ppo"]) == 2
    assert "star:4 takes no time in virtual time" in capsys.readouterr().err
    words = "--strategies", "iswitch", "--iterations", "0", "--rounds", "1"
    _, told = bench(
        *words, "--rate", "none", "--host-overhead", "2us", to=tmp_path / "a", capsys=capsys
    )
    assert told["results"][0]["p50"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slow", "4=2"], "--slow 4=2: write RANK=FACTOR, with a RANK of 0..3"),
        (["--slow", "1"], "--slow 1: write RANK=FACTOR"),
        (["--jitter", "normal:1"], "write lognormal:S"),
        (["--world", "loopback", "--jitter", "lognormal:1"], "--jitter is of virtual time"),
    ],
)
def test_mistaken_stragglers(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rate = [] if "loopback" in words else ["--rate", "10Gbit"]
    assert main(["bench", "--world", "sim", "--sizes", "ppo", *rate, *words]) == 2
    assert said in capsys.readouterr().err
