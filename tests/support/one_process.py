"""What a distributed training is compared with: the same, in one process."""

from __future__ import annotations

import numpy as np

from worker_lib.rl.progress import Progress
from worker_lib.rl.setup import Workload


class OneProcess:
    """All workers in one process: gradients from the same weights, added up in rank order."""

    def __init__(
        self, workload: Workload, workers: int, seed: int = 1, iterations: int = 0
    ) -> None:
        iterations = iterations or workload.iterations
        self.updater = workload.updater(seed, iterations)
        self.progress = Progress(self.updater, iterations, workers=workers)
        self.messages = [np.zeros(self.progress.numel, np.float32) for _ in range(workers)]
        self.learners = [
            workload.learner([seed, rank, 0], self.updater.model, message)
            for rank, message in enumerate(self.messages)
        ]
        for learner in self.learners:
            learner.prepare()

    def iterate(self, times: int) -> None:
        for _ in range(times):
            for rank, learner in enumerate(self.learners):
                learner.gradient()
                self.progress.tell(self.messages[rank], rank, learner.returns)
            total = self.messages[0].copy()
            for message in self.messages[1:]:
                total += message
            self.progress.apply(total, len(self.messages))
