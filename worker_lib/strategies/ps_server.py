"""A parameter server: a process that adds up what workers push, and answers what they pull.

    python -m worker_lib.strategies.ps_server --listen HOST:PORT

serves whoever comes, several groups at a time, until SIGTERM. Under `iswitch run` or torchrun

    python -m worker_lib.strategies.ps_server --hosts 1 -- COMMAND...

is the server on the last host (of `--hosts 2`: on each of the last two), and COMMAND on all others,
which find WORLD_SIZE without it, and ISWITCH_PS_SERVERS.

A worker begins with a message of JSON (`rendezvous.say`) that says what group it is of, and
gets another when all workers of the group are there. Then headers follow, each with what it
announces: values of blocks, from the first to the last, or `count` indices and values of one. What
is pulled is answered in order, bare.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from math import inf
from typing import Any

import numpy as np

from .errors import PeerLost
from .guests import GUESTS, filled
from .ps_table import ASYNCHRONOUS, Shape, Table
from .rendezvous import HEAD, Place, hear, meaning, meet, say, unsaid
from .tcp import Connection

HEADER = struct.Struct("<IIII")  # kind, count, first and last block
LISTENING = "listening "
GATHERING = 60.0  # seconds for all processes of a run to come
EPITAPHS = 64
MOST_SAID = 4096  # bytes of a greeting
LINGERING = 0.5  # seconds for members of a group that failed to ask why
GREETING = 2.0  # seconds for a worker to say who it is, and for a server to answer


class Kind(IntEnum):
    """What a header announces. PULL, alone or in the name: the range is to be answered."""

    PUSH = 1
    PULL = 2
    PUSH_PULL = 3
    PUSH_SOME = 5
    PUSH_SOME_PULL = 7


SOME = 4  # bit of a kind: indices and values follow


class Group:
    """Workers that share a table."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        numel, block, self.num_workers, tau = shape
        lag = inf if tau == ASYNCHRONOUS else tau
        self.table = Table(numel, block, self.num_workers, lag)
        self.workers: dict[int, Member] = {}
        self.gone: set[int] = set()
        self.lost: set[int] = set()  # of those, whom somebody waited for

    def advance(self) -> None:
        """Answer what can be answered."""
        for worker in list(self.workers.values()):
            worker.answer()

    def leave(self, member: Member) -> None:
        """Without it, whoever waits for it waits in vain: those are sent away, and may ask why."""
        del self.workers[member.rank]
        self.gone.add(member.rank)
        for worker in list(self.workers.values()):
            worker.end_if_in_vain()

    def status(self) -> dict[str, Any]:
        """Who is lost while others wait, and for whom the pulls wait."""
        behind = {
            rank
            for worker in self.workers.values()
            if worker.pulls
            for rank in self.table.behind(worker.rank, worker.pulls[0])
        }
        return {"lost": sorted(self.lost), "behind": sorted(behind)}


class Member(Connection):
    """A worker, as its server sees it."""

    def __init__(self, sock: socket.socket, group: Group, rank: int) -> None:
        super().__init__(sock, f"rank {rank}", GREETING)
        self.group = group
        self.rank = rank
        self.pulls: deque[int] = deque()  # blocks, not answered yet
        self._header = bytearray(HEADER.size)
        self._scratch = np.empty(group.table.block, np.float32)
        self._blocks: deque[int] = deque()  # to come, of what the header announced
        self._kind = Kind.PULL
        self._expect(memoryview(self._header))

    def _expect(self, view: memoryview) -> None:
        self._view = view

    def read(self) -> None:
        """Take what has come, up to a block.

        Raises:
            PeerLost: it has left, or does not speak the protocol.
        """
        while got := self.take(self._view):
            self._view = self._view[got:]
            if self._view:
                continue
            if not self._blocks:
                self._begin()
            else:
                self._finish_block()
                return

    def _begin(self) -> None:
        """A header has come."""
        kind, count, first, last = HEADER.unpack(self._header)
        table = self.group.table
        if kind not in iter(Kind) or not first <= last < len(table.clock):
            raise PeerLost(self.peer, "it does not speak the protocol")
        self._kind = Kind(kind)
        if self._kind is Kind.PULL:
            self.pulls.extend(range(first, last + 1))
            self.answer()
            self._expect(memoryview(self._header))
            return
        self._blocks.extend(range(first, last + 1))
        if kind & SOME:
            if first != last or count > table.size(first):
                raise PeerLost(self.peer, "it pushes more than a block")
            self._some = np.empty((2, count), np.uint32)
        self._expect_block()

    def _expect_block(self) -> None:
        if not self._kind & SOME:
            size = self.group.table.size(self._blocks[0])
            self._expect(self._scratch[:size].data.cast("B"))
        elif self._some.size:
            self._expect(self._some.data.cast("B"))
        else:
            self._finish_block()

    def _finish_block(self) -> None:
        """A block of what was announced has come."""
        number = self._blocks.popleft()
        table = self.group.table
        size = table.size(number)
        if self._kind & SOME:
            indices, values = self._some[0], self._some[1].view(np.float32)
            if (indices >= size).any() or (indices[1:] <= indices[:-1]).any():
                raise PeerLost(self.peer, "its indices are not of the block, or do not rise")
            was_waited_for = table.push_some(self.rank, number, indices, values)
        else:
            was_waited_for = table.push(self.rank, number, self._scratch[:size])
        if self._kind & Kind.PULL:
            self.pulls.append(number)
        if was_waited_for:
            self.group.advance()
        else:
            self.answer()
        if self._blocks:
            self._expect_block()
        else:
            self._expect(memoryview(self._header))

    def answer(self) -> None:
        """Send of what was pulled what is there."""
        table = self.group.table
        while self.pulls and table.ready(self.rank, self.pulls[0]):
            self.queue.append(table.read(self.rank, self.pulls.popleft()).data.cast("B"))
        with suppress(PeerLost):  # it will be read that it has left
            self.flush()
        self.end_if_in_vain()

    def end_if_in_vain(self) -> None:
        """If it waits for one who has left, send it away."""
        group = self.group
        if not self.pulls or not group.gone:
            return
        if lost := group.gone.intersection(group.table.behind(self.rank, self.pulls[0])):
            group.lost = group.lost or lost  # who are sent away for that will be missed, too
            self.pulls.clear()
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)  # read as an end, by both


