"""Refuses sockets of a program's own in virtual time."""

from __future__ import annotations

import socket
from typing import Any

from .process import current

REFUSAL = (
    "a socket to {} knows no virtual time: what it brings would come at no time at all. Programs "
    "with sockets of their own, gloo or MPI run with --world loopback, or --world netns (as root)"
)
_real_connect, _real_bind = socket.socket.connect, socket.socket.bind


class NotVirtual(OSError):
    """A program in virtual time uses what has no virtual time."""


def install() -> None:
    """Make sockets of the Internet refuse to connect and to bind in virtual time."""
    socket.socket.connect = _refusing(_real_connect)  # type: ignore[method-assign]
    socket.socket.bind = _refusing(_real_bind)  # type: ignore[method-assign]


def _refusing(real: Any) -> Any:
    def call(self: socket.socket, address: Any) -> Any:
        if current() is not None and self.family in (socket.AF_INET, socket.AF_INET6):
            raise NotVirtual(REFUSAL.format(address))
        return real(self, address)

    return call
