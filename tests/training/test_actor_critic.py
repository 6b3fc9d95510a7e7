"""The actor-critic learner: its gradient, its determinism, and that it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from worker_lib.rl.actor_critic import (
    ActorCritic,
    Batch,
    Settings,
    initial_weights,
    loss_and_gradient,
    make_env,
)

pytest.importorskip("gymnasium")

SMALL = Settings(iterations=10, num_envs=2, num_steps=16, hidden=8)


class ScriptedEnv:
    """An episode of `length` steps that ends as told; the observation counts the steps."""

    def __init__(self, length: int, *, truncated: bool) -> None:
        self.length, self.truncated, self.t = length, truncated, 0

    def reset(self) -> tuple[NDArray[np.float32], dict[str, Any]]:
        self.t = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        assert action in (0, 1)
        self.t += 1
        over = self.t == self.length
        observation = np.full(4, self.t / 10, np.float32)
        return observation, 1.0, over and not self.truncated, over and self.truncated, {}


def train(num_workers: int, settings: Settings, iterations: int) -> list[ActorCritic]:
    """Run the synchronous algorithm, with the aggregate summed here."""
    learners = [ActorCritic(make_env, seed=k, settings=settings) for k in range(num_workers)]
    for _ in range(iterations):
        mean = np.sum([x.gradient() for x in learners], axis=0) / np.float32(num_workers)
        for learner in learners:
            learner.update(mean)
    return learners


@pytest.mark.parametrize("entropy_weight", [0.0, 0.3])
def test_gradient_agrees_with_finite_differences(entropy_weight: float) -> None:
    rng = np.random.default_rng(7)
    samples = 9
    batch = Batch(
        rng.standard_normal((samples, 4)),
        rng.integers(0, 2, samples),
        rng.standard_normal(samples),
        rng.standard_normal(samples),
    )
    weights = initial_weights(3, SMALL.hidden).astype(np.float64)
    weights += 0.3 * rng.standard_normal(weights.shape)  # biases and policy head away from zero
    _, gradient = loss_and_gradient(weights, batch, SMALL, entropy_weight)
    step = 1e-5
    numeric = np.empty_like(weights)
    for i in range(weights.size):
        moved = np.zeros_like(weights)
        moved[i] = step
        above, _ = loss_and_gradient(weights + moved, batch, SMALL, entropy_weight)
        below, _ = loss_and_gradient(weights - moved, batch, SMALL, entropy_weight)
        numeric[i] = (above - below) / (2 * step)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-9)
    assert np.count_nonzero(gradient) == weights.size


def test_mean_of_two_gradients_is_that_of_the_joint_batch() -> None:
    rng = np.random.default_rng(1)
    weights = initial_weights(0, SMALL.hidden).astype(np.float64)
    joint = Batch(
        rng.standard_normal((8, 4)),
        rng.integers(0, 2, 8),
        rng.standard_normal(8),
        rng.standard_normal(8),
    )
    _, whole = loss_and_gradient(weights, joint, SMALL, 0.1)
    halves = [
        loss_and_gradient(
            weights,
            Batch(joint[0][part], joint[1][part], joint[2][part], joint[3][part]),
            SMALL,
            0.1,
        )[1]
        for part in (slice(0, 4), slice(4, 8))
    ]
    np.testing.assert_allclose((halves[0] + halves[1]) / 2, whole, rtol=1e-12, atol=1e-15)


def test_weights_stay_bit_identical_under_equal_mean_gradients() -> None:
    learners = train(num_workers=3, settings=SMALL, iterations=SMALL.iterations)
    gradients = [learner.gradient() for learner in learners]
    assert not np.array_equal(gradients[0], gradients[1])  # the workers did see different episodes
    assert not np.array_equal(learners[0].weights, initial_weights(0, SMALL.hidden))
    for learner in learners[1:]:
        assert learner.weights.tobytes() == learners[0].weights.tobytes()


def test_the_same_seed_gives_the_same_gradients() -> None:
    pair = [ActorCritic(make_env, seed=5, settings=SMALL) for _ in range(2)]
    for _ in range(4):
        first, second = (learner.gradient() for learner in pair)
        assert first.dtype == np.float32
        assert first.shape == pair[0].weights.shape
        assert first.tobytes() == second.tobytes()
        for learner in pair:
            learner.update(first)
    assert pair[0].returns == pair[1].returns


def test_only_update_changes_weights_and_it_leaves_its_argument_alone() -> None:
    learner = ActorCritic(make_env, seed=0, settings=SMALL)
    before = learner.weights.copy()
    gradient = learner.gradient()
    assert np.array_equal(learner.weights, before)
    given = gradient.copy()
    learner.update(gradient)
    assert np.array_equal(gradient, given)
    assert not np.array_equal(learner.weights, before)


def test_the_learning_rate_reaches_zero_after_the_last_iteration() -> None:
    learner = train(num_workers=1, settings=SMALL, iterations=SMALL.iterations)[0]
    before = learner.weights.copy()
    learner.update(learner.gradient())
    assert np.array_equal(learner.weights, before)


@pytest.mark.parametrize(
    "mean", [np.zeros(3, np.float32), np.zeros(139), np.full(139, np.nan, np.float32)]
)
def test_update_refuses_what_is_not_a_mean_gradient(mean: NDArray[Any]) -> None:
    learner = ActorCritic(make_env, seed=0, settings=SMALL)
    before = learner.weights.copy()
    assert learner.weights.size == 139
    with pytest.raises(ValueError, match=r"float32 \(139,\)|not finite"):
        learner.update(mean)
    assert np.array_equal(learner.weights, before)


@pytest.mark.parametrize("truncated", [False, True])
def test_a_time_limit_is_bootstrapped_and_a_fall_is_not(truncated: bool) -> None:
    """With every value equal to 1, a target falls short of 1 only by a fall still to come."""
    settings = Settings(num_envs=1, num_steps=8, hidden=4)

    def scripted(_: int) -> Any:
        return ScriptedEnv(5, truncated=truncated)

    learner = ActorCritic(scripted, seed=0, settings=settings)
    learner.weights[:] = 0
    learner.weights[-1] = 1  # the value head's bias
    targets = learner._rollout().targets
    assert learner.returns == [5.0]
    np.testing.assert_allclose(targets[5:], 1, rtol=1e-6)  # the rollout's end is no fall either
    steps_to_go = np.arange(5, 0, -1)
    expected = np.ones(5) if truncated else 1 - settings.discount**steps_to_go
    np.testing.assert_allclose(targets[:5], expected, rtol=1e-5)


def test_a_time_limit_takes_the_value_of_the_state_before_the_reset() -> None:
    settings = Settings(num_envs=1, num_steps=5, hidden=4, discount=0.5)

    def scripted(_: int) -> Any:
        return ScriptedEnv(5, truncated=True)

    learner = ActorCritic(scripted, seed=0, settings=settings)
    learner.weights[:] = 0
    # One path of weights from the first observation to the value: tanh(tanh(x)).
    learner.weights[0] = 1
    learner.weights[4 * 4 + 4] = 1
    learner.weights[-3 - 4 * 3 + 2] = 1
    last = learner._rollout().targets[-1]
    assert last == pytest.approx(0.5 + 0.5 * np.tanh(np.tanh(0.5)), rel=1e-6)


def test_cart_pole_is_cut_off_at_500_steps_without_termination() -> None:
    spec = make_env(0).spec
    assert spec is not None
    assert spec.max_episode_steps == 500


def test_a_short_training_learns() -> None:
    settings = Settings(iterations=60, num_envs=4, num_steps=128, hidden=32)
    learners = train(num_workers=2, settings=settings, iterations=60)
    first = np.mean([learner.returns[:20] for learner in learners])
    last = np.mean([learner.returns[-20:] for learner in learners])
    assert first < 60
    assert last > 3 * first
