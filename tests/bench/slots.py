"""What slots cost: an allreduce of 6.41 MB in virtual time, by slots and by delay of the links.

Run `python -m tests.bench.slots [--write docs/slots.md]`. Four workers sum 1,681,062 float32 over
links of 10 Gbit/s, packet by packet; switch and hosts take no time. Sums are checked. The times are
virtual: the same on every machine.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from iswitch.core.format.wire import Shape
from iswitch.core.sums.numpy_plane import memory_needed
from topologies.virtual.notebook import Seat, simulate
from worker_lib import Worker

NUMEL = 1_681_062
SLOTS = (0, 4096, 2048, 1024, 512, 256, 128, 64)
DELAYS = (
    "1us",
    "10us",
    "50us",
    "200us",
)  # of a link; a contribution and its aggregate pass one each
RATE, PACKET = 10e9, 8 * 1500
ROUNDS = 3  # the first one opens the window, and does not count


def work(seat: Seat) -> float:
    """Sum some vectors; return the seconds of the fastest round but the first."""
    vector = np.arange(NUMEL, dtype=np.float32) % 7
    took = []
    with Worker(numel=NUMEL, **seat.arguments) as worker:
        for _ in range(ROUNDS):
            began = time.monotonic()
            total = worker.allreduce(vector)
            took.append(time.monotonic() - began)
            assert (total == 4 * vector).all()
    return min(took[1:])


def line(slots: int) -> str:
    """Measure one line of the table."""
    needed = memory_needed(Shape.of(NUMEL), False, True, slots=slots)
    cells = [f"{slots:,}" if slots else "whole vector", f"{needed / 2**20:.2f} MiB"]
    for delay in DELAYS:
        found = simulate(f"star:4,rate=10Gbit,delay={delay}", work, slots=slots, grain=1)
        cells.append(f"{1e3 * max(found):.2f}")
    return f"| {' | '.join(cells)} |"


def table() -> list[str]:
    """Measure the whole table."""
    heads = [f"{delay.removesuffix('us')} µs" for delay in DELAYS]
    under_way = [2 * int(delay.removesuffix("us")) * 1e-6 * RATE / PACKET for delay in DELAYS]
    product = [f"{count:.0f}" for count in under_way]
    return [
        f"| slots | memory | {' | '.join(heads)} |",
        f"|---|---:|{'---:|' * len(heads)}",
        f"| segments on the way | | {' | '.join(product)} |",
        *map(line, SLOTS),
    ]


def main() -> None:
    """Print the table, or write it between the marks of a page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", type=Path)
    page = parser.parse_args().write
    found = "\n".join(table())
    if page is None:
        print(found)
        return
    before, rest = page.read_text().split("<!-- table -->\n")
    _, after = rest.split("<!-- end -->\n")
    page.write_text(f"{before}<!-- table -->\n{found}\n\n<!-- end -->\n{after}")


if __name__ == "__main__":
    main()
