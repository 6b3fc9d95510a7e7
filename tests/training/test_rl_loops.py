"""Samples, checkpoints and loops of training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from tests.support.one_process import OneProcess
from tests.training.test_rl import SHORT, Vector, same_bits, workload
from worker_lib.rl import checkpoint
from worker_lib.rl.advantages import estimate
from worker_lib.rl.envs import Envs, Step
from worker_lib.rl.learner import Learner
from worker_lib.rl.plan import Plan
from worker_lib.rl.progress import Progress
from worker_lib.rl.replay import Replay
from worker_lib.rl.setup import Workload
from worker_lib.rl.training import Meter, asynchronous, synchronous
from worker_lib.rl.updater import Updater
from worker_lib.rl.workloads import Unsuitable
from worker_lib.strategies import make
from worker_lib.strategies.base import Strategy

__all__ = ["same_bits"]  # for every test


def test_advantages() -> None:
    """A small example, by hand: discount 1/2, lambda 1/2, an episode that ends after two steps."""
    rewards = np.array([[1], [1], [4]], np.float32)
    values = np.array([[2], [4], [8]], np.float32)
    beyond = np.array([[4], [0], [16]], np.float32)
    ended = np.array([[False], [True], [True]])
    surprises = [1 + 2 - 2, 1 - 4, 4 + 8 - 8]
    expected = [surprises[0] + surprises[1] / 4, surprises[1], surprises[2]]
    found = estimate(rewards, values, beyond, ended, discount=0.5, trace=0.5)
    assert found.ravel().tolist() == expected
    assert found.dtype == np.float32


class Counting(gymnasium.Env[Any, Any]):
    """Observes how many steps there were; ends after three, or by the time limit after two."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, limit: bool) -> None:
        self._limit = limit

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        observation = np.full(1, self._steps, np.float32)
        return observation, float(action), self._steps == 3, self._limit and self._steps == 2, {}


def test_episodes_follow_one_another() -> None:
    kinds = iter([False, True])
    envs = Envs(lambda: Counting(next(kinds)), np.array([1, 2]))
    steps = [envs.step(np.array([1, 1])) for _ in range(3)]
    assert [step.successors.ravel().tolist() for step in steps] == [[1, 1], [2, 2], [3, 1]]
    assert [step.terminated.tolist() for step in steps] == [[False] * 2, [False] * 2, [True, False]]
    assert [step.ended.tolist() for step in steps] == [[False] * 2, [False, True], [True, False]]
    assert envs.observations.ravel().tolist() == [0, 1]
    assert envs.returns == [2.0, 3.0]


def test_replay_keeps_the_last() -> None:
    kept = Replay(3, np.zeros((1, 2), np.float32), gymnasium.spaces.Discrete(9))
    no = np.array([False])
    for i in range(5):
        at = np.full((1, 2), i, np.float32)
        kept.add(at, np.array([i]), Step(at + 1, np.array([i]), no, no), np.array([i]))
    assert len(kept) == 3
    batch = kept.draw(100, np.random.default_rng(1))
    assert set(batch.actions.tolist()) == {2, 3, 4}
    assert (batch.successors == batch.observations + 1).all()
    assert (batch.observations[:, 0] == batch.actions).all()
    assert batch.actions.dtype == torch.int64


