"""The workloads in one process: sizes, gradients, updates, and what all workers agree on."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from iswitch.core.format.wire import Shape
from tests.support.one_process import OneProcess
from worker_lib.rl import ddpg, dqn
from worker_lib.rl.flat import BLOCK, Adam, bind, clip, weights_of
from worker_lib.rl.plan import WINDOW, window
from worker_lib.rl.progress import Progress
from worker_lib.rl.setup import Workload, deterministic
from worker_lib.rl.updater import Updater
from worker_lib.rl.workloads import ALGORITHMS, PAIRS, Unsuitable

Vector = np.ndarray[Any, np.dtype[np.float32]]
SHORT = {"learning_starts": "40"}  # of those that have a replay buffer
QUICK = {"dqn": SHORT, "ddpg": SHORT, "ppo": {}, "a2c": {}}


@pytest.fixture(autouse=True, scope="module")
def same_bits() -> None:
    deterministic()


# The networks


@pytest.mark.parametrize(
    ("algorithm", "parameters", "paper"),
    [
        ("dqn", 1_681_062, 6.41 * 2**20),
        ("a2c", 866_439, 3.31 * 2**20),
        ("ppo", 10_247, 40.02 * 2**10),
        ("ddpg", 40_327, 157.52 * 2**10),
    ],
)
def test_gradients_are_as_large_as_the_papers(
    algorithm: str, parameters: int, paper: float
) -> None:
    weights = Workload(algorithm).updater(1).weights
    assert weights.size == parameters
    assert weights.dtype == np.float32
    assert weights.nbytes == pytest.approx(paper, rel=0.002)


def test_initial_weights_follow_from_the_seed() -> None:
    first, again, other = (Workload("ppo").updater(seed).weights for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize(("algorithm", "env"), PAIRS)
def test_every_pair_computes_gradients(algorithm: str, env: str) -> None:
    """They are finite, of every layer, and the same again from the same seeds."""
    found = []
    for _ in range(2):
        run = OneProcess(Workload(algorithm, env, QUICK[algorithm]), workers=1)
        before = run.updater.weights.copy()
        run.iterate(2)
        message = run.messages[0]
        assert np.isfinite(message).all()
        network = run.learners[0]._network
        assert all(parameter.grad.any() for parameter in network.parameters())
        assert (run.updater.weights != before).any()
        found.append(message.copy())
    assert (found[0] == found[1]).all()


def test_ppo_learns() -> None:
    run = OneProcess(Workload("ppo", "CartPole-v1"), workers=1)
    run.iterate(320)
    returns = run.learners[0].returns
    assert np.mean(returns[:WINDOW]) < 40
    assert np.mean(returns[-WINDOW:]) > 80


def test_the_actors_gradient_stops_at_the_critic() -> None:
    """Each half of the vector is the gradient of its own loss."""
    workload = Workload("ddpg", "Pendulum-v1", SHORT)
    updater = workload.updater(3)
    message = np.zeros(updater.weights.size + 2, np.float32)
    learner = workload.learner([3, 0, 0], updater.model, message)
    learner.prepare()
    drawn: list[Any] = []
    replay = learner._replay  # type: ignore[attr-defined]
    draw = replay.draw

    def recorded(*args: Any) -> Any:
        drawn.append(draw(*args))
        return drawn[-1]

    replay.draw = recorded
    learner.gradient()

    network = copy.deepcopy(learner._network)
    (batch,) = drawn
    with torch.no_grad():
        follows = network.critic(batch.successors, network.actor(batch.successors))
        wanted = batch.rewards + 0.99 * follows * (1 - batch.terminated)
    critic = (network.critic(batch.observations, batch.actions) - wanted).square().mean()
    actor = -network.critic(batch.observations, network.actor(batch.observations)).mean()
    parts = [*torch.autograd.grad(actor, list(network.actor.parameters()))]
    parts += torch.autograd.grad(critic, list(network.critic.parameters()))
    expected = torch.cat([part.ravel() for part in parts]).numpy()
    np.testing.assert_allclose(message[:-2], expected, rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(Unsuitable, match=r"dqn learns Atari games \(.*\); CartPole-v1 is none"):
        Workload("dqn", "CartPole-v1").updater(1)
    with pytest.raises(
        Unsuitable, match=r"CartPole-v1 has Discrete.*; name another with --env, such as HalfChe"
    ):
        Workload("ddpg", "CartPole-v1").updater(1)
    for env in ("CartPole", "cartpole-v1", "CartPole-v9", "CartPool-v1"):
        with pytest.raises(Unsuitable, match=r"; did you mean CartPole-v1\?$"):
            Workload("ppo", env).updater(1)
    with pytest.raises(Unsuitable, match="Nowhere-v0"):
        Workload("ppo", "Nowhere-v0").updater(1)
    with pytest.raises(Unsuitable, match="no setting 'rate'; there are envs, steps"):
        Workload("ppo", None, {"rate": "1"})
    with pytest.raises(Unsuitable, match="steps=many: not of type int"):
        Workload("ppo", None, {"steps": "many"})
    with pytest.raises(Unsuitable, match="envs: 1 to 256 environments"):
        Workload("a2c", None, {"envs": "0"})
    with pytest.raises(Unsuitable, match="time_aware=maybe: not of type bool; it is true, 1, yes"):
        Workload("ppo", None, {"time_aware": "maybe"})
    with pytest.raises(Unsuitable, match="capacity=50: room for learning_starts=1000, at least"):
        Workload("ddpg", None, {"capacity": "50"})
    with pytest.raises(Unsuitable, match="no algorithm 'sac'; there are dqn, a2c, ppo, ddpg"):
        Workload("sac")


@pytest.mark.parametrize(
    ("algorithm", "name", "text"),
    [
        ("ppo", "steps", "0"),
        ("ppo", "minibatches", "0"),
        ("ppo", "epochs", "-1"),
        ("dqn", "explore", "0"),
        ("ddpg", "batch", "0"),
    ],
)
def test_counts_are_of_something(algorithm: str, name: str, text: str) -> None:
    with pytest.raises(Unsuitable, match=f"{name}={text}: a whole number of 1 or more"):
        Workload(algorithm, None, {name: text})


def test_a_truth_has_several_names() -> None:
    for texts, value in (("true True 1 YES", True), ("false False 0 no", False)):
        for text in texts.split():
            assert Workload("ppo", None, {"time_aware": text}).settings.time_aware is value


def test_settings_can_be_others() -> None:
    changes = {"steps": "80", "learning_rate": "1e-4", "time_aware": "False"}
    settings = Workload("ppo", None, changes).settings
    assert (settings.steps, settings.learning_rate, settings.time_aware) == (80, 1e-4, False)


# Flat vectors


def test_a_bound_module_is_the_vector() -> None:
    linear = torch.nn.Linear(3, 2)
    module = torch.nn.Sequential(linear, torch.nn.LayerNorm(2))
    weights = weights_of(module)
    assert weights.size == 3 * 2 + 2 + 2 + 2
    gradient = np.full_like(weights, 7)
    bind(module, weights, gradient)
    weights[:6] = np.arange(6)
    assert linear.weight.detach().numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    gradient[:] = 0
    module[0](torch.ones(1, 3)).sum().backward()
    assert gradient.tolist() == [1] * 6 + [1, 1] + [0] * 4
    with pytest.raises(ValueError, match="has 12 parameters; the vectors need as many"):
        bind(module, weights[:-1], gradient[:-1])


def test_adam_is_adam() -> None:
    """As torch's, with a rate for each part, within the rounding of its own operations."""
    rng = np.random.default_rng(5)
    numel, first = BLOCK + 1000, 500
    weights = rng.standard_normal(numel, np.float32)
    theirs = [torch.nn.Parameter(torch.tensor(part)) for part in np.split(weights, [first])]
    groups = [{"params": [p], "lr": lr} for p, lr in zip(theirs, (1e-3, 1e-2), strict=True)]
    optimizer, adam = torch.optim.Adam(groups), Adam(numel)
    for _ in range(10):
        gradient = rng.standard_normal(numel, np.float32)
        kept = gradient.copy()
        adam.step(weights, gradient, [(first, 1e-3), (numel, 1e-2)])
        assert (gradient == kept).all()
        for parameter, part in zip(theirs, np.split(gradient, [first]), strict=True):
            parameter.grad = torch.tensor(part)
        optimizer.step()
    expected = np.concatenate([parameter.detach().numpy() for parameter in theirs])
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)


