"""A2C: synchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783) for Atari games.

One iteration plays `steps` steps in each environment and differentiates

    mean of (-advantage * log p(action) - entropy_weight * entropy + value_weight * error^2)

with n-step returns. (`actor_critic.py` is the demo's A2C for CartPole, in NumPy alone.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, from_numpy, nn
from torch.distributions import Categorical

from . import learner
from .advantages import estimate
from .envs import Array, Envs, Takes, make_atari
from .updater import annealed


@dataclass(frozen=True)
class Settings:
    """Settings of A2C, equal in all workers."""

    frames: int = 4  # in an observation
    envs: int = 4  # in each worker
    steps: int = 5  # in each environment, per iteration
    discount: float = 0.99
    trace: float = 1.0  # lambda of the advantages; 1: n-step returns
    learning_rate: float = 7e-4
    entropy_weight: float = 0.01
    value_weight: float = 0.5
    max_norm: float = 0.5


SETTINGS = {"ALE/Qbert-v5": Settings()}
ITERATIONS = {"ALE/Qbert-v5": 100_000}
TAKES = Takes(images=True, actions=(Discrete,))


def make_envs(name: str, settings: Settings, seeds: Array) -> Envs:
    """Make `settings.envs` Atari environments, the first ones of `seeds`."""
    return Envs(partial(make_atari, name, settings.frames), seeds[: settings.envs])


class NeuralNetwork(nn.Module):
    """Three convolutions and a layer of 512 units that feeds both heads."""

    def __init__(self, observations: Box, actions: Discrete) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            layer(nn.Conv2d(observations.shape[0], 32, 8, stride=4)), nn.ReLU(),
            layer(nn.Conv2d(32, 64, 4, stride=2)), nn.ReLU(),
            layer(nn.Conv2d(64, 32, 3)), nn.ReLU(),
            nn.Flatten(),
            layer(nn.Linear(32 * 7 * 7, 512)), nn.ReLU(),
        )  # fmt: skip
        self.actor = layer(nn.Linear(512, int(actions.n)), gain=0.01)
        self.critic = layer(nn.Linear(512, 1), gain=1.0)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [batch, actions] and values [batch].

        Args:
            frames: uint8, [batch, frames, 84, 84].
        """
        features = self.trunk(frames / 255.0)
        return self.actor(features), self.critic(features).squeeze(1)


def layer(module: nn.Conv2d | nn.Linear, gain: float = 2**0.5) -> nn.Module:
    """Set a layer's weights to orthogonal ones of this gain, its bias to zero; return the layer."""
    nn.init.orthogonal_(module.weight, gain)
    if module.bias is not None:
        nn.init.zeros_(module.bias)
    return module


make_updater = annealed


class Learner(learner.Learner):
    """Differentiates the loss of the steps that it has just played."""

    settings: Settings
    _network: NeuralNetwork

    def gradient(self) -> None:
        """Play `steps` more steps in each environment and write the gradient of their loss."""
        s, envs = self.settings, self.envs
        observations, actions, steps = [], [], []
        for _ in range(s.steps):
            observations.append(envs.observations.copy())
            with torch.no_grad():
                logits, _ = self._network(from_numpy(envs.observations))
            chosen = torch.multinomial(logits.softmax(1), 1, generator=self._rng).squeeze(1)
            actions.append(chosen)
            steps.append(envs.step(chosen.numpy()))

        logits, values = self._network(from_numpy(np.concatenate(observations)))
        # The value of a next state is that of the next row, except where the rollout or an
        # episode ends.
        known = values.detach().numpy().reshape(s.steps, s.envs)
        ended = np.array([step.ended for step in steps])
        beyond = np.empty_like(known)
        beyond[:-1] = known[1:]
        ended[-1] = True
        with torch.no_grad():
            beyond[ended] = self._values(np.array([step.successors for step in steps])[ended])
        beyond *= ~np.array([step.terminated for step in steps])
        rewards = np.sign([step.rewards for step in steps], dtype=np.float32)
        advantages = from_numpy(estimate(rewards, known, beyond, ended, s.discount, s.trace))
        targets = advantages.ravel() + values.detach()

        policy = Categorical(logits=logits)
        loss = -(advantages.ravel() * policy.log_prob(torch.cat(actions))).mean()
        loss = loss - s.entropy_weight * policy.entropy().mean()
        loss = loss + s.value_weight * (values - targets).square().mean()
        self._gradient[:] = 0
        loss.backward()

    def _values(self, observations: Array) -> Array:
        values: Array = self._network(from_numpy(observations))[1].numpy()
        return values
