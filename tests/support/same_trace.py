"""`python -m tests.support.same_trace HOST:PORT SEED`: one random trace into a switch and the core.

Prints how many packets each socket got from the running switch. Exit status 1 if any socket got
other bytes than the core's `Switch` sends it. In Acks the round is left out: where a member has
contributed nothing for a while, the core looks at its first round now and then, and a P4 program's
control plane at other times.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections import Counter

import numpy as np

from iswitch.core.format.packets import Address, Burst
from iswitch.core.format.wire import (
    TOS_CONTROL,
    TOS_DATA,
    Action,
    Control,
    DType,
    Join,
    Segments,
    Shape,
    Threshold,
)
from iswitch.core.switch import Switch

WORKERS = 3
PATIENCE = 3.0  # seconds without a packet, after which no more come
SPECIAL = np.array(
    [0, 1, 2, 0x7FFFFF, 0x800000, 0x800001, 0x3F800000, 0x3F7FFFFF, 0x34000000, 0x33800000,
     0x33800001, 0x4B800000, 0x7F7FFFFF, 0x7F7FFFFE, 0x7F800000, 0x7F000000],
    np.uint32,
)  # fmt: skip


class Both:
    """Sockets at the switch, and the same addresses at a switch in this process."""

    def __init__(self, switch: tuple[str, int]) -> None:
        self.core = Switch()
        self.switch = switch
        self.sockets = []
        for _ in range(WORKERS):
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            sock.connect(switch)
            self.sockets.append(sock)
        self.peers = [Address(*sock.getsockname()) for sock in self.sockets]
        self.wanted = [Counter[bytes]() for _ in self.peers]
        self.got = [Counter[bytes]() for _ in self.peers]

    def send(self, who: int, tos: int, payload: bytes) -> None:
        """One packet into both."""
        ancillary = [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack("=i", tos))]
        self.sockets[who].sendmsg([payload], ancillary)
        for out in self.core.receive(Burst.single(self.peers[who], tos, payload), time.monotonic()):
            n = len(out.rows)
            for i, row in enumerate(out.rows, 1):
                packet = row.tobytes() if i < n else row[: out.tail].tobytes()
                for peer in out.peers:
                    self.wanted[self.peers.index(peer)][comparable(packet)] += 1

    def ask(self, who: int, packet: Control) -> None:
        """A request; wait until it is answered, so that data after it is after it in both."""
        self.send(who, TOS_CONTROL, packet.build())
        head = (
            bytes([Action.ACK]),
            packet.job.to_bytes(2, "big") + packet.request.to_bytes(4, "big"),
        )
        sock = self.sockets[who]
        sock.settimeout(PATIENCE)
        while True:
            came = sock.recv(1 << 16)
            self.got[who][comparable(came)] += 1
            if (came[:1], came[2:8]) == head:
                return

    def receive(self, who: int, count: int) -> None:
        """Take what comes until a socket has got so many packets, or nothing more comes."""
        sock = self.sockets[who]
        sock.settimeout(PATIENCE)
        try:
            while self.got[who].total() < count:
                self.got[who][comparable(sock.recv(1 << 16))] += 1
        except TimeoutError:
            pass


def comparable(packet: bytes) -> bytes:
    """A packet without what may differ: data has a round below 2**24, so it begins with zero."""
    return packet[:16] + packet[20:] if packet[0] == Action.ACK else packet


def values(rng: np.random.Generator, dtype: DType, size: int) -> bytes:
    """Elements of all kinds, no NaN: of two NumPy takes now one, now the other."""
    if dtype is DType.INT32:
        return rng.integers(0, 1 << 32, size, dtype=np.uint32).tobytes()
    plain = rng.integers(0, 0x7F800000, size, dtype=np.uint32)
    near = (rng.integers(110, 140, size, dtype=np.uint32) << 23) | (plain & 0x7FFFFF)
    special = SPECIAL[rng.integers(0, len(SPECIAL), size)]
    kind = rng.integers(0, 3, size)
    chosen = np.where(kind == 0, plain, np.where(kind == 1, near, special))
    signed: np.ndarray = chosen | rng.integers(0, 2, size, dtype=np.uint32) << 31
    return signed.astype("<u4").tobytes()


def with_checksum_zero(payload: bytes, source: Address, destination: tuple[str, int]) -> bytes:
    """The packet, element 0 so that the UDP checksum is zero, which is sent as 0xFFFF."""
    head = payload[:8] + bytes(2) + b"\x80\x3f"  # of a float: 1.0 and a little more
    packet = head + payload[12:]
    length = 8 + len(packet)
    fields = [
        *(int.from_bytes(socket.inet_aton(ip)) for ip in (source.host, destination[0])),
        17, length, source.port, destination[1], length,
    ]  # fmt: skip
    total = sum(fields) + int(np.frombuffer(packet, ">u2").sum(dtype=np.int64))
    return payload[:8] + (-total % 0xFFFF).to_bytes(2) + packet[10:]


def play(both: Both, seed: int, job: int, dtype: DType, elements: int, packets: int) -> None:
    """One job: joins, contributions in random order with repeats, Help, FBcast, SetH, Leave."""
    rng = np.random.default_rng([seed, job])
    shape = Shape.of(elements * 5 + int(rng.integers(1, elements + 1)), dtype, elements=elements)
    numbers = iter(range(10, 1 << 20))
    for who in range(WORKERS):
        join = Join.for_shape(shape, expected=WORKERS)
        both.ask(who, Control(Action.JOIN, job, 1, join))
    rounds = [0] * WORKERS
    for count in range(packets):
        who = int(rng.integers(0, WORKERS))
        if rng.random() < 0.15:
            rounds[who] += rounds[who] <= min(rounds)
        round_ = max(0, rounds[who] - int(rng.random() < 0.1))
        index = int(rng.integers(0, shape.segments))
        last = index == shape.segments - 1
        data = values(rng, dtype, shape.last if last else shape.elements)
        packet = struct.pack(">II", round_, index) + data
        if count % 20 == 7:
            packet = with_checksum_zero(packet, both.peers[who], both.switch)
        both.send(who, TOS_DATA, packet)
        if count % 50 == 49:
            named = Segments(round_, 0, shape.segments)
            action = (Action.FBCAST, Action.SETH)[count // 50 % 2]
            value = named if action is Action.FBCAST else Threshold(int(rng.integers(0, 3)))
            both.ask(who, Control(action, job, next(numbers), value))
    for who in range(WORKERS):
        both.ask(who, Control(Action.LEAVE, job, next(numbers)))


def main() -> int:
    """Play some jobs; compare."""
    # On one CPU: a veth keeps the order of what one CPU sends.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    host, _, port = sys.argv[1].partition(":")
    seed = int(sys.argv[2])
    both = Both((host, int(port)))
    for job, (dtype, elements) in enumerate(
        [(DType.FLOAT32, 64), (DType.INT32, 256), (DType.FLOAT32, 37), (DType.INT32, 100)], 1
    ):
        play(both, seed, job + 100, dtype, elements, int(sys.argv[3]))
        for who in range(WORKERS):
            both.receive(who, both.wanted[who].total())
    print(*(got.total() for got in both.got), "packets")
    for who, (got, wanted) in enumerate(zip(both.got, both.wanted, strict=True)):
        for name, some in (("missing", wanted - got), ("not wanted", got - wanted)):
            for packet, count in list(some.items())[:3]:
                print(f"socket {who}: {name} {count}: {packet[:40].hex()}")
    return int(both.got != both.wanted)


if __name__ == "__main__":
    sys.exit(main())
