"""Federated rounds over a real switch: bits, picks, deadlines, and what members are told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.wire import Action, Vector
from tests.conftest import Where
from worker_lib.controller import Controller
from worker_lib.errors import AllreduceTimeout, WorkerError
from worker_lib.federated import (
    FederatedCoordinator,
    FederatedWorker,
    Outcome,
    Said,
    Task,
    picks,
    weighted_mean,
)

N = 4
NUMEL = 1000
WAIT = 60.0  # seconds, more than any step takes on a busy machine

Told = list[tuple[int, Said]]
Trains = Callable[[int, Task], Vector | None]


def update(rank: int, number: int, numel: int = NUMEL) -> np.ndarray:
    """What a member adds to the model in a round."""
    return np.random.default_rng((rank, number)).standard_normal(numel, np.float32)


def samples(rank: int) -> int:
    return 10 + 7 * rank


class Federation:
    """Members in threads; each trains by adding its update, unless `trains` says otherwise."""

    def __init__(self, switch: Where, job: int, pool: ThreadPoolExecutor) -> None:
        self.switch, self.job, self.pool = switch, job, pool
        self.trains: Trains = lambda rank, task: task.model + update(rank, task.round)
        self.members: list[Future[tuple[Told, Any]]] = []

    def start(self, ranks: int = N, numel: int = NUMEL, **kwargs: Any) -> FederatedCoordinator:
        kwargs = {"patience": WAIT, **kwargs}
        self.members = [self.pool.submit(self._member, rank, ranks, numel) for rank in range(ranks)]
        return FederatedCoordinator(self.switch, self.job, numel, ranks, timeout=WAIT, **kwargs)

    def _member(self, rank: int, ranks: int, numel: int) -> tuple[Told, Any]:
        told = []
        with FederatedWorker(
            self.switch, self.job, numel, ranks, rank, timeout=WAIT, silence=WAIT
        ) as worker:
            for task in worker.rounds():
                weights = self.trains(rank, task)
                if weights is not None:
                    told.append((task.round, task.contribute(weights, samples(rank))))
            return told, worker.model

    def ends(self) -> list[tuple[Told, Any]]:
        return [member.result(WAIT) for member in self.members]


@pytest.fixture
def federation(switch: Where, job: int) -> Iterator[Federation]:
    with ThreadPoolExecutor(N) as pool:
        yield Federation(switch, 2 * job, pool)


@pytest.mark.parametrize("numel", [1, 363, 364, 1000])
def test_models_equal_those_of_one_process(federation: Federation, numel: int) -> None:
    """To the last bit, whoever is picked; every member gets every model."""
    federation.trains = lambda rank, task: task.model + update(rank, task.round, numel)
    model = np.zeros(numel, np.float32)
    with federation.start(numel=numel, per_round=3, seed=5) as coordinator:
        for number in range(5):
            outcome = coordinator.round(number, model)
            chosen = picks(5, number, N, 3)
            assert outcome.ranks == outcome.picked == chosen
            alone, n = weighted_mean(
                {r: (model + update(r, number, numel), samples(r)) for r in chosen}
            )
            assert outcome.model.tobytes() == alone.tobytes()
            assert outcome.n == n == sum(map(samples, chosen))
            assert outcome.in_time
            assert outcome.attempts == 1
            model = outcome.model
    for rank, (told, last) in enumerate(federation.ends()):
        assert told == [(i, Said.IN) for i in range(5) if rank in picks(5, i, N, 3)]
        assert last.tobytes() == model.tobytes()


def test_a_sum_fires_at_h_and_the_late_are_told(federation: Federation) -> None:
    """Rank 3 is ready only when the round is over; it takes part in the next one."""
    over = threading.Event()

    def trains(rank: int, task: Task) -> Vector:
        if rank == 3 and task.round == 0:
            assert over.wait(WAIT)
        weights: Vector = task.model + update(rank, task.round)
        return weights

    federation.trains = trains
    model = np.zeros(NUMEL, np.float32)
    with federation.start(needed=3) as coordinator:
        first = coordinator.round(0, model)
        over.set()
        second = coordinator.round(1, first.model, picked=[1, 3], needed=2)
    assert first.ranks == (0, 1, 2)
    assert first.bitmap == 0b0111
    assert second.ranks == (1, 3)
    alone, _ = weighted_mean({r: (update(r, 0), samples(r)) for r in (0, 1, 2)})
    assert first.model.tobytes() == alone.tobytes()
    told = [told for told, _ in federation.ends()]
    assert told[3] == [(0, Said.LATE), (1, Said.IN)]
    assert told[0] == [(0, Said.IN)]
    assert not Said.LATE
    assert Said.IN


def check(outcome: Outcome, model: Vector, told: list[Told]) -> None:
    """The mean is of the ranks that are told, and these members know it."""
    number = outcome.round
    if outcome.ranks:
        alone, n = weighted_mean(
            {r: (model + update(r, number), samples(r)) for r in outcome.ranks}
        )
        assert outcome.model.tobytes() == alone.tobytes()
        assert outcome.n == n
    else:
        assert outcome.model.tobytes() == model.tobytes()
        assert outcome.n == 0
    for rank, of_rank in enumerate(told):
        for round_, said in of_rank:
            assert round_ != number or said is Said.UNTOLD or bool(said) == (rank in outcome.ranks)


def test_a_deadline_closes_a_round(federation: Federation) -> None:
    """With those that have come, or with nobody; members that abstain are not waited for."""

    def trains(rank: int, task: Task) -> Vector | None:
        return task.model + update(rank, task.round) if rank < 2 - task.round else None

    federation.trains = trains
    models = [np.ones(NUMEL, np.float32)]
    outcomes = []
    with federation.start(deadline=0.3) as coordinator:
        for number in range(3):
            outcomes.append(coordinator.round(number, models[-1]))
            models.append(outcomes[-1].model)
    told = [told for told, _ in federation.ends()]
    for number, outcome in enumerate(outcomes):
        assert set(outcome.ranks) <= set(range(2 - number))
        assert not outcome.in_time
        check(outcome, models[number], told)


def test_a_member_that_fails_with_its_vector_is_left_out(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has said that it is ready; the others are asked again, and the sum is of them alone."""
    real = FederatedWorker._contribute

    def fails(self: FederatedWorker, bids: int, number: int, weights: Vector, n: float) -> Said:
        if self.rank != 2:
            return real(self, bids, number, weights, n)
        ready = self._layout.ready(self.rank, number)
        self._members.sums.allreduce(ready, round_=bids)
        raise InterruptedError

    monkeypatch.setattr(FederatedWorker, "_contribute", fails)
    model = np.zeros(NUMEL, np.float32)
    with federation.start(patience=0.5) as coordinator:
        outcome = coordinator.round(0, model)
    assert set(outcome.ranks) <= {0, 1, 3}
    assert outcome.attempts > 1
    failed = federation.members.pop(2)
    assert isinstance(failed.exception(WAIT), InterruptedError)
    told = [told for told, _ in federation.ends()]
    check(outcome, model, [*told[:2], [], *told[2:]])


