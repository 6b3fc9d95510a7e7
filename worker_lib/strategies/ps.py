"""Parameter servers: workers push ranges of keys, servers add, workers pull ranges back.

The design is that of Li et al. (OSDI 2014). A key is the index of an element; each of S servers has
a contiguous range of keys. `allreduce` pushes and pulls all keys; `push` and `pull` take ranges.
The mode decides when a pull is answered, and with what:

- synchronous (tau=0): when all workers have pushed, with the sum of that round, equal to the bit
  for all workers.
- asynchronous (tau=inf): at once, with the sum of all pushes so far, of all rounds (these are
  weights if workers push updates).
- bounded delay (tau=1, 2, ...): with the sum of all pushes so far, as soon as no worker is more
  than tau pushes behind the one that pulls.

**Servers** are separate processes on hosts of the network. By default each of the first S ranks
starts one on its own host (S = 1: all traffic shares the link of rank 0's host). Or start them on
other hosts with `python -m worker_lib.strategies.ps_server --listen HOST:PORT`, and give their
addresses in ISWITCH_PS_SERVERS or `servers`.

Cost, for X bytes: 2 steps, a push and its answer. Each worker sends X and receives X, plus 16 bytes
for each server. A server with its own host receives NX/S bytes and sends as many, so its link is
the bottleneck; a server on a worker's host, (N - 1)X/S.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, NamedTuple

import numpy as np

from iswitch.virtual.process import fresh_bytes
from worker_lib.environment import address

from .base import F32, TIMEOUT, Vector, bounds
from .cost import Cost, Node
from .errors import PeerLost, PeerSilent
from .ps_beside import Beside
from .ps_filters import Filter
from .ps_group import HEADER, SOME, Kind
from .ps_server import ServerConnection
from .ps_table import ASYNCHRONOUS, BLOCK, Shape
from .rendezvous import Meeting, Rendezvous, meet
from .tcp import Connected, Connection, exchange

SERVERS = "ISWITCH_PS_SERVERS"


class Share(NamedTuple):
    """The keys of one server: from `start` to `stop`, in blocks of `block` or fewer."""

    link: ServerConnection
    start: int
    stop: int
    block: int

    def blocks(self, start: int, stop: int) -> range:
        """Return the numbers of this server's blocks that begin in a range of keys."""
        first, last = (
            -(-(min(end, self.stop) - self.start) // self.block) for end in (start, stop)
        )
        return range(max(0, first), max(0, last))

    def keys(self, blocks: range) -> slice:
        """Return the keys of consecutive blocks."""
        start, stop = (self.start + self.block * end for end in (blocks.start, blocks.stop))
        return slice(start, min(stop, self.stop))


class ParameterServer(Connected):
    """A worker that sums vectors through parameter servers.

    Args:
        meeting: the result of the rendezvous.
        numel: elements of every vector.
        shares: the servers, in the order of their keys.
        tau: number of pushes that other workers may be behind when this one pulls.
        filter_: chooses the elements to push; None: all.
        beside: the server that this worker has started, if any.

    Attributes:
        bounds: first keys of all blocks, then numel; ranges must begin and end at bounds.
    """

    def __init__(
        self,
        meeting: Meeting,
        numel: int,
        shares: Sequence[Share],
        tau: float,
        filter_: Filter | None,
        beside: Beside | None,
    ) -> None:
        super().__init__(meeting, numel, [share.link for share in shares], steps=2)
        self.tau = tau
        self.bounds = [start for one in shares for start in range(one.start, one.stop, one.block)]
        self.bounds.append(numel)
        self._shares = shares
        self._filter = filter_
        self._beside = beside
        self._held = np.zeros(numel if filter_ and filter_.keeps else 0, np.float32)
        self._unpulled: set[int] = set()  # first keys of blocks that were pushed and not pulled
        self._pushed = self._pulled = 0  # elements

    def allreduce(self, vector: Vector) -> Vector:
        """Push the vector and pull the result in place.

        The result is the sum of this round if synchronous, otherwise the sum of all pushes so far.
        """
        with self.calling(vector), self._naming():
            self._receive(self._push(vector, 0, self.numel, Kind.PUSH_PULL))
        return vector

    def push(self, vector: Vector, start: int, stop: int) -> None:
        """Add elements start..stop-1 of this worker's vector to the servers' values.

        Args:
            vector: float32 [numel].
            start: first key, one of `bounds`.
            stop: end of the keys, one of `bounds`.

        Raises:
            ValueError: `start` or `stop` is not in `bounds`; or the group is synchronous, and part
                of the range was pushed and not yet pulled.
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
        """Replace elements start..stop-1 by the servers' values; wait for other workers if needed.

        Args:
            vector: float32 [numel], changed in place.
            start: first key, one of `bounds`.
            stop: end of the keys, one of `bounds`.

        Raises:
            ValueError: `start` or `stop` is not in `bounds`.
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
        """Push a range; return the servers' connections, each with its part of the vector."""
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

    def _push_some(
        self, link: Connection, values: Vector, number: int, keys: slice, kind: Kind
    ) -> None:
        """Push the elements of a block that the filter chooses."""
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
        """Return the servers that hold keys of a range, each with its blocks in that range."""
        found = [(share, share.blocks(start, stop)) for share in self._shares]
        return [(share, blocks) for share, blocks in found if blocks]

    def _begun(self, start: int, stop: int) -> set[int]:
        """Return the first keys of the blocks of a range; refuse ranges that split a block."""
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
        """Make connection errors name the worker that a server waits for, not the server."""
        try:
            yield
        except (PeerLost, PeerSilent) as error:
            raise self._named(error) from None

    def _named(self, error: PeerLost | PeerSilent) -> PeerLost | PeerSilent:
        for share in self._shares:
            status = share.link.status()
            if status is None:
                return PeerLost(share.link.peer)
            if lost := status["lost"]:
                return PeerLost(_ranks(lost))
            if isinstance(error, PeerSilent) and (behind := status["behind"]):
                return PeerSilent(_ranks(behind), error.seconds)
        return error

    def close(self) -> None:
        """Leave the group; then wait for the server that this worker started, if any, to end.

        That server ends when all workers have left.
        """
        super().close()
        if self._beside is not None:
            self._beside.end(self._shares[0].link.timeout)

    def stats(self) -> dict[str, Any]:
        """Return the counts of `Connected.stats`, the number of servers, and elements moved."""
        return {
            **super().stats(),
            "servers": len(self._shares),
            "elements_pushed": self._pushed,
            "elements_pulled": self._pulled,
        }


def _ranks(ranks: Sequence[int]) -> str:
    return " and ".join(f"rank {rank}" for rank in ranks)


def cost(numel: int, num_workers: int, servers: int = 1, beside: bool = True) -> Cost:
    """Return the cost of a synchronous float32 allreduce without filters.

    Args:
        numel: elements of the vector.
        num_workers: number of workers.
        servers: number of servers.
        beside: whether server s is on the host of rank s; if not, its node is "server s".
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
        timeout: seconds for all workers to come, and then of silence.
        servers: number of servers to start, one on each of the first ranks' hosts; or addresses
            HOST:PORT of running servers, as a list or separated by commas. None: the addresses in
            ISWITCH_PS_SERVERS, or 1 if it is not set.
        tau: 0: synchronous; inf: asynchronous; between: bounded delay, in rounds.
        filter: chooses the elements to push; sums then have only these. None: all.
        block: elements of a block, which has its own clock; ranges consist of whole blocks.

    Raises:
        ValueError: a variable is missing or wrong, or an argument is out of range.
        RendezvousError: a worker did not come.
        PeerLost: a server does not answer, or refuses this worker.
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
    size = Rendezvous.from_env(os.environ).num_workers
    if isinstance(servers, int) and not 1 <= servers <= size:
        raise ValueError(f"servers = {servers}: of {size} workers 1 to {size} can have one beside")
    started: list[Beside] = []

    def tell(here: str) -> Any:
        if int(os.environ["RANK"]) >= beside:
            return None, fresh_bytes(8).hex()
        started.append(Beside.start(here))
        return started[0].address, fresh_bytes(8).hex()

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
            link = ServerConnection(at, greeting, f"the server at {at[0]}:{at[1]}", timeout)
            shares.append(Share(link, start, stop, block))
    except BaseException:
        for one in started:
            one.kill()
        raise
    return ParameterServer(found, numel, shares, tau, filter, next(iter(started), None))
