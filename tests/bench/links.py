"""What impaired links do, set against measured: `python -m tests.bench.links [--write FILE]`.

Each case is a network of its own, two hosts at a switch, of which one sends numbered datagrams to
the other through the bridge. The receiver's kernel notes when they came. Prints the table of
docs/links.md, or with --write puts it there in place of the one that is there. Needs root.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topologies import Topology
from topologies.commands import switch_options
from topologies.netns import Network

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 30.0
PORT = 5201
SO_TIMESTAMPNS = 35  # asm-generic/socket.h
SO_RCVBUFFORCE = 33
UDP_SEGMENT = 103  # linux/udp.h
PROBE = struct.Struct("<QQ")  # number, when it was sent
SIZE = 200  # bytes of a datagram
NOTHING = "nothing"
TCP_FRAME, TCP_PAYLOAD = 1514, 1448  # bytes, with time stamps
BEGIN, END = "<!-- measured -->\n", "<!-- end -->\n"


class Came(NamedTuple):
    """What the receiver saw: numbers, and seconds on the way, in the order of coming."""

    sent: int
    numbers: npt.NDArray[np.int64]
    delays: npt.NDArray[np.float64]


class Case(NamedTuple):
    """One line of the table.

    `setting`: as of --impair and of links; `nothing`: none. `where`: `in` of the sender's port,
    `out` of the receiver's, or `links`, both of a topology. What is found may be so much below and
    above what is wanted.
    """

    setting: str
    where: str
    what: str
    wanted: float
    below: float
    above: float
    unit: str
    measure: Callable[[Network], float]

    @property
    def key(self) -> list[str]:
        """The columns that say what is measured."""
        wanted = f"{self.wanted:.4g} {self.unit}"
        bounds = f"-{self.below:.2g}, +{self.above:.2g}"
        return [f"`{self.setting}`", self.where, self.what, wanted, bounds]

    def holds(self, found: float) -> bool:
        """Whether it is within the bounds."""
        return -self.below <= found - self.wanted <= self.above


@contextmanager
def network(case: Case) -> Iterator[Network]:
    """Two hosts and a switch, whose counters must tell of nothing the machine itself lost."""
    spec = "star:2"
    if case.where == "links" and case.setting != NOTHING:
        spec = f"star:2,seed=1,{case.setting}"
    with Network(Topology.parse(spec), prefix="iswlink") as net:
        command = [sys.executable, "-m", "iswitch", "switch", "--json"]
        command += switch_options(net.topology, "s1")
        if case.where != "links":
            port = {"in": "s1-eth1", "out": "s1-eth2"}[case.where]
            command += ["--impair", f"{port}:{case.where}:{case.setting}", "--seed", "1"]
        switch = net.popen(
            "s1", command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
        )
        assert switch.stdout is not None
        assert json.loads(switch.stdout.readline())
        yield net
        switch.send_signal(signal.SIGINT)
        out, _ = switch.communicate(timeout=PATIENCE)
        counters = json.loads(out)
        assert not counters["rx_overflow"], counters
        assert not counters["tx_failed"], counters


def measured(case: Case) -> float:
    """What a fresh network gives."""
    with network(case) as net:
        return case.measure(net)


def probe(net: Network, count: int, every: float, burst: int = 1, segments: int = 0) -> Came:
    """Send so many datagrams from h1 to h2, a burst `every` seconds.

    Args:
        segments: send super-datagrams of so many.
    """
    with net.inside("h1"):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with net.inside("h2"):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender, receiver:
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        receiver.bind(("0.0.0.0", PORT))
        sender.connect((str(net.topology.address("h2")), PORT))
        find_each_other(sender, receiver)
        found: list[tuple[int, int, int]] = []
        thread = threading.Thread(target=listen, args=(receiver, found))
        thread.start()
        if segments:
            sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, SIZE)
        step = segments or 1
        begin = time.monotonic()
        for i in range(0, count, step):
            if i % (burst * step) == 0:
                due = begin + i / (burst * step) * every
                time.sleep(max(0.0, due - time.monotonic()))
            now = time.time_ns()
            sender.send(b"".join(PROBE.pack(i + j, now).ljust(SIZE) for j in range(step)))
        thread.join()
    numbers, sent, came = np.array(found, np.int64).reshape(-1, 3).T
    return Came(count, numbers, (came - sent) / 1e9)


def find_each_other(sender: socket.socket, receiver: socket.socket) -> None:
    """Send until something comes: ARP may be lost, too."""
    receiver.settimeout(0.2)
    for _ in range(int(PATIENCE / 0.2)):
        sender.send(b"hello")
        try:
            while receiver.recv(SIZE):
                receiver.settimeout(0.1)  # until nothing comes any more
        except TimeoutError:
            if receiver.gettimeout() == 0.1:
                return
    raise TimeoutError("nothing comes through")


def listen(receiver: socket.socket, found: list[tuple[int, int, int]]) -> None:
    """Note what comes, until nothing has for half a second."""
    receiver.settimeout(0.5)
    while True:
        try:
            payload, control, _, _ = receiver.recvmsg(SIZE, 64)
        except TimeoutError:
            return
        seconds, nanoseconds = struct.unpack("qq", control[0][2])
        found.append((*PROBE.unpack_from(payload), seconds * 10**9 + nanoseconds))


# What is measured

MANY = 40_000  # datagrams, 50 a 2 ms
FEW = 300  # one every 9 ms: with less jitter than that none waits for another


def lost(net: Network, segments: int = 0) -> float:
    """Share that never came."""
    came = probe(net, MANY, 0.002, 1 if segments else 50, segments)
    return 1 - len(set(came.numbers.tolist())) / came.sent


def lost_of_super(net: Network) -> float:
    """The same of super-datagrams of 40."""
    return lost(net, 40)


def lost_run(net: Network) -> float:
    """Mean length of the runs of numbers that never came."""
    came = np.zeros(MANY + 1, bool)
    came[probe(net, MANY, 0.002, 50).numbers] = True
    came[MANY] = True
    begins = np.diff(came.astype(int), prepend=1) < 0
    return float((~came).sum() / begins.sum())


def twice(net: Network) -> float:
    """Share that came twice."""
    numbers = probe(net, MANY, 0.002, 50).numbers
    return len(numbers) / len(np.unique(numbers)) - 1


def early(net: Network) -> float:
    """Share that came ahead of one that was sent before."""
    numbers = probe(net, MANY, 0.002, 50).numbers
    later = np.minimum.accumulate(numbers[::-1])[::-1]
    return float((numbers[:-1] > later[1:]).mean())


def delay(net: Network) -> float:
    """Median time on the way, in milliseconds."""
    return float(np.median(probe(net, FEW, 0.009).delays) * 1000)


def spread(net: Network) -> float:
    """From the 5th to the 95th percentile of the time on the way, in milliseconds."""
    low, high = np.percentile(probe(net, FEW, 0.009).delays, (5, 95))
    return float((high - low) * 1000)


def round_trip(net: Network) -> float:
    """Median of ping's, in milliseconds."""
    to = str(net.topology.address("h2"))
    ping = net.popen("h1", ["ping", "-c", "150", "-i", "0.01", to], stdout=subprocess.PIPE)
    out, _ = ping.communicate(timeout=PATIENCE)
    times = re.findall(r"time=([\d.]+) ms", out.decode())
    assert len(times) == 150, out
    return float(np.median(list(map(float, times[1:]))))  # but the first, which waits for ARP


