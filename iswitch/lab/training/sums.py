"""Computes the sum of a round from its contributions, to the last bit.

Floating-point addition is not associative: the sum depends on the order. Every switch adds in the
order of its members' ranks; the rank of a child switch is the lowest of its workers.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product
from math import factorial, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from topologies import Host, Topology

Vector = npt.NDArray[np.float32]


def sum_is_exact(
    topology: Topology, recorded: Mapping[str, Mapping[str, Any]], any_order: bool
) -> bool:
    """Compare what all workers got in a round, bit for bit, with the sum of their contributions.

    Args:
        topology: says which switch adds what.
        recorded: the round's message of each host; ranks are those of that round.
        any_order: the switches add contributions as they come, rather than by rank.
    """
    if not recorded:
        return False
    ranks = {host: message["rank"] for host, message in recorded.items()}
    vectors = {host: _vector(message, "contribution") for host, message in recorded.items()}
    got = {_vector(message, "aggregate").tobytes() for message in recorded.values()}
    if any_order:
        (elements,) = {message["elements"] for message in recorded.values()}
        somehow = any_order_sums(topology, topology.root.name, vectors)
        return len(got) == 1 and added_somehow(somehow, got.pop(), elements)
    return got == {in_rank_order(topology, topology.root.name, ranks, vectors).tobytes()}


def added_somehow(somehow: Iterator[Vector], got: bytes, elements: int) -> bool:
    """Tell whether every segment equals its counterpart in one of these sums, to the last bit.

    A P4 program adds contributions as they come: in another order in each segment.

    Args:
        somehow: the sums of whole vectors, one for each order.
        got: the bytes of the vector that workers got.
        elements: float32 elements of a segment.
    """
    sum_ = np.frombuffer(got, np.uint32)
    right = np.zeros(-(-len(sum_) // elements), bool)
    for one in somehow:
        padded = np.pad(
            one.view(np.uint32) == sum_,
            (0, len(right) * elements - len(sum_)),
            constant_values=True,
        )
        right |= padded.reshape(-1, elements).all(axis=1)
    return bool(right.all())


def any_order_sums(
    topology: Topology, switch: str, vectors: Mapping[str, Vector]
) -> Iterator[Vector]:
    """Make each sum that a switch can get if its members come in any order."""
    members = [[vectors[host.name]] for host in topology.hosts_at(switch)]
    members += [
        [*any_order_sums(topology, child.name, vectors)] for child in topology.children(switch)
    ]
    for chosen in product(*members):
        for order in permutations(chosen):
            yield np.frombuffer(_added(order), np.float32)


def any_orders(topology: Topology, switch: str) -> int:
    """Count the orders in which the members of a switch, and of those below it, can come."""
    children = [child.name for child in topology.children(switch)]
    own = factorial(len(topology.hosts_at(switch)) + len(children))
    return own * prod(any_orders(topology, child) for child in children)


def in_rank_order(
    topology: Topology, switch: str, ranks: Mapping[str, int], vectors: Mapping[str, Vector]
) -> Vector:
    """Add in a switch's order: by rank; a switch below stands at the lowest rank below it."""
    members = {ranks[h.name]: vectors[h.name] for h in topology.hosts_at(switch)}
    for child in topology.children(switch):
        below = [ranks[host.name] for host in _hosts_below(topology, child.name)]
        members[min(below)] = in_rank_order(topology, child.name, ranks, vectors)
    return np.frombuffer(_added([members[rank] for rank in sorted(members)]), np.float32)


def _hosts_below(topology: Topology, switch: str) -> list[Host]:
    children = [_hosts_below(topology, child.name) for child in topology.children(switch)]
    return [*topology.hosts_at(switch), *(host for hosts in children for host in hosts)]


def _added(vectors: Sequence[Vector]) -> bytes:
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total += vector
    return total.tobytes()


def _vector(message: Mapping[str, Any], name: str) -> Vector:
    return np.frombuffer(base64.b64decode(message[name]), np.float32)
