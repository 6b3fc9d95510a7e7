"""`python -m tests.support.p4_worker NUMEL ROUNDS`: a worker whose sums are exact in any order."""

from __future__ import annotations

import os
import sys

import numpy as np

from worker_lib import Worker


def main() -> None:
    """Sum up; say how large segments are."""
    numel, rounds = map(int, sys.argv[1:])
    with Worker.from_env(numel) as worker:
        rank, workers = int(os.environ["RANK"]), worker.num_workers  # the switch numbers its own
        assert workers is not None
        numbers = np.arange(numel, dtype=np.float32) % 1000
        for round_ in range(rounds):
            total = worker.allreduce(numbers + rank + round_)
            mine = workers * (numbers + round_) + workers * (workers - 1) / 2
            assert np.array_equal(total, mine)
        print(worker.shape.elements, "elements a segment")


if __name__ == "__main__":
    main()
