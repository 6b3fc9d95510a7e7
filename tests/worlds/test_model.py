"""The model beside the simulated world that moves packets one by one: equal to the nanosecond.

`make model` plays 500 cases, `make test` ten.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

from iswitch.core.format.wire import Shape
from iswitch.core.jobs.limits import Limits
from iswitch.lab.bench.simulated import Start
from iswitch.sim.grain import SINGLE
from iswitch.sim.handling import Handling
from iswitch.sim.model import plans
from iswitch.sim.model.aggregation import Window, aggregate
from iswitch.sim.model.fabric import Fabric, Floats, fold
from iswitch.sim.model.messages import Exchange
from iswitch.sim.model.ring import go_round, is_apart
from iswitch.virtual.computing import read_plan
from tests.support.virtual import play
from tests.worlds.test_sim_times import address
from topologies import Topology
from topologies.simulated import Simulation
from topologies.virtual.notebook import Floor, Seat
from worker_lib.protocol.session import Session
from worker_lib.protocol.terms import RoundTerms
from worker_lib.protocol.window import bursts_allowed, widened
from worker_lib.strategies import make
from worker_lib.strategies import tree as trees
from worker_lib.strategies.packing import Tree

pytestmark = pytest.mark.unit

CASES = int(os.environ.get("ISWITCH_MODEL_SEEDS", "8")) * 5 // 4  # `make model` takes more
EXACT = 1e-9  # seconds
FORMS = ["star:2", "star:3", "star:5", "rack:2x3", "rack:3x1", "tree:2x2x2", "leafspine:2x2x2"]
PAUSE = 0.5  # seconds before a round: everybody knows by then who takes part


class Case(NamedTuple):
    """A lossless round."""

    topology: Topology
    strategy: str
    numel: int
    starts: Floats
    hosts: Handling
    latency: float
    trees: list[Tree]

    @classmethod
    def draw(cls, seed: int) -> Case:
        """Draw one; links of `tree` differ, since its streams else meet at equal times."""
        rng = Random(f"model {seed}")
        strategy = rng.choice(["iswitch", "iswitch", "ring", "ps", "ps:2", "tree"])
        rate = rng.choice(["100Mbit", "1Gbit", "10Gbit", "100Gbit"])
        delay = rng.choice(["0us", "1us", "100us", "5ms"])
        topology = Topology.parse(f"{rng.choice(FORMS)},rate={rate},delay={delay}")
        if strategy == "tree" or rng.random() < 0.4:
            links = (
                replace(
                    link,
                    rate=int(rng.uniform(0.3, 1) * (link.rate or 1)),
                    delay=link.delay * rng.uniform(0.5, 1),
                )
                for link in topology.links
            )
            topology = replace(topology, links=tuple(links))
        workers = len(topology.hosts)
        most = 100_000 if strategy == "iswitch" else 40_327
        numel = rng.choice([1, 3, 1000, 10_247, rng.randint(1, most)])
        spread = rng.choice([0.0, 1e-5, 1e-3])
        starts = np.array([rng.uniform(0, spread) for _ in range(workers)])
        hosts = Handling(rng.uniform(0, 1e-6), rng.uniform(0, 1e-10), rng.choice([0, 1e-6]))
        if rng.random() < 0.6:
            hosts = Handling()
        packed = [cls._tree(rng, workers) for _ in range(rng.randint(1, 3))]
        packed = [tree._replace(share=1 / len(packed)) for tree in packed]
        return cls(topology, strategy, numel, starts, hosts, rng.choice([0, 1e-6]), packed)

    @staticmethod
    def _tree(rng: Random, workers: int) -> Tree:
        order = rng.sample(range(workers), workers)
        parents: list[int | None] = [None] * workers
        for at, rank in enumerate(order[1:], 1):
            parents[rank] = order[rng.randrange(at)]
        return Tree(tuple(parents), 1.0)

    def simulated(self, monkeypatch: pytest.MonkeyPatch) -> Floats:
        """Play two rounds packet by packet; return the seconds until each worker is done."""
        workers, switches = len(self.starts), Handling(latency=self.latency)
        if self.strategy == "iswitch":
            found = play(
                self.topology,
                self.numel,
                SINGLE,
                self.starts.tolist(),
                (self.hosts, switches),
                pause=PAUSE,
            )
            return np.array(found).reshape(2, workers)
        monkeypatch.setattr(trees, "_trees", lambda _: self.trees)
        simulation = Simulation(
            self.topology, latency=0.0, grain=SINGLE, hosts=self.hosts, switches=switches
        )
        start = Start(workers)

        def work(seat: Seat) -> list[float]:
            name, _, servers = self.strategy.partition(":")
            options: dict[str, Any] = {"servers": int(servers)} if servers else {}
            took = []
            with make(name, self.numel, **options) as strategy:
                for _ in range(2):
                    vector = np.ones(self.numel, np.float32)
                    at = start() + PAUSE
                    time.sleep(at + self.starts[seat.rank] - time.monotonic())
                    total = strategy.allreduce(vector)
                    took.append(time.monotonic() - at)
                    assert total[-1] == workers
                start()
            return took

        return np.transpose(Floor[list[float]](simulation, read_plan("zero")).run(work))

    def modelled(self) -> Floats:
        """Return the same, as the model has it."""
        fabric, workers = Fabric.of(self.topology), len(self.starts)
        nodes = self.hosts, self.latency
        if self.strategy == "iswitch":
            shape = Shape.of(self.numel)
            windows = [Window.of(shape, workers, done) for done in (0, 1)]
            return np.array(
                [aggregate(fabric, shape, self.starts, window, *nodes) for window in windows]
            )
        if self.strategy == "ring":
            assert is_apart(fabric)
            found = go_round(fabric, plans.chunks(self.numel, workers), self.starts, *nodes)
            streams = plans.ring(self.numel, workers)
            other = Exchange(fabric, streams, *nodes).play(self.starts)
            assert np.abs(found - other).max() < EXACT
        elif self.strategy == "tree":
            found = Exchange(fabric, plans.tree(self.numel, self.trees), *nodes).play(self.starts)
        else:
            servers = int(self.strategy.partition(":")[2] or 1)
            streams = plans.ps(self.numel, workers, servers)
            found = Exchange(fabric, streams, *nodes).play(self.starts)
        return np.array([found, found])


@pytest.mark.parametrize("seed", range(CASES))
def test_the_model_has_the_times_of_the_simulated_world(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case.draw(seed)
    simulated, modelled = case.simulated(monkeypatch), case.modelled()
    assert np.abs(simulated - modelled).max() < EXACT, case


@pytest.mark.parametrize("workers", [1, 12, 13, 28, 300, 8192])
def test_windows_are_those_of_workers(workers: int) -> None:
    """Where more than a dozen workers are in a job, each has a share of a switch's room."""
    shape = Shape.of(1_000_000)
    session = Session(RoundTerms(address(0), 1, shape, expected=workers), 1000)
    session._share(workers)
    window = session.window
    assert Window.of(shape, workers) == (window.size, window.ceiling, session.burst)
    window.returned(shape.segments)
    assert Window.of(shape, workers, 1).size == window.size == window.ceiling


