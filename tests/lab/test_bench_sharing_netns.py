"""`iswitch bench sharing --world netns`: jobs of real processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iswitch.lab.sharing import emulated
from iswitch.lab.sharing.plan import Sharing
from iswitch.lab.sharing.played import Failed
from tests.lab.test_bench_sharing import few
from tests.worlds.test_run import as_root
from topologies import Topology

pytestmark = [as_root, pytest.mark.serial]


def test_jobs_share_a_root_in_namespaces() -> None:
    """Also those of a policy that lets a job wait."""
    experiment = replace(few(Topology.parse("rack:2x3")), name="tree")
    told: list[int] = []
    way = Sharing("fair", "lanes:fair", experiment.memory)
    played = emulated.play(experiment, way, told.append, "netns")
    assert told[-1] == experiment.rounds
    assert [len(played.jobs[n].rounds) for n in (1, 2, 3)] == [12, 6, 4]
    assert played.share == 1
    assert played.record is not None
    # Nothing was seen if this process was held up while the jobs ran.
    reserved = [nbytes for _, nbytes in played.record.memory]
    assert max(reserved, default=0) <= experiment.memory


def test_a_process_that_fails_says_why() -> None:
    experiment = few(Topology.parse("star:4"), jobs=1)
    (task,) = experiment.tasks
    broken = replace(experiment, tasks=(replace(task, rounds=-1),))
    with pytest.raises(
        Failed, match=r"x: job 1 h. .* ended with status 1: ValueError: rounds = -1"
    ):
        emulated.play(broken, Sharing("x", "lanes:fair", 1 << 20), lambda _: None, "netns")
