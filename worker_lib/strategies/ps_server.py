"""A parameter server: a process that adds up what workers push, and answers what they pull.

    python -m worker_lib.strategies.ps_server --listen HOST:PORT

serves all workers that connect, several groups at a time, until SIGTERM. Under `iswitch run` or
torchrun

    python -m worker_lib.strategies.ps_server --hosts 1 -- COMMAND...

is the server on the last host (of `--hosts 2`: on each of the last two), and COMMAND on all others,
which find WORLD_SIZE without it, and ISWITCH_PS_SERVERS.

`ps_group.py` describes the messages between workers and servers.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

from .errors import PeerLost
from .messages import GUESTS, Incoming, hear, say
from .ps_group import GREETING, Client, Group
from .ps_table import Shape
from .rendezvous import Rendezvous, meet
from .tcp import Connection

LISTENING = "listening "
GATHERING = 60.0  # seconds for all processes of a run to come
EPITAPHS = 64  # failed groups whose status is kept
MOST_SAID = 4096  # bytes of a greeting
LINGERING = 0.5  # seconds for members of a group that failed to ask why


class Guest(Incoming):
    """A connection whose greeting is not complete yet."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        super().__init__(sock, MOST_SAID)
        self.until = time.monotonic() + GREETING


class Server:
    """Serves groups of workers at a listening socket.

    Args:
        listener: socket to which workers connect.
        lifelines: descriptors to watch; the server ends when all of them have reached end of file
            and all workers have left. Empty: it never ends.
        once: end also when a group has been complete, and all workers have left.
    """

    def __init__(
        self, listener: socket.socket, lifelines: Sequence[int] = (), once: bool = False
    ) -> None:
        self.groups: dict[str, Group] = {}
        self._listener = listener
        self._lifelines = set(lifelines)
        self._bound = bool(lifelines)
        self._once = once
        self._members: dict[int, Client] = {}
        self._guests: dict[int, Guest] = {}  # by descriptor, oldest first
        self._epitaphs: dict[str, dict[str, Any]] = {}  # last status of failed groups, by name
        self._poll = select.epoll()
        self._writing: set[int] = set()
        for descriptor in (listener.fileno(), *lifelines):
            self._poll.register(descriptor, select.EPOLLIN)

    def serve(self) -> None:
        """Serve until all lifelines have ended and all workers have left, then LINGERING seconds.

        In these, members of failed groups may still ask. Without lifelines serve forever.
        """
        while not self._bound or self._lifelines or self._members:
            self._turn(None)
        end = time.monotonic() + LINGERING
        while self._epitaphs and (left := end - time.monotonic()) > 0:
            self._turn(left)

    def _turn(self, most: float | None) -> None:
        """Wait up to `most` seconds (None: without limit) for descriptors; serve the ready ones."""
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
        """Return the seconds until the oldest guest's time is up; None: there are no guests."""
        for guest in self._guests.values():
            return max(0.0, guest.until - time.monotonic())
        return None

    def _serve(self, member: Client) -> None:
        try:
            member.flush()
            member.read()
        except PeerLost:
            self._part(member)

    def _watch(self) -> None:
        """Poll for writing exactly those members that have queued data."""
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
        """Admit a guest as a member, or answer its question, once its greeting is complete."""
        try:
            if not guest.read():
                return
            match guest.meaning():
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
        """Make a guest a member of a group; welcome all members once the group is complete.

        Args:
            guest: the connection.
            name: name of the group.
            rank: the guest's number in the group.
            shape: shape that the guest expects of the group's table.

        Raises:
            ValueError: the group has another shape, or the rank is taken or out of range.
        """
        group = self.groups.get(name) or Group(shape)
        if group.shape != shape or rank in group.workers or rank not in range(shape.num_workers):
            raise ValueError
        self._part_from(guest)
        self.groups[name] = group
        sock = guest.sock
        member = group.workers[rank] = Client(sock, group, rank)
        self._members[sock.fileno()] = member
        self._poll.register(sock.fileno(), select.EPOLLIN)
        if len(group.workers) == group.num_workers:
            self._bound |= self._once
            for member in group.workers.values():
                with suppress(OSError):  # the next read notices that the member has left
                    say(member.sock, "welcome")

    def _part(self, member: Client) -> None:
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


class ServerConnection(Connection):
    """A worker's connection to a server, where it joins a group and waits until that is complete.

    Args:
        at: (host, port) of the server.
        greeting: message with the group's name, this worker's rank and the table's shape.
        name: name of the server in errors.
        timeout: seconds to wait, and then of silence.

    Raises:
        PeerLost: the server does not answer, or refuses this worker.
    """

    def __init__(
        self, at: tuple[str, int], greeting: dict[str, Any], name: str, timeout: float
    ) -> None:
        self._at, self._group = at, greeting["group"]
        try:
            with ExitStack() as failing:
                sock = failing.enter_context(socket.create_connection(at, timeout))
                say(sock, greeting)
                hear(sock)
                failing.pop_all()
        except (OSError, ValueError) as error:
            raise PeerLost(name, str(error)) from None
        super().__init__(sock, name, timeout)

    def status(self) -> dict[str, Any] | None:
        """Ask for the status of the group; None: the server is gone or does not know."""
        try:
            with socket.create_connection(self._at, GREETING) as sock:
                say(sock, {"group": self._group, "status": True})
                status: dict[str, Any] | None = hear(sock)
                return status
        except (OSError, ValueError):
            return None


def among(hosts: int) -> Server | dict[str, str]:
    """Make a server on each of the last `hosts` ranks; elsewhere return variables to find them.

    On the other ranks this process keeps a connection to each server open as long as it lives, as a
    lifeline.

    Raises:
        ValueError: a variable is missing or wrong, or there are too few ranks.
    """
    rank, size, _ = Rendezvous.from_env(os.environ)
    workers = size - hosts
    if workers < 1 or hosts < 1:
        raise ValueError(f"--hosts {hosts} of {size}: leave at least one to work")
    serves = rank >= workers
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
    """Run a server, or with --hosts on other hosts the command; return the exit status."""
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
