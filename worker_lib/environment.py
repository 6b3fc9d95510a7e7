"""What `iswitch run` tells a worker in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from iswitch.keyfiles import key_in

from . import arguments

ANY = ("0.0.0.0", 0)
MOST = 0xFFFFFFFF  # of any number there
RANKS = (  # the first that is set tells a process its number among all
    "ISWITCH_RANK",
    "RANK",  # `iswitch run`, torchrun
    "OMPI_COMM_WORLD_RANK",  # Open MPI's mpirun
    "PMI_RANK",  # MPICH's and Intel MPI's
    "SLURM_PROCID",  # srun
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
    """The place of a worker, from ISWITCH_SWITCH, ISWITCH_JOB, WORLD_SIZE, ISWITCH_BIND and RANKS.

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
    workers, own = number(environment, "WORLD_SIZE"), rank(environment)
    if own is not None and own[1] >= workers:
        name, value = own
        raise ValueError(
            f"{name} is {value}, WORLD_SIZE {workers}: ranks are 0 to {workers - 1}; start as many "
            "processes as WORLD_SIZE says, each with a rank of its own"
        )
    key = key_in(environment)
    return Place(switch, job, workers, bind, key, None if own is None else own[1])


def rank(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """The number of this process among all, and the variable that tells it; None: none does."""
    name = next((name for name in RANKS if environment.get(name)), None)
    return None if name is None else (name, number(environment, name))


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


def number(environment: Mapping[str, str], name: str) -> int:
    """A variable that holds a whole number."""
    value = text(environment, name)
    if _whole(value) < 0:
        raise ValueError(f"{name} is {value!r}: a whole number of 0 to {MOST} is wanted")
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
        )
    return environment[name]
