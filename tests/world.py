"""A switch and worker sessions in one process: virtual clock, seeded faults, no sockets.

Every packet is lost, doubled and delayed on its own; what belongs to one moment and one link
travels as a burst again, so that the paths for runs and for pieces of runs are both taken.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from iswitch.packets import Address, Burst, Outgoing
from iswitch.switch import Switch
from iswitch.wire import TOS_DATA, Control, Shape, Vector, WireError, split_seg
from worker_lib.session import Event, Session

SWITCH = Address("10.0.0.254", 26963)
LATENCY = 50e-6  # seconds, each way


def worker_address(number: int) -> Address:
    return Address(f"10.0.0.{number + 1}", 40000 + number)


@dataclass
class Faults:
    loss: float = 0.0
    duplicate: float = 0.0
    jitter: float = 0.0  # seconds, uniform; reorders
    # Called with (to the switch?, ToS, payload); True: lose this packet.
    lose: Callable[[bool, int, bytes], bool] | None = None


@dataclass
class World:
    switch: Switch = field(default_factory=Switch)
    faults: Faults = field(default_factory=Faults)
    seed: int = 0

    def __post_init__(self) -> None:
        self.now = 0.0
        self.switches: dict[Address, Switch] = {SWITCH: self.switch}
        self.random = random.Random(self.seed)
        self.sessions: dict[Address, Session] = {}
        self.events: dict[Address, list[Event]] = {}
        self.asleep: dict[Address, tuple[Session, list[Burst]]] = {}
        self.trace: list[str] = []
        self._queue: list[tuple[float, int, Address, Burst]] = []
        self._count = 0

    def join(self, number: int, shape: Shape, job: int = 7, **kwargs: object) -> Session:
        address = worker_address(number)
        incarnation = kwargs.pop("incarnation", 1000)
        at = kwargs.pop("at", SWITCH)
        session = Session(at, job, shape, incarnation, **kwargs)  # type: ignore[arg-type]
        self.sessions[address] = session
        self.events[address] = []
        session.join(self.now)
        return session

    def stop(self, number: int) -> None:
        """Stop a worker's process: what comes for it waits in its socket."""
        address = worker_address(number)
        self.asleep[address] = self.sessions.pop(address), []

    def resume(self, number: int) -> None:
        address = worker_address(number)
        session, waiting = self.asleep.pop(address)
        self.sessions[address] = session
        for burst in waiting:
            session.receive(burst, self.now)

    def address(self, session: Session) -> Address:
        return next(a for a, s in self.sessions.items() if s is session)

    def transmit(self, source: Address, sends: list[Outgoing]) -> None:
        """Put packets on their links, as copies."""
        for out in sends:
            for peer in out.peers:
                self._transmit(source, peer, out)

    def _transmit(self, source: Address, peer: Address, out: Outgoing) -> None:
        n, size = out.rows.shape
        arrivals: list[tuple[float, int]] = []
        for row in range(n):
            payload = out.rows[row, : out.tail if row == n - 1 else size].tobytes()
            fate = self._fate(source, peer, out.tos, payload)
            arrivals += [(when, row) for when in fate]
        groups: dict[float, list[int]] = {}
        for when, row in arrivals:
            groups.setdefault(when, []).append(row)
        for when, rows in groups.items():
            copied = out.rows[rows].copy()
            tail = out.tail if rows[-1] == n - 1 else size
            if n - 1 in rows[:-1]:  # a doubled short packet cannot travel inside a burst
                for row in rows:
                    one = out.rows[[row]].copy()
                    self._queue_up(when, peer, source, out.tos, one, out.tail)
                continue
            self._queue_up(when, peer, source, out.tos, copied, tail)

    def _queue_up(
        self, when: float, peer: Address, source: Address, tos: int, rows: Vector, tail: int
    ) -> None:
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, peer, Burst(source, tos, rows, tail)))

    def _fate(self, source: Address, peer: Address, tos: int, payload: bytes) -> list[float]:
        faults, rng = self.faults, self.random
        self.trace.append(f"{self.now:.6f} {source.port}>{peer.port} {describe(tos, payload)}")
        if faults.lose is not None and faults.lose(peer in self.switches, tos, payload):
            return []
        copies = 0 if rng.random() < faults.loss else 1
        copies += rng.random() < faults.duplicate
        jitter = faults.jitter
        return [
            self.now + LATENCY + (rng.choice((0.0, rng.random() * jitter)) if jitter else 0.0)
            for _ in range(copies)
        ]

    def pump(self) -> None:
        """Send all that sessions have to say now."""
        for address, session in self.sessions.items():
            while sends := session.transmissions(self.now):
                self.transmit(address, sends)
            while (event := session.next_event()) is not None:
                self.events[address].append(event)

    def step(self) -> bool:
        """Go to the next moment at which something happens; False: nothing ever will."""
        self.pump()
        self.switches[SWITCH] = self.switch
        machines = [*self.sessions.values(), *self.switches.values()]
        times = [machine.deadline() for machine in machines]
        timers = [t for t in times if t is not None and t < float("inf")]
        due = min(timers, default=float("inf"))
        if self._queue and self._queue[0][0] <= due:
            self.now, _, peer, burst = heapq.heappop(self._queue)
            if peer in self.switches:
                self.transmit(peer, self.switches[peer].receive(burst, self.now))
            elif peer in self.sessions:
                self.sessions[peer].receive(burst, self.now)
            elif peer in self.asleep:
                self.asleep[peer][1].append(burst)
            return True
        if not timers:
            return False
        self.now = max(self.now, due)
        for address, switch in self.switches.items():
            deadline = switch.deadline()
            if deadline is not None and deadline <= self.now:
                self.transmit(address, switch.handle_timer(self.now))
        for session in self.sessions.values():
            deadline = session.deadline()
            if deadline is not None and deadline <= self.now:
                session.handle_timer(self.now)
        return True

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

    def allreduce(self, sessions: list[Session], vectors: list[Vector]) -> list[Vector]:
        """One round of all these sessions; their results."""
        outs = [np.empty_like(vector) for vector in vectors]
        for session, vector, out in zip(sessions, vectors, outs, strict=True):
            session.begin(vector, out, self.now)
        self.run(lambda: all(s.transfer is not None and s.transfer.done for s in sessions))
        for session in sessions:
            session.finish()
        return outs


def describe(tos: int, payload: bytes) -> str:
    if tos == TOS_DATA:
        round_, index = split_seg(int.from_bytes(payload[:8], "big"))
        return f"data round {round_} index {index}"
    try:
        packet = Control.parse(payload)
    except WireError as error:
        return f"? {error}"
    return f"{packet.action.name} request {packet.request} status {packet.status} {packet.value}"
