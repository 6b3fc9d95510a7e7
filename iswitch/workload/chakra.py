"""Makes a workload of Chakra execution traces, which ASTRA-sim plays: a graph of each rank's work.

A trace is a stream of messages of Protocol Buffers: metadata, then nodes that compute or
communicate, and depend on others. A workload has records in order instead. So a rank computes all
that it can before it waits for a call, lowest numbers first, and calls as soon as it can. The order
depends on the graph alone, not on times: ranks with equal graphs call in equal order.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush

from iswitch.outside import UsageError, reading

from .nodes import Node, check_metadata, parse
from .protobuf import messages
from .records import ALL, Record, Workload
from .traces import Imported, checked, unpacked

SECOND = 1e6  # microseconds
MOST_NODES = 1_000_000
NAMED = (".et", ".et.gz")
RANK = re.compile(r"\.(\d{1,9})\.et(?:\.gz)?$", re.ASCII)
SILENT = ("INVALID", "METADATA", "COMP")  # nothing is lost where these are not played
BESIDE = "operators of the CPU beside an accelerator"


class Trace:
    """The work of a rank.

    Attributes:
        left_out: how many operations are not played, by name.

    Raises:
        UsageError: the file cannot be read, or is no such trace, or cannot be played.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.left_out: Counter[str] = Counter()
        self._nodes: dict[int, Node] = {}
        with reading(path, UsageError):
            stream = messages(unpacked(path))
            if (first := next(stream, None)) is None:
                raise UsageError(f"{path} is empty: an execution trace has metadata and nodes")
            check_metadata(first)
            for message in stream:
                self._add(parse(message))
            self._is_accelerated = any(
                node.kind == "COMP" and node.micros and not node.whole("is_cpu_op")
                for node in self._nodes.values()
            )
        if not self._nodes:
            raise UsageError(f"{path} has no nodes: it says nothing of what a rank does")

    def _add(self, node: Node) -> None:
        if node.number in self._nodes:
            raise ValueError(f"two nodes have the number {node.number}")
        if len(self._nodes) == MOST_NODES:
            raise UsageError(f"{self.path} has more than {MOST_NODES:,} nodes; record fewer steps")
        if node.kind == "COMP" and not node.micros and node.whole("num_ops"):
            raise UsageError(
                f"{self.path}: node {node.number} has num_ops, but no duration_micros; only times "
                "are played, not what a roofline makes of operations"
            )
        if node.call and not all(node.dimensions):
            raise UsageError(
                f"{self.path}: node {node.number} is of some dimensions of a network (involved_dim)"
                "; name a process group instead (pg_name), one file a rank"
            )
        if node.call == "allreduce" and "comm_size" not in node.attributes:
            raise UsageError(
                f"{self.path}: node {node.number} does not say by comm_size how many bytes it sums"
            )
        self._nodes[node.number] = node

    def records(self, rank: int | None) -> list[tuple[Record, str]]:
        """Return what the rank does, and the name of the process group of each call; "": all.

        Raises:
            UsageError: nodes depend on a missing one, or on each other.
        """
        with reading(self.path, UsageError):
            return Walk(self._nodes, self._micros, rank).records()

    def _micros(self, node: Node) -> int:
        """Return how long a node that makes no call computes; count what is not played."""
        if node.operation not in SILENT:
            self.left_out[node.operation] += 1
        elif node.operation == "COMP":
            if not (self._is_accelerated and node.whole("is_cpu_op")):
                return node.micros
            self.left_out[BESIDE] += bool(node.micros)
        return 0


