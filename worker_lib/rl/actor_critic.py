"""Synchronous advantage actor-critic (A2C) on CartPole-v1, split where a network can add.

Each of N workers owns a learner with its own environments. One iteration is

    gradient = learner.gradient()    # local: play, then differentiate the loss
    mean = sum over workers / N      # elsewhere: the aggregate
    learner.update(mean)             # local: clip, Adam; equal on every worker

Equal initial weights and equal mean gradients keep the weights of all workers equal to the last
bit, so only gradients travel. A gradient is a mean over samples, so the mean of N gradients is
that of one batch N times larger (but for the advantages, which each worker normalises alone).

The network is a tanh perceptron whose last layer holds both heads: a logit per action, then the
value. It is too small for threads inside BLAS: set OMP_NUM_THREADS=1 before NumPy is imported.

Sources: Mnih et al. 2016 (arXiv:1602.01783), loss and n-step returns; Pardo et al. 2018
(arXiv:1712.00378), time limits; Kingma and Ba 2015 (arXiv:1412.6980), Adam.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import gymnasium

Floats: TypeAlias = NDArray[np.floating[Any]]
CartPole: TypeAlias = "gymnasium.Env[NDArray[np.float32], int]"

OBSERVATION_SIZE = 4  # cart position (m) and velocity (m/s), pole angle (rad) and rate (rad/s)
NUM_ACTIONS = 2  # push left, push right
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's, as in its paper


def make_env(seed: int) -> CartPole:
    """Make a CartPole-v1 whose sequence of initial states is fixed by `seed`."""
    import gymnasium  # here, so that importing this module needs only NumPy

    env: CartPole = gymnasium.make("CartPole-v1", disable_env_checker=True)
    env.reset(seed=seed)
    return env


@dataclass(frozen=True)
class Settings:
    """Settings of the demo's A2C; all workers need equal ones, and equal initial weights."""

    iterations: int = 500  # updates until learning rate and entropy weight have fallen to zero
    num_envs: int = 4  # environments per worker, stepped together
    num_steps: int = 128  # per environment and iteration; long, as carts drift off slowly
    hidden: int = 64  # units in each of the two hidden layers
    discount: float = 0.99  # per step
    learning_rate: float = 3e-3  # Adam's, at the first update; falls linearly
    entropy_weight: float = 0.01  # reward per nat of policy entropy; falls with it
    value_weight: float = 0.5  # of half the squared value error
    max_norm: float = 0.5  # a longer mean gradient is scaled down to this Euclidean norm


class Batch(NamedTuple):
    """Samples of one rollout; to the loss, advantages and targets are constants."""

    observations: Floats  # [samples, OBSERVATION_SIZE]
    actions: NDArray[np.int64]  # [samples], as all below
    advantages: Floats
    targets: Floats  # what the value head should have said


def layer_views(flat: Floats, hidden: int) -> list[tuple[Floats, Floats]]:
    """View a flat vector as the layers' (weight [inputs, outputs], bias [outputs]) pairs."""
    sizes = [OBSERVATION_SIZE, hidden, hidden, NUM_ACTIONS + 1]
    views, start = [], 0
    for inputs, outputs in pairwise(sizes):
        middle, end = start + inputs * outputs, start + (inputs + 1) * outputs
        views.append((flat[start:middle].reshape(inputs, outputs), flat[middle:end]))
        start = end
    return views


def initial_weights(seed: int, hidden: int) -> NDArray[np.float32]:
    """Draw the flat float32 weights: normal with variance 1 / inputs, biases zero."""
    rng = np.random.default_rng(seed)
    size = (OBSERVATION_SIZE + 1 + hidden + 1) * hidden + (hidden + 1) * (NUM_ACTIONS + 1)
    flat = np.zeros(size, np.float32)
    layers = layer_views(flat, hidden)
    for weight, _ in layers:
        weight[:] = rng.standard_normal(weight.shape, np.float32) / math.sqrt(len(weight))
    layers[-1][0][:, :NUM_ACTIONS] *= 0.01  # the first policy is close to uniform
    return flat


