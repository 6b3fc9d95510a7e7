"""This user's UNIX sockets, and a directory for them that nobody else can write to.

Its path depends on the user alone, so that processes find each other whatever their environment is.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AnyPath = str | os.PathLike[str]


def folder() -> Path:
    """Return the directory of this user's UNIX sockets."""
    return Path("/tmp") / f"iswitch-{os.getuid()}"


def is_private(where: Path) -> bool:
    """Return whether only this user, or root, can have put something into a directory."""
    try:
        found = where.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


@contextmanager
def alone_in(where: Path) -> Iterator[None]:
    """Keep other processes that call this for the same directory out of the `with` block.

    Raises:
        OSError: the directory cannot be opened.
    """
    fd = os.open(where, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def bind(sock: socket.socket, path: AnyPath) -> None:
    """Bind a socket to a path, so that only this user may connect to it.

    Raises:
        OSError: something has the path, or the system refuses it.
    """
    before = os.umask(0o177)
    try:
        sock.bind(os.fspath(path))
    finally:
        os.umask(before)


def is_left_over(path: AnyPath, kind: socket.SocketKind) -> bool:
    """Return whether a path is a socket of a kind to which nobody listens any more."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
        with socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK) as probe:
            probe.connect(os.fspath(path))
    except ConnectionRefusedError:
        return True
    except OSError:  # such as: too many wait in its queue
        return False
    return False
