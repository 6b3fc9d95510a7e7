"""The rendezvous of a group: rank 0 collects a value from each worker and sends all to everybody.

Rank 0 listens at MASTER_ADDR:MASTER_PORT only while the group gathers, so that several groups can
meet there one after the other. Under torchrun this port belongs to torchrun's agent; then its store
is used instead.

A message is a magic number, to recognise strangers, the length (four bytes, big endian), and JSON.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from itertools import count
from typing import Any, NamedTuple

from worker_lib import environment

from .base import check_timeout
from .errors import RendezvousError
from .guests import greeted

HEAD = struct.Struct(">4sI")
MAGIC = b"iSmt"
MOST = 1 << 24  # bytes of a message
PAUSE = 0.02  # seconds between two attempts to reach rank 0
TOLD = 1 << 16  # most bytes of one worker's message to rank 0
TAKING = 2.0  # seconds for a worker to receive rank 0's answer
ANSWERING = 2.0  # seconds that others wait longer than rank 0, so that it can name missing ranks

_meetings = count()  # numbers the meetings, alike in all processes; for keys in torchrun's store


class Meeting(NamedTuple):
    """The result of a rendezvous.

    Attributes:
        rank: this worker's rank.
        num_workers: number of workers.
        here: this worker's own IP address on the route to rank 0.
        told: the value from each rank.
    """

    rank: int
    num_workers: int
    here: str
    told: list[Any]


class Place(NamedTuple):
    """This worker's rank, the number of workers, and the address where they meet."""

    rank: int
    num_workers: int
    master: tuple[str, int]

    @classmethod
    def from_env(cls, variables: Mapping[str, str]) -> Place:
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
    def here(self) -> str:
        """Return the local IP address of the route to the master, without sending a packet.

        Raises:
            RendezvousError: there is no route.
        """
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(self.master)
            except OSError as error:
                where = "{}:{}".format(*self.master)
                raise RendezvousError(
                    f"no way leads to {where}: {error}; mend MASTER_ADDR and MASTER_PORT"
                ) from None
            found: str = probe.getsockname()[0]
            return found


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
    place = Place.from_env(os.environ)
    check_timeout(timeout)
    here = place.here
    word = {"rank": place.rank, "group": group, "told": tell(here)}
    deadline = time.monotonic() + timeout
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        words = _by_store(place, word, timeout)
    elif place.rank == 0:
        words = _gather(place, word, deadline, timeout)
    else:
        words = _ask(place, word, deadline + ANSWERING, timeout)
    return Meeting(place.rank, place.num_workers, here, [word["told"] for word in words])


def _gather(place: Place, own: Any, deadline: float, timeout: float) -> list[Any]:
    """On rank 0: collect the messages of all workers and send the list to all of them.

    If one is missing or wrong, send the error to those that have come, and raise it.

    Args:
        place: where the workers meet.
        own: message of rank 0.
        deadline: time of time.monotonic().
        timeout: seconds until then, for the error.

    Raises:
        RendezvousError: a worker did not come or does not match, or rank 0 cannot listen.
    """
    where = "{}:{}".format(*place.master)
    words = {0: own}
    with ExitStack() as stack:
        try:
            listener = stack.enter_context(
                socket.create_server(place.master, backlog=place.num_workers)
            )
        except OSError as error:
            raise RendezvousError(
                f"rank 0 cannot listen at {where}: {error}; choose another MASTER_PORT, or mend "
                "MASTER_ADDR: it is to be an address of rank 0's"
            ) from None
        coming = stack.enter_context(closing(greeted(listener, unsaid, deadline)))
        guests: list[socket.socket] = []
        fault: RendezvousError | None = None
        while len(words) < place.num_workers and fault is None:
            came = next(coming, None)
            if came is None:
                missing = set(range(place.num_workers)) - set(words)
                fault = RendezvousError.missing(missing, where, timeout)
                break
            guest, said = came
            stack.enter_context(guest).settimeout(TAKING)
            try:
                word = meaning(said[HEAD.size :])
                rank, group = _introduced(word)
            except ValueError:  # a stranger
                guest.close()
                continue
            guests.append(guest)
            fault = _fault(words, own, rank, group, place.num_workers)
            words[rank] = word
        coming.close()
        listener.close()  # before a worker can come back for the next group
        answer = str(fault) if fault else [words[rank] for rank in range(place.num_workers)]
        for guest in guests:
            try:
                say(guest, answer)
            except OSError:
                continue  # that worker has given up; the others will notice later
    if fault is not None:
        raise fault
    return [words[rank] for rank in range(place.num_workers)]


