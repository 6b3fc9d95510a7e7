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

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.packets import Rows
from iswitch.core.format.wire import SEG_SIZE
from iswitch.core.sums.paper import Counting
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.flows import datagrams_sound
from iswitch.ethernet.frame import ETH, GSO_UDP_L4, HEADERS, NEEDS_CSUM, VNET, Frames, Transmission
from iswitch.ethernet.frame import HEAD as ROW_HEAD
from iswitch.ethernet.issuing import Jack

from .batch import IN, OUT, Ints, gather
from .compare import Captured, Comparison
from .groups import CUT_OFF, FROM_SWITCH, PASSING, SKIPPED, TO_SWITCH, Group, Sink
from .layers import LEAST, MOST_PORTS, Layers
from .leaving import Leaves
from .links import CUT, HEAD, IP, ORDINARY, TAGGED, UDP, LinkLayer, Packets
from .observed import Watch
from .paired import MagnitudesSwitch, Options, PairedSwitch, Unguarded, UnwrittenChassis
from .reader import Reader
from .stamps import settled
from .survey import CONTROL_BYTES, NothingToReplay, Setting

MOST = 1024  # packets of a group: their bytes stay in the processor's caches
MOST_PASSING = 32  # of different lengths
SORTED = 32 << 20  # bytes of a trace that are put in the order of time, where it has no better
SPAN = 0.010  # seconds of a group
LAYERED_SPAN = 0.050  # and of those that are put in layers
FEW = 8  # packets of a group on average, below which they are put in layers
SAMPLE = 2048  # packets of a batch by which that is judged
MOST_WRITTEN = 1024  # ports of a switch whose frames are written: as many as a Linux bridge has
MOST_TIMERS = 1000  # between two packets; beyond, the clock jumps over the rest of a gap
# Of a head, in words of 16 bits: not the identification, nor checksums.
SAME = np.array([0xFFFF] * 21, np.uint16)
SAME[[9, 12, 20]] = 0


