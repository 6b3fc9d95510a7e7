"""recvmmsg(2) and sendmmsg(2): many messages in one system call, described by NumPy arrays.

A message is a UDP datagram (udp.py) or an Ethernet frame (raw.py). The kernel's `mmsghdr` and
`iovec` are filled and read as structured arrays, so that a batch of single packets costs a
few array operations and no Python per packet.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MMSGHDR = np.dtype(
    {
        "names": [
            "name", "namelen", "iov", "iovlen", "control", "controllen", "flags", "len",
        ],
        "formats": ["<u8", "<u4", "<u8", "<u8", "<u8", "<u8", "<i4", "<u4"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56],
        "itemsize": 64,
    }
)  # fmt: skip
IOVEC = np.dtype([("base", "<u8"), ("len", "<u8")])
SOCKADDR_SIZE = 16
SOCKADDR_LL = struct.Struct("<HHiHBB8s")  # linux/if_packet.h; only the interface matters in sending
UIO_MAXIOV = 1024  # messages the kernel takes in one call

_libc = ctypes.CDLL(None, use_errno=True)
_recvmmsg = _libc.recvmmsg
_recvmmsg.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p]
_sendmmsg = _libc.sendmmsg
_sendmmsg.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int]


def address_of(array: npt.NDArray[Any]) -> int:
    """The address of an array's first byte."""
    return int(array.__array_interface__["data"][0])


class Receiver:
    """Slots for a batch of messages.

    `data` is (slots, slot_size) bytes. `meta` is (slots, SOCKADDR_SIZE + control_size) bytes: the
    sender's sockaddr_in and the control messages, zero beyond what the kernel wrote, so that
    packets of one kind from one sender have equal rows.

    Slots lie `slot_size` apart, which is no multiple of 4096: else their beginnings would fight
    for the same sets of the cache.

    Args:
        slots: the most messages of a batch.
        slot_size: bytes from one slot to the next.
        longest: bytes of the longest message; longer ones are cut off.
        lead: bytes left free at the beginning of each slot.
        control_size: room for control messages.
    """

    def __init__(
        self,
        slots: int,
        slot_size: int,
        longest: int = 65536,
        lead: int = 0,
        control_size: int = 96,
    ) -> None:
        assert slot_size >= lead + longest
        self.slots: npt.NDArray[np.uint8] = np.empty((slots, slot_size), np.uint8)
        self.data = self.slots[:, lead:]
        meta_size = SOCKADDR_SIZE + control_size
        self.meta: npt.NDArray[np.uint8] = np.zeros((slots, meta_size), np.uint8)
        self._iovecs = np.zeros(slots, IOVEC)
        self._iovecs["base"] = address_of(self.data) + np.arange(slots, dtype="<u8") * slot_size
        self._iovecs["len"] = longest
        self._headers = np.zeros(slots, MMSGHDR)
        meta = address_of(self.meta) + np.arange(slots, dtype="<u8") * meta_size
        self._headers["name"] = meta
        self._headers["control"] = meta + SOCKADDR_SIZE
        self._headers["iov"] = address_of(self._iovecs) + np.arange(slots, dtype="<u8") * 16
        self._headers["iovlen"] = 1
        self._headers["namelen"] = SOCKADDR_SIZE
        self._headers["controllen"] = control_size
        self._pristine = self._headers.tobytes()
        self._buffer = self._headers.view(np.uint8).data
        self._address = address_of(self._headers)
        self.lengths = self._headers["len"]

    def receive(self, fd: int, most: int) -> int:
        """Receive what is there, at most `most` messages, without waiting; returns how many.

        Raises:
            OSError: with the errno of recvmmsg, but for EAGAIN, which is 0 messages.
        """
        n: int = _recvmmsg(fd, self._address, most, socket.MSG_DONTWAIT, None)
        if n < 0:
            error = ctypes.get_errno()
            if error in (11, 4):  # EAGAIN, EINTR
                return 0
            raise OSError(error, os.strerror(error))
        return n

    def recycle(self, n: int) -> None:
        """Make the first `n` slots ready for the next call."""
        size = MMSGHDR.itemsize * n
        self._buffer[:size] = self._pristine[:size]
        self.meta[:n] = 0


class Block:
    """Bytes that stay where they are, for the kernel to read."""

    def __init__(self, content: bytes) -> None:
        self._array = np.frombuffer(content, np.uint8)
        self.address = address_of(self._array)
        self.size = len(content)


