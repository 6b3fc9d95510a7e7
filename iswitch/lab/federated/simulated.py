"""Plays the rounds of a training in virtual time: over switches, or with a parameter server.

All devices and the coordinator are threads of this process (see `topologies.virtual.notebook`).
Computing takes what the setting says, and nothing else takes time but links, and nodes as
`Virtual` says. So equal trainings give equal times and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from iswitch.lab.launch.simulated import Virtual, simulated
from iswitch.virtual.computing import Plan as Computing
from topologies import Topology
from topologies.virtual.notebook import JOB, Floor, Seat
from worker_lib.federated import FederatedCoordinator, FederatedWorker
from worker_lib.fedprox.data import Federation, Floats
from worker_lib.fedprox.members import Coordinator, coordinate, serve
from worker_lib.fedprox.models import model_of
from worker_lib.fedprox.rounds import Setting
from worker_lib.fedprox.server import Client, Server

from .places import racks_of

SERVING = 29600  # port of the parameter server
SWITCH, SERVER = "switch", "server"  # who adds


class How(NamedTuple):
    """How rounds are played.

    Attributes:
        adds: SWITCH or SERVER.
        numel: elements of the vectors that travel; None: the model's.
        reproducible: whether switches add in rank order; a server always does.
    """

    adds: str = SWITCH
    numel: int | None = None
    reproducible: bool = True


class Row(NamedTuple):
    """A round that was played.

    Attributes:
        rounds: rounds so far; 0: the devices are there, and have the first model nowhere.
        weights: the global model.
        in_sum: devices in its sum.
        seconds: virtual seconds since the start.
        bytes: that all links carried so far, both directions, headers included.
        busiest: that the coordinator's or server's link carried.
    """

    rounds: int
    weights: Floats
    in_sum: Sequence[int]
    seconds: float
    bytes: int
    busiest: int


def play(
    setting: Setting,
    federation: Federation,
    topology: Topology,
    virtual: Virtual,
    tell: Callable[[Row], bool],
    how: How = How(),  # noqa: B008  (immutable)
) -> None:
    """Train over a simulated network, whose last host is the coordinator.

    Args:
        setting: what is trained.
        federation: its data.
        topology: a device on each host but the last.
        virtual: what nodes take, and the grain.
        tell: called with each round; returns whether to go on.
        how: who adds, and what travels.

    Raises:
        Stuck: no device can continue.
        WorkerError: one of them failed.
    """
    simulation = simulated(topology, virtual)
    devices, numel = setting.devices, how.numel or model_of(setting.model, federation).numel
    coordinator = topology.hosts[-1].name
    server = str(topology.address(coordinator)), SERVING
    racks = racks_of(topology, lambda name: simulation.address(name)[:2])
    links = simulation.network.links
    ends = simulation.address(coordinator), simulation.switch_of(coordinator)

    def conduct(way: Coordinator) -> None:
        before = [0, 0]
        model = model_of(setting.model, federation)
        for played in coordinate(way, setting, model, numel, bool(racks)):
            sums = [
                sum(link.bytes for link in links.values()),
                links[ends].bytes + links[ends[::-1]].bytes,
            ]
            if not played.rounds:  # joining, or connecting, is no round
                before = sums
            carried = (now - then for now, then in zip(sums, before, strict=True))
            if not tell(Row(*played, *carried)):
                return

    def work(seat: Seat) -> None:
        rank = seat.rank
        if rank == devices:
            if how.adds == SERVER:
                with Server(SERVING, numel, devices) as server_:
                    conduct(server_)
            else:
                with FederatedCoordinator(
                    seat.switch,
                    JOB,
                    numel,
                    devices,
                    racks=racks or None,
                    reproducible=how.reproducible,
                    silence=setting.silence,
                ) as way:
                    conduct(way)
            return
        samples = federation.devices[rank].train
        model = model_of(setting.model, federation)
        if how.adds == SERVER:
            serve(Client(server, numel, rank), setting, rank, samples, model)
            return
        with FederatedWorker(
            seat.switch,
            JOB,
            numel,
            devices,
            rank,
            reproducible=how.reproducible,
            silence=setting.silence,
        ) as worker:
            serve(worker, setting, rank, samples, model)

    Floor[None](simulation, Computing("zero"), devices).run(work)
