"""Finds out from the beginning of a trace at which switch or host it was captured.

The first Join names the switch. A trace is of a host if all frames to the switch are outgoing, or
come from one worker although there are several. The parent is the switch that the switch joins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from iswitch.core.format.arbiter import CONTROL
from iswitch.core.format.keys import MAC_SIZE as SEAL
from iswitch.core.format.lines import line_of, port_of
from iswitch.core.format.packets import Address
from iswitch.core.format.pcapng import OUTSIDE, OWN
from iswitch.core.format.wire import (
    BITMAPS,
    IN_TURNS,
    Ack,
    Action,
    Control,
    Join,
    MemberType,
    Status,
    TreeJoin,
    WireError,
)
from iswitch.ethernet.frame import MAC_SIZE
from iswitch.outside import UsageError

from .batch import OUT
from .links import IP, TAGGED, UDP, LinkLayer, Packets
from .reader import Reader

FAR = 64 << 20  # bytes of a trace that are looked through
MOST_CONTROL = 20_000  # control packets that are looked at


class NothingToReplay(UsageError):
    """A trace lacks something that a replay needs; the message names the mend."""


class Spoken(NamedTuple):
    """A control packet of a trace."""

    source: tuple[str, int]
    target: tuple[str, int]
    mac: bytes  # of the target
    port: int
    direction: int
    keyed: bool
    packet: Control


@dataclass
class TraceSetting:
    """The switch or host at which a trace was captured.

    Attributes:
        switch: address and UDP port of the switch.
        mac: MAC of the switch.
        parent: the switch above, with the ingress port that leads to it; None: there is none.
        parent_mac: MAC to which packets for the parent are sent.
        lines: UDP ports from which it speaks to its parent, one for each job; none for a P4
            switch, which speaks from the port at which it listens.
        incarnation: incarnation that the switch named to its parent.
        host: whether the trace is of a single host, so that others' contributions are not in it.
        ordered: whether packets are in the order in which the switch handled them.
        directed: whether the trace tells incoming from outgoing frames at the switch.
        keyed: jobs whose control packets have a MAC.
        shared: whether members have the switch's own address, as they do on a loopback interface.
        parts: whether it passes on what finds no slot, in parts.
        turns: whether jobs take turns with its memory.
        slots: the slots of a job that it has told a worker; 0: none.
    """

    switch: tuple[str, int]
    mac: bytes
    parent: Address | None = None
    parent_mac: bytes = b""
    lines: set[int] = field(default_factory=set)
    incarnation: int = 0
    host: bool = False
    ordered: bool = False
    directed: bool = False
    keyed: set[int] = field(default_factory=set)
    shared: bool = False
    parts: bool = False
    turns: bool = False
    slots: int = 0


def survey(
    reader: Reader, switch: tuple[str, int] | None = None, host: bool | None = None
) -> TraceSetting:
    """Look through a trace.

    Args:
        reader: the trace.
        switch: address and UDP port of its switch; None: the first switch that a Join names.
        host: whether the trace is of a single host; None: find out.

    Raises:
        NothingToReplay: nobody joins such a switch.
    """
    spoken = list(_spoken(reader))
    joins = [s for s in spoken if isinstance(s.packet.value, Join)]
    if switch is None:
        if not joins:
            where = f"in the first {FAR >> 20} MiB" if len(reader) > FAR else "in it"
            broken = "".join(
                f" (it is broken at byte {offset:,}: {what})"
                for offset, what in reader.problems.first[:1]
            )
            raise NothingToReplay(
                f"{reader.path}: nobody joins a switch {where}{broken}; replay needs the trace "
                "from the beginning of the job, or at least one heartbeat of each worker"
            )
        switch = joins[0].target
    to_it = [s for s in joins if s.target == switch]
    if not to_it:
        others = ", ".join(sorted({"{}:{}".format(*s.target) for s in joins})) or "no other either"
        raise NothingToReplay(
            f"{reader.path}: nobody joins {switch[0]}:{switch[1]}; switches that are joined here: "
            f"{others}"
        )
    setting = TraceSetting(switch, to_it[0].mac)
    setting.keyed = {s.packet.job for s in to_it if s.keyed}
    setting.shared = any(s.source[0] == switch[0] for s in to_it)
    arrivals = [s for s in to_it if s.direction != OUT]
    # On a loopback interface all that is sent also comes in.
    setting.directed = not setting.shared and any(s.direction for s in arrivals)
    if host is None:
        of_switch = reader.application in (OWN, OUTSIDE) or any(_is_of(s, switch) for s in joins)
        host = not of_switch and _is_of_a_host(spoken, arrivals, switch)
    setting.host = host
    setting.ordered = reader.application == OWN and not setting.host
    upwards = [s for s in joins if _is_of(s, switch)]
    for s in upwards[:1]:
        setting.parent = Address(*s.target, s.port)
        setting.parent_mac = s.mac
        setting.incarnation = s.packet.request - 1
    setting.lines = {s.source[1] for s in upwards if s.source != switch}
    setting.parts = any(s.packet.value.sends_parts for s in upwards)  # type: ignore[union-attr]
    for s in spoken:
        ack = s.packet.value
        if s.source == switch and isinstance(ack, Ack) and ack.action == Action.JOIN:
            setting.turns |= bool(s.packet.status == Status.OK and ack.known & IN_TURNS)
            if s.packet.status == Status.SLOTS:
                setting.slots = ack.threshold
    return setting


def _is_of(s: Spoken, switch: tuple[str, int]) -> bool:
    """Tell whether a switch sent a Join to the one above, from its own port or a line."""
    host, port = switch
    own = (switch, (host, port_of(line_of(s.packet.job), port)))
    return s.source in own and s.packet.value.type == MemberType.SWITCH  # type: ignore[union-attr]


def _is_of_a_host(spoken: list[Spoken], arrivals: list[Spoken], switch: tuple[str, int]) -> bool:
    """Tell whether all workers that speak have one address, and the switch tells of more."""
    if not arrivals:
        return True
    workers = Counter(job for _, job in {(s.source, s.packet.job) for s in arrivals})
    if len({s.source[0] for s in arrivals}) > 1:
        return False
    for s in spoken:
        value = s.packet.value
        to_switch = s.target == switch
        if to_switch and isinstance(value, Join) and value.expected > workers[s.packet.job]:
            return True
        is_ack = s.source == switch and isinstance(value, Ack) and value.action == Action.JOIN
        if is_ack and isinstance(value, Ack) and value.contributors > workers[s.packet.job]:
            return True
    return False


def _spoken(reader: Reader) -> Iterator[Spoken]:
    """List the control packets at the beginning of a trace."""
    layer = LinkLayer(reader)
    count = 0
    for batch in reader.batches():
        packets = layer.read(batch)
        tos = packets.heads[:, IP + 1]
        which = np.flatnonzero((packets.kinds == TAGGED) & CONTROL[tos])
        for i in which.tolist():
            found = _read(reader, packets, i)
            if found is not None:
                yield found
                count += 1
        if count >= MOST_CONTROL or batch.at[-1] > FAR:
            return


def _read(reader: Reader, packets: Packets, i: int) -> Spoken | None:
    head = packets.heads[i].tobytes()
    size = int.from_bytes(head[UDP + 4 : UDP + 6], "big") - 8
    at = int(packets.payload[i])
    payload = reader.data[at : at + max(size, 0)].tobytes()
    parsed = parse(payload)
    if parsed is None:
        return None
    packet, keyed = parsed
    return Spoken(
        (_host(head[IP + 12 : IP + 16]), int.from_bytes(head[UDP : UDP + 2], "big")),
        (_host(head[IP + 16 : IP + 20]), int.from_bytes(head[UDP + 2 : UDP + 4], "big")),
        head[:MAC_SIZE],
        int(packets.ports[i]),
        int(packets.directions[i]),
        keyed,
        packet,
    )


CONTROL_BYTES = 8 + TreeJoin.FORMAT.size + BITMAPS[-1] + SEAL  # of the longest control packet


def parse(payload: bytes) -> tuple[Control, bool] | None:
    """Read a control packet; tell if bytes of a MAC's size follow. None: not a control packet."""
    try:
        return Control.parse(payload), False
    except WireError:
        try:
            return Control.parse(payload[:-SEAL]), True
        except WireError:
            return None


def _host(address: bytes) -> str:
    return ".".join(map(str, address))
