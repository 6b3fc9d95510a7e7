"""Allreduce over links that lose packets: `python -m tests.bench.loss`.

Workers in namespaces around raw switches, one of them with perfect links, the others with links
that lose packets in both directions (as `loss=` of a topology does it); each worker has a host in
each network. Rounds are taken in turns, each from a common start to the last worker's end; every
sum is compared with the exact one. Ratios are of medians, and of the rounds in turn (quartiles).
Needs root.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection

import numpy as np

from iswitch.faults.impairment import DIRECTIONS, Impairment
from tests.bench.rig import SIZES, SWITCH_PORT, Place, Start, place, serve
from topologies import Topology
from topologies.netns import Network
from worker_lib import Worker

COUNTED = ("sent", "sent_again", "useless", "probes", "helps", "helped")


def work(
    rank: int,
    workers: int,
    sizes: dict[str, int],
    rounds: list[int],
    places: Sequence[tuple[Place, str]],
    start: Start,
    results: Connection,
) -> None:
    for job, (numel, count) in enumerate(zip(sizes.values(), rounds, strict=True)):
        vectors = [np.random.default_rng(i).integers(-9, 9, numel) for i in range(workers)]
        vector, exact = vectors[rank].astype(np.float32), np.sum(vectors, axis=0)
        out = np.empty_like(vector)
        members = []
        for where, switch in places:
            with where:
                members.append(Worker((switch, SWITCH_PORT), job, numel, workers))
        times = np.empty((count, len(members), 2))
        for i in range(-max(2, count // 10), count):
            for k, member in enumerate(members):
                out[:] = 0
                began = start.wait()
                member.allreduce(vector, out)
                if i >= 0:
                    times[i, k] = began, time.monotonic()
                assert np.array_equal(out, exact), f"network {k}, round {i}: a wrong sum"
        start.wait()
        stats = [member.stats() for member in members]
        for member in members:
            member.leave()
        results.send((times, stats, members[0].shape.segments))


def row(name: str, seconds: np.ndarray, note: str) -> str:
    ms = np.percentile(seconds * 1e3, [0, 50, 99, 100])
    return f"  {name:9}" + "".join(f"{x:9.3f}" for x in ms) + f"{len(seconds):7}   {note}"


def report(losses: Sequence[str], sizes: dict[str, int], pipes: Sequence[Connection]) -> None:
    print(f"{'loss':11}{'min':>9}{'p50':>9}{'p99':>9}{'max':>9}{'n':>7}   / lossless")
    for name, numel in sizes.items():
        found = [pipe.recv() for pipe in pipes]
        times = np.stack([times for times, _, _ in found])  # worker, round, network, (start, end)
        seconds = times[..., 1].max(axis=0) - times[..., 0].min(axis=0)
        print(f"{name} ({numel} elements, {found[0][2]} segments)")
        for k, loss in enumerate(losses):
            low, middle, high = np.percentile(seconds[:, k] / seconds[:, 0], [25, 50, 75])
            ratio = np.median(seconds[:, k]) / np.median(seconds[:, 0])
            note = f"{ratio:.2f}, pairs {middle:.2f} ({low:.2f}..{high:.2f})   "
            rounds = len(seconds) + max(2, len(seconds) // 10)
            means = {c: np.mean([stats[k][c] for _, stats, _ in found]) / rounds for c in COUNTED}
            note += ", ".join(f"{value:.1f} {what}" for what, value in means.items())
            print(row(loss, seconds[:, k], note), flush=True)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0, help="roughly, for each size")
    parser.add_argument("--sizes", type=int, nargs="*", help="elements; default: the paper's")
    parser.add_argument("--loss", nargs="*", default=["1%", "10%"], help="on each link, each way")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def main() -> None:
    parser = arguments()
    args = parser.parse_args()
    sizes = {str(n): n for n in args.sizes} if args.sizes is not None else SIZES
    rounds = [max(20, min(500, int(args.seconds * 5e6 / (n + 2e4)))) for n in sizes.values()]
    losses = ["0", *args.loss]
    topology = Topology.parse(f"star:{args.workers}")
    context = mp.get_context("spawn")
    print(f"command: python -m tests.bench.loss {' '.join(sys.argv[1:])}".rstrip())
    print(f"machine: {os.cpu_count()} cores, Linux {platform.release()}, NumPy {np.__version__}")
    print(f"{args.workers} workers in namespaces, float32; ms; counts per worker and round")
    print(flush=True)
    with ExitStack() as stack:
        networks = [stack.enter_context(Network(topology, prefix="iswb")) for _ in losses]
        servers, ends = [], []
        for loss, network in zip(losses, networks, strict=True):
            lossy = Impairment.parse(f"loss={loss}")
            given = {(n, way): lossy for n in range(args.workers) for way in DIRECTIONS if lossy}
            end, other = context.Pipe()
            target = (place(network, "s1"), other, given, args.seed)
            servers.append(context.Process(target=serve, args=target))
            servers[-1].start()
            ends.append(end)
            end.recv()
        start = Start(context, args.workers)
        pipes, workers = [], []
        for rank in range(args.workers):
            end, other = context.Pipe()
            places = [(place(n, f"h{rank + 1}"), str(topology.address("s1"))) for n in networks]
            given_work = (rank, args.workers, sizes, rounds, places, start, other)
            workers.append(context.Process(target=work, args=given_work))
            workers[-1].start()
            pipes.append(end)
        report(losses, sizes, pipes)
        for worker in workers:
            worker.join()
        print()
        for loss, server, end in zip(losses, servers, ends, strict=True):
            server.terminate()
            user, system, counters = end.recv()
            server.join()
            names = ("lost_in", "lost_out", "duplicate", "late", "retransmitted", "rx_overflow")
            told = ", ".join(f"{name} {counters[name]}" for name in names if counters[name])
            injection = f" ({counters['injection']:.1f} of it to lose packets)" * (loss != "0")
            print(
                f"loss {loss}: switch process {user:.1f} + {system:.1f} s of CPU{injection}; {told}"
            )


if __name__ == "__main__":
    main()
