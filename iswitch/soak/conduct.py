"""How machines behave at every packet: what each says, to whom, and in answer to what.

Recovery hides a lot: what was not sent is asked for, what was sent to the wrong one does no harm.
So it is looked at where it happens. What is written here is docs/protocol.md once more, in few
words; what a switch knows is read from it, what it does with it is judged.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

import numpy as np

from worker_lib.session import Session
from worker_lib.transfer import Transfer

from ..accelerator import SynchronousAccelerator
from ..answers import PER_MEMBER, Answers
from ..job import Job
from ..keys import Key
from ..membership import Member
from ..packets import Address, Burst, Outgoing
from ..sim.network import Network, Node
from ..sim.plugged import SPARE, Plugged
from ..switch import Switch
from ..uplink import REMEMBERED, Uplink
from ..wire import SEG_SIZE, TOS_DATA, Action, Control, Round, Segments, Status, round_distance
from .violation import Violation

Place = tuple[str, int]  # host and UDP port: ports of switches aside
KEPT = 4  # rounds (or versions: twice as many) whose aggregates are compared


class Conduct:
    """What all machines of a network do; each process is watched from its start.

    Args:
        network: which.
        halts: how many requests to halt are given.
        keys: of the keyed jobs.
    """

    def __init__(self, network: Network, halts: int, keys: Sequence[Key]) -> None:
        self.network = network
        self.halts = halts
        self.keys = keys
        self._watches: dict[Address, SwitchConduct | SessionConduct] = {}

    def comes(self, node: Node, burst: Burst | None) -> None:
        """A machine is about to take packets, or its timer rings."""
        watch = self._watch(node)
        if watch is not None:
            watch.comes(burst, self.network.now)

    def says(self, node: Node, burst: Burst | None, sends: Sequence[Outgoing]) -> None:
        """What it says."""
        watch = self._watch(node)
        if watch is not None:
            watch.says(burst, sends, self.network.now)

    def _watch(self, node: Node) -> SwitchConduct | SessionConduct | None:
        machine = node.machine
        if isinstance(machine, Plugged):
            machine = machine.switch
        watch = self._watches.get(node.address)
        if watch is None or watch.machine is not machine:
            if isinstance(machine, Switch):
                watch = SwitchConduct(node.name, machine, self.halts)
            elif isinstance(machine, Session):
                watch = SessionConduct(node.name, machine, self.opened)
            else:
                return None
            self._watches[node.address] = watch
        return watch

    def opened(self, payload: bytes) -> bytes:
        """A control packet without its MAC, if it has one."""
        packets = (key.opened(payload) for key in self.keys)
        return next((packet for packet in packets if packet is not None), payload)


class SwitchConduct:
    """What a switch process does.

    Args:
        name: of its place.
        switch: the process.
        halts: how many requests to halt are given.
    """

    def __init__(self, name: str, switch: Switch, halts: int) -> None:
        self.name = name
        self.machine = switch
        self.halts = halts
        self._aggregates: dict[int, OrderedDict[int, dict[bytes, bytes]]] = {}  # by job and round
        self._answers: dict[tuple[Place, int], tuple[Answers, OrderedDict[int, bytes]]] = {}
        self._relayed: dict[tuple[Place, bytes], int] = {}  # Request of each Reset
        self._halted: dict[Place, set[int]] = {}  # Requests of Halts
        self._seen: deque[int] = deque(maxlen=REMEMBERED)  # Requests of Helps of the parent
        self._members: dict[Place, Member] = {}
        self._counts: tuple[int, ...] = ()
        self._due: Callable[[Sequence[Outgoing]], None] | None = None
        self._joining = False

    # Before

    def comes(self, burst: Burst | None, now: float) -> None:  # noqa: ARG002
        """Note what is known before packets are taken."""
        self._members = self._contributors()
        self._counts = self._count()
        self._due = None
        uplink = self._uplink()
        self._joining = uplink is not None and not uplink.member
        if self._joining:
            self._seen.clear()
        if burst is None or burst.peer.ingress == SPARE:
            return
        hierarchy = self.machine.control.hierarchy
        if hierarchy is not None and place(burst.peer) == place(hierarchy.parent):
            if burst.tos != TOS_DATA:
                self._due = self._due_to_parent(burst)
        elif burst.tos == TOS_DATA:
            self._due = self._due_to_sender(burst)

    def _due_to_sender(self, burst: Burst) -> Callable[[Sequence[Outgoing]], None] | None:
        """What a member must get for its contributions, and whether they count at all."""
        member = self._members.get(place(burst.peer))
        rounds = np.unique(burst.rows[:, :4].copy().view(">u4"))
        if member is None or len(rounds) != 1 or burst.tail < SEG_SIZE:
            return None
        job = self.machine.control.by_source[member.address][0]
        accelerator = job.accelerator
        if not isinstance(accelerator, SynchronousAccelerator) or job.halted:
            return None
        shape = accelerator.shape
        round_ = int(rounds[0])
        if is_out_of_turn(job, member, round_):
            return self._nothing_counts
        indices = np.unique(burst.rows[:, 4:SEG_SIZE].copy().view(">u4")).astype(np.int64)
        state = accelerator.state[round_ & 1].words[indices[indices < shape.segments], 0]
        complete = accelerator.COMPLETE << 32 | round_
        late = int((state == np.uint64(complete)).sum())
        size = {shape.packet_size, shape.last_size}
        if not late or not {burst.rows.shape[1], burst.tail} <= size:
            return None

        def answered(sends: Sequence[Outgoing]) -> None:
            if packets_to(sends, place(burst.peer)) < late:
                raise Violation(
                    "not answered",
                    f"{self.name} keeps {late} aggregates of round {round_}, for which "
                    f"{burst.peer} has contributed once more, and does not send them",
                )

        return answered

    def _nothing_counts(self, sends: Sequence[Outgoing]) -> None:  # noqa: ARG002
        if self._count()[2] != self._counts[2]:
            raise Violation("out of turn", f"{self.name} has counted what is of no round of its")

    def _due_to_parent(self, burst: Burst) -> Callable[[Sequence[Outgoing]], None] | None:
        """What the parent must get for its Help, if that is new."""
        uplink, job = self._uplink(), self._job()
        packet = parsed(burst.rows[0, : burst.tail].tobytes(), self.machine)
        if uplink is None or job is None or packet is None or not uplink.member:
            return None
        if packet.action is not Action.HELP:
            return None
        if packet.request in self._seen:
            return self._nothing_again
        self._seen.append(packet.request)
        named, accelerator = packet.value, job.accelerator
        if not isinstance(named, Segments) or not isinstance(accelerator, SynchronousAccelerator):
            return None
        words = accelerator.state[named.round & 1].words[named.index :][: named.count, 0]
        ours = int((words == np.uint64(accelerator.SENT << 32 | named.round)).sum())

        def helped(sends: Sequence[Outgoing]) -> None:
            if packets_to(sends, self._parent()) < ours:
                raise Violation(
                    "not helped", f"{self.name} has heard {packet.action.name}, and does nothing"
                )

        return helped

    def _nothing_again(self, sends: Sequence[Outgoing]) -> None:
        if packets_to(sends, self._parent()):
            raise Violation("executed again", f"{self.name} helps twice, asked with one number")

    # After

    def says(self, burst: Burst | None, sends: Sequence[Outgoing], now: float) -> None:  # noqa: ARG002
        """Judge what was said."""
        if self._due is not None and not self._drops():
            self._due(sends)
        self._due = None
        members = self._contributors()
        self._look_at_receivers(sends, members)
        if not self._drops():
            self._look_for_the_new(sends, members)
            self._look_for_the_joined(sends)
        for out in sends:
            if out.tos == TOS_DATA:
                self._look_at_data(out, members)
            else:
                self._look_at_control(out)

    def _drops(self) -> bool:
        """Whether something could not be sent, for want of a MAC or room."""
        return self._count()[-1] != self._counts[-1]

    def _look_at_receivers(self, sends: Sequence[Outgoing], members: dict[Place, Member]) -> None:
        """Data goes to contributors and to the parent, to nobody else."""
        may = {*self._members, *members, self._parent()}
        for out in sends:
            if out.tos == TOS_DATA and not may.issuperset(map(place, out.peers)):
                raise Violation("astray", f"{self.name} sends data to {out.peers}, not members")

    def _look_for_the_new(self, sends: Sequence[Outgoing], members: dict[Place, Member]) -> None:
        """What was completed goes to all who were and are there, or to the parent."""
        made, came = (now - was for now, was in zip(self._count()[:2], self._counts, strict=False))
        jobs = [job for job in self.machine.jobs.values() if job.shape is not None]
        if not made + came or len(jobs) != 1:
            return
        above = self._parent()
        if above and packets_to(sends, above) < made:
            raise Violation("not sent", f"{self.name} sends not all of {made} sums to its parent")
        new = came if above else made
        stay = [p for p, member in members.items() if member is self._members.get(p)]
        lacks = [p for p in stay if packets_to(sends, p) < new]
        if lacks:
            raise Violation("not sent", f"{self.name} does not send {new} aggregates to {lacks}")

    def _look_for_the_joined(self, sends: Sequence[Outgoing]) -> None:
        """Who is a member of a restarted parent again sends what has no aggregate yet."""
        uplink, job = self._uplink(), self._job()
        if not self._joining or uplink is None or job is None or not uplink.member:
            return
        self._joining = False
        assert isinstance(job.accelerator, SynchronousAccelerator)
        if job.halted or round_distance(uplink.first_round, job.stands_at()) > 0:
            return
        waits = sum(run.segments for run in job.accelerator.waiting())
        if packets_to(sends, self._parent()) < waits:
            raise Violation("not sent", f"{self.name} joins anew and does not send {waits} sums")

    def _look_at_data(self, out: Outgoing, members: dict[Place, Member]) -> None:
        """An aggregate is the same whenever it is sent."""
        member = members.get(place(out.peers[0]))
        if member is None:
            return
        job = self.machine.control.by_source[member.address][0]
        rounds = self._aggregates.setdefault(job.number, OrderedDict())
        last = len(out.rows) - 1
        for i, row in enumerate(out.rows):
            packet = (row[: out.tail] if i == last else row).tobytes()
            round_, seg = int.from_bytes(packet[:4], "big"), packet[:SEG_SIZE]
            kept = rounds.get(round_)
            if kept is None:
                kept = rounds[round_] = {}
                if len(rounds) > (KEPT if job.synchronous else 4 * KEPT):
                    rounds.popitem(last=False)
            if kept.setdefault(seg, packet) != packet:
                raise Violation(
                    "changed",
                    f"{self.name} sends {round_}.{int.from_bytes(seg[4:], 'big')} to {out.peers} "
                    "otherwise than before",
                )

    def _look_at_control(self, out: Outgoing) -> None:
        """The same request has the same answer; a Reset is relayed once, and no Halt too many."""
        payload = out.rows[0, : out.tail].tobytes()
        packet = parsed(payload, self.machine)
        peer = place(out.peers[0])
        if packet is None or peer == self._parent():
            return
        if packet.action is Action.ACK:
            self._look_at_answer(packet, peer, payload)
        elif packet.action is Action.HALT:
            halts = self._halted.setdefault(peer, set())
            halts.add(packet.request)
            if len(halts) > self.halts:
                raise Violation("executed again", f"{self.name} relays {len(halts)} Halts")
        elif isinstance(packet.value, Round):
            key = peer, packet.job.to_bytes(2, "big") + packet.value.round.to_bytes(4, "big")
            if self._relayed.setdefault(key, packet.request) != packet.request:
                raise Violation(
                    "executed again", f"{self.name} relays Reset to {packet.value.round} twice"
                )

    def _look_at_answer(self, packet: Control, peer: Place, payload: bytes) -> None:
        action = payload[8]
        fleeting = (Status.NOT_MEMBER, Status.DENIED, Status.BAD_REQUEST)
        if action == Action.JOIN or packet.status in fleeting:
            return
        job = self.machine.jobs.get(packet.job)
        everybody = job.members.by_address if job is not None else {}
        found = next((m for a, m in everybody.items() if place(a) == peer), None)
        answers, kept = self._answers.get((peer, packet.job), (None, OrderedDict()))
        if answers is None or (found is not None and found.answers is not answers):
            answers, kept = found.answers if found is not None else Answers(), OrderedDict()
            self._answers[peer, packet.job] = answers, kept
        if kept.setdefault(packet.request, payload) != payload:
            raise Violation(
                "executed again",
                f"{self.name} answers request {packet.request} of {peer} ({Action(action).name}) "
                "otherwise than before",
            )
        if len(kept) > PER_MEMBER:
            kept.popitem(last=False)

    # What it knows

    def _contributors(self) -> dict[Place, Member]:
        return {place(a): m for a, (_, m) in self.machine.control.by_source.items()}

    def _count(self) -> tuple[int, ...]:
        n = self.machine.counters
        lost = n["unresolved"] + n["too_large"] + n["tx_failed"]
        return n["aggregates"], n["from_parent"], n["accumulated"], lost

    def _parent(self) -> Place | None:
        hierarchy = self.machine.control.hierarchy
        return None if hierarchy is None else place(hierarchy.parent)

    def _uplink(self) -> Uplink | None:
        """Its membership above; a tree has one job at a time."""
        hierarchy = self.machine.control.hierarchy
        return next(iter(hierarchy.uplinks.values()), None) if hierarchy is not None else None

    def _job(self) -> Job | None:
        jobs = (job for job in self.machine.jobs.values() if job.shape is not None)
        return next(jobs, None)


class SessionConduct:
    """What a worker's session does.

    Args:
        name: of its place.
        session: the machine.
        opened: takes the MAC off a control packet.
    """

    def __init__(self, name: str, session: Session, opened: Callable[[bytes], bytes]) -> None:
        self.name = name
        self.machine = session
        self._opened = opened
        self._seen: deque[int] = deque(maxlen=REMEMBERED)
        self._rejoins = 0
        self._helped = 0
        self._was_member = False
        self._owes: tuple[float, Transfer, int] | None = None

    def comes(self, burst: Burst | None, now: float) -> None:
        """Note what is known before packets are taken."""
        session = self.machine
        if self._owes is not None and now > self._owes[0]:
            owed, transfer, first = self._owes
            self._owes = None
            if session.transfer is transfer and not session.halted and session.member:
                raise Violation(
                    "not sent", f"{self.name} has joined anew at {owed:g} s and sends no {first}"
                )
        if session.stats["rejoins"] != self._rejoins:
            self._rejoins = session.stats["rejoins"]
            self._seen.clear()
        self._was_member = session.member or not session.stats["rejoins"]
        if burst is None or burst.tos == TOS_DATA:
            return
        for row in burst.rows:
            if session.key is not None and session.key.opened(row.tobytes()) is None:
                continue
            packet = parsed(self._opened(row.tobytes()), None)
            relayed = packet is not None and packet.action in (
                Action.HELP,
                Action.HALT,
                Action.RESET,
            )
            if packet is None or not relayed or packet.job != session.job:
                continue
            if packet.request not in self._seen:
                self._seen.append(packet.request)
                self._helped += packet.action is Action.HELP

    def says(self, burst: Burst | None, sends: Sequence[Outgoing], now: float) -> None:
        """Judge what was said, and what became of what came."""
        session = self.machine
        if session.stats["helped"] != self._helped:
            raise Violation(
                "executed again" if session.stats["helped"] > self._helped else "not helped",
                f"{self.name} has helped {session.stats['helped']} times, asked {self._helped} "
                "times",
            )
        transfer = session.transfer
        if burst is not None and session.member and not self._was_member:
            self._was_member = True
            if transfer is not None and not session.halted and transfer.missing():
                self._owes = now, transfer, transfer.missing()[0][0]
        elif burst is None and self._owes is not None:
            wanted = self._owes[1].round << 32 | self._owes[2]
            for out in sends:
                if out.tos == TOS_DATA and out.rows[0, :SEG_SIZE].tobytes() == wanted.to_bytes(
                    SEG_SIZE, "big"
                ):
                    self._owes = None
                    break


def place(address: Address) -> Place:
    """Where it is, whatever switch port that is behind."""
    return address.host, address.port


def packets_to(sends: Sequence[Outgoing], peer: Place | None) -> int:
    """Data packets for somebody."""
    return sum(
        len(out.rows) * sum(place(a) == peer for a in out.peers)
        for out in sends
        if out.tos == TOS_DATA
    )


def parsed(payload: bytes, switch: Switch | None) -> Control | None:
    """A control packet, its MAC (if the job is keyed) left out; None: it makes no sense."""
    if switch is not None and (key := switch.control.keys.of(int.from_bytes(payload[2:4], "big"))):
        payload = key.opened(payload) or b""
    try:
        return Control.parse(payload)
    except ValueError:
        return None


def is_out_of_turn(job: Job, member: Member, round_: int) -> bool:
    """Whether a round is before a member's first, or none that the job takes (and not that one)."""
    first, window = member.first_round, job.window
    if first is not None and round_distance(round_, first) < 0:
        return True
    lowest = window.lowest
    past = lowest is not None and round_distance(round_, lowest) < 0
    return round_ != first and (past or not -1 <= round_distance(round_, window.high) <= 1)
