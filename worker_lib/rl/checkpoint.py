"""Checkpoints: files with the state that all workers share.

Loading restores weights, target networks, Adam's moments and the number of updates to the last bit.
The environments, replay buffer and random generators of each worker are not saved; they begin anew.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from math import prod
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from iswitch.outside import reading, writing

from .workloads import Unsuitable

if TYPE_CHECKING:
    from .updater import Updater


def save(path: str, updater: Updater, names: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically: a reader finds the old file or the new one, each complete.

    A killed process may leave a partial file; its name is fixed, so the next save overwrites it.

    Args:
        path: path of the file.
        updater: holds the arrays to save.
        names: names of the workload; `load` requires equal ones.

    Raises:
        OutsideError: the file cannot be written; the disk is full, say.
    """
    with writing(path), _alone(path):
        _write(path, updater, names)


def save_if_later(path: str, updater: Updater, names: Mapping[str, Any]) -> None:
    """Write a checkpoint as `save` does, unless the file holds at least these updates.

    So after the loss of a worker all others may call it.

    Args:
        path: path of the file.
        updater: holds the arrays to save.
        names: names of the workload.

    Raises:
        OutsideError: the file cannot be written.
    """
    with writing(path), _alone(path):
        there = -1
        with suppress(Unsuitable):
            there = updates_in(path, names)
        if there < updater.updates:
            _write(path, updater, names)


@contextmanager
def _alone(path: str) -> Iterator[None]:
    """Keep other processes from writing checkpoints in the folder."""
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _write(path: str, updater: Updater, names: Mapping[str, Any]) -> None:
    arrays = {str(i): array for i, array in enumerate(updater.state)}
    partial = f"{path}.partial"
    try:
        with open(partial, "wb") as file:
            np.savez(file, names=np.array(json.dumps(names)), **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave the new name without contents
        os.replace(partial, path)
    except OSError:
        with suppress(OSError):
            os.unlink(partial)  # it fills the disk
        raise


def load(path: str, updater: Updater, names: Mapping[str, Any]) -> None:
    """Fill the arrays of an updater from a checkpoint.

    Args:
        path: path of the file.
        updater: holds the arrays to fill.
        names: names of the workload; the checkpoint must have equal ones.

    Raises:
        Unsuitable: the file is missing, is no checkpoint, or belongs to another workload.
    """
    arrays = _read(path, names)
    kinds = [(array.shape, array.dtype) for array in arrays]
    if kinds != [(array.shape, array.dtype) for array in updater.state]:
        raise Unsuitable(f"{path} has weights of other shapes; name another --out")
    for array, value in zip(updater.state, arrays, strict=True):
        array[...] = value


def updates_in(path: str, names: Mapping[str, Any]) -> int:
    """Return the number of updates done when a checkpoint was written.

    Raises:
        Unsuitable: the file is missing, is no checkpoint, or belongs to another workload.
    """
    return int(_read(path, names)[-1].item())


def _read(path: str, names: Mapping[str, Any]) -> list[npt.NDArray[Any]]:
    if not os.path.exists(path):
        raise Unsuitable(f"there is no checkpoint {path}; leave --resume out to begin")
    if not os.path.isfile(path):
        raise Unsuitable(f"{path} is no checkpoint: it is no regular file")
    with reading(path, lambda said: Unsuitable(f"{said}; it is no checkpoint")):
        with open(path, "rb") as file, _archive(file) as stored:
            entries = stored.infolist()
            size = os.fstat(file.fileno()).st_size
            if any(entry.compress_type for entry in entries):
                raise ValueError("it is compressed; iswitch writes it plain")
            if sum(entry.file_size for entry in entries) > size:
                raise ValueError("it announces more bytes than it has")
            wanted = {"names.npy", *(f"{i}.npy" for i in range(len(entries) - 1))}
            if {entry.filename for entry in entries} != wanted:
                raise ValueError("it does not hold what a training saves")
            if len(entries) == 1:
                raise ValueError("it holds no arrays")
            label = _array(stored.read("names.npy"))
            arrays = [_array(stored.read(f"{i}.npy")) for i in range(len(entries) - 1)]
        if label.dtype.kind != "U" or label.shape:
            raise ValueError("it does not name a training")
        found = json.loads(label.item())
        updates = arrays[-1]
        if not isinstance(found, dict) or updates.size != 1 or updates.dtype.kind != "i":
            raise ValueError("it does not say what was trained, or how long")
    if found != names:
        said = ", ".join(f"{name} {value}" for name, value in found.items())
        raise Unsuitable(f"{path} is of another training: {said}; name another --out")
    if not all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f"):
        raise Unsuitable(
            f"{path} has weights that are no finite numbers: that training diverged; begin anew, "
            "with another --out"
        )
    return arrays


def _archive(file: IO[bytes]) -> zipfile.ZipFile:
    """Open a file as a ZIP archive.

    Raises:
        ValueError: the file is no ZIP archive, or is truncated.
    """
    try:
        return zipfile.ZipFile(file)
    except zipfile.BadZipFile:
        raise ValueError("it is no ZIP archive, or was cut short") from None


def _array(content: bytes) -> npt.NDArray[Any]:
    """Parse an NPY file; return its array, a read-only view of `content`.

    Raises:
        ValueError: the array holds objects or is in column order, the NPY version is unknown, or
            the header announces another number of bytes than the file holds.
    """
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    parse = {(1, 0): "read_array_header_1_0", (2, 0): "read_array_header_2_0"}.get(version)
    if parse is None:
        raise ValueError(f"an array is written in version {version[0]} of NPY; 1 and 2 are read")
    shape, by_column, dtype = getattr(np.lib.format, parse)(file)
    begin = file.tell()
    if by_column or dtype.hasobject or prod(shape) * dtype.itemsize != len(content) - begin:
        raise ValueError("an array is not written as here, or is of another size than it says")
    return np.frombuffer(content, dtype, offset=begin).reshape(shape)
