"""The data plane, as the control plane uses it: room, tables, groups, registers, aggregates.

Everything that is written here takes effect between two packets: a control packet is handled while
the data plane holds all data back (`Link.hold`), and `commit` brings tables, groups and registers
to what the jobs say before it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import SEG_SIZE, TOS_DATA, Shape
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member
from iswitch.core.jobs.sources import Sources
from iswitch.core.sums.runs import Run
from iswitch.ethernet.frame import ETH, Route, sums
from p4.sizes import SIZES

from .cpu import CpuHeader, Flag
from .cpu import CpuOp as Cpu
from .entries import Entry, JobPlace, job_entries, parent_entry
from .fates import FateCounters
from .link import CpuLink
from .room import Room
from .runtime import Runtime, handle
from .tables import Tables

NOBODY = Address("0.0.0.0", 0)
JOBS, FLOOD = SIZES["JOBS"], SIZES["FLOOD"]


class Own(NamedTuple):
    """The addresses of the switch."""

    mac: bytes  # six bytes
    address: bytes  # IPv4, four bytes
    port: int  # UDP


@dataclass
class Installed:
    """The present table entries and register contents of one job in the data plane."""

    tables: Tables
    epoch: int = -1
    high: int = -1
    flags: int = -1
    contributed: dict[Address, tuple[int, int | None]] = field(default_factory=dict)  # with seat
    contributors: int = 0


class Pipeline:
    """The data plane.

    Args:
        link: link to its CPU port.
        runtime: the data plane's tables.
        own: the addresses of the switch.
        ports: number of ports.
        parent: the switch above.
    """

    def __init__(
        self,
        link: CpuLink,
        runtime: Runtime,
        own: Own,
        ports: int,
        parent: Address | None = None,
    ) -> None:
        self.link = link
        self.runtime = runtime
        self.mac, self.address, self.port = own
        self.ports = ports
        self.parent = parent
        self._mac_of: Callable[[str, int], bytes | None] = lambda _host, _ingress: None
        self.room = Room(SIZES["SLOTS"])
        self._places: dict[int, int] = {}  # jobs, by their number in the data plane
        self._of_job: dict[int, JobPlace] = {}
        self._installed: dict[int, Installed] = {}
        self._shared = Tables(runtime)
        self._said: tuple[int, JobPlace | None] | None = None  # of sources and parent, last
        self._stations: dict[bytes, int] = {}
        self._epoch = 0
        self._orders: list[tuple[CpuHeader, bytes]] = []
        self.fates = FateCounters(runtime)

    def resolve_by(self, mac_of: Callable[[str, int], bytes | None]) -> None:
        """Set the function that returns the MAC of a host behind a port."""
        self._mac_of = mac_of

    def start(self) -> None:
        """Install the switch's own addresses, and the ports that flooded frames go to."""
        address = ".".join(map(str, self.address))
        lines = [f"table_set_default own_address own {self.mac.hex(':')} {address}"]
        lines += [f"mc_mgrp_create {FLOOD + port}" for port in range(self.ports)]
        self.runtime.run(lines)
        for port in range(self.ports):
            others = [str(other) for other in range(self.ports) if other != port]
            if others:
                (made,) = self.runtime.run([f"mc_node_create 0 {' '.join(others)}"])
                self.runtime.run([f"mc_node_associate {FLOOD + port} {handle(made)}"])
        self.runtime.run([f"mc_mgrp_create {1 + job}" for job in range(JOBS)])

    # Places

    def slots(self, shape: Shape) -> int:
        """Return a job's slots: for the sums of two rounds and, under a parent, for aggregates."""
        return (2 if self.parent is None else 4) * shape.segments

    def has_room(self, shape: Shape) -> bool:
        """Return whether there are a place and slots for another job of this shape."""
        return len(self._places) < JOBS and self.room.fits(self.slots(shape))

    def begin(self, job: int, shape: Shape) -> None:
        """Give a job a place; the caller has checked `has_room`."""
        number = next(n for n in range(JOBS) if n not in self._places)
        base = self.room.take(self.slots(shape))
        self._places[number] = job
        self._installed.setdefault(number, Installed(Tables(self.runtime)))
        self._of_job[job] = JobPlace(number, base, self._next_epoch(), shape)

    def empty(self, job: int) -> None:
        """Make all contributions to a job void."""
        place = self._of_job[job]
        self._of_job[job] = place._replace(epoch=self._next_epoch())

    def end(self, job: int) -> None:
        """Take a job's place back."""
        place = self._of_job.pop(job)
        del self._places[place.number]
        self.room.give_back(place.base)

    def _next_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def place(self, job: int) -> JobPlace | None:
        """Return the place of a job; None: it has no sums."""
        return self._of_job.get(job)

    # Registers

    def sync(self, job: Job, now: float, only: Address | None = None) -> None:
        """Copy rounds, and the times at which members last spoke, from the data plane to the job.

        `only`: read the state of this member only, or of one other if it is no contributor.
        """
        place = self.place(job.number)
        members = job.members.contributors()
        if place is None or not members:
            return
        installed = self._installed[place.number]
        if installed.epoch != place.epoch:
            return
        if only is not None:
            members = [m for m in members if m.address == only] or members[:1]
        look = [CpuHeader(Cpu.LOOK, job=place.number, rank=m.seat) for m in members]
        (first,) = self.link.ask(look[:1])
        if not first.contributors and not first.flags & Flag.HIGH_CONTRIBUTED:
            return  # newcomers may be many, and repeat their Joins: spare them this
        answers = [first, *self.link.ask(look[1:])]
        if first.flags & Flag.HIGH_CONTRIBUTED:
            job.window.contribute(first.high)
        job.rounds.completed_any |= bool(first.flags & Flag.ANY_COMPLETED)
        installed.contributors = first.contributors
        installed.high, installed.flags = job.window.high, _flags(job)
        for member, answer in zip(members, answers, strict=True):
            if installed.contributed.get(member.address, (-1, None))[0] != member.seat:
                continue
            if answer.flags & Flag.HAS_CONTRIBUTED:
                member.contributed = answer.contributed
                member.has_spoken = True
                member.met = None
            installed.contributed[member.address] = (member.seat, member.contributed)
            ago = (answer.now - answer.seen) / 1e6
            member.last_seen = max(member.last_seen, now - ago)
        job.members.move_on(job.window.high)

    def look(self, job: int, slot_set: int, start: int, stop: int) -> list[CpuHeader]:
        """Read the states of segments start..stop-1, in the set of even or of odd rounds."""
        place = self._of_job[job]
        base = place.base + slot_set * place.shape.segments
        return self.link.ask(
            [
                CpuHeader(Cpu.LOOK, job=place.number, slot=base + index, high=place.epoch)
                for index in range(start, stop)
            ]
        )

    def contributors(self, job: int) -> int:
        """Return the bitmap of the seats that have contributed since the job began or was reset."""
        place = self.place(job)
        return 0 if place is None else self._installed[place.number].contributors

    # Aggregates

    def force(self, job: int, run: Run) -> None:
        """Complete open segments and send them to all."""
        self._order(job, Cpu.FORCE, run)

    def resend(self, job: int, peer: Address, seat: int, run: Run) -> None:
        """Send kept aggregates to one member."""
        self._order(job, Cpu.RESEND, run, peer, seat)

    def contribute(self, job: int, run: Run) -> None:
        """Send the sums of this switch's members to the parent again."""
        self._order(job, Cpu.CONTRIBUTE, run)

    def accept(self, peer: Address, packet: bytes) -> None:
        """Pass a contribution, which came to the control plane, on to the data plane."""
        frame = self._frame(peer, packet)
        self._orders.append((CpuHeader(Cpu.ACCEPT, port=peer.ingress), frame))

    def _order(self, job: int, op: Cpu, run: Run, peer: Address = NOBODY, seat: int = 0) -> None:
        """Give an order for each segment of a run."""
        place = self._of_job[job]
        header = CpuHeader(op, port=peer.ingress, job=place.number, rank=seat)
        for index in range(run.start, run.stop):
            seg = (run.round << 32 | index).to_bytes(SEG_SIZE, "big")
            packet = seg.ljust(place.shape.tail(index + 1), b"\0")
            self._orders.append((header, self._frame(peer, packet)))

    def _frame(self, peer: Address, packet: bytes) -> bytes:
        """Make the frame of a data packet from this peer."""
        source = bytes(map(int, peer.host.split(".")))
        route = Route(bytes(6), self.mac, source, self.address, peer.port, self.port, TOS_DATA)
        rows = np.frombuffer(packet, np.uint8).reshape(1, -1)
        head: bytes = route.heads(len(packet), sums(rows))[0, ETH:].tobytes()
        return head + packet

    # Tables

    def commit(
        self,
        jobs: Mapping[int, Job],
        sources: Sources,
        learned: Mapping[bytes, int],
        fed: Job | None = None,
    ) -> None:
        """Bring the data plane to the state of the jobs, then give it the orders.

        Args:
            jobs: the jobs, by number.
            sources: the addresses of the members.
            learned: the port of each station, by MAC.
            fed: the job to which aggregates from the parent belong; None: there is none.
        """
        for number, installed in self._installed.items():
            job = self._places.get(number)
            self._commit_job(number, None if job is None else jobs[job], installed)
        self._commit_shared(sources, learned, None if fed is None else self.place(fed.number))
        orders, self._orders = self._orders, []
        for header, frame in orders:
            self.link.tell(header, frame)

    def _commit_job(self, number: int, job: Job | None, installed: Installed) -> None:
        place = None if job is None else self.place(job.number)
        if job is None or place is None:
            installed.tables.install([])
            installed.tables.replicate(1 + number, {})
            installed.epoch = -1
            installed.contributed.clear()
            return
        members = job.members.contributors()
        peers = [member.address for member in members]
        if self.parent is not None:
            peers.append(self.parent)
        macs = {}
        for peer in peers:
            mac = self._mac_of(peer.host, peer.ingress)
            if mac is not None:
                macs[peer.host, peer.ingress] = mac
        installed.tables.install(job_entries(job, place, macs, self.parent))
        installed.tables.replicate(1 + number, {m.seat: m.address.ingress for m in members})
        self._keep(number, job, place, installed, members)

    def _keep(
        self, number: int, job: Job, place: JobPlace, installed: Installed, members: list[Member]
    ) -> None:
        """Write the registers of a job that are out of date.

        Args:
            number: the job's number.
            job: the job.
            place: its place in the data plane.
            installed: the job's state in the data plane; updated.
            members: the members whose registers are kept.
        """
        anew = installed.epoch != place.epoch
        if anew:
            installed.contributors = 0
            installed.contributed = {}
        if anew or (installed.high, installed.flags) != (job.window.high, _flags(job)):
            installed.epoch = place.epoch
            installed.high, installed.flags = job.window.high, _flags(job)
            flags = Flag.KEEP_JOB | installed.flags
            high, contributors = installed.high, installed.contributors
            self.link.tell(
                CpuHeader(Cpu.KEEP, flags, job=number, high=high, contributors=contributors)
            )
        kept = {}
        for member in members:
            state = kept[member.address] = (member.seat, member.contributed)
            if installed.contributed.get(member.address) != state:
                flags = Flag.KEEP_MEMBER
                if member.contributed is not None:
                    flags |= Flag.HAS_CONTRIBUTED
                last = member.contributed or 0
                self.link.tell(
                    CpuHeader(Cpu.KEEP, flags, job=number, rank=member.seat, contributed=last)
                )
        installed.contributed = kept

    def _commit_shared(
        self, sources: Sources, learned: Mapping[bytes, int], fed: JobPlace | None
    ) -> None:
        """Install members' addresses, stations' ports, and the job that the parent feeds."""
        self._stations.update(learned)
        while len(self._stations) > SIZES["STATIONS"]:
            del self._stations[next(iter(self._stations))]
        said = sources.version, fed
        if not learned and self._said == said:
            return
        self._said = said
        ports: dict[str, set[int]] = {}
        for host, ingress in sources.hosts:
            ports.setdefault(host, set()).add(ingress)
        wanted = [
            Entry("owners", (host,), "owner", (str(behind.pop()),))
            for host, behind in ports.items()
            if len(behind) == 1
        ]
        for mac, port in self._stations.items():
            wanted.append(Entry("senders", (str(port), mac.hex(":")), "known", ()))
            wanted.append(Entry("stations", (mac.hex(":"),), "forward", (str(port),)))
        if fed is not None and self.parent is not None:
            wanted.append(parent_entry(fed, self.parent))
        self._shared.install(wanted)


def _flags(job: Job) -> int:
    """Return the flags that a job's registers hold besides `high`."""
    flags = Flag.HIGH_CONTRIBUTED if job.window.contributed else Flag(0)
    return flags | (Flag.ANY_COMPLETED if job.rounds.completed_any else Flag(0))
