"""Works on a sweep with the machines of a Dask cluster, which somebody has started."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

from iswitch.outside import OutsideError, UsageError, extra

T = TypeVar("T")
R = TypeVar("R")
PATIENCE = 10.0  # seconds for a scheduler to answer


def on_cluster(
    work: Callable[[T], R], values: Sequence[T], address: str
) -> Generator[R, None, None]:
    """Call a function with each value on a cluster; yield the results in any order.

    What is not done is cancelled with the iterator.

    Args:
        work: the function, of a module that the cluster's machines have, too.
        values: the values.
        address: HOST:PORT of the scheduler.

    Raises:
        OutsideError: Dask is not installed, no scheduler answers, or a machine fails.
    """
    if find_spec("distributed") is None:
        raise UsageError(f"--scheduler needs Dask: {extra('dask')}")
    dask: Any = import_module("distributed")
    try:
        client = dask.Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"--scheduler {address}: no scheduler answers ({type(error).__name__}); start one with "
            "`dask scheduler`, and name its address, such as 10.0.0.5:8786"
        ) from None
    with client:
        if not client.scheduler_info()["workers"]:
            raise UsageError(
                f"--scheduler {address}: it has no workers; start some with `dask worker {address}`"
            )
        futures = client.map(work, values, pure=False)
        try:
            for future in dask.as_completed(futures, loop=client.loop):
                if future.status != "finished":
                    raise OutsideError(
                        f"--scheduler {address}: a worker failed: {future.exception()}; all need "
                        "this version of iswitch, and the files that options name"
                    )
                yield future.result()
        finally:
            client.cancel(futures)
