"""One worker of `iswitch train`, in its own process (see worker_process.py).

It takes a plan and the environment of `iswitch run`, and prints JSON objects for its parent, one a
line: `started`, now and then `progress`, and `done` or `error`. After `done` it stays, since others
may still need it, until SIGTERM. If training ends early, by SIGTERM or because another worker is
lost, the remaining workers write a checkpoint of the last update.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from dataclasses import asdict
from typing import Any

import numpy as np

from iswitch.outside import OutsideError
from worker_lib import WorkerError
from worker_lib.environment import number
from worker_lib.strategies import make

from . import checkpoint
from .flat import Vector
from .plan import Plan, report
from .progress import Progress
from .setup import Workload, deterministic
from .training import Meter, asynchronous, synchronous

STAY = 600.0  # seconds to wait for SIGTERM after the end, while others finish


class Training:
    """Trains by a plan, as one worker."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.number = number(os.environ, "RANK")
        self.workload = Workload(plan.algorithm, plan.env, plan.settings)
        iterations = plan.iterations or self.workload.iterations
        self.updater = self.workload.updater(plan.seed, iterations)
        self.names = {"algorithm": plan.algorithm, "env": self.workload.env}
        if plan.resume and plan.checkpoint is not None:
            checkpoint.load(plan.checkpoint, self.updater, self.names)
        self.start = self._saved = self.updater.updates
        self._is_to_end = False
        self.progress = Progress(
            self.updater,
            iterations,
            plan.target_return,
            workers=number(os.environ, "WORLD_SIZE"),
            after_update=self._after_update,
        )
        self.message = np.zeros(self.progress.numel, np.float32)

    def run(self) -> None:
        """Train to the end, then wait for SIGTERM; save a checkpoint if training ends early."""
        signal.signal(signal.SIGTERM, self._end)
        try:
            if self.plan.mode == "async":
                self._asynchronous()
            else:
                self._synchronous()
        except (SystemExit, WorkerError):
            self._save(early=True)
            raise

    def _end(self, signum: int, _: object) -> None:
        # This thread does synchronous updates itself, so an interrupted one must finish first.
        # Another thread does asynchronous updates; leaving the worker's `with` block waits for it.
        self._is_to_end = True
        if self.plan.mode == "async" or not self.progress.is_updating:
            sys.exit(128 + signum)

    def _synchronous(self) -> None:
        plan = self.plan
        options: dict[str, Any] = {"timeout": plan.timeout}
        if plan.strategy == "iswitch":
            options["reproducible"] = plan.reproducible
            options["rounds"] = max(1, self.progress.iterations - self.start)
        with make(plan.strategy, self.message.size, **options) as strategy:
            meter = self._prepare(strategy.rank, self.updater.model)
            synchronous(strategy, self.progress, self.message, meter)
            self._finish(meter, strategy.stats())

    def _asynchronous(self) -> None:
        from worker_lib.asynchronous.worker import AsynchronousWorker

        plan = self.plan
        with AsynchronousWorker.from_env(
            self.message.size,
            update=self.progress.apply,
            state=[*self.updater.state, self.progress.returns],
            threshold=plan.threshold,
            staleness=plan.staleness,
            timeout=plan.timeout,
        ) as worker:
            model = [array.copy() for array in self.updater.model]
            meter = self._prepare(self.number, model)
            asynchronous(worker, self.progress, model, self.message, meter)
            self._finish(meter, worker.stats())

    def _prepare(self, rank: int, model: list[Vector]) -> Meter:
        seeds = [self.plan.seed, rank, self.start]
        learner = self.workload.learner(seeds, model, self.message)
        report(
            "started",
            rank=rank,
            parameters=self.updater.weights.size,
            bytes=self.updater.weights.nbytes,
            message=self.message.nbytes,
            iterations=self.progress.iterations,
            start=self.start,
            settings=asdict(self.workload.settings),
        )
        learner.prepare()
        slow = self.plan.slow.get(str(self.number), 1.0)
        return Meter(learner, self.progress, report, self.number, slow, self.plan.record)

    def _after_update(self, iteration: int) -> None:
        every = self.plan.checkpoint_every
        if every and iteration % every == 0:
            self._save()
        if self._is_to_end and self.plan.mode == "sync":
            sys.exit(128 + signal.SIGTERM)

    def _save(self, early: bool = False) -> None:
        """Write a checkpoint if there were updates since the last one.

        All workers have equal states, so one of them writes: RANK 0, or, if training ends `early`,
        any that is left.
        """
        path, updates = self.plan.checkpoint, self.updater.updates
        if path is None or updates <= self._saved or not (early or self.number == 0):
            return
        (checkpoint.save_if_later if early else checkpoint.save)(path, self.updater, self.names)
        self._saved = updates

    def _finish(self, meter: Meter, stats: dict[str, Any]) -> None:
        progress = self.progress
        meter.tell()
        self._save()
        state = hashlib.sha256(b"".join(array.tobytes() for array in self.updater.state))
        report(
            "done",
            iteration=progress.iteration,
            reached=progress.reached,
            mean_return=None if np.isnan(progress.mean_return) else progress.mean_return,
            weights=hashlib.sha256(self.updater.weights.tobytes()).hexdigest(),
            state=state.hexdigest(),
            stats=stats,
        )
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        time.sleep(STAY)


def main() -> int:
    """Run one worker process; return its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    deterministic()
    try:
        Training(Plan.from_json(sys.argv[1])).run()
    except (WorkerError, OutsideError) as error:
        is_outside = isinstance(error, OutsideError)  # a full disk, say
        report("error", message=str(error), outside=is_outside)
        return 1
    return 0
