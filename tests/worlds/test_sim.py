"""The simulated network: time, links, faults of nodes; the same trace from the same seed."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import TOS_DATA
from iswitch.faults.impairment import Impairment
from iswitch.sim.network import VirtualNetwork
from iswitch.sim.node import OVERHEAD
from iswitch.sim.trace import Trace
from tests.support.parts import packets_of

pytestmark = pytest.mark.unit

A, B = Address("10.0.0.1", 1000), Address("10.0.0.2", 2000)


class Recorder:
    """A machine that notes what comes, and has timers and words as it is told."""

    def __init__(self) -> None:
        self.came: list[tuple[float, bytes]] = []
        self.woken: list[float] = []
        self.timers: list[float] = []
        self.words: list[Outgoing] = []

    def receive(self, burst: Burst, now: float) -> None:
        self.came += [(now, data) for data in packets_of(Outgoing((), *burst[1:]))]

    def deadline(self) -> float | None:
        return min(self.timers, default=None)

    def handle_timer(self, now: float) -> None:
        self.woken.append(now)
        self.timers = [timer for timer in self.timers if timer > now]

    def transmissions(self, now: float) -> list[Outgoing]:  # noqa: ARG002
        words, self.words = self.words, []
        return words


def pair(impairment: Impairment | None = None, trace: Trace | None = None) -> VirtualNetwork:
    network = VirtualNetwork(1, 1.0, trace)
    for name, address in (("a", A), ("b", B)):
        network.add(name, address, Recorder())
    network.connect(A, B, impairment)
    return network


def machine(network: VirtualNetwork, address: Address) -> Recorder:
    found = network.nodes[address].machine
    assert isinstance(found, Recorder)
    return found


def say(
    network: VirtualNetwork, *payloads: bytes, source: Address = A, target: Address = B
) -> None:
    """Payloads of one length but for the last, which may be shorter."""
    size = len(payloads[0])
    rows = np.frombuffer(b"".join(p.ljust(size, b"\0") for p in payloads), np.uint8)
    rows = rows.reshape(len(payloads), size).copy()
    machine(network, source).words.append(Outgoing((target,), TOS_DATA, rows, len(payloads[-1])))
    network.poke(source)
    rows[:] = 0xFF  # the sender's buffer is used again


def settle(network: VirtualNetwork) -> None:
    while network.step():
        pass


def conserved(network: VirtualNetwork) -> None:
    """Every packet is somewhere."""
    links = network.link_counts()
    nodes = network.nodes.values()
    unreachable = sum(node.unreachable for node in nodes)
    assert sum(node.given for node in nodes) == links.sent + network.lost + unreachable
    taken = sum(node.taken + node.overflow + node.dead + node.unread for node in nodes)
    assert links.delivered == taken + sum(node.waiting_packets() for node in nodes)
    assert links.under_way() >= 0


def test_what_is_due_together_happens_in_the_order_it_was_put_in() -> None:
    network = VirtualNetwork()
    done: list[int] = []
    for number, when in enumerate((2.0, 1.0, 2.0, 1.0)):
        network.at(when, partial(done.append, number))
    times = []
    while network.step():
        times.append(network.now)
    assert times == [1.0, 1.0, 2.0, 2.0]
    assert done == [1, 3, 0, 2]


def test_packets_arrive_after_the_latency_as_they_were_sent() -> None:
    network = pair()
    say(network, b"12345678", b"123")
    settle(network)
    assert machine(network, B).came == [(1.0, b"12345678"), (1.0, b"123")]
    conserved(network)


def test_a_link_does_what_its_line_decides() -> None:
    network = pair(Impairment(rate=8 * 50, queue=2, duplicate=1.0))  # 50 B/s of frames
    say(network, b"12345678", b"abcdefgh", b"too many")
    settle(network)
    assert [when for when, _ in machine(network, B).came] == [2.0, 2.0, 3.0, 3.0]
    counts = network.link_counts()
    assert (counts.sent, counts.full, counts.duplicated, counts.delivered) == (3, 1, 2, 4)
    conserved(network)


def test_impairments_change_without_overtaking() -> None:
    network = pair(Impairment(delay=5.0, jitter=1.0))
    say(network, b"12345678")
    network.links[A, B].impairment = Impairment()
    say(network, b"abcdefgh")
    settle(network)
    assert [data for _, data in machine(network, B).came] == [b"12345678", b"abcdefgh"]


def test_timers_ring_when_they_are_due_and_are_moved() -> None:
    network = pair()
    machine(network, A).timers = [3.0, 7.0]
    network.poke(A)
    network.at(1.0, lambda: machine(network, A).timers.append(2.0))
    network.at(1.0, lambda: network.poke(A))
    network.at(2.5, lambda: machine(network, A).timers.remove(3.0))
    network.at(2.5, lambda: network.poke(A))
    settle(network)
    assert machine(network, A).woken == [2.0, 7.0]


def test_a_cut_link_loses_in_both_directions_what_is_sent() -> None:
    network = pair(trace=Trace())
    say(network, b"under way")
    network.plug(A, B, up=False)
    say(network, b"12345678")
    say(network, b"12345678", source=B, target=A)
    network.plug(A, B, up=True)
    say(network, b"abcdefgh")
    settle(network)
    assert [data for _, data in machine(network, B).came] == [b"under way", b"abcdefgh"]
    assert machine(network, A).came == []
    assert network.link_counts().cut == 2
    assert Counter(r.what for r in network.trace.records)["cut"] == 2  # type: ignore[union-attr]
    conserved(network)


def test_a_stopped_process_reads_later_what_its_socket_had_room_for() -> None:
    network = pair()
    node = network.nodes[B]
    node.room = 2 * (8 + OVERHEAD)
    machine(network, B).timers = [2.0]
    network.poke(B)
    network.pause(B)
    say(network, b"12345678", b"abcdefgh", b"too many")
    settle(network)
    assert (machine(network, B).came, machine(network, B).woken) == ([], [])
    assert (node.overflow, node.waiting_packets()) == (1, 2)
    conserved(network)
    network.at(9.0, lambda: network.resume(B))
    settle(network)
    assert machine(network, B).came == [(9.0, b"12345678"), (9.0, b"abcdefgh")]
    assert machine(network, B).woken == [9.0]
    say(network, b"12345678")
    settle(network)
    assert len(machine(network, B).came) == 3
    conserved(network)


def test_a_crashed_process_gets_nothing_and_a_new_one_only_what_comes_then() -> None:
    network = pair()
    network.pause(B)
    say(network, b"12345678")
    settle(network)
    network.crash(B)
    say(network, b"abcdefgh")
    settle(network)
    node = network.nodes[B]
    assert (node.unread, node.dead, node.machine) == (1, 1, None)
    network.start(B, Recorder())
    say(network, b"the next")
    settle(network)
    assert [data for _, data in machine(network, B).came] == [b"the next"]
    conserved(network)


def test_packets_that_a_test_loses() -> None:
    network = pair()
    network.lose = lambda _a, _b, _tos, payload: payload.startswith(b"x")
    say(network, b"12345678", b"x2345678", b"123")
    say(network, b"x2345678")
    settle(network)
    assert [data for _, data in machine(network, B).came] == [b"12345678", b"123"]
    assert network.lost == 2
    conserved(network)


def test_nobody_is_reached_without_a_link() -> None:
    network = VirtualNetwork()
    network.add("a", A, Recorder())
    say(network, b"12345678")
    assert network.nodes[A].unreachable == 1
    conserved(network)