def tcp(net: Network) -> float:
    """Mbit/s of whole frames of one TCP connection, without its beginning."""
    with net.inside("h2"):
        listener = socket.create_server(("0.0.0.0", PORT))
    stopping = threading.Event()

    def work() -> None:
        with net.inside("h1"):
            client = socket.create_connection((str(net.topology.address("h2")), PORT), PATIENCE)
        with client:
            while not stopping.is_set():
                client.send(bytes(1 << 14))

    thread = threading.Thread(target=work)
    thread.start()
    with listener, listener.accept()[0] as server:
        server.settimeout(PATIENCE)

        def receive(seconds: float) -> float:
            total, begin = 0, time.monotonic()
            while (now := time.monotonic()) < begin + seconds:
                total += len(server.recv(1 << 20))
            return total / (now - begin)

        receive(0.5)
        rate = receive(2.0)
        stopping.set()
        while server.recv(1 << 20):
            pass
    thread.join()
    return rate * 8 / 1e6 * TCP_FRAME / TCP_PAYLOAD


def share(
    setting: str, where: str, what: str, wanted: float, measure: Callable[[Network], float]
) -> Case:
    """Within five standard deviations of a binomial distribution: wrong once in 1.7 million."""
    bound = 500 * math.sqrt(wanted * (1 - wanted) / MANY)
    return Case(
        setting, where, what, 100 * wanted, bound, bound, "%", lambda net: 100 * measure(net)
    )


