"""PPO: proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347).

Each rollout has `steps` steps of every environment and is used `epochs` times, split into
minibatches. One iteration is the gradient of one minibatch, and workers update together after each.
Actions are continuous (Hopper; a Gaussian whose deviation is a parameter) or discrete (CartPole).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, from_numpy, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

from . import learner
from .advantages import estimate
from .envs import Array, Envs, Takes, make_control
from .updater import annealed


@dataclass(frozen=True)
class Settings:
    """Settings of PPO, equal in all workers."""

    envs: int = 1  # in each worker
    steps: int = 2048  # in each environment, per rollout
    minibatches: int = 32  # of a rollout
    epochs: int = 10  # over a rollout
    discount: float = 0.99
    trace: float = 0.95  # lambda of the advantages
    clip: float = 0.2  # how far a probability may move, as a fraction of it
    learning_rate: float = 3e-4
    entropy_weight: float = 0.0
    value_weight: float = 0.5
    max_norm: float = 0.5
    time_aware: bool = True  # observations include the elapsed time


SETTINGS = {
    "Hopper-v5": Settings(),
    "CartPole-v1": Settings(
        envs=4, steps=64, minibatches=4, epochs=4, learning_rate=2e-3, time_aware=False
    ),
}
ITERATIONS = {"Hopper-v5": 100_000, "CartPole-v1": 6_000}
TAKES = Takes(images=False, actions=(Box, Discrete))


def make_envs(name: str, settings: Settings, seeds: Array) -> Envs:
    """Make `settings.envs` control environments, the first ones of `seeds`."""
    make = partial(make_control, name, time_aware=settings.time_aware, clip=True)
    return Envs(make, seeds[: settings.envs])


class NeuralNetwork(nn.Module):
    """Actor and critic, of two tanh layers of 64 each."""

    def __init__(self, observations: Box, actions: Box | Discrete) -> None:
        super().__init__()
        size = observations.shape[0]
        self.discrete = isinstance(actions, Discrete)
        outputs = int(actions.n) if isinstance(actions, Discrete) else actions.shape[0]
        self.actor = perceptron(size, outputs, gain=0.01)
        self.critic = perceptron(size, 1, gain=1.0)
        if not self.discrete:
            self.log_std = nn.Parameter(torch.zeros(outputs))

    def policy(self, observations: Tensor) -> Distribution:
        """Return the distribution of actions in each state; observations [batch, size]."""
        outputs = self.actor(observations)
        if self.discrete:
            return Categorical(logits=outputs, validate_args=False)
        normal = Normal(outputs, self.log_std.exp(), validate_args=False)
        return Independent(normal, 1, validate_args=False)

    def act(self, observations: Tensor, rng: torch.Generator) -> Tensor:
        """Draw an action for each observation [batch, size] with `rng`."""
        outputs = self.actor(observations)
        if self.discrete:
            return torch.multinomial(outputs.softmax(1), 1, generator=rng).squeeze(1)
        return outputs + self.log_std.exp() * torch.randn(outputs.shape, generator=rng)

    def values(self, observations: Tensor) -> Tensor:
        """Return the value of each state, [...], for observations [..., size]."""
        values: Tensor = self.critic(observations).squeeze(-1)
        return values


def perceptron(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """Make two tanh layers of 64 units and an output layer, all with orthogonal weights.

    Args:
        inputs: size of an input.
        outputs: size of an output.
        gain: gain of the output layer's weights.
    """
    layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for layer, its_gain in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, its_gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


make_updater = annealed


class Batch(NamedTuple):
    """Samples [batch, ...]; the loss treats all as constants."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor  # of the actions, under the policy that chose them
    advantages: Tensor
    targets: Tensor  # values that the critic learns to predict


class Learner(learner.Learner):
    """Uses each rollout for several gradients."""

    settings: Settings
    _network: NeuralNetwork

    @cached_property
    def _batches(self) -> Iterator[Batch]:
        return self._minibatches()

    def gradient(self) -> None:
        """Write the gradient of the next minibatch; play a new rollout when one is used up."""
        s = self.settings
        batch = next(self._batches)
        policy = self._network.policy(batch.observations)
        ratio = (policy.log_prob(batch.actions) - batch.log_probs).exp()
        advantages = batch.advantages
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped = ratio.clamp(1 - s.clip, 1 + s.clip)
        loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
        loss = loss - s.entropy_weight * policy.entropy().mean()
        errors = self._network.values(batch.observations) - batch.targets
        loss = loss + s.value_weight * errors.square().mean()
        self._gradient[:] = 0
        loss.backward()

    def _minibatches(self) -> Iterator[Batch]:
        s = self.settings
        while True:
            rollout = self._rollout()
            for _ in range(s.epochs):
                order = torch.randperm(s.envs * s.steps, generator=self._rng)
                for chosen in order.tensor_split(s.minibatches):
                    yield Batch(*(samples[chosen] for samples in rollout))

    @torch.no_grad()
    def _rollout(self) -> Batch:
        """Play `steps` more steps in each environment; return their samples, flattened."""
        s, envs, network = self.settings, self.envs, self._network
        observations, actions, steps = [], [], []
        for _ in range(s.steps):
            observations.append(envs.observations.copy())
            chosen = network.act(from_numpy(envs.observations), self._rng)
            actions.append(chosen)
            steps.append(envs.step(chosen.numpy()))

        seen, taken = from_numpy(np.array(observations)), torch.stack(actions)
        values = network.values(seen).numpy()
        beyond = network.values(from_numpy(np.array([step.successors for step in steps]))).numpy()
        beyond *= ~np.array([step.terminated for step in steps])
        ended = np.array([step.ended for step in steps])
        ended[-1] = True
        rewards = np.array([step.rewards for step in steps])
        advantages = estimate(rewards, values, beyond, ended, s.discount, s.trace)
        samples = Batch(
            seen,
            taken,
            network.policy(seen).log_prob(taken),
            from_numpy(advantages),
            from_numpy(advantages + values),
        )
        return Batch(*(part.flatten(0, 1) for part in samples))