def test_checkpoints_come_back_to_the_last_bit(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint.npz")
    names = {"algorithm": "ddpg", "env": "Pendulum-v1"}
    run = OneProcess(Workload("ddpg", "Pendulum-v1", SHORT), workers=1)
    run.iterate(3)
    checkpoint.save(path, run.updater, names)
    other = Workload("ddpg", "Pendulum-v1").updater(99)
    arrays = list(other.state)
    checkpoint.load(path, other, names)
    assert other.updates == 3
    for array, loaded, saved in zip(arrays, other.state, run.updater.state, strict=True):
        assert loaded is array
        assert loaded.tobytes() == saved.tobytes()
    assert list(tmp_path.iterdir()) == [Path(path)]
    with pytest.raises(Unsuitable, match="of another training: algorithm ddpg, env Pendulum-v1"):
        checkpoint.load(path, Workload("ppo").updater(1), names | {"algorithm": "ppo"})
    with pytest.raises(Unsuitable, match="there is no checkpoint"):
        checkpoint.load(str(tmp_path / "other"), other, names)
    Path(path).write_bytes(b"PK")
    with pytest.raises(Unsuitable, match="is no checkpoint"):
        checkpoint.load(path, other, names)


def test_a_checkpoint_half_written_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever saves after a kill takes its place; what is read meanwhile is the former one."""
    path, updater = str(tmp_path / "checkpoint.npz"), Updater(torch.nn.Linear(2, 1), [(3, 1e-2)])
    checkpoint.save(path, updater, {})
    updater.update(np.ones(3, np.float32))
    with monkeypatch.context() as killed:
        killed.setattr("worker_lib.rl.checkpoint.os.fsync", stop)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(path, updater, {})
    assert len(list(tmp_path.iterdir())) == 2
    other = Updater(torch.nn.Linear(2, 1), [(3, 1e-2)])
    checkpoint.load(path, other, {})
    assert other.updates == 0
    monkeypatch.setattr("worker_lib.rl.checkpoint.os.getpid", lambda: 1)  # another process
    checkpoint.save(path, updater, {})
    assert list(tmp_path.iterdir()) == [Path(path)]
    checkpoint.load(path, other, {})
    assert other.updates == 1


def stop(_: int) -> None:
    raise KeyboardInterrupt


def test_a_plan_goes_through_a_command_line() -> None:
    plan = Plan("ppo", "CartPole-v1", settings={"steps": "8"}, slow={"3": 2.0}, threshold=2)
    assert Plan.from_json(plan.to_json()) == plan


class Alone(Strategy):
    """A strategy of one worker."""

    def __init__(self) -> None:
        super().__init__(0, 1, 0)
        self.sums = 0

    def close(self) -> None: ...

    def allreduce(self, vector: Vector) -> Vector:
        self.sums += 1
        return vector

    def stats(self) -> dict[str, Any]:
        return {}


def meter_of(learner: Learner, progress: Progress, **options: Any) -> tuple[Meter, list[Any]]:
    told: list[Any] = []
    return Meter(learner, progress, lambda _, **fields: told.append(fields), **options), told


def test_recorded_iterations_tell_what_passes_between_allreduces() -> None:
    progress, message, made = workload()
    learner = made.learner([1], progress.updater.model, message)
    meter, told = meter_of(learner, progress, record=True)
    synchronous(Alone(), progress, message, meter)
    meter.tell()
    gaps = [gap for fields in told for gap in fields["gaps"]]
    assert len(gaps) == 5
    assert meter.compute <= sum(gaps) <= meter.seconds
    meter.tell()
    assert told[-1]["gaps"] == []  # each is told once


def test_synchronous_loop() -> None:
    progress, message, made = workload()
    meter, told = meter_of(made.learner([1], progress.updater.model, message), progress)
    strategy = Alone()
    synchronous(strategy, progress, message, meter)
    assert progress.iteration == meter.gradients == 5
    assert strategy.sums == 6  # one more before the first, for all to be ready
    meter.tell()
    assert told[-1]["iteration"] == 5
    spent = sum(told[-1][part] for part in ("compute", "aggregate", "update"))
    assert 0 < spent <= told[-1]["seconds"]
    assert [value for one in told for value in one["returns"]] == meter.learner.returns


class Late:
    """An asynchronous worker whose updates come one contribution late, and that sends every other
    gradient only."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.version = self.calls = 0
        self.waiting: list[Vector] = []

    def read(self, into: list[Vector]) -> int:
        for array, own in zip(into, self.progress.updater.state, strict=False):
            array[:] = own
        return self.version

    def contribute(self, gradient: Vector, version: int) -> bool:
        assert version == self.version
        self.calls += 1
        if self.calls % 2:
            return False
        for total in self.waiting:
            self.progress.apply(total, 1)
            self.version += 1
        self.waiting = [gradient.copy()]
        return True


def test_asynchronous_loop() -> None:
    """The learner looks at copies, of the weights of the version it names."""
    progress, message, made = workload()
    model = [array.copy() for array in progress.updater.model]
    meter, _ = meter_of(made.learner([1], model, message), progress)
    worker: Any = Late(progress)
    asynchronous(worker, progress, model, message, meter)
    assert progress.iteration == 5
    assert meter.gradients == 12
    assert meter.discarded == 6
    assert (model[0] != progress.updater.weights).any()  # read before the last update


def test_a_straggler_takes_its_time() -> None:
    progress, message, made = workload()
    learner = made.learner([1], progress.updater.model, message)
    learner.gradient()
    meter, _ = meter_of(learner, progress, slow=3.0)
    busy = time.thread_time()
    for _ in range(40):
        meter.gradient(message)
    busy = time.thread_time() - busy
    assert meter.compute > 2.5 * busy  # 3, but for the loop's own


def test_strategies_have_names() -> None:
    with pytest.raises(ValueError, match="no strategy 'rings'; there are iswitch, ring"):
        make("rings", 1)
