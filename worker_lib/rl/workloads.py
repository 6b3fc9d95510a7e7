"""The workloads: which algorithm trains in which environment, and which modules that needs.

Imports no torch, so that the command line stays quick.
"""

from __future__ import annotations

from importlib.util import find_spec

from iswitch.outside import OutsideError

ALGORITHMS = {
    "dqn": "ALE/Pong-v5",
    "a2c": "ALE/Qbert-v5",
    "ppo": "Hopper-v5",
    "ddpg": "HalfCheetah-v5",
}  # and the environment in which the paper measured each of them
PAIRS = [*ALGORITHMS.items(), ("ppo", "CartPole-v1"), ("ddpg", "Pendulum-v1")]
ATARI = ("ale_py", "cv2")  # modules
MUJOCO = ("mujoco",)
MUJOCO_TASKS = ("Hopper", "HalfCheetah", "Walker2d", "Ant", "Humanoid", "Swimmer", "Reacher")


class Unsuitable(OutsideError, ValueError):
    """An algorithm cannot learn in an environment or with a setting; the message says why."""


def missing(env: str) -> list[str]:
    """Return the modules that training in an environment needs and that are not installed."""
    needed = ["torch", "gymnasium", "tensorboardX"]
    if env.startswith("ALE/"):
        needed += ATARI
    elif env.startswith(MUJOCO_TASKS):
        needed += MUJOCO
    return [name for name in needed if find_spec(name) is None]
