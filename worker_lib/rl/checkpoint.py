"""Checkpoints: what all workers have in common, in a file.

Weights, target networks, Adam's moments and the number of updates come back to the last bit. What
each worker has of its own does not: its environments, replay buffer and random generators begin
anew.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .workloads import Unsuitable

if TYPE_CHECKING:
    from .updater import Updater


def save(path: str, updater: Updater, names: Mapping[str, Any]) -> None:
    """Write a checkpoint; a reader sees the former one or this one, whole, whatever is killed.

    What a kill leaves of one half written has a fixed name, so the next one takes its place.

    Args:
        path: of the file.
        updater: has the arrays.
        names: of the workload; `load` wants the same.
    """
    arrays = {str(i): array for i, array in enumerate(updater.state)}
    partial = f"{path}.partial"
    with open(partial, "wb") as file:
        np.savez(file, names=np.array(json.dumps(names)), **arrays)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())  # else a power cut may leave the new name without its contents
    os.replace(partial, path)


def load(path: str, updater: Updater, names: Mapping[str, Any]) -> None:
    """Fill the arrays of an updater.

    Raises:
        Unsuitable: there is no such file, or it is of another workload.
    """
    arrays = _read(path, names)
    kinds = [(array.shape, array.dtype) for array in arrays]
    if kinds != [(array.shape, array.dtype) for array in updater.state]:
        raise Unsuitable(f"{path} has weights of other shapes; name another --out")
    for array, value in zip(updater.state, arrays, strict=True):
        array[...] = value


def updates_in(path: str, names: Mapping[str, Any]) -> int:
    """How many updates a checkpoint has.

    Raises:
        Unsuitable: there is no such file, or it is of another workload.
    """
    return int(_read(path, names)[-1].item())


def _read(path: str, names: Mapping[str, Any]) -> list[npt.NDArray[Any]]:
    if not Path(path).exists():
        raise Unsuitable(f"there is no checkpoint {path}; leave --resume out to begin")
    try:
        with np.load(path) as stored:
            found = json.loads(str(stored["names"]))
            arrays = [stored[str(i)] for i in range(len(stored.files) - 1)]
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise Unsuitable(f"{path} is no checkpoint: {error}") from None
    if found != names:
        said = ", ".join(f"{name} {value}" for name, value in found.items())
        raise Unsuitable(f"{path} is of another training: {said}; name another --out")
    return arrays
