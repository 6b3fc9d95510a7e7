"""A switch, or several, and worker sessions in a simulated network, for tests of the protocol.

Every packet is lost, doubled and delayed on its own; what belongs to one moment and one link
travels as a burst again, so that the paths for runs and for pieces of runs are both taken.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import NO_RANK, Shape, Vector
from iswitch.core.switch import Switch
from iswitch.faults.impairment import Impairment
from iswitch.sim.network import VirtualNetwork
from iswitch.sim.node import Process
from iswitch.sim.trace import Trace
from worker_lib.protocol.events import Answered, Behind, Halted, Told, WasReset
from worker_lib.protocol.member import Member
from worker_lib.protocol.owned_session import session_of
from worker_lib.protocol.session import Event, Session
from worker_lib.protocol.terms import RoundTerms, VersionTerms
from worker_lib.protocol.versions import AsynchronousSession

SWITCH = Address("10.0.0.254", 26963)
LATENCY = 50e-6  # seconds, each way


def worker_address(number: int) -> Address:
    return Address(f"10.0.0.{number + 1}", 40000 + number)


@dataclass
class Faults:
    loss: float = 0.0
    duplicate: float = 0.0
    jitter: float = 0.0  # seconds, uniform, for every other packet; reorders
    # Called with (to the switch?, ToS, payload); True: lose this packet.
    lose: Callable[[bool, int, bytes], bool] | None = None
    burst: float = 0.0  # mean length of runs of lost packets

    @property
    def impairment(self) -> Impairment:
        late, reorder = self.jitter / 2, 0.5 if self.jitter else 0.0
        return Impairment(self.loss, late, late, self.duplicate, reorder, burst=self.burst)


class World:
    """What is in `sessions` and `switches` is what runs; the root is `switch`."""

    def __init__(
        self, switch: Switch | None = None, faults: Faults | None = None, seed: int = 0
    ) -> None:
        self.switch = switch or Switch()
        self.switches: dict[Address, Switch] = {SWITCH: self.switch}
        self.sessions: dict[Address, Session] = {}
        self.asynchronous: dict[Address, AsynchronousSession] = {}
        self.events: dict[Address, list[Event]] = {}
        self.tidings: dict[Address, list[Behind | Told | Answered | Halted | WasReset]] = {}
        self.asleep: dict[Address, Session] = {}
        self.random = random.Random(seed)
        self.network = VirtualNetwork(seed, LATENCY, Trace())
        self.network.lose = self.lost
        self.faults = faults or Faults()

    @property
    def now(self) -> float:
        return self.network.now

    @now.setter
    def now(self, now: float) -> None:
        self.network.now = now

    @property
    def faults(self) -> Faults:
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        for link in self.network.links.values():
            link.impairment = faults.impairment

    @property
    def trace(self) -> list[str]:
        assert self.network.trace is not None
        return self.network.trace.lines(self.network.names())

    def join(self, number: int, shape: Shape, job: int = 7, **kwargs: object) -> Session:
        address = worker_address(number)
        incarnation = kwargs.pop("incarnation", 1000)
        at = kwargs.pop("at", SWITCH)
        terms = RoundTerms(at, job, shape, **kwargs)  # type: ignore[arg-type]
        session = session_of(terms, incarnation)  # type: ignore[arg-type]
        self.sessions[address] = session
        self.events[address] = []
        session.join(self.now)
        return session

    def join_asynchronous(
        self, number: int, shape: Shape, job: int = 7, incarnation: int = 1000, **kwargs: object
    ) -> AsynchronousSession:
        address = worker_address(number)
        at = kwargs.pop("at", SWITCH)
        terms = VersionTerms(at, job, shape, **kwargs)  # type: ignore[arg-type]
        session = AsynchronousSession(terms, incarnation)
        self.asynchronous[address] = session
        self.tidings[address] = []
        session.join(self.now)
        return session

    def stop(self, number: int) -> None:
        """Stop a worker's process: what comes for it waits in its socket."""
        address = worker_address(number)
        self.pump()
        self.asleep[address] = self.sessions.pop(address)
        self.network.pause(address)

    def resume(self, number: int) -> None:
        address = worker_address(number)
        self.sessions[address] = self.asleep.pop(address)
        self.network.resume(address)

    def address(self, session: Session) -> Address:
        return next(a for a, s in self.sessions.items() if s is session)

    def lost(self, _source: Address, peer: Address, tos: int, payload: bytes) -> bool:
        """Whether this very packet is lost, whatever its chances."""
        lose = self.faults.lose
        return lose is not None and lose(self.network.home(peer) in self.switches, tos, payload)

    def pump(self) -> None:
        """Send all that sessions have to say now."""
        self._take_over()
        for address, session in self.sessions.items():
            self.network.poke(address)
            while (event := session.next_event()) is not None:
                self.events[address].append(event)
        for address, each in self.asynchronous.items():
            self.network.poke(address)
            while (found := each.next_event()) is not None:
                self.tidings[address].append(found)

    def step(self) -> bool:
        """Go to the next moment at which something happens; False: nothing ever will."""
        self.pump()
        return self.network.step()

    def _take_over(self) -> None:
        """Have those machines in the network that a test has put here, and no others."""
        network = self.network
        self.switches[SWITCH] = self.switch
        machines: dict[Address, Process] = {
            **self.switches,
            **self.sessions,
            **self.asynchronous,
        }
        for address in machines:
            if address not in network.nodes:
                network.add(f"{address.host}:{address.port}", address)
        for address, machine in machines.items():
            if network.nodes[address].machine is not machine:
                above = self._above(machine)
                if above is not None and (address, above) not in network.links:
                    network.connect(address, above, self.faults.impairment)
                network.start(address, machine)
        for address, node in network.nodes.items():
            alive = address in machines or address in self.asleep
            if node.machine is not None and not alive:
                network.crash(address)

    @staticmethod
    def _above(machine: Process) -> Address | None:
        """Whom a machine talks to."""
        if isinstance(machine, Member):
            return machine.switch
        assert isinstance(machine, Switch)
        hierarchy = machine.control.hierarchy
        return None if hierarchy is None else hierarchy.parent

    def run(self, until: Callable[[], bool], limit: float = 60.0) -> None:
        """Let time pass until something holds; it must within `limit` seconds of virtual time."""
        end = self.now + limit
        while not until():
            alive = self.step()
            assert alive, "nothing more happens"
            assert self.now <= end, "no end in sight:\n" + "\n".join(self.trace[-40:])
        self.pump()

    def gather(self, sessions: list[Session]) -> None:
        self.run(lambda: all(s.member for s in sessions))

    def give_ranks(self, sessions: list[Session]) -> None:
        """Have sessions join again, as a worker does until all are there: then ranks are given."""
        for session in sessions:
            session.join(self.now)
        self.run(lambda: all(s.rank != NO_RANK for s in sessions))

    def allreduce(self, sessions: list[Session], vectors: list[Vector]) -> list[Vector]:
        """One round of all these sessions; their results."""
        outs = [np.empty_like(vector) for vector in vectors]
        for session, vector, out in zip(sessions, vectors, outs, strict=True):
            session.begin(vector, out, self.now)
        self.run(lambda: all(s.transfer is not None and s.transfer.done for s in sessions))
        for session in sessions:
            session.finish()
        return outs
