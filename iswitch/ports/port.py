"""The interface of all ports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

In_co = TypeVar("In_co", covariant=True)
Out_contra = TypeVar("Out_contra", contravariant=True)


class Port(Protocol[In_co, Out_contra]):
    """Moves packets: a socket, or all the ports of a switch."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when packets have come."""

    def pull(self) -> Iterable[In_co]:
        """Yield what has come, without waiting; the caller handles each before the next."""

    def push(self, sends: Iterable[Out_contra], /) -> None:
        """Send packets or frames."""

    def deadline(self) -> float | None:
        """Return when to call `pull` even if nothing has come, in seconds; None: not at all."""

    def close(self) -> None:
        """Close sockets and files."""
