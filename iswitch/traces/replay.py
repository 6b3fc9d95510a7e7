"""Puts a trace through the very switch of the live worlds, with the trace's clock.

    batch --link layer--> heads --sort into groups--> to the switch: Chassis --> what it would send
                                              \\-> from the switch: compared with that
                                               \\-> between others: to the Chassis, if it came in

A group is a number of packets of one flow, length and port that follow each other: what a real
switch gets from the kernel at once. Nothing is done for each packet. Where the packets of several
flows alternate, they are put into groups first (`layers`); what is sent is then kept until it can
be written in the order of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.wire import SEG_SIZE, Action, Control
from iswitch.core.sums.paper import Counting
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.frame import ETH, GSO_UDP_L4, HEADERS, NEEDS_CSUM, VNET, Frames, Transmission
from iswitch.ethernet.frame import HEAD as ROW_HEAD
from iswitch.ethernet.issuing import Jack

from .batch import Ints, gather
from .compare import Captured, Comparison
from .groups import CUT_OFF, FROM_SWITCH, SKIPPED, TO_SWITCH, PacketGroup, Sink, next_seg
from .layers import LEAST, MOST_PORTS, Layers
from .layers import MOST as MOST_IN_WINDOW
from .leaving import Leaves
from .links import IP, UDP, Packets
from .observed import Floats, Watch
from .paired import MagnitudesSwitch, PairedSwitch, ReplayOptions, Unguarded, UnwrittenChassis
from .passed import packet_size
from .reader import Reader
from .survey import NothingToReplay, TraceSetting
from .walk import MOST, Walk

SPAN = 0.010  # seconds of a group
LAYERED_SPAN = 0.050  # and of those that are put in layers
FEW = 8  # packets of a group on average, below which they are put in layers
SAMPLE = 2048  # packets of a batch by which that is judged
MOST_WRITTEN = 1024  # ports of a switch whose frames are written: as many as a Linux bridge has
MOST_TIMERS = 1000  # between two packets; beyond, the clock jumps over the rest of a gap


class Replayer(Walk):
    """Replays one trace, once.

    Args:
        reader: the trace.
        setting: the switch at which the trace was captured.
        options: options of the replaying switch.
        watch: records the events of the replay; None: a new `Watch`.
        sink: takes the frames that the replaying switch sends; None: no frames are made.
        pace: called before each group with its time, in seconds from the first packet.
        together: packets that may be handled in another order between two calls of `pace`.

    Attributes:
        switch: the replaying switch.
        comparison: compares its packets with those of the real switch.
        damaged: number of wrong checksums, in packets that the replaying switch does not check.
    """

    def __init__(
        self,
        reader: Reader,
        setting: TraceSetting,
        options: ReplayOptions | None = None,
        watch: Watch | None = None,
        sink: Sink | None = None,
        pace: Callable[[float], None] | None = None,
        together: int = 0,
    ) -> None:
        options = options or ReplayOptions()
        super().__init__(reader, setting)
        self.watch = watch or Watch()
        self.damaged = 0
        self._sink = sink
        self._pace = pace
        self.switch = self._make(PairedSwitch, options)
        self.switch.watch = self.watch
        if not setting.ordered:
            self.switch.magnitudes = self._make(MagnitudesSwitch, options)
        self.comparison = Comparison(self.switch, self.switch.magnitudes)
        kind = UnwrittenChassis if sink is None else Chassis
        guard = None
        if setting.shared:
            guard = Unguarded(self.switch.sources, lambda *_: None, self._address, setting.mac)
        udp_port = setting.switch[1]
        self._chassis = kind(self.switch, self._address, setting.mac, [], udp_port, guard=guard)
        if setting.parent is not None:  # ARP need not be in the trace
            host, ingress = setting.parent.host, setting.parent.ingress
            self._chassis.issuer.learn(host, ingress, setting.parent_mac)
        self._now = 0.0
        self._leaves = Leaves()
        self._together = MOST_IN_WINDOW if pace is None else together
        # What only counts packets depends on more than each segment.
        exact = options.counting is Counting.EXACT
        self.in_layers = exact and self._together >= LEAST and not setting.host
        self._places: tuple[Ints, Ints, Ints] | None = None  # of what is handled in layers

    def _make(self, kind: Any, options: ReplayOptions) -> Any:
        switch = kind(
            options.limits,
            options.reproducible,
            self.setting.parent,
            self.setting.incarnation,
            options.keys,
            options.counting,
        )
        switch.record.data_plane.has_lines = bool(self.setting.lines)
        return switch

    def run(self) -> None:
        """Replay the whole trace."""
        for packets, what in self.batches():
            self._plug()
            if self.in_layers and self._alternate(packets, what):
                self._take_layers(packets, what)
            else:
                for group in self.cut(packets, what, 0, len(what)):
                    self._take(group)
            self.comparison.settle()
        self._release(self._leaves.overdue(inf))
        self.comparison.settle(end=True)
        self.watch.close()

    def _plug(self) -> None:
        """Give the switch as many ports as there are places of capture."""
        places, jacks = len(self._layer.ports), len(self._chassis.jacks)
        if self._sink is not None and places > MOST_WRITTEN:
            raise NothingToReplay(
                f"{self.reader.path}: captured at {places:,} interfaces; what a "
                f"switch of more than {MOST_WRITTEN:,} ports sends is not written: leave out --out"
            )
        if jacks < places:
            # Frames that are written need finished checksums, and the sizes that they have on the
            # wire.
            jack = Jack(65535, offload=self._sink is None)
            self._chassis.plug([jack] * (places - jacks))

    def _alternate(self, packets: Packets, what: npt.NDArray[np.int64]) -> bool:
        """Return whether the groups in a sample of the packets average fewer than `FEW` packets."""
        if len(self.ports) > MOST_PORTS:
            return False
        sample = min(len(what), SAMPLE)
        return len(self.bounds(packets, what, 0, sample)) * FEW > sample

    # Time

    def _seconds(self, times: Ints) -> npt.NDArray[np.float64]:
        """Convert times to seconds since the first packet; the result never decreases."""
        assert self.begin is not None
        seconds = (times - self.begin) / 1e9
        return np.maximum(np.maximum.accumulate(seconds), self._now)

    def _take(self, group: PacketGroup) -> None:
        """Handle a group, and the timers that are due before and between its packets."""
        times = group.packets.batch.times[group.which]
        seconds = self._seconds(times)
        at, n = 0, len(seconds)
        while at < n:
            first = float(seconds[at])
            due = self._go_to(first)
            until = first + SPAN if due is None else min(first + SPAN, due)
            stop = (
                n
                if seconds[-1] <= until
                else max(at + 1, int(np.searchsorted(seconds, until, "left")))
            )
            if self._pace is not None:
                self._pace(first)
            self.watch.window = None
            self.watch.span = (first, float(seconds[stop - 1]))
            self._now = first
            part = group if stop - at == n else group.part(at, stop)
            self._handle(part, int(times[stop - 1]))
            at = stop

    def _take_layers(self, packets: Packets, what: npt.NDArray[np.int64]) -> None:
        """Handle packets in windows, each in layers, and the timers that are due before each."""
        wanted = np.flatnonzero((what != SKIPPED) & (what != CUT_OFF))
        if len(wanted) < len(what):
            packets, what = packets.taken(wanted), what[wanted]
        n = len(what)
        if not n:
            return
        to, of = what == TO_SWITCH, what == FROM_SWITCH
        timed, listening = self._pace is not None, self.setting.switch[1]
        layers = Layers(self.reader.data, packets, to, of, listening, self.watch.detailed, timed)
        seconds = self._seconds(packets.batch.times)
        at, patience = 0, 1
        while at < n:
            first = float(seconds[at])
            due = self._go_to(first)
            until = first + LAYERED_SPAN if due is None else min(first + LAYERED_SPAN, due)
            stop = max(at + 1, int(np.searchsorted(seconds, until, "left")))
            stop = min(stop, at + self._together)
            end = layers.window(at, stop, self.switch)
            if end - at < LEAST:
                end = layers.stretch(max(end, min(at + patience, n)))
                patience = min(2 * patience, MOST)
                for group in self.cut(packets, what, at, end):
                    self._take(group)
            else:
                patience = 1
                self._take_window(layers, packets, what, seconds, slice(at, end))
            at = end

    def _take_window(
        self, layers: Layers, packets: Packets, what: Ints, seconds: Floats, window: slice
    ) -> None:
        """Handle the packets of a window in layers, each group at the time of its last packet."""
        begin, end, udp_port = window.start, window.stop, self.setting.switch[1]
        if self._pace is not None:
            self._pace(float(seconds[begin]))
        self.watch.window = begin
        for which in layers.groups(begin, end, self.switch, MOST):
            indices, times = layers.indices[which], seconds[which]
            self.watch.span = (float(times.min()), float(times.max()))
            self.watch.came = indices, times
            self._now = self.watch.span[1]
            if self._sink is not None:
                self._places = indices, which, packets.batch.times[which]
            group = PacketGroup(packets, which, int(what[which[0]]), udp_port)
            self._handle(group, int(packets.batch.times[which[-1]]))
        self._now = float(seconds[end - 1])
        self.watch.came = self._places = None
        if self._sink is not None:
            self._sink.flush()

    def _go_to(self, now: float) -> float | None:
        """Run the timers that are due before a time; return when the next one is due."""
        for _ in range(MOST_TIMERS):
            due = self._chassis.deadline()
            if due is None or due > now:
                return due
            self._ring(max(due, self._now))
        self._ring(now)
        return self._chassis.deadline()

    def _ring(self, at: float) -> None:
        assert self.begin is not None
        self._now = at
        self.watch.span = (at, at)
        self._send(self._chassis.handle_timer(at), self.begin + round(at * 1e9))

    # Handling

    def _handle(self, group: PacketGroup, time_ns: int) -> None:
        self._release(self._leaves.overdue(self._now))
        if group.what == FROM_SWITCH:
            self._compare(group)
            return
        if not self.setting.ordered and group.what == TO_SWITCH and group.tos is Traffic.CONTROL:
            if self._leaves.keep(group, self.payloads(group), self._now):
                return
            self._release(self._leaves.of(group.peer(source=True)))
        self._receive(group, time_ns)

    def _release(self, groups: Iterable[PacketGroup]) -> None:
        """Pass Leaves that were held back to the switch."""
        for group in groups:
            self._receive(group, int(group.packets.batch.times[group.which][-1]))

    def _receive(self, group: PacketGroup, time_ns: int) -> None:
        frames = self._frames(group) if group.what == TO_SWITCH else self._whole(group)
        counters = self.switch.counters
        before = counters["aggregates"] + counters["from_parent"]
        self._send(self._chassis.receive(frames, self._now), time_ns)
        if counters["aggregates"] + counters["from_parent"] != before:
            self.comparison.settle()

    def _send(self, steps: Iterable[list[Transmission]], time_ns: int) -> None:
        for step in steps:
            if step:
                self.switch.counters["tx_frames"] += sum(sum(t.counts) for t in step)
                if self._sink is not None:
                    if self._places is None:
                        self._sink.write(step, time_ns, self.ports)
                    else:
                        self._keep(step, self._sink, *self._places)

    def _keep(
        self, step: list[Transmission], sink: Sink, indices: Ints, places: Ints, times: Ints
    ) -> None:
        """Keep frames to be written in the order of the packets that cause them.

        An aggregate is caused by the packet of its segment, any other frame by the first packet.

        Args:
            step: the frames.
            sink: writes them.
            indices: segments of the packets, ascending, (n,).
            places: places of these packets in the batch, (n,).
            times: times of these packets, ns since 1970, (n,).
        """
        for sent in step:
            which = np.zeros(len(sent.lengths), np.int64)
            if sent.heads is not None and sent.bodies.shape[1] >= SEG_SIZE:
                segs = np.ascontiguousarray(sent.bodies[:, :SEG_SIZE]).view(">u4")
                wanted = segs[:, 1].astype(np.int64)
                at = np.minimum(np.searchsorted(indices, wanted), len(indices) - 1)
                which = np.where(indices[at] == wanted, at, 0)
            sink.keep(sent, places[which], times[which], self.ports)

    def _frames(self, group: PacketGroup) -> Frames:
        """Make tagged datagrams for the switch, in the form that a port gives them."""
        packets, which, at, n = group.packets, group.which, group.at, len(group)
        heads = np.zeros((n, ROW_HEAD), np.uint8)
        heads[:, ETH:] = packets.heads[which]
        batch = packets.batch
        there = int((batch.at[which] + batch.sizes[which] - at).min())
        size = max(0, min(group.size, there))
        if (step := self._step(group, size)) and step < size:
            heads[:, :ETH] = np.frombuffer(
                VNET.pack(NEEDS_CSUM, GSO_UDP_L4, HEADERS, step, UDP, 6), np.uint8
            )
        else:
            unfinished = self.unfinished(heads[:, ETH:])
            heads[unfinished, :ETH] = np.frombuffer(
                VNET.pack(NEEDS_CSUM, 0, 0, 0, UDP, 6), np.uint8
            )
        return Frames(group.port, heads, gather(self.reader.data, at, size), [ROW_HEAD + size] * n)

    def _step(self, group: PacketGroup, size: int) -> int:
        """Find the bytes of each packet in super-datagrams of data; 0: the group holds none."""
        if classify(group.head[IP + 1]) is not Traffic.DATA or size < 2 * SEG_SIZE:
            return 0
        comes, at = group.what == TO_SWITCH, int(group.at[0])
        if known := packet_size(self.switch, group.peer(source=comes), comes):
            return known
        return next_seg(self.reader.data[at : at + size].tobytes())

    def _whole(self, group: PacketGroup) -> Frames:
        """Make frames of any kind, unchanged."""
        batch = group.packets.batch
        which = group.which
        sizes = batch.sizes[which]
        width = max(int(sizes.max()) + ETH, ROW_HEAD)
        table = np.zeros((len(sizes), width), np.uint8)
        table[:, ETH:] = gather(self.reader.data, batch.at[which], width - ETH)
        lengths = (sizes + ETH).tolist()
        return Frames(group.port, table[:, :ROW_HEAD], table[:, ROW_HEAD:], lengths)

    def _compare(self, group: PacketGroup) -> None:
        if group.tos is Traffic.CONTROL:
            self._note_answers(group)
            return
        assert self.begin is not None
        size, at, n = group.size, group.at, len(group)
        numbers = group.packets.numbers[group.which]
        times = (group.packets.batch.times[group.which] - self.begin) / 1e9
        rows = gather(self.reader.data, at, max(size, 0))
        step = self._step(group, size)
        peer = group.peer(source=False)
        if not step or step >= size:
            self.comparison.take(Captured(peer, rows, numbers, at, times))
            return
        full, rest = size // step, size % step
        for i in range(n):  # super-datagrams, each of dozens of packets
            offsets = at[i] + np.arange(full) * step
            some = rows[i, : full * step].reshape(full, step)
            number, time = np.repeat(numbers[i], full), np.repeat(times[i], full)
            self.comparison.take(Captured(peer, some, number, offsets, time))
            if rest:
                one = slice(i, i + 1)
                last = rows[one, full * step :]
                where = at[one] + full * step
                self.comparison.take(Captured(peer, last, numbers[one], where, times[one]))

    def _note_answers(self, group: PacketGroup) -> None:
        self.damaged += int(np.count_nonzero(~self.sound(group)))
        peer = group.peer(source=False)
        for payload in self.payloads(group):
            packet = self.watch.answered(payload, peer)
            self._release(self._leaves.answered(peer, payload))
            if packet is not None and packet.action is Action.JOIN:
                self._join_now(packet)

    def _join_now(self, packet: Control) -> None:
        """Ask the parent when the captured switch does, though our timer is not due yet.

        A switch reads the clock before it takes packets, and the times in a capture are from after
        that: so timers that it set may be due earlier than ours. The parent's answer in the trace
        would find no question.
        """
        hierarchy = self.switch.control.hierarchy
        uplink = hierarchy.uplinks.get(packet.job) if hierarchy else None
        if uplink is None or uplink.next_join is None or not uplink.is_member:
            return
        if uplink.requests.find(packet.request, is_join=True) is None:
            uplink.join_at(self._now)
            self._ring(self._now)
