"""DQN: deep Q-learning (Mnih et al. 2015), double (van Hasselt et al. 2016), for Atari games.

One iteration plays a few steps with an epsilon-greedy policy, draws a batch from the replay buffer
and differentiates the loss

    mean of huber(Q(s, a) - (r + discount * Q_target(s', argmax Q(s', .))))

The target network is a copy of the weights of every so many updates ago; as a function of the
updates it is the same in all workers. Each worker has a replay buffer of its own.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn
from torch.nn import functional

from .envs import Array, Envs, Takes, make_atari
from .flat import Vector, bind, numel_of
from .replay import Replay
from .updater import Updater


@dataclass(frozen=True)
class Settings:
    """What all workers agree on."""

    frames: int = 1  # in an observation; 1 makes the gradient the paper's 6.41 MB
    steps: int = 4  # played per iteration
    batch: int = 32
    capacity: int = 50_000  # transitions, 14 kB each
    learning_starts: int = 1_000  # transitions played before the first gradient
    discount: float = 0.99
    epsilon: float = 0.02  # of actions are random, in the end
    explore: int = 10_000  # iterations in which epsilon falls from 1 to that
    learning_rate: float = 1e-4
    target_every: int = 250  # updates


SETTINGS = {"ALE/Pong-v5": Settings()}
ITERATIONS = {"ALE/Pong-v5": 100_000}
TAKES = Takes(images=True, actions=(Discrete,))


def make_envs(name: str, settings: Settings, seeds: Array) -> Envs:
    """One environment."""
    return Envs(partial(make_atari, name, settings.frames), seeds[:1])


class Network(nn.Module):
    """The convolutional network of Mnih et al. 2015: frames, uint8, to the value of each action."""

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
        """Values [batch, actions] of frames [batch, frames, 84, 84]."""
        return self.layers(frames / 255.0)


def make_updater(network: nn.Module, settings: Settings, iterations: int) -> Updater:  # noqa: ARG001
    """Adam; the target network is the weights of at most `target_every` updates ago."""

    def follow(weights: Vector, target: Vector, updates: int) -> None:
        if updates % settings.target_every == 0:
            target[:] = weights

    return Updater(network, [(numel_of(network), settings.learning_rate)], follow=follow)


class Learner:
    """One worker's environment, replay buffer and chance."""

    def __init__(
        self,
        network: Network,
        envs: Envs,
        settings: Settings,
        seed: int,
        model: list[Vector],
        gradient: Vector,
    ) -> None:
        """Look at the weights and target weights in `model`, write gradients to `gradient`."""
        self.settings, self.envs = settings, envs
        self.returns = envs.returns
        self._network, self._target = network, copy.deepcopy(network)
        bind(self._network, model[0], gradient)
        bind(self._target, model[1])
        self._gradient = gradient
        self._rng = np.random.default_rng(seed)
        self._replay = Replay(settings.capacity, envs.observations, envs.action_space)
        self._iterations = 0

    def prepare(self) -> None:
        """Play at random, for the first batches."""
        while len(self._replay) < self.settings.learning_starts:
            self._play(epsilon=1.0)

    def gradient(self) -> None:
        """Play, draw a batch, write its gradient."""
        s = self.settings
        explored = min(1.0, self._iterations / s.explore)
        for _ in range(s.steps):
            self._play(epsilon=1.0 + explored * (s.epsilon - 1.0))
        self._iterations += 1
        batch = self._replay.draw(s.batch, self._rng)
        with torch.no_grad():
            best = self._network(batch.successors).argmax(1, keepdim=True)
            follows = self._target(batch.successors).gather(1, best).squeeze(1)
            wanted = batch.rewards + s.discount * follows * (1 - batch.terminated)
        values = self._network(batch.observations).gather(1, batch.actions[:, None]).squeeze(1)
        self._gradient[:] = 0
        functional.smooth_l1_loss(values, wanted).backward()

    def _play(self, epsilon: float) -> None:
        observation = self.envs.observations.copy()
        if self._rng.random() < epsilon:
            action = self._rng.integers(int(self.envs.action_space.n), size=1)
        else:
            with torch.no_grad():
                action = self._network(torch.from_numpy(observation)).argmax(1).numpy()
        step = self.envs.step(action)
        self._replay.add(observation, action, step, np.sign(step.rewards))