def forward(weights: Floats, hidden: int, observations: Floats) -> list[Floats]:
    """Return every layer's output [..., units]: two hidden layers, then logits and value."""
    first, second, heads = layer_views(weights, hidden)
    h1 = np.tanh(observations @ first[0] + first[1])
    h2 = np.tanh(h1 @ second[0] + second[1])
    return [h1, h2, h2 @ heads[0] + heads[1]]


def loss_and_gradient(
    weights: Floats, batch: Batch, settings: Settings, entropy_weight: float
) -> tuple[float, Floats]:
    """Return the A2C loss of the batch and its gradient, flat like `weights`.

    loss = mean(-advantage * log p(action) - entropy_weight * entropy
                + value_weight * (value - target)^2 / 2)

    Keeps the dtype of its inputs: float32 to learn, float64 to compare with finite differences.
    """
    h1, h2, heads = forward(weights, settings.hidden, batch.observations)
    logits, values = heads[:, :NUM_ACTIONS], heads[:, NUM_ACTIONS]
    log_p = logits - logits.max(axis=1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))
    p = np.exp(log_p)
    entropy = -(p * log_p).sum(axis=1)
    chosen = np.eye(NUM_ACTIONS, dtype=weights.dtype)[batch.actions]
    error = values - batch.targets
    loss = -batch.advantages * (chosen * log_p).sum(axis=1) - entropy_weight * entropy
    loss += settings.value_weight * np.square(error) / 2

    # Backwards: delta is d loss / d (a layer's sums before its tanh), from the heads down.
    delta = np.empty_like(heads)
    delta[:, :NUM_ACTIONS] = (p - chosen) * batch.advantages[:, None]
    delta[:, :NUM_ACTIONS] += entropy_weight * p * (log_p + entropy[:, None])
    delta[:, NUM_ACTIONS] = settings.value_weight * error
    delta /= len(delta)
    gradient = np.empty_like(weights)
    inputs = [batch.observations, h1, h2]
    layers, slots = (layer_views(flat, settings.hidden) for flat in (weights, gradient))
    for depth in (2, 1, 0):
        slots[depth][0][:] = inputs[depth].T @ delta
        slots[depth][1][:] = delta.sum(axis=0)
        if depth:
            delta = (delta @ layers[depth][0].T) * (1 - np.square(inputs[depth]))
    return float(loss.mean()), gradient


