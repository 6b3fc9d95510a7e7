"""Read what `iswitch run` or another launcher tells a worker in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from iswitch.system.keyfiles import key_in

from . import arguments

ANY = ("0.0.0.0", 0)
MOST = 0xFFFFFFFF  # of any number there
SIZE = "WORLD_SIZE"  # of all workers: `iswitch run`, torchrun
OWN_RANKS = "ISWITCH_RANK", "RANK"  # the number of a process among these
LAUNCHERS = (  # a rank, and among how many processes it is one
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI's mpirun
    ("PMI_RANK", "PMI_SIZE"),  # MPICH's and Intel MPI's
    # srun; in the shell of sbatch and salloc, too, the rank is set, but there to 0, without the
    # number, or with 1: that of a shell that srun has started.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


class Place(NamedTuple):
    """The arguments of a `Worker` that depend on where it runs."""

    switch: tuple[str, int]
    job: int
    num_workers: int
    bind: tuple[str, int]  # of this side; port 0: any
    key: bytes | None
    rank: int | None

    @property
    def own(self) -> dict[str, Any]:
        """Those that the caller's keywords go before."""
        return {"bind": self.bind, "key": self.key, "rank": self.rank}


def read(environment: Mapping[str, str]) -> Place:
    """The place of a worker, from ISWITCH_SWITCH, ISWITCH_JOB and ISWITCH_BIND, and its launcher's.

    ISWITCH_BIND need not be there: a process that would be started again has it, to be the same
    member. Nor need a key or a rank.

    Raises:
        ValueError: one of them lacks or is wrong; the message names it.
    """
    switch = address(environment, "ISWITCH_SWITCH", "127.0.0.1:26963")
    job = arguments.job_number(number(environment, "ISWITCH_JOB"))
    bind = ANY
    if environment.get("ISWITCH_BIND"):
        bind = address(environment, "ISWITCH_BIND", "127.0.0.1:40000")
    workers = size(environment)
    if workers is None:
        workers = number(environment, SIZE)  # which lacks
    own = rank(environment, workers)
    return Place(switch, job, workers, bind, key_in(environment), own)


def size(environment: Mapping[str, str]) -> int | None:
    """How many workers there are: WORLD_SIZE, or as many as a launcher has started.

    None: nothing tells.

    Raises:
        ValueError: it is no number, or 0.
    """
    name = _size_name(environment)
    if name is None:
        return None
    return workers(environment, name)


def workers(environment: Mapping[str, str], name: str) -> int:
    """The number of workers in a variable.

    Raises:
        ValueError: it is no number, or 0.
    """
    found = number(environment, name)
    if found == 0:
        raise ValueError(f"{name} is 0: a job has 1 worker or more")
    return found


def _size_name(environment: Mapping[str, str]) -> str | None:
    """The variable that tells how many workers there are."""
    if environment.get(SIZE):
        return SIZE
    for rank_name, name in LAUNCHERS:
        if environment.get(rank_name) and environment.get(name):
            found = number(environment, name)
            if found > 1 or name != "SLURM_STEP_NUM_TASKS":
                return name
    return None


def rank(environment: Mapping[str, str], workers: int) -> int | None:
    """The number of this process among all workers: ISWITCH_RANK, RANK, or a launcher's.

    A launcher's counts if it has started them all: it numbers no others. None: nothing tells.

    Raises:
        ValueError: it is none of this many workers.
    """
    own = [name for name in OWN_RANKS if environment.get(name)]
    own += [
        name
        for name, of in LAUNCHERS
        if environment.get(name) and environment.get(of) and number(environment, of) == workers
    ]
    if not own:
        return None
    found = number(environment, own[0], f"a rank, 0 to {max(workers, 1) - 1}, is wanted")
    if workers < 1:
        raise ValueError(f"there are {workers} workers: a job has 1 worker or more")
    if found >= workers:
        of = _size_name(environment)
        if of is None or number(environment, of) != workers:
            of = "world_size"  # of the call
        there = f"are {workers} workers" if workers > 1 else "is 1 worker"
        raise ValueError(
            f"{own[0]} is {found}, and there {there} ({of}): ranks are 0 to "
            f"{workers - 1}; start as many processes as {of} says, each with a rank of its own"
        )
    return found


def overridden(environment: Mapping[str, str], rank: int) -> str:
    """What to say if a rank comes from ISWITCH_RANK, and RANK has another; else nothing."""
    own, other = (environment.get(name) for name in OWN_RANKS)
    if not other or own in (None, "", other) or own != str(rank):
        return ""
    return (
        f": ISWITCH_RANK={own} is in the environment, and goes before RANK={other}; unset it, if "
        "`iswitch run` or another launcher numbers the processes"
    )


def hosts(environment: Mapping[str, str]) -> dict[str, str]:
    """Names of hosts by address, from ISWITCH_HOSTS (h1=10.26.0.1,h2=10.26.0.2), for messages.

    An address that several have, as on loopback, tells nothing of its host; nor does what is not
    written so.
    """
    pairs = [pair.partition("=") for pair in environment.get("ISWITCH_HOSTS", "").split(",")]
    addresses = [address for _, _, address in pairs]
    return {at: name for name, _, at in pairs if name and at and addresses.count(at) == 1}


def address(environment: Mapping[str, str], name: str, example: str) -> tuple[str, int]:
    """A variable that holds HOST:PORT."""
    where = text(environment, name)
    host, _, port = where.rpartition(":")
    if not host or not host.isascii() or not 0 < _whole(port) <= 65535:
        raise ValueError(f"{name} is {where!r}: write HOST:PORT, such as {example}")
    return host, int(port)


def number(
    environment: Mapping[str, str],
    name: str,
    hint: str = f"a whole number of 0 to {MOST} is wanted",
) -> int:
    """A variable that holds a whole number.

    Args:
        environment: the variables.
        name: of the one.
        hint: what the error says to write instead.

    Raises:
        ValueError: it holds something else.
    """
    value = text(environment, name)
    if _whole(value) < 0:
        raise ValueError(f"{name} is {value!r}: {hint}")
    return int(value)


def _whole(text: str) -> int:
    """A number of 0 to MOST; -1: it is none."""
    is_one = text.isascii() and text.isdecimal() and len(text) <= len(str(MOST))
    return int(text) if is_one and int(text) <= MOST else -1


def text(environment: Mapping[str, str], name: str) -> str:
    """A variable that has to be there."""
    if not environment.get(name):
        raise ValueError(
            f"{name} is not set: start this with `iswitch run --topology star:4 -- COMMAND`, "
            "which sets it, or call Worker(...) with arguments"
            + " (mpirun and srun tell it, too)"
            * (name == SIZE)
        )
    return environment[name]
