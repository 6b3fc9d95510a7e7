"""Reads the environment variables that `iswitch run` or another launcher sets for a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from iswitch.core.format.wire import MOST_PRIORITY
from iswitch.hostnames import as_ascii
from iswitch.system.keyfiles import key_in

from . import arguments

ANY = ("0.0.0.0", 0)
EXAMPLE = "127.0.0.1:26963"  # of a switch's address
MOST = 0xFFFFFFFF  # of any number there
JOB = "ISWITCH_JOB"
ROUNDS = "ISWITCH_ROUNDS"
PRIORITY = "ISWITCH_PRIORITY"
SIZE = "WORLD_SIZE"  # of all workers: `iswitch run`, torchrun
OWN_RANKS = "ISWITCH_RANK", "RANK"  # the number of a process among these
LAUNCHERS = (  # a rank, and among how many processes it is one
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI's mpirun
    ("PMI_RANK", "PMI_SIZE"),  # MPICH's and Intel MPI's
    # srun; in the shell of sbatch and salloc, too, the rank is set, but there to 0, without the
    # number, or with 1: that of a shell that srun has started.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


class Assignment(NamedTuple):
    """The arguments of a `Worker` that depend on where it runs."""

    switch: tuple[str, int]
    job: int
    num_workers: int
    bind: tuple[str, int]  # of this side; port 0: any
    key: bytes | None
    rank: int | None
    rounds: int | None
    priority: int


def read(environment: Mapping[str, str]) -> Assignment:
    """Read a worker's assignment from ISWITCH_SWITCH, ISWITCH_JOB, ISWITCH_BIND and its launcher's.

    ISWITCH_BIND, ISWITCH_ROUNDS, ISWITCH_PRIORITY, the key and the rank are optional. A launcher
    that restarts processes sets ISWITCH_BIND, so that a restarted one is the member that it was.

    Raises:
        ValueError: a variable is missing or wrong; the message names it.
    """
    at = switch(environment)
    job = job_number(environment)
    own_address = bind(environment)
    workers = size(environment)
    if workers is None:
        workers = number(environment, SIZE)  # which lacks
    own = rank(environment, workers)
    key, left, first = key_in(environment), rounds(environment), priority(environment)
    return Assignment(at, job, workers, own_address, key, own, left, first)


def switch(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return the address of this process's switch, from ISWITCH_SWITCH.

    Raises:
        ValueError: the variable is missing, or holds no address.
    """
    return address(environment, "ISWITCH_SWITCH", EXAMPLE)


