"""Federated rounds in a two-level tree: each rack fires at its share of H."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import NO_RANK, Action, Threshold
from tests.conftest import StartSwitch, Where
from worker_lib.federated import FederatedCoordinator, FederatedWorker, Said, firing, weighted_mean
from worker_lib.federated.firing import Racks, shares

from .test_rounds import NUMEL, WAIT, Told, samples, update

RACKS = [(0, 3), (1, 2, 4)]
N = 5


def test_shares_add_up() -> None:
    assert shares(3, [2, 3]) == [1, 2]
    assert shares(1, [2, 3]) == [0, 1]
    assert shares(2, [1, 1, 1]) == [1, 1, 0]
    assert all(sum(shares(h, [4, 0, 3])) == h for h in range(8))


def test_racks_are_told_their_shares_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rack's switch that was restarted has forgotten its share, and nobody is told."""
    told: list[tuple[Where | str, int]] = []

    class Rack:
        def __init__(self, place: Where, job: int, key: bytes | None) -> None:
            del job, key
            self.place = place

        def request(self, action: Action, value: Threshold) -> None:
            assert action is Action.SETH
            told.append((self.place, value.threshold))

    monkeypatch.setattr(firing, "Controller", Rack)
    sums = Mock(spec=["address", "job", "members", "has_parent"])
    sums.address = Address("root", 1)
    sums.members.return_value = [Mock(rank=NO_RANK)] * 2
    sums.has_parent.return_value = False
    one = firing.Firing(sums, {("a", 1): [0, 1], ("b", 1): [2]}, 3, None)
    one.expect((0, 1, 2), 3)
    one.expect((0, 1, 2))  # what the same round waits for next
    shares_of_racks = [(("a", 1), 2), (("b", 1), 1)]
    assert told == [(("root", 1), 2), *shares_of_racks]
    one.expect((0, 1, 2), 3)
    assert told[3:] == shares_of_racks


def test_a_federation_in_a_tree(start_switch: StartSwitch) -> None:
    """All that are picked, a share of them, a deadline, and one that fails with its vector."""
    _, root = start_switch()
    leaves = [start_switch("127.0.0.1:0", "--parent", f"{root[0]}:{root[1]}")[1] for _ in RACKS]
    racks: Racks = dict(zip(leaves, RACKS, strict=True))
    where = {rank: leaf for leaf, ranks in racks.items() for rank in ranks}

    def member(rank: int) -> Told:
        told = []
        with FederatedWorker(where[rank], 7, NUMEL, N, rank, timeout=WAIT, silence=WAIT) as worker:
            for task in worker.rounds():
                if task.round == 2 and rank in (0, 3, 4):
                    continue
                if task.round == 3 and rank == 4:  # says that it is ready, and then nothing
                    ready = worker._layout.ready(rank, task.round)
                    worker._members.sums.allreduce(ready, round_=task._bids)
                    continue
                weights = task.model + update(rank, task.round)
                told.append((task.round, task.contribute(weights, samples(rank))))
        return told

    with ThreadPoolExecutor(N) as pool:
        members = [pool.submit(member, rank) for rank in range(N)]
        model = np.zeros(NUMEL, np.float32)
        outcomes = []
        with FederatedCoordinator(root, 7, NUMEL, N, racks=racks, timeout=WAIT) as coordinator:
            for number, needed in enumerate((None, 3, None, None)):
                coordinator.deadline = 0.5 if number == 2 else WAIT
                coordinator.patience = 0.5 if number == 3 else WAIT
                outcome = coordinator.round(number, model, needed=needed)
                if outcome.ranks:
                    alone, n = weighted_mean(
                        {r: (model + update(r, number), samples(r)) for r in outcome.ranks}, RACKS
                    )
                    assert outcome.model.tobytes() == alone.tobytes()
                    assert outcome.n == n
                outcomes.append(outcome)
                model = outcome.model
        told = [one.result(WAIT) for one in members]
    every, some, late, failed = outcomes
    assert every.ranks == (0, 1, 2, 3, 4)
    assert len(some.ranks) == 3
    assert [sum(rank in rack for rank in some.ranks) for rack in RACKS] == [1, 2]
    assert set(late.ranks) <= {1, 2}
    assert set(failed.ranks) <= {0, 1, 2, 3}
    assert failed.attempts > 1
    for rank, of_rank in enumerate(told):
        for number, said in of_rank:
            assert said is Said.UNTOLD or bool(said) == (rank in outcomes[number].ranks)


def test_a_tree_is_named(start_switch: StartSwitch) -> None:
    """A coordinator that does not know of its tree is told what to pass."""
    _, root = start_switch()
    leaf = start_switch("127.0.0.1:0", "--parent", f"{root[0]}:{root[1]}")[1]
    cases: list[tuple[Where, Racks | None, str]] = [
        (root, None, "1 switches are below"),
        (leaf, None, "has one above it"),
        (root, {leaf: (1,)}, r"name each of 0 to 0 once"),
    ]
    for i, (switch, racks, said) in enumerate(cases):
        job = 10 * (i + 1)
        with ThreadPoolExecutor(1) as pool:
            one = pool.submit(FederatedWorker, leaf, job, 1, 1, 0, timeout=WAIT)
            with pytest.raises(ValueError, match=said):
                FederatedCoordinator(switch, job, 1, 1, racks=racks, timeout=WAIT)
            one.result(WAIT).close()
