"""Calls of worker_lib.mpi that only move data: any type, any sizes, gaps, and IN_PLACE."""

from __future__ import annotations

import array
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.conftest import Where
from tests.support.communicators import ranks
from worker_lib import mpi as MPI
from worker_lib.mpi import channels

DTYPES = "int8", "float64", "complex128", "longdouble"
SIZES = 0, 1, 33, 3001  # the last takes several rounds


@pytest.fixture(autouse=True)
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "CAPACITY", 4096)


def block(giver: int, taker: int, dtype: str, numel: int) -> Any:
    """What one rank gives to another."""
    return (np.arange(numel) * 7 + giver * 10 + taker).astype(np.int8).astype(dtype)


def equal_blocks(comm: MPI.Intracomm, dtype: str, numel: int) -> None:
    size, rank = comm.size, comm.rank
    root = numel % size
    own = block(rank, 0, dtype, numel)
    everybodys = np.array([block(giver, 0, dtype, numel) for giver in range(size)])

    buffer = own.copy()
    comm.Bcast(buffer, root)
    np.testing.assert_array_equal(buffer, everybodys[root])

    got = np.empty_like(everybodys)
    comm.Allgather(own, got)
    np.testing.assert_array_equal(got, everybodys)
    got = np.zeros_like(everybodys)
    got[rank] = own
    comm.Allgather(MPI.IN_PLACE, got)
    np.testing.assert_array_equal(got, everybodys)

    got = np.zeros_like(everybodys)
    comm.Gather(own, got if rank == root else None, root)
    np.testing.assert_array_equal(got, everybodys if rank == root else np.zeros_like(got))
    if rank == root:
        got[...] = 0
        got[rank] = own
        own_again: Any = MPI.IN_PLACE
    else:
        own_again = own
    comm.Gather(own_again, got, root)
    assert rank != root or np.array_equal(got, everybodys)

    got = np.empty(numel, dtype)
    comm.Scatter(everybodys if rank == root else None, got, root)
    np.testing.assert_array_equal(got, everybodys[rank])
    comm.Scatter(everybodys if rank == root else None, None if rank == root else got, root)
    np.testing.assert_array_equal(got, everybodys[rank])

    given = np.array([block(rank, taker, dtype, numel) for taker in range(size)])
    right = np.array([block(giver, rank, dtype, numel) for giver in range(size)])
    got = np.empty_like(given)
    comm.Alltoall(given, got)
    np.testing.assert_array_equal(got, right)
    comm.Alltoall(MPI.IN_PLACE, given)
    np.testing.assert_array_equal(given, right)


def with_gaps(blocks: list[Any], dtype: str) -> tuple[Any, list[int], list[int]]:
    """An array with these blocks in reverse order and gaps of 2, their counts and displacements."""
    counts = [len(one) for one in blocks]
    displs = [sum(counts[i + 1 :]) + 2 * (len(counts) - i) for i in range(len(counts))]
    made = np.full(sum(counts) + 2 * len(counts) + 2, 99, dtype)
    for one, at in zip(blocks, displs, strict=True):
        made[at : at + len(one)] = one
    return made, counts, displs