def test_clip() -> None:
    short, long = np.array([0.3, 0.4], np.float32), np.array([3, 4], np.float32)
    clip(short, 0.6)
    clip(long, 0.5)
    assert short.tolist() == np.array([0.3, 0.4], np.float32).tolist()
    np.testing.assert_allclose(long, [0.3, 0.4], rtol=1e-6)


# Updates


def mean_gradients(count: int, numel: int) -> list[Vector]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(numel, np.float32) for _ in range(count)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_equal_means_keep_states_equal(algorithm: str) -> None:
    one, two = (Workload(algorithm).updater(1) for _ in range(2))
    for mean in mean_gradients(3, one.weights.size):
        one.update(mean.copy())
        two.update(mean.copy())
    assert one.updates == 3
    for a, b in zip(one.state, two.state, strict=True):
        assert a.tobytes() == b.tobytes()


def test_targets_are_a_function_of_the_updates() -> None:
    network = torch.nn.Linear(2, 1)
    every_third = dqn.make_updater(network, dqn.Settings(target_every=3), 10)
    began = every_third.weights.copy()
    for count, mean in enumerate(mean_gradients(4, 3), 1):
        every_third.update(mean)
        weights, target = every_third.model
        if count == 3:
            began = weights.copy()
        assert (target == began).all()

    actor_critic = torch.nn.Module()
    actor_critic.actor = actor_critic.critic = network
    slow = ddpg.make_updater(actor_critic, ddpg.Settings(follow=0.5), 10)  # type: ignore[arg-type]
    weights, target = slow.model
    before = target.copy()
    slow.update(np.ones(3, np.float32))
    assert (target == before + np.float32(0.5) * (weights - before)).all()
    assert any(target is array for array in slow.state)


