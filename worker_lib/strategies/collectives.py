"""Collectives beside allreduce, of those strategies that have them: iswitch, gloo and mpi.

    with make_exchange("iswitch", "reduce_scatter", numel=4000) as exchange:
        exchange.exchange("reduce_scatter", vector, block)

A vector of `numel` elements has N equal blocks, for N ranks. Roots are rank 0.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from iswitch.virtual.sockets import refuse

if TYPE_CHECKING:
    from .base import Vector

ROOT = 0
OFFERING = ("iswitch", "mpi", "gloo")  # the strategies that have them


class Needs(NamedTuple):
    """The blocks, of the N in a vector, that a rank gives and gets; `all`: all N of them."""

    root_gives: int
    others_give: int
    root_gets: int
    others_get: int


ALL = -1
NEEDS = {
    "reduce_scatter": Needs(ALL, ALL, 1, 1),
    "all_gather": Needs(1, 1, ALL, ALL),
    "broadcast": Needs(ALL, ALL, 0, 0),  # in place
    "reduce": Needs(ALL, ALL, 0, 0),  # in place, at the root
    "gather": Needs(1, 1, ALL, 0),
    "scatter": Needs(ALL, 0, 1, 1),
    "all_to_all": Needs(ALL, ALL, ALL, ALL),
    "barrier": Needs(0, 0, 0, 0),
}
IN_PLACE = ("broadcast", "reduce")


class Exchange(Protocol):
    """A member of a group that exchanges blocks; use it in a `with` statement."""

    rank: int

    def exchange(self, collective: str, vector: Vector, out: Vector) -> None:
        """Call a collective.

        Args:
            collective: a name in NEEDS.
            vector: float32, the elements that this rank gives; of a broadcast and a reduce it holds
                the result afterwards, and the other ranks' may be overwritten by a reduce.
            out: float32, receives the elements that this rank gets.
        """

    def stats(self) -> dict[str, Any]:
        """Return counts, for a report."""

    def close(self) -> None:
        """Leave the group."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...


def sizes(collective: str, numel: int, num_workers: int, rank: int) -> tuple[int, int]:
    """Return the elements of a rank's `vector` and `out`.

    Args:
        collective: a name in NEEDS.
        numel: elements of the whole vector, a multiple of the number of workers.
        num_workers: number of workers.
        rank: the rank.
    """
    needs = NEEDS[collective]
    blocks = needs[::2] if rank == ROOT else needs[1::2]
    gives, gets = (numel if n == ALL else n * (numel // num_workers) for n in blocks)
    return gives, gets


def make_exchange(name: str, collective: str, numel: int, **options: Any) -> Exchange:
    """Join the group of workers that the environment names.

    Args:
        name: one of OFFERING.
        collective: the collective that the group is for, a name in NEEDS.
        numel: elements of the whole vector, a multiple of the number of workers.
        options: `timeout` in seconds, and the strategy's own options.

    Raises:
        ValueError: the strategy has no such collective, or a variable is missing in the
            environment.
        OSError: it works in real time only, and this process is in virtual time.
    """
    if name not in OFFERING or collective not in NEEDS:
        raise ValueError(
            f"no {collective!r} by {name!r}: {', '.join(OFFERING)} have {', '.join(NEEDS)}"
        )
    if name != "iswitch":
        refuse(name)
    join: Callable[..., Exchange] = import_module(f".{name}", __package__).join_exchange
    return join(collective, numel, **options)
