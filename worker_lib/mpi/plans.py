"""Collectives on buffers: each reads its arguments, and returns what is to be done with them.

So a wrong argument is an error of the call, also of a non-blocking one. Vectors that are combined
travel as `ops.Carried` says, all else as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from iswitch.core.format.wire import Vector

from .buffers import Message, Parts, check_alike, is_in_place, message, parts, typed_parts
from .channels import Channels
from .errors import MpiError
from .ops import SUM, Carried, Op, carried

Step = Callable[[], None]
NOTHING = np.empty(0, np.uint8)


def check_root(channels: Channels, root: int) -> None:
    """Check that a root is a rank.

    Raises:
        MpiError: it is none, with the class ERR_ROOT.
    """
    if not 0 <= root < channels.size:
        raise MpiError("ERR_ROOT", f"root = {root}: ranks are 0..{channels.size - 1}")


def barrier(channels: Channels) -> Step:
    """Wait until all ranks have come."""
    return lambda: channels.all_gather(NOTHING, NOTHING)


# Reductions


def allreduce(channels: Channels, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Step:
    """Combine the vectors of all ranks, element by element, in all ranks."""
    received = message("recvbuf", recvbuf, writable=True)
    sent = _operand(sendbuf, received)
    way = carried(sent.datatype.numpy, op)

    def run() -> None:
        out = way.room(received.data)
        channels.allreduce(way.load(sent.data), out, way.name)
        way.store(out, received.data)

    return run


def reduce(channels: Channels, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> Step:
    """Combine the vectors of all ranks, element by element, at the root."""
    check_root(channels, root)
    received = None
    if channels.rank == root:
        received = message("recvbuf", recvbuf, writable=True)
        sent = _operand(sendbuf, received)
    else:
        sent = message("sendbuf", sendbuf)
    way = carried(sent.datatype.numpy, op)

    def run() -> None:
        vector = way.load(sent.data)
        if received is None:
            channels.reduce(vector, None, way.name, root)
            return
        out = way.room(received.data)
        channels.reduce(vector, out, way.name, root)
        way.store(out, received.data)

    return run


def reduce_scatter_block(channels: Channels, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Step:
    """Combine vectors of equal blocks, one for each rank; each rank gets its block."""
    if is_in_place(sendbuf):
        sent = message("recvbuf", recvbuf, channels.size, writable=True)
        received = Message(sent.data[: sent.count], sent.count, sent.datatype)
    else:
        sent = message("sendbuf", sendbuf, channels.size)
        received = message("recvbuf", recvbuf, writable=True)
        check_alike(sent, received)
    way = carried(sent.datatype.numpy, op)

    def run() -> None:
        _scattered(channels, way, sent.data, received.data)

    return run


def reduce_scatter(
    channels: Channels,
    sendbuf: Any,
    recvbuf: Any,
    recvcounts: Sequence[int] | None = None,
    op: Op = SUM,
) -> Step:
    """Combine vectors of a block for each rank, of these sizes; each rank gets its block."""
    in_place = is_in_place(sendbuf)
    received = message("recvbuf", recvbuf, writable=True)
    sent = received if in_place else message("sendbuf", sendbuf)
    if sent.datatype.numpy != received.datatype.numpy:
        raise ValueError("sendbuf and recvbuf are of different types: pass two arrays of one type")
    way = carried(sent.datatype.numpy, op)
    size, rank = channels.size, channels.rank
    given = recvcounts
    if given is None and in_place:
        given = [sent.count // size + (r < sent.count % size) for r in range(size)]
    if given is not None:
        _check_counts(given, sent, received, rank, size)

    def run() -> None:
        counts = given
        if counts is None:  # as mpi4py does
            found = np.empty(size, np.int64)
            own = np.array([received.count], np.int64)
            channels.all_gather(own.view(np.uint8), found.view(np.uint8))
            counts = found.tolist()
            _check_counts(counts, sent, received, rank, size)
        vector, most = sent.data, max(counts)
        if min(counts) < most:  # the switch's blocks are equal
            vector = np.zeros((size, most), sent.data.dtype)
            start = 0
            for row, count in zip(vector, counts, strict=True):
                row[:count] = sent.data[start : start + count]
                start += count
            vector = vector.reshape(-1)
            out = np.empty(most, vector.dtype)
            _scattered(channels, way, vector, out)
            received.data[: counts[rank]] = out[: counts[rank]]
        else:
            _scattered(channels, way, vector, received.data[:most])

    return run


def scan(channels: Channels, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Step:
    """Combine the vectors of the ranks up to this one, in their order."""
    return _prefix(channels, sendbuf, recvbuf, op, channels.rank + 1)


def exscan(channels: Channels, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Step:
    """Combine the vectors of the ranks before this one, in their order; rank 0 gets nothing."""
    return _prefix(channels, sendbuf, recvbuf, op, channels.rank)


def _prefix(channels: Channels, sendbuf: Any, recvbuf: Any, op: Op, ranks: int) -> Step:
    """Get the vectors of all ranks, and combine those of the first ones here."""
    received = message("recvbuf", recvbuf, writable=True)
    sent = _operand(sendbuf, received)
    op.combine(sent.data[:0], sent.data[:0].copy())  # is it defined?

    def run() -> None:
        rows = np.empty((channels.size, sent.count), sent.data.dtype)
        channels.all_gather(sent.octets, rows.reshape(-1).view(np.uint8))
        for lower, row in pairwise(rows[:ranks]):
            op.combine(lower, row)
        if ranks:
            received.data[:] = rows[ranks - 1]

    return run


def _operand(sendbuf: Any, received: Message) -> Message:
    """Return the vector of a reduction: what is sent, or what stands where results go."""
    if is_in_place(sendbuf):
        return received
    sent = message("sendbuf", sendbuf)
    check_alike(sent, received)
    return sent


def _scattered(channels: Channels, way: Carried, vector: Vector, into: Vector) -> None:
    out = way.room(into)
    channels.reduce_scatter(way.load(vector), out, way.name)
    way.store(out, into)


def _check_counts(
    counts: Sequence[int], sent: Message, received: Message, rank: int, size: int
) -> None:
    if len(counts) != size or min(counts) < 0:
        raise ValueError(f"recvcounts = {list(counts)!r}: pass a number of elements for each rank")
    if sum(counts) != sent.count:
        raise ValueError(
            f"recvcounts add up to {sum(counts)}, and the vector has {sent.count} elements: pass "
            "counts of all its elements"
        )
    if counts[rank] > received.count:
        raise ValueError(
            f"recvbuf has {received.count} elements, and rank {rank} gets {counts[rank]}: pass a "
            "larger one"
        )


# Data that only moves


def bcast(channels: Channels, buf: Any, root: int = 0) -> Step:
    """Write the root's buffer over those of all others."""
    check_root(channels, root)
    octets = message("buf", buf, writable=channels.rank != root).octets

    def run() -> None:
        channels.broadcast(octets if octets.flags.writeable else octets.copy(), root)

    return run


