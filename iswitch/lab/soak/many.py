"""Many histories, on several cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iswitch.lab.spread import spread

from .generate import generate
from .run import Result, run

FEW = 8  # seeds that are played before other processes have started


def play(seeds: Sequence[int], processes: int) -> Iterator[Result]:
    """Play seeds in several processes, and yield the results as they come, in any order."""
    yield from spread(play_seed, seeds, 1 if len(seeds) <= FEW else processes)


def play_seed(seed: int) -> Result:
    """Play the history of a seed, and return its result."""
    return run(generate(seed))