class Walk:
    """Brings the nodes of a rank in order.

    Calls of a group are carried in the order in which they are made. So a call that needs others of
    its group is made right after them; all else that needs them waits until they are done.

    Args:
        nodes: the nodes, by number.
        micros: tells how many microseconds a node that makes no call computes.
        rank: whose they are; None: all ranks'.

    Raises:
        ValueError: a node needs one that is missing.
    """

    def __init__(
        self, nodes: dict[int, Node], micros: Callable[[Node], int], rank: int | None
    ) -> None:
        self._nodes, self._micros, self._rank = nodes, micros, rank
        self._found: list[tuple[Record, str]] = []
        self._compute = 0  # microseconds since the last record
        self._wait: list[str] = []  # for what, before that
        self._ready: list[tuple[bool, int]] = []  # calls, and what takes no time, go first
        self._under_way: deque[Node] = deque()  # calls that something waits for
        self._missing: dict[int, int] = {}  # how many nodes that come before are not done
        self._later: defaultdict[int, list[Node]] = defaultdict(list)
        for node in nodes.values():
            for one in node.needs:
                if one not in nodes:
                    raise ValueError(f"node {node.number} needs node {one}, which is missing")
            before = set(node.needs)
            self._missing[node.number] = len(before)
            for one in before:
                self._later[one].append(node)
            if not before:
                self._push(node)

    def records(self) -> list[tuple[Record, str]]:
        """Return the records, and the name of the process group of each; "": all.

        Raises:
            ValueError: nodes need each other.
        """
        while self._ready or self._under_way:
            if self._ready:
                self._play(self._nodes[heappop(self._ready)[1]])
            else:
                self._await(self._under_way.popleft())
        if circle := [number for number, missing in self._missing.items() if missing]:
            raise ValueError(f"nodes that node {circle[0]} needs need each other in a circle")
        self._flush()
        self._found.append((Record(0, self._rank, wait=ALL), ""))
        return self._found

    def _play(self, node: Node) -> None:
        later = self._later[node.number]
        size = node.whole("comm_size") if node.call == "allreduce" else 0
        if node.call is None or (node.call == "allreduce" and not size):
            self._compute += self._micros(node)
            self._free(later)
            return
        behind = [one for one in later if one.call and one.group == node.group]
        waits = len(behind) < len(later)
        name = str(node.number) if waits else ""
        priority = node.whole("comm_priority") or None
        record = Record(
            0, self._rank, self._compute / SECOND, node.call, size, None, priority, name, True,
            tuple(self._wait),
        )  # fmt: skip
        self._found.append((record, node.group))
        self._compute, self._wait = 0, []
        self._free(behind)
        if waits:
            self._under_way.append(node)

    def _await(self, call: Node) -> None:
        self._flush()
        self._wait.append(str(call.number))
        later = self._later[call.number]
        self._free([one for one in later if not one.call or one.group != call.group])

    def _flush(self) -> None:
        """Make a record of what was computed since the last one."""
        if self._compute:
            record = Record(0, self._rank, self._compute / SECOND, wait=tuple(self._wait))
            self._found.append((record, ""))
            self._compute, self._wait = 0, []

    def _free(self, later: Sequence[Node]) -> None:
        for node in later:
            self._missing[node.number] -= 1
            if not self._missing[node.number]:
                self._push(node)

    def _push(self, node: Node) -> None:
        heappush(self._ready, (node.operation == "COMP", node.number))


def is_named(paths: Sequence[str]) -> bool:
    """Whether some of the files are named as execution traces are, NAME.RANK.et."""
    return any(path.endswith(NAMED) for path in paths)


def load(paths: Sequence[str]) -> Imported:
    """Make a workload of the traces of one rank, which then stands for all, or of all ranks.

    Raises:
        UsageError: a trace cannot be read, or they are not of the ranks of one program.
    """
    left_out: Counter[str] = Counter()
    found: list[tuple[Record, str]] = []
    for rank, path in enumerate(_by_rank(paths)):
        trace = Trace(path)
        found += trace.records(rank if len(paths) > 1 else None)
        left_out += trace.left_out
    if not any(record.collective for record, _ in found):
        raise UsageError(f"{paths[0]} has no ALL_REDUCE and no BARRIER, which alone are played")
    members: defaultdict[str, set[int]] = defaultdict(set)
    for record, name in found:
        if name and record.rank is None:
            raise UsageError(
                f"{paths[0]} has calls of process group {name}; name the traces of all ranks: they "
                "tell who takes part"
            )
        members[name].add(record.rank or 0)
    groups = {
        name: None if not name or len(some) == len(paths) else tuple(sorted(some))
        for name, some in members.items()
    }
    records = tuple(replace(record, group=groups[name]) for record, name in found)
    return checked(Workload(paths[0], len(paths), records, "Chakra"), left_out)


def _by_rank(paths: Sequence[str]) -> list[str]:
    """Bring traces in the order of their ranks, which only their names tell."""
    if len(paths) == 1:
        return list(paths)
    ranks = {int(named[1]): path for path in paths if (named := RANK.search(path))}
    if len(ranks) < len(paths) or set(ranks) != set(range(len(paths))):
        raise UsageError(
            f"the names of {len(paths)} execution traces must end in .0.et to "
            f".{len(paths) - 1}.et, one of each rank; or name one, which then stands for all"
        )
    return [ranks[rank] for rank in sorted(ranks)]
