"""Batches of Ethernet frames, each parted into a head and a body, in one system call.

As mmsg.py does for datagrams. Heads and bodies lie in arrays of their own: the bodies of equally
long frames are then one piece of memory, and so are the payloads in them.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..frame import HEAD
from ..packets import Rows
from .mmsg import IOVEC, MMSGHDR, UIO_MAXIOV, address_of, receive, sendmmsg

SOCKADDR_LL = struct.Struct("<HHiHBB8s")  # linux/if_packet.h
JUMBO = 9728  # longer bodies are of super-frames
LONGEST = 65536 + 128  # a super-frame with its headers
MOST_SPACING = LONGEST + JUMBO
HEAD_ROOM = 64  # from one head to the next
BATCH = 128  # frames in a call while they come one by one
BATCH_SUPER = 16  # while they come as super-frames: half a megabyte, which a cache holds
LAYOUTS = 16  # that are kept
FEW = 8  # frames for which Python is faster than NumPy


class _Layout(NamedTuple):
    """Slots with bodies that lie so far apart."""

    most: int
    bodies: Rows
    headers: npt.NDArray[np.void]
    iovecs: npt.NDArray[np.void]
    address: int
    lengths: npt.NDArray[np.uint32]


class FrameReceiver:
    """Slots for a batch of frames.

    How far apart the bodies lie, `spacing`, is up to the caller, from call to call; what a frame
    has beyond it goes to a place of its own, and costs a copy.

    Args:
        control_size: room for control messages of each frame, in `control`.
    """

    def __init__(self, control_size: int) -> None:
        self._heads = np.zeros((BATCH, HEAD_ROOM), np.uint8)
        self._bodies = np.zeros(max(BATCH * JUMBO, BATCH_SUPER * MOST_SPACING), np.uint8)
        self._rests = np.empty((BATCH, LONGEST), np.uint8)
        self.heads = self._heads[:, :HEAD]
        self.control = np.zeros((BATCH, control_size), np.uint8)
        self._layouts: dict[int, _Layout] = {}

    def receive(self, fd: int, spacing: int) -> tuple[Rows, list[int]]:
        """Receive what is there, without waiting.

        Args:
            fd: the socket.
            spacing: room for a body; more than JUMBO: super-frames are expected.

        Returns:
            the bodies, a row each, and the lengths of the frames with their heads. `heads` and
            `control` have as many rows.

        Raises:
            OSError: with the errno of recvmmsg, but for EAGAIN, which is no frames.
        """
        layout = self._layouts.get(spacing) or self._lay_out(spacing)
        n = receive(fd, layout.address, layout.most)
        lengths: list[int] = layout.lengths[:n].tolist()
        bodies = layout.bodies[:n]
        if n and max(lengths) > HEAD + spacing:
            longest = max(lengths) - HEAD
            bodies = np.concatenate((bodies, self._rests[:n, : longest - spacing]), axis=1)
        return bodies, lengths

    def _lay_out(self, spacing: int) -> _Layout:
        if len(self._layouts) >= LAYOUTS:
            self._layouts.clear()
        most = BATCH if spacing <= JUMBO else BATCH_SUPER
        steps = np.arange(most, dtype="<u8")
        iovecs = np.zeros((most, 3), IOVEC)
        places = (self._heads, HEAD_ROOM, HEAD), (self._bodies, spacing, spacing)
        rest = (self._rests, LONGEST, LONGEST - spacing)
        for i, (array, stride, length) in enumerate((*places, rest)):
            iovecs["base"][:, i] = address_of(array) + steps * stride
            iovecs["len"][:, i] = max(length, 0)
        headers = np.zeros(most, MMSGHDR)
        headers["iov"] = address_of(iovecs) + steps * iovecs.strides[0]
        headers["iovlen"] = 3
        headers["control"] = address_of(self.control) + steps * self.control.shape[1]
        headers["controllen"] = self.control.shape[1]
        bodies = self._bodies[: most * spacing].reshape(most, spacing)
        address = address_of(headers)
        layout = _Layout(most, bodies, headers, iovecs, address, headers["len"])
        self._layouts[spacing] = layout
        return layout


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
        """Add a frame for each row; as `add_rows`, but faster if they are FEW."""
        i = self._added
        head, head_step, head_size = 0, 0, 0
        if heads is not None:
            head, head_step, head_size = address_of(heads), heads.strides[0], heads.shape[1]
        row, step = address_of(rows), rows.strides[0]
        for length in lengths:
            self._PARTS.pack_into(self._iovec_bytes, 32 * i, head, head_size, row, length)
            self._NAME.pack_into(self._header_bytes, MMSGHDR.itemsize * i, name)
            head += head_step
            row += step
            i += 1
        self._added = i

    def add_rows(
        self,
        name: int,
        heads: npt.NDArray[np.uint8] | None,
        rows: npt.NDArray[np.uint8],
        lengths: Sequence[int],
    ) -> None:
        """Add a frame for each row, at most `most` in all.

        Args:
            name: address in memory of the sockaddr_ll that says the interface.
            heads: (n, size), the first part of each frame; None: there is none.
            rows: (n, any), the second part.
            lengths: bytes of each second part.
        """
        i, n = self._added, len(lengths)
        parts = self._iovecs[i : i + n]
        steps = self._steps[:n]
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
            sent: int = sendmmsg(fd, address, total - at, socket.MSG_DONTWAIT)
            if sent < 0:
                error = ctypes.get_errno()
                if error == errno.EINTR:
                    continue
                refused.append((at, error))
                sent = 1
            at += sent
        return refused
