"""The interface of all ports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

In_co = TypeVar("In_co", covariant=True)
Out_contra = TypeVar("Out_contra", contravariant=True)


class Port(Protocol[In_co, Out_contra]):
    """Moves packets: a socket, or all the ports of a switch."""

    def fileno(self) -> int:
        """Give a descriptor that is readable when something has come."""

    def pull(self) -> Iterable[In_co]:
        """Give what has come, without waiting; each is handled before the next is asked for."""

    def push(self, sends: Iterable[Out_contra], /) -> None:
        """Send packets or frames."""

    def deadline(self) -> float | None:
        """Tell when to call `pull` though nothing has come; None: not at all."""

    def close(self) -> None:
        """Close sockets and files."""


def earlier(one: float | None, other: float | None) -> float | None:
    """Give the earlier of two times, if any."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
