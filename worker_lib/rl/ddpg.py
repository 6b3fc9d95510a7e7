"""DDPG: deep deterministic policy gradient (Lillicrap et al. 2016, arXiv:1509.02971).

One iteration plays a step with noise, draws a batch from the replay buffer and differentiates

    critic: mean of (Q(s, a) - (r + discount * Q_target(s', actor_target(s'))))^2
    actor:  mean of -Q(s, actor(s)), to the actor's weights alone

Both gradients travel as one vector; actor and critic have different learning rates. The target
networks follow the weights slowly; they depend on the updates alone, so all workers have equal
ones. Each worker has its own replay buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from .envs import Array, Envs, Takes, make_control
from .flat import Vector, numel_of
from .replay import ReplayLearner
from .updater import Updater


@dataclass(frozen=True)
class Settings:
    """Settings of DDPG, equal in all workers."""

    batch: int = 64
    capacity: int = 200_000  # transitions
    learning_starts: int = 1_000  # transitions played before the first gradient
    discount: float = 0.99
    noise: float = 0.1  # standard deviation, as a part of the largest action
    actor_rate: float = 3e-4
    critic_rate: float = 1e-3
    follow: float = 0.005  # fraction of the distance to the weights that targets move per update


SETTINGS = {"HalfCheetah-v5": Settings(), "Pendulum-v1": Settings(actor_rate=5e-4)}
ITERATIONS = {"HalfCheetah-v5": 250_000, "Pendulum-v1": 15_000}
TAKES = Takes(images=False, actions=(Box,))


def make_envs(name: str, settings: Settings, seeds: Array) -> Envs:  # noqa: ARG001
    """Make one control environment, from the first seed."""
    return Envs(partial(make_control, name), seeds[:1])


class Actor(nn.Module):
    """Maps a state to an action, through two normalised layers of 128 units."""

    def __init__(self, observations: int, actions: Box) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(observations, 128), nn.LayerNorm(128), nn.ReLU(),
            nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU(),
            small(nn.Linear(128, actions.shape[0])), nn.Tanh(),
        )  # fmt: skip
        self.register_buffer("scale", torch.from_numpy((actions.high - actions.low) / 2))
        self.register_buffer("middle", torch.from_numpy((actions.high + actions.low) / 2))

    def forward(self, observations: Tensor) -> Tensor:
        """Return actions [batch, actions] for observations [batch, observations]."""
        return self.layers(observations) * self.scale + self.middle


class Critic(nn.Module):
    """Maps a state and an action to a value; the action enters at the second layer."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(observations, 128), nn.LayerNorm(128), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(128 + actions, 128), nn.LayerNorm(128), nn.ReLU())
        self.last = small(nn.Linear(128, 1))

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return values [batch] of actions [batch, actions] in their states."""
        features = torch.cat([self.first(observations), actions], dim=1)
        return self.last(self.second(features)).squeeze(1)


def small(layer: nn.Linear) -> nn.Linear:
    """Draw a last layer's parameters from +-0.003, as in the paper; return the layer.

    First actions are then near the middle of their range, where tanh has a gradient.
    """
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -3e-3, 3e-3)
    return layer


class NeuralNetwork(nn.Module):
    """Actor and critic; the actor's parameters come first."""

    def __init__(self, observations: Box, actions: Box) -> None:
        super().__init__()
        self.actor = Actor(observations.shape[0], actions)
        self.critic = Critic(observations.shape[0], actions.shape[0])


def make_updater(network: NeuralNetwork, settings: Settings, iterations: int) -> Updater:  # noqa: ARG001
    """Make an Adam updater with a rate each for actor and critic; its targets follow slowly."""

    def follow(weights: Vector, target: Vector, updates: int) -> None:  # noqa: ARG001
        target += np.float32(settings.follow) * (weights - target)

    rates = [
        (numel_of(network.actor), settings.actor_rate),
        (numel_of(network), settings.critic_rate),
    ]
    return Updater(network, rates, follow=follow)


class Learner(ReplayLearner):
    """Adds noise to the actor's actions."""

    settings: Settings
    _network: NeuralNetwork

    def gradient(self) -> None:
        """Play a step, draw a batch and write the gradients of critic and actor."""
        s, network = self.settings, self._network
        self._play()
        batch = self._replay.draw(s.batch, self._rng)
        with torch.no_grad():
            follows = self._target.critic(batch.successors, self._target.actor(batch.successors))
            wanted = batch.rewards + s.discount * follows * (1 - batch.terminated)
        errors = network.critic(batch.observations, batch.actions) - wanted
        self._gradient[:] = 0
        errors.square().mean().backward()
        # The actor's gradient passes through the critic, whose own weights get none.
        network.critic.requires_grad_(False)
        (-network.critic(batch.observations, network.actor(batch.observations)).mean()).backward()
        network.critic.requires_grad_(True)

    def _play(self, at_random: bool = False) -> None:
        observation, space = self.envs.observations.copy(), self.envs.action_space
        if at_random:
            action = self._rng.uniform(space.low, space.high)[None]
        else:
            with torch.no_grad():
                action = self._network.actor(torch.from_numpy(observation)).numpy()
            scale = self.settings.noise * (space.high - space.low) / 2
            action = action + scale * self._rng.standard_normal(action.shape)
        action = np.clip(action, space.low, space.high).astype(np.float32)
        step = self.envs.step(action)
        self._replay.add(observation, action, step, step.rewards)
