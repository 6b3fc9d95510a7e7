"""DQN: deep Q-learning (Mnih et al. 2015), double (van Hasselt et al. 2016), for Atari games.

One iteration plays a few steps with an epsilon-greedy policy, draws a batch from the replay buffer
and differentiates the loss

    mean of huber(Q(s, a) - (r + discount * Q_target(s', argmax Q(s', .))))

The weights are copied to the target network every `target_every` updates. It depends on the updates
alone, so all workers have equal ones. Each worker has its own replay buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn
from torch.nn import functional

from .envs import Array, Envs, Takes, make_atari
from .flat import Vector, numel_of
from .replay import ReplayLearner
from .updater import Updater


@dataclass(frozen=True)
class Settings:
    """Settings of DQN, equal in all workers."""

    frames: int = 1  # in an observation; 1 makes the gradient the paper's 6.41 MB
    steps: int = 4  # played per iteration
    batch: int = 32
    capacity: int = 50_000  # transitions, 14 kB each
    learning_starts: int = 1_000  # transitions played before the first gradient
    discount: float = 0.99
    epsilon: float = 0.02  # final fraction of random actions
    explore: int = 10_000  # iterations in which that fraction falls from 1 to epsilon
    learning_rate: float = 1e-4
    target_every: int = 250  # updates


SETTINGS = {"ALE/Pong-v5": Settings()}
ITERATIONS = {"ALE/Pong-v5": 100_000}
TAKES = Takes(images=True, actions=(Discrete,))


def make_envs(name: str, settings: Settings, seeds: Array) -> Envs:
    """Make one Atari environment, from the first seed."""
    return Envs(partial(make_atari, name, settings.frames), seeds[:1])


class NeuralNetwork(nn.Module):
    """Maps uint8 frames to a value per action, by the convolutions of Mnih et al. 2015."""

    def __init__(self, observations: Box, actions: Discrete) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(observations.shape[0], 32, 8, stride=4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 512), nn.ReLU(),
            nn.Linear(512, int(actions.n)),
        )  # fmt: skip

    def forward(self, frames: Tensor) -> Tensor:
        """Return values [batch, actions] of frames [batch, frames, 84, 84]."""
        return self.layers(frames / 255.0)


def make_updater(network: nn.Module, settings: Settings, iterations: int) -> Updater:  # noqa: ARG001
    """Make an Adam updater that copies the weights to the target every `target_every` updates."""

    def follow(weights: Vector, target: Vector, updates: int) -> None:
        if updates % settings.target_every == 0:
            target[:] = weights

    return Updater(network, [(numel_of(network), settings.learning_rate)], follow=follow)


class Learner(ReplayLearner):
    """Plays epsilon-greedily."""

    settings: Settings
    _network: NeuralNetwork
    _iterations = 0

    def gradient(self) -> None:
        """Play `steps` steps, draw a batch and write the gradient of its loss."""
        s = self.settings
        for _ in range(s.steps):
            self._play()
        self._iterations += 1
        batch = self._replay.draw(s.batch, self._rng)
        with torch.no_grad():
            best = self._network(batch.successors).argmax(1, keepdim=True)
            follows = self._target(batch.successors).gather(1, best).squeeze(1)
            wanted = batch.rewards + s.discount * follows * (1 - batch.terminated)
        values = self._network(batch.observations).gather(1, batch.actions[:, None]).squeeze(1)
        self._gradient[:] = 0
        functional.smooth_l1_loss(values, wanted).backward()

    def _play(self, at_random: bool = False) -> None:
        s, observation = self.settings, self.envs.observations.copy()
        explored = 0.0 if at_random else min(1.0, self._iterations / s.explore)
        if self._rng.random() < 1.0 + explored * (s.epsilon - 1.0):
            action = self._rng.integers(int(self.envs.action_space.n), size=1)
        else:
            with torch.no_grad():
                action = self._network(torch.from_numpy(observation)).argmax(1).numpy()
        step = self.envs.step(action)
        self._replay.add(observation, action, step, np.sign(step.rewards))
