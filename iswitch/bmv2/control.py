"""The core's control plane and switch, whose data plane is a P4 program.

Jobs, members, Acks, rounds, leases and keys are the core's own code. What is different is where
sums are, and that before each control packet the core is told what has happened there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from iswitch.core.format.keys import Keys
from iswitch.core.format.packets import Address, Outgoing, Rows
from iswitch.core.format.wire import Action, Control, Header, Join, Shape, Status, WireError
from iswitch.core.jobs.admission import Admission
from iswitch.core.jobs.control import ControlPlane
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.limits import Limits
from iswitch.core.jobs.membership import Member
from iswitch.core.jobs.requests import Refusal
from iswitch.core.sums.accelerator import Run
from iswitch.core.switch import Switch
from iswitch.ethernet.bridge import Bridge
from iswitch.ethernet.chassis import Chassis, Sends
from iswitch.ethernet.frame import Frames
from iswitch.ethernet.issuing import Jack

from .accelerator import PipelineJob
from .pipeline import Pipeline

Result = TypeVar("Result")
OF_ONE = (Action.HELP, Action.FBCAST, Action.ACK)  # of no other member's lease or last round


class PipelineAdmission(Admission):
    """Lets nobody in whose vectors the data plane cannot add up.

    Refused with BAD_REQUEST: more elements a segment than fit an MTU of 1500, asynchronous jobs,
    sums in rank order. With FULL: more segments, or jobs, than there is room for.
    """

    plane: PipelineControl

    def join(self, peer: Address, packet: Control, join: Join, now: float) -> list[Outgoing]:
        """Take a member in, or keep it."""
        try:
            shape = join.shape()
        except WireError:
            shape = None  # the core says so
        pipeline = self.plane.pipeline
        if shape is not None and pipeline.slots(shape) > pipeline.sizes.slots:
            return [self.plane.bare_answer(peer, packet, Status.FULL)]
        job = self.plane.jobs.get(packet.job)
        other = job is not None and job.shape is not None  # else the core says MISMATCH
        if shape is not None and not (
            pipeline.sizes.fits(shape) if other else pipeline.sizes.takes(shape)
        ):
            return [self.plane.bare_answer(peer, packet, Status.BAD_REQUEST)]
        return super().join(peer, packet, join, now)

    def _reserve(self, job: Job, shape: Shape, seat: int, reproducible: bool) -> None:  # noqa: ARG002
        if job.shape is None and not self.plane.pipeline.has_room(shape):
            raise Refusal(Status.FULL)
        super()._reserve(job, shape, seat, False)


class PipelineControl(ControlPlane):
    """Jobs and their members, whose sums are in the data plane."""

    def __init__(self, pipeline: Pipeline, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pipeline = pipeline
        self.admission = PipelineAdmission(self)
        self.learned: dict[bytes, int] = {}  # since the last commit

    def new_job(self, number: int) -> Job:
        """A job without members."""
        has_parent = self.hierarchy is not None
        buffers = self.limits.buffers
        return PipelineJob(
            number, self.counters, has_parent, buffers=buffers, pipeline=self.pipeline
        )

    def handle(self, peer: Address, payload: bytes, now: float) -> list[Outgoing]:
        """Execute and answer a control packet, between two packets of data."""
        header = Header.parse(payload)
        job = self.jobs.get(header.job)
        other, _ = self.by_source.get(peer, (None, None))  # a Join may end a membership there
        jobs = [one for one in (job, other) if one is not None]
        if job is other:
            del jobs[1:]
        handle = super().handle
        only = peer if header.action in OF_ONE and self.hierarchy is None else None
        return self.between(jobs, now, lambda: handle(peer, payload, now), only)

    def handle_timer(self, now: float) -> list[Outgoing]:
        """Do what is due."""
        handle_timer = super().handle_timer
        return self.between(list(self.jobs.values()), now, lambda: handle_timer(now))

    def between(
        self,
        jobs: list[Job],
        now: float,
        action: Callable[[], Result],
        only: Address | None = None,
    ) -> Result:
        """Have the core do something while no data is handled, and the data plane follow.

        Args:
            jobs: what it is about.
            now: the time.
            action: what is to be done.
            only: the member that it concerns, if it concerns no other. Then only that is asked
                about, unless another one would seem to have been silent for a lease time.
        """
        pipeline = self.pipeline
        pipeline.link.hold()
        try:
            for job in jobs:
                lost = only is not None and job.lost(now, self.limits.lease)
                pipeline.sync(job, now, None if lost else only)
            result = action()
            self.commit()
        finally:
            pipeline.link.go()
        return result

    def learn(self, station: bytes, port: int) -> None:
        """A station is there; the data plane is told with the next commit."""
        self.learned[station] = port

    def commit(self) -> None:
        """Bring the data plane to what the jobs say."""
        fed = self.hierarchy.fed() if self.hierarchy else None
        self.pipeline.commit(self.sources, self.learned, fed)
        self.learned = {}  # if memory ran out, the next commit tells of them

    def retransmit(self, job: Job, member: Member, kept: list[Run]) -> list[Outgoing]:
        """Kept aggregates, for one member: the data plane sends them."""
        for run in kept:
            self.pipeline.resend(job, member, run)
        return []


class PipelineSwitch(Switch):
    """A switch whose data plane is a P4 program.

    Args:
        pipeline: the data plane.
        limits: what members may reserve.
        keys: of the jobs that are keyed.
        incarnation: of this switch, as a member of jobs at the pipeline's parent.
    """

    control: PipelineControl

    def __init__(
        self,
        pipeline: Pipeline,
        limits: Limits | None = None,
        keys: Keys | None = None,
        incarnation: int = 0,
    ) -> None:
        self._pipeline = pipeline
        super().__init__(limits, parent=pipeline.parent, incarnation=incarnation, keys=keys)
        pipeline.counters = self.counters

    def make_control(self, *arguments: Any) -> ControlPlane:
        """The control plane."""
        return PipelineControl(self._pipeline, *arguments)

    def deliver(self, job: Job, completed: list[Run]) -> list[Outgoing]:
        """Have completed runs sent by the data plane, to the members or the parent."""
        for run in completed:
            self._pipeline.force(job, run)
        return []

    def _data(self, peer: Address, rows: Rows, tail: int, now: float) -> list[Outgoing]:
        """Data that the data plane leaves to the core to decide: a newcomer's first round."""
        found = self.control.by_source.get(peer)
        data = super()._data
        jobs = [found[0]] if found else []
        return self.control.between(jobs, now, lambda: data(peer, rows, tail, now))


