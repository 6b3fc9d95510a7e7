"""Asynchronous beside synchronous, with one slow worker: `python -m tests.bench.asynchronous`.

Workers on loopback that compute (sleep) for the same time, but for the last, which needs several
times as long. Both ways apply so many sums of N gradients to equal weights with the same update;
what is measured is how long that takes, and at how many gradients of each.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import platform
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from tests.conftest import running_switch
from worker_lib import AsynchronousWorker, Worker


def work(
    switch: tuple[str, int], mode: str, rank: int, options: argparse.Namespace, results: Connection
) -> None:
    numel, n = options.numel, options.workers
    compute = options.compute / 1000 * (options.slow if rank == n - 1 else 1)
    weights, moments = np.zeros(numel, np.float32), np.zeros(numel, np.float32)
    gradient = np.ones(numel, np.float32)

    def update(total: np.ndarray, contributions: int, _version: int) -> None:
        np.multiply(moments, np.float32(0.9), out=moments)
        np.add(moments, total / np.float32(contributions), out=moments)
        np.subtract(weights, np.float32(0.01) * moments, out=weights)

    gradients = 0
    stats: dict[str, Any] = {}
    if mode == "asynchronous":
        with AsynchronousWorker(switch, 1, numel, n, update=update, state=[weights, moments]) as a:
            mine = np.empty_like(weights)
            began, first = time.monotonic(), a.version
            while a.version < first + options.versions:
                version = a.read([mine])
                time.sleep(compute)
                gradients += a.contribute(gradient, version)
            took = time.monotonic() - began
            stats = a.stats()
    else:
        with Worker(switch, 2, numel, n) as worker:
            out = np.empty_like(gradient)
            began = time.monotonic()
            for version in range(options.versions):
                time.sleep(compute)
                update(worker.allreduce(gradient, out), n, version)
                gradients += 1
            took = time.monotonic() - began
    kept = ("stale", "behind", "staleness")
    results.send((rank, took, gradients, {key: stats[key] for key in kept if key in stats}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--numel", type=int, default=1_681_062, help="of a gradient (6.41 MB)")
    parser.add_argument("--compute", type=float, default=50.0, help="ms for a gradient")
    parser.add_argument("--slow", type=float, default=2.0, help="times, of the last worker")
    parser.add_argument("--versions", type=int, default=40)
    options = parser.parse_args()
    print(f"{platform.release()}, {mp.cpu_count()} cores, {vars(options)}")
    context = mp.get_context("spawn")
    with running_switch() as (_, switch):
        for mode in ("asynchronous", "synchronous"):
            pipes = [context.Pipe(duplex=False) for _ in range(options.workers)]
            processes = [
                context.Process(target=work, args=(switch, mode, rank, options, pipe[1]))
                for rank, pipe in enumerate(pipes)
            ]
            for process in processes:
                process.start()
            found = [pipe.recv() for pipe, _ in pipes]
            for process in processes:
                process.join()
            slowest = max(took for _, took, *_ in found)
            print(f"{mode}: {slowest:.2f} s, {options.versions / slowest:.1f} versions/s")
            for rank, took, gradients, stats in found:
                print(f"  worker {rank}: {took:.2f} s, {gradients} gradients sent {stats or ''}")


if __name__ == "__main__":
    main()