class Guest:
    """Who has connected, and has not said yet who it is."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.until = time.monotonic() + GREETING
        self._said = bytearray()

    def heard(self) -> Any:
        """What it says, once that is whole; None until then.

        Raises:
            OSError: it has gone.
            ValueError: it is a stranger.
        """
        if not filled(self.sock, self._said, partial(unsaid, most=MOST_SAID)):
            return None
        return meaning(bytes(self._said[HEAD.size :]))


class Server:
    """Serves at a listening socket.

    Args:
        listener: where workers come.
        lifelines: descriptors; when all of them have ended, and all workers left, it is over.
    """

    def __init__(self, listener: socket.socket, lifelines: Sequence[int] = ()) -> None:
        self.groups: dict[str, Group] = {}
        self._listener = listener
        self._lifelines = set(lifelines)
        self._bound = bool(lifelines)
        self._members: dict[int, Member] = {}
        self._guests: dict[int, Guest] = {}  # in the order in which they came
        self._epitaphs: dict[str, dict[str, Any]] = {}  # of groups that failed, for who still asks
        self._poll = select.epoll()
        self._writing: set[int] = set()
        for descriptor in (listener.fileno(), *lifelines):
            self._poll.register(descriptor, select.EPOLLIN)

    def serve(self) -> None:
        """Until all lifelines have ended and all workers have left; for ever without lifelines."""
        while not self._bound or self._lifelines or self._members:
            self._turn(None)
        end = time.monotonic() + LINGERING
        while self._epitaphs and (left := end - time.monotonic()) > 0:
            self._turn(left)

    def _turn(self, most: float | None) -> None:
        """Wait, for so many seconds at most, and do what there is to do."""
        waits = [seconds for seconds in (self._patience(), most) if seconds is not None]
        for descriptor, _ in self._poll.poll(min(waits, default=None)):
            if descriptor == self._listener.fileno():
                self._welcome()
            elif descriptor in self._lifelines:
                if not os.read(descriptor, 1024):
                    self._poll.unregister(descriptor)
                    self._lifelines.discard(descriptor)
            elif guest := self._guests.get(descriptor):
                self._hear(guest)
            elif member := self._members.get(descriptor):
                self._serve(member)
        self._watch()
        while self._guests and (self._patience() == 0 or len(self._guests) > GUESTS):
            self._send_away(next(iter(self._guests.values())))

    def _patience(self) -> float | None:
        """Seconds until the first guest has had its time; None: there is none."""
        for guest in self._guests.values():
            return max(0.0, guest.until - time.monotonic())
        return None

    def _serve(self, member: Member) -> None:
        try:
            member.flush()
            member.read()
        except PeerLost:
            self._part(member)

    def _watch(self) -> None:
        """Be told when those can be sent to for whom something is queued."""
        for descriptor, member in self._members.items():
            if bool(member.queue) != (descriptor in self._writing):
                self._writing ^= {descriptor}
                events = select.EPOLLIN | (select.EPOLLOUT if member.queue else 0)
                self._poll.modify(descriptor, events)

    def _welcome(self) -> None:
        with suppress(ConnectionAbortedError):  # it has gone already
            guest = Guest(self._listener.accept()[0])
            self._guests[guest.sock.fileno()] = guest
            self._poll.register(guest.sock.fileno(), select.EPOLLIN)

    def _hear(self, guest: Guest) -> None:
        """Have a guest be a member, or answer its question, once it has said who it is."""
        try:
            match guest.heard():
                case None:
                    return
                case {"group": str(name), "status": _}:
                    group = self.groups.get(name)
                    say(guest.sock, group.status() if group else self._epitaphs.get(name))
                case {"group": str(name), "rank": int(rank), "shape": [_, _, _, _] as shape}:
                    self._admit(guest, name, rank, Shape(*shape).check())
                    return
        except (OSError, ValueError, MemoryError):  # a stranger, or one for whom there is no room
            pass
        self._send_away(guest)

    def _send_away(self, guest: Guest) -> None:
        self._part_from(guest)
        guest.sock.close()

    def _part_from(self, guest: Guest) -> None:
        del self._guests[guest.sock.fileno()]
        self._poll.unregister(guest.sock.fileno())

    def _admit(self, guest: Guest, name: str, rank: int, shape: Shape) -> None:
        """A guest is a member.

        Raises:
            ValueError: that cannot be.
        """
        group = self.groups.get(name) or Group(shape)
        if group.shape != shape or rank in group.workers or rank not in range(shape.num_workers):
            raise ValueError
        self._part_from(guest)
        self.groups[name] = group
        sock = guest.sock
        member = group.workers[rank] = Member(sock, group, rank)
        self._members[sock.fileno()] = member
        self._poll.register(sock.fileno(), select.EPOLLIN)
        if len(group.workers) == group.num_workers:
            for member in group.workers.values():
                with suppress(OSError):  # it will be read that it has left
                    say(member.sock, "welcome")

    def _part(self, member: Member) -> None:
        descriptor = member.sock.fileno()
        self._poll.unregister(descriptor)
        del self._members[descriptor]
        self._writing.discard(descriptor)
        group = member.group
        group.leave(member)
        member.close()
        if not group.workers:
            (name,) = (name for name, one in self.groups.items() if one is group)
            del self.groups[name]
            if group.lost:
                self._epitaphs[name] = group.status()
                while len(self._epitaphs) > EPITAPHS:
                    self._epitaphs.pop(next(iter(self._epitaphs)))


class Link(Connection):
    """A worker's connection to a server; `group` is what it is of, and `at` where."""

    group: str
    at: tuple[str, int]


