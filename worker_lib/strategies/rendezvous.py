"""How the workers of a group find one another: rank 0 collects what each tells, and tells all.

Rank 0 listens at MASTER_ADDR:MASTER_PORT only while the group gathers, so that one group after the
other can meet there. Under torchrun the port is its agent's, whose store serves the same purpose.

A message is a magic, by which strangers are told from members, its length (four bytes, big endian),
and JSON.
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
PAUSE = 0.02  # seconds between two tries to reach rank 0
TOLD = 1 << 16  # bytes of what one worker tells
TAKING = 2.0  # seconds for a worker that has come to take the answer
ANSWERING = 2.0  # seconds more than rank 0 waits, for it to say who is missing

_meetings = count()  # of this process, which are the same in all: keys in the store of torchrun's


class Meeting(NamedTuple):
    """The result of a rendezvous.

    `here` is this worker's own address on the way to rank 0, `told` what each rank had to tell.
    """

    rank: int
    num_workers: int
    here: str
    told: list[Any]


class Place(NamedTuple):
    """This worker's rank, and where it meets the others."""

    rank: int
    num_workers: int
    master: tuple[str, int]

    @classmethod
    def from_env(cls, variables: Mapping[str, str]) -> Place:
        """From RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

        Raises:
            ValueError: one of them lacks or is wrong; the message names it.
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
        """The local address that the way to the master begins at (no packet is sent)."""
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
    """Wait for all workers of the environment, and learn what each has to tell.

    Args:
        group: what they meet for; it has to be the same for all.
        tell: called with this worker's own address, returns what the others are to know, for JSON.
        timeout: seconds.

    Raises:
        ValueError: the environment does not say who and where, or the timeout cannot be.
        RendezvousError: some have not come (the message names them), or want another group.
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
    """Rank 0: collect all words, then send all to all, or to those who came who did not."""
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
        listener.close()  # before anybody can come back for the next group
        answer = str(fault) if fault else [words[rank] for rank in range(place.num_workers)]
        for guest in guests:
            try:
                say(guest, answer)
            except OSError:
                continue  # it has given up; its connections will be missed
    if fault is not None:
        raise fault
    return [words[rank] for rank in range(place.num_workers)]


def _introduced(word: Any) -> tuple[int, str]:
    """The rank and the group of a word that has come.

    Raises:
        ValueError: it has none.
    """
    match word:
        case {"rank": int(rank), "group": str(group), "told": _}:
            return rank, group
    raise ValueError("no word of a member")


def _fault(
    words: Mapping[int, Any], own: Any, rank: int, group: str, size: int
) -> RendezvousError | None:
    """What is wrong with a word that has come."""
    if group != own["group"]:
        return RendezvousError(f"rank {rank} wants {group}, and rank 0 {own['group']}; mend one")
    if rank not in range(size):
        return RendezvousError(f"RANK {rank} came, and WORLD_SIZE is {size}; mend one")
    if rank in words:
        return RendezvousError(f"two processes have RANK {rank}; every one needs its own")
    return None


def _ask(place: Place, own: Any, deadline: float, timeout: float) -> list[Any]:
    """The others: tell rank 0, and wait for its answer."""
    where = "{}:{}".format(*place.master)
    reason = "nobody listens there"
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection(place.master, timeout=left) as host:
                host.settimeout(max(deadline - time.monotonic(), PAUSE))
                say(host, own)
                answer = hear(host)
        except (OSError, ValueError) as error:  # not there yet, or just gone: another group's
            reason = str(error)
            time.sleep(PAUSE)
            continue
        if isinstance(answer, str):
            raise RendezvousError(answer)
        words: list[Any] = answer
        return words
    raise RendezvousError(f"{RendezvousError.missing([0], where, timeout)} (last: {reason})")


def say(sock: socket.socket, message: Any) -> None:
    """Send a message; it has to fit what the kernel takes, or the socket must block."""
    data = json.dumps(message).encode()
    sock.sendall(HEAD.pack(MAGIC, len(data)) + data)


def hear(sock: socket.socket) -> Any:
    """The next message.

    Raises:
        OSError: none came, or not whole, before the socket's timeout.
        ValueError: no message of ours.
    """
    return meaning(_exactly(sock, size_of(_exactly(sock, HEAD.size))))


def size_of(head: bytes, most: int = MOST) -> int:
    """How many bytes of JSON follow the first ones of a message.

    Raises:
        ValueError: no message of ours, or a longer one than there is.
    """
    magic, size = HEAD.unpack(head)
    if magic != MAGIC or size > most:
        raise ValueError("no message of a member")
    return int(size)


def unsaid(said: bytearray, most: int = TOLD) -> int:
    """How many bytes a message lacks that begins so: of its head, or of all once that is there.

    Raises:
        ValueError: as of `size_of`.
    """
    if len(said) < HEAD.size:
        return HEAD.size - len(said)
    return HEAD.size + size_of(bytes(said[: HEAD.size]), most) - len(said)


def meaning(data: bytes) -> Any:
    """What a message says.

    Raises:
        ValueError: it is no JSON, or too deep.
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
    """Through the store of torchrun's agent, which listens at MASTER_PORT itself."""
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
