"""Plays strangers, who belong to no job: what they send, and how a switch must count it.

A stranger has an address of its own, and a port of its own at every switch. From there it can claim
any address (`spoof`), also that of a switch towards its workers (`impostor`). With `garble`,
`replay` and `forge` it sends as if it sat on a member's cable. It can listen everywhere. Attacks
that docs/protocol.md allows ("What a key does not promise") are left out, each with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from random import Random

import numpy as np

from iswitch.core.format.keys import Key
from iswitch.core.format.lines import line_of
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import (
    FLAG_HEARTBEAT,
    FLAG_WHOLE,
    SEG_SIZE,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    Join,
    MemberType,
    Round,
    Segments,
    Shape,
    Status,
    Threshold,
    Value,
)
from iswitch.core.jobs.job import Job as SwitchJob
from iswitch.core.jobs.member import Member
from iswitch.core.sums.plane import RoundAccelerator
from iswitch.core.switch import Switch
from iswitch.ethernet.frame import ARP_REPLY, ARP_REQUEST, BROADCAST, arp
from iswitch.ethernet.made_up import frames, ip, mac
from iswitch.sim.host import FRAME, TAGS
from iswitch.sim.network import FORGED, TAKEN, VirtualNetwork
from iswitch.sim.node import Process
from iswitch.sim.plugged import SPARE, Plugged
from iswitch.sim.trace import RECEIVED, describe
from worker_lib.protocol.session import Session

from .scenario import Job, Scenario
from .violation import Violation

NAME, OUTSIDE = "x1", Address("10.26.200.1", 40000)
TAPE = 200  # bursts remembered of what a node was sent
MOST = 8  # packets at once
PACE = 0.001  # seconds between two bursts
TIMES = 30  # bursts in one event, at most

Arrived = Counter[str]  # of packets of a stranger that a switch has taken


def key_of(job: Job) -> bytes | None:
    """Look up the key of a job; None: it has none."""
    return b"of job %d" % job.number if job.keyed else None


def knowledge(machine: object) -> object:
    """Collect the state that control packets can change at a switch or in a session."""
    if isinstance(machine, Plugged):
        machine = machine.switch
    if isinstance(machine, Switch):
        return [
            (
                job.number, job.window.high, job.window.lowest, job.threshold, job.halted,
                [(m.address, m.rank, m.incarnation, m.workers) for m in everybody(job)],
            )
            for job in machine.jobs.values()
        ]  # fmt: skip
    if isinstance(machine, Session):
        return machine.round, machine.halted, machine.member, machine.rank, machine.joined
    return None


def everybody(job: SwitchJob) -> list[Member]:
    """List all members of a job at a switch."""
    return list(job.members.by_address.values())


class Stranger:
    """The stranger of a history.

    Args:
        scenario: the whole history.
        network: the network, with all of its nodes.
        switches: addresses of the switches.
        job_of: the job of the worker at an address; None: no worker's.
        round_of: the round that a job is in, by its number.
    """

    def __init__(
        self,
        scenario: Scenario,
        network: VirtualNetwork,
        switches: Collection[Address],
        job_of: Callable[[Address], Job | None],
        round_of: Callable[[int], int],
    ) -> None:
        self.network = network
        self.jobs = scenario.jobs
        moves = "reset", "halt", "seth", "fbcast", "restart", "reborn", "die", "leave", "join", "go"
        self.is_moved = scenario.has(*moves) or any(job.threshold for job in scenario.jobs)
        self.switches = switches
        self.job_of = job_of
        self.round_of = round_of
        self.rng = Random(f"stranger {scenario.seed}")
        self.arrived: dict[Address, Arrived] = {address: Counter() for address in switches}
        self._tape: dict[Address, list[Burst]] = {address: [] for address in network.nodes}
        self._under_way: list[Burst] = []
        self._before: object = None  # what a machine knew before it took control from here
        network.add(NAME, OUTSIDE)
        for address in list(self._tape):
            network.connect(OUTSIDE, address)
        network.tap = self._hear

    def forget(self, node: Address) -> None:
        """Forget what was recorded for the former process at an address."""
        self._tape[node].clear()

    def _hear(self, what: str, burst: Burst, node: Address, *_: object) -> None:
        if what == FORGED:
            self._under_way.append(burst)  # its link is sound, so it comes unchanged
        elif what not in (RECEIVED, TAKEN) or node not in self._tape:
            return
        elif any(burst.rows is mine.rows for mine in self._under_way):
            self._watch(what, burst, node)
        elif burst.tos == FRAME:  # bridged
            self._look_at_stack(node)
        elif what == RECEIVED:  # what has not come yet may count
            tape = self._tape[node]
            if len(tape) < TAPE:
                tape.append(burst)
            else:
                tape[self.rng.randrange(TAPE)] = burst

    def _watch(self, what: str, burst: Burst, node: Address) -> None:
        """Check that a stranger's control packet changes nothing at a node."""
        machine = self.network.nodes[node].machine
        if what == RECEIVED:
            self._count(burst, node, machine)
            if node in self.switches:  # what is due does not follow from the packet
                self.network.wake(self.network.nodes[node])
            self._before = knowledge(machine)
            return
        self._under_way = [mine for mine in self._under_way if mine.rows is not burst.rows]
        if burst.tos in (TOS_CONTROL, FRAME) and knowledge(machine) != self._before:
            packet = describe(burst.tos, burst.rows[0].tobytes())
            raise Violation(
                "obeyed",
                f"{self.network.nodes[node].name} has heard {packet}: {self._before} -> "
                f"{knowledge(machine)}",
            )

    def _look_at_stack(self, node: Address) -> None:
        """Check that a stranger's frame has not redirected a host's packets from its switch."""
        host = self.network.nodes[node]
        if host.stack is not None and host.stack.is_turned:
            wrong = host.stack.neighbour.hex(":")
            raise Violation("obeyed", f"{host.name} has heard that its switch is at {wrong}")

    def _count(self, burst: Burst, node: Address, machine: Process | None) -> None:
        """Count a packet under the drop reasons that its switch may give."""
        if node not in self.arrived:
            return
        arrived = self.arrived[node]
        if burst.peer.ingress == SPARE:
            if burst.tos == TOS_DATA:
                arrived["data"] += len(burst.not_below(SEG_SIZE)[0])
            members = machine.switch.sources if isinstance(machine, Plugged) else ()
            if burst.peer.host in (node.host, *(member.host for member in members)):
                arrived["spoofed"] += len(burst.rows)
        elif burst.tos == TOS_CONTROL and not self._is_sealed(burst):
            arrived["without key"] += len(burst.rows)

    def _is_sealed(self, burst: Burst) -> bool:
        """Tell whether a packet has the MAC of its keyed job, as a recorded one has."""
        packet = burst.rows[0].tobytes()
        keys = [Key(key) for job in self.jobs if (key := key_of(job)) is not None]
        return any(key.opened(packet) is not None for key in keys)

    # What is sent

    def stranger(self, node: Address) -> None:
        """Send data, control, and garbage from its own address."""
        self._send_any(node, OUTSIDE._replace(ingress=SPARE))

    def spoof(self, node: Address) -> None:
        """Send data, control, and garbage in the name of a node behind another port."""
        self._send_any(node, self._neighbour(node)._replace(ingress=SPARE))

    def garble(self, node: Address) -> None:
        """Make data of a wrong length, or of segments or rounds that do not exist."""
        name = self._neighbour(node)
        job = self.job_of(name) or self.job_of(node) or self.jobs[0]
        beyond = self._beyond(job, node)
        self._send(node, name, TOS_DATA, self._malformed(job) if beyond is None else [beyond])

    def _beyond(self, job: Job, node: Address) -> bytes | None:
        """Make a contribution to the round after the next; None: it could be a member's.

        The round must be outside the window until the packet comes. So the newest round must have
        no sum yet, and no command and no newcomer may move the window.
        """
        machine = self.network.nodes[node].machine
        machine = machine.switch if isinstance(machine, Plugged) else machine
        if self.is_moved or not isinstance(machine, Switch) or machine.control.hierarchy:
            return None
        at_switch = machine.jobs.get(job.number)
        if at_switch is None or not isinstance(at_switch.accelerator, RoundAccelerator):
            return None
        high, shape = at_switch.window.high, job.shape()
        if at_switch.accelerator.has_all(high) or self.round_of(job.number) > high:
            return None
        size = shape.packet_size if shape.full_segments else shape.last_size
        return (high + 2 << 32).to_bytes(SEG_SIZE, "big") + self.rng.randbytes(size - SEG_SIZE)

    def replay(self, node: Address) -> None:
        """Send recorded packets again, between the same two addresses.

        Of control packets only those of a keyed job are replayed. Acks never are: an Ack names only
        the request that it answers, so an old one may fit again.
        """
        tape = [burst for burst in self._tape[node] if self._may_replay(burst)]
        if self.rng.random() < 0.5:  # data is much more
            tape = [burst for burst in tape if burst.tos == TOS_CONTROL] or tape
        if tape:
            burst = self.rng.choice(tape)
            name = burst.peer._replace(line=0)
            at = self.network.speaking(node, burst.peer.line)
            out = Outgoing((at,), burst.tos, burst.rows, burst.tail)
            self._note(node, name, burst.tos, burst.rows[0].tobytes())
            self.network.forge(OUTSIDE, name, out)

    def forge(self, node: Address) -> None:
        """Send control packets of a keyed job without a MAC, or with another key's."""
        job = self.rng.choice([job for job in self.jobs if job.keyed])
        packet = self._sealed_wrongly(self._order(job, node))
        self._send(node, self._neighbour(node), TOS_CONTROL, [packet])

    def impostor(self, node: Address) -> None:
        """Send a worker aggregates, control and ARP in its switch's name, in tagged frames.

        Some frames claim only the switch's MAC, or nothing; the switch lets those through.
        """
        rng, above = self.rng, self._neighbour(node)
        job = self.job_of(node) or self.jobs[0]
        name = rng.choice((above, above, above, OUTSIDE))
        sender, source = (rng.choice((OUTSIDE, OUTSIDE, above)) for _ in range(2))
        to = BROADCAST if rng.random() < 0.2 else mac(node)
        if rng.random() < 0.3:
            what, operation = "ARP", rng.choice((ARP_REQUEST, ARP_REPLY))
            frame = arp(operation, mac(sender), ip(name), mac(node), ip(node))
        else:
            sender = name
            tos, packet = self._as_of_switch(job, node)
            what = describe(tos, packet)
            row = np.frombuffer(packet, np.uint8).reshape(1, -1)
            frame = frames(name, node, tos, row).tobytes()
        depth = rng.choice((0, 1, 1, 1, 2, 3, 20))
        tags = b"".join(rng.choice(TAGS) + bytes([rng.randrange(16) << 4, 0]) for _ in range(depth))
        frame = to + mac(source) + tags + frame[12:]
        claimed = above if above in (name, sender, source) else OUTSIDE
        claimed = claimed._replace(ingress=SPARE)
        self._say(node, claimed, f"{what} behind {depth} tags")
        out = Outgoing((above,), FRAME, np.frombuffer(frame, np.uint8).reshape(1, -1), len(frame))
        self.network.forge(OUTSIDE, claimed, out)

    def _as_of_switch(self, job: Job, node: Address) -> tuple[int, bytes]:
        """Make a packet that a worker would take from its switch."""
        if self.rng.random() < 0.5:
            return TOS_DATA, self.rng.choice(self._data(job))
        packet = self._order(job, node)
        return TOS_CONTROL, self._sealed_wrongly(packet) if job.keyed else packet

    def _may_replay(self, burst: Burst) -> bool:
        if burst.tos == TOS_DATA:
            return True
        packet = burst.rows[0].tobytes()
        keyed = {job.number for job in self.jobs if job.keyed}
        return int.from_bytes(packet[2:4], "big") in keyed and packet[0] != Action.ACK

    # How it is made

    def _neighbour(self, node: Address) -> Address:
        """Choose a neighbour of a node; return the address from which it speaks to the node."""
        links = self.network.links
        chosen = self.rng.choice([a for a, b in links if b == node and a != OUTSIDE])
        return self._speaking(chosen, node)

    def _speaking(self, node: Address, to: Address) -> Address:
        """Return the address from which a node speaks to another; to its parent, it is a line."""
        machine = self.network.nodes[node].machine
        switch = machine.switch if isinstance(machine, Plugged) else machine
        above = switch.record.parent if isinstance(switch, Switch) else None
        is_parent = above is not None and above[:2] == self.network.home(to)[:2]
        return self.network.speaking(node, line_of(self.jobs[0].number) if is_parent else 0)

    def _send_any(self, node: Address, name: Address) -> None:
        rng, job = self.rng, self.rng.choice(self.jobs)
        match rng.randrange(6):
            case 0 | 1:
                self._send(node, name, TOS_DATA, self._data(job))
            case 2 | 3:
                packet = self._order(job, node)
                packet = self._sealed_wrongly(packet) if job.keyed else packet
                self._send(node, name, TOS_CONTROL, [packet])
            case 4:
                self._send(node, name, TOS_DATA, self._malformed(job))
            case 5:
                tos = rng.choice((0, TOS_CONTROL, TOS_DATA))
                self._send(node, name, tos, [rng.randbytes(rng.randint(1, 40))])

    def _send(self, node: Address, name: Address, tos: int, packets: list[bytes]) -> None:
        rows = np.frombuffer(b"".join(packets), np.uint8).reshape(len(packets), -1)
        self._note(node, name, tos, packets[0])
        at = self._speaking(node, name)
        self.network.forge(OUTSIDE, name, Outgoing((at,), tos, rows, rows.shape[1]))

    def _note(self, node: Address, name: Address, tos: int, packet: bytes) -> None:
        self._say(node, name, describe(tos, packet))

    def _say(self, node: Address, name: Address, what: str) -> None:
        nodes = self.network.nodes
        known = nodes.get(name._replace(ingress=0))
        whose = known.name + "?" * name.ingress if known else str(name)
        self.network.note(OUTSIDE, f"sends to {nodes[node].name} as {whose}: {what}")

    def _data(self, job: Job) -> list[bytes]:
        """Draw consecutive segments of a round that may be under way."""
        shape, rng = job.shape(), self.rng
        start = rng.randrange(shape.full_segments) if shape.full_segments else 0
        stop = min(start + rng.randint(1, MOST), shape.full_segments)
        round_ = max(0, self.round_of(job.number) + rng.randint(-1, 1))
        size = shape.packet_size - SEG_SIZE
        heads = ((round_ << 32 | index).to_bytes(SEG_SIZE, "big") for index in range(start, stop))
        return [head + rng.randbytes(size) for head in heads] or [bytes(SEG_SIZE)]

    def _malformed(self, job: Job) -> list[bytes]:
        shape, rng = job.shape(), self.rng
        index, size = rng.randrange(shape.segments), shape.packet_size
        if rng.random() < 0.5:
            index += shape.segments
        else:
            size = rng.choice([n for n in (8, 9, size - 1, size + 1, 2 * size) if n not in (
                shape.packet_size, shape.last_size) and n >= SEG_SIZE])  # fmt: skip
        head = self.round_of(job.number) << 32 | index
        return [head.to_bytes(SEG_SIZE, "big") + rng.randbytes(size - SEG_SIZE)] * rng.randint(1, 3)

    def _order(self, job: Job, node: Address) -> bytes:
        """Make a control packet to or from a switch, as a member would send it."""
        rng, shape = self.rng, job.shape()
        round_ = self.round_of(job.number)
        every = Segments(round_, 0, shape.segments)
        values: dict[Action, list[Value]] = {
            Action.JOIN: self._joins(job, shape),
            Action.LEAVE: [None],
            Action.RESET: [None, Round(round_ + 5)],
            Action.SETH: [Threshold(1)],
            Action.FBCAST: [every],
            Action.HELP: [every],
            Action.HALT: [None],
            Action.ACK: [Ack(rng.randint(1, 8), round=round_ + 5, contributors=rng.randrange(9))],
        }
        action = rng.choice(list(values))
        value = rng.choice(values[action])
        if action is Action.RESET and node not in self.switches:
            value = Round(round_ + 5)
        status = rng.choice(list(Status)) if action is Action.ACK else Status.OK
        # Above all that anybody has used, or one that may be waited for.
        request = rng.choice((1 << 30, 1000, 1001, 1002, 2000, 2001))
        return Control(action, job.number, request, value, status).build()

    def _joins(self, job: Job, shape: Shape) -> list[Value]:
        """Draw heartbeats only, for a job without a key, which any stranger may join."""
        join = Join.for_shape(shape, MemberType.WORKER, 0, FLAG_HEARTBEAT)
        if not job.keyed:
            return [join]
        controller = Join(MemberType.CONTROLLER)
        return [join, controller, replace(join, flags=0), replace(join, flags=FLAG_WHOLE)]

    def _sealed_wrongly(self, packet: bytes) -> bytes:
        match self.rng.randrange(3):
            case 0:
                return packet
            case 1:
                return packet + Key(b"another").mac(packet)
            case _:
                return packet + self.rng.randbytes(16)
