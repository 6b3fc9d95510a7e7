"""Rounds in namespaces beside the same rounds in virtual time: `python -m tests.bench.validity`.

Root is needed. Four sizes, two rates and two forms of network. Printed are the virtual times, on
links as they are simulated and on links with the bucket of tbf; the median in real time; and by how
much that is longer than both. A bucket lets up to 1 ms of a link's rate pass at once after a pause,
so the way from line to line hides in it.
"""

from __future__ import annotations

import argparse
from statistics import median

import numpy as np

from iswitch.faults import fifo
from iswitch.lab.bench.fidelity import FORMS, IN_A_ROW, rounds
from iswitch.lab.bench.plan import PAPER, WARM, Size
from iswitch.sim.grain import AUTO
from iswitch.virtual.computing import Plan
from topologies import Topology
from topologies.netns import token_bucket
from topologies.simulated import Simulation
from topologies.virtual.notebook import Floor, Seat
from worker_lib import Worker


class Bucket(fifo.Fifo):
    """A line with a bucket of tokens, which is full after a pause of `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def serve(
        self, ready: fifo.Times | float, service: fifo.Times, total: fifo.Times | None = None
    ) -> fifo.Times:
        """A packet leaves at once where tokens are left: these come at the line's rate."""
        return np.maximum(ready, super().serve(ready - self._seconds, service, total))


def virtual(form: str, rate: str, size: Size, bucket: bool) -> float:
    """The median seconds of a round in virtual time, of as many in a row as in real time."""
    topology = Topology.parse(f"{form},rate={rate}")
    simulation = Simulation(topology, latency=0.0, grain=AUTO)
    if bucket:
        tokens = token_bucket(topology.links[0])
        for link in simulation.network.links.values():
            link._line._fifo = Bucket(tokens["burst"] / tokens["rate"])

    def work(seat: Seat) -> list[float]:
        with Worker(numel=size.numel, **seat.arguments) as worker:
            for _ in range(WARM + IN_A_ROW):
                worker.allreduce(np.zeros(size.numel, np.float32))
            return list(worker.allreduce_seconds)[WARM:]

    return median(Floor[list[float]](simulation, Plan("zero")).run(work)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="100Mbit,1Gbit")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each real measurement")
    args = parser.parse_args()
    print(
        f"{'network':22}{'size':>10}{'virtual':>10}{'bucket':>10}{'real, ms':>10}{'over both':>16}"
    )
    for rate in args.rate.split(","):
        for form in FORMS:
            for size in PAPER.values():
                real = median(rounds(form, rate, size, args.seconds))
                plain, bucket = (virtual(form, rate, size, has) for has in (False, True))
                print(
                    f"{form},rate={rate}".ljust(22)
                    + f"{size.label:>10}{plain * 1e3:10.3f}{bucket * 1e3:10.3f}{real * 1e3:10.3f}"
                    f"{real / plain - 1:+8.1%}{real / bucket - 1:+8.1%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
