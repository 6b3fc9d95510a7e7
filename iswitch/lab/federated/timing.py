"""Times trainings in virtual time until an accuracy: with the switch, a server, and in a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from iswitch.lab.launch.simulated import Virtual
from topologies import Topology
from worker_lib.fedprox.data import Federation
from worker_lib.fedprox.measures import quality
from worker_lib.fedprox.models import model_of
from worker_lib.fedprox.rounds import Setting

from .places import network, tree
from .runs import Way
from .simulated import SERVER, SWITCH, How, Row, play

NETWORKS = ("switch", "server", "tree")  # and what they are for people
NAMES = {"switch": "the switch", "server": "parameter server", "tree": "two-level tree"}


class Point(NamedTuple):
    """A round: test accuracy after it, virtual seconds, bytes on all links, on the busiest one."""

    accuracy: float
    seconds: float
    bytes: int
    busiest: int


@dataclass
class Timed:
    """A training over a network.

    Attributes:
        name: of `NETWORKS`.
        way: the algorithm.
        elements: of the vectors that travel.
        rate: of all links.
        points: after 0, 1, 2 ... rounds; the last one is the first that reached the accuracy.
        empty: rounds that nobody finished; they take no time and no bytes.
    """

    name: str
    way: Way
    elements: int
    rate: str
    points: list[Point] = field(default_factory=list)
    empty: int = 0

    @property
    def label(self) -> str:
        """Return what adds, and the algorithm."""
        return f"{NAMES[self.name]}, {self.way.label}"

    def as_json(self) -> dict[str, Any]:
        """Return all of it."""
        return {
            "network": self.name, "algorithm": self.way.algorithm, "mu": self.way.mu,
            "elements": self.elements, "rate": self.rate, "empty_rounds": self.empty,
            "points": [point._asdict() for point in self.points],
        }  # fmt: skip


@dataclass(frozen=True)
class Course:
    """What is to be timed.

    Attributes:
        setting: data, stragglers, and seconds that devices compute in a round.
        ways: algorithms.
        elements: of the vectors that travel; 0: the model's.
        rate: of all links, such as 10Mbit.
        target: test accuracy at which a training ends.
        spread: deviation of the logarithm of links' rates.
    """

    setting: Setting
    ways: Sequence[Way]
    elements: Sequence[int]
    rate: str
    target: float
    spread: float = 0.0

    def jobs(self) -> Iterator[tuple[str, Way, int]]:
        """Yield what is to be timed, one after the other."""
        for elements in self.elements:
            for way in self.ways:
                for name in NETWORKS:
                    yield name, way, elements

    def network(self, name: str) -> Topology:
        """Make a network of `NETWORKS`.

        Raises:
            UsageError: there can be no such network.
        """
        devices, seed = self.setting.devices, self.setting.seed
        form = tree(devices) if name == "tree" else ""
        return network(f"{form},rate={self.rate}", devices, self.spread, seed)


def measure(
    course: Course, job: tuple[str, Way, int], federation: Federation, tell: Callable[[int], None]
) -> Timed:
    """Train over one network until the accuracy, or to the end."""
    name, way, elements = job
    setting = way.of(course.setting)
    model = model_of(setting.model, federation)
    numel = max(elements, model.numel)
    timed = Timed(name, way, numel, course.rate)

    def heard(row: Row) -> bool:
        accuracy = quality(model, row.weights, federation).accuracy
        timed.points.append(Point(accuracy, row.seconds, row.bytes, row.busiest))
        timed.empty += bool(row.rounds) and not row.in_sum
        tell(row.rounds)
        return accuracy < course.target

    how = How(SERVER if name == "server" else SWITCH, numel)
    play(setting, federation, course.network(name), Virtual(), heard, how)
    return timed