def _introduced(word: Any) -> tuple[int, str]:
    """Return the rank and the group of a worker's message.

    Raises:
        ValueError: this is no message of a worker.
    """
    match word:
        case {"rank": int(rank), "group": str(group), "told": _}:
            return rank, group
    raise ValueError("no word of a member")


def _fault(
    words: Mapping[int, Any], own: Any, rank: int, group: str, size: int
) -> RendezvousError | None:
    """Return the error in a worker's message, if any: wrong group, or wrong or repeated rank.

    Args:
        words: messages so far, by rank.
        own: this worker's message.
        rank: rank in the message.
        group: group in the message.
        size: number of workers.
    """
    if group != own["group"]:
        return RendezvousError(f"rank {rank} wants {group}, and rank 0 {own['group']}; mend one")
    if rank not in range(size):
        return RendezvousError(f"RANK {rank} came, and WORLD_SIZE is {size}; mend one")
    if rank in words:
        return RendezvousError(f"two processes have RANK {rank}; every one needs its own")
    return None


def _ask(place: Place, own: Any, deadline: float, timeout: float) -> list[Any]:
    """On other ranks: send a message to rank 0, and return its answer, the messages of all.

    Args:
        place: where the workers meet.
        own: message of this worker.
        deadline: time of time.monotonic().
        timeout: seconds that rank 0 waits, for the error.

    Raises:
        RendezvousError: rank 0 did not answer, or its answer is an error.
    """
    where = "{}:{}".format(*place.master)
    reason = "nobody listens there"
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection(place.master, timeout=left) as host:
                host.settimeout(max(deadline - time.monotonic(), PAUSE))
                say(host, own)
                answer = hear(host)
        except (OSError, ValueError) as error:  # not listening yet, or done with another group
            reason = str(error)
            time.sleep(PAUSE)
            continue
        if isinstance(answer, str):
            raise RendezvousError(answer)
        words: list[Any] = answer
        return words
    raise RendezvousError(f"{RendezvousError.missing([0], where, timeout)} (last: {reason})")


def say(sock: socket.socket, message: Any) -> None:
    """Send a message; on a non-blocking socket it must fit in the kernel's send buffer."""
    data = json.dumps(message).encode()
    sock.sendall(HEAD.pack(MAGIC, len(data)) + data)


def hear(sock: socket.socket) -> Any:
    """Receive the next message.

    Raises:
        OSError: no complete message arrived before the socket's timeout.
        ValueError: the bytes received are no message of ours.
    """
    return meaning(_exactly(sock, size_of(_exactly(sock, HEAD.size))))


def size_of(head: bytes, most: int = MOST) -> int:
    """Return how many bytes of JSON follow the head of a message.

    Raises:
        ValueError: this is no message of ours, or it is longer than `most` bytes.
    """
    magic, size = HEAD.unpack(head)
    if magic != MAGIC or size > most:
        raise ValueError("no message of a member")
    return int(size)


def unsaid(said: bytearray, most: int = TOLD) -> int:
    """Return how many bytes a partial message still lacks, or its head if that is incomplete.

    Raises:
        ValueError: this is no message of ours, or it is longer than `most` bytes.
    """
    if len(said) < HEAD.size:
        return HEAD.size - len(said)
    return HEAD.size + size_of(bytes(said[: HEAD.size]), most) - len(said)


def meaning(data: bytes) -> Any:
    """Parse the JSON of a message.

    Raises:
        ValueError: the data is no JSON, or is nested too deeply.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("a message that nests too deep") from None


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionResetError("closed before the message's end")
        data += more
    return bytes(data)


def _by_store(place: Place, own: Any, timeout: float) -> list[Any]:
    """Exchange messages through the store of torchrun's agent, which listens at MASTER_PORT.

    Args:
        place: where the store is.
        own: message of this worker.
        timeout: seconds to wait for each worker.

    Raises:
        RendezvousError: a worker did not come or does not match.
    """
    from datetime import timedelta

    from torch._C._distributed_c10d import TCPStore
    from torch.distributed import DistStoreError

    where = "{}:{}".format(*place.master)
    store = TCPStore(*place.master, is_master=False, timeout=timedelta(seconds=timeout))
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = f"iswitch/{again}/{next(_meetings)}"
    store.set(f"{key}/{place.rank}", json.dumps(own))
    words: dict[int, Any] = {}
    for rank in range(place.num_workers):
        try:
            words[rank] = json.loads(store.get(f"{key}/{rank}"))
        except DistStoreError:
            raise RendezvousError.missing([rank], where, timeout) from None
        others = {number: word for number, word in words.items() if number != rank}
        if fault := _fault(others, own, rank, words[rank]["group"], place.num_workers):
            raise fault
    return [words[rank] for rank in range(place.num_workers)]
