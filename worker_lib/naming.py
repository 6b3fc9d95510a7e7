"""Describes workers for messages: by rank, and by host or address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iswitch.core.format.wire import ELSEWHERE, NO_RANK, RANKS, Ack, Awaited

MOST_NAMED = 16


def place(host: str, port: int, hosts: Mapping[str, str]) -> str:
    """Describe a worker's place: the name of its host, if known, and its address."""
    where = f"{host}:{port}"
    return f"{hosts[host]}, {where}" if host in hosts else where


def worker(one: Awaited, hosts: Mapping[str, str]) -> str:
    """Describe a worker by rank and place, or a switch that has not named its workers."""
    where = place(one.host, one.port, hosts)
    if one.rank == NO_RANK:
        return f"some behind the switch at {where}, which has not answered"
    at = f" at switch {one.switch_host}:{one.switch_port}" * bool(one.switch_port)
    return f"{ranked(one.rank)}{at} ({where})"


def time(seconds: float) -> str:
    """Write a time in seconds, in three digits; what is left of a timeout has many more."""
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:.0f} s"


def ranked(rank: int) -> str:
    """Describe a worker by its rank."""
    return f"rank {rank}" if rank < RANKS else "a worker without a rank"


def workers(awaited: Sequence[Awaited], total: int, hosts: Mapping[str, str]) -> str:
    """List workers, sorted by rank; say how many of `total` are not named."""
    named = [worker(one, hosts) for one in sorted(awaited, key=lambda one: one.rank)]
    return ", ".join(named) + f" and {total - len(named)} more" * (total > len(named))


def listed(ranks: Sequence[int]) -> str:
    """List ranks, at most the first MOST_NAMED."""
    named = ", ".join(map(str, ranks[:MOST_NAMED])) + ", ..." * (len(ranks) > MOST_NAMED)
    return f"rank{'s' * (len(ranks) > 1)} {named}"


def ranks(awaited: Sequence[Awaited]) -> list[int]:
    """Return the ranks of those that have one, ascending."""
    return sorted(one.rank for one in awaited if one.rank < RANKS)


def too_few(threshold: int, there: int) -> str:
    """Say that a job has fewer workers than complete a segment; "": it has enough."""
    workers = f"{there or 'no'} worker{'s' * (there != 1)}"
    said = f"with {workers}, nothing completes in a synchronous job until {threshold} are there"
    return said if threshold > there else ""


def owner(ack: Ack, hosts: Mapping[str, str]) -> str:
    """Describe the worker that has a refused rank, or the switch that leads to it."""
    where = place(".".join(map(str, ack.threshold.to_bytes(4, "big"))), ack.round, hosts)
    if ack.contributors == ELSEWHERE:
        return f" (rank {ack.rank} is that of a worker behind the switch at {where})"
    heard = f"{ack.contributors / 1000:.1f} s ago"
    return f" (rank {ack.rank} is that of the worker at {where}, heard {heard})"
