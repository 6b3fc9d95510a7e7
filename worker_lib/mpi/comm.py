"""Communicators with mpi4py's conventions."""

from __future__ import annotations

import os
import re
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, NoReturn, ParamSpec, Self, TypeVar, cast

import numpy as np

from worker_lib import arguments, environment

from . import objects, plans
from .channels import TIMEOUT, Alone, Channels, Place, Switched
from .errors import MpiError
from .numbering import Numbers, checked
from .ops import SUM
from .requests import Request, Turns

UNDEFINED = -32766
PATIENCE = 5.0  # seconds for the last collective, at the end of the process
POINT_TO_POINT = re.compile(
    r"(I?[sbr]?send(recv)?(_replace|_init)?|I?m?(recv|probe)(_init)?)", re.IGNORECASE
)
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(eq=False)
class Link:
    """What a communicator is, however many objects stand for it.

    Attributes:
        channels: moves its data.
        members: rank of each of its processes in COMM_WORLD.
        place: where its processes meet; None: it has one process only.
        name: its name, for people.
        turns: runs its non-blocking collectives.
    """

    channels: Channels
    members: Sequence[int]
    place: Place | None
    name: str
    turns: Turns = field(default_factory=Turns)

    def __post_init__(self) -> None:
        self.end = weakref.finalize(self, _end, self.turns, self.channels)  # also at exit


def _end(turns: Turns, channels: Channels) -> None:
    """Leave the switch; if a collective hangs, let the lease end the membership instead."""
    if turns.stop(PATIENCE):
        channels.close()


def _both(
    plan: Callable[Concatenate[Channels, P], plans.Step],
) -> tuple[Callable[Concatenate[Intracomm, P], None], Callable[Concatenate[Intracomm, P], Request]]:
    """Make the blocking and the non-blocking call of a collective."""

    @wraps(plan)
    def blocking(comm: Intracomm, *args: P.args, **kwargs: P.kwargs) -> None:
        link = comm._link
        link.turns.do(plan(link.channels, *args, **kwargs))

    @wraps(plan)
    def nonblocking(comm: Intracomm, *args: P.args, **kwargs: P.kwargs) -> Request:
        link = comm._link
        return link.turns.issue(plan(link.channels, *args, **kwargs))

    # mypy takes what `wraps` returns for no method.
    return cast(Any, blocking), cast(Any, nonblocking)


