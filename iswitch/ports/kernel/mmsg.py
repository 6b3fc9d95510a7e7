"""recvmmsg(2) and sendmmsg(2): many datagrams in one system call, described by NumPy arrays.

The kernel's `struct mmsghdr` and `struct iovec` are filled and read as structured arrays, so that a
batch of single packets costs a few array operations and no Python per packet.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.memo import Memo
from iswitch.core.format.packets import Rows

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
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33

JUMBO = 9728  # longer bodies are of super-datagrams
LONGEST = 65536 + 128  # a super-frame with its headers
MOST_SPACING = LONGEST + JUMBO
HEAD_ROOM = 64  # from one head to the next
BATCH = 128  # datagrams in a call while they come one by one
BATCH_SUPER = 16  # while they come as super-datagrams: a megabyte, which a cache holds
LAYOUTS = 16  # that are kept

_libc = ctypes.CDLL(None, use_errno=True)
_recvmmsg = _libc.recvmmsg
_recvmmsg.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p]
sendmmsg = _libc.sendmmsg
sendmmsg.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int]


def address_of(array: npt.NDArray[Any]) -> int:
    """Return the address of an array's first byte."""
    try:
        return address_of_writable(array)
    except (TypeError, ValueError, BufferError):  # read-only, say: that takes five times as long
        return int(array.__array_interface__["data"][0])


def address_of_writable(array: npt.NDArray[Any]) -> int:
    """Return the address of the first byte of an array that is writable and contiguous.

    Raises:
        TypeError, ValueError, BufferError: it is not, or of a type that has no buffers.
    """
    return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]


class _Layout(NamedTuple):
    """Slots for datagrams whose bodies lie at one distance from each other."""

    most: int
    bodies: Rows
    lengths: npt.NDArray[np.uint32]
    address: int
    headers: memoryview
    pristine: bytes
    iovecs: npt.NDArray[np.void]  # kept, since headers point to them


class Receiver:
    """Receives batches of datagrams, or of frames, into slots of memory.

    In each call the caller chooses `spacing`, the distance of the bodies (`Spacing`). So the bodies
    of equally long super-datagrams make one piece of memory, and so do their packets. The bytes of
    a datagram beyond `spacing` go to a place of their own, and cost a copy.

    `heads`, (BATCH, head) bytes, has the first bytes of each datagram. `meta`, (BATCH, name +
    control) bytes, has the sender's address and the control messages, and zeros behind them, so
    that packets of one kind from one sender have equal rows.

    Args:
        head: bytes to keep apart from the body; a multiple of 4.
        name: room for a sender's address.
        control: room for control messages.
    """

    def __init__(self, head: int = 0, name: int = 0, control: int = 0) -> None:
        self._heads = np.zeros((BATCH, HEAD_ROOM), np.uint8)
        self._bodies = np.empty(max(BATCH * JUMBO, BATCH_SUPER * MOST_SPACING), np.uint8)
        self._rests = np.empty((BATCH, LONGEST), np.uint8)
        self.head = head
        self.heads = self._heads[:, :head]
        self.meta: Rows = np.zeros((BATCH, name + control), np.uint8)
        self._name = name
        self._layouts: Memo[int, _Layout] = Memo(LAYOUTS)
        self._used: tuple[_Layout, int] | None = None

    def receive(self, fd: int, spacing: int, most: int = BATCH) -> tuple[Rows, list[int]]:
        """Receive datagrams that have come, without waiting.

        Args:
            fd: the socket.
            spacing: room for a body; more than JUMBO: super-datagrams are expected.
            most: the largest number to receive.

        Returns:
            The bodies, (n, any) bytes, and the length of each datagram with its head. They are
            valid until the next call. The first n rows of `heads` and `meta` belong to them.

        Raises:
            OSError: recvmmsg failed; not for EAGAIN, which means no datagrams.
        """
        if self._used is not None:
            used, n = self._used
            size = MMSGHDR.itemsize * n
            used.headers[:size] = used.pristine[:size]
            self.meta[:n] = 0
            self._used = None
        layout = self._layouts.get(spacing) or self._lay_out(spacing)
        n = _recvmmsg(fd, layout.address, min(layout.most, most), socket.MSG_DONTWAIT, None)
        if n < 0:
            error = ctypes.get_errno()
            if error not in (errno.EAGAIN, errno.EINTR):
                raise OSError(error, os.strerror(error))
            n = 0
        bodies = layout.bodies[:n]
        lengths: list[int] = layout.lengths[:n].tolist()
        if n:
            self._used = layout, n
            beyond = max(lengths) - self.head - spacing
            if beyond > 0:
                bodies = np.concatenate((bodies, self._rests[:n, :beyond]), axis=1)
        return bodies, lengths

    def _lay_out(self, spacing: int) -> _Layout:
        most = BATCH if spacing <= JUMBO else BATCH_SUPER
        steps = np.arange(most, dtype="<u8")
        iovecs = np.zeros((most, 3), IOVEC)
        places = (self._heads, HEAD_ROOM, self.head), (self._bodies, spacing, spacing)
        rest = (self._rests, LONGEST, max(LONGEST - spacing, 0))
        for i, (array, stride, length) in enumerate((*places, rest)):
            iovecs["base"][:, i] = address_of(array) + steps * stride
            iovecs["len"][:, i] = length
        headers = np.zeros(most, MMSGHDR)
        headers["iov"] = address_of(iovecs) + steps * iovecs.strides[0]
        headers["iovlen"] = 3
        meta = address_of(self.meta) + steps * self.meta.shape[1]
        headers["name"] = meta
        headers["namelen"] = self._name
        headers["control"] = meta + np.uint64(self._name)
        headers["controllen"] = self.meta.shape[1] - self._name
        bodies = self._bodies[: most * spacing].reshape(most, spacing)
        view = headers.view(np.uint8).data
        pristine = headers.tobytes()
        layout = _Layout(most, bodies, headers["len"], address_of(headers), view, pristine, iovecs)
        return self._layouts.keep(spacing, layout)


