"""Describes a history as passive data: printable, written as JSON, and read from it."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from iswitch.core.format.division import divided
from iswitch.core.format.wire import LEAST_SLOTS, DType, Mode, Shape
from iswitch.core.jobs.policies import POLICIES
from iswitch.outside import OutsideError, reading
from topologies import Topology

from .values import EXACT

MODES = WHOLE, ELASTIC, ASYNCHRONOUS = "whole", "elastic", "asynchronous"
COLLECTIVES = "reduce_scatter", "all_gather", "all_to_all"

EVENTS = {
    "pause": "the process of a host or switch is stopped for a while",
    "cut": "the link upward of a host or switch is out for a while",
    "echo": "packets to and from a node come once more, up to 60 ms later",
    "stutter": "a process looks only now and then at what has come",
    "restart": "a switch crashes, and after a while another process starts in its place",
    "reborn": "a worker crashes, and after a while a new one starts in its place; with a `value`, "
    "as it begins a round, and so many us later comes what it has sent last",
    "die": "a worker crashes for good",
    "leave": "a worker leaves; if it lasts, another one starts there after a while",
    "join": "a worker joins where none has been",
    "come": "the job of a host begins: none of its workers starts before",
    "go": "the job of a host ends: all its workers leave, once they have a sum",
    "halt": "a worker halts the job, and after a while one resets it",
    "reset": "a worker resets the job",
    "seth": "a worker sets the threshold to `value`",
    "fbcast": "a worker has its round broadcast as it is",
    "stranger": "somebody who is no member sends data and control to a switch for a while",
    "spoof": "and with the addresses of members, but at another port than theirs",
    "garble": "and data that makes no sense, from where a member of the node is",
    "replay": "and what the node was sent before, from where it came",
    "forge": "and control without the job's key, from where a member of the node is",
    "impostor": "somebody sends a host what its switch would, through the ports of that switch",
}
STRANGE = ("stranger", "spoof", "garble", "replay", "forge", "impostor")
KINDS: dict[str, Any] = {"int": int, "float": (int, float), "str": str, "bool": bool}  # of fields
MOST_EVENTS, MOST_NODES, MOST_NUMEL = 1000, 200, 1 << 20  # far above what is drawn
LONGEST = 60.0  # seconds of virtual time
_T = TypeVar("_T")


class NoScenario(OutsideError, ValueError):
    """A text describes no scenario; the message says why, and what to write."""

    def __init__(self, message: str) -> None:
        super().__init__(
            f"--scenario: {message}; take what a failure has printed, or --seed N, the history of "
            "a seed"
        )


@dataclass(frozen=True)
class Job:
    """One job, and the hosts that work on it from the beginning.

    `threshold`: H, which its first worker sets once it has joined; 0: automatic. `tells`: its
    workers are told of lost members (`on_member_lost="raise"`). `keyed`: it has a key.
    `collective`: one of COLLECTIVES, if its segments have owners; `numel` is then of a block.
    """

    number: int
    mode: str
    hosts: tuple[str, ...]
    dtype: str = "int32"
    numel: int = 8
    elements: int = 4
    threshold: int = 0
    reproducible: bool = False
    tells: bool = False
    keyed: bool = False
    collective: str = ""

    @property
    def asynchronous(self) -> bool:
        """Return whether it counts in versions."""
        return self.mode == ASYNCHRONOUS

    def check(self, hosts: Collection[str]) -> None:
        """Refuse a job that these hosts cannot do.

        Raises:
            NoScenario: its mode, hosts or vectors are impossible.
        """
        if self.mode not in MODES:
            raise NoScenario(f"there is no mode {self.mode!r}, but {', '.join(MODES)}")
        if not self.hosts or not set(hosts).issuperset(self.hosts):
            own = " ".join(self.hosts) or "no host"
            raise NoScenario(f"job {self.number} is of {own}; there are {' '.join(hosts)}")
        if self.dtype not in [dtype.label for dtype in EXACT] or self.numel > MOST_NUMEL:
            raise NoScenario(f"no job has {self.numel} elements of {self.dtype!r}")
        if self.collective and (self.collective not in COLLECTIVES or self.mode != WHOLE):
            raise NoScenario(
                f"there is no collective {self.collective!r} in a job that is {self.mode}, but "
                f"{', '.join(COLLECTIVES)} in one that is {WHOLE}"
            )
        self.shape().check()

    def shape(self) -> Shape:
        """Make the layout of its vectors."""
        dtype = DType[self.dtype.upper()]
        if self.collective:
            mode = Mode[self.collective.upper()]
            return divided(self.numel, len(self.hosts), mode, dtype, most=self.elements)
        mode = Mode.ASYNCHRONOUS if self.asynchronous else Mode.SYNCHRONOUS
        return Shape.of(self.numel, dtype, mode=mode, elements=self.elements)


@dataclass(frozen=True)
class Event:
    """An event: `what`, one of EVENTS, happens to the node `who`. Times are in seconds."""

    at: float
    what: str
    who: str
    lasting: float = 0.0
    value: int = 0

    def check(self, nodes: Collection[str]) -> None:
        """Refuse an event that cannot happen among these nodes.

        Raises:
            NoScenario: the event or the node is unknown, or the event ends too late.
        """
        if self.what not in EVENTS:
            raise NoScenario(f"there is no event {self.what!r}, but {', '.join(EVENTS)}")
        if self.who not in nodes:
            raise NoScenario(f"there is no node {self.who!r}, but {' '.join(nodes)}")
        if self.at + self.lasting > LONGEST:
            raise NoScenario(f"a scenario lasts {LONGEST:g} s at most; this is later: {self}")

    def __str__(self) -> str:
        text = f"{self.at * 1000:7.1f} ms  {self.what} {self.who}"
        if self.what == "seth":
            text += f" to {self.value}"
        if self.what == "reborn" and self.value:
            text += f", heard {self.value / 1000:.1f} ms later"
        return f"{text} for {self.lasting * 1000:.1f} ms" if self.lasting else text


@dataclass(frozen=True)
class Scenario:
    """A history.

    `links` impairs every link in both directions until `horizon`, in seconds, when all faults are
    over. `think`: seconds that a worker works between two rounds, on average. `latency`: seconds,
    of every link. `lease`: seconds, of every switch; 0: it never runs out. `ports`: whether
    switches have ports, and take frames. `rings`: whether packets between workers and their
    switches go through shared memory, too. `slots`: most of a job that can do with fewer than
    segments; 0: it has one for each. `policy`: how jobs share `memory` bytes of the root, as
    `iswitch switch --policy` says; "": every job has all that it needs. If segments go on where
    there is no slot, those below the root share `slots` so.
    """

    seed: int
    topology: str
    jobs: tuple[Job, ...]
    links: str = ""
    events: tuple[Event, ...] = ()
    horizon: float = 0.1
    think: float = 0.005
    latency: float = 0.0001
    lease: float = 0.0
    ports: bool = False
    rings: bool = False
    slots: int = 0
    policy: str = ""
    memory: int = 0

    @property
    def restarts(self) -> bool:
        """Return whether switches lose their state."""
        return self.has("restart")

    @property
    def changes(self) -> bool:
        """Return whether workers come and go."""
        return self.has("reborn", "die", "leave", "join")

    @property
    def strangers(self) -> bool:
        """Return whether strangers send."""
        return self.has(*STRANGE)

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing fails and no worker pauses between rounds."""
        return not (self.links or self.events or self.think)

    def has(self, *kinds: str) -> bool:
        """Tell whether events of one of these kinds happen."""
        return any(event.what in kinds for event in self.events)

    def to_json(self) -> str:
        """Write one line from which `from_json` makes an equal scenario."""
        return json.dumps(_sparse(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        """Read a scenario from its JSON.

        Raises:
            NoScenario: the text describes no scenario.
        """
        with reading("the scenario", NoScenario):
            values = json.loads(text)
            jobs, events = _listed(values, "jobs"), _listed(values, "events")
            whole = [_made(Job, {**job, "hosts": tuple(job["hosts"])}) for job in jobs]
            happens = [_made(Event, event) for event in events]
            found = _made(cls, {**values, "jobs": tuple(whole), "events": tuple(happens)})
            found.check()
            return found

    def check(self) -> None:
        """Refuse a scenario that cannot be played.

        Raises:
            NoScenario: a name is unknown, or a number is out of bounds.
        """
        numbers = {job.number for job in self.jobs}
        if not self.jobs or len(numbers) < len(self.jobs) or max(numbers) > 0xFFFF:
            raise NoScenario("a scenario has jobs, each with a number of its own, 0..65535")
        if len(self.events) > MOST_EVENTS or self.horizon > LONGEST:
            raise NoScenario(f"a scenario has {MOST_EVENTS} events and {LONGEST:g} s at most")
        if self.slots and (self.slots < LEAST_SLOTS or self.slots & (self.slots - 1)):
            raise NoScenario(f"a job has a power of two of slots, {LEAST_SLOTS} at least")
        if self.policy and self.policy not in POLICIES:
            raise NoScenario(f"there is no policy {self.policy}, but {', '.join(POLICIES)}")
        topology = Topology.parse(",".join(filter(None, (self.topology, self.links))))
        if len(topology.nodes) > MOST_NODES:
            raise NoScenario(f"a scenario has {MOST_NODES} hosts and switches at most")
        for job in self.jobs:
            job.check([host.name for host in topology.hosts])
        for event in self.events:
            event.check(topology.nodes)

    def lines(self) -> list[str]:
        """Describe the scenario for people."""
        found = [f"seed {self.seed}: {self.topology}, {self.links or 'sound links'}"]
        found[0] += ", switches with ports" if self.ports else ""
        found[0] += ", rings in shared memory" if self.rings else ""
        where = f"in {self.memory} bytes" if self.memory else "below the root"
        found[0] += f", {self.slots} slots{' a job' * (not self.policy)}" if self.slots else ""
        found[0] += f", {self.policy} {where}" if self.policy else ""
        for job in self.jobs:
            kind = " ".join(filter(None, (job.mode, job.collective)))
            text = f"  job {job.number}: {kind}, {' '.join(job.hosts)}: {job.numel} {job.dtype}"
            text += " a block" if job.collective else ""
            text += f" in segments of {job.elements}"
            text += f", H = {job.threshold}" if job.threshold else ""
            text += ", in rank order" if job.reproducible else ""
            text += ", told who is lost" if job.tells else ""
            found.append(text + (", keyed" if job.keyed else ""))
        lease = f"leases of {self.lease * 1000:.0f} ms" if self.lease else "no leases"
        found.append(
            f"  {lease}, latency {self.latency * 1e6:.0f} us, "
            f"{self.think * 1000:.1f} ms between rounds; faults end at {self.horizon * 1000:.0f} ms"
        )
        return found + [f"  {event}" for event in self.events]


def _listed(values: dict[str, Any], name: str) -> list[Any]:
    found = values.get(name, [])
    if not isinstance(found, list):
        raise ValueError(f"{name} is a list")
    return found


def _made(kind: type[_T], values: dict[str, Any]) -> _T:
    """Make a job, an event or a scenario; check that each value has its field's type.

    Raises:
        ValueError: a value is missing, of another type, or a negative or infinite number.
    """
    for field in fields(kind):  # type: ignore[arg-type]
        value = values.get(field.name, field.default)
        wanted = KINDS.get(str(field.type), tuple)
        is_bool = isinstance(value, bool) and wanted is not bool
        if value is not MISSING and (not isinstance(value, wanted) or is_bool):
            raise ValueError(f"{field.name} cannot be {str(value)[:40]!r}")
        if isinstance(value, int | float) and not 0 <= value < 1 << 64:
            raise ValueError(f"{field.name} is a number of 0 or more, not {value}")
        if value is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{field.name} is missing")
    if not all(isinstance(host, str) for host in values.get("hosts", ())):
        raise ValueError("hosts are names")
    return kind(**values)


def _sparse(thing: Any) -> dict[str, Any]:
    """List the fields that differ from their defaults."""
    found = {}
    for field in fields(thing):
        value = getattr(thing, field.name)
        if field.default is not MISSING and value == field.default:
            continue
        if isinstance(value, tuple) and value and not isinstance(value[0], str):
            value = [_sparse(part) for part in value]
        found[field.name] = value
    return found
