"""Plays a trace: the switch that replays it is watched, and its snapshots kept as frames.

Frames are as many packets apart as makes FRAMES of them, so that a short trace shows a round as it
fills, group by group.
"""

from __future__ import annotations

import argparse
import json
import math
import zlib
from bisect import bisect_right
from typing import Any, NamedTuple

from iswitch.core.format.arbiter import Traffic
from iswitch.core.format.wire import PORT
from iswitch.lab.launch.worlds import read_topology
from iswitch.lab.progress import Bar
from iswitch.lab.tracing.opening import opened, options
from iswitch.traces.groups import FROM_SWITCH, TO_SWITCH, PacketGroup
from iswitch.traces.paired import ReplayOptions
from iswitch.traces.reader import Reader
from iswitch.traces.replay import Replayer
from iswitch.traces.survey import TraceSetting
from iswitch.traces.walk import Walk
from iswitch.watch.change import Change
from iswitch.watch.judging import Scene
from iswitch.watch.links import FAULTS, WAYS, WHAT
from iswitch.watch.places import Network
from iswitch.watch.server import memoized
from iswitch.watch.snapshot import Building, Subject

from .seen import seen

FRAMES = 3000  # at most, but for one
LOOK_BACK = 1.0  # seconds over which rates are measured
HEADERS = 28  # bytes of IP and UDP


class Frame(NamedTuple):
    """A snapshot of the replaying switch, compressed, and its time in seconds."""

    time: float
    snapshot: bytes


class Played:
    """The frames of a trace.

    Args:
        args: options that name the trace, and the switch in it.

    Raises:
        OutsideError: the trace cannot be read, or nothing in it can be replayed.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.frames: list[Frame] = []
        self.path = str(args.trace)
        reader, setting = opened(args)
        self.network = network_of(args)
        self._ports: dict[int, dict[str, int]] = {}  # by place of capture: what it counted
        with reader:
            packets = sum(len(what) for _, what in Walk(reader, setting).batches())
            self._apart, self._since, self._done = packets / FRAMES, math.inf, 0
            player = Player(self, reader, setting, options(args), math.ceil(self._apart))
            self._player: Player | None = player
            host, port = setting.switch
            name = next(
                (name for name, at in self.network.switches.items() if at == f"{host}:{port}"), ""
            )
            record = player.switch.record
            self._subject = Subject(name, f"{host}:{port}", record, 0.0, self._links)
            self.switch = name or f"{host}:{port}"
            with Bar(packets, "replaying") as self._bar:
                player.run()
            self._take(((player.end - player.begin) / 1e9) if player.begin is not None else 0.0)
            self.ports = player.ports
        self._player = None

    def look(self, now: float) -> None:
        """Take a frame if it is time to; called before each group."""
        if self._since >= self._apart:
            self._since = 0
            self._take(now)
            self._bar.show(self._done, "replaying")

    def _take(self, now: float) -> None:
        assert self._player is not None
        since = (self._player.begin or 0) / 1e9
        building = Building(self._subject, memoized(self.network), now, since + now, parts=True)
        for _ in building.pieces():
            pass
        self.frames.append(Frame(now, zlib.compress(building.text().encode(), 1)))

    def count(self, group: PacketGroup) -> None:
        """Count a group of packets, and those from and to the switch at their port."""
        self._since += len(group)
        self._done += len(group)
        way = {TO_SWITCH: "rx", FROM_SWITCH: "tx"}.get(group.what)
        if way is not None:
            found = self._ports.setdefault(
                group.port, {f"{way}_{what}": 0 for way in WAYS for what in WHAT}
            )
            found[f"{way}_packets"] += len(group)
            found[f"{way}_bytes"] += len(group) * (group.size + HEADERS)

    def _links(self) -> list[dict[str, Any]]:
        """Describe the places of capture as links."""
        assert self._player is not None
        name_of = memoized(self.network)
        peers = {
            member.address.ingress: name_of(member)
            for job in self._player.switch.record.jobs.values()
            for member in job.members
        }
        found = []
        none = {f"{way}_{what}": 0 for way in WAYS for what in WHAT}
        for at, name in enumerate(self._player.ports):
            peer, rate = self.network.ports.get(name, (peers.get(at), None))
            counts = self._ports.get(at, none)
            faults = dict.fromkeys(FAULTS, 0)
            found.append({"name": name, "peer": peer, "rate": rate, **counts, **faults})
        return found

    def about(self) -> dict[str, Any]:
        """Describe the trace: its name, and the time of each frame in seconds."""
        times = [round(frame.time, 9) for frame in self.frames]
        return {"path": self.path, "switch": self.switch, "times": times}

    def frame(self, number: int) -> dict[str, Any]:
        """Return what is seen in a frame."""
        frame = self.frames[number]
        before = bisect_right(self.frames, frame.time - LOOK_BACK, key=lambda one: one.time)
        former = parsed(self.frames[before - 1]) if before else None
        change = Change.of(parsed(frame), former)
        return seen(Scene(self.network, {self.switch: change}))


class Player(Replayer):
    """A replay that tells of each group of packets, and compares nothing."""

    def __init__(
        self, played: Played, reader: Reader, setting: TraceSetting, args: ReplayOptions, apart: int
    ) -> None:
        super().__init__(reader, setting, args, pace=played.look, together=apart)
        self._played = played

    def _handle(self, group: PacketGroup, time_ns: int) -> None:
        self._played.count(group)
        super()._handle(group, time_ns)

    def _compare(self, group: PacketGroup) -> None:
        if group.tos is Traffic.CONTROL:
            self._note_answers(group)


def parsed(frame: Frame) -> dict[str, Any]:
    """Return the snapshot of a frame."""
    found: dict[str, Any] = json.loads(zlib.decompress(frame.snapshot))
    return found


def network_of(args: argparse.Namespace) -> Network:
    """Name the nodes of --topology; without it, nothing has a name."""
    if args.topology is None:
        return Network(title=str(args.trace))
    topology = read_topology(args.topology)
    hosts = {str(topology.address(host.name)): host.name for host in topology.hosts}
    return Network(
        title=str(args.trace),
        hosts=hosts,
        switches={one.name: f"{topology.address(one.name)}:{PORT}" for one in topology.tree},
        ports={
            port.ifname: (port.peer, port.link.rate)
            for switch in topology.tree
            for port in topology.ports(switch.name)
        },
        parents=dict(topology.parents),
        below={one.name: [h.name for h in topology.hosts_at(one.name)] for one in topology.tree},
    )
