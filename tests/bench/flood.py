"""A stranger's datagrams, at a steady rate in small bursts: what `tests.bench.stranger` sends.

From one port they leave through an ordinary socket; from ever new ones through a raw socket, whose
packets have headers of our own, the source port counted up from packet to packet (root).
"""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable

import numpy as np

from iswitch.core.format.packets import Rows
from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA, Action, Control, Join, Segments, Shape
from iswitch.ports.kernel.mmsg import Block, Sender

POOL = 1024  # datagrams of a kind, sent in turns
BURST = 64  # at most together
PORTS = 20_000  # source ports, where they are ever new: more than a switch remembers
FIRST_PORT = 30_000
MISFIT_JOB = 65_000  # has to be there, with another vector, for misfits to be refused

Where = tuple[str, int]


def data(shape: Shape, random_: random.Random) -> bytes:
    """A whole contribution to some segment of one of the first rounds."""
    seg = random_.randrange(200) << 32 | random_.randrange(shape.full_segments)
    return seg.to_bytes(8, "big") + b"\x7f" * (shape.packet_size - 8)


def malformed(shape: Shape, random_: random.Random) -> bytes:
    return random_.randbytes(shape.packet_size // 8)


def command(_: Shape, random_: random.Random) -> bytes:
    """Help and such, for any job, by whoever is in none; 20 bytes each."""
    action = random_.choice((Action.HELP, Action.FBCAST))
    named = Segments(random_.randrange(200), 0, 1 + random_.randrange(9))
    return Control(action, random_.randrange(64), random_.getrandbits(32), named).build()


def join(_: Shape, random_: random.Random) -> bytes:
    """Joins of a small vector, to jobs from 1000 on."""
    value = Join.for_shape(Shape.of(10))
    return Control(Action.JOIN, 1000 + random_.randrange(5000), 1, value).build()


def misfit(_: Shape, __: random.Random) -> bytes:
    """A Join of ten elements to a job of more, which makes nobody a member."""
    return Control(Action.JOIN, MISFIT_JOB, 1, Join.for_shape(Shape.of(10))).build()


def garbage(_: Shape, random_: random.Random) -> bytes:
    return random_.randbytes(24)


KINDS: dict[str, tuple[int, Callable[[Shape, random.Random], bytes]]] = {
    "data": (TOS_DATA, data),
    "malformed": (TOS_DATA, malformed),
    "help": (TOS_CONTROL, command),
    "join": (TOS_CONTROL, join),
    "misfit": (TOS_CONTROL, misfit),
    "garbage": (TOS_CONTROL, garbage),
}


class Flood:
    """Datagrams of one kind.

    Args:
        kind: of KINDS.
        shape: of the job that is disturbed.
        many: every datagram has another source port.
        source: our own address.
    """

    def __init__(self, kind: str, shape: Shape, many: bool, source: str = "127.0.0.1") -> None:
        tos, make = KINDS[kind]
        random_ = random.Random(1)
        payloads = [make(shape, random_) for _ in range(POOL)]
        rows = np.frombuffer(b"".join(payloads), np.uint8).reshape(POOL, -1)
        self.many = many
        self.sent = 0
        self._rows: Rows = rows
        self._sender = Sender(BURST)
        if many:
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
            self._rows = np.zeros((POOL, 28 + rows.shape[1]), np.uint8)
            self._rows[:, 28:] = rows
            ip = struct.pack(">BBHHHBBH4s4s", 0x45, tos, 0, 0, 0x4000, 64, 17, 0,
                             socket.inet_aton(source), bytes(4))  # fmt: skip
            self._rows[:, :20] = np.frombuffer(ip, np.uint8)
            self._control = Block(b"")
        else:
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.socket.bind((source, 0))
            cmsg = struct.pack("<Qiii4x", 20, socket.IPPROTO_IP, socket.IP_TOS, tos)
            self._control = Block(cmsg)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        self._names: dict[Where, Block] = {}

    def close(self) -> None:
        self.socket.close()

    def send(self, to: Where, count: int) -> None:
        """Send so many, at most BURST; what the kernel does not take is not sent."""
        at = self.sent % POOL
        rows = self._rows[at : min(at + min(count, BURST), POOL)]
        if to not in self._names:
            name = struct.pack("<H", socket.AF_INET) + struct.pack(
                ">H4s8x", to[1], socket.inet_aton(to[0])
            )
            self._names[to] = Block(name)
        if self.many:
            ports = FIRST_PORT + (self.sent + np.arange(len(rows))) % PORTS
            heads = np.empty((len(rows), 4), ">u2")
            heads[:, 0], heads[:, 1], heads[:, 2], heads[:, 3] = (
                ports, to[1], rows.shape[1] - 20, 0,
            )  # fmt: skip
            rows[:, 20:28] = heads.view(np.uint8)
            rows[:, 16:20] = np.frombuffer(socket.inet_aton(to[0]), np.uint8)
        try:
            self.sent += self._sender.send_rows(
                self.socket.fileno(), rows, rows.shape[1], self._names[to].address, self._control
            )
        except OSError:  # port unreachable, or no buffers
            time.sleep(0)


class Pace:
    """Sends at a rate, never more than a burst late."""

    def __init__(self, flood: Flood, rate: float) -> None:
        self.flood = flood
        self.rate = rate
        self._from = time.monotonic()
        self._owed = 0.0

    def begin(self) -> None:
        """The rate counts from now on."""
        self._from = time.monotonic()
        self._owed = 0.0

    def step(self, to: Where) -> None:
        """Send what is due; then sleep a little."""
        now = time.monotonic()
        self._owed = min(self._owed + (now - self._from) * self.rate, 16 * BURST)
        self._from = now
        while self._owed >= BURST:
            before = self.flood.sent
            self.flood.send(to, BURST)
            self._owed -= max(1, self.flood.sent - before)
        time.sleep(max(0.0, (BURST - self._owed) / self.rate))
