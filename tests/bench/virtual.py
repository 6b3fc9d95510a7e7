"""What a round in a simulated network costs the machine: `python -m tests.bench.virtual [GRAIN]`.

Real sessions and switches with 6.41 MB a worker, in one process. Printed are the processor's
seconds for a round (the median of several), and its seconds of virtual time. At last,
4,096 workers in three levels join and sum up 40 kB.
"""

from __future__ import annotations

import sys
import time
from statistics import median

from iswitch.sim.grain import Grain, grain_of
from tests.bench.many import Many
from tests.support.virtual import play
from topologies import Topology

NUMEL = 1_681_062
FORMS = ["star:4,rate=10Gbit", "star:16,rate=10Gbit", "star:64,rate=10Gbit", "rack:8x8,rate=10Gbit"]
ROUNDS = 4
MANY = "tree:16x16x16"


def cost(form: str, grain: Grain) -> tuple[float, float]:
    """Return the processor's seconds for a round, and its virtual seconds."""
    spent: list[float] = []
    ends = play(Topology.parse(form), NUMEL, grain, rounds=1 + ROUNDS, spent=spent)
    return median(spent[1:]), max(ends)  # the first one touches memory that is new


if __name__ == "__main__":
    for form in FORMS:
        seconds, virtual = cost(form, grain_of(sys.argv[1] if len(sys.argv) > 1 else "auto"))
        print(f"{form}: {seconds * 1000:.0f} ms for a round of {virtual * 1000:.3f} ms")
    began = time.process_time()
    many = Many(MANY)
    many.run(10.0)
    many.check_ranks()
    joined = time.process_time()
    many.round()
    ended = time.process_time()
    print(f"{MANY}: {joined - began:.1f} s to join, {ended - joined:.1f} s for a round of 40 kB")