def blocks_of_any_size(comm: MPI.Intracomm, dtype: str, numel: int) -> None:
    size, rank = comm.size, comm.rank
    root = numel % size
    blocks = [block(giver, 0, dtype, numel * giver // size) for giver in range(size)]
    right, counts, displs = with_gaps(blocks, dtype)
    datatype = MPI.Datatype.fromcode(np.dtype(dtype).char)

    def spec(buffer: Any) -> Any:
        return [buffer, (counts, displs), datatype]

    got = np.full_like(right, 99)
    comm.Allgatherv(blocks[rank], spec(got))
    np.testing.assert_array_equal(got, right)
    got = np.full_like(right, 99)
    got[displs[rank] : displs[rank] + counts[rank]] = blocks[rank]
    comm.Allgatherv(MPI.IN_PLACE, spec(got))
    np.testing.assert_array_equal(got, right)
    packed = np.empty(sum(counts), dtype)
    comm.Allgatherv(blocks[rank], [packed, counts])
    np.testing.assert_array_equal(packed, np.concatenate(blocks))

    got = np.full_like(right, 99)
    comm.Gatherv(blocks[rank], spec(got) if rank == root else None, root)
    assert rank != root or np.array_equal(got, right)

    own = np.empty(counts[rank], dtype)
    comm.Scatterv(spec(right) if rank == root else None, own, root)
    np.testing.assert_array_equal(own, blocks[rank])

    def sizes(giver: int, taker: int) -> int:
        return numel * (giver + taker) // (2 * size)

    given = [block(rank, taker, dtype, sizes(rank, taker)) for taker in range(size)]
    taken = [block(giver, rank, dtype, sizes(giver, rank)) for giver in range(size)]
    sent, counts, displs = with_gaps(given, dtype)
    send = spec(sent)
    right, counts, displs = with_gaps(taken, dtype)
    got = np.full_like(right, 99)
    comm.Alltoallv(send, spec(got))
    np.testing.assert_array_equal(got, right)

    step = np.dtype(dtype).itemsize
    types = [datatype, *[MPI.BYTE] * (size - 1)]
    scale = [1, *[step] * (size - 1)]
    in_bytes = [one * step for one in displs]
    got = np.full_like(right, 99)
    mixed = [count * factor for count, factor in zip(counts, scale, strict=True)]
    sent_bytes = [one * step for one in send[1][1]]
    comm.Alltoallw(
        [sent, (send[1][0], sent_bytes), [datatype] * size], [got, (mixed, in_bytes), types]
    )
    np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_moves(switch: Where, job: int, size: int) -> None:
    with ranks(switch, job, size) as team:
        for dtype in DTYPES if size < 5 else DTYPES[:1]:
            for numel in SIZES if dtype == "float64" or size == 5 else (33,):
                team.run(partial(equal_blocks, dtype=dtype, numel=numel))
                team.run(partial(blocks_of_any_size, dtype=dtype, numel=numel))


class OnlyDlpack:
    def __init__(self, held: Any) -> None:
        self._held = held

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._held.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self._held.__dlpack_device__()


def test_forms_of_buffers() -> None:
    comm, got = MPI.COMM_SELF, np.zeros(6, np.int32)
    six = np.arange(6, dtype=np.int32)
    everything: list[Any] = [
        six, [six], (six, MPI.INT), [six, "i"], [six, 6], [six, 6, MPI.INT], [six, (6, 0), MPI.INT],
        [six, 6, 0, MPI.INT], array.array("i", six), six.data, OnlyDlpack(six),
        [six.tobytes(), MPI.INT], np.asfortranarray(six.reshape(2, 3).T).T,
    ]  # fmt: skip
    for form in everything:
        got[:] = 0
        comm.Allgather(form, [got, MPI.INT])
        assert got.tolist() == six.tolist(), form
    comm.Allgather([six, (2, 3), MPI.INT], [got, 2])
    assert got.tolist() == [3, 4, 2, 3, 4, 5]
    torch = pytest.importorskip("torch")
    tensor = torch.ones(6, dtype=torch.bfloat16)
    comm.Bcast(tensor)
    comm.Allgather([None, MPI.INT], [None, MPI.INT])


READ_ONLY = np.zeros(4)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("sent", "received", "error", "message"),
    [
        (np.zeros(4), np.zeros(5), ValueError, "pass blocks of one size"),
        (np.zeros(4), READ_ONLY, ValueError, "recvbuf is read-only: pass an array"),
        (np.zeros((4, 4))[:, :2], np.zeros(8), ValueError, r"pass np.ascontiguousarray\(sendbuf\)"),
        ([1.0, 2.0, 3.0, 4.0, 5.0], np.zeros(5), ValueError, "is a list of 5"),
        ("text", np.zeros(4), TypeError, "the lower-case calls take any object"),
        (np.array([{}]), np.zeros(1), TypeError, "use the lower-case call"),
        ([np.zeros(4), 5], np.zeros(5), ValueError, "has 4 elements, and 5 are asked for"),
        ([np.zeros(4), -1], np.zeros(5), ValueError, "no count"),
        ([np.zeros(3, "u1"), MPI.INT], np.zeros(5), ValueError, "no whole number of MPI_INT"),
        ([np.zeros(3), 3, float], np.zeros(3), TypeError, "no datatype; pass one such as"),
        (np.zeros(3, "M8[s]"), np.zeros(3), TypeError, "no MPI datatype for datetime64"),
    ],
)
def test_wrong_buffers_name_the_mend(
    sent: Any, received: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        MPI.COMM_SELF.Allgather(sent, received)


def test_wrong_counts_name_the_mend(switch: Where, job: int) -> None:
    four = np.zeros(4)

    def check(comm: MPI.Intracomm) -> None:
        with pytest.raises(ValueError, match="no 3 equal blocks: pass one block for each rank"):
            comm.Alltoall(four, four)
        with pytest.raises(ValueError, match="recvbuf has 2 counts, for 3 ranks"):
            comm.Allgatherv(four, [np.zeros(8), [4, 4]])
        with pytest.raises(ValueError, match="its blocks end at byte 96: pass a larger buffer"):
            comm.Allgatherv(four, [np.zeros(8), [4, 4, 4]])
        with pytest.raises(ValueError, match=r"recvcounts add up to 3, and the vector has 4"):
            comm.Reduce_scatter(four, np.zeros(1), [1, 1, 1])
        with pytest.raises(ValueError, match="different types"):
            comm.Reduce_scatter(four, np.zeros(2, "i4"), [2, 1, 1])
        with pytest.raises(ValueError, match="pass two arrays of one type"):
            comm.Allreduce(four, np.zeros(4, "i4"))
        with pytest.raises(MPI.Exception, match=r"root = 3: ranks are 0..2") as raised:
            comm.Bcast(four, root=3)
        assert raised.value.Get_error_class() == MPI.ERR_ROOT

    with ranks(switch, job, 3) as team:
        team.run(check)


def test_sizes_that_differ_between_ranks_are_an_error(switch: Where, job: int) -> None:
    def broadcast(comm: MPI.Intracomm) -> None:
        buffer = np.zeros(10 + 200 * comm.rank)  # one packet, or two
        if comm.rank == 0:
            comm.Bcast(buffer)
            return
        with pytest.raises(MPI.Exception, match="do not agree on the sizes") as raised:
            comm.Bcast(buffer)
        assert raised.value.Get_error_class() == MPI.ERR_TRUNCATE

    with ranks(switch, job, 2) as team:
        team.run(broadcast)
        assert team.run(lambda comm: comm.allgather(comm.rank)) == [[0, 1]] * 2
