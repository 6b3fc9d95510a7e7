"""Layers for scapy that build and dissect every packet of the protocol (extra: scapy).

Importing this binds them to UDP's port 26963 and the two ToS values. A control packet is
`ISwitchControl`, the layer of its value, and in a keyed job `ISwitchMAC`; a data packet is
`ISwitchData` with a NumPy array, several in one super-datagram are `ISwitchSuper`. Malformed
packets raise nothing: `fault` says what is wrong. docs/dissect.md.
"""

from __future__ import annotations

from typing import Any, ClassVar

from iswitch.outside import extra

try:
    from scapy.config import conf
except ImportError as error:
    raise ImportError(
        f"iswitch.dissect.scapy needs scapy: {extra('scapy')}",
        name="scapy",
    ) from error
from scapy.fields import (
    StrField,
    XStrFixedLenField,
)
from scapy.layers.inet import IP, UDP
from scapy.packet import Packet, bind_bottom_up, bind_layers, bind_top_down

from iswitch.core.format import wire
from iswitch.core.format.keys import MAC_SIZE, Key
from iswitch.core.format.wire import SEG_SIZE, Action, Control

from . import faults, fields, layer_fields
from .layer_fields import (
    ElementsField,
    EntriesField,
    PacketsField,
    RanksField,
    field_of,
    fields_of,
    in_a_line,
    is_truncated,
    known_of,
    packets_in,
    ranks_in,
    udp_of,
)

ISwitchAwaited = layer_fields.ISwitchAwaited
ISwitchPresent = layer_fields.ISwitchPresent
settings = layer_fields.settings
capture = layer_fields.capture


def bind(port: int) -> None:
    """Dissect packets from and to this UDP port as iSwitch's if they have one of the ToS values."""
    settings.jobs.ports.add(port)
    bind_bottom_up(UDP, ISwitch, dport=port)
    bind_bottom_up(UDP, ISwitch, sport=port)
    for layer in (ISwitchControl, ISwitchData, ISwitchSuper):
        bind_top_down(UDP, layer, dport=port)


def sealed(packet: Packet, key: bytes) -> Packet:
    """Add the MAC to a control packet of a keyed job."""
    mac = Key(key).mac(bytes(packet[ISwitchControl]))
    return packet / ISwitchMAC(mac=mac)


class ISwitch(Packet):
    """The payload of a datagram from or to a switch; its ToS decides the layer that it becomes."""

    @classmethod
    def dispatch_hook(
        cls, _pkt: bytes = b"", *_: Any, _underlayer: Packet | None = None, **__: Any
    ) -> type[Packet]:
        """Return the layer for a UDP payload; scapy's raw layer if it is no iSwitch traffic."""
        udp, ip = _underlayer, getattr(_underlayer, "underlayer", None)
        if udp is None or not isinstance(ip, IP) or ip.flags.MF or ip.frag:
            return conf.raw_layer
        tos = ip.tos & wire.TOS_MASK
        if tos not in (wire.TOS_CONTROL, wire.TOS_DATA):
            return conf.raw_layer
        if len(_pkt) < SEG_SIZE:
            return ISwitchMalformed
        if tos == wire.TOS_CONTROL:
            return ISwitchControl
        return ISwitchSuper if len(packets_in(udp, _pkt)) > 1 else ISwitchData


class _Tagged(Packet):
    """A layer directly on UDP, which sets the ToS of the IP layer below."""

    TOS: int

    def add_underlayer(self, underlayer: Packet) -> None:
        """Put this layer on UDP; set the ToS of an IP layer below unless it was set."""
        super().add_underlayer(underlayer)
        ip = underlayer.underlayer
        if isinstance(ip, IP):
            ip.fields.setdefault("tos", self.TOS)

    @property
    def fault(self) -> str | None:
        """Name what is wrong with this packet; None: nothing, as far as its job is known."""
        udp, payload = udp_of(self), bytes(self)
        if self.parent is None and is_truncated(udp, payload):
            return faults.TRUNCATED
        return self._fault(payload)

    def _fault(self, payload: bytes) -> str | None:
        raise NotImplementedError

    def post_dissection(self, _: Packet) -> None:
        """Append the fault to the layer's name."""
        if self.underlayer is not None and self.fault:
            self.name = f"{self.name}, {in_a_line(self.fault)}"


