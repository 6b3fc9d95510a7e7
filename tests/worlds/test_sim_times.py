"""Every packet's times in the simulated network, beside a model that moves packets one by one.

The model shares nothing with the network but the rules: one heap, a line that serves packets one
after the other at its rate, a queue that counts packets, and losses by the seed of the link. It
counts whole femtoseconds, so that nothing is lost in long sums.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from random import Random

import numpy as np
import pytest

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import TOS_DATA
from iswitch.ethernet.frame import HEADERS
from iswitch.faults.impairment import Impairment
from iswitch.sim.grain import SINGLE, Grain
from iswitch.sim.handling import Handling
from iswitch.sim.network import VirtualNetwork
from iswitch.sim.trace import RECEIVED, SENT, Trace

pytestmark = pytest.mark.unit

CASES = 50
FEMTO = 10**15  # the model's ticks of a second
EXACT = 10**4  # ticks by which times may differ: a hundredth of a nanosecond
Stamps = dict[tuple[int, int, int], list[int]]  # by packet, sender and receiver of a hop: ticks


@dataclass
class Case:
    """A random tree of switches and hosts: links by (child, parent), and what hosts send."""

    seed: int
    latency: int  # ticks that any link takes
    links: dict[tuple[int, int], Impairment]
    hosts: list[int]
    handling: dict[int, Handling]
    sends: list[tuple[int, int, int, list[int]]]  # ticks, from, to, sizes of payloads

    @classmethod
    def draw(cls, seed: int) -> Case:
        """Draw one: rates and delays of all sizes, so that queues fill and fall empty."""
        rng = Random(f"times {seed}")
        switches = rng.randint(1, 4)
        nodes = switches + rng.randint(2, 6)
        above = {i: rng.randrange(min(i, switches)) for i in range(1, nodes)}
        rate = rng.choice([10**8, 10**9, 3 * 10**9, 10**10, 10**11])
        links = {pair: cls._link(rng, rate) for pair in above.items()}
        handling = {i: cls._handling(rng) for i in range(nodes) if rng.random() < 0.6}
        hosts = [i for i in range(nodes) if i >= switches]
        span = int(rng.choice([20, 200]) * 1500 * 8 * FEMTO / rate)
        sends = []
        for _ in range(rng.randint(5, 40)):
            one, other = rng.sample(hosts, 2)
            size = rng.randint(5, 1472)
            sizes = [size] * rng.randint(0, 40) + [rng.randint(5, size)]
            sends.append((rng.randrange(span), one, other, sizes))
        latency = rng.choice([0, 5 * 10**9, 1_234_567_000])
        return cls(seed, latency, links, hosts, handling, sorted(sends))

    @staticmethod
    def _link(rng: Random, rate: int) -> Impairment:
        return Impairment(
            loss=rng.choice([0, 0, 0.02, 0.3]),
            delay=rng.choice([0, rng.randrange(10**6) / 10**9]),
            rate=rng.choice([None, rate, rate, rng.randint(rate // 3, rate)]),
            queue=rng.choice([3, 20, 50, 1000]),
        )

    @staticmethod
    def _handling(rng: Random) -> Handling:
        return Handling(
            rng.choice([0, rng.randrange(10**4) / 10**10]),
            rng.choice([0, rng.randrange(10**3) / 10**12]),
            rng.choice([0, rng.randrange(10**5) / 10**10]),
        )

    def next_hop(self, at: int, to: int) -> int:
        """Return the neighbour of a node on the way to another."""
        parents = dict(self.links)
        while to != at:
            above = next(parent for child, parent in parents if child == to)
            if above == at:
                return to
            to = above
            if to == 0:
                break
        return next(parent for child, parent in self.links if child == at)


def ticks(seconds: float) -> int:
    """Return seconds as ticks of the model, exactly."""
    return round(Fraction(seconds) * FEMTO)


# The model


@dataclass
class Wire:
    """One direction of a link in the model."""

    impairment: Impairment
    seed: tuple[int, int]
    queue: deque[int] = field(default_factory=deque)
    chance: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.chance = np.random.default_rng(self.seed)

    def put(self, size: int, now: int) -> int | None:
        """Send a packet; return when it comes out, or None."""
        lost = self.chance.random(6)[0] < self.impairment.loss
        left, rate = now, self.impairment.rate
        if rate is not None:
            while self.queue and self.queue[0] <= now:
                self.queue.popleft()
            if len(self.queue) >= self.impairment.queue:
                return None
            before = self.queue[-1] if self.queue else now
            left = before + round(Fraction(size * 8 * FEMTO, rate))
            self.queue.append(left)
        return None if lost else left + ticks(self.impairment.delay)


class Model:
    """Moves every packet by itself."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.events: list[tuple[int, int, Callable[[int], None]]] = []
        self.serial = count()
        self.wires: dict[tuple[int, int], Wire] = {}
        for child, parent in case.links:
            for pair in ((child, parent), (parent, child)):
                seed = (case.seed, len(self.wires))
                self.wires[pair] = Wire(case.links[child, parent], seed)
        self.busy: dict[tuple[int, str], int] = defaultdict(int)
        self.sent: Stamps = defaultdict(list)
        self.received: Stamps = defaultdict(list)

    def at(self, when: int, action: Callable[[int], None]) -> None:
        heapq.heappush(self.events, (when, next(self.serial), action))

    def run(self) -> None:
        for when, one, other, sizes in self.case.sends:
            self.at(when, lambda now, o=one, t=other, s=sizes: self.send(o, t, s, now))  # type: ignore[misc]
        while self.events:
            when, _, action = heapq.heappop(self.events)
            action(when)

    def send(self, one: int, other: int, sizes: list[int], now: int) -> None:
        for size in sizes:
            self.forward(one, other, size, next(self.numbers), now)

    numbers: count[int]

    def served(self, node: int, side: str, size: int, now: int) -> int:
        """Return when a node is done with a packet that comes now."""
        handling = self.case.handling.get(node, Handling())
        takes = ticks(handling.per_packet) + round(Fraction(handling.per_byte) * size * FEMTO)
        done = max(now, self.busy[node, side]) + takes
        if takes:
            self.busy[node, side] = done
        return done + ticks(handling.latency)

    def forward(self, at: int, to: int, size: int, number: int, now: int) -> None:
        after = self.case.next_hop(at, to)
        self.sent[number, at, after].append(now)
        if at in self.case.hosts:
            now = self.served(at, "out", size + HEADERS, now)
        self.at(now, lambda when: self.enter(at, after, to, size, number, when))

    def enter(self, at: int, after: int, to: int, size: int, number: int, now: int) -> None:
        due = self.wires[at, after].put(size + HEADERS, now)
        if due is not None:
            arrives = due + self.case.latency
            self.at(arrives, lambda when: self.arrive(at, after, to, size, number, when))

    def arrive(self, at: int, after: int, to: int, size: int, number: int, now: int) -> None:
        done = self.served(after, "in", size + HEADERS, now)
        self.at(done, lambda when: self.take(at, after, to, size, number, when))

    def take(self, at: int, after: int, to: int, size: int, number: int, now: int) -> None:
        self.received[number, at, after].append(now)
        if after != to:
            self.forward(after, to, size, number, now)


