"""`iswitch simulate`: accelerators in hosts, links between switches, several jobs, float16."""

from __future__ import annotations

import argparse
import shlex

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.cli import simulate as cli
from iswitch.core.format.wire import DType, Shape
from iswitch.lab.simulate.predicting import predict
from iswitch.lab.simulate.scenario import Scenario, read
from iswitch.sim.grain import SINGLE
from iswitch.sim.handling import Handling
from iswitch.sim.model import plans
from iswitch.sim.model.fabric import Fabric
from iswitch.sim.model.messages import Exchange, Message, Stream
from tests.support.virtual import play

pytestmark = pytest.mark.unit

RACKS = "--topology rack:2x4 --rate 1Gbit --delay 2us"


def scenario(text: str) -> Scenario:
    parser = argparse.ArgumentParser()
    cli.configure(parser)
    return read(parser.parse_args(shlex.split(text)))


@pytest.mark.parametrize("network", ["star:2", "rack:2x1", "star:3"])
def test_hosts_of_accelerators_are_those_of_the_simulated_world(network: str) -> None:
    """Three phases: the host adds, the switch adds, and both pass the sum on."""
    given = scenario(
        f"--topology {network},rate=10Gbit,delay=5us --accelerators 3 --local-rate pcie3 "
        "--local-delay 1us --size 40kB"
    )
    assert given.workers == 3 * int(network[-1]) * (2 if network == "rack:2x1" else 1)
    took = play(given.topology, given.size.numel, SINGLE, pause=0.5)
    last = max(took[given.workers :])  # of the second round, before which windows have grown
    assert predict(given, "iswitch", False).seconds == pytest.approx(last, abs=1e-9)


def test_an_accelerator_of_a_host_is_a_worker() -> None:
    given = scenario("--topology star:2 --accelerators 4 --rate 1Gbit --workers 6")
    assert given.workers == 6
    assert given.fabric.names == ("s1", "h1", "h2", *(f"gpu{i}" for i in range(1, 7)))
    assert given.fabric.rate[1:].tolist() == [1e9] * 2 + [1.2e12] * 6
    found = predict(given, "iswitch", False)
    assert [(one.name, one.count) for one in found.links] == [("gpu-h", 6), ("h-s", 2)]
    assert set(found.memory) == {"h", "s"}


def test_links_between_switches_have_a_rate_of_their_own() -> None:
    given = scenario(f"{RACKS} --trunk-rate 40Gbit --accelerators 2 --local-rate 8Gbit")
    rates = dict(zip(given.fabric.names, given.fabric.rate.tolist(), strict=True))
    assert [rates[name] for name in ("tor2", "h8", "gpu16")] == [4e10, 1e9, 8e9]


@pytest.mark.parametrize("jobs", [2, 4])
def test_jobs_share_links_as_in_the_simulated_world(jobs: int) -> None:
    """Iterations of jobs that begin together; within the few packets for which one waits."""
    given = scenario(f"{RACKS} --jobs {jobs} --size 400kB")
    found = predict(given, "iswitch")
    assert (given.workers, given.shares, found.exact) == (8 // jobs, True, False)
    network = scenario(f"{RACKS},delay=2us,rate=1Gbit".replace(" --rate 1Gbit --delay 2us", ""))
    took = np.array(play(network.topology, [given.size.numel] * jobs, SINGLE, pause=0.5))
    slowest = took.reshape(2, 8)[1].max()
    assert found.seconds == pytest.approx(slowest, rel=0.02)


def test_rings_of_jobs_share_links_as_streams_do() -> None:
    """Beside the exact exchange of all rings at once."""
    jobs, numel = 2, 100_000
    given = scenario(f"{RACKS} --jobs {jobs} --size {4 * numel}B")
    whole = Fabric.of(given.topology)
    whole = whole._replace(rate=np.full(len(whole.rate), 1e9), delay=np.full(len(whole.rate), 2e-6))
    streams: list[Stream] = []
    for job in range(jobs):
        before = sum(len(one.messages) for one in streams)
        streams += [
            Stream(
                jobs * one.source + job,
                jobs * one.target + job,
                [
                    Message(m.size, [(n + before, size) for n, size in m.after])
                    for m in one.messages
                ],
            )
            for one in plans.ring(numel, 8 // jobs)
        ]
    exact = Exchange(whole, streams, Handling(), 0.0).play(np.zeros(8)).max()
    assert predict(given, "ring", False).seconds == pytest.approx(exact, rel=0.03)


def test_a_job_by_itself_shares_nothing() -> None:
    """Racks of two jobs each: without common links nothing is estimated."""
    alone = predict(scenario("--topology star:4 --rate 1Gbit --workers 2 --size 40kB"), "iswitch")
    given = scenario("--topology star:4 --rate 1Gbit --jobs 2 --size 40kB")
    both = predict(given, "iswitch")
    assert not given.shares
    assert both.exact
    assert both.seconds == alone.seconds


def test_float16_halves_what_travels() -> None:
    given = scenario("--topology star:2 --rate 1Gbit --dtype float16 --size 4kB")
    assert given.shape == Shape.of(1000, DType.FLOAT16)
    assert given.size.bytes == 2000
    whole = scenario("--topology star:2 --rate 1Gbit --size 4MB")
    half = scenario("--topology star:2 --rate 1Gbit --size 4MB --dtype float16")
    for strategy in ("iswitch", "ring"):
        ratio = predict(half, strategy).seconds / predict(whole, strategy).seconds
        assert ratio == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--local-rate pcie3", "--local-rate is of --accelerators; say how many hosts have"),
        ("--accelerators 2 --local-rate fast", "or take pcie3, pcie4, nvlink2"),
        ("--accelerators 2 --local-rate 0bit", "write a rate above 0"),
        ("--accelerators 2 --local-delay soon", "--local-delay: delay 'soon'"),
        ("--accelerators 65", "'65' is not a whole number from 1 to 64"),
        ("--trunk-rate fast", "--trunk-rate: rate 'fast' is not a number and a unit"),
        ("--jobs 3", "--jobs 3: 8 workers cannot be dealt out equally"),
        ("--jobs 2 --world sim", "--jobs does not go with --world sim"),
        ("--dtype float8", "--dtype float8: choose of float32, float16"),
        ("--dtype float16 --world sim", "--dtype does not go with --world sim"),
    ],
)
def test_mistakes_are_told(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status: object = main(["simulate", *RACKS.split(), "--size", "4kB", *line.split()])
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert said in capsys.readouterr().err
