"""Sends Ethernet frames, each gathered from a head and a body, many in one system call."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from iswitch.ports.kernel.mmsg import IOVEC, MMSGHDR, UIO_MAXIOV, Block, address_of, sendmmsg

SOCKADDR_LL = struct.Struct("<HHiHBB8s")  # linux/if_packet.h
FEW = 8  # frames for which Python is faster than NumPy


class FrameSender:
    """Sends frames, each gathered from a head and a body, on any interface, in one call.

    Added arrays are only pointed to: do not change or free them before `send` has returned.

    Args:
        most: frames in one call, at most.
        control: bytes of the control message that goes with each frame.
    """

    _PARTS = struct.Struct("<QQQQ")  # two iovecs
    _NAME = struct.Struct("<Q")

    def __init__(self, most: int = UIO_MAXIOV, control: int = 0) -> None:
        self.most = most
        self._iovecs = np.zeros((most, 2), IOVEC)
        self._headers = np.zeros(most, MMSGHDR)
        self._headers["iov"] = address_of(self._iovecs) + np.arange(most, dtype="<u8") * 32
        self._headers["iovlen"] = 2
        self._headers["namelen"] = SOCKADDR_LL.size
        self._headers["controllen"] = control
        self._control: Block | None = None  # the block to which the headers point
        self._address = address_of(self._headers)
        self._iovec_bytes = self._iovecs.view(np.uint8).reshape(-1).data
        self._header_bytes = self._headers.view(np.uint8).data
        self._steps = np.arange(most, dtype="<u8")
        self._added = 0

    def __len__(self) -> int:
        return self._added

    def add(
        self,
        name: int,
        heads: npt.NDArray[np.uint8] | None,
        rows: npt.NDArray[np.uint8],
        lengths: Sequence[int],
    ) -> None:
        """Add a frame for each row, at most `most` in all.

        Args:
            name: address in memory of the sockaddr_ll that names the interface.
            heads: first part of each frame, (n, size) bytes; None: there is none.
            rows: second part of each frame, (n, any) bytes.
            lengths: bytes of each second part.
        """
        i, n = self._added, len(lengths)
        self._added += n
        head, head_step, head_size = 0, 0, 0
        if heads is not None:
            head, head_step, head_size = address_of(heads), heads.strides[0], heads.shape[1]
        row, step = address_of(rows), rows.strides[0]
        if n > FEW:
            parts, steps = self._iovecs[i : i + n], self._steps[:n]
            parts["base"][:, 0] = head + steps * head_step
            parts["len"][:, 0] = head_size
            parts["base"][:, 1] = row + steps * step
            parts["len"][:, 1] = lengths
            self._headers["name"][i : i + n] = name
            return
        for at, length in enumerate(lengths, i):
            self._PARTS.pack_into(self._iovec_bytes, 32 * at, head, head_size, row, length)
            self._NAME.pack_into(self._header_bytes, MMSGHDR.itemsize * at, name)
            head += head_step
            row += step

    def send(
        self, fd: int, control: Block | None = None, keep: bool = False
    ) -> list[tuple[int, int]]:
        """Send the added frames; return (index, errno) of those that the kernel refused.

        Args:
            fd: the socket.
            control: the control message of each frame; None: the last call's, or none before one.
            keep: whether to keep the frames for the next call.
        """
        if control is not None and control is not self._control:
            self._headers["control"] = control.address
            self._control = control
        refused: list[tuple[int, int]] = []
        at, total = 0, self._added
        if not keep:
            self._added = 0
        while at < total:
            address = self._address + MMSGHDR.itemsize * at
            sent: int = sendmmsg(fd, address, total - at, socket.MSG_DONTWAIT)
            if sent < 0:
                error = ctypes.get_errno()
                if error == errno.EINTR:
                    continue
                refused.append((at, error))
                sent = 1
            at += sent
        return refused
