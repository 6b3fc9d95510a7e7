"""The UNIX sockets at which switches hand out rings: their paths, and what is said there."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from iswitch.system.private import alone_in, bind, folder, is_left_over, is_private
from iswitch.system.switches import is_on

from .memory import BrokenRing

# 0: no shared memory; a path: the switch's UNIX socket is there
VARIABLE = "ISWITCH_SHM"
HELLO = b"iswitch ring 1"
ANYWHERE = "0.0.0.0"
MOST_FDS = 3
CLOEXEC = 0x40000000  # MSG_CMSG_CLOEXEC
BACKLOG = 64
PREFIX = "ring-"  # of the names of sockets
SO_NETNS_COOKIE = 71  # asm-generic/socket.h; since Linux 5.14


def is_wanted() -> bool:
    """Return whether the environment allows shared memory."""
    return given() is not None or is_on(VARIABLE)


def given() -> str | None:
    """Return the path that the environment names; None: it names none."""
    value = os.environ.get(VARIABLE, "")
    return value if "/" in value else None


def paths(host: str, port: int) -> list[Path]:
    """Return where a switch at a UDP address may have its UNIX socket, the likeliest first.

    The name holds this process's network namespace, since other namespaces may have that address.
    """
    if path := given():
        return [Path(path)]
    namespace = os.stat("/proc/self/ns/net").st_ino
    return [folder() / f"{PREFIX}{namespace}-{at}-{port}" for at in (host, ANYWHERE)]


def listen(path: Path) -> socket.socket:
    """Listen at a path, in a directory that belongs to this user alone.

    Sockets of switches to which nobody listens any more are removed.

    Raises:
        OSError: the directory is another's, or another switch listens there.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if not is_private(path.parent):
        raise PermissionError(f"{path.parent} is not this user's alone (mode 0700)")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        with alone_in(path.parent):  # one that is bound does not answer before it listens
            for old in (path, *path.parent.glob(f"{PREFIX}*")):
                if is_left_over(old, socket.SOCK_SEQPACKET):
                    with suppress(OSError):
                        old.unlink()
            bind(sock, path)
            sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def namespace_of(sock: socket.socket) -> bytes | None:
    """Return the network namespace of a socket; None: this kernel does not tell."""
    try:
        return sock.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)
    except OSError:
        return None


def connect(path: Path) -> socket.socket | None:
    """Connect to the socket at a path; None: nobody is there, or it is not for this user."""
    if not is_private(path.parent):
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        return None
    return sock


def say(sock: socket.socket, text: bytes, fds: list[int]) -> None:
    """Send a message with descriptors.

    Raises:
        OSError: the other side is gone, or does not read.
    """
    socket.send_fds(sock, [text], fds, socket.MSG_NOSIGNAL)


def hear(sock: socket.socket) -> tuple[bytes, list[int]] | None:
    """Receive a message and its descriptors, without waiting; None: there is none yet.

    Raises:
        BrokenRing: the other side is gone.
    """
    try:
        text, fds, _, _ = socket.recv_fds(sock, 256, MOST_FDS, CLOEXEC)
    except BlockingIOError:
        return None
    except OSError as error:
        raise BrokenRing(error.strerror) from None
    if not text:
        close_all(fds)
        raise BrokenRing("the other side is gone")
    return text, fds


def close_all(fds: list[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
