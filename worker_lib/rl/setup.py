"""Makes a worker's learner and updater from the names of a workload and a seed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from importlib import import_module
from math import inf, isfinite
from typing import Any

import numpy as np
import torch

from .envs import Array, Envs, Takes
from .flat import Vector
from .learner import Learner
from .updater import Updater
from .workloads import ALGORITHMS, PAIRS, Unsuitable

MOST_ENVS = 256  # in one worker
VERSION = re.compile(r"-v\d*$")  # at the end of an environment's id
TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Workload:
    """An algorithm in an environment.

    Args:
        algorithm: one of ALGORITHMS.
        env: id of the environment; None: the algorithm's default.
        changes: settings to change, name to value as text.

    Raises:
        Unsuitable: the algorithm or a setting is unknown, or a value is not allowed.
    """

    def __init__(
        self, algorithm: str, env: str | None = None, changes: Mapping[str, str] | None = None
    ) -> None:
        if algorithm not in ALGORITHMS:
            raise Unsuitable(f"no algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}")
        self.algorithm = algorithm
        self.env = env or ALGORITHMS[algorithm]
        self._module: Any = import_module(f".{algorithm}", __package__)
        known = self._module.SETTINGS
        settings = known.get(self.env, known[ALGORITHMS[algorithm]])
        self.settings = replace(settings, **parse(settings, changes or {}))
        check(self.settings)
        self.iterations: int = self._module.ITERATIONS.get(self.env, 100_000)

    def updater(self, seed: int, iterations: int | None = None) -> Updater:
        """Make the updater, with the state that all workers share.

        Args:
            seed: seeds the first weights.
            iterations: updates of the training; None: the workload's default.
        """
        envs = self._envs(np.zeros(1, np.uint32))
        network = self._network(envs, seed)
        envs.close()
        made: Updater = self._module.make_updater(
            network, self.settings, iterations or self.iterations
        )
        return made

    def learner(self, seeds: list[int], model: list[Vector], message: Vector) -> Learner:
        """Make one worker's learner.

        Args:
            seeds: seed its environments and random numbers; differ between workers.
            model: weights, and target weights if any, to read: the updater's `model` or copies.
            message: float32 vector whose first elements receive the gradient.
        """
        chance, *others = np.random.SeedSequence(seeds).generate_state(1 + MOST_ENVS)
        envs = self._envs(np.array(others))
        network = self._network(envs, 0)
        gradient = message[: model[0].size]
        made: Learner = self._module.Learner(
            network, envs, self.settings, int(chance), model, gradient
        )
        return made

    def _envs(self, seeds: Array) -> Envs:
        import gymnasium

        takes: Takes = self._module.TAKES
        known = " or ".join(env for algorithm, env in PAIRS if algorithm == self.algorithm)
        mend = f"name another with --env, such as {known}"
        if takes.images != self.env.startswith("ALE/"):
            kind = "Atari games (ALE/...)" if takes.images else "tasks whose state is a vector"
            raise Unsuitable(f"{self.algorithm} learns {kind}; {self.env} is none; {mend}")
        try:
            envs: Envs = self._module.make_envs(self.env, self.settings, seeds)
        except gymnasium.error.Error as error:
            near = meant(self.env)
            hint = f"; did you mean {near}?" if near else f"; {mend}"
            raise Unsuitable(f"{self.env}: {str(error).rstrip('.?')}{hint}") from None
        if not isinstance(envs.action_space, takes.actions):
            kinds = " or ".join(one.__name__ for one in takes.actions)
            raise Unsuitable(
                f"{self.algorithm} takes actions of {kinds}; {self.env} has {envs.action_space}; "
                + mend
            )
        return envs

    def _network(self, envs: Envs, seed: int) -> torch.nn.Module:
        observations, actions = envs.observation_space, envs.action_space
        torch.manual_seed(seed)
        network: torch.nn.Module = self._module.NeuralNetwork(observations, actions)
        return network


def meant(env: str) -> str | None:
    """Return the environment that is most like one that there is not; None: none is like it."""
    from gymnasium.envs.registration import registry

    latest = sorted(registry, key=lambda name: registry[name].version or 0)
    names = {VERSION.sub("", name).lower(): name for name in latest}
    near = get_close_matches(VERSION.sub("", env).lower(), names, n=1, cutoff=0.8)
    return names[near[0]] if near else None


def parse(settings: Any, changes: Mapping[str, str]) -> dict[str, Any]:
    """Convert the texts of `changes` to the types that their settings have now.

    Raises:
        Unsuitable: a setting is unknown, or a text is not of its type.
    """
    known = {field.name: type(getattr(settings, field.name)) for field in fields(settings)}
    parsed: dict[str, Any] = {}
    for name, text in changes.items():
        if name not in known:
            raise Unsuitable(f"no setting {name!r}; there are {', '.join(known)}")
        try:
            parsed[name] = TRUTHS[text.lower()] if known[name] is bool else known[name](text)
        except ValueError:
            raise Unsuitable(f"{name}={text}: not of type {known[name].__name__}") from None
        except KeyError:
            raise Unsuitable(
                f"{name}={text}: not of type bool; it is {', '.join(TRUTHS)}"
            ) from None
    return parsed


def check(settings: Any) -> None:
    """Refuse settings with which training cannot work.

    Raises:
        Unsuitable: a setting is out of its range, or two settings contradict each other.
    """
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    if not 1 <= values.get("envs", 1) <= MOST_ENVS:
        raise Unsuitable(f"envs: 1 to {MOST_ENVS} environments in each worker")
    for name, value in values.items():
        free = name == "max_norm" and value == inf  # gradients of any length
        if type(value) is float and not isfinite(value) and not free:
            raise Unsuitable(f"{name}={value}: a finite number")
        if type(value) is int and value < 1:
            raise Unsuitable(f"{name}={value}: a whole number of 1 or more")
    if (batch := values.get("envs", 1) * values.get("steps", 1)) < 2 * values.get("minibatches", 0):
        raise Unsuitable(
            f"minibatches={values['minibatches']}: of {batch} steps, two or more in each, since "
            "advantages are divided by their deviation"
        )
    if values.get("capacity", 0) < (starts := values.get("learning_starts", 0)):
        raise Unsuitable(
            f"capacity={values['capacity']}: room for learning_starts={starts}, at least"
        )


def deterministic() -> None:
    """Make torch's results equal to the bit in every run.

    With a single CPU thread, all operations used here add in a fixed order. (torch's
    use_deterministic_algorithms would change nothing but load the compiler, which takes a second.)
    """
    torch.set_num_threads(1)
