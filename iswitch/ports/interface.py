"""One network interface as a port of a switch: its AF_PACKET socket (packet(7))."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from contextlib import suppress

from iswitch.core.format.packets import MAX_SEGMENTS, Rows
from iswitch.ethernet.frame import (
    ETH,
    ETH_HEADER,
    HEAD,
    MAC_SIZE,
    NEEDS_CSUM,
    VLAN_TAG,
    VNET,
    Frames,
)
from iswitch.ports.kernel.interfaces import most_segments
from iswitch.ports.kernel.mmsg import Spacing, size_buffers

ETH_P_ALL = 3  # linux/if_ether.h
SOL_PACKET = 263
PACKET_ADD_MEMBERSHIP, PACKET_STATISTICS, PACKET_AUXDATA = 1, 6, 8  # linux/if_packet.h
PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 15, 23
PACKET_MR_PROMISC = 1
SIOCGIFFLAGS, SIOCGIFMTU = 0x8913, 0x8921  # linux/sockios.h
IFF_UP = 1

BUFFER = 32 << 20  # bytes of each socket's buffer; super-frames take more than their size
AUXDATA = struct.Struct("<16xI12xHH")  # after the header: tp_status .. tp_vlan_tci, tp_vlan_tpid
VLAN_VALID = 1 << 4  # in tp_status
WITHOUT_VLAN = bytes(status for status in range(256) if not status & VLAN_VALID)


class RawPortError(OSError):
    """Raised when a port cannot be opened; the message names the mend."""


class RawPort:
    """Receives all frames of one interface.

    Raises:
        RawPortError: the interface, a privilege or a kernel feature is missing.
    """

    def __init__(self, ifname: str, buffer: int = BUFFER) -> None:
        self.ifname = ifname
        self.index = interface(ifname)
        self.socket = packet_socket(buffer)
        try:
            self.mtu = self._ask(SIOCGIFMTU)
            self.most = MAX_SEGMENTS
            with suppress(OSError):  # no rtnetlink in this sandbox
                self.most = most_segments(self.index)
            self.spacing = Spacing(ETH + ETH_HEADER + self.mtu - HEAD, HEAD)
            self.socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            self.socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
            promiscuous = struct.pack("iHH8x", self.index, PACKET_MR_PROMISC, 0)
            self.socket.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, promiscuous)
            self.socket.bind((ifname, ETH_P_ALL))
        except OSError as error:
            self.socket.close()
            raise RawPortError(
                error.errno,
                f"{ifname} cannot be a switch port: {error.strerror}; raw ports "
                "need Linux 4.20 or newer and an Ethernet interface",
            ) from error

    def expect(self, frames: Frames) -> None:
        """Choose the spacing for the next frames by the lengths of these."""
        heads = frames.heads
        self.spacing.expect(frames.lengths, lambda i: int(VNET.unpack_from(heads[i])[3]))

    def dropped(self) -> int:
        """Return how many frames the kernel has dropped for lack of room since the last call."""
        packed = self.socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        return int.from_bytes(packed[4:], "little")

    def is_up(self) -> bool:
        """Return whether the interface is up."""
        return bool(self._ask(SIOCGIFFLAGS) & IFF_UP)

    def _ask(self, request: int) -> int:
        """Return the answer of netdevice(7) to a request about the interface."""
        answer = fcntl.ioctl(self.socket, request, struct.pack("16si20x", self.ifname.encode(), 0))
        found: int = struct.unpack_from("i", answer, 16)[0]
        return found


def interface(ifname: str) -> int:
    """Return the number of an interface in this thread's network namespace.

    Raises:
        RawPortError: there is no such interface; the message names the existing ones.
    """
    try:
        return socket.if_nametoindex(ifname)
    except OSError:
        known = ", ".join(name for _, name in socket.if_nameindex())
        raise RawPortError(
            errno.ENODEV, f"no interface {ifname!r} here; there is {known}"
        ) from None


def packet_socket(buffer: int) -> socket.socket:
    """Open an AF_PACKET socket that is bound to nothing and receives nothing yet.

    Raises:
        RawPortError: a privilege or a kernel feature is missing.
    """
    try:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except PermissionError as error:
        raise RawPortError(
            error.errno, "raw ports need CAP_NET_RAW and CAP_NET_ADMIN; run as root (sudo)"
        ) from error
    except OSError as error:
        raise RawPortError(
            error.errno,
            f"this kernel has no packet sockets ({error.strerror}); use one with CONFIG_PACKET",
        ) from error
    try:
        sock.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        size_buffers(sock, buffer)
    except OSError as error:
        sock.close()
        raise RawPortError(
            error.errno,
            f"this kernel's packet sockets lack PACKET_VNET_HDR ({error.strerror}); use Linux "
            "4.20 or newer",
        ) from error
    return sock


def tag(frames: Frames, control: Rows) -> Frames:
    """Put VLAN tags back into frames, as their control messages (n, size) tell."""
    rows = []
    for i in range(len(frames.lengths)):
        row = frames.row(i)
        status, tci, tpid = AUXDATA.unpack_from(control[i].tobytes())
        if status & VLAN_VALID:
            flags, gso_type, header, size, start, offset = VNET.unpack_from(row)
            header += VLAN_TAG if gso_type else 0
            start += VLAN_TAG if flags & NEEDS_CSUM else 0
            vnet = VNET.pack(flags, gso_type, header, size, start, offset)
            macs = ETH + 2 * MAC_SIZE
            row = vnet + row[ETH:macs] + struct.pack(">HH", tpid, tci) + row[macs:]
        rows.append(row)
    return Frames.of(frames.ingress, rows)
