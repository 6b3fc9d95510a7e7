"""A job's allreduces while a stranger floods the switch: `python -m tests.bench.stranger`.

Blocks of rounds are taken in turns:

    quiet      the stranger is silent
    elsewhere  it sends to a socket that nobody reads, on the same machine: what its sending costs
    switch     it sends the same to the switch

A round is from a common start to the last worker's end, and its sums are compared with the exact
ones, whatever comes. The ratio that tells what the switch does with a flood is switch over
elsewhere: the machine's cores serve all of them. `reached` is what the stranger really sent;
`sender` and `switch` are cores that each has used meanwhile, `us` what a datagram of the stranger
costs the switch process (its use in `switch` beside `elsewhere`, per datagram, at the job's rate).
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import platform
import signal
import socket
import sys
import time
from contextlib import ExitStack, nullcontext
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from iswitch.core.format.wire import Shape
from tests.bench.flood import KINDS, Flood, Pace
from tests.bench.rig import SWITCH_PORT, Place, Start, place
from tests.bench.rig import serve as serve_raw
from topologies import Topology
from worker_lib import Worker

SIZES = {"157 kB": 40_327, "3.31 MB": 866_439}
STRANGER = "127.0.0.9"  # not the workers' own: their ports would be among its own
MODES = ("quiet", "elsewhere", "switch")
SETTLE = 0.05  # seconds after the stranger has changed its mind
TICKS = os.sysconf("SC_CLK_TCK")


def serve(report: Connection) -> None:
    """A switch on a UDP socket."""
    from iswitch.core.switch import Switch
    from iswitch.ports.engine import Engine
    from iswitch.ports.udp import UdpPort

    switch = Switch()
    port = UdpPort(("127.0.0.1", 0), counters=switch.counters, members=switch.sources)
    engine = Engine(switch, port)
    signal.signal(signal.SIGTERM, lambda *_: engine.stop())
    report.send(tuple(port.address[:2]))
    engine.run()
    engine.port.close()
    usage = os.times()
    report.send((usage.user, usage.system, dict(switch.counters)))


class Task(NamedTuple):
    """What all processes of one measurement know."""

    kind: str
    many: bool
    rate: float
    numel: int
    workers: int
    blocks: int
    rounds: int  # of a block
    switch: tuple[str, int]
    process: int  # the switch's


def flood(task: Task, where: Place | None, mode: Any, report: Connection) -> None:
    """The stranger: does what `mode` says, until that is -1."""
    source = where.address if where else STRANGER
    with where or nullcontext():
        sender = Flood(task.kind, Shape.of(task.numel), task.many, source)
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        sink.bind((source, 0))
    targets = {1: sink.getsockname(), 2: task.switch}
    pace = Pace(sender, task.rate)
    used = np.zeros((len(MODES), 3))  # datagrams, seconds, seconds of CPU
    now = 0
    began = (0, time.monotonic(), time.process_time())
    report.send("ready")
    while now >= 0:
        if now:
            pace.step(targets[now])
        else:
            time.sleep(0.001)
        if mode.value != now:
            ended = (sender.sent, time.monotonic(), time.process_time())
            used[now] += np.subtract(ended, began)
            began, now = ended, mode.value
            pace.begin()
    report.send(used)


def cpu(process: int) -> float:
    """Seconds of CPU that a process has used."""
    with open(f"/proc/{process}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def check(out: np.ndarray, numel: int, workers: int) -> None:
    """Sums are exact: all elements are small integers."""
    parts = [np.random.default_rng(rank).integers(-9, 9, numel) for rank in range(workers)]
    assert np.array_equal(out, np.sum(parts, axis=0))


def work(
    task: Task,
    rank: int,
    where: Place | None,
    job: int,
    start: Start,
    mode: Any,
    report: Connection,
) -> None:
    numel = task.numel
    vector = np.random.default_rng(rank).integers(-9, 9, numel).astype(np.float32)
    out = np.empty_like(vector)
    with where or nullcontext():
        member = Worker(task.switch, job, numel, task.workers)
    times = np.empty((len(MODES), task.blocks * task.rounds, 2))
    used = np.zeros((len(MODES), 2))  # by the switch: seconds, seconds of CPU
    for block in range(-1, task.blocks):
        for k in range(len(MODES)):
            start.wait()
            if rank == 0:
                mode.value = k
                time.sleep(SETTLE)
            start.wait()
            before = time.monotonic(), cpu(task.process)
            for i in range(task.rounds):
                out.fill(np.nan)
                began = start.wait()
                member.allreduce(vector, out)
                if block >= 0:
                    times[k, block * task.rounds + i] = began, time.monotonic()
                check(out, numel, task.workers)
            start.wait()
            if block >= 0:
                used[k] += np.subtract((time.monotonic(), cpu(task.process)), before)
    if rank == 0:
        mode.value = -1
    start.wait()
    member.leave()
    report.send((times, used, member.stats()["helps"]))


def measure(context: Any, task: Task, places: list[Place | None], job: int) -> None:
    """One kind of flood, one size."""
    start, mode = Start(context, task.workers), context.Value("i", 0, lock=False)
    ends, processes = [], []
    for rank, where in enumerate(places):
        end, other = context.Pipe()
        last = rank == task.workers
        arguments: tuple[Any, ...] = (task, where, mode, other)
        if not last:
            arguments = (task, rank, where, job, start, mode, other)
        processes.append(context.Process(target=flood if last else work, args=arguments))
        ends.append(end)
    processes[-1].start()
    ends[-1].recv()
    for process in processes[:-1]:
        process.start()
    found = [end.recv() for end in ends[:-1]]
    sent = ends[-1].recv()
    for process in processes:
        process.join()
    times = np.stack([times for times, _, _ in found])
    seconds = times[..., 1].max(axis=0) - times[..., 0].min(axis=0)  # mode, round
    used = found[0][1]
    helps = sum(helps for _, _, helps in found)
    blocks = np.median(seconds.reshape(len(MODES), task.blocks, -1), axis=2)
    for k, name in enumerate(MODES):
        low, p50, high = np.percentile(seconds[k] * 1e3, [25, 50, 75])
        line = f"  {name:10}{p50:9.3f} ({low:.3f}..{high:.3f})".ljust(38)
        line += f"{used[k, 1] / used[k, 0]:8.2f}"
        if k:
            datagrams, length, busy = sent[k]
            line += f"{busy / length:8.2f}{datagrams / length / 1e3:9.1f}"
        if k == 2:
            each = (used[2, 1] / used[2, 0] - used[1, 1] / used[1, 0]) / (datagrams / length)
            ratios = np.percentile(blocks[2] / blocks[1], [25, 50, 75])
            line += "{:8.2f}   {:.2f} ({:.2f}..{:.2f})".format(each * 1e6, *ratios[[1, 0, 2]])
            line += f", quiet: {np.median(blocks[2] / blocks[0]):.2f}"
        print(line, flush=True)
    if helps:
        print(f"  {helps} Helps of workers")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", choices=("loopback", "raw"), default="loopback")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rate", type=float, default=100_000, help="datagrams per second")
    parser.add_argument(
        "--kinds", nargs="*", choices=KINDS, default=[kind for kind in KINDS if kind != "misfit"]
    )
    parser.add_argument("--sizes", type=int, nargs="*", help="elements; default: 157 kB, 3.31 MB")
    parser.add_argument("--blocks", type=int, default=8, help="of rounds, each way")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a block, roughly")
    return parser


def print_head(args: argparse.Namespace, root: bool) -> None:
    print(f"command: python -m tests.bench.stranger {' '.join(sys.argv[1:])}".rstrip())
    print(f"machine: {os.cpu_count()} cores, Linux {platform.release()}, NumPy {np.__version__}")
    print(f"{args.workers} workers, {args.world}; medians (quartiles) in ms, ratios of blocks")
    if not root:
        print("floods from ever new source ports are left out: they need root")
    print(f"{'':38}{'switch':>8}{'sender':>8}{'reached':>9}{'us':>8}   switch/elsewhere")


def main() -> None:
    parser = arguments()
    args = parser.parse_args()
    root = os.geteuid() == 0
    if args.world == "raw" and not root:
        parser.error("--world raw makes network namespaces, and needs root")
    sizes = {str(n): n for n in args.sizes} if args.sizes else SIZES
    context = mp.get_context("spawn")
    print_head(args, root)
    with ExitStack() as stack:
        end, other = context.Pipe()
        places: list[Place | None] = [None] * (args.workers + 1)
        if args.world == "raw":
            from topologies.netns import Network

            topology = Topology.parse(f"star:{args.workers + 1}")
            network = stack.enter_context(Network(topology, prefix="iswb"))
            places = [place(network, f"h{i + 1}") for i in range(args.workers + 1)]
            server = context.Process(target=serve_raw, args=(place(network, "s1"), other))
            switch = (str(topology.address("s1")), SWITCH_PORT)
        else:
            server = context.Process(target=serve, args=(other,))
        server.start()
        came = end.recv()
        if args.world == "loopback":
            switch = came
        job = 0
        for kind in args.kinds:
            for many in (False, True)[: 1 + root]:
                for name, numel in sizes.items():
                    job += 1
                    ports = "ever new ports" if many else "one port"
                    print(f"{kind} from {ports}, {name}", flush=True)
                    rounds = max(5, min(300, int(args.seconds * 1e7 / (numel + 2e4) / 3)))
                    task = Task(kind, many, args.rate, numel, args.workers, args.blocks, rounds,
                                switch, server.pid or 0)  # fmt: skip
                    measure(context, task, places, job)
        server.terminate()
        user, system, counters = end.recv()
        server.join()
    shown = {k: v for k, v in counters.items() if v and not k.startswith("tx")}
    print(f"\nswitch: {user:.1f} + {system:.1f} s of CPU (user, system); {shown}")


if __name__ == "__main__":
    main()
