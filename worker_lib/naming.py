"""Workers in words: by rank, and by host or address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iswitch.core.format.wire import ELSEWHERE, NO_RANK, RANKS, Ack, Awaited

MOST_NAMED = 16


def place(host: str, port: int, hosts: Mapping[str, str]) -> str:
    """Where something is: its address, after the name of its host if that is known."""
    where = f"{host}:{port}"
    return f"{hosts[host]}, {where}" if host in hosts else where


def worker(one: Awaited, hosts: Mapping[str, str]) -> str:
    """A worker by rank and place; or a switch that has not said for whom it waits."""
    where = place(one.host, one.port, hosts)
    if one.rank == NO_RANK:
        return f"some behind the switch at {where}, which has not answered"
    at = f" at switch {one.switch_host}:{one.switch_port}" * bool(one.switch_port)
    who = f"rank {one.rank}" if one.rank < RANKS else "a worker without a rank"
    return f"{who}{at} ({where})"


def member(one: Awaited, hosts: Mapping[str, str]) -> str:
    """A member of a job at a switch: a worker by rank and place, or a switch below."""
    if one.rank == NO_RANK:
        return f"a switch ({place(one.host, one.port, hosts)})"
    return worker(one, hosts)


def workers(awaited: Sequence[Awaited], total: int, hosts: Mapping[str, str]) -> str:
    """Several of them; `total` are as many as there are beside those that are named."""
    named = [worker(one, hosts) for one in sorted(awaited, key=lambda one: one.rank)]
    return ", ".join(named) + f" and {total - len(named)} more" * (total > len(named))


def listed(ranks: Sequence[int]) -> str:
    """Ranks in words; of many the first."""
    named = ", ".join(map(str, ranks[:MOST_NAMED])) + ", ..." * (len(ranks) > MOST_NAMED)
    return f"rank{'s' * (len(ranks) > 1)} {named}"


def ranks(awaited: Sequence[Awaited]) -> list[int]:
    """The ranks among them, ascending."""
    return sorted(one.rank for one in awaited if one.rank < RANKS)


def owner(ack: Ack, hosts: Mapping[str, str]) -> str:
    """Say in words who has the rank that was refused, or behind which switch that worker is."""
    where = place(".".join(map(str, ack.threshold.to_bytes(4, "big"))), ack.round, hosts)
    if ack.contributors == ELSEWHERE:
        return f" (rank {ack.rank} is that of a worker behind the switch at {where})"
    heard = f"{ack.contributors / 1000:.1f} s ago"
    return f" (rank {ack.rank} is that of the worker at {where}, heard {heard})"