CASES = [
    share("loss=1%", "in", "lost", 0.01, lost),
    share("loss=1%", "out", "lost", 0.01, lost),
    share("loss=1%", "in", "lost, of super-frames", 0.01, lost_of_super),
    share("loss=1%", "out", "lost, of super-frames", 0.01, lost_of_super),
    share("loss=5%", "links", "lost", 1 - 0.95**2, lost),
    # A geometric distribution, of some 1,000 runs.
    Case("loss=10%,burst=4", "in", "run of lost ones", 4.0, 0.55, 0.55, "packets", lost_run),
    Case("loss=10%,burst=4", "out", "run of lost ones", 4.0, 0.55, 0.55, "packets", lost_run),
    share("duplicate=1%", "in", "came twice", 0.01, twice),
    share("duplicate=1%", "out", "came twice", 0.01, twice),
    share("delay=20ms,reorder=1%", "in", "overtook others", 0.01, early),
    share("delay=20ms,reorder=1%", "out", "overtook others", 0.01, early),
    share("corrupt=1%", "in", "dropped by the receiver", 0.01, lost),
    share("corrupt=1%", "out", "dropped by the receiver", 0.01, lost),
    Case(NOTHING, "links", "one way, median", 0.0, 0.0, 2.0, "ms", delay),
    Case(NOTHING, "links", "ping, median", 0.0, 0.0, 4.0, "ms", round_trip),
    Case("delay=5ms", "in", "one way, median", 5.0, 0.1, 2.0, "ms", delay),
    Case("delay=5ms", "out", "one way, median", 5.0, 0.1, 2.0, "ms", delay),
    Case("delay=2ms", "links", "ping, median", 8.0, 0.1, 4.0, "ms", round_trip),
    Case("delay=20ms", "links", "ping, median", 80.0, 0.1, 4.0, "ms", round_trip),
    # Uniform over 8 ms: 90 % of that lie between, give or take 5 standard deviations of 0.2 ms.
    Case("delay=5ms,jitter=4ms", "in", "one way, 5 % to 95 %", 7.2, 1.0, 2.0, "ms", spread),
    Case("delay=5ms,jitter=4ms", "out", "one way, 5 % to 95 %", 7.2, 1.0, 2.0, "ms", spread),
    Case("rate=20Mbit", "out", "TCP, whole frames", 20.0, 1.0, 0.4, "Mbit/s", tcp),
    Case("rate=20Mbit", "links", "TCP, whole frames (tbf)", 20.0, 1.0, 0.4, "Mbit/s", tcp),
    Case("rate=200Mbit", "links", "TCP, whole frames (tbf)", 200.0, 20.0, 4.0, "Mbit/s", tcp),
]
HEADER = ["setting", "where", "measured is", "set", "bounds", "measured"]


def main() -> None:
    """Measure all, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", metavar="FILE", type=Path)
    args = parser.parse_args()
    rows = [HEADER, ["---"] * len(HEADER)]
    for case in CASES:
        found = measured(case)
        rows.append([*case.key, f"{found:.4g} {case.unit}"])
        mark = "" if case.holds(found) else "   OUT OF BOUNDS"
        print(" | ".join(rows[-1]) + mark, flush=True)
    if args.write:
        table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
        before, _, rest = args.write.read_text().partition(BEGIN)
        args.write.write_text(f"{before}{BEGIN}{table}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
