"""The rendezvous of a group: rank 0 collects a value from each worker and sends all to everybody.

Rank 0 listens at MASTER_ADDR:MASTER_PORT only while the group gathers, so that several groups can
meet there one after the other. Under torchrun this port belongs to torchrun's agent; then its store
is used instead.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from itertools import count
from typing import Any, NamedTuple

from worker_lib import environment

from .base import check_timeout
from .errors import RendezvousError
from .messages import greeted, hear, say

PAUSE = 0.02  # seconds between two attempts to reach rank 0
TAKING = 2.0  # seconds for a worker to receive rank 0's answer
ANSWERING = 2.0  # seconds that others wait longer than rank 0, so that it can name missing ranks

_meetings = count()  # numbers the meetings, alike in all processes; for keys in torchrun's store


class Meeting(NamedTuple):
    """The result of a rendezvous.

    Attributes:
        rank: this worker's rank.
        num_workers: number of workers.
        told: the value from each rank.
    """

    rank: int
    num_workers: int
    told: list[Any]


class Rendezvous(NamedTuple):
    """This worker's rank, the number of workers, and the address where they meet."""

    rank: int
    num_workers: int
    master: tuple[str, int]

    @classmethod
    def from_env(cls, variables: Mapping[str, str]) -> Rendezvous:
        """Read RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

        Raises:
            ValueError: a variable is missing or wrong; the message names it.
        """
        size = environment.workers(variables, "WORLD_SIZE")
        rank = environment.number(variables, "RANK", f"a rank, 0 to {size - 1}, is wanted")
        if not rank < size:
            raise ValueError(f"RANK is {rank} and WORLD_SIZE {size}: ranks are 0..{size - 1}")
        port = environment.number(variables, "MASTER_PORT")
        if not 0 < port <= 65535:
            raise ValueError(f"MASTER_PORT is {port}: ports are 1..65535")
        return cls(rank, size, (environment.text(variables, "MASTER_ADDR"), port))

    @property
    def where(self) -> str:
        """Return the master's HOST:PORT."""
        return "{}:{}".format(*self.master)

    @property
    def here(self) -> str:
        """Return the local IP address of the route to the master, without sending a packet.

        Raises:
            RendezvousError: there is no route.
        """
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(self.master)
            except OSError as error:
                raise RendezvousError(
                    f"no way leads to {self.where}: {error}; mend MASTER_ADDR and MASTER_PORT"
                ) from None
            found: str = probe.getsockname()[0]
            return found

    def gather(self, own: Any, timeout: float) -> list[Any]:
        """On rank 0: collect the messages of all workers and send the list to all of them.

        If one is missing or wrong, send the error to those that have come, and raise it.

        Raises:
            RendezvousError: a worker did not come or does not match, or rank 0 cannot listen.
        """
        words = {0: own}
        with ExitStack() as stack:
            try:
                listener = socket.create_server(self.master, backlog=self.num_workers)
            except OSError as error:
                raise RendezvousError(
                    f"rank 0 cannot listen at {self.where}: {error}; choose another MASTER_PORT, "
                    "or mend MASTER_ADDR: it is to be an address of rank 0's"
                ) from None
            stack.enter_context(listener)
            coming = stack.enter_context(closing(greeted(listener, time.monotonic() + timeout)))
            guests: list[socket.socket] = []
            fault: RendezvousError | None = None
            while len(words) < self.num_workers and fault is None:
                guest, word = next(coming, (None, None))
                if guest is None:
                    missing = set(range(self.num_workers)) - set(words)
                    fault = RendezvousError.missing(missing, self.where, timeout)
                    break
                stack.enter_context(guest).settimeout(TAKING)
                match word:
                    case {"rank": int(rank), "group": str(), "told": _}:
                        guests.append(guest)
                        fault = self._fault(own, word)
                        if rank in words and fault is None:
                            fault = RendezvousError(
                                f"two processes have RANK {rank}; every one needs its own"
                            )
                        words[rank] = word
                    case _:  # a stranger
                        guest.close()
            coming.close()
            listener.close()  # before a worker can come back for the next group
            answer = str(fault) if fault else [words[rank] for rank in range(self.num_workers)]
            for guest in guests:
                with suppress(OSError):  # that worker has given up; the others will notice later
                    say(guest, answer)
        if fault is not None:
            raise fault
        return [words[rank] for rank in range(self.num_workers)]

    def ask(self, own: Any, timeout: float) -> list[Any]:
        """On other ranks: send a message to rank 0, and return its answer, the messages of all.

        Raises:
            RendezvousError: rank 0 did not answer, or its answer is an error.
        """
        deadline = time.monotonic() + timeout + ANSWERING
        reason = "nobody listens there"
        while (left := deadline - time.monotonic()) > 0:
            try:
                with socket.create_connection(self.master, timeout=left) as host:
                    host.settimeout(max(deadline - time.monotonic(), PAUSE))
                    say(host, own)
                    answer: str | list[Any] = hear(host)
            except (OSError, ValueError) as error:  # not listening yet, or done with another group
                reason = str(error)
                time.sleep(PAUSE)
                continue
            if isinstance(answer, str):
                raise RendezvousError(answer)
            return answer
        raise RendezvousError(
            f"{RendezvousError.missing([0], self.where, timeout)} (last: {reason})"
        )

    def exchange_by_store(self, own: Any, timeout: float) -> list[Any]:
        """Exchange messages through the store of torchrun's agent, which listens at MASTER_PORT.

        Raises:
            RendezvousError: a worker did not come or does not match.
        """
        from datetime import timedelta

        from torch._C._distributed_c10d import TCPStore
        from torch.distributed import DistStoreError

        store = TCPStore(*self.master, is_master=False, timeout=timedelta(seconds=timeout))
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        key = f"iswitch/{again}/{next(_meetings)}"
        store.set(f"{key}/{self.rank}", json.dumps(own))
        words = []
        for rank in range(self.num_workers):
            try:
                words.append(json.loads(store.get(f"{key}/{rank}")))
            except DistStoreError:
                raise RendezvousError.missing([rank], self.where, timeout) from None
            if fault := self._fault(own, words[rank]):
                raise fault
        return words

    def _fault(self, own: Any, word: Any) -> RendezvousError | None:
        """Return the error that a worker's message has another group or a wrong rank, if any."""
        rank, group = word["rank"], word["group"]
        if group != own["group"]:
            return RendezvousError(
                f"rank {rank} wants {group}, and rank 0 {own['group']}; mend one"
            )
        if rank not in range(self.num_workers):
            return RendezvousError(
                f"RANK {rank} came, and WORLD_SIZE is {self.num_workers}; mend one"
            )
        return None


def meet(group: str, tell: Callable[[str], Any], timeout: float) -> Meeting:
    """Wait until all workers have come, and exchange one value of each.

    Args:
        group: description of the group, equal in all workers.
        tell: called with this worker's own IP address; returns its value, which JSON can express.
        timeout: seconds to wait for all workers.

    Raises:
        ValueError: a variable is missing or wrong, or the timeout is out of range.
        RendezvousError: some workers did not come (the message names them), or came for another
            group.
    """
    rendezvous = Rendezvous.from_env(os.environ)
    check_timeout(timeout)
    own = {"rank": rendezvous.rank, "group": group, "told": tell(rendezvous.here)}
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        words = rendezvous.exchange_by_store(own, timeout)
    elif rendezvous.rank == 0:
        words = rendezvous.gather(own, timeout)
    else:
        words = rendezvous.ask(own, timeout)
    return Meeting(rendezvous.rank, rendezvous.num_workers, [word["told"] for word in words])
