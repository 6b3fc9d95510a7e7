"""`python -m tests.support.p4_adder HOST:PORT PAIRS`: a running switch adds floats as NumPy does.

All pairs of 64 special values (both zeros, subnormals, infinities, NaN), and so many random ones,
of every format: each a sum of two contributions, the same bits as NumPy's. Prints how many are.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

import numpy as np

from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA, Action, Control, DType, Join, Shape
from p4.lanes import BFLOAT16, FLOAT16, FLOAT32, Format
from tests.p4.test_lanes import expected, pairs, special

PATIENCE = 0.5  # seconds, after which what is missing is sent again
TRIES = 20
AT_ONCE = 16  # segments


class Contributor:
    """A socket that is a member of a job."""

    def __init__(self, switch: tuple[str, int]) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(switch)

    def send(self, tos: int, payload: bytes) -> None:
        """A packet."""
        self.socket.sendmsg([payload], [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack("i", tos))])

    def ask(self, packet: Control) -> None:
        """A request, repeated until it is answered."""
        for _ in range(TRIES):
            self.send(TOS_CONTROL, packet.build())
            try:
                while True:
                    if self.socket.recv(1 << 16)[0] == Action.ACK:
                        return
            except TimeoutError:
                pass
        raise TimeoutError(f"no answer to {packet}")


def sums(
    first: Contributor, second: Contributor, job: int, shape: Shape, a: bytes, b: bytes
) -> bytes:
    """What the switch makes of two vectors; it has the first one's packets first."""
    for who in (first, second):
        who.ask(Control(Action.JOIN, job, 1, Join.for_shape(shape, expected=2)))
    size = shape.elements * shape.dtype.itemsize
    found: dict[int, bytes] = {}
    for start in range(0, shape.segments, AT_ONCE):
        wanted = set(range(start, min(start + AT_ONCE, shape.segments)))
        for _ in range(TRIES):
            for who, vector in ((first, a), (second, b)):
                for index in sorted(wanted):
                    seg = struct.pack(">II", 0, index)
                    who.send(TOS_DATA, seg + vector[index * size : (index + 1) * size])
            try:
                while wanted:
                    packet = first.socket.recv(1 << 16)
                    if packet[0] == 0:  # data of round 0
                        index = int.from_bytes(packet[4:8])
                        found[index] = packet[8:]
                        wanted.discard(index)
            except TimeoutError:
                continue
            break
    for who in (first, second):
        who.ask(Control(Action.LEAVE, job, 2))
    return b"".join(found[index] for index in range(shape.segments))


def main() -> int:
    """Of every format."""
    # On one CPU: a veth keeps the order of what one CPU sends.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    host, _, port = sys.argv[1].partition(":")
    count = int(sys.argv[2])
    first, second = (Contributor((host, int(port))) for _ in range(2))
    wrong = 0
    formats: list[tuple[Format, DType]] = [
        (FLOAT32, DType.FLOAT32), (FLOAT16, DType.FLOAT16), (BFLOAT16, DType.BFLOAT16),
    ]  # fmt: skip
    for job, (form, dtype) in enumerate(formats, 1):
        codes = special(form)
        a, b = pairs(form, count, job)
        a = np.concatenate([np.repeat(codes, len(codes)), a])
        b = np.concatenate([np.tile(codes, len(codes)), b])
        shape = Shape.of(len(a), dtype, elements=1464 // dtype.itemsize)
        total = sums(first, second, job, shape, a.tobytes(), b.tobytes())
        same = np.frombuffer(total, a.dtype) == expected(a, b, form)
        print(f"{form.name}: {int(same.sum())} of {len(a)} sums are NumPy's")
        for i in np.flatnonzero(~same)[:4]:
            print(*(hex(v[i]) for v in (a, b, np.frombuffer(total, a.dtype))))
        wrong += int((~same).sum())
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
