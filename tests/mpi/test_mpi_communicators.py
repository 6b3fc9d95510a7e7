"""Communicators of worker_lib.mpi: objects, requests, Split and Dup, job numbers, failures."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.conftest import Where
from tests.support import python
from tests.support.communicators import PATIENCE, SPAN, ranks
from worker_lib import mpi as MPI
from worker_lib.arguments import MOST_JOB
from worker_lib.mpi.channels import Place, Switched
from worker_lib.mpi.numbering import Numbers, checked

OBJECTS: list[Any] = [None, -(2**70), "text", b"", {"a": [1, (2.5, 1j)]}, list(range(5000))]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_objects(switch: Where, job: int, size: int) -> None:
    def check(comm: MPI.Intracomm) -> None:
        rank, root = comm.rank, size - 1
        mine = OBJECTS[rank:]
        everybodys = [OBJECTS[other:] for other in range(size)]
        for obj in OBJECTS:
            assert comm.bcast(obj if rank == root else "other", root) == obj
        assert comm.allgather(mine) == everybodys
        assert comm.gather(mine, root) == (everybodys if rank == root else None)
        assert comm.scatter(everybodys if rank == root else None, root) == mine
        assert comm.alltoall([(rank, other) for other in range(size)]) == [
            (other, rank) for other in range(size)
        ]
        words = "".join(map(str, range(size)))
        assert comm.allreduce(str(rank)) == words
        assert comm.reduce(str(rank), root=root) == (words if rank == root else None)
        assert comm.scan(str(rank)) == words[: rank + 1]
        assert comm.exscan(str(rank)) == (words[:rank] or None)
        assert comm.allreduce((5, rank), MPI.MAXLOC) == (5, 0)
        assert comm.allreduce({rank}, lambda a, b: a | b) == set(range(size))
        with pytest.raises(ValueError, match=f"1 objects: pass {size + 1}|has {size + 1} objects"):
            comm.alltoall([0] * (size + 1))

    with ranks(switch, job, size) as team:
        team.run(check)


def test_nonblocking_calls_run_in_their_order(switch: Where, job: int) -> None:
    def check(comm: MPI.Intracomm) -> None:
        count = 20
        sums = [np.full(5, n + comm.rank, np.int32) for n in range(count)]
        requests = [comm.Iallreduce(MPI.IN_PLACE, one) for one in sums]
        buffer = np.full(3, comm.rank, np.int8)
        requests.append(comm.Ibcast(buffer, root=1))
        comm.Barrier()  # takes its turn
        assert all(request.Test() for request in requests)
        assert [one[0] for one in sums] == [2 * n + 1 for n in range(count)]
        assert buffer.tolist() == [1] * 3
        assert MPI.Request.Waitall(requests)
        assert comm.Ibarrier().test() in [(False, None), (True, None)]
        got = np.empty(2, np.int32)
        request = comm.Iallgather(np.array([comm.rank], np.int32), got)
        assert MPI.Request.Waitany([request]) == 0
        assert got.tolist() == [0, 1]
        with pytest.raises(ValueError, match="pass equally many"):
            comm.Iallreduce(np.zeros(3), np.zeros(4))

    with ranks(switch, job, 2) as team:
        team.run(check)


def test_a_request_waits(switch: Where, job: int) -> None:
    late = threading.Event()

    def check(comm: MPI.Intracomm) -> None:
        if comm.rank:
            assert late.wait(20)
        request = comm.Ibarrier()
        assert comm.rank or not request.Test()
        late.set()
        request.wait()

    with ranks(switch, job, 2) as team:
        team.run(check)


def test_split_and_dup(switch: Where, job: int) -> None:
    numbers: set[int] = set()

    def check(comm: MPI.Intracomm) -> None:
        rank = comm.rank
        half = comm.Split(rank % 2, -rank)
        assert (half.rank, half.size) == {0: (2, 3), 1: (1, 2), 2: (1, 3), 3: (0, 2), 4: (0, 3)}[
            rank
        ]
        assert half.allgather(rank) == ([4, 2, 0] if rank % 2 == 0 else [3, 1])
        again = half.Dup()  # both halves at the same time
        inner = again.Split(0 if again.rank else MPI.UNDEFINED)
        if not again.rank:
            assert inner == MPI.COMM_NULL
            assert not inner
            with pytest.raises(MPI.Exception, match="null communicator") as raised:
                inner.Barrier()
            assert raised.value.Get_error_class() == MPI.ERR_COMM
        else:
            assert inner.allreduce(1) == again.size - 1
            inner.Free()
        assert comm.allreduce(1) == 5
        assert again.allreduce(np.int64(rank)) == (6 if rank % 2 == 0 else 4)
        for one in (comm, half, again):
            if not one.rank:
                numbers.update(one._link.channels._taken)  # type: ignore[attr-defined]
        assert sum(map(len, comm.allgather([half._link.members, again._link.members]))) == 10
        again.Free()
        half.Free()
        assert again == MPI.COMM_NULL

    with ranks(switch, job, 5) as team:
        team.run(check)
    assert len(numbers) == 5
    assert all(job * SPAN <= number < job * SPAN + SPAN for number in numbers)


def test_numbers_are_unique_and_used_again_only_when_none_is_left() -> None:
    size, first = 3, MOST_JOB - 10
    givers = [Numbers(first, rank, size) for rank in range(size)]
    taken = [giver.take() for giver in givers for _ in range(4)]
    found = [number for number in taken if number >= 0]
    assert sorted(found) == list(range(first, MOST_JOB + 1))
    with pytest.raises(MPI.Exception, match=r"free communicators \(comm.Free\(\)\)"):
        checked(givers[2].take())
    givers[2].give_back(first + 2)
    assert givers[2].take() == first + 2
    fresh = Numbers(0, 1, 4)
    number = fresh.take()
    fresh.give_back(number, unused=True)
    assert fresh.take() == number


def test_a_lost_rank_is_an_error_that_ends_the_communicator(switch: Where, job: int) -> None:
    def check(comm: MPI.Intracomm) -> None:
        comm.Barrier()
        if comm.rank == 1:
            comm.Free()
            return
        with pytest.raises(MPI.Exception, match="rank 1 is lost") as raised:
            comm.Barrier()
        assert raised.value.Get_error_class() == MPI.ERR_OTHER
        with pytest.raises(MPI.Exception, match="no collective can follow the failure"):
            comm.allgather(1)

    with ranks(switch, job, 2) as team:
        team.run(check)


def test_what_is_missing_says_where_it_is() -> None:
    comm = MPI.COMM_SELF
    for name in ("send", "Recv", "Isend", "sendrecv", "Improbe"):
        with pytest.raises(NotImplementedError, match="mpi4py under mpirun, or torch"):
            getattr(comm, name)(None, 0)
    assert not hasattr(comm, "Create_cart")
    assert not hasattr(MPI, "Win")
    with pytest.raises(NotImplementedError, match=r"comm.allreduce\(object, op=function\)"):
        MPI.Op.Create(max)


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    comm = MPI.COMM_SELF
    assert (comm.Get_rank(), comm.Get_size(), comm.rank, comm.size) == (0, 1, 0, 1)
    assert comm.Get_name() == "MPI_COMM_SELF"
    assert comm.is_intra
    assert not comm.is_inter
    assert (MPI.DOUBLE_INT.Get_size(), MPI.DOUBLE_INT.Get_extent()) == (12, (0, 16))
    assert MPI.FLOAT.Get_name() == "MPI_FLOAT"
    assert MPI.Datatype.fromcode("h") is MPI.SHORT
    assert {"FLOAT", "SUM", "COMM_WORLD", "ERR_ROOT"} <= set(dir(MPI))
    assert MPI.Is_initialized()
    assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
    assert MPI.Get_processor_name()
    assert 0 < MPI.Wtick() < 1 < MPI.Wtime() + 2
    for name in ("ISWITCH_SWITCH", "ISWITCH_JOB", "WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="start this with `iswitch run"):
        _ = MPI.COMM_WORLD


def test_world_of_the_environment_needs_a_rank() -> None:
    told = {"ISWITCH_SWITCH": "127.0.0.1:26963", "ISWITCH_JOB": "7", "WORLD_SIZE": "2"}
    with pytest.raises(ValueError, match="RANK is not set"):
        MPI.Intracomm.from_env(told)
    comm = MPI.Intracomm.from_env(told | {"RANK": "1"})
    assert (comm.rank, comm.size) == (1, 2)


def test_importing_the_worker_library_does_not_import_mpi() -> None:
    code = "import sys, worker_lib; assert not {'worker_lib.mpi', 'numpy'} & set(sys.modules)"
    assert python("-c", code).returncode == 0


def test_nothing_follows_an_interrupted_collective(switch: Where, job: int) -> None:
    """Its next one would meet the others' last one; a wrong argument sends nothing."""
    numbers = Numbers(job * SPAN, 0, 1)
    channels = Switched(Place(switch, None, PATIENCE, numbers), 0, 1, job * SPAN)
    for error, ends in ((ValueError, False), (KeyboardInterrupt, True)):
        with pytest.raises(error):
            channels._guarded(Mock(side_effect=error))
        if not ends:
            channels.broadcast(np.ones(3, np.uint8), 0)
    with pytest.raises(MPI.Exception, match="no collective can follow the failure"):
        channels.broadcast(np.ones(3, np.uint8), 0)
    channels.close()
