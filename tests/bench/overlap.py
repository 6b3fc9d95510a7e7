"""Aggregation while backward goes on: `python -m tests.bench.overlap`.

Workers train the DQN network of the paper's first workload (1,681,062 float32 parameters, 6.41 MB)
with DistributedDataParallel over gloo and the hook of worker_lib.torch. In turns, from a common
start, each worker measures

    compute     forward and backward without any communication (`no_sync`)
    aggregate   the average of as many gradients, with nothing to compute
    in turn     the one, and then the other
    overlapped  forward and backward with the hook, until all gradients are averaged

A round's time is the slowest worker's. Medians (quartiles), and the part of the aggregation that is
hidden: (in turn - overlapped) / aggregate. In the world netns (needs root) workers are on hosts of
their own around a raw switch, with links of `--rate`; there the wire takes time in which a core
can compute. On loopback nothing but the cores does anything, so what is hidden there is only their
idle time.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np

WAYS = ("compute", "aggregate", "in turn", "overlapped")
PARAMETERS = 1_681_062


def network() -> Any:
    """The DQN of one input frame and six actions, as in Nature (2015)."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 6),
    )  # fmt: skip


def work(
    rank: int,
    args: argparse.Namespace,
    where: Any,
    switch: tuple[str, int],
    start: Any,
    results: Any,
) -> None:
    with where or nullcontext():
        import torch
        from torch import distributed
        from torch.nn.parallel import DistributedDataParallel

        from worker_lib.torch import SwitchState, ddp_hook

        torch.set_num_threads(1)
        if where is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = where.ifnames[0]
        distributed.init_process_group("gloo", args.store, rank=rank, world_size=args.workers)
        torch.manual_seed(1)
        model = DistributedDataParallel(network(), bucket_cap_mb=args.bucket)
        state = SwitchState(switch, job=100)
        sizes = []  # of the buckets that came to the hook

        def counted(state: SwitchState, bucket: Any) -> Any:
            sizes.append(bucket.buffer().numel())
            return ddp_hook(state, bucket)

        counted.__annotations__.clear()  # of which DDP only knows those that are no text
        model.register_comm_hook(state, counted)
        assert sum(p.numel() for p in model.parameters()) == PARAMETERS
        frames = torch.randn(args.batch, 1, 84, 84)
        flat = torch.zeros(PARAMETERS)

        def compute() -> None:
            with model.no_sync():
                model(frames).square().mean().backward()

        def aggregate() -> None:
            state.average(flat).wait()

        def in_turn() -> None:
            compute()
            aggregate()

        def overlapped() -> None:
            model(frames).square().mean().backward()

        ways: list[Callable[[], None]] = [compute, aggregate, in_turn, overlapped]
        times = timed(ways, args.rounds, start, model.zero_grad)
        buckets = sizes[-sizes[::-1].index(sizes[-1], 1) :] if len(set(sizes)) > 1 else sizes[:1]
        start.wait()
        state.close()
        results.send((times, buckets))
        results.recv()
        os._exit(0)  # without gloo's destructors


def timed(
    ways: list[Callable[[], None]], rounds: int, start: Any, prepare: Callable[[], None]
) -> np.ndarray:
    """Start and end of each way in each round, in seconds; shape (rounds, ways, 2)."""
    times = np.empty((rounds, len(ways), 2))
    for i in range(-3, rounds):  # the first make DDP's buckets and the pages of memory
        for k, way in enumerate(ways):
            prepare()
            began = start.wait()
            way()
            if i >= 0:
                times[i, k] = began, time.monotonic()
    return times


def report(seconds: np.ndarray, buckets: int, args: argparse.Namespace) -> None:
    medians = {}
    print(f"{args.world}: {args.workers} workers, batch {args.batch}, buckets of {buckets}, ms")
    for k, name in enumerate(WAYS):
        low, middle, high = np.percentile(seconds[:, k], [25, 50, 75]) * 1e3
        medians[name] = middle
        print(f"{name:12}{middle:9.1f}  ({low:.1f}..{high:.1f})   n = {len(seconds)}")
    one_by_one = medians["compute"] + medians["aggregate"]
    hidden = (seconds[:, 2] - seconds[:, 3]) / seconds[:, 1]
    low, middle, high = np.percentile(hidden, [25, 50, 75]) * 100
    print(
        f"overlapped / (compute + aggregate) = {medians['overlapped'] / one_by_one:.2f}, "
        f"overlapped / in turn = {medians['overlapped'] / medians['in turn']:.2f}; "
        f"hidden {middle:.0f} % ({low:.0f}..{high:.0f}) of the aggregation"
    )


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", choices=["loopback", "netns"], default="loopback")
    parser.add_argument("--rate", default="1gbit", help="of each link, netns")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--bucket", type=float, help="MiB at most; default: as DDP has it")
    return parser


@contextmanager
def namespaces(args: argparse.Namespace, context: Any) -> Iterator[tuple[list[Any], Any]]:
    """Run a switch in namespaces; the places of the workers, and the switch's address."""
    from tests.bench.rig import SWITCH_PORT, place, serve
    from topologies import Topology
    from topologies.netns import Network

    topology = Topology.parse(f"star:{args.workers},rate={args.rate}")
    with Network(topology, prefix="iswo") as net:
        end, other = context.Pipe()
        server = context.Process(target=serve, args=(place(net, "s1"), other), daemon=True)
        server.start()
        end.recv()
        hosts = [place(net, f"h{rank + 1}") for rank in range(args.workers)]
        yield hosts, (str(topology.address("s1")), SWITCH_PORT)
        server.terminate()
        end.recv()
        server.join()


def main() -> None:
    parser = arguments()
    args = parser.parse_args()
    print(f"command: python -m tests.bench.overlap {' '.join(sys.argv[1:])}".rstrip())
    print(f"machine: {os.cpu_count()} cores, Linux {platform.release()}", flush=True)

    from tests.bench.rig import Start

    context = mp.get_context("spawn")
    with ExitStack() as stack:
        places: list[Any] = [None] * args.workers
        host = "127.0.0.1"
        if args.world == "netns":
            places, switch = stack.enter_context(namespaces(args, context))
            host = places[0].address
        else:
            from tests.conftest import running_switch

            _, switch = stack.enter_context(running_switch())
        args.store = f"tcp://{host}:29517"
        start = Start(context, args.workers)
        pipes, workers = [], []
        for rank in range(args.workers):
            end, other = context.Pipe()
            target = (rank, args, places[rank], switch, start, other)
            workers.append(context.Process(target=work, args=target, daemon=True))
            workers[-1].start()
            pipes.append(end)
        found = [pipe.recv() for pipe in pipes]
        times = np.stack([times for times, _ in found])  # worker, round, way, (start, end)
        report(times[..., 1].max(axis=0) - times[..., 0].min(axis=0), found[0][1], args)
        for pipe, worker in zip(pipes, workers, strict=True):
            pipe.send("go")
            worker.join()


if __name__ == "__main__":
    main()
