"""Makes traces of simulated jobs, captured at one switch of a simulated network.

Equal arguments make equal files, byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iswitch.core.format.wire import DType, Op, Shape
from iswitch.core.jobs.limits import Limits
from iswitch.sim.tape import Tape
from worker_lib.protocol.session import Session
from worker_lib.protocol.terms import RoundTerms

from .description import Topology
from .errors import TopologyError
from .simulated import Simulation

INCARNATION = 1000
ROUND_TIMEOUT = 3600.0  # seconds of virtual time for a round
VALUES = 1 << 16  # numbers that vectors are made of


@dataclass(frozen=True)
class SyntheticJob:
    """The job of the workers in a trace.

    Attributes:
        compute: mean seconds between an aggregate and the next vector.
        spread: fraction of `compute`, 0 to 1, by which these seconds vary, uniformly.
        slow: workers that take `slow_factor` times as long, by number from the first.
    """

    numel: int
    rounds: int
    dtype: DType = DType.FLOAT32
    op: Op = Op.SUM
    number: int = 1
    compute: float = 0.002
    spread: float = 0.5
    slow: tuple[int, ...] = ()
    slow_factor: float = 3.0
    key: bytes | None = None
    reproducible: bool = False


class SyntheticWorker:
    """A worker of such a job: computes, has its vector summed, and begins again."""

    def __init__(self, simulation: Simulation, host: str, rank: int, job: SyntheticJob) -> None:
        self.job = job
        self.left = job.rounds
        self._network = simulation.network
        self._address = simulation.address(host)
        self._chance = np.random.default_rng((simulation.topology.seed, rank))
        self._factor = job.slow_factor if rank in job.slow else 1.0
        shape = Shape.of(job.numel, job.dtype, job.op)
        numbers = self._chance.standard_normal(VALUES) * 8
        times = -(-job.numel // VALUES)
        if job.dtype is DType.UINT8:
            numbers = np.abs(numbers)
        self._vector = np.tile(numbers, times)[: job.numel].astype(job.dtype.numpy)
        self._out = np.empty_like(self._vector)
        self._computing = False
        hosts = len(simulation.topology.hosts)
        terms = RoundTerms(
            simulation.switch_of(host),
            job.number,
            shape,
            expected=hosts,
            rank=rank,
            whole=True,
            reproducible=job.reproducible,
            key=job.key,
        )
        self.session = Session(terms, INCARNATION)
        self.session.join(self._network.now)
        simulation.start_worker(host, self.session)
        simulation.node(host).heed = self.heed

    def heed(self) -> None:
        """Finish a round whose sum has come, and begin the next."""
        session = self.session
        while session.next_event() is not None:
            pass
        if session.transfer is not None and session.transfer.done:
            session.finish()
            self.left -= 1
            self._vector = np.roll(self._vector, 1)
        if session.transfer is None and session.member and self.left and not self._computing:
            self._computing = True
            varied = 1 + self.job.spread * (2 * self._chance.random() - 1)
            pause = self.job.compute * varied * self._factor
            self._network.at(self._network.now + pause, self._begin)

    def _begin(self) -> None:
        self._computing = False
        self.session.begin(self._vector, self._out, self._network.now)
        self._network.poke(self._address)


def synthesize(
    path: str | Path,
    topology: Topology,
    job: SyntheticJob,
    switch: str,
    limits: Limits | None = None,
) -> int:
    """Write the trace of a job at one switch of a network.

    Args:
        path: path of the pcapng file.
        topology: the network; its links may be impaired, and its `seed` is that of all chances.
        job: the job, which has a worker on every host.
        switch: the switch whose ports are recorded.
        limits: those of all switches.

    Returns:
        the number of frames in the file.

    Raises:
        TopologyError: there is no such switch, or a round does not end.
        OSError: the file cannot be written.
    """
    names = [each.name for each in topology.tree]
    if switch not in names:
        raise TopologyError(f"no switch {switch!r}; there is {', '.join(names)}")
    keys = None if job.key is None else {job.number: job.key}
    simulation = Simulation(topology, limits, keys=keys, ports=True)
    network = simulation.network
    ports = {port.ifname: simulation.address(port.peer) for port in topology.ports(switch)}
    with open(path, "wb") as file:
        tape = Tape(network, simulation.address(switch), ports, file)
        workers = [
            SyntheticWorker(simulation, host.name, rank, job)
            for rank, host in enumerate(topology.hosts)
        ]
        begun, left = network.now, job.rounds
        while any(worker.left for worker in workers):
            network.step()
            now_left = max(worker.left for worker in workers)
            if now_left < left:
                begun, left = network.now, now_left
            elif network.now - begun > ROUND_TIMEOUT:
                raise TopologyError(
                    f"round {job.rounds - left} does not end within {ROUND_TIMEOUT:g} s: the links "
                    "are too bad; take less loss"
                )
    return tape.frames
