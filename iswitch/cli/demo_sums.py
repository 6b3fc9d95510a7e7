"""What the sum of a round is, to the last bit, from its contributions.

Floating-point addition is not associative: the sum depends on the order. Every switch adds in the
order of its members' ranks. Those of workers are known, those of child switches are not: they are
the order in which they came. So with switches above switches there are several sums that are right.
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
    from topologies import Topology

    from .demo import Training

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
    if topology is None or len(topology.tree) == 1:
        right = {_added([vectors[host] for host in sorted(vectors, key=ranks.__getitem__)])}
    else:
        right = set(sums(topology, topology.root.name, ranks, vectors))
    return len(got) == 1 and got <= right


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


def first_ranks(topology: Topology) -> dict[str, int]:
    """By switch: what its members' ranks there are counted on from, to be their own in the job."""
    first, found = 0, {}
    for switch in topology.tree:
        found[switch.name] = first
        first += len(topology.hosts_at(switch.name)) + len(topology.children(switch.name))
    return found


def orders(topology: Topology, switch: str) -> int:
    """How many orders of additions there are below a switch."""
    children = [child.name for child in topology.children(switch)]
    return factorial(len(children)) * prod(orders(topology, child) for child in children)


def sums(
    topology: Topology, switch: str, ranks: Mapping[str, int], vectors: Mapping[str, Vector]
) -> Iterator[bytes]:
    """What the sum of a switch can be, by ranks and contributions of the hosts.

    Workers have their places in the order of its members, switches take those that are left.
    """
    first = first_ranks(topology)[switch]
    members = {ranks[h.name] - first: vectors[h.name] for h in topology.hosts_at(switch)}
    below = [
        [
            np.frombuffer(sum_, np.float32)
            for sum_ in set(sums(topology, child.name, ranks, vectors))
        ]
        for child in topology.children(switch)
    ]
    # Ranks may have gaps, after restarts.
    last = max(len(members) + len(below), 1 + max(members, default=0))
    free = [place for place in range(last) if place not in members]
    for chosen in product(*below):
        for places in permutations(free, len(chosen)):
            placed = members | dict(zip(places, chosen, strict=True))
            yield _added([placed[place] for place in sorted(placed)])


def _added(vectors: Sequence[Vector]) -> bytes:
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total += vector
    return total.tobytes()


def _vector(message: dict[str, Any], name: str) -> Vector:
    return np.frombuffer(base64.b64decode(message[name]), np.float32)
