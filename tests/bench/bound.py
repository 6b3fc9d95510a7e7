"""What an allreduce costs at least on this machine: `python -m tests.bench.bound`.

Measured here, each as the least of many times: copying and adding in memory, sending a
super-datagram of 44 packets from one UDP socket to another and receiving it, each with and without
the copy that lays it out as packets; the other way is to have the kernel gather it from, or scatter
it to, 44 headers and 44 places in the vector. The bound adds up what N workers and a switch have to
do that way, on as many cores as there are: system calls with their copies, and additions.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import socket
import struct
import time
from collections.abc import Callable

import numpy as np

from iswitch.core.format.packets import super_packets
from iswitch.ports.kernel.mmsg import IOVEC, MMSGHDR, address_of, size_buffers
from iswitch.ports.reading import SOL_UDP, UDP_GRO
from iswitch.ports.sending import UDP_SEGMENT
from tests.bench.rig import SIZES

ELEMENTS = 366
PACKET = 8 + 4 * ELEMENTS
BURST = super_packets(PACKET)
TIMES = 2000

_libc = ctypes.CDLL(None, use_errno=True)


def least(run: Callable[[], object], times: int = TIMES) -> float:
    """Seconds."""
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


class Way:
    """A super-datagram in so many pieces of memory, to be sent and received."""

    def __init__(self, addresses: np.ndarray, sizes: np.ndarray, control: bytes = b"") -> None:
        self._iovecs = np.zeros(len(addresses), IOVEC)
        self._iovecs["base"], self._iovecs["len"] = addresses, sizes
        self._control = np.frombuffer(control, np.uint8)
        self._header = np.zeros(1, MMSGHDR)
        self._header["iov"], self._header["iovlen"] = address_of(self._iovecs), len(addresses)
        if control:
            self._header["control"] = address_of(self._control)
            self._header["controllen"] = len(control)
        self._address = ctypes.c_void_p(address_of(self._header))

    def send(self, sock: socket.socket) -> None:
        assert _libc.sendmmsg(sock.fileno(), self._address, 1, 0) == 1

    def receive(self, sock: socket.socket) -> None:
        assert _libc.recvmmsg(sock.fileno(), self._address, 1, 0, None) == 1


class Bound:
    """Seconds for a super-datagram, and bytes a second."""

    def __init__(self) -> None:
        vector = np.ones((BURST, ELEMENTS), np.float32)
        packets = np.zeros((BURST, PACKET // 4), np.float32)
        heads = np.zeros((BURST, 8), np.uint8)
        steps = np.arange(BURST, dtype="<u8")
        places = np.stack((address_of(heads) + steps * 8, address_of(vector) + steps * 1464), 1)
        sizes = np.tile([8, 4 * ELEMENTS], BURST)
        control = struct.pack("<QiiH6x", 18, SOL_UDP, UDP_SEGMENT, PACKET)
        whole = np.array([address_of(packets)]), np.array([packets.nbytes])
        gathered = places.reshape(-1), sizes
        large = np.zeros(1_681_062, np.float32), np.ones(1_681_062, np.float32)
        self.copy = large[0].nbytes / least(lambda: np.copyto(*large), 100)
        self.add = large[0].nbytes / least(lambda: np.add(*large, out=large[0]), 100)
        self.lay_out = least(lambda: np.copyto(packets[:, 2:], vector))
        self.call = least(os.getppid)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.bind(("127.0.0.1", 0))
            end.setsockopt(SOL_UDP, UDP_GRO, 1)
            size_buffers(end, 1 << 20)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as start:
                start.connect(end.getsockname())
                size_buffers(start, 1 << 20)
                self.ways = {
                    "packed": self._both(Way(*whole, control), Way(*whole), start, end),
                    "in 88 pieces": self._both(Way(*gathered, control), Way(*gathered), start, end),
                }

    @staticmethod
    def _both(out: Way, into: Way, start: socket.socket, end: socket.socket) -> tuple[float, float]:
        sending, receiving = [], []
        for _ in range(TIMES):
            began = time.perf_counter()
            out.send(start)
            sent = time.perf_counter()
            into.receive(end)
            receiving.append(time.perf_counter() - sent)
            sending.append(sent - began)
        return min(sending), min(receiving)

    def of(self, numel: int, workers: int) -> tuple[float, float, float]:
        """Seconds in all: calls and their copies, additions, laying out; on one core."""
        bursts = numel / ELEMENTS / BURST  # as if a part of one cost a part
        send, receive = self.ways["packed"]
        moved = bursts * ((workers + 1) * send + 2 * workers * receive)
        added = workers * 4 * numel / self.add
        return moved, added, 2 * workers * bursts * self.lay_out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(f"machine: {cores} cores, Linux {platform.release()}, NumPy {np.__version__}")
    bound = Bound()
    print(f"copy {bound.copy / 1e9:.1f} GB/s, add {bound.add / 1e9:.1f} GB/s (6.7 MB)")
    print(f"a system call, from Python: {bound.call * 1e6:.2f} us")
    print(f"lay {BURST} packets out, or take them apart: {bound.lay_out * 1e6:.1f} us")
    for name, (send, receive) in bound.ways.items():
        print(f"super-datagram {name}: send {send * 1e6:.1f} us, receive {receive * 1e6:.1f} us")
    print(f"\n{args.workers} workers, ms:{'calls':>13}{'add':>8}{'lay out':>9}{'all/cores':>11}")
    for name, numel in SIZES.items():
        parts = bound.of(numel, args.workers)
        shown = "".join(f"{part * 1e3:{w}.3f}" for part, w in zip(parts, (13, 8, 9), strict=True))
        print(f"{name:15}{shown}{sum(parts) / cores * 1e3:11.3f}")


if __name__ == "__main__":
    main()
