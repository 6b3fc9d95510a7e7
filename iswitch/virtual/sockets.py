"""Refuses sockets of a program's own in virtual time."""

from __future__ import annotations

import errno
import socket
import sys
from typing import Any, NoReturn

from .patches import Patches
from .process import current

REFUSAL = (
    "{} knows no virtual time: what it brings would come at no time at all. Programs with sockets "
    "of their own, gloo or MPI run with --world loopback, or --world netns (as root)"
)
_NETWORKS = (socket.AF_INET, socket.AF_INET6, socket.AF_PACKET)
_NAMING = ("connect", "bind", "sendto", "sendmsg")  # calls of a socket that name an address last


class NotVirtual(OSError):
    """A program in virtual time uses what has no virtual time."""


class Refusing:
    """Stands for a library in virtual time: whatever is asked of it is refused."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python asks of any module
            raise AttributeError(name)
        self()

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Refuse.

        Raises:
            NotVirtual: always.
        """
        raise NotVirtual(errno.EOPNOTSUPP, REFUSAL.format(self._name))


def real_only(thing: Any, name: str) -> Any:
    """Return what works in real time only; in virtual time, something that refuses."""
    return thing if current() is None else Refusing(name)


def refuse(name: str) -> None:
    """Refuse a library that knows no virtual time, if the caller is in it.

    Raises:
        NotVirtual: it is.
    """
    if current() is not None:
        Refusing(name)()


def install(patches: Patches) -> None:
    """Make sockets of a network refuse to connect, to bind and to send in virtual time."""
    for name in _NAMING:
        patches.put(socket.socket, name, _refusing(getattr(socket.socket, name)))
    sys.modules["mpi4py"] = Refusing("MPI")  # type: ignore[assignment]


def _refusing(real: Any) -> Any:
    def call(self: socket.socket, *args: Any) -> Any:
        if current() is not None and self.family in _NETWORKS:
            raise NotVirtual(errno.EOPNOTSUPP, REFUSAL.format(f"a socket of {args[-1]}"))
        return real(self, *args)

    return call