class ISwitchMalformed(Packet):
    """Bytes that are not, or not wholly, a packet of the protocol."""

    name = "iSwitch malformed"
    fields_desc: ClassVar[list[Any]] = [StrField("load", b"")]

    @property
    def fault(self) -> str | None:
        """Name what is wrong."""
        below = self.underlayer
        while isinstance(below, _Value | ISwitchMAC):
            below = below.underlayer
        if isinstance(below, ISwitchControl):
            return below.fault
        return faults.TRUNCATED if is_truncated(udp_of(self), self.load) else faults.SHORT

    def mysummary(self) -> Any:  # with what below it is shown, too
        """Summarise the layer in one line."""
        alone = isinstance(self.underlayer, UDP)
        text = in_a_line(self.fault) if alone else f"{len(self.load)} bytes"
        return text, [ISwitchControl, UDP]


# Control


class ISwitchControl(_Tagged):
    """The first eight bytes of a control packet; its value is the next layer."""

    name = "iSwitch control"
    fields_desc: ClassVar[list[Any]] = [field_of(field) for field in fields.HEADER]
    TOS = wire.TOS_CONTROL

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """Return the layer of the value, if the action has a value of this length."""
        if self.action not in list(Action):
            return ISwitchMalformed
        for kind in wire.VALUES[Action(self.action)]:
            sizes = len(payload), len(payload) - MAC_SIZE
            if any(kind.takes(size) if kind else size == 0 for size in sizes):
                if kind is None:
                    return ISwitchMAC
                return LONGER.get(kind, VALUES[self.action])
        return ISwitchMalformed

    def _fault(self, payload: bytes) -> str | None:
        return faults.of_control(payload)

    def post_dissection(self, pkt: Packet) -> None:
        """Learn the job and the layout of later data packets, which name neither."""
        super().post_dissection(pkt)
        udp = self.underlayer
        ip = udp and udp.underlayer
        if udp is not None and isinstance(ip, IP) and not self.fault:
            packet = Control.parse(faults.without_mac(bytes(self)))
            settings.jobs.learn((ip.src, udp.sport), (ip.dst, udp.dport), packet)

    def answers(self, other: Packet) -> bool:
        """Return whether this is the Ack to a request; called by scapy's `sr1`."""
        return (
            isinstance(other, ISwitchControl)
            and isinstance(self.payload, ISwitchAck)
            and (self.job, self.request) == (other.job, other.request)
            and self.payload.action == other.action
        )

    def mysummary(self) -> Any:  # with what below it is shown, too
        """Summarise the layer in one line."""
        status = " status %status%" * (self.action == Action.ACK)
        text = self.sprintf("iSwitch %action% job %job% request %request%" + status)
        return text + (f", {in_a_line(self.fault)}" if self.fault else ""), [UDP]


class _Value(Packet):
    """The layer that follows the header of a control packet."""

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """Return the layer of the MAC in a keyed job's packet."""
        return ISwitchMAC if len(payload) == MAC_SIZE else ISwitchMalformed

    def mysummary(self) -> Any:  # with what below it is shown, too
        """Summarise the fields that are not zero."""
        names = [f.name for f in self.fields_desc if _is_not_zero(self.getfieldval(f.name))]
        text = " ".join(f"{name} %{name}%" for name in names) or "all zero"
        return self.sprintf(text), [ISwitchControl]


def _is_not_zero(value: Any) -> bool:
    return any(value) if isinstance(value, bytes) else bool(value)


class ISwitchAck(_Value):
    """The value of an Ack."""

    name = "iSwitch Ack"
    fields_desc: ClassVar[list[Any]] = fields_of(wire.Ack)

    @property
    def missing(self) -> list[int]:
        """Return the seats whose contributions are missing, in the answer to a Help."""
        counts = self.known == wire.COUNTED
        return [] if counts else ranks_in(self.threshold << 32 | self.contributors)


def _of_value(name: str, title: str, kind: fields.Kind, *more: Any) -> type[Packet]:
    """Make the layer of a value.

    Args:
        name: name of the class.
        title: name of such packets, to follow "iSwitch".
        kind: the value, whose fields come first.
        more: further fields, behind the value's.
    """
    members = {"name": f"iSwitch {title}", "fields_desc": [*fields_of(kind), *more]}
    base = ISwitchAck if issubclass(kind, wire.Ack) else _Value
    return type(name, (base,), {**members, "__module__": __name__})


