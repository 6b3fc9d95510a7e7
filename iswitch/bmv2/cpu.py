"""The header in front of frames at the CPU port, as p4/headers.p4 defines it."""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import NamedTuple, Self

FORMAT = struct.Struct(">BBHHHIIQIIQQQII")


class CpuOp(IntEnum):
    """The reason why a frame comes to the control plane, or its order to the data plane."""

    CONTROL = 0
    HELD = 1
    SEND = 2
    RECEIVE = 3
    ACCEPT = 4
    LOOK = 5
    HOLD = 6
    GO = 7
    KEEP = 8
    RESEND = 9
    FORCE = 10
    CONTRIBUTE = 11


class Flag(IntFlag):
    """Flags in registers; KEEP_JOB and KEEP_MEMBER say which registers an order writes."""

    IS_COMPLETE = 1
    HAS_CONTRIBUTED = 2
    HIGH_CONTRIBUTED = 4
    ANY_COMPLETED = 8
    KEEP_JOB = 16
    KEEP_MEMBER = 32
    IS_SENT = 64


class CpuHeader(NamedTuple):
    """The header's fields; in a LOOK or HOLD to the data plane `high` is the job's epoch."""

    op: CpuOp
    flags: int = 0
    port: int = 0
    job: int = 0
    rank: int = 0
    slot: int = 0
    round: int = 0
    bitmap: int = 0
    high: int = 0
    contributed: int = 0
    contributors: int = 0
    seen: int = 0
    now: int = 0
    number: int = 0
    next: int = 0

    def build(self) -> bytes:
        """Pack the header into bytes."""
        return FORMAT.pack(*self)

    @classmethod
    def parse(cls, frame: bytes) -> tuple[Self, bytes]:
        """Read the header, and the frame behind it.

        Raises:
            ValueError: the frame has no such header.
        """
        if len(frame) < FORMAT.size:
            raise ValueError(f"{len(frame)} bytes at the CPU port; the header has {FORMAT.size}")
        op, *rest = FORMAT.unpack_from(frame)
        return cls(CpuOp(op), *rest), frame[FORMAT.size :]
