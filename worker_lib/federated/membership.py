"""The two jobs of a federation, in which coordinator and members are Workers."""

from __future__ import annotations

from typing import Any

import numpy as np

from iswitch.core.format.wire import Vector
from worker_lib import arguments, arrays
from worker_lib.errors import JobReset, MembershipLost, RoundGone
from worker_lib.worker import Worker

from .layout import Layout, Word

VOID = RoundGone, MembershipLost, JobReset  # what a worker has sent to a round counts no more
SILENCE = 600.0  # seconds for which a member waits for a model, or for the end of a round
ELEMENTS = 366  # of a packet: what an MTU of 1500 bytes takes
MOST_WORKERS = 4095  # and the coordinator: a job has 4,096 ranks
LAST_JOB = 0xFFFE  # the job after it must be one, too


def flat(name: str, vector: Any, numel: int) -> Vector:
    """View a program's array, or tensor on the CPU, as float32 [numel].

    Raises:
        TypeError, ValueError: it is none of float32, or has another number of elements.
    """
    array = arrays.as_array(name, vector)
    if array.dtype != np.float32:
        raise TypeError(f"{name} is {array.dtype}: pass {name}.astype(np.float32)")
    if array.size != numel:
        raise ValueError(f"{name} has {array.size} elements, the federation's model {numel}")
    return np.ascontiguousarray(array).reshape(-1)


class Membership:
    """A coordinator's or a member's two Workers.

    In the job of models a sum is of one contribution, the coordinator's, and so reaches all. In the
    job of sums, rounds of one segment say who is ready, and rounds of all segments are the sums.

    Args:
        switch, job, reproducible, timeout, bind, key: as for `FederatedWorker`.
        layout: of the contributions.
        rank: this one's; the coordinator's is the one after the members'.
    """

    def __init__(  # noqa: PLR0913 (what users set by name, passed on)
        self,
        switch: tuple[str, int],
        job: int,
        layout: Layout,
        rank: int,
        *,
        reproducible: bool,
        timeout: float,
        bind: tuple[str, int],
        key: bytes | None,
    ) -> None:
        hint = f"a federation takes two jobs, this one and the next: pass 0 to {LAST_JOB}"
        arguments.whole("job", job, 0, LAST_JOB, hint)
        members = layout.num_workers
        hint = f"a job has {MOST_WORKERS + 1} ranks, of which the coordinator takes one"
        arguments.whole("num_workers", members, 1, MOST_WORKERS, hint)
        arguments.whole("numel", layout.numel, 1, 1 << 31, "pass the elements of the model")
        least = layout.words + 2
        hint = f"the stamp of {members} members takes {least - 1} elements of each segment"
        arguments.whole("elements_per_segment", layout.elements, least, 16_000, hint)
        common: dict[str, Any] = {
            "num_workers": members + 1,
            "rank": rank,
            "on_member_lost": "continue",
            "elements_per_segment": layout.elements,
            "partial": True,
            "timeout": timeout,
            "key": key,
        }
        self.layout = layout
        self.left = False
        size = layout.numel + Word.elements(members)
        self.models = Worker(switch, job, size, bind=bind, **common)
        try:
            host, port = bind
            bind = host, port + 1 if port else 0
            self.sums = Worker(
                switch, job + 1, layout.size, bind=bind, shorter=True, reproducible=reproducible,
                **common,
            )  # fmt: skip
        except BaseException:
            self.models.leave()
            raise

    def leave(self) -> None:
        """Leave both jobs."""
        self.left = True
        self.models.leave()
        self.sums.leave()
