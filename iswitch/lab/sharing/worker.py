"""Runs one worker of a job: `python -m iswitch.lab.sharing.worker TASK FILE PRIORITY`.

TASK is a `Task` as JSON. Prints READY, and waits for FILE, which holds the time from which its
times count, on the clock that all processes of this machine share (CLOCK_MONOTONIC). In the end
prints as JSON when its rounds began and ended and when it had left. Where the switch has no memory
it tries again, as a program would.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from iswitch.core.format.wire import Status
from iswitch.fast import loading
from worker_lib import Refused, Worker

from .plan import Task

READY = "ready"
LOOK = 0.005  # seconds between two looks for the file
AGAIN = 0.05  # seconds after which it tries again
PATIENCE = 120.0  # seconds


def joined(task: Task, priority: int) -> Worker:
    """Join the switch of this host, as often as it takes.

    Raises:
        Refused: it is refused, and not for want of memory; or for too long.
    """
    limit = time.monotonic() + PATIENCE
    while True:
        try:
            told = {"rounds": task.rounds, "priority": priority}
            return Worker.from_env(task.numel, timeout=PATIENCE, **told)
        except Refused as error:
            if error.status is not Status.FULL or time.monotonic() > limit:
                raise
        time.sleep(AGAIN)


def work(task: Task, priority: int, start: float) -> dict[str, Any]:
    """Do a worker's part of a job; return its times, counted from `start`."""

    def now() -> float:
        return time.monotonic() - start

    time.sleep(max(0.0, task.comes - now()))
    spans = []
    with joined(task, priority) as worker:
        numbers = np.arange(task.numel, dtype=np.float32) % 251
        total = task.total(numbers)
        for pause in task.pauses(worker.rank):
            time.sleep(float(pause))
            began = now()
            found = worker.allreduce(numbers + worker.rank)
            spans.append((began, now()))
            if not np.array_equal(found, total):
                raise SystemExit(f"{task.name} has a wrong sum in round {len(spans) - 1}")
    return {"rounds": spans, "ends": now()}


def main() -> None:
    """Run the worker that the command line describes."""
    text, file, priority = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    told = json.loads(text)
    task = Task(**told | {"hosts": tuple(told["hosts"])})
    if loading.available():
        loading.load_all()  # takes seconds; a program that trains has done so long before
    print(READY, flush=True)
    while not (start := file.read_text() if file.exists() else ""):
        time.sleep(LOOK)
    print(json.dumps(work(task, priority, float(start))))


if __name__ == "__main__":
    main()
