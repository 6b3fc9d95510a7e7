"""Parameter servers: workers push ranges of keys, servers add, workers pull ranges back.

As of Li et al. (OSDI 2014). A key is an element of the vector; each of S servers has a contiguous
range of them. `allreduce` pushes all and pulls all; `push` and `pull` are for ranges. What a pull
waits for is the mode:

- synchronous (tau=0): for all workers' pushes; it gets their sum, and all get the same bits.
- asynchronous (tau=inf): for nobody; it gets the sum of all pushes so far, of all rounds (weights,
  if updates are pushed).
- bounded delay (tau=1, 2, ...): as asynchronous, but no worker's pushes may be more than tau behind
  those of who pulls.

**Servers** are processes of their own, on hosts of the network. By default the first S ranks start
one each beside themselves (S = 1: all share the link of rank 0's host). Or they have hosts of their
own: `python -m worker_lib.strategies.ps_server --listen HOST:PORT` there, and their addresses in
ISWITCH_PS_SERVERS or `servers`.

Cost, for X bytes: 2 steps (what is pushed is answered); each worker sends X and receives X, 16
bytes a server beside. A server with a host of its own receives NX/S and sends as much, so its link
is the narrow one; beside a worker, (N - 1)X/S.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, NamedTuple

import numpy as np

from worker_lib.environment import address

from . import Vector
from .base import F32, TIMEOUT, Base, bounds
from .cost import Cost, Node
from .errors import PeerLost, PeerSilent
from .ps_filters import Filter
from .ps_group import HEADER, SOME, Kind
from .ps_server import LISTENING, Link, ask, join_group
from .ps_table import ASYNCHRONOUS, BLOCK, Shape
from .rendezvous import Place, meet
from .tcp import Connection, exchange

SERVERS = "ISWITCH_PS_SERVERS"


class Share(NamedTuple):
    """The keys of one server: from `start` to `stop`, in blocks of `block` or fewer."""

    link: Link
    start: int
    stop: int
    block: int

    def blocks(self, start: int, stop: int) -> range:
        """The blocks that begin in this range of keys, whosever they are."""
        first, last = (
            -(-(min(end, self.stop) - self.start) // self.block) for end in (start, stop)
        )
        return range(max(0, first), max(0, last))

    def keys(self, blocks: range) -> slice:
        """The keys of blocks that follow on."""
        start, stop = (self.start + self.block * end for end in (blocks.start, blocks.stop))
        return slice(start, min(stop, self.stop))


class ParameterServer(Base):
    """A worker of a group with servers.

    Args:
        rank: of the worker.
        num_workers: of the group.
        numel: elements of every vector.
        shares: the servers, in the order of their keys.
        tau: how far others may be behind.
        filter_: says what is pushed.
        process: the server beside this worker, if there is one.

    Attributes:
        bounds: where blocks begin, and the end of the last: ranges are from one to another.
    """

    def __init__(
        self,
        rank: int,
        num_workers: int,
        numel: int,
        shares: Sequence[Share],
        tau: float = 0,
        filter_: Filter | None = None,
        process: subprocess.Popen[str] | None = None,
    ) -> None:
        super().__init__(rank, num_workers, numel)
        self.tau = tau
        self.bounds = [start for one in shares for start in range(one.start, one.stop, one.block)]
        self.bounds.append(numel)
        self._shares = shares
        self._filter = filter_
        self._process = process
        self._held = np.zeros(numel if filter_ and filter_.keeps else 0, np.float32)
        self._unpulled: set[int] = set()  # where blocks begin
        self._pushed = self._pulled = 0  # elements

    def allreduce(self, vector: Vector) -> Vector:
        """Push all, pull all: the sum of the round if synchronous, else that of all pushes."""
        self.check(vector)
        self.rounds += 1
        with self._naming():
            self._receive(self._push(vector, 0, self.numel, Kind.PUSH_PULL))
        return vector

    def push(self, vector: Vector, start: int, stop: int) -> None:
        """Add the elements from `start` to `stop` of this worker's vector to the servers' values.

        Raises:
            ValueError: `start` and `stop` are not of `bounds`; or the job is synchronous and
                something of the range has not been pulled since it was pushed.
        """
        self.check(vector)
        begun = self._begun(start, stop)
        if self.tau == 0:
            if begun & self._unpulled:
                raise ValueError(
                    f"{start}..{stop} was pushed and not pulled; pull it first (or let the job be "
                    "asynchronous: tau=inf)"
                )
            self._unpulled |= begun
        with self._naming():
            for link, _ in self._push(vector, start, stop, Kind.PUSH):
                link.drain()

    def pull(self, vector: Vector, start: int, stop: int) -> None:
        """Replace the elements from `start` to `stop` by the servers' values, waiting for others.

        Raises:
            ValueError: `start` and `stop` are not of `bounds`.
        """
        self.check(vector)
        self._unpulled -= self._begun(start, stop)
        parts = []
        for share, blocks in self._at(start, stop):
            share.link.queue_bytes(HEADER.pack(Kind.PULL, 0, blocks[0], blocks[-1]))
            parts.append((share.link, vector[share.keys(blocks)]))
        with self._naming():
            self._receive(parts)

    def _push(
        self, vector: Vector, start: int, stop: int, kind: Kind
    ) -> list[tuple[Connection, Vector]]:
        """Send to all servers; the connections, each with the part of the vector it has."""
        parts: list[tuple[Connection, Vector]] = []
        for share, blocks in self._at(start, stop):
            own = vector[share.keys(blocks)]
            parts.append((share.link, own))
            if self._filter is None:
                share.link.queue_bytes(HEADER.pack(kind, 0, blocks[0], blocks[-1]))
                share.link.send(own)
                self._pushed += own.size
                continue
            for number in blocks:
                keys = share.keys(range(number, number + 1))
                self._push_some(share.link, vector[keys], number, keys, kind)
        return parts

    def _push_some(self, link: Link, values: Vector, number: int, keys: slice, kind: Kind) -> None:
        """Send what the filter lets pass of a block."""
        assert self._filter is not None
        if self._filter.keeps:
            values = values + self._held[keys]
        mask = self._filter.pushes(values, keys.start)
        if self._filter.keeps:
            self._held[keys] = np.where(mask, np.float32(0), values)
        (indices,) = np.nonzero(mask)
        self._pushed += indices.size
        link.queue_bytes(HEADER.pack(kind | SOME, indices.size, number, number))
        if indices.size:
            link.send(indices.astype(np.uint32))
            link.send(values[indices])
        else:
            link.flush()

    def _at(self, start: int, stop: int) -> list[tuple[Share, range]]:
        """The servers that have keys of a range, each with its blocks of it."""
        found = [(share, share.blocks(start, stop)) for share in self._shares]
        return [(share, blocks) for share, blocks in found if blocks]

    def _begun(self, start: int, stop: int) -> set[int]:
        """Where the blocks of a range begin."""
        if start > stop or not {start, stop} <= set(self.bounds):
            raise ValueError(
                f"the range {start}..{stop}: begin and end at `bounds`, such as "
                f"{self.bounds[0]}..{self.bounds[1:2] or self.bounds[0]}"
            )
        return {bound for bound in self.bounds if start <= bound < stop}

    def _receive(self, parts: Sequence[tuple[Connection, Vector]]) -> None:
        if parts:
            exchange(parts)
        self._pulled += sum(part.size for _, part in parts)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Errors name whom a server waits for, rather than the server that waits."""
        try:
            yield
        except (PeerLost, PeerSilent) as error:
            raise self._named(error) from None

    def _named(self, error: PeerLost | PeerSilent) -> PeerLost | PeerSilent:
        for share in self._shares:
            status = ask(share.link)
            if status is None:
                return PeerLost(share.link.peer)
            if lost := status["lost"]:
                return PeerLost(_ranks(lost))
            if isinstance(error, PeerSilent) and (behind := status["behind"]):
                return PeerSilent(_ranks(behind), error.seconds)
        return error

    def close(self) -> None:
        """Leave. A server that was started beside this worker ends when all have left."""
        for share in self._shares:
            share.link.close()
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            assert self._process.stdout is not None
            self._process.stdout.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self._shares[0].link.timeout)

    def stats(self) -> dict[str, Any]:
        """Rounds, servers, and of all rounds together: elements and bytes that went."""
        return {
            "rounds": self.rounds,
            "steps": 2 * self.rounds,
            "servers": len(self._shares),
            "elements_pushed": self._pushed,
            "elements_pulled": self._pulled,
            "bytes_sent": sum(share.link.sent for share in self._shares),
            "bytes_received": sum(share.link.received for share in self._shares),
        }


