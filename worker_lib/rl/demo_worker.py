"""One worker of `iswitch demo`: play, add up, update; a process of its own.

`python -m worker_lib.rl.demo_worker --iterations N --seed S`, in the environment of `iswitch run`,
prints a JSON object per line for its parent: `joined`, one `iteration` each, a recorded `round`,
and `done` or `error`.

A killed worker may be started again. Then the job is reset, and all workers continue from the state
of the furthest one.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import signal
import sys
import time
from typing import Any

import numpy as np

from iswitch.virtual import process as virtual
from worker_lib import (
    AllreduceTimeout,
    JobReset,
    MembershipLost,
    RoundGone,
    Worker,
    WorkerError,
    catch_up,
)
from worker_lib.environment import number

from .actor_critic import ActorCritic, Settings
from .plan import report


def encode(vector: np.ndarray[Any, np.dtype[np.float32]]) -> str:
    """Encode a vector as Base64 text that keeps every bit."""
    return base64.b64encode(vector.tobytes()).decode()


class Training:
    """Trains one worker to the end, even while other workers are replaced.

    The middle round is recorded: this worker's contribution and the aggregate it received. A reset
    can interrupt a round that only some workers finished, so the first round after a later reset is
    recorded, too.

    Args:
        worker: a member of the job.
        learner: computes gradients and holds the weights.
        num_workers: number of gradients in each mean.
    """

    def __init__(self, worker: Worker, learner: ActorCritic, num_workers: int) -> None:
        self.worker = worker
        self.learner = learner
        self.num_workers = num_workers
        self._aggregate = np.empty_like(learner.weights)

    def run(self) -> None:
        """Train to the end; agree on a state again after every reset of the job."""
        while True:
            try:
                self._go_on()
                return
            except JobReset:
                pass  # all workers see this reset, and agree on a state again
            except (AllreduceTimeout, MembershipLost, RoundGone):
                self.worker.reset()

    def _go_on(self) -> None:
        """Take the state of the furthest worker and train on from it."""
        learner, iterations = self.learner, self.learner.settings.iterations
        start = catch_up(self.worker, learner.state(), learner.num_updates)
        learner.go_on_from(start)
        middle = iterations // 2
        for iteration in range(start, iterations):
            self._iterate(iteration, iteration == middle or middle < iteration == start)
        report(
            "done",
            weights=hashlib.sha256(learner.weights.tobytes()).hexdigest(),
            elements=learner.weights.size,
            stats=self.worker.stats(),
        )
        # A worker replaced at the very end needs another one that still has the final state.
        self.worker.allreduce(np.zeros_like(learner.weights))

    def _iterate(self, iteration: int, record: bool) -> None:
        learner, aggregate = self.learner, self._aggregate
        episodes = len(learner.returns)
        start = time.perf_counter()
        gradient = learner.gradient()
        virtual.computed()
        computed = time.perf_counter()
        self.worker.allreduce(gradient, out=aggregate)
        added = time.perf_counter()
        if record:
            report(
                "round",
                iteration=iteration,
                rank=self.worker.rank,
                elements=self.worker.shape.elements,
                contribution=encode(gradient),
                aggregate=encode(aggregate),
            )
        learner.update(aggregate / np.float32(self.num_workers))
        now = time.perf_counter()  # one clock for all processes of this machine
        report(
            "iteration",
            iteration=iteration,
            returns=learner.returns[episodes:],
            compute=computed - start,
            aggregate=added - computed,
            update=now - added,
            at=now,
        )


def main() -> int:
    """Run one worker process; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--any-order", type=int, default=0, help="1: sums need not be repeatable")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    settings = Settings(iterations=args.iterations)
    try:
        # Sums in rank order, and seeds by rank: the whole run can be repeated bit for bit.
        probe = ActorCritic(seed=0, weights_seed=args.seed, settings=settings)
        options = {"reproducible": not args.any_order, "rounds": args.iterations}
        with Worker.from_env(probe.weights.size, **options) as worker:
            report("joined", rank=worker.rank, pid=os.getpid())
            seed = args.seed * 1000 + worker.rank
            learner = ActorCritic(seed=seed, weights_seed=args.seed, settings=settings)
            Training(worker, learner, number(os.environ, "WORLD_SIZE")).run()
    except WorkerError as error:
        report("error", message=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
