"""Offloads of an interface, switched off by SIOCETHTOOL in the namespace of the calling thread."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

SIOCETHTOOL = 0x8946  # linux/sockios.h
# linux/ethtool.h; without transmit checksums and scatter/gather there is no segmentation either
SET = {"tso": 0x1F, "gso": 0x24, "gro": 0x2C, "tx": 0x17, "sg": 0x19}


def offloads_off(ifname: str) -> None:
    """Switch offloads off, so that frames leave with finished checksums and within the MTU.

    Raises:
        OSError: the device refuses a setting.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for command in SET.values():
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP", ifname.encode(), ctypes.addressof(value))
            fcntl.ioctl(sock, SIOCETHTOOL, request)
