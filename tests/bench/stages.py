"""Where the time of an allreduce goes, stage by stage: `python -m tests.bench.stages 10247`.

Four workers in namespaces around one raw switch do allreduces one after the other. In the switch
and in the first worker each stage is timed by a clock around it, less what other stages take in it;
the clocks themselves cost some 0.5 us a call. A stage also lasts while another process has its
core. Needs root.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import wraps
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import iswitch.ports.frames
import iswitch.ports.kernel.mmsg
from iswitch.core.sums.accelerator import NumPyAccelerator
from iswitch.core.switch import Switch
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.issuing import Issuer
from iswitch.ports.raw import RawPorts
from iswitch.ports.udp import UdpPort
from tests.bench.rig import SWITCH_PORT, Place, place, serve
from topologies import Topology
from topologies.netns import Network
from worker_lib import Worker
from worker_lib.protocol.aggregates import Aggregates
from worker_lib.protocol.express import Express
from worker_lib.protocol.session import Session
from worker_lib.protocol.transfer import Contribution

Stages = list[tuple[Any, str, str]]  # where a function is, its name, and what it does

SWITCH: Stages = [
    (RawPorts, "pull", "receive: which ports, arrays of frames"),
    (iswitch.ports.kernel.mmsg, "_recvmmsg", "receive: the system call, a copy"),
    (Chassis, "receive", "headers: which flow, are they sound"),
    (Switch, "receive", "whose contribution, to what, is it new"),
    (NumPyAccelerator, "_add", "add (the first: copy)"),
    (Issuer, "issue", "headers of the broadcast"),
    (RawPorts, "push", "send: descriptions"),
    (iswitch.ports.frames, "sendmmsg", "send: the system call, a copy, delivery"),
]
WORKER: Stages = [
    (Worker, "allreduce", "check arguments, turn the crank"),
    (Session, "begin", "begin the round"),
    (Session, "begin_express", "begin the round"),
    (Session, "transmissions", "what may be sent"),
    (Contribution, "fill", "lay out as packets, a copy"),
    (UdpPort, "push", "send: descriptions"),
    (iswitch.ports.kernel.mmsg, "sendmmsg", "send: the system call, a copy, delivery"),
    (Worker, "_step", "wait"),
    (Worker, "_express", "wait"),
    (UdpPort, "pull", "receive: bursts"),
    (iswitch.ports.kernel.mmsg, "_recvmmsg", "receive: the system call, a copy"),
    (Session, "receive", "which aggregates, is it new, what is lost"),
    (Aggregates, "_store", "put them into the vector, a copy"),
    (Express, "take", "put them into the vector, a copy"),
]


class Clock:
    """Seconds and calls of stages, each less those within."""

    def __init__(self, stages: Stages) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self._within = [0.0]
        for owner, name, stage in stages:
            setattr(owner, name, self._timed(getattr(owner, name), stage))

    def clear(self) -> None:
        self.seconds.clear()
        self.calls.clear()

    def _timed(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.calls[stage] += 1
            found = self._measure(stage, lambda: function(*args, **kwargs))
            return self._steps(stage, found) if isinstance(found, Iterator) else found

        return timed

    def _steps(self, stage: str, steps: Iterator[Any]) -> Iterator[Any]:
        end = object()
        while (step := self._measure(stage, lambda: next(steps, end))) is not end:
            yield step

    def _measure(self, stage: str, run: Callable[[], Any]) -> Any:
        self._within.append(0.0)
        began = time.perf_counter()
        try:
            return run()
        finally:
            took = time.perf_counter() - began
            self.seconds[stage] += took - self._within.pop()
            self._within[-1] += took

    def table(self, count: int) -> list[tuple[str, float, float]]:
        """Stage, calls and microseconds for each allreduce."""
        return [(k, self.calls[k] / count, s / count * 1e6) for k, s in self.seconds.items()]


def stages_of_switch(where: Place, rounds: int, report: Connection) -> None:
    clock = Clock(SWITCH)
    serve(where, report)
    report.send(clock.table(rounds))


def work(
    rank: int, numel: int, counts: tuple[int, int, int], where: Place, to: str, out: Connection
) -> None:
    workers, warm_up, count = counts
    clock = Clock(WORKER) if not rank else None
    with where:
        member = Worker((to, SWITCH_PORT), 1, numel, workers)
    vector = np.random.default_rng(rank).integers(-9, 9, numel).astype(np.float32)
    result = np.empty_like(vector)
    for _ in range(warm_up):
        member.allreduce(vector, result)
    if clock:
        clock.clear()
    began = time.perf_counter()
    for _ in range(count):
        member.allreduce(vector, result)
    seconds = time.perf_counter() - began
    out.send((seconds / count, clock.table(count) if clock else []))
    member.leave()


def show(who: str, wall: float, table: list[tuple[str, float, float]], stages: Stages) -> None:
    known = {stage: (calls, took) for stage, calls, took in table}
    print(f"\n{who:48}{'calls':>8}{'us':>10}{'%':>6}")
    for stage in dict.fromkeys(stage for _, _, stage in stages):
        calls, took = known.get(stage, (0.0, 0.0))
        print(f"  {stage:46}{calls:8.1f}{took:10.1f}{took / wall:6.0%}".rstrip())
    rest = wall - sum(took for _, took in known.values())
    print(f"  {'not in any of these':46}{'':8}{rest:10.1f}{rest / wall:6.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("numel", type=int, help="elements; 10247 are 40 kB, 1681062 are 6.41 MB")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--count", type=int, help="allreduces; default: for some seconds")
    args = parser.parse_args()
    count = args.count or max(20, min(2000, 30_000_000 // (args.numel + 10_000)))
    warm_up = count // 10 + 1
    print(f"command: python -m tests.bench.stages {' '.join(sys.argv[1:])}")
    print(f"machine: {os.cpu_count()} cores, Linux {platform.release()}, NumPy {np.__version__}")
    context = mp.get_context("spawn")
    topology = Topology.parse(f"star:{args.workers}")
    with Network(topology, prefix="iswb") as network:
        end, other = context.Pipe()
        target = (place(network, "s1"), warm_up + count, other)
        server = context.Process(target=stages_of_switch, args=target)
        server.start()
        end.recv()
        pipes, workers = [], []
        for rank in range(args.workers):
            pipe, other = context.Pipe()
            where, to = place(network, f"h{rank + 1}"), str(topology.address("s1"))
            given = (rank, args.numel, (args.workers, warm_up, count), where, to, other)
            workers.append(context.Process(target=work, args=given))
            workers[-1].start()
            pipes.append(pipe)
        found = [pipe.recv() for pipe in pipes]
        for worker in workers:
            worker.join()
        server.terminate()
        end.recv()
        wall = float(np.mean([seconds for seconds, _ in found])) * 1e6
        print(f"{args.workers} workers, {args.numel} elements: {wall:.1f} us an allreduce")
        show("switch", wall, end.recv(), SWITCH)
        show("worker 0", wall, found[0][1], WORKER)
        server.join()


if __name__ == "__main__":
    main()