class LearningBridge(Bridge):
    """A bridge that tells where stations are.

    Args:
        ports: how many there are.
        learned: is given the port of each station that is new, or has moved.
    """

    def __init__(self, ports: int, learned: Callable[[bytes, int], None]) -> None:
        super().__init__(ports)
        self._learned = learned

    def learn(self, source: bytes, ingress: int, now: float) -> None:
        """A frame of this station came in here."""
        before = self._stations.get(source)
        super().learn(source, ingress, now)
        if source in self._stations and (before is None or before[0] != ingress):
            self._learned(source, ingress)


class PipelineChassis(Chassis):
    """Ethernet around a `PipelineSwitch`: what the data plane leaves to the control plane."""

    switch: PipelineSwitch

    def __init__(self, switch: PipelineSwitch, pipeline: Pipeline, ports: int) -> None:
        jacks = [Jack(offload=False)] * ports
        super().__init__(switch, pipeline.address, pipeline.mac, jacks, pipeline.port)
        self.bridge = LearningBridge(ports, switch.control.learn)
        pipeline.mac_of = self.issuer.mac_of

    def receive(self, frames: Frames, now: float) -> list[Sends]:
        """Take frames of one port; then tell the data plane which stations were new."""
        steps: list[Sends] = []
        for step in super().receive(frames, now):
            try:
                steps.append([send.copy() for send in step])
            except MemoryError:
                self.counters["given_up"] += 1
                self.counters["tx_failed"] += sum(sum(send.counts) for send in step)
        if self.switch.control.learned:
            self.switch.control.commit()
        return steps