def allgather(channels: Channels, sendbuf: Any, recvbuf: Any) -> Step:
    """Get equal blocks of all ranks."""
    received = message("recvbuf", recvbuf, channels.size, writable=True)
    sent = _own(sendbuf, received, channels.rank)
    return lambda: channels.all_gather(sent, received.octets)


def allgatherv(channels: Channels, sendbuf: Any, recvbuf: Any) -> Step:
    """Get a block of each rank; `recvbuf` says of which sizes, and where they go."""
    received = parts("recvbuf", recvbuf, channels.size, writable=True)
    sent = _own_part(sendbuf, received, channels.rank)

    def run() -> None:
        target = received.target()
        channels.all_gather(sent, target, received.counts)
        received.store(target)

    return run


def gather(channels: Channels, sendbuf: Any, recvbuf: Any, root: int = 0) -> Step:
    """Get equal blocks of all ranks at the root."""
    check_root(channels, root)
    if channels.rank != root:
        given = message("sendbuf", sendbuf).octets
        return lambda: channels.gather(given, None, root)
    received = message("recvbuf", recvbuf, channels.size, writable=True)
    sent = _own(sendbuf, received, root)
    return lambda: channels.gather(sent, received.octets, root)


def gatherv(channels: Channels, sendbuf: Any, recvbuf: Any, root: int = 0) -> Step:
    """Get a block of each rank at the root, whose `recvbuf` says of which sizes."""
    check_root(channels, root)
    received = Parts(NOTHING, [0] * channels.size, [0] * channels.size)
    if channels.rank == root:
        received = parts("recvbuf", recvbuf, channels.size, writable=True)
        sent = _own_part(sendbuf, received, root)
    else:
        sent = message("sendbuf", sendbuf).octets
    given = _only(root, len(sent), channels.size)

    def run() -> None:
        target = received.target()
        channels.all_to_all(sent, target, (given, received.counts))
        received.store(target)

    return run