def bind(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return the local address that a launcher has chosen, from ISWITCH_BIND; else any.

    Raises:
        ValueError: the variable holds no address.
    """
    if not environment.get("ISWITCH_BIND"):
        return ANY
    return address(environment, "ISWITCH_BIND", "127.0.0.1:40000", least_port=0)


def racks(environment: Mapping[str, str], ranks: int) -> dict[tuple[str, int], list[int]]:
    """Return which of the first ranks are at which switch, from ISWITCH_SWITCHES.

    Empty: the variable is not set, since there is one switch.

    Raises:
        ValueError: the variable holds something else, or fewer addresses.
    """
    name = "ISWITCH_SWITCHES"
    texts = environment.get(name, "").split(",")
    if texts == [""]:
        return {}
    if len(texts) < ranks:
        raise ValueError(f"{name} has {len(texts)} addresses: write one for each of {ranks} ranks")
    found: dict[tuple[str, int], list[int]] = {}
    for rank, text in enumerate(texts[:ranks]):
        found.setdefault(_address(name, text, EXAMPLE), []).append(rank)
    return found


def job_number(environment: Mapping[str, str]) -> int:
    """Return the number of the job, from ISWITCH_JOB.

    Raises:
        ValueError: the variable is missing, or holds no number of a job.
    """
    found = number(environment, JOB, arguments.JOBS)
    if found > arguments.MOST_JOB:
        raise ValueError(f"{JOB} is {found}: {arguments.JOBS}")
    return found


def rounds(environment: Mapping[str, str]) -> int | None:
    """Return how many rounds a worker is going to do, from ISWITCH_ROUNDS; None: it is not set.

    Raises:
        ValueError: the variable is no number, or 0.
    """
    if not environment.get(ROUNDS):
        return None
    hint = "write how many allreduces the program is going to do, or unset it"
    if not (found := number(environment, ROUNDS, hint)):
        raise ValueError(f"{ROUNDS} is 0: {hint}")
    return found


def priority(environment: Mapping[str, str]) -> int:
    """Return the priority of the job, from ISWITCH_PRIORITY; 0 if it is not set.

    Raises:
        ValueError: the variable is no priority.
    """
    if not environment.get(PRIORITY):
        return 0
    hint = f"write a priority from 0 to {MOST_PRIORITY}"
    if (found := number(environment, PRIORITY, hint)) > MOST_PRIORITY:
        raise ValueError(f"{PRIORITY} is {found}: {hint}")
    return found


def size(environment: Mapping[str, str]) -> int | None:
    """Return the number of workers, from WORLD_SIZE or a launcher's variable.

    None: none of these is set.

    Raises:
        ValueError: the variable is no number, or 0.
    """
    name = _size_name(environment)
    if name is None:
        return None
    return workers(environment, name)


def workers(environment: Mapping[str, str], name: str) -> int:
    """Return the number of workers that a variable holds.

    Raises:
        ValueError: the variable holds no number, or 0.
    """
    found = number(environment, name)
    if found == 0:
        raise ValueError(f"{name} is 0: a job has 1 worker or more")
    return found


def _size_name(environment: Mapping[str, str]) -> str | None:
    """Return the name of the variable with the number of workers; None: there is none."""
    if environment.get(SIZE):
        return SIZE
    for rank_name, name in LAUNCHERS:
        if environment.get(rank_name) and environment.get(name):
            found = number(environment, name)
            if found > 1 or name != "SLURM_STEP_NUM_TASKS":
                return name
    return None


def rank(environment: Mapping[str, str], workers: int) -> int | None:
    """Return this process's rank, from ISWITCH_RANK, RANK or a launcher's variable.

    A launcher's variable counts only if the launcher started all `workers`. None: no variable is
    set.

    Raises:
        ValueError: the rank is not below `workers`, or is no number.
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
    """Return a warning if ISWITCH_RANK overrides a different RANK; "" otherwise."""
    own, other = (environment.get(name) for name in OWN_RANKS)
    if not other or own in (None, "", other) or own != str(rank):
        return ""
    return (
        f": ISWITCH_RANK={own} is in the environment, and goes before RANK={other}; unset it, if "
        "`iswitch run` or another launcher numbers the processes"
    )


def hosts(environment: Mapping[str, str]) -> dict[str, str]:
    """Return names of hosts by address, from ISWITCH_HOSTS (h1=10.26.0.1,h2=10.26.0.2).

    Leave out addresses that several hosts have, as on loopback, and malformed entries.
    """
    pairs = [pair.partition("=") for pair in environment.get("ISWITCH_HOSTS", "").split(",")]
    addresses = [address for _, _, address in pairs]
    return {at: name for name, _, at in pairs if name and at and addresses.count(at) == 1}


def address(
    environment: Mapping[str, str], name: str, example: str, least_port: int = 1
) -> tuple[str, int]:
    """Return (host, port) from a variable that holds HOST:PORT.

    Args:
        environment: the variables.
        name: name of the variable.
        example: an example for the error.
        least_port: 0 for a local address, where port 0 means any.

    Raises:
        ValueError: the variable is missing or holds something else.
    """
    return _address(name, text(environment, name), example, least_port)


def _address(name: str, where: str, example: str, least_port: int = 1) -> tuple[str, int]:
    host, _, port = where.rpartition(":")
    if not host or not least_port <= _whole(port) <= 65535:
        ports = f"with a port of {least_port} to 65535"
        raise ValueError(f"{name} is {where!r}: write HOST:PORT, {ports}, such as {example}")
    try:
        return as_ascii(host), int(port)
    except ValueError as error:
        raise ValueError(f"{name} is {where!r}: {error}") from None


def number(
    environment: Mapping[str, str],
    name: str,
    hint: str = arguments.WORKERS,
) -> int:
    """Return the whole number that a variable holds.

    Args:
        environment: the variables.
        name: name of the variable.
        hint: what to write instead, for the error.

    Raises:
        ValueError: the variable is missing or holds something else.
    """
    value = text(environment, name)
    if _whole(value) < 0:
        raise ValueError(f"{name} is {value!r}: {hint}")
    return int(value)


def _whole(text: str) -> int:
    """Parse a whole number from 0 to MOST; return -1 if the text is none."""
    is_one = text.isascii() and text.isdecimal() and len(text) <= len(str(MOST))
    return int(text) if is_one and int(text) <= MOST else -1


def text(environment: Mapping[str, str], name: str) -> str:
    """Return the text of a variable; raise ValueError if it is missing."""
    if not environment.get(name):
        raise ValueError(
            f"{name} is not set: start this with `iswitch run --topology star:4 -- COMMAND`, "
            "which sets it, or call Worker(...) with arguments"
            + " (mpirun and srun tell it, too)"
            * (name == SIZE)
        )
    return environment[name]
