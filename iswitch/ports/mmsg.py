"""recvmmsg(2) and sendmmsg(2): many datagrams in one system call, described by NumPy arrays.

For Ethernet frames there is frames.py. The kernel's `struct mmsghdr` and `struct iovec` are filled
and read as structured arrays, so that a batch of single packets costs a few array operations and no
Python per packet.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
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
UIO_MAXIOV = 1024  # messages the kernel takes in one call

_libc = ctypes.CDLL(None, use_errno=True)
_recvmmsg = _libc.recvmmsg
_recvmmsg.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p]
sendmmsg = _libc.sendmmsg
sendmmsg.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int]


def address_of(array: npt.NDArray[Any]) -> int:
    """The address of an array's first byte."""
    return int(array.__array_interface__["data"][0])


def receive(fd: int, headers: int, most: int) -> int:
    """Receive into the slots that the headers at this address describe; as `Receiver.receive`."""
    n: int = _recvmmsg(fd, headers, most, socket.MSG_DONTWAIT, None)
    if n < 0:
        error = ctypes.get_errno()
        if error in (errno.EAGAIN, errno.EINTR):
            return 0
        raise OSError(error, os.strerror(error))
    return n


class Receiver:
    """Slots for a batch of datagrams.

    `data` is (slots, slot_size) bytes. `meta` is (slots, META) bytes: the sender's sockaddr_in
    and the control messages, zero beyond what the kernel wrote, so that packets of one kind from
    one sender have equal rows.

    Slots lie `slot_size` apart, which is no multiple of 4096: else their beginnings would fight
    for the same sets of the cache.
    """

    CONTROL_SIZE = 112
    META = SOCKADDR_SIZE + CONTROL_SIZE

    def __init__(self, slots: int, slot_size: int) -> None:
        assert slot_size >= 65536
        self.data: npt.NDArray[np.uint8] = np.empty((slots, slot_size), np.uint8)
        self.meta: npt.NDArray[np.uint8] = np.zeros((slots, self.META), np.uint8)
        self._iovecs = np.zeros(slots, IOVEC)
        self._iovecs["base"] = address_of(self.data) + np.arange(slots, dtype="<u8") * slot_size
        self._iovecs["len"] = 65536  # no datagram is larger
        self._headers = np.zeros(slots, MMSGHDR)
        meta = address_of(self.meta) + np.arange(slots, dtype="<u8") * self.META
        self._headers["name"] = meta
        self._headers["control"] = meta + SOCKADDR_SIZE
        self._headers["iov"] = address_of(self._iovecs) + np.arange(slots, dtype="<u8") * 16
        self._headers["iovlen"] = 1
        self._headers["namelen"] = SOCKADDR_SIZE
        self._headers["controllen"] = self.CONTROL_SIZE
        self._pristine = self._headers.tobytes()
        self._buffer = self._headers.view(np.uint8).data
        self._address = address_of(self._headers)
        self.lengths = self._headers["len"]

    def receive(self, fd: int, most: int) -> int:
        """Receive what is there, at most `most` datagrams, without waiting; returns how many.

        Raises:
            OSError: with the errno of recvmmsg, but for EAGAIN, which is 0 datagrams.
        """
        return receive(fd, self._address, most)

    def recycle(self, n: int) -> None:
        """Make the first `n` slots ready for the next call."""
        size = MMSGHDR.itemsize * n
        self._buffer[:size] = self._pristine[:size]
        self.meta[:n] = 0


class Block:
    """Bytes that stay where they are, for the kernel to read."""

    def __init__(self, content: bytes) -> None:
        self.content = content
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
        sent: int = sendmmsg(fd, self._address, n, 0)
        if sent < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return sent
