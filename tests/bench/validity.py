"""Rounds in namespaces beside the same rounds in virtual time: `python -m tests.bench.validity`.

Root is needed. Four sizes, two rates and two forms of network; printed are the medians, and by how
much real time is longer: of the median round, and of the tenth percentile, which other work on the
machine disturbs less.
"""

from __future__ import annotations

import argparse
from statistics import median

import numpy as np

from iswitch.lab.bench.fidelity import FORMS, rounds
from iswitch.lab.bench.plan import PAPER, Size
from topologies import simulate
from topologies.virtual.notebook import Seat
from worker_lib import Worker

ROUNDS = 4  # in virtual time, where all are alike


def virtual(form: str, rate: str, size: Size) -> float:
    """The median seconds of a round in virtual time."""

    def work(seat: Seat) -> list[float]:
        with Worker(numel=size.numel, **seat.arguments) as worker:
            for _ in range(ROUNDS):
                worker.allreduce(np.zeros(size.numel, np.float32))
            return list(worker.allreduce_seconds)

    found: list[list[float]] = simulate(f"{form},rate={rate}", work)
    return median(found[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", default="100Mbit,1Gbit")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each real measurement")
    args = parser.parse_args()
    print(f"{'network':24}{'size':>10}{'virtual, ms':>13}{'real, ms':>11}{'median':>9}{'p10':>9}")
    for rate in args.rate.split(","):
        for form in FORMS:
            for size in PAPER.values():
                took = rounds(form, rate, size, args.seconds)
                wanted = virtual(form, rate, size)
                p10, middle = np.percentile(took, [10, 50])
                print(
                    f"{form},rate={rate:10}"[:24].ljust(24)
                    + f"{size.label:>10}{wanted * 1e3:13.3f}{middle * 1e3:11.3f}"
                    f"{middle / wanted - 1:+9.1%}{p10 / wanted - 1:+9.1%}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
