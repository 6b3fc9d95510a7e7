"""The worker library: allreduce through an iSwitch.

from worker_lib import Worker
with Worker(("127.0.0.1", 26963), job=7, numel=grad.size, num_workers=4) as worker:
    total = worker.allreduce(grad)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker_lib.asynchronous.worker import AsynchronousWorker

    from .catching_up import catch_up
    from .collective import CollectiveWorker
    from .errors import (
        AllreduceTimeout,
        BindError,
        JobHalted,
        JobReset,
        MemberLost,
        MembershipLost,
        Refused,
        RoundGone,
        SizesDiffer,
        SwitchUnreachable,
        TooFewWorkers,
        VersionTimeout,
        WorkerError,
    )
    from .worker import Worker

__all__ = [
    "AllreduceTimeout",
    "AsynchronousWorker",
    "BindError",
    "CollectiveWorker",
    "JobHalted",
    "JobReset",
    "MemberLost",
    "MembershipLost",
    "Refused",
    "RoundGone",
    "SizesDiffer",
    "SwitchUnreachable",
    "TooFewWorkers",
    "VersionTimeout",
    "Worker",
    "WorkerError",
    "catch_up",
]
HOMES = {  # all else is an error
    "AsynchronousWorker": ".asynchronous.worker",
    "CollectiveWorker": ".collective",
    "Worker": ".worker",
    "catch_up": ".catching_up",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: NumPy takes longer to load than everything else here."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(HOMES.get(name, ".errors"), __name__), name)


def __dir__() -> list[str]:
    """Return the public names, imported yet or not, for dir() and completion."""
    return __all__