def join_group(at: tuple[str, int], greeting: dict[str, Any], name: str, timeout: float) -> Link:
    """A worker's connection to a server.

    Raises:
        PeerLost: it is not there, or does not want this worker.
    """
    try:
        sock = socket.create_connection(at, timeout)
        say(sock, greeting)
        hear(sock)
    except OSError as error:
        raise PeerLost(name, str(error)) from None
    found = Link(sock, name, timeout)
    found.group = greeting["group"]
    found.at = at
    return found


def ask(connection: Link) -> dict[str, Any] | None:
    """How it stands in the group of this connection; None: the server does not know, or is gone."""
    try:
        with socket.create_connection(connection.at, GREETING) as sock:
            say(sock, {"group": connection.group, "status": True})
            status: dict[str, Any] | None = hear(sock)
            return status
    except (OSError, ValueError):
        return None


def among(hosts: int) -> Server | dict[str, str]:
    """A server, if this is one of the last hosts; else what a command has to have to find them.

    A process that is to find them holds a connection to each as long as it lives: its lifeline.

    Raises:
        ValueError: the environment lacks what it needs, or names too few hosts.
    """
    place = Place.from_env(os.environ)
    workers = place.num_workers - hosts
    if workers < 1 or hosts < 1:
        raise ValueError(f"--hosts {hosts} of {place.num_workers}: leave at least one to work")
    serves = place.rank >= workers
    doors: list[socket.socket] = []

    def tell(here: str) -> Any:
        if not serves:
            return None
        doors.append(socket.create_server((here, 0), backlog=2 * workers))
        return doors[0].getsockname()

    addresses = meet(f"{hosts} parameter servers", tell, GATHERING).told[workers:]
    if serves:
        lifelines = [doors[0].accept()[0] for _ in range(workers)]
        return Server(doors[0], [line.detach() for line in lifelines])
    for at in addresses:
        line = socket.create_connection(tuple(at), GREETING)
        line.settimeout(None)
        line.set_inheritable(True)
        line.detach()
    text = ",".join(f"{host}:{port}" for host, port in addresses)
    return {"WORLD_SIZE": str(workers), "ISWITCH_PS_SERVERS": text}


def main() -> int:
    """Be a server."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--listen", metavar="HOST:PORT", help="serve there; port 0: any")
    where.add_argument("--hosts", type=int, metavar="S", help="serve on the last S of the hosts")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input has")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND...")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.hosts is not None:
        if not command:
            parser.error("--hosts: put a command at the end, for the other hosts")
        try:
            server = among(args.hosts)
        except ValueError as error:
            parser.error(str(error))
        if isinstance(server, dict):
            os.execvpe(command[0], command, {**os.environ, **server})
    else:
        host, _, port = args.listen.rpartition(":")
        if not host or not port.isdecimal():
            parser.error(f"--listen {args.listen}: write HOST:PORT, such as 10.0.0.5:29600")
        listener = socket.create_server((host, int(port)), backlog=64)
        print(LISTENING + "{}:{}".format(*listener.getsockname()), flush=True)
        server = Server(listener, [sys.stdin.fileno()] if args.until_eof else [])
    with suppress(KeyboardInterrupt):
        server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