def test_annealing_ends_at_zero() -> None:
    updater = Updater(torch.nn.Linear(2, 1), [(3, 1e-2)], anneal=2)
    for mean in mean_gradients(2, 3):
        updater.update(mean)
    end = updater.weights.copy()
    updater.update(np.ones(3, np.float32))
    assert (updater.weights == end).all()


def message_of(progress: Progress, rank: int, returns: Sequence[float]) -> Vector:
    message = np.ones(progress.numel, np.float32)
    progress.tell(message, rank, returns)
    return message


def test_a_mean_return_is_of_twenty_episodes() -> None:
    assert [window(workers) for workers in (1, 2, 3, 4, 20, 64)] == [20, 10, 7, 5, 1, 1]


def test_all_end_after_the_same_update() -> None:
    """What ends it is in the sum, so all know it at once; what comes later changes nothing."""
    seen: list[int] = []
    updater = Updater(torch.nn.Linear(2, 1), [(3, 1e-2)])
    progress = Progress(updater, 100, target=50.0, workers=2, after_update=seen.append)
    good, bad, few = [60.0] * 10, [30.0] * 5 + [20.0] * 10, [500.0] * 9
    progress.apply(message_of(progress, 0, good) + message_of(progress, 1, few), 2)
    assert np.isnan(progress.mean_return)
    progress.apply(message_of(progress, 0, good) + message_of(progress, 1, bad), 2)
    assert progress.mean_return == 40.0
    # Two contributions of one worker, as an asynchronous sum may hold, say nothing of the other.
    progress.apply(message_of(progress, 0, good) + message_of(progress, 0, good), 2)
    assert progress.mean_return == 40.0
    assert not progress.done
    progress.apply(message_of(progress, 1, good), 1)
    assert progress.reached
    assert progress.done
    end = updater.weights.copy()
    progress.apply(message_of(progress, 0, good), 1)
    assert (updater.weights == end).all()
    assert seen == [1, 2, 3, 4]


@pytest.mark.parametrize("numel", [3, 4])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_return_is_not_made_larger_by_lost_segments(numel: int, lost: int) -> None:
    """A pair is in one segment, so both of it are lost, or none."""
    elements = 2
    assert Shape.of(10**6).elements % elements == 0  # as in real ones
    progress = Progress(Updater(torch.nn.Linear(numel - 1, 1), [(numel, 1e-2)]), 9, workers=2)
    one, two = (message_of(progress, rank, [60.0] * 10) for rank in (0, 1))
    total = 2 * one + two  # rank 0 twice, and once without a segment
    begin = progress.numel - elements * (lost + 1)
    total[begin : begin + elements] -= one[begin : begin + elements]
    progress.apply(total, 3)
    assert progress.returns.tolist() == [60.0, 60.0]


def test_it_ends_after_so_many_updates() -> None:
    progress = Progress(Updater(torch.nn.Linear(2, 1), [(3, 1e-2)]), 2)
    for _ in range(3):
        assert not progress.done or progress.iteration == 2
        progress.apply(message_of(progress, 0, []), 1)
    assert progress.done
    assert not progress.reached
    assert progress.iteration == 2


# The loops


def workload() -> tuple[Progress, Vector, Workload]:
    made = Workload("ppo", "CartPole-v1", {"steps": "16"})
    progress = Progress(made.updater(1), 5)
    return progress, np.zeros(progress.numel, np.float32), made