class Replayer:
    """Replays one trace, once.

    Args:
        reader: the trace.
        setting: what it is of, not a host.
        options: of the switch.
        watch: is told what happens.
        sink: takes what the switch would have sent.
        pace: is called with the time of what comes next, in seconds from the first packet.

    Attributes:
        switch: the one that replays.
        comparison: with what the real one sent.
        passed: packets by what they were.
        damaged: of those that the switch does not check itself, with a wrong checksum.
    """

    def __init__(
        self,
        reader: Reader,
        setting: Setting,
        options: Options | None = None,
        watch: Watch | None = None,
        sink: Sink | None = None,
        pace: Callable[[float], None] | None = None,
    ) -> None:
        options = options or Options()
        self.reader = reader
        self.setting = setting
        self.watch = watch or Watch()
        self.passed = dict.fromkeys(
            (
                "packets",
                "to_switch",
                "from_switch",
                "passing",
                "cut_off",
                "skipped",
                "out_of_order",
                "ahead",
            ),
            0,
        )
        self.begin: int | None = None  # ns since 1970
        self.end = 0
        self.first_cut: int | None = None  # packet number
        self.damaged = 0
        self._sink = sink
        self._pace = pace
        self._layer = LinkLayer(reader)
        self.switch = self._make(PairedSwitch, options)
        self.switch.watch = self.watch
        if not setting.ordered:
            self.switch.magnitudes = self._make(MagnitudesSwitch, options)
        self.comparison = Comparison(self.switch, self.switch.magnitudes)
        self._address = bytes(map(int, setting.switch[0].split(".")))
        kind = UnwrittenChassis if sink is None else Chassis
        guard = None
        if setting.shared:
            guard = Unguarded(self.switch.sources, lambda *_: None, self._address, setting.mac)
        udp_port = setting.switch[1]
        self._chassis = kind(self.switch, self._address, setting.mac, [], udp_port, guard=guard)
        if setting.parent is not None:  # ARP need not be in the trace
            host, _, ingress = setting.parent
            self._chassis.issuer.learn(host, ingress, setting.parent_mac)
        self._now = 0.0
        self._leaves = Leaves()
        # What is sent to a parent, and what counts packets, depends on more than each segment.
        alone = setting.parent is None and options.counting is Counting.EXACT
        self.in_layers = alone and pace is None and not setting.host
        self._places: tuple[Ints, Ints, Ints] | None = None  # of what is handled in layers

    def _make(self, kind: Any, options: Options) -> Any:
        return kind(
            options.limits,
            options.reproducible,
            self.setting.parent,
            self.setting.incarnation,
            options.keys,
            options.counting,
        )

    def run(self) -> None:
        """Replay all of it."""
        for packets, what in self._batches():
            self._plug()
            if self.in_layers and self._alternate(packets, what):
                self._take_layers(packets, what)
            else:
                for group in self._cut(packets, what, 0, len(what)):
                    self._take(group)
            self.comparison.settle()
        self._release(self._leaves.overdue(inf))
        self.comparison.settle(end=True)
        self.watch.close()

    def groups(self) -> Iterator[Group]:
        """What is for the switch, from it, or passes, in the order of the trace."""
        for packets, what in self._batches():
            yield from self._cut(packets, what, 0, len(what))

    def _batches(self) -> Iterator[tuple[Packets, npt.NDArray[np.int64]]]:
        """Packets, and what each is to the switch."""
        if not self.setting.ordered:
            self.reader.window = max(self.reader.window, SORTED)
        for batch, ahead in settled(self.reader.batches()):
            self.passed["ahead"] += ahead
            packets = self._layer.read(batch)
            early = int(np.count_nonzero(batch.times < np.maximum.accumulate(batch.times)))
            self.passed["out_of_order"] += early
            if early and not self.setting.ordered:
                packets = packets.by_time()
            what = self._sorted(packets)
            self._count(packets, what)
            yield packets, what

    @property
    def ports(self) -> list[str]:
        """Names of the ports, as far as they are known."""
        return self._layer.ports

    @property
    def unknown_links(self) -> dict[int, int]:
        """Packets of link types that are not known, by these."""
        return self._layer.unknown

    def _plug(self) -> None:
        """Have as many ports as there are places of capture."""
        places, jacks = len(self._layer.ports), len(self._chassis.jacks)
        if self._sink is not None and places > MOST_WRITTEN:
            raise NothingToReplay(
                f"{self.reader.path}: captured at {places:,} interfaces; what a "
                f"switch of more than {MOST_WRITTEN:,} ports sends is not written: leave out --out"
            )
        if jacks < places:
            # Frames that are written are to be finished, of the size that they have on the wire.
            jack = Jack(65535, offload=self._sink is None)
            self._chassis.plug([jack] * (places - jacks))

    # Sorting

    @staticmethod
    def _bounds(packets: Packets, what: npt.NDArray[np.int64], start: int, stop: int) -> list[int]:
        """Where packets of a range are not as the one before; its ends among them."""
        words = packets.heads[start:stop].view(np.uint16)
        what, ports = what[start:stop], packets.ports[start:stop]
        differs = ((words[1:] ^ words[:-1]) & SAME).any(axis=1)
        plain = (what[1:] == PASSING) & (what[:-1] == PASSING)
        differs &= ~plain
        differs |= (what[1:] != what[:-1]) | (ports[1:] != ports[:-1])
        return [start, *(start + 1 + np.flatnonzero(differs)).tolist(), stop]

    def _alternate(self, packets: Packets, what: npt.NDArray[np.int64]) -> bool:
        """Whether most packets, by a sample, are of another flow than the one before."""
        if len(self.ports) > MOST_PORTS:
            return False
        sample = min(len(what), SAMPLE)
        return len(self._bounds(packets, what, 0, sample)) * FEW > sample

    def _cut(
        self, packets: Packets, what: npt.NDArray[np.int64], begin: int, end: int
    ) -> Iterator[Group]:
        """Packets of a range in groups; what is of no interest is left out."""
        for start, stop in pairwise(self._bounds(packets, what, begin, end)):
            kind = int(what[start])
            if kind in (TO_SWITCH, FROM_SWITCH, PASSING):
                most = MOST if kind != PASSING else MOST_PASSING
                for at in range(start, stop, most):
                    yield Group(packets, slice(at, min(at + most, stop)), kind)

    def _sorted(self, packets: Packets) -> npt.NDArray[np.int64]:
        """What each packet is to the switch."""
        heads, directions = packets.heads, packets.directions
        words = heads.view(np.uint16)
        own = np.frombuffer(self._address + self.setting.switch[1].to_bytes(2, "big"), np.uint16)
        ip, port = int(own[:2].view(np.uint32)[0]), own[2]
        source, target = IP + 12 >> 1, IP + 16 >> 1
        tagged = (packets.kinds == TAGGED) | (packets.kinds == CUT)
        to = tagged & (_pair(words, target) == ip) & (words[:, UDP + 2 >> 1] == port)
        if not self.setting.host:
            to &= directions != OUT
        of = tagged & (_pair(words, source) == ip) & (words[:, UDP >> 1] == port) & ~to
        if self.setting.directed and not self.setting.host:
            of &= directions != IN
        what = np.full(len(heads), SKIPPED, np.int64)
        if self.setting.directed and not self.setting.host:
            passing = (packets.kinds == ORDINARY) | (packets.kinds == TAGGED)
            foreign = _pair(words, source) != ip  # what it has sent comes in elsewhere only
            what[passing & foreign & (directions == IN) & ~to & ~of] = PASSING
        what[of & (packets.kinds == TAGGED)] = FROM_SWITCH
        what[to] = TO_SWITCH
        what[(to | of) & (packets.kinds == CUT)] = CUT_OFF
        return what

    def _count(self, packets: Packets, what: npt.NDArray[np.int64]) -> None:
        batch = packets.batch
        counts = np.bincount(what, minlength=5).tolist()
        names = ("skipped", "to_switch", "from_switch", "passing", "cut_off")
        for name, count in zip(names, counts, strict=True):
            self.passed[name] += count
        self.passed["packets"] += len(what)
        if counts[CUT_OFF] and self.first_cut is None:
            self.first_cut = int(packets.numbers[(what == CUT_OFF).argmax()])
        if self.begin is None:
            self.begin = int(batch.times[0])
        self.end = max(self.end, int(batch.times.max()))

    # Time

    def _seconds(self, times: Ints) -> npt.NDArray[np.float64]:
        """Since the first packet; never falling."""
        assert self.begin is not None
        seconds = (times - self.begin) / 1e9
        return np.maximum(np.maximum.accumulate(seconds), self._now)

    def _take(self, group: Group) -> None:
        """Handle a group, with what is due before and between its packets."""
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
        """Handle packets in windows, each in layers, with what is due before each."""
        wanted = np.flatnonzero((what != SKIPPED) & (what != CUT_OFF))
        if len(wanted) < len(what):
            packets, what = packets.taken(wanted), what[wanted]
        n = len(what)
        if not n:
            return
        to, of = what == TO_SWITCH, what == FROM_SWITCH
        layers = Layers(self.reader.data, packets, to, of, self.watch.detailed)
        seconds = self._seconds(packets.batch.times)
        record = self.switch.record
        at, patience = 0, 1
        while at < n:
            first = float(seconds[at])
            due = self._go_to(first)
            until = first + LAYERED_SPAN if due is None else min(first + LAYERED_SPAN, due)
            stop = max(at + 1, int(np.searchsorted(seconds, until, "left")))
            end = layers.window(at, stop, record)
            if end - at < LEAST:
                end = layers.stretch(max(end, min(at + patience, n)))
                patience = min(2 * patience, MOST)
                for group in self._cut(packets, what, at, end):
                    self._take(group)
            else:
                patience = 1
                self._now = first
                self.watch.window = at
                for which in layers.groups(at, end, record, MOST):
                    indices, times = layers.indices[which], seconds[which]
                    self.watch.span = (float(times.min()), float(times.max()))
                    self.watch.came = indices, times
                    if self._sink is not None:
                        self._places = indices, which, packets.batch.times[which]
                    group = Group(packets, which, int(what[which[0]]))
                    self._handle(group, int(packets.batch.times[which[-1]]))
                self.watch.came = self._places = None
                if self._sink is not None:
                    self._sink.flush()
            at = end

    def _go_to(self, now: float) -> float | None:
        """Do what is due before a time; when something will be due next."""
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

    def _handle(self, group: Group, time_ns: int) -> None:
        self._release(self._leaves.overdue(self._now))
        if group.what == FROM_SWITCH:
            self._compare(group)
            return
        if not self.setting.ordered and group.what == TO_SWITCH and group.tos is Traffic.CONTROL:
            if self._leaves.keep(group, self._payloads(group), self._now):
                return
            self._release(self._leaves.of(group.peer(source=True)))
        self._receive(group, time_ns)

    def _release(self, groups: Iterable[Group]) -> None:
        """Hand the switch Leaves that were sent to it before."""
        for group in groups:
            self._receive(group, int(group.packets.batch.times[group.which][-1]))

    def _receive(self, group: Group, time_ns: int) -> None:
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
        """Keep aggregates, each with the place of the packet because of which it is sent.

        That is the one of the same segment; other frames belong to the first.
        """
        for sent in step:
            which = np.zeros(len(sent.lengths), np.int64)
            if sent.heads is not None and sent.bodies.shape[1] >= SEG_SIZE:
                segs = np.ascontiguousarray(sent.bodies[:, :SEG_SIZE]).view(">u4")
                wanted = segs[:, 1].astype(np.int64)
                at = np.minimum(np.searchsorted(indices, wanted), len(indices) - 1)
                which = np.where(indices[at] == wanted, at, 0)
            sink.keep(sent, places[which], times[which], self.ports)

    def _frames(self, group: Group) -> Frames:
        """Tagged datagrams for the switch, as a port would give them."""
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

    def _step(self, group: Group, size: int) -> int:
        """Bytes of the packets in super-datagrams of data; 0: these are none."""
        if classify(group.head[IP + 1]) is not Traffic.DATA or size < 2 * SEG_SIZE:
            return 0
        found = self.switch.record.by_source.get(group.peer(group.what == TO_SWITCH))
        if found is not None and found[0].shape is not None:
            return int(found[0].shape.packet_size)
        at = int(group.at[0])
        return self._next_seg(self.reader.data[at : at + size].tobytes())

    @staticmethod
    def _next_seg(payload: bytes) -> int:
        """Where the next segment begins, if one does."""
        seg = int.from_bytes(payload[:SEG_SIZE], "big") + 1 & 0xFFFFFFFFFFFFFFFF
        return max(0, payload.find(seg.to_bytes(SEG_SIZE, "big"), SEG_SIZE))

    def sound(self, group: Group, payloads: Rows | None = None) -> npt.NDArray[np.bool_]:
        """Which datagrams of a group have a right checksum, or none, or one that is unfinished.

        Those that are not wholly there are taken to be.
        """
        which, at, size = group.which, group.at, max(group.size, 0)
        if payloads is None:
            payloads = gather(self.reader.data, at, size)
        heads = np.zeros((len(at), ROW_HEAD), np.uint8)
        heads[:, ETH:] = group.packets.heads[which]
        batch = group.packets.batch
        cut_off = batch.at[which] + batch.sizes[which] < at + size
        sound: npt.NDArray[np.bool_] = (
            datagrams_sound(heads, payloads) | self.unfinished(heads[:, ETH:]) | cut_off
        )
        return sound

    @staticmethod
    def unfinished(heads: Rows) -> npt.NDArray[np.bool_]:
        """Whose checksum is the pseudo-header's only: the sender's kernel left the rest to a card.

        A finished one is the same by chance once in 65535 times, and is then believed.
        """
        words = np.ascontiguousarray(heads[:, IP + 12 : HEAD]).view(">u2").astype(np.int32)
        said = words[:, 7]
        total = words[:, 0] + words[:, 1] + words[:, 2] + words[:, 3] + words[:, 6] + 17
        unfinished: npt.NDArray[np.bool_] = (said != 0) & ((total - said) % 0xFFFF == 0)
        return unfinished

    def _whole(self, group: Group) -> Frames:
        """Frames of any kind, as they are."""
        batch = group.packets.batch
        which = group.which
        sizes = batch.sizes[which]
        width = max(int(sizes.max()) + ETH, ROW_HEAD)
        table = np.zeros((len(sizes), width), np.uint8)
        table[:, ETH:] = gather(self.reader.data, batch.at[which], width - ETH)
        lengths = (sizes + ETH).tolist()
        return Frames(group.port, table[:, :ROW_HEAD], table[:, ROW_HEAD:], lengths)

    def _compare(self, group: Group) -> None:
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

    def _note_answers(self, group: Group) -> None:
        self.damaged += int(np.count_nonzero(~self.sound(group)))
        peer = group.peer(source=False)
        for payload in self._payloads(group):
            self.watch.answered(payload, peer)
            self._release(self._leaves.answered(peer, payload))

    def _payloads(self, group: Group) -> list[bytes]:
        """Control packets, without what is behind the longest."""
        rows = gather(self.reader.data, group.at, max(min(group.size, CONTROL_BYTES), 1))
        return [row.tobytes() for row in rows]


def _pair(words: npt.NDArray[np.uint16], at: int) -> npt.NDArray[np.uint32]:
    """Two words of each head, as one of 32 bits."""
    return words[:, at] | words[:, at + 1].astype(np.uint32) << np.uint32(16)
