"""Allreduce between network namespaces, in three ways side by side: `python -m tests.bench.raw`.

Each turn is measured from a common start, for which all workers' timers are set, to the last
worker's end (A B C A B C ...). It is one allreduce, or several `--in-a-row`, as training does them:
then the start, at which all wake up with cold caches, counts for less.

    iswitch   workers send their vectors to the raw switch they are plugged into, which sums them
    forward   the same workers, packets and engine, but the switch only sends every packet back
    gloo      torch.distributed's allreduce on CPU tensors, through a bridge of the kernel's

Ratios are of medians, and of the rounds in turn (quartiles): above 1, iswitch is faster. Then
ordinary TCP, through the raw switch and through the bridge, also in turns. Needs root; without
torch, gloo is left out.
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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from iswitch.bench.plan import PAPER
from iswitch.chassis import Chassis
from iswitch.engine import Engine
from iswitch.forward import CopySwitch
from iswitch.impairment import Impairments
from iswitch.ports.impaired import ImpairedPorts
from iswitch.ports.memory import keep_freed, settle
from iswitch.ports.raw import RawPorts
from iswitch.switch import Switch
from topologies import Topology
from topologies.bridges import build_bridges
from topologies.namespaces import NAMESPACES, inside
from topologies.netns import Network
from worker_lib import Worker

SIZES = {size.label: size.numel for size in PAPER.values()}
SWITCH_PORT = 26963
TCP_BLOCK = 1 << 20


class Place(NamedTuple):
    """Where a process opens its sockets."""

    namespace: str
    ifnames: tuple[str, ...]
    address: str

    def __enter__(self) -> None:
        self_ = _entered.setdefault(self.namespace, ExitStack())
        descriptor = os.open(NAMESPACES / self.namespace, os.O_RDONLY)
        self_.callback(os.close, descriptor)
        self_.enter_context(inside(descriptor))

    def __exit__(self, *_: object) -> None:
        _entered.pop(self.namespace).close()


_entered: dict[str, ExitStack] = {}


def place(network: Network, node: str) -> Place:
    ifnames = tuple(port.ifname for port in network.topology.ports(node))
    return Place(network.namespace(node), ifnames, str(network.topology.address(node)))


def serve(
    kind: type[Switch],
    where: Place,
    spin: float,
    report: Connection,
    impairments: Impairments | None = None,
    seed: int = 0,
    replicate: bool = True,
    core: int | None = None,
) -> None:
    pin(core)
    switch = kind()
    with where:
        ports = RawPorts(where.ifnames, counters=switch.counters, replicate=replicate)
    address = socket.inet_aton(where.address)
    chassis = Chassis(switch, address, b"\2i" + address, ports.jacks, SWITCH_PORT)
    impaired = ImpairedPorts(ports, impairments, seed, switch.counters) if impairments else ports
    engine = Engine(chassis, impaired, spin=spin)
    signal.signal(signal.SIGTERM, lambda *_: engine.stop())
    keep_freed()
    settle()
    report.send("ready")
    engine.run()
    usage = os.times()
    report.send((usage.user, usage.system, dict(switch.counters)))


def pin(core: int | None) -> None:
    """Stay on one of the cores; None: on any."""
    if core is not None:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})


class Plan(NamedTuple):
    """What all workers do."""

    workers: int
    sizes: dict[str, int]
    rounds: list[int]
    switches: tuple[str, ...]
    gloo: str | None  # rank 0's address
    in_a_row: int  # allreduces in a turn
    pin: bool


def ways_of(plan: Plan) -> list[str]:
    """The ways to do an allreduce, in turns."""
    return ["iswitch", "forward"] + ["gloo"] * (plan.gloo is not None)


class Start:
    """Lets all workers begin at one time: released one after the other, they would not."""

    PAUSE = 0.001  # seconds in which all get to their timers

    def __init__(self, context: Any, workers: int) -> None:
        self._barrier = context.Barrier(workers)
        self._at = context.Value("d", 0.0, lock=False)

    def wait(self) -> float:
        """Wait for the others, then for the time; returns the time."""
        if self._barrier.wait() == 0:
            self._at.value = time.monotonic() + self.PAUSE
        self._barrier.wait()
        at: float = self._at.value
        time.sleep(max(0.0, at - time.monotonic()))
        return at


def join_gloo(plan: Plan, rank: int, where: Place) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = where.ifnames[0]
    distributed.init_process_group(
        "gloo", f"tcp://{plan.gloo}:29500", rank=rank, world_size=plan.workers
    )


Way = Callable[[], Callable[[], object]]  # makes ready for a round; what it returns is measured


def iswitch_allreduce(member: Worker, vector: np.ndarray, out: np.ndarray) -> Way:
    return lambda: lambda: member.allreduce(vector, out)


def gloo_allreduce(vector: np.ndarray, out: np.ndarray) -> Way:
    import torch
    from torch import distributed

    tensor = torch.from_numpy(out)

    def prepare() -> Callable[[], object]:
        out[:] = vector
        return lambda: distributed.all_reduce(tensor)

    return prepare


def work(plan: Plan, rank: int, places: Sequence[Place], start: Start, results: Connection) -> None:
    *own, last = places
    pin(rank if plan.pin else None)
    with ExitStack() as stack:
        if plan.gloo is not None:
            stack.enter_context(last)  # gloo opens sockets whenever it likes
            join_gloo(plan, rank, last)
        for job, (numel, count) in enumerate(zip(plan.sizes.values(), plan.rounds, strict=True)):
            vector = np.random.default_rng(rank).integers(-9, 9, numel).astype(np.float32)
            out = np.empty_like(vector)
            members = []
            for where, switch in zip(own, plan.switches, strict=True):
                with where:
                    address = (switch, SWITCH_PORT)
                    members.append(Worker(address, job, numel, plan.workers))
            ways = [iswitch_allreduce(member, vector, out) for member in members]
            if plan.gloo is not None:
                ways.append(gloo_allreduce(vector, out))
            times = np.empty((count, len(ways), 2))
            for i in range(-max(2, count // 10), count):
                for k, way in enumerate(ways):
                    run = way()
                    began = start.wait()
                    for _ in range(plan.in_a_row):
                        run()
                    if i >= 0:
                        times[i, k] = began, time.monotonic()
                    if i < 0 and (k == 0 or (k == 2 and plan.in_a_row == 1)):
                        check(out, numel, plan.workers)
            start.wait()
            stats = [member.stats() for member in members]
            segments = members[0].shape.segments
            for member in members:
                member.leave()
            results.send((times, stats, segments))
    if plan.gloo is not None:
        from torch import distributed

        start.wait()
        distributed.destroy_process_group()


def check(out: np.ndarray, numel: int, workers: int) -> None:
    """Sums are exact: all elements are small integers."""
    parts = [np.random.default_rng(rank).integers(-9, 9, numel) for rank in range(workers)]
    assert np.array_equal(out, np.sum(parts, axis=0))


def row(name: str, seconds: np.ndarray, note: str = "") -> str:
    ms = np.percentile(seconds * 1e3, [0, 50, 99, 100])
    return f"  {name:9}" + "".join(f"{x:9.3f}" for x in ms) + f"{len(seconds):7}   {note}"


def compare(plan: Plan, pipes: Sequence[Connection]) -> None:
    names = ways_of(plan)
    print(f"{'':11}{'min':>9}{'p50':>9}{'p99':>9}{'max':>9}{'n':>7}   / iswitch")
    for name, numel in plan.sizes.items():
        found = [pipe.recv() for pipe in pipes]
        times = np.stack([times for times, _, _ in found])  # worker, round, way, (start, end)
        seconds = (times[..., 1].max(axis=0) - times[..., 0].min(axis=0)) / plan.in_a_row
        again = sum(stats[0]["sent_again"] for _, stats, _ in found)
        packets = 2 * sum(segments for _, _, segments in found) / 1e6
        print(f"{name} ({numel} elements)" + f", {again} segments sent again" * bool(again))
        for k, way in enumerate(names):
            note = ""
            if k < 2:
                note = f"{packets / np.median(seconds[:, k]):.2f} Mpacket/s in and out   "
            if k:
                ratio = np.median(seconds[:, k]) / np.median(seconds[:, 0])
                low, middle, high = np.percentile(seconds[:, k] / seconds[:, 0], [25, 50, 75])
                note += f"{ratio:.2f}, pairs {middle:.2f} ({low:.2f}..{high:.2f})"
            print(row(way, seconds[:, k], note), flush=True)


def tcp_sink(where: Place, report: Connection) -> None:
    with where:
        listener = socket.create_server((where.address, 5001))
    buffer = bytearray(TCP_BLOCK)
    report.send("ready")
    while True:
        connection, _ = listener.accept()
        while connection.recv_into(buffer):
            pass
        connection.close()


def tcp_source(where: Place, to: str, turns: Connection) -> None:
    block = bytes(TCP_BLOCK)
    while (seconds := turns.recv()) is not None:
        with where:
            sock = socket.create_connection((to, 5001))
        began = time.monotonic()
        total = 0
        while (now := time.monotonic()) - began < seconds:
            total += sock.send(block)
        sock.close()
        turns.send(total * 8 / (now - began) / 1e9)


def ordinary_tcp(context: Any, networks: dict[str, Network], turns: int, seconds: float) -> None:
    """One connection from the second host to the first, through each network in turns."""
    processes, sources = [], {}
    for name, network in networks.items():
        end, other = context.Pipe()
        processes.append(context.Process(target=tcp_sink, args=(place(network, "h1"), other)))
        processes[-1].start()
        end.recv()
        sources[name], other = context.Pipe()
        address = str(network.topology.address("h1"))
        source = context.Process(target=tcp_source, args=(place(network, "h2"), address, other))
        source.start()
        processes.append(source)
    rates: dict[str, list[float]] = {name: [] for name in networks}
    for _ in range(turns):
        for name, source in sources.items():
            source.send(seconds)
            rates[name].append(source.recv())
    for process in processes:
        process.kill()
        process.join()
    print(f"\nordinary TCP, one connection, {turns} turns of {seconds:g} s")
    for name, found in rates.items():
        low, middle, high = np.percentile(found, [0, 50, 100])
        print(f"  {name:9} {middle:6.2f} Gbit/s ({low:.2f}..{high:.2f})")
    first, second = (np.median(found) for found in rates.values())
    print(f"  the raw switch carries {first / second:.2f} of what the bridge carries", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0, help="roughly, for each size")
    parser.add_argument("--sizes", type=int, nargs="*", help="elements; default: the paper's")
    parser.add_argument("--in-a-row", type=int, default=1, metavar="N", help="allreduces in a turn")
    parser.add_argument("--rate", help="of all links, such as 1Gbit; default: what the machine can")
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--spin", type=float, default=0.0, help="as of `iswitch switch`")
    parser.add_argument("--pin", action="store_true", help="each process to a core, in turns")
    parser.add_argument("--no-replicate", action="store_true", help="as of `iswitch switch`")
    parser.add_argument(
        "--no-offload", action="store_true", help="ethtool -K ... off: frames as on a wire"
    )
    parser.add_argument("--no-gloo", action="store_true")
    parser.add_argument("--no-tcp", action="store_true")
    args = parser.parse_args()
    sizes = {str(n): n for n in args.sizes} if args.sizes is not None else SIZES
    elements = args.seconds * 1e7 / args.in_a_row
    rounds = [max(20, min(1000, int(elements / (n + 2e4)))) for n in sizes.values()]
    gloo = not args.no_gloo and find_spec("torch") is not None
    rate = f",rate={args.rate}" if args.rate else ""
    topology = Topology.parse(f"star:{args.workers},mtu={args.mtu}{rate}")
    context = mp.get_context("spawn")
    print(f"command: python -m tests.bench.raw {' '.join(sys.argv[1:])}".rstrip())
    print(f"machine: {os.cpu_count()} cores, Linux {platform.release()}, NumPy {np.__version__}")
    print(f"{args.workers} workers in namespaces, float32, MTU {args.mtu}; ms")
    if not gloo:
        print("gloo left out: " + ("--no-gloo" if args.no_gloo else "pip install torch==2.13.0"))
    print(flush=True)
    with ExitStack() as stack:
        networks = [
            stack.enter_context(Network(topology, prefix="iswb", offload=not args.no_offload))
            for _ in range(3)
        ]
        build_bridges(networks[2])
        servers, ends = [], []
        for kind, network in zip((Switch, CopySwitch), networks, strict=False):
            end, other = context.Pipe()
            replicate, core = not args.no_replicate, 0 if args.pin else None
            target = (kind, place(network, "s1"), args.spin, other, None, 0, replicate, core)
            servers.append(context.Process(target=serve, args=target))
            servers[-1].start()
            ends.append(end)
            end.recv()
        switches = tuple(str(topology.address("s1")) for _ in servers)
        master = str(topology.address("h1")) if gloo else None
        plan = Plan(args.workers, sizes, rounds, switches, master, args.in_a_row, args.pin)
        start = Start(context, args.workers)
        pipes, workers = [], []
        for rank in range(args.workers):
            end, other = context.Pipe()
            places = [place(network, f"h{rank + 1}") for network in networks]
            workers.append(context.Process(target=work, args=(plan, rank, places, start, other)))
            workers[-1].start()
            pipes.append(end)
        compare(plan, pipes)
        for worker in workers:
            worker.join()
        if not args.no_tcp:
            pair = {"iswitch": networks[0], "bridge": networks[2]}
            ordinary_tcp(context, pair, 5, 1.0)
        gigabytes = (
            args.workers
            * 4e-9
            * args.in_a_row
            * sum(
                (count + max(2, count // 10)) * numel
                for count, numel in zip(rounds, sizes.values(), strict=True)
            )
        )
        print()
        for name, server, end in zip(("iswitch", "forward"), servers, ends, strict=True):
            server.terminate()
            user, system, counters = end.recv()
            server.join()
            packets = counters["rx_frames"] + counters["tx_frames"]
            drops = {k: counters[k] for k in ("duplicate", "late", "rx_overflow") if counters[k]}
            print(
                f"{name}: switch process {user:.1f} + {system:.1f} s of CPU (user, system), "
                f"{packets / (user + system) / 1e6:.2f} M frames in and out per second of CPU, "
                f"{(user + system) / gigabytes:.2f} s of CPU per GB received "
                f"{drops or ''}"
            )


if __name__ == "__main__":
    main()
