"""Compares two snapshots of a switch: what was counted between them, and rates by its own clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from iswitch.core.format.counters import share_added

Fields = Mapping[str, Any]
NOTHING: Fields = {}


@dataclass(frozen=True)
class Change:
    """A pair of snapshots of one switch, or of one part of them.

    Attributes:
        now: the later state.
        before: the earlier state; empty if there was none: all is counted since the start.
        seconds: the time between them.
    """

    now: Fields
    before: Fields
    seconds: float

    @classmethod
    def of(cls, now: Fields, before: Fields | None) -> Change:
        """Compare two snapshots; without an earlier one of this process, count from its start."""
        if before is None or now["uptime"] < now["clock"] - before["clock"]:
            return cls(now, NOTHING, max(now["uptime"], 1e-6))
        return cls(now, before, max(now["clock"] - before["clock"], 1e-6))

    def count(self, name: str) -> float:
        """Return by how much a count has grown."""
        grown: float = self.now[name] - self.before.get(name, 0)
        return max(0.0, grown)

    def rate(self, name: str) -> float:
        """Return by how much a count has grown in a second."""
        return self.count(name) / self.seconds

    def part(self, name: str) -> Change:
        """Return the change of a part, such as `drops`."""
        return Change(self.now[name], self.before.get(name, NOTHING), self.seconds)

    def parts(self, name: str, *keys: str) -> Iterator[Change]:
        """Yield the changes of a list of parts; `keys` tell which part was which before."""
        before = {tuple(one[key] for key in keys): one for one in self.before.get(name, ())}
        for one in self.now[name]:
            yield Change(one, before.get(tuple(one[key] for key in keys), NOTHING), self.seconds)

    def drops(self) -> dict[str, float]:
        """Return the reasons for which packets were dropped, and how many a second."""
        drops = self.part("drops")
        return {name: drops.rate(name) for name in drops.now if drops.count(name)}

    def share_added(self) -> float | None:
        """Return the part of all contributions that it added, 0 to 1; None: it passes none on."""
        counters: Mapping[str, int] = self.now["counters"]
        return share_added(counters) if counters.get("passed_on") else None

    def jobs(self) -> Iterator[Job]:
        """Yield the jobs, the same objects at each call."""
        return iter(self._jobs)

    def links(self) -> Iterator[Link]:
        """Yield the links, the same objects at each call."""
        return iter(self._links)

    @cached_property
    def _jobs(self) -> list[Job]:
        return [Job(job) for job in self.parts("jobs", "job")]

    @cached_property
    def _links(self) -> list[Link]:
        return [Link(link) for link in self.parts("links", "name")]


class Job:
    """A job between two snapshots of a switch."""

    def __init__(self, change: Change) -> None:
        self.change = change
        self.now = change.now
        self._rounds = change.part("rounds")
        self._found: dict[Callable[[Job], list[Member]], list[Member]] = {}

    @property
    def rounds_per_second(self) -> float:
        """Return the rounds that members began in a second."""
        begun: int = self.now["round"] - self.change.before.get("round", 0)
        return max(0, begun) / self.change.seconds

    @property
    def measured(self) -> float:
        """Return the rounds that were measured."""
        return self._rounds.count("measured")

    @property
    def spread(self) -> float | None:
        """Return the mean time from a round's first contribution to its last; None: none ended."""
        rounds = self.measured
        return self._rounds.count("seconds") / rounds if rounds else None

    @property
    def share_added(self) -> float | None:
        """Return the part of its contributions that were added here, 0 to 1; None: none came."""
        added, passed_on = self.now["added"] or 0, self.now["passed_on"] or 0
        return added / (added + passed_on) if added + passed_on else None

    @property
    def contributors(self) -> int:
        """Return the number of members that contribute: workers, and switches below."""
        return sum(member.now["type"] != "controller" for member in self.members())

    @property
    def least(self) -> int:
        """Return how many contributors must be there for anything to complete."""
        shape = self.now["shape"]
        is_asynchronous = shape is not None and shape["mode"] == "asynchronous"
        least: int = 1 if is_asynchronous else self.now["threshold"]
        return least

    def members(self) -> Iterator[Member]:
        """Yield the members, the same objects at each call."""
        return iter(self._members)

    @cached_property
    def _members(self) -> list[Member]:
        parts = self.change.parts("members", "host", "port", "seat")
        return [Member(member, self) for member in parts]

    def once(self, choose: Callable[[Job], list[Member]]) -> list[Member]:
        """Return the members that a function chooses; it is called once."""
        if choose not in self._found:
            self._found[choose] = choose(self)
        return self._found[choose]


class Member:
    """A member between two snapshots of a switch."""

    def __init__(self, change: Change, job: Job) -> None:
        self.change = change
        self.now = change.now
        self.job = job

    @property
    def last(self) -> float:
        """Return the share of rounds that its contribution ended."""
        return self.change.count("last") / self.job.measured if self.job.measured else 0.0

    @property
    def behind(self) -> float:
        """Return the mean time from a round's first contribution to its own first, in seconds."""
        rounds = self.change.count("rounds")
        return self.change.count("behind") / rounds if rounds else 0.0

    @property
    def again(self) -> float:
        """Return the packets a second that were sent or asked for again, for or by this member."""
        return sum(self.change.rate(name) for name in ("resent", "asked"))

    @property
    def loss(self) -> float:
        """Return the share of its contributions that were sent or asked for again."""
        packets = self.change.count("packets")
        again = sum(self.change.count(name) for name in ("resent", "asked"))
        return again / max(packets, again, 1)


class Link:
    """A link between two snapshots of a switch."""

    def __init__(self, change: Change) -> None:
        self.change = change
        self.now = change.now

    @property
    def load(self) -> float | None:
        """Return the larger of both directions' shares of the rate; None: the rate is not known."""
        rate = self.now["rate"]
        busier = max(self.bits("rx"), self.bits("tx"))
        return busier / rate if rate else None

    def bits(self, way: str) -> float:
        """Return the bits a second in a direction, rx or tx."""
        return 8 * self.change.rate(f"{way}_bytes")

    def lost(self, way: str) -> float:
        """Return the share of packets lost on the way in or out, as an impaired port counts."""
        lost = self.change.count(f"lost_{way}")
        return lost / self.change.count(f"offered_{way}") if lost else 0.0

    @property
    def again(self) -> float:
        """Return the packets a second sent or asked for again, of the members behind it."""
        return sum(self.change.rate(name) for name in ("resent", "asked"))
