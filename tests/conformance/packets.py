"""Packets that a case waits for, and what it says of others."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable

from tests.conformance.wire import Ack, Action, Data, Packet, Relay, Status

Predicate = Callable[[Packet], bool]

SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104


class CaseFailure(AssertionError):
    """The switch did not do what the page promises."""


class CaseSkipped(Exception):
    """This machine, or the path to the switch, is not one to run the case on."""


def is_data(round_: int | None = None, index: int | None = None) -> Predicate:
    """A predicate: data, of this round and index where given."""
    return lambda packet: (
        isinstance(packet, Data)
        and round_ in (None, packet.round)
        and index in (None, packet.index)
    )


def is_ack(request: int) -> Predicate:
    """A predicate: the Ack that echoes this Request."""
    return lambda packet: isinstance(packet, Ack) and packet.request == request


def is_relay(action: Action | None = None) -> Predicate:
    """A predicate: relayed control, of this action where given."""
    return lambda packet: isinstance(packet, Relay) and action in (None, packet.action)


def require_offload(sock: socket.socket, option: int, value: int) -> None:
    """Set a UDP offload option, or skip the case where the kernel has none."""
    try:
        sock.setsockopt(SOL_UDP, option, value)
    except OSError as error:
        if error.errno not in (errno.ENOPROTOOPT, errno.EOPNOTSUPP):
            raise
        raise CaseSkipped(f"no UDP offload option {option} on this machine") from error


def ancillary_numbers(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int]:
    """ToS, and the length super-datagrams are cut into (0: an ordinary datagram)."""
    tos = size = 0
    for level, kind, value in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, socket.IP_TOS):
            tos = value[0]
        elif (level, kind) == (SOL_UDP, UDP_GRO):
            (size,) = struct.unpack("=i", value[:4])
    return tos, size


def expect_equal(got: object, want: object, what: str) -> None:
    """Raise `CaseFailure` unless both are equal."""
    if got != want:
        raise CaseFailure(f"{what}: expected {want!r}, got {got!r}")


def expect_status(ack: Ack, want: Status, what: str) -> None:
    """Raise `CaseFailure` unless the Ack has this status."""
    if ack.status != want:
        got = Status(ack.status).name
        raise CaseFailure(f"status of {what}: expected {want.name}, got {got} in {ack}")
