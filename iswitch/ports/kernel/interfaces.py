"""The largest super-datagrams of an interface, as rtnetlink(7) and netdevice(7) tell.

A device accepts super-datagrams of at most N segments (`ip link set DEV gso_max_segs N`). TCP obeys
this limit; UDP does not by itself: a larger super-datagram is cut into single packets before the
device. So an operator who limits a slow link's rate in the kernel can also limit the time that one
super-datagram occupies the link.
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
    """Return the number of packets in the largest super-datagram that an interface accepts whole.

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
    """Return `most_segments` of the interface with this IPv4 address; MAX_SEGMENTS if none has it.

    Raises:
        OSError: the kernel does not tell.
    """
    index = interface_of(host)
    return MAX_SEGMENTS if index is None else most_segments(index)


def interface_of(host: str) -> int | None:
    """Return the number of the interface whose first IPv4 address this is; None: there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for index, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock, SIOCGIFADDR, struct.pack("16s24x", name.encode()))
            except OSError:  # it has none, or is gone
                continue
            if socket.inet_ntoa(answer[20:24]) == host:
                return index
    return None