class ActorCritic:
    """One worker's learner: its environments, and its copy of the weights.

    Attributes:
        weights: flat float32; changed in place, by `update` and `go_on_from`.
        returns: undiscounted return of every finished episode, in order of finishing.
    """

    def __init__(
        self,
        make_env: Callable[[int], CartPole] = make_env,
        *,
        seed: int,
        weights_seed: int = 0,
        settings: Settings | None = None,
    ) -> None:
        """Start num_envs environments and draw the initial weights.

        Args:
            make_env: makes an environment from a seed.
            seed: seeds the environments and the sampled actions; differs between workers.
            weights_seed: seeds the initial weights; equal in all workers.
            settings: equal in all workers; None: the defaults.
        """
        self.settings = settings or Settings()
        self.weights = initial_weights(weights_seed, self.settings.hidden)
        self.returns: list[float] = []
        seeds = np.random.SeedSequence(seed).generate_state(1 + self.settings.num_envs)
        self._rng = np.random.default_rng(seeds[0])
        self._envs = [make_env(int(s)) for s in seeds[1:]]
        self._observations = np.array([env.reset()[0] for env in self._envs], np.float32)
        self._returns_so_far = np.zeros(len(self._envs))
        self._remaining = 1.0  # the part of the run still ahead
        self._num_updates = 0
        self._moment1, self._moment2 = np.zeros_like(self.weights), np.zeros_like(self.weights)
        self._decays = np.ones(2)  # BETA1, BETA2 to the power of _num_updates

    def gradient(self) -> NDArray[np.float32]:
        """Play num_steps in every environment; return the loss gradient, a new flat float32."""
        entropy = self.settings.entropy_weight * self._remaining
        _, gradient = loss_and_gradient(self.weights, self._rollout(), self.settings, entropy)
        return gradient.astype(np.float32, copy=False)

    def update(self, mean_gradient: NDArray[np.float32]) -> None:
        """Step the weights against the mean gradient of all workers: clip, then Adam.

        IEEE element-wise operations and one sum in a fixed order: equal sequences of gradients
        (float32, shaped like `weights`; not written to) give bit-equal weights.

        Raises:
            ValueError: wrong shape or dtype, or an element is not finite; nothing has changed.
        """
        if mean_gradient.shape != self.weights.shape or mean_gradient.dtype != np.float32:
            got = f"{mean_gradient.dtype} {mean_gradient.shape}"
            raise ValueError(f"need the whole mean, float32 {self.weights.shape}; got {got}")
        norm = math.sqrt(np.square(mean_gradient, dtype=np.float64).sum())
        if not math.isfinite(norm):
            raise ValueError("the mean gradient is not finite: look for overflow in the aggregate")
        gradient = mean_gradient * min(1.0, self.settings.max_norm / (norm + EPSILON))
        self._moment1 += (1 - BETA1) * (gradient - self._moment1)
        self._moment2 += (1 - BETA2) * (np.square(gradient) - self._moment2)
        self._decays *= BETA1, BETA2
        step = self.settings.learning_rate * self._remaining
        decay1, decay2 = self._decays.tolist()
        step *= math.sqrt(1 - decay2) / (1 - decay1)  # undo the moments' start at zero
        self.weights -= step * self._moment1 / (np.sqrt(self._moment2) + EPSILON)
        self.go_on_from(self._num_updates + 1)

    @property
    def num_updates(self) -> int:
        """Return the number of updates since the start of the run."""
        return self._num_updates

    def state(self) -> list[Floats]:
        """Return the arrays that, with `num_updates`, are the state that all workers share."""
        return [self.weights, self._moment1, self._moment2, self._decays]

    def go_on_from(self, num_updates: int) -> None:
        """Continue after `num_updates` updates, whose results the arrays of `state` now hold."""
        self._num_updates = num_updates
        self._remaining = max(0.0, 1 - num_updates / self.settings.iterations)

    def _rollout(self) -> Batch:
        """Play on from where the last rollout stopped; label the samples with n-step returns."""
        s = self.settings
        shape = (s.num_steps, s.num_envs)
        observations = np.empty((*shape, OBSERVATION_SIZE), np.float32)
        successors = np.empty_like(observations)  # as reached, before any reset
        actions, rewards = np.empty(shape, np.int64), np.empty(shape, np.float32)
        fell, ended = np.empty(shape, np.bool_), np.empty(shape, np.bool_)
        noise = self._rng.gumbel(size=(*shape, NUM_ACTIONS))  # argmax(logits + it): softmax draw
        for t in range(s.num_steps):
            observations[t] = self._observations
            heads = forward(self.weights, s.hidden, self._observations)[-1]
            actions[t] = (heads[:, :NUM_ACTIONS] + noise[t]).argmax(axis=1)
            for i, env in enumerate(self._envs):
                observation, reward, terminated, truncated, _ = env.step(int(actions[t, i]))
                successors[t, i], rewards[t, i] = observation, reward
                fell[t, i], ended[t, i] = terminated, terminated or truncated
                self._returns_so_far[i] += float(reward)
                if terminated or truncated:
                    self.returns.append(float(self._returns_so_far[i]))
                    self._returns_so_far[i] = 0.0
                    observation, _ = env.reset()
                self._observations[i] = observation

        # Rewards count 1 - discount each, so that values lie in [0, 1]. Past the time limit or the
        # rollout's end the value stands for what would have followed; past a fall is nothing.
        values = forward(self.weights, s.hidden, observations)[-1][..., NUM_ACTIONS]
        beyond = forward(self.weights, s.hidden, successors)[-1][..., NUM_ACTIONS] * ~fell
        ended[-1] = True
        targets = np.empty_like(values)
        future = beyond[-1]
        for t in reversed(range(s.num_steps)):
            future = np.where(ended[t], beyond[t], future)
            future = targets[t] = (1 - s.discount) * rewards[t] + s.discount * future
        advantages = targets - values
        advantages = (advantages - advantages.mean()) / (advantages.std() + EPSILON)
        flat_observations = observations.reshape(-1, OBSERVATION_SIZE)
        return Batch(flat_observations, actions.ravel(), advantages.ravel(), targets.ravel())
