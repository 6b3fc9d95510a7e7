"""A switch with ports, as a pure object: frames and the time go in, frames to send come out.

    frames --sort--> for this switch, tagged --> Switch --> Issuer --> headers and payload --> out
                 \\-> for this switch: ARP, ping --> answered
                  \\-> between others --> Bridge --> out as they came

SourceGuard stands at the door: what claims a member's address behind another port goes no further.

A super-frame is never taken apart here: its packets are the rows of one array. It is cut only for a
port that does not take it whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Burst, Rows, unpacked
from iswitch.core.format.wire import PORT, SEG_SIZE
from iswitch.core.switch import Switch

from .bridge import Bridge, is_link_local
from .frame import (
    ARP_REPLY,
    ARP_REQUEST,
    DATA_VALID,
    ETH,
    ETHERTYPE_ARP,
    ETHERTYPE_IP,
    GSO_NONE,
    HEAD,
    IP,
    IP_HEADER,
    MAC_SIZE,
    NEEDS_CSUM,
    UDP,
    VLAN_TAG,
    VLAN_TYPES,
    Frames,
    Transmission,
    arp,
    echo_reply,
    parse_arp,
    parse_ip,
    sums,
)
from .guard import SourceGuard, Verdict
from .issuing import Issuer, Jack
from .segmentation import read_super, wire_frames
from .sorting import (
    FIXED,
    Flow,
    Lengths,
    fixed,
    groups,
    is_whole,
    read_flow,
    read_lengths,
    same,
    without_options,
)

TCP_USUAL = struct.pack("<HH", 34, 16)  # csum_start and csum_offset of TCP in IPv4, no options
TCP_OFFSET = UDP + 12  # where such TCP says how long its header is
TRANSPORT = 128  # bytes after a head in which the headers of TCP end
MOST = 4096  # flows that are remembered; strangers may have ever new addresses

Sends = list[Transmission]


class Known(NamedTuple):
    """A flow, and what its datagrams of one length are."""

    flow: Flow
    found: Lengths
    size: int  # bytes of the payload
    step: int  # of one packet
    packets: int
    tail: int  # bytes of the last packet
    least: int  # bytes of a row that holds all of it
    is_unchecked: bool  # nobody has looked whether the payload is sound, or will finish it
    is_plain: bool  # data, sound as far as this tells

    @classmethod
    def of(cls, flow: Flow, found: Lengths) -> Known:
        """Put together what the headers say."""
        size = found.datagram - 8
        step = size if found.gso_type == GSO_NONE else min(found.gso_size, size)
        packets = -(-size // step) if step else 1
        tail = size - (packets - 1) * step
        least = IP + found.packet
        is_unchecked = found.gso_type == GSO_NONE and not found.flags & (NEEDS_CSUM | DATA_VALID)
        is_plain = (
            classify(flow.tos) is Traffic.DATA
            and not (flow.spoofed or is_unchecked)
            and is_whole(found, least)
            and tail >= SEG_SIZE
        )
        return cls(flow, found, size, step, packets, tail, least, is_unchecked, is_plain)

    def may_precede(self, other: Known) -> bool:
        """Whether packets of the other kind are the next rows behind those of this one."""
        return self.flow == other.flow and self.step == other.step == self.tail

    def may_lead(self, last: Known) -> bool:
        """Whether full super-datagrams of this kind may come before one of the other."""
        return (
            self.is_plain
            and self.packets > 1
            and self.may_precede(last)
            and self.packets >= last.packets
        )


class Chassis:
    """Plugs a `Switch` into Ethernet.

    Args:
        switch: the machine inside.
        address: IPv4 address of the switch, four bytes.
        mac: its MAC, six bytes.
        jacks: what each port can do; frames name them by their place here.
        port: UDP port that tagged traffic is for.
    """

    def __init__(
        self,
        switch: Switch,
        address: bytes,
        mac: bytes,
        jacks: Sequence[Jack],
        port: int = PORT,
        bridge: Bridge | None = None,
    ) -> None:
        self.switch = switch
        self.counters: Counters = switch.counters
        self.address = address
        self.mac = mac
        self.jacks = list(jacks)
        self.port = port
        self.bridge = Bridge(len(self.jacks)) if bridge is None else bridge
        self.issuer = Issuer(self.jacks, address, mac, port, switch.counters)
        self.guard = SourceGuard(switch.control.sources, self.issuer.mac_of, address, mac)
        self._mac_row = np.frombuffer(mac, np.uint8)
        self._flows: dict[tuple[int, bytes], Known | None] = {}
        self._measures: dict[tuple[bytes, bytes, bytes, int], tuple[int, int]] = {}

    def receive(self, frames: Frames, now: float) -> Iterable[Sends]:
        """Take frames of one port; gives what is to be sent because of them, step by step.

        Each step has to be sent before the next is asked for: its bytes lie in buffers of the
        switch, and in those of `frames`. For what memory lacks is counted as lost.
        """
        came, offered = self.counters["rx_frames"], self._offered()
        try:
            if self.guard.has_changed():
                self._flows.clear()
            sends = self._express(frames, now)
        except MemoryError:
            self._give_up(frames, came, offered)
            return ()
        return self._step_by_step(frames, now) if sends is None else sends

    def _step_by_step(self, frames: Frames, now: float) -> Iterator[Sends]:
        """Take frames of any kind, as far as there is memory for them."""
        came, offered = self.counters["rx_frames"], self._offered()
        try:
            for sends in self._sorted(frames, now):
                yield sends
                offered = self._offered()
        except MemoryError:
            self._give_up(frames, came, offered)
        except GeneratorExit:  # what was made of them could not be sent
            self._give_up(frames, came, self._offered())
            raise

    def _offered(self) -> int:
        """Frames that were to be sent so far, but for those that were dropped here."""
        n = self.counters
        given = n["tx_packets"] + n["copies"] + n["own_frames"]
        return given - n["unresolved"] - n["too_large"] - n["tx_failed"]

    def _give_up(self, frames: Frames | None, came: int, offered: int) -> None:
        """Count as lost what was not handled of these, and what was not sent of the last step.

        Args:
            frames: that came, if any did.
            came: `rx_frames` before them.
            offered: `_offered` before the step.
        """
        self.counters["given_up"] += 1
        self.counters["tx_failed"] += self._offered() - offered
        if frames is not None:
            handled = self.counters["rx_frames"] - came
            self.counters["rx_no_memory"] += max(0, self._count(frames) - handled)

    def _count(self, frames: Frames) -> int:
        """For how many frames on the wire these stand; one each, if that cannot be found out."""
        try:
            return sum(max(1, self._measure(frames, i)[0]) for i in range(len(frames.lengths)))
        except MemoryError:
            return len(frames.lengths)

    def _express(self, frames: Frames, now: float) -> Iterable[Sends] | None:
        """Take what nearly all frames are; None: these are something else.

        They are sound super-datagrams (or a single datagram) with a member's data, of a flow that
        is known, all full but for the last, and lie one after the other.
        """
        ingress, heads, bodies, lengths = frames
        n = len(lengths)
        head: bytes = heads[n - 1].tobytes()
        last = self._flows.get((ingress, fixed(head)))
        if last is None or not last.is_plain or lengths[n - 1] < last.least:
            return None
        if int.from_bytes(head[IP:UDP], "big") % 0xFFFF:
            return None
        step, packets = last.step, last.packets
        if n > 1:
            head = heads[0].tobytes()
            first = self._flows.get((ingress, fixed(head)))
            if first is None or first.size != bodies.shape[1] or not first.may_lead(last):
                return self._mended(frames, now)
            if lengths[:-1].count(lengths[0]) < n - 1 or lengths[0] < first.least:
                return self._mended(frames, now)
            before = heads[: n - 1]
            if not all(same(before, head, part) for part in FIXED):
                return None
            ip = before[:, IP:UDP].tobytes()
            if any(
                int.from_bytes(ip[i : i + IP_HEADER], "big") % 0xFFFF
                for i in range(0, len(ip), IP_HEADER)
            ):
                return None
            packets += (n - 1) * first.packets
        payloads = bodies.reshape(-1)[: packets * step]
        if payloads.size < packets * step:
            return None
        return self._take(last, payloads.reshape(packets, step), now)

    def _mended(self, frames: Frames, now: float) -> Iterable[Sends] | None:
        """The same for super-datagrams of any length, as they are where something is sent again.

        To copy them next to each other costs less than to handle them one by one.
        """
        ingress, heads, bodies, lengths = frames
        payloads: list[Rows] = []
        before: Known | None = None
        for i, length in enumerate(lengths):
            head: bytes = heads[i].tobytes()
            known = self._flows.get((ingress, fixed(head)))
            if known is None or not known.is_plain or length < known.least:
                return None
            if int.from_bytes(head[IP:UDP], "big") % 0xFFFF:
                return None
            if before is not None and not before.may_precede(known):
                return None
            payload = bodies[i, : known.packets * known.step]
            if payload.size < known.packets * known.step:
                return None
            payloads.append(payload)
            before = known
        assert before is not None
        return self._take(before, np.concatenate(payloads).reshape(-1, before.step), now)

    def _take(self, known: Known, rows: Rows, now: float) -> Iterable[Sends]:
        """Have the switch take sound packets, the last of them in a datagram of this kind."""
        flow, packets = known.flow, len(rows)
        ingress = flow.peer.ingress
        self._learn(flow.peer.host, ingress, flow.mac)
        self.bridge.learn(flow.mac, ingress, now)
        self.counters["rx_frames"] += packets
        sends = self.switch.receive(Burst(flow.peer, flow.tos, rows, known.tail), now)
        return (self.issuer.issue(sends, now),) if sends else ()

    def _sorted(self, frames: Frames, now: float) -> Iterator[Sends]:
        """Take frames of any kind."""
        for group in groups(frames, self._mac_row):
            if self.guard.has_changed():
                self._flows.clear()
            if group.lengths[0] >= HEAD:
                head = group.heads[0].tobytes()
                if head[ETH : ETH + MAC_SIZE] == self.mac and (found := self._flow(group, head)):
                    if group.lengths[-1] != group.lengths[0]:
                        self._flow(group, group.heads[-1].tobytes())  # to be known the next time
                    yield from self._tagged(found, group, head, now)
                    continue
            yield self._untagged(group, now)

    def deadline(self) -> float | None:
        """The time at which `handle_timer` wants to be called; None: not at all."""
        return self.switch.deadline()

    def handle_timer(self, now: float) -> Iterator[Sends]:
        """Do what is due; gives what is to be sent."""
        offered = self._offered()
        try:
            sends = self.issuer.issue(self.switch.handle_timer(now), now)
        except MemoryError:
            self._give_up(None, 0, offered)
        else:
            yield sends

    # Tagged traffic

    def _flow(self, group: Frames, head: bytes) -> Known | None:
        """What a head says, but for what differs within a flow whose datagrams are equally long."""
        key = (group.ingress, fixed(head))
        try:
            return self._flows[key]
        except KeyError:
            if len(self._flows) >= MOST:
                self._flows.clear()
            flow = read_flow(head, group.ingress, self.address, self.port)
            found = None
            if flow is not None:
                ip = head[IP + 12 : IP + 16]
                spoofed = self.guard.is_spoofed(flow.mac, ip, group.ingress)
                found = Known.of(flow._replace(spoofed=spoofed), read_lengths(head))
            self._flows[key] = found
            return found

    def _tagged(self, known: Known, group: Frames, head: bytes, now: float) -> Iterator[Sends]:
        """Datagrams of one flow for the switch inside, all of one length but for the last."""
        ingress, heads, bodies, lengths = group
        n = len(lengths)
        flow, found, size, step, count, *_ = known
        if not is_whole(found, lengths[0]):
            self._drop("bad_frame", n)
            return
        last = size - (lengths[0] - lengths[-1])
        missing = count - (-(-last // step) if step else 1)  # packets that the last lacks
        if flow.spoofed:
            self._drop("spoofed", n * count - missing)
            return
        unchecked = known.is_unchecked
        if n > 1 or unchecked or int.from_bytes(head[IP:UDP], "big") % 0xFFFF:
            good = headers_sound(heads, head)
            if unchecked:
                good &= datagrams_sound(heads, bodies[:, :size])
            if not good.all():
                bad = int(n - good.sum()) * count
                if not good[-1]:
                    bad, last = bad - missing, size
                self._drop("bad_checksum", bad)
                bodies = bodies[good]
                if not len(bodies):
                    return
        self._learn(flow.peer.host, ingress, flow.mac)
        self.bridge.learn(flow.mac, ingress, now)
        for rows, tail in unpacked(bodies, size, step, last):
            self.counters["rx_frames"] += len(rows)
            sends = self.switch.receive(Burst(flow.peer, flow.tos, rows, tail), now)
            if sends:
                yield self.issuer.issue(sends, now)

    # All other traffic

    def _untagged(self, group: Frames, now: float) -> Sends:
        """Frames of one type from one station to another, or a single one."""
        ingress, heads, _, lengths = group
        if lengths[0] < IP:
            return self._drop("bad_frame", len(heads))
        macs = heads[0, ETH : ETH + 2 * MAC_SIZE].tobytes()
        destination, source = macs[:MAC_SIZE], macs[MAC_SIZE:]
        if source[0] & 1:
            return self._drop("bad_frame", len(heads))
        spoofed = self.guard.spoofed(group)
        if spoofed is not None:
            return self._without(group, spoofed, now)
        self.bridge.learn(source, ingress, now)
        if destination == self.mac:
            rows = map(group.row, range(len(heads)))
            return [send for row in rows for send in self._local(ingress, row, now)]
        if is_link_local(destination):
            return self._drop("link_local", len(heads))
        if destination[0] & 1 and heads[0, ETH + 12 : IP].tobytes() == ETHERTYPE_ARP:
            sends: Sends = []
            for i in range(len(heads)):
                answer = self._arp(ingress, group.row(i)[ETH:])
                one = group.part(i, i + 1)
                sends += self._forward(one, destination, now) if answer is None else answer
            return sends
        return self._forward(group, destination, now)

    def _without(self, group: Frames, spoofed: Verdict, now: float) -> Sends:
        """Drop the frames that claim the address of a member elsewhere; take the others."""
        sends: Sends = []
        for i, bad in enumerate(spoofed.tolist()):
            one = group.part(i, i + 1)
            if bad:
                self._drop("spoofed", self._measure(one, 0)[0] or 1)
            else:
                sends += self._untagged(one, now)
        return sends

    def _local(self, ingress: int, row: bytes, now: float) -> Sends:
        """A frame for the switch that the fast path does not know."""
        plain = without_options(row)
        if plain is not None and read_flow(plain, ingress, self.address, self.port):
            group = Frames.single(ingress, plain[ETH:], plain[:ETH])
            return [send.copy() for sends in self.receive(group, now) for send in sends]
        frame = row[ETH:]
        answer = self._arp(ingress, frame)
        if answer is not None:
            return answer
        packet = parse_ip(frame)
        if packet is None:
            return self._drop("bad_frame" if frame[12:14] == ETHERTYPE_IP else "unserved", 1)
        if not packet.sound:
            return self._drop("bad_checksum", 1)
        if packet.destination == self.address:
            reply = echo_reply(frame, packet, self.mac)
            if reply is not None:
                return self._answer([Transmission.single(ingress, reply)])
        return self._drop("unserved", 1)

    def _arp(self, ingress: int, frame: bytes) -> Sends | None:
        """Answer, or learn from, an ARP packet for the switch's address; None: it is not."""
        packet = parse_arp(frame)
        if packet is None or packet.target_ip != self.address:
            return None
        self._learn(".".join(map(str, packet.sender_ip)), ingress, packet.sender)
        if packet.operation != ARP_REQUEST:
            return self._answer([])
        reply = arp(ARP_REPLY, self.mac, self.address, packet.sender, packet.sender_ip)
        return self._answer([Transmission.single(ingress, reply)])

    def _learn(self, host: str, ingress: int, mac: bytes) -> None:
        if self.issuer.learn(host, ingress, mac):
            self.guard.learn(host, ingress, mac)

    def _answer(self, sends: Sends) -> Sends:
        self.counters["rx_frames"] += 1
        self.counters["answered"] += 1
        self.counters["own_frames"] += len(sends)
        return sends

    def _forward(self, group: Frames, destination: bytes, now: float) -> Sends:
        heads, lengths = group.heads, group.lengths
        counts = [1] * len(lengths)
        largest = [length - IP for length in lengths]  # IP packet
        if any(heads[:, 1].tobytes()):
            sizes = [self._measure(group, i) for i in range(len(lengths))]
            if (0, 0) in sizes:
                return self._forward_sane(
                    group, [size != (0, 0) for size in sizes], destination, now
                )
            counts, largest = map(list, zip(*sizes, strict=True))
        ports = self.bridge.egress(destination, group.ingress, now)
        total = sum(counts)
        if not ports:
            return self._drop("same_port", total)
        self.counters["rx_frames"] += total
        self.counters["forwarded"] += total
        self.counters["copies"] += total * len(ports)
        return self._spread(ports, group, counts, largest)

    def _spread(
        self, ports: tuple[int, ...], group: Frames, counts: list[int], largest: list[int]
    ) -> Sends:
        """Frames for several ports, but where they are too large.

        Args:
            counts: for how many frames each stands.
            largest: bytes of the largest IP packet in each.
        """
        sends: Sends = []
        for port in ports:
            mtu = self.jacks[port].mtu
            if max(largest) <= mtu:
                sends += self._pass(port, group, counts)
                continue
            for i, size in enumerate(largest):
                tag = VLAN_TAG * (group.heads[i, ETH + 12 : IP].tobytes() in VLAN_TYPES)
                if size - tag <= mtu:
                    sends += self._pass(port, group.part(i, i + 1), counts[i : i + 1])
                else:
                    self.counters["too_large"] += counts[i]
        return sends

    def _forward_sane(
        self, group: Frames, sane: list[bool], destination: bytes, now: float
    ) -> Sends:
        """Forward but the frames whose virtio_net_hdr makes no sense."""
        self._drop("bad_frame", sane.count(False))
        sends: Sends = []
        for i, good in enumerate(sane):
            if good:
                sends += self._forward(group.part(i, i + 1), destination, now)
        return sends

    def _pass(self, port: int, group: Frames, counts: list[int]) -> Sends:
        """Frames as they came; finished where the port cannot do that."""
        heads, bodies, lengths = group.heads, group.bodies, group.lengths
        if self.jacks[port].offload and lengths[0] >= HEAD:
            rest = [length - HEAD for length in lengths]
            return [Transmission(port, heads, bodies, rest, counts)]
        sends = []
        for i in range(len(lengths)):
            row = np.frombuffer(group.row(i), np.uint8)
            if self.jacks[port].offload:
                sends.append(Transmission(port, None, row.reshape(1, -1), [row.size], [1]))
                continue
            frames = wire_frames(row)
            if not frames:
                self.counters["tx_failed"] += counts[i]
            sends += [Transmission.whole_frames(port, rows) for rows in frames]
        return sends

    def _measure(self, group: Frames, i: int) -> tuple[int, int]:
        """For how many frames one stands, and bytes of the largest IP packet in it.

        Zeros: its virtio_net_hdr makes no sense.
        """
        length = group.lengths[i]
        head = group.heads[i].tobytes()
        if not head[1]:
            return 1, length - IP
        top = head + group.bodies[i, :TRANSPORT].tobytes()
        # All that the answer depends on, where the headers are as they nearly always are.
        key = (top[:ETH], top[IP - 2 : IP + 1], top[TCP_OFFSET : TCP_OFFSET + 1], length)
        known = self._measures.get(key)
        if known is not None:
            return known
        found = read_super(top[:length], length)
        if found is None:
            return 0, 0
        measure = found.frames, found.packet(length - ETH - found.header)
        if top[6:ETH] == TCP_USUAL:
            if len(self._measures) >= MOST:
                self._measures.clear()
            self._measures[key] = measure
        return measure

    def _drop(self, reason: str, frames: int) -> Sends:
        self.counters["rx_frames"] += frames
        self.counters[reason] += frames
        return []


def headers_sound(heads: Rows, first: bytes) -> npt.NDArray[np.bool_]:
    """Which IP headers of a group have the right checksum.

    They differ in length, identification and checksum only.
    """
    words = np.ascontiguousarray(heads[:, IP:UDP]).view(">u2")
    changing = words[:, 1].astype(np.uint32) + words[:, 2] + words[:, 5]
    other = int.from_bytes(first[IP:UDP], "big") - int(changing[0])
    good: npt.NDArray[np.bool_] = (changing + np.uint32(other % 0xFFFF)) % 0xFFFF == 0
    return good


def datagrams_sound(heads: Rows, payloads: Rows) -> npt.NDArray[np.bool_]:
    """Which datagrams have the right checksum, or none; all are of one length."""
    length = 8 + payloads.shape[1]
    none = ~heads[:, UDP + 6 : HEAD].any(axis=1)
    pseudo = np.frombuffer(b"\0\x11" + length.to_bytes(2, "big"), np.uint8).reshape(1, -1)
    total = sums(payloads) + sums(heads[:, IP + 12 :]) + sums(pseudo)
    good: npt.NDArray[np.bool_] = none | (total % np.uint64(0xFFFF) == 0)
    return good
