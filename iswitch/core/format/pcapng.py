"""Blocks of a pcapng file (draft-ietf-opsawg-pcapng): section, interfaces, directed frames."""

from __future__ import annotations

import struct
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from .packets import Rows

Times = npt.NDArray[np.int64]  # nanoseconds since 1970

_SECTION, _INTERFACE, _STATISTICS, _PACKET = 0x0A0D0D0A, 1, 5, 6
_BYTE_ORDER = 0x1A2B3C4D
_ETHERNET = 1  # link type
_NANOSECONDS = 9  # 10**-9
_OPTIONS = struct.Struct("<HHIHH")  # of a frame: its direction, then the end of options
_FRAME = struct.Struct("<IIIIIII")
FRAME_AT, TIME_AT = _FRAME.size, 12  # in a block: a frame's bytes, and two halves of its time

OWN = "iswitch"  # writes frames in the order in which the switch handles them
OUTSIDE = "iswitch, outside of impaired ports"  # which lose, double and reorder


class Direction(IntEnum):
    """The direction of a frame, seen from the switch, as epb_flags codes it."""

    IN = 1
    OUT = 2


def section(writer: str = OWN) -> bytes:
    """Make the block that a file begins with; it names the program that writes the file."""
    body = struct.pack("<IHHq", _BYTE_ORDER, 1, 0, -1)
    return _block(_SECTION, body + _option(4, writer.encode()) + _option(0, b""))


def interface(name: str) -> bytes:
    """Make the block of an Ethernet interface, with times in ns; the first block is interface 0."""
    options = _option(2, name.encode()) + _option(9, bytes([_NANOSECONDS])) + _option(0, b"")
    return _block(_INTERFACE, struct.pack("<HHI", _ETHERNET, 0, 0) + options)


def packets(number: int, time_ns: int, direction: Direction, frames: Rows) -> bytes:
    """Make the blocks of frames of one size, (n, size), that an interface saw at one time."""
    return blocks(number, np.full(len(frames), time_ns), direction, frames).tobytes()


def blocks(number: int, times: Times, direction: Direction, frames: Rows) -> Rows:
    """Make the blocks of frames of one size, each with its own time: (n, bytes of a block)."""
    n, size = frames.shape
    padded = (size + 3) & ~3
    total = _FRAME.size + padded + _OPTIONS.size + 4
    head = _FRAME.pack(_PACKET, total, number, 0, 0, size, size)
    end = _OPTIONS.pack(2, 4, direction, 0, 0) + total.to_bytes(4, "little")
    rows = np.empty((n, total), np.uint8)
    rows[:, : len(head)] = np.frombuffer(head, np.uint8)
    halves = np.stack((times >> 32, times & 0xFFFFFFFF), axis=1).astype("<u4")
    rows[:, TIME_AT : TIME_AT + 8] = halves.view(np.uint8)
    rows[:, len(head) : len(head) + size] = frames
    rows[:, len(head) + size : len(head) + padded] = 0
    rows[:, -len(end) :] = np.frombuffer(end, np.uint8)
    return rows


def statistics(number: int, time_ns: int, dropped: int) -> bytes:
    """Make the block that counts the frames of an interface that are missing in the file."""
    body = struct.pack("<III", number, time_ns >> 32, time_ns & 0xFFFFFFFF)
    return _block(_STATISTICS, body + _option(5, dropped.to_bytes(8, "little")) + _option(0, b""))


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


def _block(kind: int, body: bytes) -> bytes:
    total = 12 + len(body)
    return struct.pack("<II", kind, total) + body + struct.pack("<I", total)