@pytest.mark.parametrize("which", [0, 1])
def test_a_round_whose_job_is_reset_is_played_again(federation: Federation, which: int) -> None:
    """Rank 0 resets the job of models, or that of sums, while it trains for the first time."""
    once = threading.Lock()

    def trains(rank: int, task: Task) -> Vector:
        if rank == 0 and task.round == 1 and once.acquire(blocking=False):
            job = federation.job + which
            with Controller(federation.switch, job) as controller, controller.membership():
                controller.request(Action.RESET)
        weights: Vector = task.model + update(rank, task.round)
        return weights

    federation.trains = trains
    model = np.zeros(NUMEL, np.float32)
    with federation.start() as coordinator:
        for number in range(3):
            outcome = coordinator.round(number, model)
            alone, _ = weighted_mean({r: (model + update(r, number), samples(r)) for r in range(N)})
            assert outcome.ranks == (0, 1, 2, 3)
            assert outcome.model.tobytes() == alone.tobytes()
            model = outcome.model
    for told, last in federation.ends():
        assert dict(told) == {0: Said.IN, 1: Said.IN, 2: Said.IN}
        assert last.tobytes() == model.tobytes()


def test_who_names_what_is_not_there_is_told(federation: Federation) -> None:
    """Each error says what to pass."""
    model = np.zeros(NUMEL, np.float32)
    federation.trains = lambda *_: None
    with federation.start() as coordinator:
        with pytest.raises(ValueError, match="pass ranks of 0 to 3"):
            coordinator.round(0, model, picked=[1, 4])
        with pytest.raises(ValueError, match="needed = 3: pass 1 to 2, the members"):
            coordinator.round(0, model, picked=[1, 2], needed=3)
        with pytest.raises(TypeError, match=r"float64: pass model\.astype\(np\.float32\)"):
            coordinator.round(0, np.zeros(NUMEL))
        with pytest.raises(ValueError, match="999 elements, the federation's model 1000"):
            coordinator.round(0, model[:-1])
    federation.ends()
    switch = federation.switch
    with pytest.raises(ValueError, match="pass 0 to num_workers - 1"):
        FederatedWorker(switch, 1, 5, 2, 2)
    with pytest.raises(ValueError, match="a federation takes two jobs"):
        FederatedWorker(switch, 65535, 5, 2, 0)
    with pytest.raises(ValueError, match="the stamp of 60 members takes 4 elements"):
        FederatedWorker(switch, 1, 5, 60, 0, elements_per_segment=4)
    with pytest.raises(ValueError, match="pass 1 to num_workers"):
        FederatedCoordinator(switch, 1, 5, 2, per_round=3)
    with pytest.raises(ValueError, match="contributions is empty"):
        weighted_mean({})


def test_a_coordinator_that_never_comes(switch: Where, job: int) -> None:
    """Its members say so; a member contributes once, and something that has a weight."""
    with ThreadPoolExecutor(1) as pool:
        one = pool.submit(FederatedWorker, switch, 2 * job, 3, 1, 0, silence=0.2)
        with FederatedCoordinator(switch, 2 * job, 3, 1, silence=0.5) as coordinator:
            worker = one.result(WAIT)
            with pytest.raises(WorkerError, match="does the coordinator run"):
                next(worker.rounds())
            mean = pool.submit(coordinator.round, 0, np.zeros(3, np.float32))
            with pytest.raises(AllreduceTimeout, match="A deadline closes a round"):
                mean.result(WAIT)
            worker.silence = WAIT
            task = next(worker.rounds())
            with pytest.raises(ValueError, match="pass a positive weight"):
                task.contribute(task.model, 0)
            worker.close()
