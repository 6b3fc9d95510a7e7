"""Allreduce on loopback beside a plain copy: `python -m tests.bench.loopback`.

Each round is measured from a common start to the last worker's end, in turns (A B A B ...):

    iswitch   workers send their vectors to the switch, which sums them and broadcasts the sums
    copy      the same workers, sockets and packets, but the switch sends every packet back to
              its sender as it is: the same bytes in, the same bytes out, nothing added

The last column is copy's median over iswitch's: the part of the no-aggregation rate that is left.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import platform
import signal
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

import numpy as np

from iswitch.arbiter import Traffic, classify
from iswitch.engine import Engine
from iswitch.packets import Burst, Outgoing
from iswitch.ports.udp import UdpPort
from iswitch.switch import Switch
from iswitch.wire import TOS_DATA
from worker_lib import Worker

# The paper's four gradients (its KB and MB are of 1024): PPO, DDPG, A2C, DQN.
SIZES = {"40 kB": 10_247, "157 kB": 40_327, "3.31 MB": 866_439, "6.41 MB": 1_681_062}


class CopySwitch(Switch):
    """Sends data back to where it came from; control as ever."""

    def receive(self, burst: Burst, now: float) -> list[Outgoing]:
        if classify(burst.tos) is Traffic.DATA:
            return [Outgoing((burst.peer,), TOS_DATA, burst.rows, burst.tail)]
        return super().receive(burst, now)


def serve(kind: type[Switch], spin: float, offload: bool, address: Connection) -> None:
    machine = kind()
    engine = Engine(machine, UdpPort(("127.0.0.1", 0), offload=offload), spin=spin)
    signal.signal(signal.SIGTERM, lambda *_: engine.stop())
    address.send(tuple(engine.port.address[:2]))
    engine.run()
    usage = os.times()
    address.send((usage.user + usage.system, dict(machine.counters)))


def work(
    addresses: list[tuple[str, int]],
    sizes: list[int],
    rounds: list[int],
    workers: int,
    offload: bool,
    barrier: Barrier,
    results: Connection,
) -> None:
    for job, (numel, count) in enumerate(zip(sizes, rounds, strict=True)):
        vector = np.random.default_rng(os.getpid()).integers(-9, 9, numel).astype(np.float32)
        out = np.empty_like(vector)
        members = [Worker(a, job, numel, workers, offload=offload) for a in addresses]
        times = np.empty((count, len(members), 2))
        for i in range(-max(2, count // 10), count):
            for k, member in enumerate(members):
                barrier.wait()
                start = time.monotonic()
                member.allreduce(vector, out)
                if i >= 0:
                    times[i, k] = start, time.monotonic()
        barrier.wait()
        for member in members:
            member.leave()
        results.send(times)


def row(name: str, seconds: np.ndarray, numel: int, workers: int, ratio: str = "") -> str:
    ms = seconds * 1e3
    low, p50, p99, high = (
        ms.min(),
        float(np.median(ms)),
        float(np.percentile(ms, 99)),
        ms.max(),
    )
    rate = numel * 4 * workers * 8 / (p50 / 1e3) / 1e9
    return f"{name:9}{low:9.3f}{p50:9.3f}{p99:9.3f}{high:9.3f}{len(ms):7}{rate:9.1f}   {ratio}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0, help="roughly, for each size")
    parser.add_argument("--sizes", type=int, nargs="*", help="elements; default: the paper's")
    parser.add_argument("--spin", type=float, default=0.0, help="as of `iswitch switch`")
    parser.add_argument("--no-offload", action="store_true")
    args = parser.parse_args()
    offload = not args.no_offload
    sizes = {str(n): n for n in args.sizes} if args.sizes else SIZES
    rounds = [max(20, min(2000, int(args.seconds * 2e7 / (n + 2e4)))) for n in sizes.values()]

    context = mp.get_context("spawn")
    servers, ends = [], []
    for kind in (Switch, CopySwitch):
        end, other = context.Pipe()
        server = context.Process(target=serve, args=(kind, args.spin, offload, other))
        server.start()
        servers.append(server)
        ends.append(end)
    addresses = [end.recv() for end in ends]
    barrier = context.Barrier(args.workers)
    pipes, workers = [], []
    for _ in range(args.workers):
        end, other = context.Pipe()
        job = (addresses, list(sizes.values()), rounds, args.workers, offload, barrier, other)
        worker = context.Process(target=work, args=job)
        worker.start()
        pipes.append(end)
        workers.append(worker)

    print(f"command: python -m tests.bench.loopback {' '.join(sys.argv[1:])}".rstrip())
    print(f"machine: {os.cpu_count()} cores, Linux {platform.release()}, NumPy {np.__version__}")
    print(f"{args.workers} workers, float32; ms; Gbit/s: what the switch takes in, at p50\n")
    print(f"{'':9}{'min':>9}{'p50':>9}{'p99':>9}{'max':>9}{'n':>7}{'Gbit/s':>9}   copy/iswitch")
    for name, numel in sizes.items():
        times = np.stack([pipe.recv() for pipe in pipes])  # worker, round, kind, (start, end)
        seconds = times[..., 1].max(axis=0) - times[..., 0].min(axis=0)
        pairs = seconds[:, 1] / seconds[:, 0]
        quartiles = np.percentile(pairs, [25, 50, 75])
        ratio = np.median(seconds[:, 1]) / np.median(seconds[:, 0])
        print(f"{name} ({numel} elements)")
        print(row("  iswitch", seconds[:, 0], numel, args.workers, f"{ratio:.2f}"))
        spread = "pairs {1:.2f} ({0:.2f}..{2:.2f})".format(*quartiles)
        print(row("  copy", seconds[:, 1], numel, args.workers, spread), flush=True)
    for worker in workers:
        worker.join()
    for name, server, end in zip(("iswitch", "copy"), servers, ends, strict=True):
        server.terminate()
        cpu, counters = end.recv()
        server.join()
        drops = {k: counters[k] for k in ("duplicate", "late", "rx_overflow") if counters[k]}
        print(f"{name}: switch process {cpu:.1f} s of CPU {drops or ''}")


if __name__ == "__main__":
    main()