def _ranks(ranks: Sequence[int]) -> str:
    return " and ".join(f"rank {rank}" for rank in ranks)


def cost(numel: int, num_workers: int, servers: int = 1, beside: bool = True) -> Cost:
    """What a synchronous allreduce of float32 takes, without filters.

    Args:
        numel: elements.
        num_workers: that push and pull.
        servers: how many have keys.
        beside: server s shares the host of rank s, else it has one, called "server s".
    """
    flows: dict[tuple[Node, Node], int] = {}
    ends = bounds(numel, servers)
    for number in range(servers):
        size = F32 * (ends[number + 1] - ends[number])
        server: Node = number if beside else f"server {number}"
        for rank in range(num_workers):
            if size and rank != server:
                flows[rank, server] = flows.get((rank, server), 0) + HEADER.size + size
                flows[server, rank] = flows.get((server, rank), 0) + size
    return Cost(2, flows)


def join(
    numel: int,
    *,
    timeout: float = TIMEOUT,
    servers: int | str | Sequence[str] | None = None,
    tau: float = 0,
    filter: Filter | None = None,
    block: int = BLOCK,
) -> ParameterServer:
    """Join the group of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Args:
        numel: elements of every vector.
        timeout: seconds for all to come, and then of silence.
        servers: how many to start, beside the first ranks; or addresses HOST:PORT of those that
            run, in a list or with commas between. Default: those of ISWITCH_PS_SERVERS, else 1.
        tau: 0: synchronous; inf: asynchronous; between: bounded delay, in rounds.
        filter: says what is pushed. With one, sums are of what passed it.
        block: elements with a clock of their own; ranges are of whole blocks.

    Raises:
        ValueError: the environment lacks what it needs, or an argument cannot be.
        RendezvousError: not all have come.
        PeerLost: a server is not there.
    """
    if not (tau == inf or (tau >= 0 and tau == int(tau))):
        raise ValueError(f"tau = {tau!r}: pass 0, a whole number of rounds, or math.inf")
    if not (isinstance(block, int) and 1 <= block <= BLOCK):
        raise ValueError(f"block = {block!r}: pass 1 to {BLOCK} elements")
    if servers is None:
        servers = os.environ.get(SERVERS) or 1
    if isinstance(servers, str):
        servers = servers.split(",")
    beside = servers if isinstance(servers, int) else 0
    size = Place.from_env(os.environ).num_workers
    if isinstance(servers, int) and not 1 <= servers <= size:
        raise ValueError(f"servers = {servers}: of {size} workers 1 to {size} can have one beside")
    processes: list[subprocess.Popen[str]] = []

    def tell(here: str) -> Any:
        if int(os.environ["RANK"]) >= beside:
            return None, secrets.token_hex(8)
        processes.append(start_server(here))
        return listening(processes[0]), secrets.token_hex(8)

    many = "s" * (beside != 1)
    where = f"{beside} server{many} beside" if beside else f"servers {servers}"
    try:
        found = meet(
            f"ps of tau {tau}, {where}, blocks of {block}, {numel} elements", tell, timeout
        )
        if isinstance(servers, int):
            servers = [told[0] for told in found.told[:servers]]
        addresses = [address({SERVERS: one}, SERVERS, "10.0.0.5:29600") for one in servers]
        ends = bounds(numel, len(addresses))
        shares = []
        for number, at in enumerate(addresses):
            start, stop = ends[number], ends[number + 1]
            lag = ASYNCHRONOUS if tau == inf else int(tau)
            greeting = {
                "group": f"{found.told[0][1]} {number}",
                "rank": found.rank,
                "shape": Shape(stop - start, block, found.num_workers, lag).check(),
            }
            link = join_group(at, greeting, f"the server at {at[0]}:{at[1]}", timeout)
            shares.append(Share(link, start, stop, block))
    except BaseException:
        for process in processes:
            process.kill()
            process.communicate()
        raise
    return ParameterServer(
        found.rank, found.num_workers, numel, shares, tau, filter, next(iter(processes), None)
    )


def start_server(here: str) -> subprocess.Popen[str]:
    """A server process on this host, at any free port; it ends after its standard input has."""
    command = [sys.executable, "-P", "-m", "worker_lib.strategies.ps_server", "--listen"]
    return subprocess.Popen(
        [*command, f"{here}:0", "--until-eof"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def listening(process: subprocess.Popen[str]) -> str:
    """Where a server that was just started listens."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith(LISTENING):
        raise PeerLost("the server beside this worker", f"it ended with {process.wait()}")
    return line.removeprefix(LISTENING).strip()