def scatter(channels: Channels, sendbuf: Any, recvbuf: Any, root: int = 0) -> Step:
    """Give each rank one of the root's equal blocks."""
    check_root(channels, root)
    if channels.rank != root:
        received = message("recvbuf", recvbuf, writable=True).octets
        return lambda: channels.scatter(None, received, root)
    sent = message("sendbuf", sendbuf, channels.size)
    nbytes = sent.count * sent.datatype.extent
    out = _taken(recvbuf, nbytes)
    return lambda: channels.scatter(sent.octets, out, root)


def scatterv(channels: Channels, sendbuf: Any, recvbuf: Any, root: int = 0) -> Step:
    """Give each rank a block of the root, whose `sendbuf` says of which sizes."""
    check_root(channels, root)
    if channels.rank != root:
        sent = Parts(NOTHING, [0] * channels.size, [0] * channels.size)
        received = message("recvbuf", recvbuf, writable=True).octets
    else:
        sent = parts("sendbuf", sendbuf, channels.size)
        received = _taken(recvbuf, sent.counts[root])
    got = _only(root, len(received), channels.size)
    return lambda: channels.all_to_all(sent.packed(), received, (sent.counts, got))


def alltoall(channels: Channels, sendbuf: Any, recvbuf: Any) -> Step:
    """Give each rank a block, and get one of each, all equal."""
    received = message("recvbuf", recvbuf, channels.size, writable=True)
    sent = received if is_in_place(sendbuf) else message("sendbuf", sendbuf, channels.size)
    _check_bytes(sent.octets.size, received.octets.size)
    return lambda: channels.all_to_all(sent.octets, received.octets)


def alltoallv(channels: Channels, sendbuf: Any, recvbuf: Any) -> Step:
    """Give each rank a block, and get one of each, of any sizes."""
    return _alltoall(channels, sendbuf, recvbuf, parts)


def alltoallw(channels: Channels, sendbuf: Any, recvbuf: Any) -> Step:
    """Give each rank a block, and get one of each, of any sizes and types."""
    return _alltoall(channels, sendbuf, recvbuf, typed_parts)


def _alltoall(channels: Channels, sendbuf: Any, recvbuf: Any, read: Callable[..., Parts]) -> Step:
    received = read("recvbuf", recvbuf, channels.size, writable=True)
    in_place = is_in_place(sendbuf)
    sent = received if in_place else read("sendbuf", sendbuf, channels.size)

    def run() -> None:
        vector, target = sent.packed(), received.target()
        counts = sent.counts, received.counts
        channels.all_to_all(vector.copy() if in_place else vector, target, counts)
        received.store(target)

    return run


def _own(sendbuf: Any, received: Message, rank: int) -> Vector:
    """Return the bytes of this rank's block: what is sent, or what stands where it would go."""
    nbytes = received.count * received.datatype.extent
    if is_in_place(sendbuf):
        return received.octets[rank * nbytes : (rank + 1) * nbytes]
    sent = message("sendbuf", sendbuf).octets
    _check_bytes(sent.size, nbytes)
    return sent


def _own_part(sendbuf: Any, received: Parts, rank: int) -> Vector:
    if is_in_place(sendbuf):
        return received.block(rank)
    sent = message("sendbuf", sendbuf).octets
    _check_bytes(sent.size, received.counts[rank])
    return sent


def _taken(recvbuf: Any, nbytes: int) -> Vector:
    """Return where the root of a scatter receives its own block."""
    if is_in_place(recvbuf):
        return np.empty(nbytes, np.uint8)
    received = message("recvbuf", recvbuf, writable=True).octets
    _check_bytes(nbytes, received.size)
    return received


def _check_bytes(sent: int, received: int) -> None:
    if sent != received:
        raise ValueError(
            f"sendbuf gives this rank {sent} bytes, and recvbuf takes {received} of it: pass "
            "blocks of one size, by [array, count, type] or [array, counts, type]"
        )


def _only(root: int, nbytes: int, size: int) -> list[int]:
    """Return the sizes of blocks of which only the root's is not empty."""
    return [nbytes if rank == root else 0 for rank in range(size)]
