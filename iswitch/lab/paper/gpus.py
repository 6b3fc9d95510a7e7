"""What computing a gradient took on GPUs of the paper's time, and where the values are from.

The paper's computing times are not published by themselves. So each value here is derived from a
published one, or an estimate, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Computing(NamedTuple):
    """Seconds of an iteration without communication: playing, and computing a gradient."""

    seconds: float
    kind: str  # "derived" or "estimate"
    source: str


GPUS: Mapping[str, Computing] = {
    "ppo": Computing(
        9.6e-3,
        "derived",
        "PPO2 of OpenAI Baselines plays a million steps of MuJoCo in 20 to 30 minutes, with a GPU "
        "or without (openai/baselines issue 360), at 320 gradients for 2048 steps",
    ),
    "ddpg": Computing(
        7.2e-3,
        "derived",
        "a million steps of the DeepMind Control Suite, with a gradient each, in less than 2 hours "
        "on a GPU (denisyarats/pytorch_sac issue 4)",
    ),
    "a2c": Computing(
        6.0e-3,
        "estimate",
        "5 steps of a game at 5000 a second, 5 times 0.5 ms to choose actions, 2.5 ms for a "
        "gradient of half of DQN's network",
    ),
    "dqn": Computing(
        7.2e-3,
        "derived",
        "200 million frames in 25 hours on a GTX 1080 (B. Daley, C. Amato, arXiv 2111.01264), a "
        "gradient for 16 frames",
    ),
}