class Intracomm:
    """A communicator: processes that call the same collectives in the same order.

    Calls whose names begin with upper case take buffers (worker_lib/mpi/buffers.py lists the
    forms), those with I return a `Request`, lower-case ones take any object that can be pickled.

    Args:
        comm: communicator for which this object stands, too; None: the null communicator.

    Raises (all collectives):
        MpiError: a rank is lost, the switch does not answer, sizes differ, a root is no rank.
        TypeError, ValueError: a buffer, type or count is wrong; the message names the mend.
    """

    def __init__(self, comm: Intracomm | None = None) -> None:
        self._own: Link | None = None if comm is None else comm._own

    @classmethod
    def _of(cls, link: Link) -> Self:
        made = cls()
        made._own = link
        return made

    @classmethod
    def alone(cls) -> Self:
        """Make a communicator of this process alone, which needs no switch."""
        return cls._of(Link(Alone(), [0], None, "MPI_COMM_SELF"))

    @classmethod
    def join(
        cls,
        switch: tuple[str, int],
        job: int,
        rank: int,
        size: int,
        *,
        key: bytes | None = None,
        timeout: float = TIMEOUT,
    ) -> Self:
        """Make a communicator of processes that know their ranks; it connects on first use.

        Args:
            switch: (host, port) of the switch.
            job: number of its first job, equal in all processes. Later jobs of this communicator
                and of those made of it have `job` + r + `size` * k with ranks r.
            rank, size: rank of this process, and number of processes.
            key: key of keyed jobs.
            timeout: seconds that joining and a collective may take.

        Raises:
            ValueError: an argument is out of its range.
        """
        size = arguments.num_workers(size)
        arguments.rank(rank, size)
        numbers = Numbers(arguments.job_number(job), rank, size)
        place = Place(arguments.address("switch", switch, 1), key, timeout, numbers)
        number = checked(numbers.take()) if rank == 0 else job
        return cls._of(
            Link(Switched(place, rank, size, number), range(size), place, "MPI_COMM_WORLD")
        )

    @classmethod
    def from_env(cls, variables: Mapping[str, str]) -> Self:
        """Make the communicator of all processes that `iswitch run` or another launcher started.

        Raises:
            ValueError: a variable is missing or wrong; the message names it.
        """
        told = environment.read(variables)
        rank = told.rank
        if rank is None:
            raise ValueError(
                "RANK is not set: start this with `iswitch run --topology star:4 -- COMMAND`, "
                "which sets it, or give each process one, 0 to WORLD_SIZE - 1"
            )
        return cls.join(told.switch, told.job, rank, told.num_workers, key=told.key)

    @property
    def _link(self) -> Link:
        if self._own is None:
            raise MpiError("ERR_COMM", "this is the null communicator, or one that has been freed")
        return self._own

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Intracomm) and self._own is other._own

    def __hash__(self) -> int:
        return hash(self._own)

    def __bool__(self) -> bool:
        return self._own is not None

    def __repr__(self) -> str:
        if self._own is None:
            return "<MPI.COMM_NULL>"
        return f"<{self.name}: rank {self.rank} of {self.size}>"

    def __getattr__(self, name: str) -> Any:
        """Return, for a call between two ranks, one that says where there is such a call."""
        if POINT_TO_POINT.fullmatch(name):
            return _refuse(name)
        raise AttributeError(f"worker_lib.mpi has no {name} (docs/mpi.md lists what it has)")

    # Who is there

    def Get_rank(self) -> int:
        """Return this process's rank, 0 to size - 1."""
        return self._link.channels.rank

    def Get_size(self) -> int:
        """Return the number of processes."""
        return self._link.channels.size

    def Get_name(self) -> str:
        """Return the name that `Set_name` has given, or MPI's."""
        return self._link.name

    def Set_name(self, name: str) -> None:
        """Give the communicator a name, in this process."""
        self._link.name = name

    @property
    def rank(self) -> int:
        """Return this process's rank, 0 to size - 1."""
        return self._link.channels.rank

    @property
    def size(self) -> int:
        """Return the number of processes."""
        return self._link.channels.size

    name = property(Get_name, Set_name)

    def Is_inter(self) -> bool:
        """Return False: all processes are of one group."""
        return False

    def Is_intra(self) -> bool:
        """Return True: all processes are of one group."""
        return True

    is_inter = property(Is_inter)
    is_intra = property(Is_intra)

    # Buffers

    Barrier, Ibarrier = _both(plans.barrier)
    Bcast, Ibcast = _both(plans.bcast)
    Allreduce, Iallreduce = _both(plans.allreduce)
    Reduce, Ireduce = _both(plans.reduce)
    Reduce_scatter, Ireduce_scatter = _both(plans.reduce_scatter)
    Reduce_scatter_block, Ireduce_scatter_block = _both(plans.reduce_scatter_block)
    Scan, Iscan = _both(plans.scan)
    Exscan, Iexscan = _both(plans.exscan)
    Gather, Igather = _both(plans.gather)
    Gatherv, Igatherv = _both(plans.gatherv)
    Scatter, Iscatter = _both(plans.scatter)
    Scatterv, Iscatterv = _both(plans.scatterv)
    Allgather, Iallgather = _both(plans.allgather)
    Allgatherv, Iallgatherv = _both(plans.allgatherv)
    Alltoall, Ialltoall = _both(plans.alltoall)
    Alltoallv, Ialltoallv = _both(plans.alltoallv)
    Alltoallw, Ialltoallw = _both(plans.alltoallw)

    # Objects

    def _do(self, call: Callable[Concatenate[Channels, P], T], *args: P.args, **kw: P.kwargs) -> T:
        link = self._link
        return link.turns.do(lambda: call(link.channels, *args, **kw))

    barrier = Barrier

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Return the root's object in all ranks."""
        return self._do(objects.bcast, obj, root)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Return the objects of all ranks at the root; None elsewhere."""
        return self._do(objects.gather, sendobj, root)

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Return this rank's of the root's objects."""
        return self._do(objects.scatter, sendobj, root)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Return the objects of all ranks, in their order."""
        return self._do(objects.allgather, sendobj)

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Give each rank an object, and return those that all ranks give to this one."""
        return self._do(objects.alltoall, sendobj)

    def reduce(self, sendobj: Any, op: objects.Combine = SUM, root: int = 0) -> Any:
        """Combine the objects of all ranks in their order, at the root; None elsewhere."""
        return self._do(objects.reduce, sendobj, op, root)

    def allreduce(self, sendobj: Any, op: objects.Combine = SUM) -> Any:
        """Combine the objects of all ranks in their order, in each rank."""
        return self._do(objects.allreduce, sendobj, op)

    def scan(self, sendobj: Any, op: objects.Combine = SUM) -> Any:
        """Combine the objects of the ranks up to this one, in their order."""
        return self._do(objects.scan, sendobj, op)

    def exscan(self, sendobj: Any, op: objects.Combine = SUM) -> Any:
        """Combine the objects of the ranks before this one, in their order; None in rank 0."""
        return self._do(objects.exscan, sendobj, op)

    # Other communicators

    def Split(self, color: int = 0, key: int = 0) -> Self:
        """Divide the processes by `color`; each gets the communicator of its own.

        The first process of each chooses its job number.

        Args:
            color: 0 or more, or UNDEFINED: then the null communicator.
            key: ranks are in the order of keys, and of the ranks here where keys are equal.
        """
        if color < 0 and color != UNDEFINED:
            raise ValueError(f"color = {color}: pass 0 or more, or MPI.UNDEFINED")
        link = self._link
        numbers = None if link.place is None else link.place.numbers
        number = -1 if numbers is None else numbers.take()
        rows = np.empty((self.size, 3), np.int64)
        try:
            self.Allgather(np.array([color, key, number], np.int64), rows)
        except BaseException:
            number, rows = -1, rows[:0]
            raise
        finally:
            members = [r for r in range(len(rows)) if rows[r, 0] == color]
            members.sort(key=lambda r: (rows[r, 1], r))
            leads = len(members) > 1 and members[0] == self.rank
            if numbers is not None and not leads:
                numbers.give_back(number, unused=True)
        if color == UNDEFINED:
            return type(self)()
        channels: Channels = Alone()
        if len(members) > 1:
            assert link.place is not None
            first = checked(int(rows[members[0], 2]))
            channels = Switched(link.place, members.index(self.rank), len(members), first)
        ranks = [link.members[member] for member in members]
        return self._of(Link(channels, ranks, link.place, ""))

    def Dup(self, info: object = None) -> Self:
        """Make another communicator of all processes."""
        del info
        return self.Split(0, self.rank)

    Clone = Dup

    def Free(self) -> None:
        """Leave the switch; afterwards this object is the null communicator."""
        self._link.end()
        self._own = None

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End this process at once; a rank that waits for it raises an error.

        `iswitch run` ends the others, too.
        """
        print(f"MPI abort: {self!r} ends with {errorcode}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        if self._own is not None:
            self._own.end()
        os._exit(errorcode or 1)


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(
            f"{name}: a switch combines and copies, and carries nothing between two ranks alone; "
            "use Scatterv, Gatherv or Alltoallv of this package, mpi4py under mpirun, or "
            "torch.distributed with gloo"
        )

    return refuse
