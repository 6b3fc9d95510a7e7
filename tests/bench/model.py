"""How fast the model is: `python -m tests.bench.model` (docs/simulate.md).

An allreduce of 8,192 workers in a fat tree, once with equal starts, so that all workers are alike,
and once with starts that all differ, so that nothing is.
"""

from __future__ import annotations

import resource
import time

import numpy as np

from iswitch.core.format.wire import Shape
from iswitch.sim.model.aggregation import Window, aggregate
from iswitch.sim.model.fabric import Fabric
from topologies import Topology

DQN = 1_681_062  # elements of 6.41 MiB


def main() -> None:
    """Measure and print."""
    began = time.perf_counter()
    fabric = Fabric.of(Topology.parse("fattree:k=32,rate=10Gbit,delay=1us"))
    workers, shape = len(fabric.hosts), Shape.of(DQN)
    print(f"{workers:,} workers; to read the network {time.perf_counter() - began:.1f} s")
    packets = 2 * workers * shape.segments
    drawn = np.random.default_rng(1).uniform(0, 1e-3, workers)
    for what, starts in (("equal starts", np.zeros(workers)), ("all starts differ", drawn)):
        for sharing in (workers, 1):
            window = Window.of(shape, sharing, 1 << 20)
            began, cpu = time.perf_counter(), time.process_time()
            ends = aggregate(fabric, shape, starts, window)
            took, cpu = time.perf_counter() - began, time.process_time() - cpu
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(
                f"{what}, windows of {window.ceiling} segments: {ends.max() * 1e3:.2f} ms, in "
                f"{took:.2f} s ({cpu:.2f} s of CPU), {packets / took / 1e6:.1f} million packets a "
                f"second of workers, {peak:.2f} GiB"
            )


if __name__ == "__main__":
    main()
