"""A switch whose data plane is a P4 program.

Jobs, members, Acks, rounds, leases and keys are the core's own code. Two things differ: the sums
are in the data plane, and before each control packet the core is told what has happened there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.keys import Keys
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import Action, Header
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from iswitch.ethernet.bridge import Bridge
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.forwarding import Sends
from iswitch.ethernet.frame import Frames
from iswitch.ethernet.issuing import Jack

from .accelerator import PipelinePlane
from .pipeline import Pipeline

Result = TypeVar("Result")
OF_ONE = (Action.HELP, Action.FBCAST, Action.ACK)  # of no other member's lease or last round


class PipelineSwitch(Switch):
    """A switch whose data plane is a P4 program.

    Args:
        pipeline: the data plane.
        limits: limits of what members may reserve.
        keys: keys of the keyed jobs.
        incarnation: this switch's incarnation as a member of jobs at the pipeline's parent.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        limits: Limits | None = None,
        keys: Keys | None = None,
        incarnation: int = 0,
    ) -> None:
        plane = PipelinePlane(pipeline, lambda number: self.jobs[number])
        super().__init__(
            limits,
            parent=pipeline.parent,
            incarnation=incarnation,
            keys=keys,
            data_plane=plane,
        )
        self.pipeline = pipeline
        self.learned: dict[bytes, int] = {}  # since the last commit

    def receive(self, burst: Burst, now: float) -> list[Outgoing]:
        """Handle packets: control, and data of newcomers' first rounds, which P4 passes on."""
        if classify(burst.tos) is not Traffic.DATA:
            return super().receive(burst, now)
        found = self.record.by_source.get(burst.peer)
        jobs = [found[0]] if found else []
        receive = super().receive
        return self._between(jobs, now, lambda: receive(burst, now))

    def execute(self, peer: Address, payload: bytes, now: float) -> list[Outgoing]:
        """Execute a control packet, between two packets of data."""
        header = Header.parse(payload)
        job = self.jobs.get(header.job)
        other, _ = self.record.by_source.get(peer, (None, None))  # a Join may end it there
        jobs = [one for one in (job, other) if one is not None]
        if job is other:
            del jobs[1:]
        execute = super().execute
        only = peer if header.action in OF_ONE and self.control.hierarchy is None else None
        return self._between(jobs, now, lambda: execute(peer, payload, now), only)

    def handle_timer(self, now: float) -> list[Outgoing]:
        """Do the work that is due now; return the packets to send."""
        handle_timer = super().handle_timer
        return self._between(list(self.jobs.values()), now, lambda: handle_timer(now))

    def _between(
        self,
        jobs: list[Job],
        now: float,
        action: Callable[[], Result],
        only: Address | None = None,
    ) -> Result:
        """Let the core act while the data plane handles no data; then update the data plane.

        Args:
            jobs: the jobs that the action concerns; they are updated from the data plane first.
            now: the time, in seconds.
            action: function of the core to call.
            only: the one member that the action concerns; None: all members. Only this member's
                state is read, unless another one seems to have been silent for a lease time.
        """
        self.pipeline.link.hold()
        try:
            for job in jobs:
                lost = only is not None and self.record.lost(job, now)
                self.pipeline.sync(job, now, None if lost else only)
            result = action()
            self.commit()
        finally:
            self.pipeline.link.go()
        return result

    def learn(self, station: bytes, port: int) -> None:
        """Note where a station is; the data plane is told with the next commit."""
        self.learned[station] = port

    def commit(self) -> None:
        """Bring the data plane to the state of the jobs."""
        hierarchy = self.control.hierarchy
        fed = hierarchy.fed() if hierarchy else None
        self.pipeline.commit(self.jobs, self.sources, self.learned, fed)
        self.learned = {}  # if memory ran out, the next commit tells of them


class LearningBridge(Bridge):
    """A bridge that reports where stations are.

    Args:
        ports: number of ports.
        learned: called with the MAC and port of each station that is new, or has moved.
    """

    def __init__(self, ports: int, learned: Callable[[bytes, int], None]) -> None:
        super().__init__(ports)
        self._learned = learned

    def learn(self, source: bytes, ingress: int, now: float) -> None:
        """Note that a frame of this station came in at this port; report a new place."""
        before = self._stations.get(source)
        super().learn(source, ingress, now)
        if source in self._stations and (before is None or before[0] != ingress):
            self._learned(source, ingress)


class PipelineChassis(Chassis):
    """Puts a `PipelineSwitch` on Ethernet, for the frames that the data plane leaves to it."""

    switch: PipelineSwitch

    def __init__(self, switch: PipelineSwitch, pipeline: Pipeline, ports: int) -> None:
        jacks = [Jack(offload=False)] * ports
        bridge = LearningBridge(ports, switch.learn)
        super().__init__(switch, pipeline.address, pipeline.mac, jacks, pipeline.port, bridge)
        pipeline.resolve_by(self.issuer.mac_of)

    def receive(self, frames: Frames, now: float) -> list[Sends]:
        """Take frames of one port; then tell the data plane which stations were new."""
        steps: list[Sends] = []
        for step in super().receive(frames, now):
            try:
                steps.append([send.copy() for send in step])
            except MemoryError:
                self.counters["given_up"] += 1
                self.counters["tx_failed"] += sum(sum(send.counts) for send in step)
        if self.switch.learned:
            self.switch.commit()
        return steps