@pytest.mark.parametrize("slots", [64, 100, 256])
def test_slots_narrow_windows(slots: int) -> None:
    topology, numel = Topology.parse("star:2,rate=10Gbit,delay=200us"), 366 * 400
    limits = Limits(slots=slots)
    found = np.array(play(topology, numel, rounds=2, pause=PAUSE, limits=limits)).reshape(2, -1)
    shape = Shape.of(numel)
    for done in (0, 1):
        window = Window.of(shape, 2, done, slots=slots)
        ends = aggregate(Fabric.of(topology), shape, np.zeros(2), window)
        assert np.abs(ends - found[done]).max() < EXACT
    assert window.ceiling == 1 << slots.bit_length() - 2
    assert Window.of(shape, 2, 9, slots=400) == Window.of(shape, 2, 9)


def test_a_gate_opens_when_the_window_has_room() -> None:
    """Told for each burst by the rules of workers, aggregate by aggregate."""
    for window in (
        Window(176, 890, 44),
        Window(100, 100, 44),
        Window(1, 1, 1),
        Window(890, 890, 44),
    ):
        for segments in (1, 100, 176, 177, 2000):
            sent = came = 0
            size = float(window.size)
            wanted = []
            whole = segments <= min(4 * window.burst, window.size)
            while sent < segments:
                room = bursts_allowed(size, sent - came, window.burst) or sent == came
                step = segments if whole else min(room * window.burst, segments - sent)
                wanted += [came] * step
                sent += step
                came += 1
                size = widened(size, float("inf"), window.ceiling, window.burst, 1)
            assert window.gates(segments).tolist() == wanted


def test_what_is_alike_is_worked_out_once() -> None:
    """With other starts nothing is alike, and the times are those of the same workers."""
    fabric = Fabric.of(Topology.parse("fattree:k=8,rate=10Gbit,delay=1us"))
    same = np.zeros(128)
    assert len(fold(fabric, same).fabric.parent) == 4
    late = same.copy()
    late[77] = 1e-4
    folded = fold(fabric, late)
    # The late host, and on each level of its way one that is not on it.
    assert len(folded.fabric.parent) == 4 + 6
    assert folded.starts[folded.of].tolist() == late.tolist()
    different = np.linspace(0.0, 1e-10, 128)
    assert len(fold(fabric, different).fabric.parent) == len(fabric.parent)
    shape = Shape.of(100_000)
    window = Window.of(shape, 128)
    one, other, last = (
        aggregate(fabric, shape, starts, window) for starts in (same, different, late)
    )
    assert np.abs(one - other).max() < EXACT
    assert last.max() == pytest.approx(one.max() + 1e-4, abs=EXACT)


def test_some_of_the_hosts_work() -> None:
    fabric = Fabric.of(Topology.parse("rack:3x4,rate=1Gbit"), 5)
    assert fabric.names == ("core1", "tor1", "tor2", "h1", "h2", "h3", "h4", "h5")
    assert fabric.path(3, 7) == [(3, True), (1, True), (2, False), (7, False)]
    assert fabric.path(3, 4) == [(3, True), (4, False)]
    assert fabric.path(3, 3) == []
