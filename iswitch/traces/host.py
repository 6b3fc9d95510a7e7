"""Reads the trace of a single host: times, repeats, and requests.

Such a trace lacks the contributions of the other workers, so sums cannot be made again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.packets import Address, Cutter
from iswitch.core.format.wire import RANKS, SEG_SIZE, Ack, Action, Join, Segments, WireError
from iswitch.core.sums.runs import Run

from .batch import gather
from .groups import FROM_SWITCH, TO_SWITCH, PacketGroup
from .links import IP
from .observed import JobSeen, Seen
from .replay import Replayer
from .survey import CONTROL_BYTES


class HostView(Replayer):
    """Reads the trace of a host, without replaying a switch."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.aggregates = 0  # packets
        # Workers on the host that have joined.
        self._known: dict[Address, tuple[JobSeen, Seen, Cutter]] = {}

    def _handle(self, group: PacketGroup, time_ns: int) -> None:  # noqa: ARG002
        if group.what not in (TO_SWITCH, FROM_SWITCH):
            return
        self.damaged += int(np.count_nonzero(~self.sound(group)))
        to_switch = group.what == TO_SWITCH
        peer = group.peer(source=to_switch)._replace(ingress=0)
        at = group.at
        if classify(group.head[IP + 1]) is Traffic.CONTROL:
            for row in gather(self.reader.data, at, max(min(group.size, CONTROL_BYTES), 1)):
                self._control(peer, row.tobytes(), to_switch)
        elif peer in self._known and group.size >= SEG_SIZE:
            self._data(peer, group, to_switch)

    def _control(self, peer: Address, payload: bytes, to_switch: bool) -> None:
        watch = self.watch
        packet = watch.spoke(payload) if to_switch else watch.answered(payload, peer)
        if packet is None:
            return
        value = packet.value
        known = self._known.get(peer)
        if to_switch and isinstance(value, Join) and known is None:
            try:
                shape = value.shape()
            except WireError:
                return
            if shape is not None:
                job = watch.job(packet.job, shape)
                rank = value.wanted if value.wanted < RANKS else len(job.members)
                known = job, watch.member(job, peer, rank), Cutter(shape)
                self._known[peer] = known
        if known is None:
            return
        job, member, _ = known
        if to_switch:
            member.actions[packet.action.name] += 1
            if packet.action is Action.HELP and isinstance(value, Segments):
                job.rounds.helped(value.round)
        elif isinstance(value, Ack) and value.action == Action.JOIN and value.rank < RANKS:
            member.rank = value.rank

    def _data(self, peer: Address, group: PacketGroup, to_switch: bool) -> None:
        job, member, cutter = self._known[peer]
        at = group.at
        size = min(group.size, job.shape.packet_size)
        places = (at[:, None] + np.arange(0, group.size - SEG_SIZE + 1, max(size, 1))).reshape(-1)
        rows = np.zeros((len(places), size), np.uint8)
        rows[:, :SEG_SIZE] = gather(self.reader.data, places, SEG_SIZE)
        for stretch in cutter.cut(rows, size):
            if stretch.stop > job.shape.segments:
                continue
            n = len(stretch.rows)
            if to_switch:
                member.packets += n
                indices = stretch.indices
                if indices is None:
                    indices = np.arange(stretch.start, stretch.stop)
                job.rounds.contributed(member.rank, stretch.round, indices, self.watch.span)
            else:
                self.aggregates += n
                run = Run(0, stretch.round, stretch.start, stretch.start + n)
                job.rounds.completed(stretch.round, [run], self.watch.span[1])
