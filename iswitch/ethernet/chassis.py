"""A switch with ports, as a pure object: frames and the time go in, frames to send come out.

    frames --sort--> for this switch, tagged --> Switch --> Issuer --> headers and payload --> out
                 \\-> for this switch: ARP, ping --> answered
                  \\-> between others --> Bridge --> out as they came

SourceGuard stands at the door: it drops frames that claim the address of a member at another port.

A super-frame is never taken apart here: its packets are the rows of one array. It is cut only for a
port that does not take it whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from iswitch.core.format.counters import Counters
from iswitch.core.format.memo import Memo
from iswitch.core.format.packets import Burst, Rows, unpacked
from iswitch.core.format.wire import PORT
from iswitch.core.switch import Switch

from .bridge import Bridge, is_link_local
from .express import plain_data
from .flows import KnownFlow, datagrams_sound, headers_sound
from .forwarding import Forwarder, Sends, drop
from .frame import (
    ARP_REPLY,
    ARP_REQUEST,
    ETH,
    ETHERTYPE_ARP,
    ETHERTYPE_IP,
    HEAD,
    IP,
    MAC_SIZE,
    UDP,
    Frames,
    Transmission,
    arp,
    echo_reply,
    parse_arp,
    parse_ip,
)
from .guard import SourceGuard, Verdict
from .issuing import Issuer, Jack
from .sorting import (
    fixed,
    groups,
    is_whole,
    read_flow,
    read_lengths,
    without_options,
)

FLOWS = 4096  # remembered at most; strangers may keep coming with new addresses


class Chassis:
    """Plugs a `Switch` into Ethernet.

    Args:
        switch: the switch that adds up.
        address: IPv4 address of the switch, four bytes.
        mac: its MAC, six bytes.
        jacks: the abilities of each port; frames name a port by its index here.
        port: UDP port of the switch for tagged traffic.
        bridge: the learning bridge; None: a plain one.
        guard: judges the addresses in frames; None: one that protects the members' addresses.
    """

    forwarder: type[Forwarder] = Forwarder
    issuing: type[Issuer] = Issuer

    def __init__(
        self,
        switch: Switch,
        address: bytes,
        mac: bytes,
        jacks: Sequence[Jack],
        port: int = PORT,
        bridge: Bridge | None = None,
        guard: SourceGuard | None = None,
    ) -> None:
        self.switch = switch
        switch.record.listening = port
        self.counters: Counters = switch.counters
        self.address = address
        self.mac = mac
        self.jacks = list(jacks)
        self.port = port
        self.bridge = Bridge(len(self.jacks)) if bridge is None else bridge
        self._forward = self.forwarder(self.bridge, self.jacks, switch.counters)
        self.issuer = self.issuing(self.jacks, address, mac, port, switch.counters)
        self.guard = guard or SourceGuard(switch.record.sources, self.issuer.mac_of, address, mac)
        self._mac_row = np.frombuffer(mac, np.uint8)
        self._flows: Memo[tuple[int, bytes], KnownFlow | None] = Memo(FLOWS)

    def plug(self, jacks: Sequence[Jack]) -> None:
        """Add ports. The bridge forgets what it has learned."""
        self.jacks += jacks
        self.bridge.restart(len(self.jacks))

    def receive(self, frames: Frames, now: float) -> Iterable[Sends]:
        """Handle frames of one port; yield the frames to send in response, step by step.

        The caller must send each step before it asks for the next: the bytes lie in buffers of the
        switch and of `frames`. Frames for which memory is lacking are counted as lost.
        """
        came, offered = self.counters["rx_frames"], self._offered()
        try:
            plain = plain_data(self.flows(), frames)
            if plain is not None:
                return self._take(*plain, now)
        except MemoryError:
            self._give_up(frames, came, offered)
            return ()
        return self._step_by_step(frames, now)

    def _step_by_step(self, frames: Frames, now: float) -> Iterator[Sends]:
        """Handle frames of any kind until memory runs out; count the rest as lost."""
        came, offered = self.counters["rx_frames"], self._offered()
        try:
            for sends in self._sorted(frames, now):
                yield sends
                offered = self._offered()
        except MemoryError:
            self._give_up(frames, came, offered)
        except GeneratorExit:  # the caller could not send the last step
            self._give_up(frames, came, self._offered())
            raise

    def _offered(self) -> int:
        """Return the number of frames handed out for sending so far, without dropped ones."""
        n = self.counters
        given = n["tx_packets"] + n["copies"] + n["own_frames"]
        return given - n["unresolved"] - n["too_large"] - n["tx_failed"]

    def _give_up(self, frames: Frames | None, came: int, offered: int) -> None:
        """Count as lost the frames that were not handled, and the unsent ones of the last step.

        Args:
            frames: the frames that came; None: a timer was handled.
            came: `rx_frames` before they came.
            offered: `_offered()` before the last step.
        """
        self.counters["given_up"] += 1
        self.counters["tx_failed"] += self._offered() - offered
        if frames is not None:
            handled = self.counters["rx_frames"] - came
            self.counters["rx_no_memory"] += max(0, self._count(frames) - handled)

    def _count(self, frames: Frames) -> int:
        """Return the number of frames on the wire; the number of rows if memory is lacking."""
        try:
            measured = (self._forward.measure(frames, i)[0] for i in range(len(frames.lengths)))
            return sum(max(1, count) for count in measured)
        except MemoryError:
            return len(frames.lengths)

    def _take(self, known: KnownFlow, rows: Rows, now: float) -> Iterable[Sends]:
        """Hand undamaged packets of one flow to the switch.

        Args:
            known: the flow, and the layout of its last datagram.
            rows: packets, (n, size) bytes; the last holds `known.tail` bytes.
            now: the time, in seconds.
        """
        flow, packets = known.flow, len(rows)
        ingress = flow.peer.ingress
        self._learn(flow.peer.host, ingress, flow.mac)
        self.bridge.learn(flow.mac, ingress, now)
        self.counters["rx_frames"] += packets
        sends = self.switch.receive(Burst(flow.peer, flow.tos, rows, known.tail), now)
        return (self.issuer.issue(sends, now),) if sends else ()

    def _sorted(self, frames: Frames, now: float) -> Iterator[Sends]:
        """Handle frames of any kind, in groups of like frames."""
        for group in groups(frames, self._mac_row):
            self.flows()
            if group.lengths[0] >= HEAD:
                head = group.heads[0].tobytes()
                if head[ETH : ETH + MAC_SIZE] == self.mac and (found := self._flow(group, head)):
                    if group.lengths[-1] != group.lengths[0]:
                        self._flow(group, group.heads[-1].tobytes())  # also remember the last
                    yield from self._tagged(found, group, head, now)
                    continue
            yield self._untagged(group, now)

    def deadline(self) -> float | None:
        """Return the time at which to call `handle_timer`, in seconds; None: not at all."""
        return self.switch.deadline()

    def handle_timer(self, now: float) -> Iterator[Sends]:
        """Do the work that is due now; yield the frames to send."""
        offered = self._offered()
        try:
            sends = self.issuer.issue(self.switch.handle_timer(now), now)
        except MemoryError:
            self._give_up(None, 0, offered)
        else:
            yield sends

    # Tagged traffic

    def flows(self) -> Memo[tuple[int, bytes], KnownFlow | None]:
        """Return the known flows; a new object if members or MACs have changed."""
        if self.guard.has_changed():
            self._flows = Memo(FLOWS)
        return self._flows

    def _flow(self, group: Frames, head: bytes) -> KnownFlow | None:
        """Return the flow and layout of a head; None: not iSwitch traffic for this switch."""
        key = (group.ingress, fixed(head))
        try:
            return self._flows[key]
        except KeyError:
            flow = read_flow(head, group.ingress, self.address, self.port)
            found = None
            if flow is not None:
                ip = head[IP + 12 : IP + 16]
                spoofed = self.guard.is_spoofed(flow.mac, ip, group.ingress)
                found = KnownFlow.of(flow._replace(spoofed=spoofed), read_lengths(head))
            return self._flows.keep(key, found)

    def _tagged(self, known: KnownFlow, group: Frames, head: bytes, now: float) -> Iterator[Sends]:
        """Handle datagrams of one flow for the switch, all of one length but the last."""
        ingress, heads, bodies, lengths = group
        n = len(lengths)
        flow, found, size, step, count, *_ = known
        if not is_whole(found, lengths[0]):
            self._drop("bad_frame", n)
            return
        last = size - (lengths[0] - lengths[-1])
        missing = count - (-(-last // step) if step else 1)  # packets that the last datagram lacks
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
        """Handle frames of one type from one station to another, or a single frame."""
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
        """Drop the frames that claim the address of a member elsewhere; handle the others.

        Args:
            group: frames from one station to another.
            spoofed: true for the frames to drop, (n,) booleans.
            now: the time, in seconds.
        """
        sends: Sends = []
        for i, bad in enumerate(spoofed.tolist()):
            one = group.part(i, i + 1)
            if bad:
                self._drop("spoofed", self._forward.measure(one, 0)[0] or 1)
            else:
                sends += self._untagged(one, now)
        return sends

    def _local(self, ingress: int, row: bytes, now: float) -> Sends:
        """Handle a frame for the switch that is not plain iSwitch traffic."""
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
        """Answer or learn from an ARP packet; None: it is not for the switch's address."""
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

    def _drop(self, reason: str, frames: int) -> Sends:
        return drop(self.counters, reason, frames)
