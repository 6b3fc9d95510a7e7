"""The largest super-datagrams of an interface, as rtnetlink(7) and netdevice(7) tell it.

A device takes packets of segmentation offload with so many segments at most (`ip link set DEV
gso_max_segs N`). TCP keeps to it, UDP does not by itself: what is larger is cut into single packets
before the device, and all that comes after handles each by itself. So whoever keeps a slow link's
rate in the kernel, and lets pass whole only what takes the link a millisecond, can say so there.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct

from iswitch.core.format.packets import MAX_SEGMENTS

RTM_GETLINK = 18  # linux/rtnetlink.h
NLM_F_REQUEST = 1  # linux/netlink.h
NLMSG_ERROR = 2
IFLA_GSO_MAX_SEGS = 40  # linux/if_link.h
HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, number, port
LINK = struct.Struct("=BxHiII")  # struct ifinfomsg; the third is the interface
ATTRIBUTE = struct.Struct("=HH")  # length, type
NLA_TYPE = 0x3FFF
ANSWER = 1 << 16  # bytes
SIOCGIFADDR = 0x8915  # linux/sockios.h


def most_segments(index: int) -> int:
    """Find how many packets a super-datagram may have for an interface to take it whole.

    Raises:
        OSError: there is no such interface.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        length = HEADER.size + LINK.size
        header = HEADER.pack(length, RTM_GETLINK, NLM_F_REQUEST, 0, 0)
        sock.send(header + LINK.pack(socket.AF_UNSPEC, 0, index, 0, 0))
        answer = sock.recv(ANSWER)
    kind = HEADER.unpack_from(answer)[1]
    if kind == NLMSG_ERROR:
        (code,) = struct.unpack_from("=i", answer, HEADER.size)
        raise OSError(-code, f"interface {index}: {errno.errorcode.get(-code, code)}")
    at = length
    while at + ATTRIBUTE.size <= len(answer):
        size, kind = ATTRIBUTE.unpack_from(answer, at)
        if kind & NLA_TYPE == IFLA_GSO_MAX_SEGS:
            most: int = struct.unpack_from("=I", answer, at + ATTRIBUTE.size)[0]
            return max(1, min(most, MAX_SEGMENTS))
        at += max(size + 3 & ~3, ATTRIBUTE.size)
    return MAX_SEGMENTS  # an old kernel


def most_segments_at(host: str) -> int:
    """Find it for the interface that has this address; if none has, as much as any takes.

    Raises:
        OSError: the kernel does not tell.
    """
    index = interface_of(host)
    return MAX_SEGMENTS if index is None else most_segments(index)


def interface_of(host: str) -> int | None:
    """Find the interface that has this IPv4 address as its first; None: there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for index, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock, SIOCGIFADDR, struct.pack("16s24x", name.encode()))
            except OSError:  # it has none, or is gone
                continue
            if socket.inet_ntoa(answer[20:24]) == host:
                return index
    return None
