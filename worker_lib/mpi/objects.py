"""Collectives on objects: pickled, their sizes exchanged first."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import reduce as folded
from typing import Any

import numpy as np

from iswitch.core.format.wire import Vector

from .channels import Channels
from .plans import NOTHING, check_root

Combine = Callable[[Any, Any], Any]
WORD = np.dtype(np.int64)


def bcast(channels: Channels, obj: Any, root: int) -> Any:
    """Return the root's object in all ranks."""
    check_root(channels, root)
    blob = _blob(obj) if channels.rank == root else NOTHING
    size = _words([blob.size])
    channels.broadcast(size, root)
    blob = blob if channels.rank == root else np.empty(_numbers(size)[0], np.uint8)
    channels.broadcast(blob, root)
    return obj if channels.rank == root else _object(blob)


def allgather(channels: Channels, obj: Any) -> list[Any]:
    """Return the objects of all ranks, in their order."""
    blob = _blob(obj)
    sizes = _words([0] * channels.size)
    channels.all_gather(_words([blob.size]), sizes)
    counts = _numbers(sizes)
    blobs = np.empty(sum(counts), np.uint8)
    channels.all_gather(blob, blobs, counts)
    return _objects(blobs, counts)


def gather(channels: Channels, obj: Any, root: int) -> list[Any] | None:
    """Return the objects of all ranks at the root; None elsewhere."""
    check_root(channels, root)
    blob = _blob(obj)
    is_root = channels.rank == root
    sizes = _words([0] * channels.size)
    channels.gather(_words([blob.size]), sizes if is_root else None, root)
    got = _numbers(sizes)
    given = [blob.size if rank == root else 0 for rank in range(channels.size)]
    blobs = np.empty(sum(got), np.uint8)
    channels.all_to_all(blob, blobs, (given, got))
    return _objects(blobs, got) if is_root else None


def scatter(channels: Channels, objs: Sequence[Any] | None, root: int) -> Any:
    """Return this rank's of the root's objects."""
    check_root(channels, root)
    given, blobs = [0] * channels.size, NOTHING
    if channels.rank == root:
        given, blobs = _pickled("sendobj", objs, channels.size)
    size = _words([0])
    channels.scatter(_words(given) if channels.rank == root else None, size, root)
    got = [_numbers(size)[0] if rank == root else 0 for rank in range(channels.size)]
    blob = np.empty(sum(got), np.uint8)
    channels.all_to_all(blobs, blob, (given, got))
    return _object(blob)


def alltoall(channels: Channels, objs: Sequence[Any]) -> list[Any]:
    """Give each rank an object, and return those that all ranks give to this one."""
    given, blobs = _pickled("sendobj", objs, channels.size)
    sizes = _words([0] * channels.size)
    channels.all_to_all(_words(given), sizes)
    got = _numbers(sizes)
    received = np.empty(sum(got), np.uint8)
    channels.all_to_all(blobs, received, (given, got))
    return _objects(received, got)


def reduce(channels: Channels, obj: Any, op: Combine, root: int) -> Any:
    """Combine the objects of all ranks in their order, at the root; None elsewhere."""
    objects = gather(channels, obj, root)
    return None if objects is None else folded(op, objects)


def allreduce(channels: Channels, obj: Any, op: Combine) -> Any:
    """Combine the objects of all ranks in their order, in each rank."""
    return folded(op, allgather(channels, obj))


def scan(channels: Channels, obj: Any, op: Combine) -> Any:
    """Combine the objects of the ranks up to this one, in their order."""
    return folded(op, allgather(channels, obj)[: channels.rank + 1])


def exscan(channels: Channels, obj: Any, op: Combine) -> Any:
    """Combine the objects of the ranks before this one, in their order; None in rank 0."""
    before = allgather(channels, obj)[: channels.rank]
    return folded(op, before) if before else None


def _blob(obj: Any) -> Vector:
    return np.frombuffer(bytearray(pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)), np.uint8)


def _object(blob: Vector) -> Any:
    return pickle.loads(blob.data)


def _pickled(name: str, objs: Sequence[Any] | None, size: int) -> tuple[list[int], Vector]:
    """Return the sizes of the pickles of objects, one for each rank, and all of them together."""
    found = [] if objs is None else list(objs)
    if len(found) != size:
        raise ValueError(f"{name} has {len(found)} objects: pass {size}, one for each rank")
    blobs = [_blob(obj) for obj in found]
    return [blob.size for blob in blobs], np.concatenate(blobs)


def _objects(blobs: Vector, sizes: Sequence[int]) -> list[Any]:
    stops = np.cumsum(sizes).tolist()
    return [_object(blobs[stop - size : stop]) for size, stop in zip(sizes, stops, strict=True)]


def _words(numbers: Sequence[int]) -> Vector:
    return np.array(numbers, WORD).view(np.uint8)


def _numbers(words: Vector) -> list[int]:
    found: list[int] = words.view(WORD).tolist()
    return found