ISwitchJoin = _of_value("ISwitchJoin", "Join", wire.Join)
ISwitchSwitchJoin = _of_value("ISwitchSwitchJoin", "Join of a switch", wire.SwitchJoin)
ISwitchRankJoin = _of_value("ISwitchRankJoin", "Join with a rank", wire.RankJoin)
ISwitchTreeJoin = _of_value(
    "ISwitchTreeJoin", "Join of a switch, with ranks", wire.TreeJoin, RanksField("ranks", 0)
)
ISwitchReset = _of_value("ISwitchReset", "Reset", wire.Round)
ISwitchSetH = _of_value("ISwitchSetH", "SetH", wire.Threshold)
ISwitchFBcast = _of_value("ISwitchFBcast", "FBcast", wire.Segments)
ISwitchHelp = _of_value("ISwitchHelp", "Help", wire.Segments)
ISwitchWho = _of_value("ISwitchWho", "Help that asks for whom", wire.Who)
ISwitchShow = _of_value("ISwitchShow", "Show", wire.Show)
ISwitchAckWho = _of_value(
    "ISwitchAckWho", "Ack that names workers", wire.AckWho,
    EntriesField("awaited", [], ISwitchAwaited),
)  # fmt: skip
ISwitchAckJob = _of_value(
    "ISwitchAckJob", "Ack that shows a job", wire.AckJob,
    EntriesField("members", [], ISwitchPresent),
)  # fmt: skip
ISwitchAckRanks = _of_value(
    "ISwitchAckRanks", "Ack with ranks", wire.AckRanks, RanksField("ranks", 0)
)


class ISwitchMAC(Packet):
    """The last 16 bytes of a control packet of a keyed job; `sealed` makes them."""

    name = "iSwitch MAC"
    fields_desc: ClassVar[list[Any]] = [XStrFixedLenField("mac", bytes(MAC_SIZE), MAC_SIZE)]

    def mysummary(self) -> Any:  # with what below it is shown, too
        """Summarise the layer in one line."""
        return "MAC", [ISwitchControl, *VALUES.values(), *LONGER.values()]


VALUES: dict[int, type[Packet]] = {
    Action.JOIN: ISwitchJoin,
    Action.RESET: ISwitchReset,
    Action.SETH: ISwitchSetH,
    Action.FBCAST: ISwitchFBcast,
    Action.HELP: ISwitchHelp,
    Action.ACK: ISwitchAck,
    Action.SHOW: ISwitchShow,
}
LONGER: dict[type, type[Packet]] = {  # other values of the same actions
    wire.SwitchJoin: ISwitchSwitchJoin,
    wire.RankJoin: ISwitchRankJoin,
    wire.TreeJoin: ISwitchTreeJoin,
    wire.Who: ISwitchWho,
    wire.AckWho: ISwitchAckWho,
    wire.AckRanks: ISwitchAckRanks,
    wire.AckJob: ISwitchAckJob,
}


# Data


class ISwitchData(_Tagged):
    """A data packet: a contribution, or the aggregate."""

    name = "iSwitch data"
    fields_desc: ClassVar[list[Any]] = [*map(field_of, fields.SEG), ElementsField("elements")]
    TOS = wire.TOS_DATA

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ISwitchData) and bytes(self) == bytes(other)

    __hash__ = None  # type: ignore[assignment]  # as that of every Packet

    def _fault(self, payload: bytes) -> str | None:
        known, size = known_of(self), len(payload) - SEG_SIZE
        shape, parts = (known.shape, known.parts) if known else (None, False)
        return faults.of_data(self.index, size, shape, settings.dtype, parts)

    def mysummary(self) -> Any:  # with what below it is shown, too
        """Summarise the layer in one line."""
        known = known_of(self)
        what = "data" if known is None else "contribution" if known.to_switch else "aggregate"
        fault = f", {in_a_line(self.fault)}" if self.fault else ""
        return self.sprintf(f"iSwitch {what} round %round% index %index%") + fault, [UDP]


class ISwitchSuper(_Tagged):
    """A super-datagram: several data packets, which are packets of their own on the wire."""

    name = "iSwitch super-datagram"
    fields_desc: ClassVar[list[Any]] = [PacketsField("packets", [], ISwitchData)]
    TOS = wire.TOS_DATA

    def _fault(self, _: bytes) -> str | None:
        return next((packet.fault for packet in self.packets if packet.fault), None)

    def mysummary(self) -> Any:  # with what below it is shown, too
        """Summarise the layer in one line."""
        return f"iSwitch super-datagram of {len(self.packets)} packets", [UDP]


for _action, _layer in VALUES.items():
    bind_layers(ISwitchControl, _layer, action=_action)
bind_layers(ISwitchControl, ISwitchSwitchJoin, action=Action.JOIN)
bind_layers(ISwitchControl, ISwitchWho, action=Action.HELP)
bind_layers(ISwitchControl, ISwitchAckWho, action=Action.ACK)
bind(wire.PORT)