# The network


class Relay:
    """A machine that sends every packet on, or keeps those for itself."""

    def __init__(self, case: Case, node: int) -> None:
        self.case, self.node = case, node

    def receive(self, burst: Burst, _now: float) -> list[Outgoing]:
        sends = []
        for rows in burst.by_size():
            for i in range(len(rows)):
                to = int(rows[i, 0])
                if to != self.node:
                    after = address(self.case.next_hop(self.node, to))
                    sends.append(Outgoing((after,), TOS_DATA, rows[i : i + 1], rows.shape[1]))
        return sends

    def deadline(self) -> None:
        return None

    def handle_timer(self, _now: float) -> None:
        return None


def address(node: int) -> Address:
    return Address(f"10.0.0.{node + 1}", 1000)


def simulate(case: Case, grain: Grain = SINGLE) -> tuple[Stamps, Stamps, VirtualNetwork]:
    """Run a case; return when packets were sent and received on each hop."""
    trace = Trace()
    network = VirtualNetwork(case.seed, case.latency / FEMTO, trace, grain)
    for i in range(len(case.links) + 1):
        node = network.add(str(i), address(i), Relay(case, i))
        handling = case.handling.get(i, Handling())
        node.takes(handling, handling if i in case.hosts else Handling())
    for (child, parent), impairment in case.links.items():
        network.connect(address(child), address(parent), impairment)
    numbers = count()

    def send(one: int, other: int, sizes: list[int]) -> None:
        rows = np.zeros((len(sizes), sizes[0]), np.uint8)
        rows[:, 0] = other
        for i in range(len(sizes)):
            rows[i, 1:5] = np.frombuffer(next(numbers).to_bytes(4, "big"), np.uint8)
        after = address(case.next_hop(one, other))
        network.transmit(address(one), [Outgoing((after,), TOS_DATA, rows, sizes[-1])])

    for when, one, other, sizes in case.sends:
        network.at(when / FEMTO, lambda o=one, t=other, s=sizes: send(o, t, s))  # type: ignore[misc]
    while network.step():
        pass
    sent: Stamps = defaultdict(list)
    received: Stamps = defaultdict(list)
    nodes = {address(i): i for i in range(len(case.links) + 1)}
    for record in trace.records:
        if record.target is not None and record.what in (SENT, RECEIVED):
            number = int.from_bytes(record.payload[1:5], "big")
            hop = (number, nodes[record.source], nodes[record.target])
            (sent if record.what == SENT else received)[hop].append(ticks(record.time))
    return sent, received, network


@pytest.mark.parametrize("seed", range(CASES))
def test_every_packet_has_the_times_of_the_model(seed: int) -> None:
    """Each hop's departure from the node, and the arrival, to a hundredth of a nanosecond."""
    case = Case.draw(seed)
    model = Model(case)
    model.numbers = count()
    model.run()
    sent, received, network = simulate(case)
    for found, wanted in ((sent, model.sent), (received, model.received)):
        assert found.keys() == wanted.keys()
        for hop, stamps in wanted.items():
            assert np.abs(np.array(found[hop]) - np.array(stamps)).max() < EXACT, hop
    assert len(received) > 10
    assert network.link_counts().under_way() == 0
