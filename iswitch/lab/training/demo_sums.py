"""What the sum of a round is, to the last bit, from its contributions.

Floating-point addition is not associative: the sum depends on the order. Every switch adds in the
order of its members' ranks; that of a switch below is the lowest among its workers.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product
from math import factorial, prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from topologies import Host, Topology

    from .demo_training import Training

Vector = npt.NDArray[np.float32]


def sum_is_exact(training: Training) -> bool:
    """Whether all workers got, bit for bit, the recorded contributions added up in order."""
    rounds = set.intersection(*(set(member.recorded) for member in training.members))
    if not rounds:
        return False
    # Of the newest that all have recorded; ranks as they were then.
    recorded = {m.host: m.recorded[max(rounds)] for m in training.members}
    ranks = {host: message["rank"] for host, message in recorded.items()}
    vectors = {host: _vector(message, "contribution") for host, message in recorded.items()}
    got = {_vector(message, "aggregate").tobytes() for message in recorded.values()}
    topology = training.topology
    if training.any_order:
        (elements,) = {message["elements"] for message in recorded.values()}
        assert topology is not None
        somehow = any_order(topology, topology.root.name, vectors)
        return len(got) == 1 and added_somehow(somehow, got.pop(), elements)
    if topology is None:
        right = _added([vectors[host] for host in sorted(vectors, key=ranks.__getitem__)])
    else:
        right = in_rank_order(topology, topology.root.name, ranks, vectors).tobytes()
    return got == {right}


def added_somehow(somehow: Iterator[Vector], got: bytes, elements: int) -> bool:
    """Whether every segment of so many elements is that of one of these sums, to the last bit.

    A P4 program adds as contributions come, which differs from segment to segment.
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


def any_order(topology: Topology, switch: str, vectors: Mapping[str, Vector]) -> Iterator[Vector]:
    """What the sum of a switch can be, if its members come in any order."""
    members = [[vectors[host.name]] for host in topology.hosts_at(switch)]
    members += [[*any_order(topology, child.name, vectors)] for child in topology.children(switch)]
    for chosen in product(*members):
        for order in permutations(chosen):
            yield np.frombuffer(_added(order), np.float32)


def any_orders(topology: Topology, switch: str) -> int:
    """How many of them there are."""
    children = [child.name for child in topology.children(switch)]
    own = factorial(len(topology.hosts_at(switch)) + len(children))
    return own * prod(any_orders(topology, child) for child in children)


def in_rank_order(
    topology: Topology, switch: str, ranks: Mapping[str, int], vectors: Mapping[str, Vector]
) -> Vector:
    """The sum of a switch: its members' by rank, that of a switch being the lowest below it."""
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


def _vector(message: dict[str, Any], name: str) -> Vector:
    return np.frombuffer(base64.b64decode(message[name]), np.float32)
