"""A switch with ports, as a pure object: frames and the time go in, frames to send come out.

    frames --sort--> for this switch, tagged --> Switch --> Issuer --> headers and payload --> out
                 \\-> for this switch: ARP, ping --> answered
                  \\-> between others --> Bridge --> out as they came

A super-frame is never taken apart here: its packets are the rows of one array. It is cut only for a
port that does not take it whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from .counters import Counters
from .forwarding import Bridge, is_link_local
from .frame import (
    ARP_REPLY,
    ARP_REQUEST,
    DATA_VALID,
    ETH,
    ETH_HEADER,
    ETHERTYPE_ARP,
    GSO_NONE,
    IP,
    MAC_SIZE,
    NEEDS_CSUM,
    PAYLOAD,
    UDP,
    VLAN_TAG,
    VLAN_TYPES,
    Frames,
    Transmission,
    arp,
    echo_reply,
    parse_arp,
    parse_ip,
    sound,
    sums,
)
from .issuing import Issuer, Jack
from .packets import Burst, Rows
from .segmentation import read_super, wire_frames
from .sorting import (
    Flow,
    groups,
    identity,
    is_whole,
    read_flow,
    read_lengths,
    without_options,
)
from .switch import Switch

MOST = 4096  # flows that are remembered; strangers may have ever new addresses

Sends = list[Transmission]


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
        port: int = 26963,
    ) -> None:
        self.switch = switch
        self.counters: Counters = switch.counters
        self.address = address
        self.mac = mac
        self.jacks = list(jacks)
        self.port = port
        self.bridge = Bridge(len(self.jacks))
        self.issuer = Issuer(self.jacks, address, mac, port, switch.counters)
        self._mac_row = np.frombuffer(mac, np.uint8)
        self._flows: dict[tuple[int, bytes], Flow | None] = {}

    def receive(self, frames: Frames, now: float) -> Iterator[Sends]:
        """Take frames of one port; gives what is to be sent because of them, step by step.

        Each step has to be sent before the next is asked for: its bytes lie in buffers of the
        switch, and in those of `frames`.
        """
        for start, stop in groups(frames, self._mac_row):
            group = Frames(frames.ingress, frames.rows[start:stop], frames.lengths[start:stop])
            if group.lengths[0] >= PAYLOAD:
                head = group.rows[0, :PAYLOAD].tobytes()
                if head[ETH : ETH + MAC_SIZE] == self.mac and (flow := self._flow(group, head)):
                    yield from self._tagged(flow, group, head, now)
                    continue
            yield self._untagged(group, now)

    def deadline(self) -> float | None:
        """The time at which `handle_timer` wants to be called; None: not at all."""
        return self.switch.deadline()

    def handle_timer(self, now: float) -> Iterator[Sends]:
        """Do what is due; gives what is to be sent."""
        yield self.issuer.issue(self.switch.handle_timer(now), now)

    # Tagged traffic

    def _flow(self, group: Frames, head: bytes) -> Flow | None:
        key = (group.ingress, identity(head))
        try:
            return self._flows[key]
        except KeyError:
            if len(self._flows) >= MOST:
                self._flows.clear()
            flow = read_flow(head, group.ingress, self.address, self.port)
            self._flows[key] = flow
            return flow

    def _tagged(self, flow: Flow, group: Frames, head: bytes, now: float) -> Iterator[Sends]:
        """Datagrams of one flow, all of one length, for the switch inside."""
        found = read_lengths(head)
        rows = group.rows
        if not is_whole(found, group.lengths[0]):
            self._drop("bad_frame", len(rows))
            return
        whole = found.gso_type == GSO_NONE
        size = found.datagram - 8
        count = 1 if whole else -(-size // found.gso_size)  # packets of a frame
        good = sound(rows[:, IP:UDP])
        if whole and not found.flags & (NEEDS_CSUM | DATA_VALID):
            good &= datagrams_sound(rows, found.datagram)
        if not good.all():
            self._drop("bad_checksum", int(len(rows) - good.sum()) * count)
            rows = rows[good]
            if not len(rows):
                return
        self.issuer.learn(flow.peer.host, flow.peer.ingress, flow.mac)
        self.bridge.learn(flow.mac, group.ingress, now)
        self.counters["rx_frames"] += len(rows) * count
        payloads = rows[:, PAYLOAD:]
        if whole:
            bursts = [Burst(flow.peer, flow.tos, payloads[:, :size], size)]
        else:
            tail = size - (count - 1) * found.gso_size
            bursts = [
                Burst(flow.peer, flow.tos, packets(row, count, found.gso_size), tail)
                for row in payloads
            ]
        for burst in bursts:
            sends = self.switch.receive(burst, now)
            if sends:
                yield self.issuer.issue(sends, now)

    # All other traffic

    def _untagged(self, group: Frames, now: float) -> Sends:
        """Frames from one station to another, or a single one."""
        ingress, rows, lengths = group
        if lengths[0] < ETH + ETH_HEADER:
            return self._drop("bad_frame", len(rows))
        macs = rows[0, ETH : ETH + 2 * MAC_SIZE].tobytes()
        destination, source = macs[:MAC_SIZE], macs[MAC_SIZE:]
        if source[0] & 1 or source == self.mac:
            return self._drop("bad_frame", len(rows))
        self.bridge.learn(source, ingress, now)
        if destination == self.mac:
            return [
                send
                for row, length in zip(rows, lengths, strict=True)
                for send in self._local(ingress, row[:length].tobytes(), now)
            ]
        if is_link_local(destination):
            return self._drop("link_local", len(rows))
        if destination[0] & 1 and rows[0, ETH + 12 : IP].tobytes() == ETHERTYPE_ARP:
            sends: Sends = []
            for i, length in enumerate(lengths):
                answer = self._arp(ingress, rows[i, ETH:length].tobytes())
                if answer is None:
                    one = Frames(ingress, rows[i : i + 1], lengths[i : i + 1])
                    sends += self._forward(one, destination, now)
                else:
                    sends += answer
            return sends
        return self._forward(group, destination, now)

    def _local(self, ingress: int, row: bytes, now: float) -> Sends:
        """A frame for the switch that the fast path does not know."""
        plain = without_options(row)
        if plain is not None and read_flow(plain, ingress, self.address, self.port):
            frame = np.zeros(len(plain) + PAYLOAD, np.uint8)
            frame[: len(plain)] = np.frombuffer(plain, np.uint8)
            group = Frames(ingress, frame.reshape(1, -1), [len(plain)])
            return [send.copy() for sends in self.receive(group, now) for send in sends]
        frame_ = row[ETH:]
        answer = self._arp(ingress, frame_)
        if answer is not None:
            return answer
        packet = parse_ip(frame_)
        if packet is not None and packet.destination == self.address and packet.sound:
            reply = echo_reply(frame_, packet, self.mac)
            if reply is not None:
                return self._answer([Transmission.single(ingress, reply)])
        return self._drop("unserved", 1)

    def _arp(self, ingress: int, frame: bytes) -> Sends | None:
        """Answer, or learn from, an ARP packet for the switch's address; None: it is not."""
        packet = parse_arp(frame)
        if packet is None or packet.target_ip != self.address:
            return None
        self.issuer.learn(".".join(map(str, packet.sender_ip)), ingress, packet.sender)
        if packet.operation != ARP_REQUEST:
            return self._answer([])
        reply = arp(ARP_REPLY, self.mac, self.address, packet.sender, packet.sender_ip)
        return self._answer([Transmission.single(ingress, reply)])

    def _answer(self, sends: Sends) -> Sends:
        self.counters["rx_frames"] += 1
        self.counters["answered"] += 1
        self.counters["own_frames"] += len(sends)
        return sends

    def _forward(self, group: Frames, destination: bytes, now: float) -> Sends:
        ingress, rows, lengths = group
        ports = self.bridge.egress(destination, ingress, now)
        counts = [1] * len(rows)
        largest = [length - IP for length in lengths]  # IP packet
        if rows[:, 1].any():
            sane = [self._measure(i, group, counts, largest) for i in range(len(rows))]
            if not all(sane):
                self._drop("bad_frame", sane.count(False))
                return [
                    send
                    for i, good in enumerate(sane)
                    if good
                    for send in self._forward(
                        Frames(ingress, rows[i : i + 1], lengths[i : i + 1]), destination, now
                    )
                ]
        total = sum(counts)
        if not ports:
            return self._drop("same_port", total)
        self.counters["rx_frames"] += total
        self.counters["forwarded"] += total
        self.counters["copies"] += total * len(ports)
        sends: Sends = []
        for port in ports:
            mtu = self.jacks[port].mtu
            if max(largest) <= mtu:
                sends += self._pass(port, rows, lengths, counts)
                continue
            for i, size in enumerate(largest):
                tag = VLAN_TAG * (rows[i, ETH + 12 : IP].tobytes() in VLAN_TYPES)
                if size - tag <= mtu:
                    sends += self._pass(
                        port, rows[i : i + 1], lengths[i : i + 1], counts[i : i + 1]
                    )
                else:
                    self.counters["too_large"] += counts[i]
        return sends

    def _pass(self, port: int, rows: Rows, lengths: list[int], counts: list[int]) -> Sends:
        """Frames as they came; finished where the port cannot do that."""
        if self.jacks[port].offload:
            return [Transmission(port, None, rows, lengths, counts)]
        sends = []
        for row, length in zip(rows, lengths, strict=True):
            for frames in wire_frames(row, length):
                n = len(frames)
                bodies = np.zeros((n, ETH + frames.shape[1]), np.uint8)
                bodies[:, ETH:] = frames
                sends.append(Transmission(port, None, bodies, [bodies.shape[1]] * n, [1] * n))
        return sends

    @staticmethod
    def _measure(i: int, group: Frames, counts: list[int], largest: list[int]) -> bool:
        """Correct the count and the largest packet of a super-frame; False: it makes no sense."""
        row, length = group.rows[i], group.lengths[i]
        if not row[1]:
            return True
        found = read_super(row, length)
        if found is None:
            return False
        counts[i] = found.frames
        largest[i] = found.packet(length - ETH - found.header)
        return True

    def _drop(self, reason: str, frames: int) -> Sends:
        self.counters["rx_frames"] += frames
        self.counters[reason] += frames
        return []


def packets(payload: Rows, count: int, size: int) -> Rows:
    """A super-datagram as rows of its packets; of the last row only the beginning counts."""
    if count * size > payload.size:
        padded = np.zeros(count * size, np.uint8)
        padded[: payload.size] = payload
        payload = padded
    return payload[: count * size].reshape(count, size)


def datagrams_sound(rows: Rows, length: int) -> npt.NDArray[np.bool_]:
    """Which datagrams of `length` bytes, in rows of frames, have the right checksum, or none."""
    none = ~rows[:, UDP + 6 : PAYLOAD].any(axis=1)
    pseudo = np.frombuffer(b"\0\x11" + length.to_bytes(2, "big"), np.uint8).reshape(1, -1)
    total = sums(rows[:, UDP : UDP + length]) + sums(rows[:, IP + 12 : UDP]) + sums(pseudo)
    good: npt.NDArray[np.bool_] = none | (total % np.uint32(0xFFFF) == 0)
    return good
