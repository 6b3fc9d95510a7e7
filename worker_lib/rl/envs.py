"""Gymnasium environments with the wrappers that the algorithms need, stepped together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np
from gymnasium import wrappers
from numpy.typing import NDArray

Env: TypeAlias = "gymnasium.Env[Any, Any]"
Array: TypeAlias = NDArray[Any]


class Takes(NamedTuple):
    """Kinds of observations and actions that an algorithm supports."""

    images: bool  # true: uint8 frames of Atari games; false: vectors of numbers
    actions: tuple[type[gymnasium.Space[Any]], ...]


def make_atari(name: str, frames: int) -> Env:
    """Make an Atari game, preprocessed as in Mnih et al. 2015.

    An observation is the last `frames` screens, uint8 greys [frames, 84, 84]. An action lasts four
    frames of the game and always takes effect.
    """
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(name, frameskip=1, repeat_action_probability=0.0)
    return wrappers.FrameStackObservation(wrappers.AtariPreprocessing(env), frames)


def make_control(name: str, *, time_aware: bool = False, clip: bool = False) -> Env:
    """Make a control task.

    Args:
        name: its Gymnasium id.
        time_aware: add the elapsed fraction of the time limit to each observation, since values
            depend on it (Pardo et al. 2018, arXiv:1712.00378).
        clip: replace a continuous action outside the task's range by the nearest inside.
    """
    if "mujoco" in str(gymnasium.spec(name).entry_point):
        import mujoco

        # By default MuJoCo writes its warnings to MUJOCO_LOG.TXT in the current folder.
        mujoco.set_mju_user_warning(lambda text: print(text, file=sys.stderr))
    env = gymnasium.make(name)
    if clip and isinstance(env.action_space, gymnasium.spaces.Box):
        env = wrappers.ClipAction(env)
    return wrappers.TimeAwareObservation(env, normalize_time=True) if time_aware else env


class Step(NamedTuple):
    """Outcome of one action in each environment: arrays [environments, ...]."""

    successors: Array  # observations reached, before any reset
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]  # the episode reached a final state
    ended: NDArray[np.bool_]  # the episode ended, by a final state or by the time limit


class Envs:
    """Steps environments one after the other; starts a new episode wherever one ends.

    Attributes:
        observations: current observations, [environments, ...], for choosing the next actions.
        returns: undiscounted return of every finished episode.
    """

    def __init__(self, make: Callable[[], Env], seeds: Array) -> None:
        self._envs = [make() for _ in seeds]
        first = [env.reset(seed=int(s))[0] for env, s in zip(self._envs, seeds, strict=True)]
        dtype = np.uint8 if first[0].dtype == np.uint8 else np.float32
        self.observations: Array = np.array(first, dtype)
        self.returns: list[float] = []
        self._so_far = np.zeros(len(first))

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        """Return the observation space of each environment."""
        space: Any = self._envs[0].observation_space
        return space

    @property
    def action_space(self) -> Any:
        """Return the action space of each environment."""
        return self._envs[0].action_space

    def step(self, actions: Array) -> Step:
        """Take one action in each environment and update `observations`."""
        count = len(self._envs)
        reached = Step(
            np.empty_like(self.observations),
            np.empty(count, np.float32),
            np.empty(count, np.bool_),
            np.empty(count, np.bool_),
        )
        for i, (env, action) in enumerate(zip(self._envs, actions, strict=True)):
            observation, reward, terminated, truncated, _ = env.step(action)
            reached.successors[i] = observation
            reached.rewards[i] = reward
            reached.terminated[i] = terminated
            reached.ended[i] = terminated or truncated
            self._so_far[i] += float(reward)
            if terminated or truncated:
                self.returns.append(float(self._so_far[i]))
                self._so_far[i] = 0.0
                observation, _ = env.reset()
            self.observations[i] = observation
        return reached

    def close(self) -> None:
        """Close all environments."""
        for env in self._envs:
            env.close()
