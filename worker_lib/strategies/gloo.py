"""torch.distributed's gloo: its ring over TCP between the workers, no switch.

Cost: about the steps and bytes of `ring`, since gloo does a scatter-reduce and an all-gather, too.
It pads small vectors and adds a header to every message. Tests assert the bytes of a large vector
on the links of hosts, to five per cent, and not the steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from iswitch.outside import extra

from .base import TIMEOUT, Strategy, Vector, check_timeout, lacking
from .collectives import ROOT
from .errors import PeerLost, PeerSilent, RendezvousError, Unavailable
from .rendezvous import Meeting, meet

# gloo reports every failure by a RuntimeError, whose message begins with a place in its sources.
PLACE = re.compile(r"^\[\S+\] ")
SILENCE = re.compile(r"time(d |-)?out", re.IGNORECASE)
ADDRESS = re.compile(r"\[([\d.]+)\]:\d+")  # of a peer


class Gloo(Strategy):
    """A member of torch's default process group, which uses a store on rank 0.

    Args:
        meeting: the result of the rendezvous.
        numel: elements of every vector.
        store: torch's TCPStore on rank 0.
        timeout: seconds to connect, and then of silence.

    Raises:
        RendezvousError: gloo could not connect the workers.
    """

    def __init__(self, meeting: Meeting, numel: int, store: Any, timeout: float) -> None:
        from torch import distributed

        super().__init__(meeting.rank, meeting.num_workers, numel)
        self._distributed = distributed
        self._timeout = timeout
        self._hosts = [host for host, _ in meeting.told]
        try:
            distributed.init_process_group(
                "gloo",
                store=store,
                rank=meeting.rank,
                world_size=meeting.num_workers,
                timeout=timedelta(seconds=timeout),
            )
            distributed.barrier()  # after it nobody needs the store, and rank 0 may end
        except RuntimeError as error:
            if distributed.is_initialized():
                self.close()
            raise unconnected(error) from None

    def close(self) -> None:
        """Leave torch's group."""
        self._distributed.destroy_process_group()

    def allreduce(self, vector: Vector) -> Vector:
        """Sum in place, each part of the vector in the order in which the ring passes it.

        Raises:
            PeerLost: a connection broke.
            PeerSilent: nothing arrived for `timeout` seconds.
        """
        from torch import from_numpy

        self.check(vector)
        self.rounds += 1
        with self._faults():
            self._distributed.all_reduce(from_numpy(vector))
        return vector

    def exchange(self, collective: str, vector: Vector, out: Vector) -> None:
        """Call a collective, see `Exchange`.

        Raises:
            PeerLost: a connection broke.
            PeerSilent: nothing arrived for `timeout` seconds.
        """
        from torch import from_numpy

        self.rounds += 1
        torch = self._distributed
        given, got = from_numpy(vector), from_numpy(out)
        at_root, n = self.rank == ROOT, self.num_workers
        with self._faults():
            match collective:
                case "reduce_scatter":
                    torch.reduce_scatter_tensor(got, given)
                case "all_gather":
                    torch.all_gather_into_tensor(got, given)
                case "broadcast":
                    torch.broadcast(given, ROOT)
                case "reduce":
                    torch.reduce(given, ROOT)
                case "gather":
                    torch.gather(given, list(got.chunk(n)) if at_root else None, ROOT)
                case "scatter":
                    torch.scatter(got, list(given.chunk(n)) if at_root else None, ROOT)
                case "all_to_all":
                    torch.all_to_all_single(got, given)
                case _:
                    torch.barrier()

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Convert gloo's errors to ours."""
        try:
            yield
        except RuntimeError as error:
            raise fault(str(error), self._hosts, self._timeout) from None


def fault(said: str, hosts: Sequence[str], timeout: float) -> PeerLost | PeerSilent:
    """Convert gloo's error message to an error of ours.

    gloo names a lost peer by its address, which identifies a rank if no other rank has that host.
    It does not name a silent peer.

    Args:
        said: gloo's message.
        hosts: address of each rank's host.
        timeout: seconds after which gloo reports silence.
    """
    if SILENCE.search(said):
        return PeerSilent("a worker", timeout)
    named = ADDRESS.search(said)
    ranks = [rank for rank, host in enumerate(hosts) if named and host == named[1]]
    peer = f"rank {ranks[0]}" if len(ranks) == 1 else "a worker"
    return PeerLost(peer, PLACE.sub("", said).partition(". ")[0])


def unconnected(error: RuntimeError) -> RendezvousError:
    """Make the error that torch could not connect workers that have met."""
    return RendezvousError(
        f"gloo has not connected the workers; it says: {error}; look whether one of them has "
        "failed, whether GLOO_SOCKET_IFNAME names the interface that leads to the others, or give "
        "more time: timeout=..."
    )


def lacks() -> str:
    """Say what this machine lacks for gloo, and how to get it; "" if nothing."""
    return lacking("gloo", ["torch"], [], extra("torch"))


def join(numel: int, *, timeout: float = TIMEOUT) -> Gloo:
    """Join the group of MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE.

    Across namespaces gloo needs the name of its interface in GLOO_SOCKET_IFNAME; `iswitch run` sets
    it.

    Raises:
        ValueError: a variable is missing or wrong, or the timeout is out of range.
        RendezvousError: a worker did not come, or gloo could not connect the workers.
        Unavailable: torch is not installed.
    """
    if missing := lacks():
        raise Unavailable(missing)
    from torch._C._distributed_c10d import TCPStore

    limit = timedelta(seconds=check_timeout(timeout))
    stores: list[Any] = []

    def tell(here: str) -> Any:
        stores.append(TCPStore(here, 0, is_master=True, wait_for_workers=False, timeout=limit))
        return here, stores[0].port

    meeting = meet(f"gloo of {numel} elements", tell, timeout)
    if meeting.rank:
        host, port = meeting.told[0]
        try:
            stores[:] = [TCPStore(host, port, is_master=False, timeout=limit)]
        except RuntimeError as error:
            raise unconnected(error) from None
    return Gloo(meeting, numel, stores[0], timeout)


def join_exchange(_collective: str, numel: int, **options: float) -> Gloo:
    """Join the group as `join` does; it serves all collectives."""
    return join(numel, **options)