class Sender:
    """Descriptions of datagrams to send; they are filled in anew by each call."""

    def __init__(self, most: int = UIO_MAXIOV) -> None:
        self._iovecs = np.zeros(most, IOVEC)
        self._own_iovecs = address_of(self._iovecs) + np.arange(most, dtype="<u8") * 16
        self._headers = np.zeros(most, MMSGHDR)
        self._headers["iovlen"] = 1
        self._headers["namelen"] = SOCKADDR_SIZE
        self._address = address_of(self._headers)
        self._control: Block | None = None  # what the first `_controlled` headers point to
        self._controlled = 0
        self._shared = False  # whether all headers point to the first iovec
        self._headers["iov"] = self._own_iovecs
        self.most = most

    def send_rows(
        self,
        fd: int,
        rows: npt.NDArray[np.uint8],
        tail: int,
        name: int,
        control: Block,
    ) -> int:
        """Send each row as a datagram to one receiver; returns how many the kernel took.

        Args:
            fd: the socket.
            rows: (n, size), the last axis contiguous; the last row counts `tail` bytes.
            name: address of the receiver's sockaddr_in.
            control: control messages that go with every datagram.

        Raises:
            OSError: the kernel took none.
        """
        if self._shared:
            self._headers["iov"] = self._own_iovecs
            self._shared = False
        n = min(len(rows), self.most)
        self._iovecs["base"][:n] = address_of(rows) + np.arange(n, dtype="<u8") * rows.strides[0]
        self._iovecs["len"][:n] = rows.shape[1]
        if n == len(rows):
            self._iovecs["len"][n - 1] = tail
        self._headers["name"][:n] = name
        return self._send(fd, n, control)

    def send_to_all(
        self,
        fd: int,
        payload: npt.NDArray[np.uint8],
        names: npt.NDArray[np.uint64],
        control: Block,
    ) -> int:
        """Send one datagram (or super-datagram) to several receivers; as `send_rows`.

        Args:
            fd: the socket.
            payload: contiguous bytes.
            names: addresses of the receivers' sockaddr_in, at most `most` of them.
            control: control messages.

        Raises:
            OSError: the kernel took none.
        """
        if not self._shared:
            self._headers["iov"] = self._own_iovecs[0]
            self._shared = True
        self._iovecs[0] = (address_of(payload), payload.size)
        n = len(names)
        self._headers["name"][:n] = names
        return self._send(fd, n, control)

    def _send(self, fd: int, n: int, control: Block) -> int:
        if self._control is not control or n > self._controlled:
            self._headers["control"][:n] = control.address
            self._headers["controllen"][:n] = control.size
            self._control, self._controlled = control, n
        sent: int = _sendmmsg(fd, self._address, n, 0)
        if sent < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return sent


class FrameSender:
    """Frames to send, each gathered from a head and a body, on any interface, in one call.

    What is added is only pointed to: it has to stay as it is until `send` has returned.
    """

    _PARTS = struct.Struct("<QQQQ")  # two iovecs
    _NAME = struct.Struct("<Q")

    def __init__(self, most: int = UIO_MAXIOV) -> None:
        self.most = most
        self._iovecs = np.zeros((most, 2), IOVEC)
        self._headers = np.zeros(most, MMSGHDR)
        self._headers["iov"] = address_of(self._iovecs) + np.arange(most, dtype="<u8") * 32
        self._headers["iovlen"] = 2
        self._headers["namelen"] = SOCKADDR_LL.size
        self._address = address_of(self._headers)
        self._iovec_bytes = self._iovecs.view(np.uint8).reshape(-1).data
        self._header_bytes = self._headers.view(np.uint8).data
        self._added = 0

    def __len__(self) -> int:
        return self._added

    def add(self, name: int, head: tuple[int, int], body: int, length: int) -> None:
        """Add one frame; all are addresses in memory and sizes in bytes.

        Args:
            name: the sockaddr_ll that says the interface.
            head: address and size of the first part.
            body: address of the second part.
            length: its size.
        """
        i = self._added
        self._PARTS.pack_into(self._iovec_bytes, 32 * i, *head, body, length)
        self._NAME.pack_into(self._header_bytes, MMSGHDR.itemsize * i, name)
        self._added = i + 1

    def add_rows(
        self,
        name: int,
        heads: npt.NDArray[np.uint8] | None,
        rows: npt.NDArray[np.uint8],
        lengths: Sequence[int],
    ) -> None:
        """Add a frame for each row, at most `most` in all."""
        i, n = self._added, len(lengths)
        parts = self._iovecs[i : i + n]
        steps = np.arange(n, dtype="<u8")
        if heads is None:
            parts["len"][:, 0] = 0
        else:
            parts["base"][:, 0] = address_of(heads) + steps * heads.strides[0]
            parts["len"][:, 0] = heads.shape[1]
        parts["base"][:, 1] = address_of(rows) + steps * rows.strides[0]
        parts["len"][:, 1] = lengths
        self._headers["name"][i : i + n] = name
        self._added = i + n

    def send(self, fd: int) -> list[tuple[int, int]]:
        """Send all that was added; returns (which, errno) of those the kernel did not take."""
        refused: list[tuple[int, int]] = []
        at, total = 0, self._added
        self._added = 0
        while at < total:
            address = self._address + MMSGHDR.itemsize * at
            sent: int = _sendmmsg(fd, address, total - at, socket.MSG_DONTWAIT)
            if sent < 0:
                error = ctypes.get_errno()
                if error == errno.EINTR:
                    continue
                refused.append((at, error))
                sent = 1
            at += sent
        return refused