class Spacing:
    """Chooses the distance between the bodies of the next datagrams.

    With it, payloads of equally long super-datagrams make one piece of memory, and nothing is
    copied; the last packet of a super-datagram has room for a full one.

    Args:
        single: bytes of room for the body of a single packet; they grow when a larger one comes.
        head: bytes that are kept apart from the body.
    """

    def __init__(self, single: int, head: int = 0) -> None:
        self.value = self._single = min(single, JUMBO)
        self._head = head
        self._longest = 0  # of the super-datagrams that it was chosen for

    def expect(self, lengths: Sequence[int], size: Callable[[int], int]) -> None:
        """Choose the distance for the next datagrams by the last ones.

        Args:
            lengths: lengths of the last datagrams, with their heads, in bytes.
            size: returns the bytes of a packet in the datagram with an index; 0: the datagram is a
                single packet.
        """
        most = max(lengths)
        longest = most - self._head
        if longest > JUMBO:
            if longest == self._longest:
                return
            self._longest = longest
            if longest > self.value or lengths.count(most) > 1 or self.value <= JUMBO:
                step = size(lengths.index(most)) or longest
                self.value = min(-(-longest // step) * step, MOST_SPACING)
        elif self.value > JUMBO:
            if len(lengths) == BATCH_SUPER:
                self.value = self._single
                self._longest = 0
        elif longest > self.value:
            self.value = self._single = longest


class Block:
    """Bytes at a fixed address, for the kernel to read."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._array = np.frombuffer(content, np.uint8)
        self.address = address_of(self._array)
        self.size = len(content)


def described(count: int) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
    """Make iovecs, (count,) of IOVEC, and headers that point to them, (count,) of MMSGHDR."""
    iovecs, headers = np.zeros(count, IOVEC), np.zeros(count, MMSGHDR)
    headers["iov"] = address_of(iovecs) + np.arange(count, dtype="<u8") * IOVEC.itemsize
    headers["iovlen"] = 1
    headers["namelen"] = SOCKADDR_SIZE
    return iovecs, headers


class Sender:
    """Sends datagrams in one system call, from any memory."""

    def __init__(self, most: int = UIO_MAXIOV) -> None:
        self._iovecs, self._headers = described(most)
        self._own_iovecs = self._headers["iov"].copy()
        self._address = address_of(self._headers)
        self._control: Block | None = None  # what the first `_controlled` headers point to
        self._controlled = 0
        self._shared = False  # whether all headers point to the first iovec
        self.most = most

    def send_rows(
        self,
        fd: int,
        rows: npt.NDArray[np.uint8],
        tail: int,
        name: int,
        control: Block,
    ) -> int:
        """Send each row as a datagram to one receiver; return how many the kernel took.

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
        """Send one datagram (or super-datagram) to several receivers; return how many were sent.

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


class Post:
    """Sends datagrams to one receiver, again and again from one place in memory.

    Args:
        memory: contiguous bytes of all datagrams, one after the other.
        packet: bytes of a packet.
        packets: packets of each datagram but the last.
        name: address of the receiver's sockaddr_in; the caller keeps it.
        control: control messages that go with every datagram.

    Attributes:
        place: place of the bytes in memory.
        packets: packets of each datagram but the last.
        count: number of datagrams.
        address: place of their headers in memory, of MMSGHDR.
    """

    def __init__(self, memory: Rows, packet: int, packets: int, name: int, control: Block) -> None:
        self._kept = memory, control
        self.packets = packets
        size = packets * packet
        self.count = n = -(-memory.size // size)
        self._iovecs, self._headers = described(n)
        self._iovecs["base"] = address_of(memory) + np.arange(n, dtype="<u8") * np.uint64(size)
        self._iovecs["len"] = size
        self._iovecs["len"][-1] = memory.size - (n - 1) * size
        self._headers["name"] = name
        self._headers["control"] = control.address
        self._headers["controllen"] = control.size
        self.address = address_of(self._headers)
        self.place = address_of(memory)

    def send(self, fd: int) -> int:
        """Send all datagrams; return how many the kernel accepted, from the first on."""
        sent: int = sendmmsg(fd, self.address, self.count, 0)
        return max(0, sent)


def size_buffers(sock: socket.socket, wanted: int) -> int:
    """Ask for socket buffers of `wanted` bytes; return the bytes that the receive buffer got.

    Root gets them in any case, others get net.core.rmem_max at most.
    """
    for force, plain in (
        (SO_RCVBUFFORCE, socket.SO_RCVBUF),
        (SO_SNDBUFFORCE, socket.SO_SNDBUF),
    ):
        try:
            sock.setsockopt(socket.SOL_SOCKET, force, wanted)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, plain, wanted)
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # the kernel doubles it
