"""One worker of a distributed training run: play, add up, update; a process of its own.

`python -m worker_lib.rl.train --switch HOST:PORT ...` prints a JSON object per line for whoever
started it: `joined`, one `iteration` each, one recorded `round`, and `done` or `error`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from iswitch.keyfiles import key_in
from worker_lib import Worker, WorkerError

from .actor_critic import ActorCritic, Settings

Report = Callable[[dict[str, Any]], None]


def encode(vector: np.ndarray[Any, np.dtype[np.float32]]) -> str:
    """A vector as text, to the last bit."""
    return base64.b64encode(vector.tobytes()).decode()


def train(worker: Worker, learner: ActorCritic, num_workers: int, report: Report) -> None:
    """Train with gradients averaged over all workers; report every iteration.

    The round in the middle is recorded: this worker's contribution and the aggregate it got.
    """
    iterations = learner.settings.iterations
    aggregate = np.empty_like(learner.weights)
    for iteration in range(iterations):
        episodes = len(learner.returns)
        start = time.perf_counter()
        gradient = learner.gradient()
        computed = time.perf_counter()
        worker.allreduce(gradient, out=aggregate)
        added = time.perf_counter()
        if iteration == iterations // 2:
            report(
                {
                    "event": "round",
                    "iteration": iteration,
                    "contribution": encode(gradient),
                    "aggregate": encode(aggregate),
                }
            )
        learner.update(aggregate / np.float32(num_workers))
        report(
            {
                "event": "iteration",
                "iteration": iteration,
                "returns": learner.returns[episodes:],
                "compute": computed - start,
                "aggregate": added - computed,
                "update": time.perf_counter() - added,
            }
        )


def main() -> int:
    """Be a worker process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--switch", required=True, metavar="HOST:PORT")
    parser.add_argument("--job", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--first-rank", type=int, default=0, help="of the members of this switch")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop

    def report(message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    settings = Settings(iterations=args.iterations)
    host, _, port = args.switch.rpartition(":")
    try:
        # Sums in rank order, and seeds by rank: the whole run can be repeated bit for bit.
        probe = ActorCritic(seed=0, weights_seed=args.seed, settings=settings)
        with Worker(
            (host, int(port)),
            args.job,
            probe.weights.size,
            args.workers,
            reproducible=True,
            key=key_in(os.environ),
        ) as worker:
            rank = args.first_rank + worker.rank
            report({"event": "joined", "rank": rank, "pid": os.getpid()})
            seed = args.seed * 1000 + rank
            learner = ActorCritic(seed=seed, weights_seed=args.seed, settings=settings)
            train(worker, learner, args.workers, report)
            report(
                {
                    "event": "done",
                    "weights": hashlib.sha256(learner.weights.tobytes()).hexdigest(),
                    "elements": learner.weights.size,
                    "stats": worker.stats(),
                }
            )
    except WorkerError as error:
        report({"event": "error", "message": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
