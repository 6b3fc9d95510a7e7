"""The other collectives of the strategies that have them: exact, in groups of processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iswitch.lab.bench.vectors import exact, given
from tests.support.groups import MADE, group
from tests.support.workers import Where
from worker_lib.strategies.collectives import NEEDS, OFFERING, make_exchange, sizes

SIZES = (1, 333, 4001)  # elements of a block


def wrong(name: str, workers: int) -> list[tuple[str, int]]:
    """Call every collective with every size; return which results were wrong."""
    found = []
    for job, collective in enumerate(NEEDS):
        for block in SIZES:
            numel = block * workers
            options: dict[str, Any] = {"timeout": MADE}
            if name == "iswitch":
                options["job"] = (workers * len(NEEDS) + job) * len(SIZES) + SIZES.index(block)
            with make_exchange(name, collective, numel, **options) as member:
                rank = member.rank
                gives, gets = sizes(collective, numel, workers, rank)
                for _ in range(2):
                    vector, out = given(rank, gives), np.full(gets, np.nan, np.float32)
                    member.exchange(collective, vector, out)
                    wanted = exact(collective, numel, workers, rank)
                    got = out if gets else vector
                    if wanted is not None and not np.array_equal(got, wanted):
                        found.append((collective, block))
    return found


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", OFFERING)
def test_exact(name: str, workers: int, switch: Where) -> None:
    host, port = switch
    named = {"ISWITCH_SWITCH": f"{host}:{port}", "ISWITCH_JOB": "0"}
    assert group(wrong, workers, name, workers, **named) == [[]] * workers


def test_what_there_is_not() -> None:
    with pytest.raises(ValueError, match="no 'reduce' by 'ring': iswitch, mpi, gloo have reduce_"):
        make_exchange("ring", "reduce", 4)
    with pytest.raises(ValueError, match="no 'allreduce' by 'gloo'"):
        make_exchange("gloo", "allreduce", 4)
